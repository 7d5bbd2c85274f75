"""The web service: one-shots created over HTTP, pages of long lists, and very many who watch an idle system."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.contest import END_LIMIT, START_LIMIT, Contender
from benchmarks.figures import Size
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import Talking, started

SERVICE = {"tenuto": "benchmarks.contenders.tenuto_web"}
LINES = 32


async def api(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """All of it."""
    (tenuto,) = contenders
    return [*await created(tenuto, size), *await listed(tenuto, size), *await watched(tenuto, size)]


async def created(tenuto: Contender, size: Size) -> list[Case]:
    """``POST /api/schedule``: as many as are taken, and the time each takes at half the load asked for."""
    count = size.of(10_000, 500)
    rate = Case("POST /api/schedule", "requests/s")
    middle, tail = (
        Case("POST /api/schedule at 500 a second, p50", "ms"),
        Case("POST /api/schedule at 500 a second, p99", "ms"),
    )

    async def run(_: Contender) -> None:
        async with _serving(tenuto) as (_process, where):
            answer = await tenuto.ask("create", *where, "--count", str(count), "--lines", str(LINES), limit=300.0)
            rate.add("tenuto", float(answer["rate"]))
            arguments = ["--count", str(count // 2), "--lines", str(LINES), "--rate", "500"]
            answer = await tenuto.ask("create", *where, *arguments, limit=300.0)
            middle.add("tenuto", percentile(answer["milliseconds"], 0.50))
            tail.add("tenuto", percentile(answer["milliseconds"], 0.99))

    await alternate([tenuto], size.runs, run, f"{count:,} one-shots over HTTP")
    return [rate, middle, tail]


async def listed(tenuto: Contender, size: Size) -> list[Case]:
    """Pages of lists with a long past."""
    past, times = size.of(1_000_000, 20_000), size.of(100, 10)
    middle, tail = (Case(f"a page with {past:,} activities, {share}", "ms") for share in ("p50", "p99"))

    async with tenuto.prepared() as url:
        progress(f"setting up {past:,} activities")
        await tenuto.ask("fill", "--url", url, "--count", str(past), limit=900.0)

        async def run(_: Contender) -> None:
            async with _serving(tenuto, url) as (_process, where):
                answer = await tenuto.ask("pages", *where, "--count", str(times), limit=300.0)
                middle.add("tenuto", percentile(answer["milliseconds"], 0.50))
                tail.add("tenuto", percentile(answer["milliseconds"], 0.99))

        await alternate([tenuto], size.runs, run, "pages of lists")
    return [middle, tail]


async def watched(tenuto: Contender, size: Size) -> list[Case]:
    """What it costs that very many watch while nothing happens."""
    clients, seconds = size.of(500, 50), size.of(20, 5)
    share = Case(f"{clients} streams of events on an idle system", "% of a core")

    async def run(_: Contender) -> None:
        async with _serving(tenuto) as (process, where):
            arguments = ["watch", *where, "--count", str(clients)]
            async with started(tenuto.python, tenuto.module, arguments, "watchers") as watchers:
                await watchers.answer(START_LIMIT)
                await asyncio.sleep(3)
                before = await _used(process)
                await asyncio.sleep(seconds)
                share.add("tenuto", 100 * (await _used(process) - before) / seconds)
                await watchers.say("stop")
                await watchers.answer(END_LIMIT)
                await watchers.end(END_LIMIT)

    await alternate([tenuto], size.runs, run, f"{clients} who watch")
    return [share]


async def _used(process: Talking) -> float:
    await process.say("used")
    return float((await process.answer(END_LIMIT))["cpu_seconds"])


@contextlib.asynccontextmanager
async def _serving(tenuto: Contender, url: str | None = None) -> AsyncIterator[tuple[Talking, list[str]]]:
    """A web service, and how to reach it."""
    async with contextlib.AsyncExitStack() as stack:
        where = url if url is not None else await stack.enter_async_context(tenuto.prepared())
        process = await stack.enter_async_context(
            started(tenuto.python, tenuto.module, ["serve", "--url", where], "web")
        )
        answer: dict[str, Any] = await process.answer(START_LIMIT)
        yield process, ["--port", str(urlsplit(answer["address"]).port), "--key", answer["key"]]
        await process.say("stop")
        await process.answer(END_LIMIT)
        await process.end(END_LIMIT)
