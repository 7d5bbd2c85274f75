"""Probe server of a worker or scheduler process: ``/healthz``, ``/readyz`` and ``/metrics``.

For processes without a web service, and only if a port is set. It accepts GET requests without a body, keeps no
connection open and needs no API key. Therefore it listens on this machine only, unless ``metrics_public`` is set.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import parse_qs

from tenuto.errors import Conflict, Invalid
from tenuto.logs import Log
from tenuto.observability.prometheus import CONTENT_TYPE
from tenuto.observability.status import CheckName, InstallationStatus
from tenuto.settings import Settings

REQUEST_TIMEOUT_SECONDS = 10.0
_MAX_REQUEST_BYTES = 16 * 1024
MAX_CONNECTIONS = 50
_LOCAL_HOST_HEADER = re.compile(rb"host:[ \t]*(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?[ \t]*", re.IGNORECASE)

log = Log("tenuto.probe_server")


class ProbeServer:
    """A service that answers probes, if a port is set."""

    name = "tenuto-probe-server"

    def __init__(
        self,
        settings: Settings,
        status: InstallationStatus,
        *,
        max_connections: int = MAX_CONNECTIONS,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        self._settings = settings
        self._handler = _ProbeHandler(
            status, max_connections, request_timeout_seconds, accepts_any_host=settings.metrics_public
        )
        self._server: asyncio.Server | None = None

    @property
    def is_ready(self) -> bool:
        return self._settings.metrics_port is None or self._server is not None

    async def start(self) -> None:
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if port is None:
            return
        _check_host(self._settings)
        try:
            self._server = await asyncio.start_server(self._handler.handle, host, port, limit=_MAX_REQUEST_BYTES)
        except OSError as error:
            raise Conflict(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                code="settings.metrics_port.unavailable",
                field="metrics_port",
                remedy="set a different metrics_port for each process on a machine, or 0 for any free port",
            ) from error
        log.info("metrics endpoint listening", address=f"{host}:{self._server.sockets[0].getsockname()[1]}")

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class _ProbeHandler:
    def __init__(
        self,
        status: InstallationStatus,
        max_connections: int,
        request_timeout_seconds: float,
        *,
        accepts_any_host: bool,
    ) -> None:
        self._status = status
        self._max_connections = max_connections
        self._request_timeout_seconds = request_timeout_seconds
        self._accepts_any_host = accepts_any_host
        self._connection_count = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request within the time limit, then close the connection."""
        if self._connection_count >= self._max_connections:  # before reading: a silent client holds a connection too
            writer.write(_response(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n"))
            writer.close()
            return
        self._connection_count += 1
        try:
            async with asyncio.timeout(self._request_timeout_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(*head.split(b"\r\n")))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not an HTTP client, or it has gone
        finally:
            self._connection_count -= 1
            writer.transport.abort()

    async def _respond(self, line: bytes, *headers: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        path, _, query = rest.partition(b" ")[0].partition(b"?")
        if not self._accepts_any_host and not any(_LOCAL_HOST_HEADER.fullmatch(header) for header in headers):
            # A web page may reach this machine under a host name of its choice (DNS rebinding).
            return _response(HTTPStatus.MISDIRECTED_REQUEST, "the Host header must be localhost\n")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed\n")
        match path:
            case b"/healthz":
                return _response(HTTPStatus.OK, "ok\n")
            case b"/readyz":
                exclude = parse_qs(query.decode("ascii", "replace")).get("exclude", [])
                if unknown := [name for name in exclude if name not in set(CheckName)]:
                    names = ", ".join(CheckName)
                    return _response(HTTPStatus.BAD_REQUEST, f"no check {unknown[0]!r} to exclude; checks: {names}\n")
                found = await self._status.readiness(exclude)
                status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
                return _response(status, json.dumps(asdict(found)), "application/json")
            case b"/metrics":
                return _response(HTTPStatus.OK, await self._status.metrics(), CONTENT_TYPE)
            case _:
                return _response(HTTPStatus.NOT_FOUND, "not found; available: /healthz, /readyz, /metrics\n")


def _response(status: HTTPStatus, text: str, content_type: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode("utf-8")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def _check_host(settings: Settings) -> None:
    try:
        is_local = settings.metrics_host == "localhost" or ip_address(settings.metrics_host).is_loopback
    except ValueError:
        is_local = False
    if not is_local and not settings.metrics_public:
        raise Invalid(
            f"metrics_host {settings.metrics_host} is reachable from other machines without an API key",
            code="settings.metrics_host.exposed",
            field="metrics_host",
            remedy="set metrics_public if a firewall protects the port",
        )
