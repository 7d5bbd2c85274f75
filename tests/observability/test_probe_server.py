"""The window into a process: three answers to GET, nothing else, and onto this machine only."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.errors import Conflict, Invalid
from tenuto.observability import probe_server as module
from tenuto.observability.probe_server import serve_probes
from tenuto.settings import load_settings
from tests.support.waiting import eventually

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def run_probe_server(app: Tenuto, home: Path) -> AsyncIterator[int]:
    """A window at a port that is free, and whose it stays; which one."""
    start, servers = asyncio.start_server, list[asyncio.Server]()

    async def noted(*given: Any, **options: Any) -> asyncio.Server:
        servers.append(await start(*given, **options))
        return servers[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "start_server", noted)
        async with serve_probes(load_settings(home=home, metrics_port=0), app.status):
            yield servers[0].sockets[0].getsockname()[1]


async def send_request(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # cut off before all was heard
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


def count_received_bytes(connection: socket.socket) -> int:
    read = 0
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(2**20):
            read += len(part)
    return read


async def is_answered(port: int) -> bool:
    try:
        return (await send_request(port, HEALTH)).startswith(b"HTTP/1.1 200 ")
    except ConnectionResetError:  # refused before all was said
        return False


async def test_it_answers_three_questions_and_refuses_the_rest(app: Tenuto, tmp_path: Path) -> None:
    async with app, run_probe_server(app, tmp_path) as port:

        async def status(request: str, host: str = "localhost") -> int:
            answer = await send_request(port, f"{request} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert b"Connection: close" in answer
            return int(answer.split()[1])

        assert await status("GET /healthz") == 200
        assert await status("GET /readyz") == 200
        assert await status("GET /metrics?x=1", f"127.0.0.1:{port}") == 200
        assert await status("GET /api/v1/schedules") == 404
        assert await status("POST /metrics") == 405
        assert await status("GET /metrics", "evil.example") == 421
        assert await send_request(port, b"GET /healthz HTTP/1.1\r\n\r\n") != b""
        assert await send_request(port, b"x" * 40_000) == b""
        assert await status("GET /healthz") == 200
        with pytest.raises(Conflict, match="metrics_port"):
            async with serve_probes(load_settings(home=tmp_path, metrics_port=port), app.status):
                pass
    with pytest.raises(ConnectionRefusedError):
        await send_request(port, b"")


async def test_whoever_says_nothing_counts_and_one_too_many_is_refused_at_once(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
    async with app, run_probe_server(app, tmp_path) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        for _, one in (*silent, (reader, writer)):
            one.close()
        await eventually(lambda: is_answered(port))


async def test_whoever_does_not_read_the_answer_is_cut_off(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 1)
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    response = module._response
    longer = b"x" * 20_000_000  # than the system takes from our hands
    monkeypatch.setattr(module, "_response", lambda *given: response(*given) + longer)
    async with app, run_probe_server(app, tmp_path) as port:
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(HEALTH)
            await eventually(lambda: bool(select.select([deaf], [], [], 0)[0]))
            monkeypatch.setattr(module, "_response", response)
            await eventually(lambda: is_answered(port))
            assert await asyncio.to_thread(count_received_bytes, deaf) < len(longer)


async def test_it_opens_to_others_only_when_told_and_not_at_all_without_a_port(app: Tenuto, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="metrics_host"):
        async with serve_probes(load_settings(home=tmp_path, metrics_port=0, metrics_host="0.0.0.0"), app.status):
            pass
    async with serve_probes(
        load_settings(home=tmp_path, metrics_port=0, metrics_host="0.0.0.0", metrics_open=True), app.status
    ):
        pass
    async with serve_probes(load_settings(home=tmp_path), app.status):
        pass
