"""Load test of Tenuto's web service: a real server in one process, requests over sockets from another.

The client is minimal (prepared bytes, keep-alive, no client library), so that the service is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contenders import contender_protocol
from tenuto import Tenuto
from tenuto.ids import new_ids
from tenuto.model.access.actors import Role
from tenuto.postgres.database import Database
from tenuto.web.server import web_server

packages = ("tenuto", "asyncpg", "fastapi", "uvicorn")

ACTIVITIES = """
INSERT INTO tenuto.activities (
    id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at, claimed_at, started_at,
    ended_at, fence, worker_id, failures, losses, input, initiator_type, initiator_name
)
SELECT id, id, 1, CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, true, 'job', 'job-' || n % 20, 'default', 0,
       at, at, at, at, at + interval '1 second', 1, '00000000-0000-7000-8000-000000000000', 0, 0, '{}', 'system',
       'bench'
FROM (
    SELECT id, n, now() - interval '1 hour' + n * interval '1 millisecond' AS at
    FROM unnest($1::uuid[]) WITH ORDINALITY AS given (id, n)
) AS made
"""


async def prepare(url: str) -> None:
    await Tenuto(url).migrate()


async def fill(url: str, count: int) -> None:
    """Create that many activities."""
    database = await Database.open(url)
    for at in range(0, count, 20_000):
        await database.fetch_all(ACTIVITIES, new_ids(min(20_000, count - at)))
    await database.fetch_all("VACUUM ANALYZE tenuto.activities")
    await database.close()
    contender_protocol.print_answer(filled=count)


async def serve(url: str) -> None:
    """Run the web service until the stop command; answer with its CPU time."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app = Tenuto(url, home=home)

        @app.job(name="noop")
        async def noop(payload: str) -> None: ...

        async with app, web_server(app, port=0) as address:
            _, key = await app.api_keys.create(f"bench-{os.getpid()}", Role.ADMIN)
            contender_protocol.print_answer(address=address, key=key)
            while (line := await gate.read_line()) == "used":
                used = resource.getrusage(resource.RUSAGE_SELF)
                contender_protocol.print_answer(cpu_seconds=used.ru_utime + used.ru_stime)
            assert line in ("stop", "")
    contender_protocol.print_answer(stopped=True)


class Connection:
    """One keep-alive connection that sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
        return status, await self._reader.readexactly(length) if length else b""

    def close(self) -> None:
        self._writer.close()


def _request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
    )
    return (head + ("Content-Type: application/json\r\n" if body else "") + "\r\n").encode() + body


BODIES: dict[str, dict[str, Any]] = {
    "/api/schedule": {
        "exec_at": "2035-01-01T00:00:00Z",
        "prompt_type": "log.append",
        "payload": {"log": "bench", "message": "hello"},
    },
    "/api/v1/tasks": {"job": "noop", "input": {"payload": "hello"}},
}


async def create(port: int, key: str, path: str, count: int, lines: int, rate: float) -> None:
    """Create one-shots or tasks over that many connections, as fast as possible or at a rate; answer with rate and
    times."""
    request = _request("POST", path, key, json.dumps(BODIES[path]).encode())
    open_lines = [await Connection.open(port) for _ in range(lines)]
    times: list[float] = []
    left = iter(range(count))
    began = time.perf_counter()

    async def work(line: Connection) -> None:
        for number in left:
            due = began + number / rate if rate else 0.0
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            asked = max(due, 0.0) or time.perf_counter()
            status, answer = await line.send(request)
            if status != 202:
                raise SystemExit(f"answered {status}: {answer[:300]!r}")
            times.append((time.perf_counter() - asked) * 1000)

    for line in open_lines[:1]:  # one to warm up
        await line.send(request)
    began = time.perf_counter()
    await asyncio.gather(*(work(line) for line in open_lines))
    seconds = time.perf_counter() - began
    contender_protocol.print_answer(
        rate=count / seconds, milliseconds=sorted(times)[:: max(1, count // 2000)], worst=max(times)
    )


PAGES = (
    "/api/v1/activities?limit=100",
    "/api/v1/activities?limit=100&state=failed",
    "/api/v1/activities?limit=100&name=job-7",
    "/api/v1/tasks?limit=100",
    "/api/v1/executions?limit=100",
)


async def pages(port: int, key: str, count: int) -> None:
    """Request pages of lists, one after the other; answer with the times of each."""
    line = await Connection.open(port)
    times: dict[str, list[float]] = {}
    for page in PAGES:
        request = _request("GET", page, key)
        await line.send(request)
        found = times.setdefault(page, [])
        for _ in range(count):
            asked = time.perf_counter()
            status, answer = await line.send(request)
            found.append((time.perf_counter() - asked) * 1000)
            if status != 200:
                raise SystemExit(f"{page} answered {status}: {answer[:300]!r}")
    contender_protocol.print_answer(milliseconds=[each for found in times.values() for each in found])


async def watch(port: int, key: str, count: int) -> None:
    """Open that many event streams and hold them until the stop command."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    request = _request("GET", "/api/v1/events", key)
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"answered {head[:100]!r}")
        writers.append(writer)
    contender_protocol.print_answer(open=len(writers))
    await gate.read_line()
    contender_protocol.print_answer(stopped=True)


COMMANDS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "prepare": lambda asked: prepare(asked.url),
    "fill": lambda asked: fill(asked.url, asked.count),
    "serve": lambda asked: serve(asked.url),
    "create": lambda asked: create(asked.port, asked.key, asked.path, asked.count, asked.lines, asked.rate),
    "pages": lambda asked: pages(asked.port, asked.key, asked.count),
    "watch": lambda asked: watch(asked.port, asked.key, asked.count),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", *COMMANDS])
    parser.add_argument("--url", default="")
    parser.add_argument("--path", choices=BODIES, default="/api/schedule")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--lines", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    asked = parser.parse_args()
    if asked.verb == "versions":
        contender_protocol.versions(packages)
    else:
        contender_protocol.run(COMMANDS[asked.verb](asked))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
