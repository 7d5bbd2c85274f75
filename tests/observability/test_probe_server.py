"""Probe server: three paths for GET, no other requests, and by default on this machine only."""

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
from tenuto.observability.probe_server import ProbeServer
from tenuto.postgres.database import Database
from tenuto.service.service_protocol import run_services
from tenuto.settings import load_settings
from tests.support.errors import raises_code
from tests.support.waiting import eventually

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def run_probe_server(app: Tenuto, home: Path, **options: Any) -> AsyncIterator[int]:
    """Run a probe server on a free port, and return the port."""
    start_server, servers = asyncio.start_server, list[asyncio.Server]()

    async def record_server(*arguments: Any, **server_options: Any) -> asyncio.Server:
        servers.append(await start_server(*arguments, **server_options))
        return servers[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "start_server", record_server)
        async with run_services([ProbeServer(load_settings(home=home, metrics_port=0), app.status, **options)]):
            yield servers[0].sockets[0].getsockname()[1]


async def send_request(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # closed before the whole response was read
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
    except ConnectionResetError:  # refused before the whole request was sent
        return False


async def test_probe_server_answers_three_paths_and_refuses_other_requests(app: Tenuto, tmp_path: Path) -> None:
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
        with raises_code("settings.metrics_port.unavailable", Conflict):
            async with run_services([ProbeServer(load_settings(home=tmp_path, metrics_port=port), app.status)]):
                pass
    with pytest.raises(ConnectionRefusedError):
        await send_request(port, b"")


async def test_probe_server_is_ready_without_excluded_checks(app: Tenuto, db: Database, tmp_path: Path) -> None:
    async with app, app.worker(slots=1):
        pass
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now() - interval '5 min'")
    async with app, run_probe_server(app, tmp_path) as port:

        async def ask(query: str) -> bytes:
            return await send_request(port, f"GET /readyz{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        assert (await ask("")).startswith(b"HTTP/1.1 503 ")
        assert (await ask("?exclude=scheduler")).startswith(b"HTTP/1.1 503 ")
        excluded = await ask("?exclude=scheduler&exclude=claims")
        assert excluded.startswith(b"HTTP/1.1 200 ")
        assert b'{"name": "claims", "ok": false' in excluded
        refused = await ask("?exclude=workers")
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert b"no check 'workers' to exclude; checks: database, schema, claims, scheduler, services" in refused


async def test_probe_server_counts_silent_clients_and_refuses_excess_connections(app: Tenuto, tmp_path: Path) -> None:
    async with app, run_probe_server(app, tmp_path, max_connections=2) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        for _, each in (*silent, (reader, writer)):
            each.close()
        await eventually(lambda: is_answered(port))


async def test_probe_server_disconnects_client_that_does_not_read(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = module._response
    padding = b"x" * 20_000_000  # more than the socket buffers hold
    monkeypatch.setattr(module, "_response", lambda *arguments: response(*arguments) + padding)
    async with app, run_probe_server(app, tmp_path, max_connections=1, request_timeout_seconds=0.3) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(HEALTH)
            await eventually(lambda: bool(select.select([client], [], [], 0)[0]))
            monkeypatch.setattr(module, "_response", response)
            await eventually(lambda: is_answered(port))
            assert await asyncio.to_thread(count_received_bytes, client) < len(padding)


async def test_probe_server_listens_on_other_hosts_only_with_metrics_public(app: Tenuto, tmp_path: Path) -> None:
    with raises_code("settings.metrics_host.exposed", Invalid):
        await ProbeServer(load_settings(home=tmp_path, metrics_port=0, metrics_host="0.0.0.0"), app.status).start()
    public = load_settings(home=tmp_path, metrics_port=0, metrics_host="0.0.0.0", metrics_public=True)
    async with run_services([ProbeServer(public, app.status)]):
        pass
    async with run_services([ProbeServer(load_settings(home=tmp_path), app.status)]):
        pass
