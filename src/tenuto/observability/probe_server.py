"""A window into a worker or scheduler process: ``/healthz``, ``/readyz`` and ``/metrics``, for machines that watch.

For processes without a web service, and only where a port was given for it. It answers GET and nothing else, takes no
body, keeps no connection, and asks for no key; so it opens onto this machine alone, unless the figures are open anyway.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from http import HTTPStatus
from ipaddress import ip_address

from tenuto.errors import Conflict, Invalid
from tenuto.logs import Log
from tenuto.observability.prometheus import CONTENT_TYPE
from tenuto.observability.status import Observing
from tenuto.settings import Settings

_PATIENCE = 10.0
_LONGEST_REQUEST = 16 * 1024
_MOST_AT_ONCE = 50
_ADDRESSED_TO_US = re.compile(rb"host:[ \t]*(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?[ \t]*", re.IGNORECASE)

log = Log("tenuto.lookout")


@asynccontextmanager
async def lookout(settings: Settings, observing: Observing) -> AsyncIterator[None]:
    """Open for as long as the block lasts, if a port was given."""
    if settings.metrics_port is None:
        yield
        return
    _refuse_to_be_seen(settings)
    window = _Window(observing, to_all=settings.metrics_open)
    try:
        server = await asyncio.start_server(
            window.answer, settings.metrics_host, settings.metrics_port, limit=_LONGEST_REQUEST
        )
    except OSError as error:
        raise Conflict(
            f"cannot listen on {settings.metrics_host}:{settings.metrics_port}: {error.strerror or error}",
            field="metrics_port",
            remedy="give each process of a machine a port of its own, or 0 for any that is free",
        ) from error
    log.info("figures told", address=f"{settings.metrics_host}:{server.sockets[0].getsockname()[1]}")
    try:
        yield
    finally:
        server.close()


class _Window:
    def __init__(self, observing: Observing, *, to_all: bool) -> None:
        self._observing = observing
        self._to_all = to_all
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, and the end; whoever dawdles over either is cut off."""
        if self._open >= _MOST_AT_ONCE:  # before anything is read: who says nothing holds a connection, too
            writer.write(_response(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once\n"))
            writer.close()
            return
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer_to(*head.split(b"\r\n")))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # somebody who does not speak HTTP, does not listen, or has gone
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _answer_to(self, line: bytes, *headers: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not self._to_all and not any(_ADDRESSED_TO_US.fullmatch(header) for header in headers):
            # A page in somebody's browser may reach this machine under a name of its own making.
            return _response(HTTPStatus.MISDIRECTED_REQUEST, "ask for localhost\n")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "GET and nothing else\n")
        match path:
            case b"/healthz":
                return _response(HTTPStatus.OK, "ok\n")
            case b"/readyz":
                found = await self._observing.readiness()
                status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
                return _response(status, json.dumps(asdict(found)), "application/json")
            case b"/metrics":
                return _response(HTTPStatus.OK, await self._observing.metrics(), CONTENT_TYPE)
            case _:
                return _response(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics\n")


def _response(status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode("utf-8")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def _refuse_to_be_seen(settings: Settings) -> None:
    try:
        near = settings.metrics_host == "localhost" or ip_address(settings.metrics_host).is_loopback
    except ValueError:
        near = False
    if not near and not settings.metrics_open:
        raise Invalid(
            f"{settings.metrics_host} can be reached from other machines, and no key is asked for",
            field="metrics_host",
            remedy="say metrics_open if only those who may look can reach it",
        )
