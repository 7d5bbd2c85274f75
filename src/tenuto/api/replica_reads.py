"""Requests that read from the read replica: which may, and how recent its state must be for each.

A caller never goes back in time: it sees its own changes, and what it has read from the primary. This process remembers
when each caller did; for a browser a cookie carries changes to the other web services. Other callers see a state that
is as old as the setting allows.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from tenuto.api.security.authentication import ApiCall
from tenuto.app import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.postgres.servers.read_replica import ReadReplica, ReplicaState

MAX_AGE_HEADER = "Tenuto-Max-Age"
"""Request header: how old the state may be, in milliseconds. A live page sends how long ago it learned of the last
change: older models do not show it."""
STALENESS_HEADER = "Tenuto-Staleness"
"""Response header: how old the state is at most, in seconds, if it was read from the replica."""
_CHANGED_COOKIE = "tenuto_changed_at"
"""When the browser has last changed something, in milliseconds since 1970 by the clock of the database."""
_CLOCK_MARGIN_SECONDS = 0.5
"""How much the clocks of two web services, which both follow that of the database, may differ."""
_MAX_REMEMBERED = 10_000
_MAX_DIGITS = 15


class ReplicaReads:
    """Chooses for each request whether it reads from the replica."""

    def __init__(self, tenuto: Tenuto, url: str) -> None:
        settings = tenuto.settings
        self._tenuto = tenuto
        self._max_staleness_seconds = settings.database_readonly_max_staleness_seconds
        self.replica = ReadReplica(
            url,
            tenuto.open,
            max_staleness_seconds=self._max_staleness_seconds,
            behind_pooler=settings.behind_pooler,
        )
        self._newest_at: dict[str, float] = {}
        """When callers have last used the primary, on the monotonic timer, oldest first."""

    async def choose(self, request: Request, call: ApiCall) -> ReplicaState | None:
        """Return the replica for a query of a caller, or None if it must read from the primary."""
        limits = [self._max_staleness_seconds]
        stated = _digits(request.headers.get(MAX_AGE_HEADER, ""))
        if stated is not None:
            limits.append(stated / 1000)
        newest_at = self._newest_at.get(_name_caller(call))
        if newest_at is not None:
            limits.append(monotonic_seconds() - newest_at)  # guard: replica.own_changes
        stated = _digits(request.cookies.get(_CHANGED_COOKIE, ""))
        if stated is not None:
            now = (await self._tenuto.open()).clock.now()
            limits.append(now.timestamp() - stated / 1000 - _CLOCK_MARGIN_SECONDS)
        return await self.replica.choose(max(min(limits), 0.0))

    def remember_newest(self, call: ApiCall) -> None:
        """Remember that a caller has changed something, or has seen the state of the primary."""
        name = _name_caller(call)
        self._newest_at.pop(name, None)
        self._newest_at[name] = monotonic_seconds()
        if len(self._newest_at) > _MAX_REMEMBERED:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget what every usable replica has; if that does not suffice, keep more callers than the limit."""
        oldest = monotonic_seconds() - self._max_staleness_seconds
        for name, newest_at in list(self._newest_at.items()):
            if newest_at >= oldest:
                break
            del self._newest_at[name]

    async def add_cookie(self, request: Request, call: ApiCall, response: Response) -> None:
        """Carry the instant of a change by a browser to the other web services."""
        if not call.caller.via_session:
            return
        now = (await self._tenuto.open()).clock.now()
        response.set_cookie(
            _CHANGED_COOKIE,
            str(int(now.timestamp() * 1000)),
            max_age=int(self._max_staleness_seconds + _CLOCK_MARGIN_SECONDS) + 1,
            path=self._tenuto.settings.web_path or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )


def create_replica_reads(tenuto: Tenuto) -> ReplicaReads | None:
    """Return what chooses the source of each request; None without a read replica."""
    url = tenuto.settings.database_readonly
    return None if url is None else ReplicaReads(tenuto, url)


def replica_reads(api: FastAPI) -> ReplicaReads | None:
    """Return what chooses the source of each request of an application."""
    found: ReplicaReads | None = api.state.replica_reads
    return found


def _name_caller(call: ApiCall) -> str:
    actor = call.caller.actor
    return f"{actor.type}:{actor.id or actor.name}"


def _digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
