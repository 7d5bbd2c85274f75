"""An HTTP server on loopback that sends exact responses and records the requests."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReceivedRequest:
    """One received request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Send = Callable[[bytes], None]
Behaviour = Callable[[ReceivedRequest, Send], None]


def make_response(status: int = 200, body: bytes = b"", *headers: str) -> bytes:
    """Return a complete response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Site:
    """The server; each page is a response, a list of responses, or a function that sends one."""

    pages: dict[str, bytes | list[bytes] | Behaviour] = field(default_factory=dict)
    requests: list[ReceivedRequest] = field(default_factory=list)
    address: str = "127.0.0.1"
    ssl_context: ssl.SSLContext | None = None

    def __enter__(self) -> Site:
        site = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                site._serve(self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

            def get_request(self) -> tuple[Any, Any]:
                connection, peer = super().get_request()
                if site.ssl_context is not None:
                    connection = site.ssl_context.wrap_socket(connection, server_side=True)
                return connection, peer

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore errors: tests let clients close connections."""

        self._server = Server((self.address, 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/", host: str | None = None) -> str:
        return f"{'https' if self.ssl_context else 'http'}://{host or self.address}:{self.port}{path}"

    def _serve(self, handler: socketserver.StreamRequestHandler) -> None:
        method, target, _ = handler.rfile.readline().decode().split()
        headers: dict[str, str] = {}
        while line := handler.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = handler.rfile.read(int(headers.get("content-length", 0)))
        asked = ReceivedRequest(method, target, headers, body)
        self.requests.append(asked)
        page = self.pages.get(target.partition("?")[0], make_response(404))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        try:
            if isinstance(page, bytes):
                handler.connection.sendall(page)
            else:
                page(asked, handler.connection.sendall)
        except (TimeoutError, OSError):
            return
