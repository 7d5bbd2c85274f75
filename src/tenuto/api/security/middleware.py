"""Middleware around all routes: request id, host check, body limits and security headers.

Plain ASGI instead of Starlette's base class, because it runs for every request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.api.problems import Problem, Refused, problem_response
from tenuto.clock import monotonic_seconds
from tenuto.errors import quoted
from tenuto.ids import new_id
from tenuto.tracing import remote_parent

MAX_BODY_BYTES = 1024 * 1024
BODY_TIMEOUT_SECONDS = 60.0
_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
"""A slash within a name. It becomes a NUL in the decoded path, see `parameters.NameConvertor`."""
PROBE_PATHS = ("/healthz", "/readyz", "/metrics")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_NON_HTML_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class RequestMiddleware:
    """Check every request and add headers to every response."""

    def __init__(
        self, inner: ASGIApp, hosts: Iterable[str], unbounded: Iterable[re.Pattern[str]] = (), prefix: str = ""
    ) -> None:
        """``hosts``: further host names of the service. ``unbounded``: paths whose bodies have no size limit.
        ``prefix``: path below which the service is served; routes see paths without it."""
        self._inner = inner
        self._prefix = prefix
        self._hosts = {host.lower() for host in (*_LOCAL_HOSTS, *hosts)}
        self._unbounded = tuple(unbounded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _REQUEST_ID_PATTERN.fullmatch(given_id) else new_id().hex
        scope["tenuto_request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = message["headers"] = [self._with_prefix(*header) for header in message["headers"]]
                names = {name for name, _ in sent}
                sent.append((b"x-request-id", request_id.encode()))
                sent += [header for header in _HEADERS if header[0] not in names]
                if not any(name == b"content-type" and value.startswith(b"text/html") for name, value in sent):
                    sent += [header for header in _NON_HTML_HEADERS if header[0] not in names]
            await send(message)

        problem = self._check_target(scope, headers)
        if self._prefix:
            scope, problem = self._strip_prefix(scope, problem)
        if _ESCAPED_SLASH.search(scope.get("raw_path") or b""):
            scope = {**scope, "path": unquote(_ESCAPED_SLASH.sub(b"%00", scope["raw_path"]).decode("ascii", "replace"))}
        bounded = not any(path.fullmatch(scope["path"]) for path in self._unbounded)
        if bounded and problem is None:
            problem = _check_length(headers)
        if problem is not None:
            await problem_response(Request(scope), problem)(scope, receive, send_with_headers)
            return
        with remote_parent(headers.get("traceparent")):
            await self._inner(scope, _bound_body(receive) if bounded else receive, send_with_headers)

    def _strip_prefix(self, scope: Scope, problem: Problem | None) -> tuple[Scope, Problem | None]:
        path = scope["path"]
        if path in PROBE_PATHS:  # probes do not come through the proxy
            return scope, problem
        if path != self._prefix and not path.startswith(f"{self._prefix}/"):
            outside = Problem(
                type="urn:tenuto:not-found",
                code="request.path.outside_prefix",
                title="the path is not below the path of this web service",
                status=404,
                detail=f"this web service is served below {self._prefix}",
            )
            return scope, problem or outside
        raw_path = scope.get("raw_path") or b""
        return {
            **scope,
            "path": path[len(self._prefix) :] or "/",
            "raw_path": raw_path[len(self._prefix.encode()) :] or b"/",
        }, problem

    def _with_prefix(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Return a header of a response; a location within this service gets the prefix."""
        if self._prefix and name == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
            return name, self._prefix.encode() + value
        return name, value

    def _check_target(self, scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in self._hosts and "*" not in self._hosts:
            return Problem(
                type="urn:tenuto:misdirected",
                code="request.host.unknown",
                title="the Host header is not a name of this service",
                status=421,
                detail=f"host {quoted(name, 100)} is not a name of this web service",
                remedy="add the name to the setting web_hosts",
            )
        if "\x00" in scope["path"]:
            return Problem(
                type="urn:tenuto:bad-request",
                code="request.path.nul",
                title="the path contains a NUL character",
                status=400,
            )
        return None


def _check_length(headers: Headers) -> Problem | None:
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) <= MAX_BODY_BYTES:
        return None
    return Problem(
        type="urn:tenuto:too-large",
        code="request.too_large",
        title="the body is too large",
        status=413,
        detail=f"the body has {length:.20} bytes; the limit is {MAX_BODY_BYTES:,} bytes",
        remedy="send less in one request, or send JSON lines to …/bulk",
    )


def _bound_body(receive: Receive) -> Receive:
    """Limit the size of the body and the time until it is complete."""
    size, deadline = 0, monotonic_seconds() + BODY_TIMEOUT_SECONDS
    complete = False

    async def receive_bounded() -> Message:
        nonlocal size, complete
        if complete:  # only the disconnect message follows
            return await receive()
        try:
            async with asyncio.timeout(max(deadline - monotonic_seconds(), 0.001)):
                message = await receive()
        except TimeoutError:
            raise Refused(
                408, f"the body was not complete after {BODY_TIMEOUT_SECONDS:g} s", code="request.body.timeout"
            ) from None
        complete = not message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            raise Refused(
                413,
                f"the body has more than {MAX_BODY_BYTES:,} bytes",
                code="request.too_large",
                remedy="send less in one request",
            )
        return message

    return receive_bounded
