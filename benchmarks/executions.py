"""Executions: work of several steps in order, 1 → 1 → 2 → 2, beside other products that do it.

What is measured is what lies between the steps: knowing that one group has ended, starting the next, writing all of it
down. The steps themselves do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import databases
from benchmarks.contenders.course import STEPS
from benchmarks.contenders.tally import Starts
from benchmarks.contest import END_LIMIT, START_LIMIT, Contender
from benchmarks.figures import Size
from benchmarks.measure import Case, alternate, percentile
from benchmarks.processes import ContenderFailed, Talking, started
from benchmarks.redisserver import redis_server

RUNNERS = {
    "tenuto": "benchmarks.contenders.tenuto_runs",
    "celery": "benchmarks.contenders.celery_runs",
    "celery-threads": "benchmarks.contenders.celery_runs",
    "celery-solo": "benchmarks.contenders.celery_runs",
    "celery-durable": "benchmarks.contenders.celery_runs",
    "celery-get": "benchmarks.contenders.celery_runs",
    "dbos": "benchmarks.contenders.dbos_runs",
}
ON_REDIS = ("celery", "celery-threads", "celery-solo", "celery-durable", "celery-get")

# So many that a run takes some seconds: in full, and to try. `celery-get` differs only in how the end is waited for.
COUNTS = {"tenuto": (5_000, 500), "dbos": (300, 40)} | dict.fromkeys(ON_REDIS[:-1], (500, 60))


async def executions(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Throughput, then single executions on an idle system."""
    with contextlib.ExitStack() as stack:
        if any(contender.name in ON_REDIS for contender in contenders):
            socket = stack.enter_context(redis_server())
            durable = stack.enter_context(redis_server(durable=True))
            contenders = [
                replace(each, server=(durable if each.name == "celery-durable" else socket) or "")
                if each.name in ON_REDIS
                else each
                for each in contenders
            ]
            contenders = [contender for contender in contenders if contender.server]
        return [*await throughput(contenders, size), *await single(contenders, size)]


async def throughput(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """All submitted before a worker starts, then worked off by one."""
    drained, submitted = Case("executions, one worker", "executions/s"), Case("submitted one by one", "executions/s")

    async def run(contender: Contender) -> None:
        count = size.of(*COUNTS[contender.name])
        async with _prepared(contender) as url:
            limit = START_LIMIT + count / 5
            answer = await contender.ask("submit", "--url", url, "--count", str(count), limit=limit)
            submitted.add(contender.name, count / float(answer["seconds"]))
            await _settled(contender, url)
            drained.add(contender.name, await _drain(contender, url, count))

    counted = [contender for contender in contenders if contender.name in COUNTS]
    await alternate(counted, size.runs, run, f"executions of {STEPS} steps in 4 groups")
    return [drained, submitted]


async def drained(contender: Contender, count: int) -> float:
    """Executions per second of one contender, once: `throughput` for whoever compares other things too."""
    async with _prepared(contender) as url:
        await contender.ask("submit", "--url", url, "--count", str(count), limit=START_LIMIT + count / 5)
        await _settled(contender, url)
        return await _drain(contender, url, count)


async def single(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """One at a time on an idle system: just before it is submitted until the submitter knows that it has ended."""
    samples = size.of(200, 20)
    middle, tail = Case("single execution p50", "ms"), Case("single execution p99", "ms")
    next_middle, next_tail = Case("group to group p50", "ms"), Case("group to group p99", "ms")

    async def run(contender: Contender) -> None:
        async with _prepared(contender) as url:
            await _settled(contender, url)
            async with _working(contender, url) as (process, _):
                arguments = ["--url", url, "--count", str(samples)]
                answer = await contender.ask("sample", *arguments, limit=START_LIMIT + samples * 10)
                await _stop(process)
            middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
            tail.add(contender.name, percentile(answer["milliseconds"], 0.99))
            answer = await contender.ask("handovers", "--url", url, limit=START_LIMIT)
            if answer["milliseconds"]:
                next_middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
                next_tail.add(contender.name, percentile(answer["milliseconds"], 0.99))

    await alternate(contenders, size.runs, run, f"{samples} single executions")
    return [middle, tail, next_middle, next_tail]


async def _drain(contender: Contender, url: str, count: int) -> float:
    """Executions per second between the first and the last start of a step; every one must have ended, whole."""
    async with _working(contender, url) as (process, starts):
        limit = time.monotonic() + START_LIMIT + count / 2
        while starts.tally().starts < count * STEPS:
            if time.monotonic() > limit or not process.running():
                raise ContenderFailed(f"{contender.name} did not come to the end: {starts.tally().starts} steps begun")
            await asyncio.sleep(0.05)
        while (found := await contender.ask("audit", "--url", url, limit=START_LIMIT)) != {"open": 0, "ended": count}:
            if time.monotonic() > limit or not process.running():
                raise ContenderFailed(f"{contender.name} should have ended {count} executions, has {found}")
        await _stop(process)
        tally = starts.tally()
    if tally.starts != count * STEPS:
        raise ContenderFailed(f"{contender.name} ran {tally.starts} steps for {count} executions")
    return count * 1e9 / (tally.last_ns - tally.first_ns)


@contextlib.asynccontextmanager
async def _prepared(contender: Contender) -> AsyncIterator[str]:
    """Where the contender finds a fresh store of its own."""
    if contender.name in ON_REDIS:
        await contender.ask("prepare", "--url", contender.server, limit=START_LIMIT)
        yield contender.server
        return
    async with contender.prepared() as url:
        yield url


async def _settled(contender: Contender, url: str) -> None:
    if contender.name not in ON_REDIS:
        await databases.settle(url)


@contextlib.asynccontextmanager
async def _working(contender: Contender, url: str) -> AsyncIterator[tuple[Talking, Starts]]:
    """One worker past its gate, and what counts the steps it starts."""
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-tally-") as folder:
        arguments = ["work", "--url", url, "--folder", folder]
        async with started(contender.python, contender.module, arguments, contender.name) as process:
            await process.answer(START_LIMIT)
            await process.say("go")
            yield process, Starts(Path(folder))


async def _stop(process: Talking) -> None:
    await process.say("stop")
    await process.end(END_LIMIT)
