"""Load of the dashboard: the web service in one process; requests for pages, live pages and work from others.

A live page is what `live.js` does without a browser: an event stream, and one request for all stale parts at most twice
a second, with the entity tag of the last answer. Fifty real browser pages would use more of the machine than the
service that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import dashboard_data
from benchmarks.contenders import contender_protocol
from benchmarks.dashboard_data import DataSize, make_app
from tenuto import Context, Step, manual
from tenuto.model.access.actors import Role
from tenuto.web.server import web_server

packages = ("tenuto", "asyncpg", "fastapi", "uvicorn", "jinja2")

WORK_QUEUE, WATCHED_SCHEDULE = "bench", "Watched schedule"
WATCHED_STEPS, STEP_SECONDS = 30, 0.4
LINE_COUNT, LINE_GAP_SECONDS = 60, 0.2
ROUND_SECONDS = 1.1
"""Models of pages are shared for a second; each request for a page comes later than that."""
_PART = re.compile(r'data-part="([^"]*)"(?:[^>]*? data-live="([^"]*)")?')
_LOADED = re.compile(r'data-loaded="(\d+)"')
_GATHER_SECONDS = 0.05
_TOPIC_GAP_SECONDS = 0.5


async def prepare(url: str) -> None:
    """Create the tables of the core and of the installed extensions."""
    app = make_app(url)
    await app.migrate()
    await app.close()


async def fill(url: str, divided_by: int) -> None:
    """Create the data set; answer with the objects that pages show."""
    size = DataSize() if divided_by == 1 else DataSize().divided(divided_by)
    landmarks = await dashboard_data.fill(url, size)
    contender_protocol.print_answer(**{name: str(id) for name, id in asdict(landmarks).items()})


async def serve(url: str) -> None:
    """Run the web service until the stop command; answer with its CPU time."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app = make_app(url, home)
        async with app, web_server(app, port=0) as address:
            _, key = await app.api_keys.create(f"bench-{os.getpid()}", Role.ADMIN)
            contender_protocol.print_answer(address=address, key=key)
            while (line := await gate.read_line()) == "used":
                used = resource.getrusage(resource.RUSAGE_SELF)
                contender_protocol.print_answer(cpu_seconds=used.ru_utime + used.ru_stime)
            assert line in ("stop", "")
    contender_protocol.print_answer(stopped=True)


