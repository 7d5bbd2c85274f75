"""The web service: one-shots created over HTTP, pages of long lists, and many event streams on an idle system."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.contender import END_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, Contender
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size

SERVICE = {"tenuto": "benchmarks.contenders.tenuto_web"}
CONNECTIONS = 32
CONNECTIONS_OF_TASKS = 50


async def api(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Run all cases."""
    (tenuto,) = contenders
    return [
        *await measure_creation(tenuto, size),
        *await measure_lists(tenuto, size),
        *await measure_streams(tenuto, size),
    ]


async def measure_creation(tenuto: Contender, size: Size) -> list[Case]:
    """``POST /api/schedule``: the maximum rate, and the response time at half the required load."""
    count = size.of(10_000, 500)
    rate = Case("POST /api/schedule", "requests/s")
    middle, tail = (
        Case("POST /api/schedule at 500 a second, p50", "ms"),
        Case("POST /api/schedule at 500 a second, p99", "ms"),
    )
    tasks = Case(f"POST /api/v1/tasks, {CONNECTIONS_OF_TASKS} connections", "requests/s")

    async def run(_: Contender) -> None:
        async with _running_service(tenuto) as (_process, where):
            answer = await tenuto.run_command(
                "create", *where, "--count", str(count), "--lines", str(CONNECTIONS), limit=300.0
            )
            rate.add("tenuto", float(answer["rate"]))
            arguments = ["--count", str(count // 2), "--lines", str(CONNECTIONS), "--rate", "500"]
            answer = await tenuto.run_command("create", *where, *arguments, limit=300.0)
            middle.add("tenuto", percentile(answer["milliseconds"], 0.50))
            tail.add("tenuto", percentile(answer["milliseconds"], 0.99))
            arguments = ["--path", "/api/v1/tasks", "--count", str(count), "--lines", str(CONNECTIONS_OF_TASKS)]
            answer = await tenuto.run_command("create", *where, *arguments, limit=300.0)
            tasks.add("tenuto", float(answer["rate"]))

    await alternate([tenuto], size.runs, run, f"{count:,} one-shots and tasks over HTTP")
    return [rate, middle, tail, tasks]


async def measure_lists(tenuto: Contender, size: Size) -> list[Case]:
    """Measure pages of lists with a long history."""
    past, times = size.of(1_000_000, 20_000), size.of(100, 10)
    middle, tail = (Case(f"a page with {past:,} activities, {share}", "ms") for share in ("p50", "p99"))

    async with tenuto.prepared_database() as url:
        progress(f"setting up {past:,} activities")
        await tenuto.run_command("fill", "--url", url, "--count", str(past), limit=900.0)

        async def run(_: Contender) -> None:
            async with _running_service(tenuto, url) as (_process, where):
                answer = await tenuto.run_command("pages", *where, "--count", str(times), limit=300.0)
                middle.add("tenuto", percentile(answer["milliseconds"], 0.50))
                tail.add("tenuto", percentile(answer["milliseconds"], 0.99))

        await alternate([tenuto], size.runs, run, "pages of lists")
    return [middle, tail]


async def measure_streams(tenuto: Contender, size: Size) -> list[Case]:
    """Measure the cost of many event streams while nothing happens."""
    clients, seconds = size.of(500, 50), size.of(20, 5)
    share = Case(f"{clients} streams of events on an idle system", "% of a core")

    async def run(_: Contender) -> None:
        async with _running_service(tenuto) as (process, where):
            arguments = ["watch", *where, "--count", str(clients)]
            async with start_process(tenuto.python, tenuto.module, arguments, "watchers") as watchers:
                await watchers.read_answer(START_TIMEOUT_SECONDS)
                await asyncio.sleep(3)
                before = await _cpu_used(process)
                await asyncio.sleep(seconds)
                share.add("tenuto", 100 * (await _cpu_used(process) - before) / seconds)
                await watchers.send("stop")
                await watchers.read_answer(END_TIMEOUT_SECONDS)
                await watchers.wait_for_exit(END_TIMEOUT_SECONDS)

    await alternate([tenuto], size.runs, run, f"{clients} event streams")
    return [share]


async def _cpu_used(process: ContenderProcess) -> float:
    await process.send("used")
    return float((await process.read_answer(END_TIMEOUT_SECONDS))["cpu_seconds"])


@contextlib.asynccontextmanager
async def _running_service(
    tenuto: Contender, url: str | None = None
) -> AsyncIterator[tuple[ContenderProcess, list[str]]]:
    """Provide a web service and its address."""
    async with contextlib.AsyncExitStack() as stack:
        where = url if url is not None else await stack.enter_async_context(tenuto.prepared_database())
        process = await stack.enter_async_context(
            start_process(tenuto.python, tenuto.module, ["serve", "--url", where], "web")
        )
        answer: dict[str, Any] = await process.read_answer(START_TIMEOUT_SECONDS)
        yield process, ["--port", str(urlsplit(answer["address"]).port), "--key", answer["key"]]
        await process.send("stop")
        await process.read_answer(END_TIMEOUT_SECONDS)
        await process.wait_for_exit(END_TIMEOUT_SECONDS)
