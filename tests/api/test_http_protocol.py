"""Nobody fills the memory or the places of the web service before it knows who they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.api import http_protocol, middleware
from tenuto.api.server import serving


async def answer_to(address: str, *pieces: bytes) -> bytes:
    """What a server answers to these bytes; nothing if it hangs up."""
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


async def test_heads_and_bodies_are_bounded_in_size_and_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tenuto(url, home=tmp_path)
    async with app, serving(app, port=0) as address:
        head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        fine = await answer_to(address, head + b"\r\n")
        large = await answer_to(address, head, *(b"x-%d: " % n + b"a" * 8000 + b"\r\n" for n in range(20)), b"\r\n")
        long_url = await answer_to(address, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        # Not before: to whoever does not wait for long, a machine that has much to do seems slow as well.
        with monkeypatch.context() as patched:
            patched.setattr(http_protocol, "HEAD_SECONDS", 0.3)
            slow_head = await answer_to(address, head)
        monkeypatch.setattr(middleware, "BODY_SECONDS", 0.3)
        slow_body = await answer_to(
            address,
            b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"link":',
        )

    assert fine.startswith(b"HTTP/1.1 200")
    assert large.startswith(b"HTTP/1.1 400") or large == b""
    assert long_url.startswith(b"HTTP/1.1 400") or long_url == b""
    assert slow_head == b""
    assert slow_body.startswith(b"HTTP/1.1 408")