async def work(url: str) -> None:
    """Run a worker and a scheduler until ``stop``.

    ``rate N`` enqueues that many jobs a second, ``run`` starts the execution that a browser watches, ``count`` answers
    with the number of ended jobs.
    """
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    ended_count = 0
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app = make_app(url, home)

        @app.job(queue=WORK_QUEUE)
        async def noop(number: int = 0) -> int:
            nonlocal ended_count
            ended_count += 1
            return number

        @app.job(queue=WORK_QUEUE)
        async def short_step() -> None:
            await asyncio.sleep(STEP_SECONDS)

        @app.job(queue=WORK_QUEUE)
        async def talk(ctx: Context) -> None:
            for number in range(LINE_COUNT):
                ctx.log.info("line %d sent %d", number, time.time_ns() // 1_000_000)
                await asyncio.sleep(LINE_GAP_SECONDS)

        steps = [Step.job(short_step, name=f"Step {number}") for number in range(WATCHED_STEPS)]
        app.schedule(WATCHED_SCHEDULE, manual(), [*steps, Step.job(talk, name="Talk")])
        async with app, app.worker(name=f"bench-{os.getpid()}", queues=[WORK_QUEUE], slots=50), app.scheduler():
            contender_protocol.print_answer(ready=True)
            rate, sent, began = 0.0, 0, time.monotonic()
            reading = asyncio.ensure_future(gate.read_line())
            while True:
                done, _ = await asyncio.wait({reading}, timeout=0.1)
                if done:
                    match reading.result().split():
                        case ["rate", given]:
                            rate, sent, began = float(given), 0, time.monotonic()
                            contender_protocol.print_answer(rate=rate)
                        case ["run"]:
                            started = await app.schedules.run(WATCHED_SCHEDULE)
                            contender_protocol.print_answer(execution=str(started.execution_id))
                        case ["count"]:
                            contender_protocol.print_answer(ended=ended_count)
                        case _:
                            break
                    reading = asyncio.ensure_future(gate.read_line())
                if rate and (due := int(rate * (time.monotonic() - began)) - sent) > 0:
                    await app.enqueue_many(noop, range(due))
                    sent += due
    contender_protocol.print_answer(stopped=True)


# --- requests ---------------------------------------------------------------------------------------------------------


class PageClient:
    """One keep-alive connection that requests pages as a browser does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key

    @classmethod
    async def open(cls, port: int, key: str) -> PageClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        return cls(reader, writer, key)

    def request(self, path: str, *lines: str) -> bytes:
        head = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self._key}", "Accept: text/html"]
        return "\r\n".join([*head, *lines, "", ""]).encode()

    async def get(self, path: str, *lines: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        self._writer.write(self.request(path, *lines))
        return await self.read_response()

    async def read_response(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        length = int(headers.get("content-length", 0))
        return int(head[0][9:12]), headers, await self._reader.readexactly(length) if length else b""

    async def stream(self, path: str) -> asyncio.StreamReader:
        """Open an event stream and return the reader behind its headers."""
        self._writer.write(self.request(path))
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{path} answered {head[:200]!r}")
        return self._reader

    def close(self) -> None:
        self._writer.close()


async def pages(port: int, key: str, paths: Sequence[str], rounds: int) -> None:
    """Request each page once per round; answer with the times of the server and the sizes of the answers.

    The first round is cold for the service and is returned separately.
    """
    client = await PageClient.open(port, key)
    milliseconds: dict[str, list[float]] = {path: [] for path in paths}
    elapsed: dict[str, list[float]] = {path: [] for path in paths}
    sizes: dict[str, int] = {}
    for _ in range(rounds + 1):
        began = time.monotonic()
        for path in paths:
            asked = time.perf_counter()
            status, headers, body = await client.get(path, "Accept-Encoding: gzip")
            if status != 200:
                raise SystemExit(f"{path} answered {status}: {body[:300]!r}")
            elapsed[path].append((time.perf_counter() - asked) * 1000)
            milliseconds[path].append(float(headers["server-timing"].partition("dur=")[2]))
            sizes[path] = len(body)
        await asyncio.sleep(max(0.0, began + ROUND_SECONDS - time.monotonic()))
    client.close()
    contender_protocol.print_answer(
        first={path: found[0] for path, found in milliseconds.items()},
        server={path: found[1:] for path, found in milliseconds.items()},
        elapsed={path: found[1:] for path, found in elapsed.items()},
        bytes=sizes,
    )


class LivePage:
    """What an open page does: it follows its topics and fetches its stale parts."""

    def __init__(self, port: int, key: str, path: str) -> None:
        self._port, self._key, self._path = port, key, path
        self._topics: dict[str, set[str]] = {}
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self._marked_at = 0.0
        self.fetch_count = 0
        self.unchanged_count = 0

    async def run(self, opened: Callable[[], None]) -> None:
        client = await PageClient.open(self._port, self._key)
        status, _, body = await client.get(self._path)
        if status != 200:
            raise SystemExit(f"{self._path} answered {status}: {body[:300]!r}")
        for part, topics in _PART.findall(body.decode()):
            for topic in topics.split():
                self._topics.setdefault(topic, set()).add(part)
        stream = await PageClient.open(self._port, self._key)
        since = _LOADED.search(body.decode())
        query = f"topics={','.join(sorted(self._topics))}" + (f"&since={since[1]}" if since else "")
        reader = await stream.stream(f"/api/v1/events?{query}")
        following = asyncio.create_task(self._follow(reader))
        opened()
        try:
            await self._fetch_stale(client)
        finally:
            following.cancel()
            stream.close()
            client.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        event = ""
        while line := await reader.readline():
            name, _, value = line.decode().rstrip().partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                topic = json.loads(value).get("topic") if event == "changed" else event
                self._stale |= (
                    {part for parts in self._topics.values() for part in parts} if event == "reset" else set()
                )
                self._stale |= self._topics.get(topic, set())
                if self._stale:
                    self._marked_at = time.perf_counter()
                    self._wake.set()

    async def _fetch_stale(self, client: PageClient) -> None:
        tags: dict[str, str] = {}
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            names = ",".join(sorted({*self._stale, "title"}))
            self._stale.clear()
            age_ms = int((time.perf_counter() - self._marked_at) * 1000)
            lines = [f"Tenuto-Parts: {names}", f"Tenuto-Max-Age: {age_ms}", "Accept-Encoding: gzip"]
            if names in tags:
                lines.append(f"If-None-Match: {tags[names]}")
            status, headers, _ = await client.get(self._path, *lines)
            if status not in (200, 304):
                raise SystemExit(f"parts of {self._path} answered {status}")
            self.fetch_count += 1
            self.unchanged_count += status == 304
            tags[names] = headers.get("etag", "")
            took = float(headers["server-timing"].partition("dur=")[2]) / 1000
            await asyncio.sleep(min(max(_TOPIC_GAP_SECONDS, 10 * took), 10.0))


async def watch(port: int, key: str, paths: Sequence[str]) -> None:
    """Keep these pages open until the stop command; answer with the number of their requests."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    live = [LivePage(port, key, path) for path in paths]
    all_open = asyncio.Event()
    missing = len(live)

    def note_open() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            all_open.set()

    running = [asyncio.create_task(page.run(note_open)) for page in live]
    waiting = asyncio.create_task(all_open.wait())
    await asyncio.wait({waiting, *running}, return_when=asyncio.FIRST_COMPLETED)
    for each in running:
        if each.done():
            each.result()
    contender_protocol.print_answer(open=len(live))
    while await gate.read_line() == "count":
        contender_protocol.print_answer(
            fetched=sum(page.fetch_count for page in live), unchanged=sum(page.unchanged_count for page in live)
        )
    for each in running:
        each.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*running, return_exceptions=True)
    contender_protocol.print_answer(stopped=True)


COMMANDS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "prepare": lambda asked: prepare(asked.url),
    "fill": lambda asked: fill(asked.url, asked.divided_by),
    "serve": lambda asked: serve(asked.url),
    "work": lambda asked: work(asked.url),
    "pages": lambda asked: pages(asked.port, asked.key, asked.paths, asked.rounds),
    "watch": lambda asked: watch(asked.port, asked.key, asked.paths),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", *COMMANDS])
    parser.add_argument("--url", default="")
    parser.add_argument("--divided-by", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--paths", nargs="*", default=[])
    asked = parser.parse_args()
    if asked.verb == "versions":
        contender_protocol.versions(packages)
    else:
        contender_protocol.run(COMMANDS[asked.verb](asked))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
