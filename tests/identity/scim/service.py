"""A real SCIM service for tests: scim2-server as a separate process on loopback, and a gateway in front of it.

The gateway records the requests and forwards them. A test may let it answer by itself, as an overloaded, restricted or
faulty service does.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

TOKEN = "scim-canary-token"
USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
_tenants = count(1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ScimServer:
    """A process of scim2-server. Its resources are in memory: a restart begins without any."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it listens; on another port if some program has taken the port."""
        program = Path(sys.executable).with_name("scim2-server")
        for _ in range(5):
            options = ["--port", str(self.port), "--dynamic-tenants", "--bearer-token", TOKEN]
            process = subprocess.Popen(
                [program, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
            assert process.stdout is not None
            with process.stdout as output:
                if output.readline().startswith(b"Serving"):
                    self._process = process
                    return
            process.wait(30)
            self.port = free_port()
        raise AssertionError("scim2-server does not start")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(30)

    def ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the server; start it again, without resources, after the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def new_tenant(self) -> Tenant:
        return Tenant(self, f"t{next(_tenants)}")


class Tenant:
    """An empty service of the server, and a plain client of it for what a test sets up and looks at."""

    def __init__(self, server: ScimServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/{self.name}/v2"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/scim+json"}
        try:
            connection.request(method, f"/{self.name}/v2{path}", json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status < 400, (method, path, answer.status, text)
        return json.loads(text) if text else None

    def add_user(self, name: str, /, **attributes: Any) -> str:
        created = self.call("POST", "/Users", {"schemas": [USER], "userName": name, **attributes})
        return str(created["id"])

    def users(self) -> dict[str, dict[str, Any]]:
        """Return the users by userName."""
        return {each["userName"]: each for each in self.all("/Users")}

    def groups(self) -> dict[str, dict[str, Any]]:
        return {each["displayName"]: each for each in self.all("/Groups")}

    def all(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"{path}?count=1000").get("Resources", [])
        return found


@dataclass
class Received:
    """A request that reached the gateway."""

    method: str
    path: str
    """Without the name of the tenant."""
    query: str
    headers: Mapping[str, str]
    body: Any
    at: float


@dataclass
class Reply:
    """An answer of the gateway itself."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False
    """Close the connection without an answer, after the request was forwarded."""


Behaviour = Callable[[Received], Reply | None]


class Gateway:
    """Records and forwards requests to a tenant."""

    def __init__(self, tenant: Tenant, certificate: tuple[Path, Path] | None = None) -> None:
        """``certificate``: files with the certificate and the key of ``localhost``, for HTTPS."""
        self.tenant = tenant
        self.is_encrypted = certificate is not None
        self.received: list[Received] = []
        self.behaviour: Behaviour = lambda _: None
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for head and body

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, ssl.SSLError):  # the server was killed, or the client has gone
                    self.close_connection = True

            def do_GET(self) -> None:
                gateway._handle(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        origin = "https://localhost" if self.is_encrypted else "http://127.0.0.1"
        return f"{origin}:{self._server.server_port}/v2"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)

    def sent(self, *methods: str) -> list[tuple[str, str, Any]]:
        """Return the requests with these methods: method, path, body."""
        return [(each.method, each.path, each.body) for each in self.received if each.method in methods]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path, _, query = handler.path.removeprefix("/v2").partition("?")
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Received(handler.command, path, query, headers, json.loads(content or b"null"), time.monotonic())
        self.received.append(request)
        reply = self.behaviour(request)
        if reply is None or reply.drops:
            forwarded = self._forward(request, content)
            if reply is not None:
                handler.close_connection = True
                handler.connection.shutdown(socket.SHUT_RDWR)
                return
            reply = forwarded
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode() if reply.body else b""
        handler.send_response(reply.status)
        for name, value in {"Content-Type": "application/scim+json", **reply.headers}.items():
            handler.send_header(name, value)
        if reply.status != 204:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body if reply.status != 204 else b"")

    def _forward(self, request: Received, content: bytes) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.tenant.server.port, timeout=30)
        kept = ("authorization", "content-type", "if-match", "accept")
        try:
            connection.request(
                request.method,
                f"/{self.tenant.name}/v2{request.path}" + (f"?{request.query}" if request.query else ""),
                content or None,
                {name: value for name, value in request.headers.items() if name in kept},
            )
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        passed = {name: value for name, value in answer.getheaders() if name.lower() in ("etag", "location")}
        return Reply(answer.status, body, passed)


def without_features(*names: str) -> Behaviour:
    """Return a behaviour that announces fewer features than the server has, and refuses PATCH without ``patch``."""

    def behave(request: Received) -> Reply | None:
        if request.path == "/ServiceProviderConfig":
            every = ("patch", "filter", "sort", "etag", "bulk", "changePassword")
            return Reply(200, {name: {"supported": name not in names} for name in every})
        if request.method == "PATCH" and "patch" in names:
            return Reply(501, {"status": "501", "detail": "PATCH is not supported"})
        if "filter" in names and "filter=" in request.query:
            return Reply(400, {"status": "400", "scimType": "invalidFilter"})
        return None

    return behave


def settings(url: str, **more: Any) -> dict[str, Any]:
    """Return settings of the connector for a service on loopback."""
    return {"url": url, "allow_unencrypted": True, "token": {"secret": "scim"}, **more}
