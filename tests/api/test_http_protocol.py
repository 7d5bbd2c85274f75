"""Limits of the HTTP protocol that protect the web service from unauthenticated clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.api.security import http_protocol, middleware
from tenuto.api.security.http_protocol import BoundedH11Protocol, HeadTimer
from tenuto.api.security.httptools_protocol import BoundedHttpToolsProtocol
from tenuto.web.server import web_server


async def send_raw(address: str, *pieces: bytes) -> bytes:
    """Send bytes to a server; return its response, empty if it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))
    try:
        async with asyncio.timeout(10):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read(4096)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_protocol_does_not_need_httptools(monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_protocol.select_protocol() is BoundedHttpToolsProtocol
    monkeypatch.setattr(http_protocol, "find_spec", lambda module: None)
    assert http_protocol.select_protocol() is BoundedH11Protocol


@pytest.mark.parametrize("protocol", [BoundedHttpToolsProtocol, BoundedH11Protocol])
async def test_web_server_bounds_heads_and_bodies_in_size_and_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: type[HeadTimer]
) -> None:
    monkeypatch.setattr("tenuto.web.server.select_protocol", lambda: protocol)
    app = Tenuto(url, home=tmp_path)
    async with app, web_server(app, port=0) as address:
        head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        fine = await send_raw(address, head + b"\r\n")
        large = await send_raw(address, head, *(b"x-%d: " % n + b"a" * 8000 + b"\r\n" for n in range(20)), b"\r\n")
        long_url = await send_raw(address, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        body = b'{"link": "' + b"a" * 100_000 + b'"}'
        large_body = await send_raw(
            address,
            b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body,
        )
        # Short timeouts only here: on a busy machine the requests above could exceed them.
        with monkeypatch.context() as patched:
            patched.setattr(protocol, "head_timeout_seconds", 0.3)
            slow_head = await send_raw(address, head)
        monkeypatch.setattr(middleware, "BODY_TIMEOUT_SECONDS", 0.3)
        slow_body = await send_raw(
            address,
            b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"link":',
        )

    assert fine.startswith(b"HTTP/1.1 200")
    assert large.startswith(b"HTTP/1.1 400") or large == b""
    assert long_url.startswith(b"HTTP/1.1 400") or long_url == b""
    assert large_body.startswith((b"HTTP/1.1 401", b"HTTP/1.1 422")), large_body
    assert slow_head == b""
    assert slow_body.startswith(b"HTTP/1.1 408")
