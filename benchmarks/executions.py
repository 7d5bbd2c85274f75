"""Executions: work of several steps in order, 1 → 1 → 2 → 2, compared with other products.

The measurement covers the work between the steps: detecting the end of a group, starting the next, recording both.
The
steps themselves do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import databases
from benchmarks.contender import END_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, Contender
from benchmarks.contenders.runner_protocol import STEPS
from benchmarks.contenders.start_counters import Starts
from benchmarks.measure import Case, alternate, percentile
from benchmarks.processes import ContenderFailed, ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size
from benchmarks.redis_server import redis_server

RUNNERS = {
    "tenuto": "benchmarks.contenders.tenuto_runs",
    "celery": "benchmarks.contenders.celery_runs",
    "celery-threads": "benchmarks.contenders.celery_runs",
    "celery-solo": "benchmarks.contenders.celery_runs",
    "celery-durable": "benchmarks.contenders.celery_runs",
    "celery-get": "benchmarks.contenders.celery_runs",
    "dbos": "benchmarks.contenders.dbos_runs",
    "raw": "benchmarks.contenders.raw_runs",
}
ON_REDIS = ("celery", "celery-threads", "celery-solo", "celery-durable", "celery-get")

# Counts for a run of some seconds: full, and quick. `celery-get` differs only in how it waits for the end, and `raw` is
# the limit of a single execution.
COUNTS = {"tenuto": (5_000, 500), "dbos": (300, 40)} | dict.fromkeys(ON_REDIS[:-1], (500, 60))

# Single executions: full, and quick. The p99 of 1,000 depends on ten of them; as many of the peers would take an hour.
SAMPLES = dict.fromkeys(("tenuto", "raw"), (1_000, 20))
SAMPLES_OF_PEERS = (200, 20)


@dataclass(frozen=True)
class Work:
    """What is submitted and measured."""

    noun: str
    steps: int
    """Functions that each of it starts."""
    description: str
    counts: Mapping[str, tuple[int, int]]
    """Counts of the drain: full, and quick."""


EXECUTIONS = Work("execution", STEPS, f"executions of {STEPS} steps in 4 groups", COUNTS)


async def executions(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure throughput, then single executions on an idle system."""
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
        return [*await measure_throughput(contenders, size), *await measure_single(contenders, size)]


async def measure_throughput(contenders: Sequence[Contender], size: Size, work: Work = EXECUTIONS) -> list[Case]:
    """Submit all before a worker starts, then process them with one."""
    unit = f"{work.noun}s/s"
    drained, submitted = Case(f"{work.noun}s, one worker", unit), Case("submitted one by one", unit)

    async def run(contender: Contender) -> None:
        count = size.of(*work.counts[contender.name])
        async with _prepared_store(contender) as url:
            limit = START_TIMEOUT_SECONDS + count / 5
            answer = await contender.run_command("submit", "--url", url, "--count", str(count), limit=limit)
            submitted.add(contender.name, count / float(answer["seconds"]))
            await _has_settled(contender, url)
            drained.add(contender.name, await _drain(contender, url, count, work))

    counted = [contender for contender in contenders if contender.name in work.counts]
    await alternate(counted, size.runs, run, work.description)
    return [drained, submitted]


async def measure_drain(contender: Contender, count: int) -> float:
    """Return the executions per second of one contender, once, for other benchmarks."""
    async with _prepared_store(contender) as url:
        await contender.run_command(
            "submit", "--url", url, "--count", str(count), limit=START_TIMEOUT_SECONDS + count / 5
        )
        await _has_settled(contender, url)
        return await _drain(contender, url, count, EXECUTIONS)


async def measure_single(contenders: Sequence[Contender], size: Size, work: Work = EXECUTIONS) -> list[Case]:
    """Time one at a time on an idle system: from just before the submission until the submitter knows its end."""
    single = f"single {work.noun}"
    middle, tail, spread = Case(f"{single} p50", "ms"), Case(f"{single} p99", "ms"), Case(f"{single} p99 ÷ p50", "×")
    next_middle, next_tail = Case("group to group p50", "ms"), Case("group to group p99", "ms")

    async def run(contender: Contender) -> None:
        samples = size.of(*SAMPLES.get(contender.name, SAMPLES_OF_PEERS))
        async with _prepared_store(contender) as url:
            await _has_settled(contender, url)
            async with _running_worker(contender, url) as (process, _):
                arguments = ["--url", url, "--count", str(samples)]
                answer = await contender.run_command("sample", *arguments, limit=START_TIMEOUT_SECONDS + samples * 10)
                await _stop(process)
            middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
            tail.add(contender.name, percentile(answer["milliseconds"], 0.99))
            spread.add(contender.name, tail.figures[contender.name][-1] / middle.figures[contender.name][-1])
            answer = await contender.run_command("handovers", "--url", url, limit=START_TIMEOUT_SECONDS)
            if answer["milliseconds"]:
                next_middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
                next_tail.add(contender.name, percentile(answer["milliseconds"], 0.99))

    await alternate(contenders, size.runs, run, f"{single}s")
    return [middle, tail, spread, next_middle, next_tail]


async def _drain(contender: Contender, url: str, count: int, work: Work) -> float:
    """Return how many per second ended, from the first to the last start of a step; all must have ended completely."""
    async with _running_worker(contender, url) as (process, starts):
        limit = time.monotonic() + START_TIMEOUT_SECONDS + count / 2
        while starts.tally().starts < count * work.steps:
            if time.monotonic() > limit or not process.is_running():
                raise ContenderFailed(f"{contender.name} did not finish: {starts.tally().starts} steps started")
            await asyncio.sleep(0.05)
        while (found := await contender.run_command("audit", "--url", url, limit=START_TIMEOUT_SECONDS)) != {
            "open": 0,
            "ended": count,
        }:
            if time.monotonic() > limit or not process.is_running():
                raise ContenderFailed(f"{contender.name} should have ended {count} {work.noun}s, has {found}")
        await _stop(process)
        tally = starts.tally()
    if tally.starts != count * work.steps:
        raise ContenderFailed(f"{contender.name} ran {tally.starts} steps for {count} {work.noun}s")
    return count * 1e9 / (tally.last_ns - tally.first_ns)


@contextlib.asynccontextmanager
async def _prepared_store(contender: Contender) -> AsyncIterator[str]:
    """Provide a fresh store for the contender."""
    if contender.name in ON_REDIS:
        await contender.run_command("prepare", "--url", contender.server, limit=START_TIMEOUT_SECONDS)
        yield contender.server
        return
    async with contender.prepared_database() as url:
        yield url


async def _has_settled(contender: Contender, url: str) -> None:
    if contender.name not in ON_REDIS:
        await databases.settle(url)


@contextlib.asynccontextmanager
async def _running_worker(contender: Contender, url: str) -> AsyncIterator[tuple[ContenderProcess, Starts]]:
    """Provide one started worker, and the counter of the steps it starts."""
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-tally-") as folder:
        arguments = ["work", "--url", url, "--folder", folder]
        async with start_process(contender.python, contender.module, arguments, contender.name) as process:
            await process.read_answer(START_TIMEOUT_SECONDS)
            await process.send("go")
            yield process, Starts(Path(folder))


async def _stop(process: ContenderProcess) -> None:
    await process.send("stop")
    await process.wait_for_exit(END_TIMEOUT_SECONDS)
