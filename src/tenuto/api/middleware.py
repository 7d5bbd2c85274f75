"""What every request passes before a route sees it: an id, the name it was sent to, its size; and what every answer
carries on its way out.

Plain ASGI: these few lines run for each request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.api.problems import Problem, Refused, answer
from tenuto.clock import steady
from tenuto.ids import new_id

MAX_BODY = 1024 * 1024
BODY_SECONDS = 60.0
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SLASH = re.compile(rb"%2f", re.IGNORECASE)
"""A slash within a name: kept apart from those between names, as a NUL, which no name holds (see `paths`)."""
_ALWAYS_WELCOME = ("localhost", "127.0.0.1", "[::1]")

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_FOR_DATA = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Around the whole application."""

    def __init__(self, inner: ASGIApp, hosts: Iterable[str], unbounded: Iterable[re.Pattern[str]] = ()) -> None:
        """``hosts`` are the names we answer to; on the paths ``unbounded`` a body may go on for as long as it likes."""
        self._inner = inner
        self._hosts = {host.lower() for host in (*_ALWAYS_WELCOME, *hosts)}
        self._unbounded = tuple(unbounded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = Headers(scope=scope)
        named = headers.get("x-request-id", "")
        request_id = named if _ID.fullmatch(named) else new_id().hex
        scope["tenuto_request_id"] = request_id

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message["headers"] = list(message["headers"])
                names = {name for name, _ in given}
                given.append((b"x-request-id", request_id.encode()))
                given += [header for header in _HEADERS if header[0] not in names]
                if not any(name == b"content-type" and value.startswith(b"text/html") for name, value in given):
                    given += [header for header in _FOR_DATA if header[0] not in names]
            await send(message)

        problem = self._refusal(scope, headers)
        if _SLASH.search(scope.get("raw_path") or b""):
            scope = {**scope, "path": unquote(_SLASH.sub(b"%00", scope["raw_path"]).decode("ascii", "replace"))}
        bounded = not any(path.fullmatch(scope["path"]) for path in self._unbounded)
        if bounded and problem is None:
            problem = _refusal_by_length(headers)
        if problem is not None:
            await answer(Request(scope), problem)(scope, receive, sending)
            return
        await self._inner(scope, _counted(receive) if bounded else receive, sending)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in self._hosts and "*" not in self._hosts:
            return Problem(
                type="urn:tenuto:misdirected",
                title="this is not the name of this service",
                status=421,
                remedy="name it in the setting web_hosts",
            )
        if "\x00" in scope["path"]:
            return Problem(type="urn:tenuto:bad-request", title="the path holds a NUL character", status=400)
        return None


def _refusal_by_length(headers: Headers) -> Problem | None:
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) <= MAX_BODY:
        return None
    return Problem(
        type="urn:tenuto:too-large",
        title="the body is too large",
        status=413,
        detail=f"it may have {MAX_BODY:,} bytes",
        remedy="send less at once; bulk goes as a stream of lines to …/bulk",
    )


def _counted(receive: Receive) -> Receive:
    size, ends = 0, steady() + BODY_SECONDS
    whole = False

    async def counting() -> Message:
        nonlocal size, whole
        if whole:  # from here on only the end of the line is awaited
            return await receive()
        try:
            async with asyncio.timeout(max(ends - steady(), 0.001)):
                message = await receive()
        except TimeoutError:
            raise Refused(408, f"the body did not come within {BODY_SECONDS:g} s") from None
        whole = not message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            raise Refused(413, f"the body may have {MAX_BODY:,} bytes", remedy="send less at once")
        return message

    return counting
