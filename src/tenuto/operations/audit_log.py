"""``app.audit``: what people and keys have changed, in a trail that shows if somebody has been at it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

from tenuto.audit import checkpoints, verifier
from tenuto.audit import keys as auditkeys
from tenuto.audit.checkpoints import Anchor
from tenuto.audit.verifier import Place, Verification
from tenuto.errors import Invalid, NotFound
from tenuto.model import stored_values
from tenuto.model.audit_chain import AuditKeys
from tenuto.operations.listing import Open, Record, listed
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store.access import audit_log

_PAGE = 500
_MOST_WAITING = 5000


class Audit:
    """``app.audit``: what people and keys have changed."""

    def __init__(self, open: Open, settings: Callable[[], Settings]) -> None:
        self._open = open
        self._settings = settings

    async def list(
        self,
        *,
        below: UUID | None = None,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[Record]:
        """Entries, the newest first: of an actor (name or id), an action (``schedule`` or ``schedule.disable``), a
        target, a span of time."""
        for field, text in (("actor", actor), ("action", action), ("target", target)):
            if text is not None:
                stored_values.label(text, field=field)
        for field, instant in (("since", since), ("until", until)):
            if instant is not None and instant.tzinfo is None:
                raise Invalid("must be an instant with a zone", field=field, remedy="write it as 2031-12-25T00:00:00Z")
        return await audit_log.list_entries(
            await self._open(),
            below=below,
            actor=actor,
            action=action,
            target=target,
            since=since,
            until=until,
            limit=listed(limit),
        )

    async def get(self, id: UUID) -> Record:
        """One entry, with its place in the chain and its seal."""
        found = await audit_log.entry(await self._open(), id)
        if found is None:
            raise NotFound(f"there is no audit entry {id}", remedy="see `tenuto audit list`")
        return found

    async def verify(self, *, newest: int | None = None) -> Verification:
        """Whether the trail is as it was written: all of it, or so many of its newest entries."""
        return await verifier.verify(*await self._to_verify(newest), newest=newest)

    async def verify_part(
        self, *, newest: int | None = None, place: Place | None = None
    ) -> tuple[Verification, Place | None]:
        """As `verify`, but no more than takes a moment; and from where to go on, if there is more."""
        return await verifier.verify_part(*await self._to_verify(newest), newest=newest, place=place)

    async def _to_verify(self, newest: int | None) -> tuple[Database, AuditKeys, Sequence[Anchor]]:
        if newest is not None and newest < 1:
            raise Invalid("must be 1 or more", field="newest")
        database, settings = await self._open(), self._settings()
        keys = await asyncio.to_thread(auditkeys.at_hand, settings)
        known = await asyncio.to_thread(checkpoints.read, settings.home, await audit_log.identity(database))
        return database, keys, known

    async def lines(self) -> AsyncIterator[str]:
        """The whole trail as lines of JSON, the oldest first: sealed entries in the order of the chain, then those that
        wait. ``entry`` is what was sealed, ``before`` and ``after`` in it being texts of JSON."""
        database = await self._open()
        after = 0
        while True:
            while some := await audit_log.links(database, after, _PAGE):
                for link in some:
                    yield _line(link.position, link.sealed_at.isoformat(), link.seal.hex(), link.entry)
                after = some[-1].position
            entries = await audit_log.waiting(database, _MOST_WAITING)
            if (await audit_log.head_now(database)).position == after:  # else one may have been sealed in between
                break
        for entry in entries:
            yield _line(None, None, None, entry)

    async def export(self, file: Path) -> int:
        """Write the whole trail to a file, which is there whole or not at all and only its owner's to read; how many
        entries."""
        draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise Invalid(f"cannot write to {file.parent}: {error.strerror}", field="file") from error
        try:
            count = 0
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                async for line in self.lines():
                    out.write(f"{line}\n")
                    count += 1
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            draft.replace(file)
        except OSError as error:
            raise Invalid(f"cannot write {file}: {error.strerror}", field="file") from error
        finally:
            draft.unlink(missing_ok=True)
        return count


def _line(position: int | None, sealed_at: str | None, seal: str | None, entry: Record | None) -> str:
    # In ASCII: wherever it is shown, there is nothing in it that a terminal obeys. The seal is of what is read from the
    # line, and an escape reads as the character it stands for.
    told = {"position": position, "sealed_at": sealed_at, "seal": seal, "entry": entry}
    return json.dumps(told, separators=(",", ":"), sort_keys=True)
