"""A real HTTP server on loopback that answers, byte for byte, what a test wants, and remembers what it was asked."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Send = Callable[[bytes], None]
Behaviour = Callable[[Asked, Send], None]


def answer(status: int = 200, body: bytes = b"", *headers: str) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Site:
    """What stands at each path: bytes, or code that sends them."""

    pages: dict[str, bytes | list[bytes] | Behaviour] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    address: str = "127.0.0.1"
    trust: ssl.SSLContext | None = None

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
                if site.trust is not None:
                    connection = site.trust.wrap_socket(connection, server_side=True)
                return connection, peer

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that hang up are what is tested."""

        self._server = Server((self.address, 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/", host: str | None = None) -> str:
        return f"{'https' if self.trust else 'http'}://{host or self.address}:{self.port}{path}"

    def _serve(self, handler: socketserver.StreamRequestHandler) -> None:
        method, target, _ = handler.rfile.readline().decode().split()
        headers: dict[str, str] = {}
        while line := handler.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = handler.rfile.read(int(headers.get("content-length", 0)))
        asked = Asked(method, target, headers, body)
        self.asked.append(asked)
        page = self.pages.get(target.partition("?")[0], answer(404))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        try:
            if isinstance(page, bytes):
                handler.connection.sendall(page)
            else:
                page(asked, handler.connection.sendall)
        except (TimeoutError, OSError):
            return
