"""Manifests: typed items in bulk, the cost of a limit, and a poll with a few due among very many."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import databases
from benchmarks.contender import END_TIMEOUT_SECONDS, QUEUES, START_TIMEOUT_SECONDS, Contender
from benchmarks.contenders.start_counters import count_most_active
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import ContenderFailed, start_process
from benchmarks.queue_benchmarks import Size

MAX_ACTIVE, MAX_ACTIVE_IN_GROUP = 50, 10
"""As in benchmarks/contenders/tenuto_bulk.py."""

BULK = {"tenuto": "benchmarks.contenders.tenuto_bulk", "pgqueuer": QUEUES["pgqueuer"]}
CLAIMS = "benchmarks.contenders.tenuto_claims"
MANAGERS = {"tenuto": "benchmarks.contenders.tenuto_bulk"}


async def bulk(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Compare typed items in one batch with a peer's untyped ones; measure memory while streaming and the cost of a
    limit.
    """
    count = size.of(100_000, 5_000)
    rate = Case(f"bulk of {count:,} typed items", "items/s")

    async def run(contender: Contender) -> None:
        if contender.name == "tenuto":
            async with contender.prepared_database() as url:
                answer = await contender.run_command("fill", "--url", url, "--count", str(count), limit=300.0)
                rate.add("tenuto", float(answer["rate"]))
        else:
            rate.add(contender.name, await contender.measure_bulk_enqueue(count))

    await alternate(contenders, size.runs, run, f"bulk of {count:,} items")
    cases = [rate]
    for contender in contenders:
        if contender.name == "tenuto":
            cases += [*await measure_streaming_memory(contender, size), *await measure_limited_drain(contender, size)]
            cases += await measure_claims_of_queues(contender, size)
    return cases


async def measure_streaming_memory(tenuto: Contender, size: Size) -> list[Case]:
    """Measure the memory growth while items stream in; it must not depend on their number."""
    few, many = size.of(50_000, 5_000), size.of(1_000_000, 20_000)
    small = Case(f"memory grown by {few:,} items", "MB")
    large = Case(f"memory grown by {many:,} items", "MB", small)
    for case, count in ((small, few), (large, many)):
        async with tenuto.prepared_database() as url:
            progress(f"streaming {count:,} items")
            answer = await tenuto.run_command("fill", "--url", url, "--count", str(count), limit=900.0)
            case.add("tenuto", max(float(answer["grown"]), 1.0))
    return [small, large]


async def measure_limited_drain(tenuto: Contender, size: Size) -> list[Case]:
    """Measure worker processes on plain jobs, on items of a manifest without a cap and with one, and on eight groups
    with a cap each.
    """
    few, count = size.of(10_000, 4_000), size.of(100_000, 5_000)
    plain = Case(f"drain of {few:,} plain jobs", "items/s")
    uncapped = Case(f"drain of {few:,} manifest runs without a cap", "items/s", plain)
    free = Case(f"drain of {count:,} without a cap", "items/s")
    cap = Case(f"drain of {count:,}, {MAX_ACTIVE} active at most", "items/s", free)
    in_cap = Case(f"most active of {MAX_ACTIVE}", "tasks")
    crowd = Case(f"drain of {few:,} without a cap, 4 workers", "items/s")
    groups = Case(
        f"drain of {few:,} in 8 groups, {MAX_ACTIVE_IN_GROUP} active at most in each, 4 workers", "items/s", crowd
    )
    in_group = Case(f"most active of {MAX_ACTIVE_IN_GROUP} in a group, 4 workers", "tasks")
    kinds = (
        (plain, "plain", few, 1, None),
        (uncapped, "free", few, 1, None),
        (free, "free", count, 1, None),
        (cap, "capped", count, 1, in_cap),
        (crowd, "free", few, 4, None),
        (groups, "groups", few, 4, in_group),
    )

    async def run(_: Contender) -> None:
        for case, which, tasks, workers, most in kinds:
            rate, active = await _drain(tenuto, which, tasks, workers)
            case.add("tenuto", rate)
            if most is not None:
                most.add("tenuto", active)
                bound = MAX_ACTIVE_IN_GROUP if which == "groups" else MAX_ACTIVE
                if active > bound:
                    raise ContenderFailed(f"{active} tasks of {which} were active at once, at most {bound} may be")

    await alternate([tenuto], size.runs, run, "drain with and without a cap")
    return [plain, uncapped, free, cap, in_cap, crowd, groups, in_group]


async def _drain(tenuto: Contender, which: str, count: int, workers: int) -> tuple[float, int]:
    """Process that many tasks with worker processes; return tasks per second from the first start to the last, and how
    many tasks under one cap were active at the same time at most.
    """
    async with tenuto.prepared_database() as url:
        await tenuto.run_command("load", "--url", url, "--count", str(count), "--which", which, limit=300.0)
        await databases.settle(url)
        async with tenuto.running_workers(url, workers, 3 * count) as (processes, files):
            limit = time.monotonic() + START_TIMEOUT_SECONDS + count / 100
            while sum(counters.tally().starts for counters in files) < count:
                if time.monotonic() > limit or not all(process.is_running() for process in processes):
                    raise ContenderFailed(f"{count} tasks ({which}) were not drained")
                await asyncio.sleep(0.025)
            for process in processes:
                await process.send("stop")
            for process in processes:
                await process.wait_for_exit(END_TIMEOUT_SECONDS)
            tallies = [tally for counters in files if (tally := counters.tally()).starts]
            intervals = [interval for counters in files for interval in counters.intervals()]
        await tenuto.check(url, waiting=0, recorded=count)
    if len(intervals) != count:
        raise ContenderFailed(f"{len(intervals)} handlers ran for {count} tasks")
    seconds = (max(tally.last_ns for tally in tallies) - min(tally.first_ns for tally in tallies)) / 1e9
    return count / seconds, count_most_active(intervals)


async def measure_claims_of_queues(tenuto: Contender, size: Size) -> list[Case]:
    """Measure claims of ten by 2 and 4 worker processes from 2 and 8 queues, each queue read by one of them or shared,
    without and with limits of the queues. Claims under limits of different queues do not wait for each other.
    """
    seconds, cases = size.seconds(5.0, 1.0), []
    for queue_count, workers in ((2, 2), (8, 2), (8, 4), (2, 4)):
        queues = [f"queue-{number}" for number in range(queue_count)]
        what = f"claims of ten, {queue_count} queues, {workers} workers"
        plain = Case(f"{what}, no limits", "claims/s")
        limited, tail = Case(f"{what}, limits", "claims/s", plain), Case(f"{what}, limits, p99 of a claim", "ms")
        cases += [plain, limited, tail]

        async def run(
            _: Contender,
            queues: list[str] = queues,
            workers: int = workers,
            plain: Case = plain,
            limited: Case = limited,
            tail: Case = tail,
        ) -> None:
            for case, options in ((plain, []), (limited, ["--limited"])):
                rate, milliseconds = await _claim(tenuto, queues, workers, seconds, options)
                case.add("tenuto", rate)
                if case is limited:
                    tail.add("tenuto", percentile(milliseconds, 0.99))

        await alternate([tenuto], size.runs, run, what)
    return cases


async def _claim(
    tenuto: Contender, queues: Sequence[str], workers: int, seconds: float, options: Sequence[str]
) -> tuple[float, list[float]]:
    """Claim with worker processes, each from its share of the queues; return claims per second and the milliseconds of
    each.
    """
    script = replace(tenuto, module=CLAIMS)
    async with tenuto.prepared_database() as url, contextlib.AsyncExitStack() as stack:
        fill = ["--url", url, "--times", "400", "--queues", *queues]
        await script.run_command("fill", *fill, limit=START_TIMEOUT_SECONDS)
        if not options:
            async with databases.connected(url) as connection:
                await connection.execute("DELETE FROM tenuto.queues")
        await databases.settle(url)
        running = []
        for number in range(workers):
            own = queues[number::workers] or [queues[number % len(queues)]]
            arguments = ["queues", "--url", url, "--seconds", str(seconds), "--queues", *own, *options]
            starting = start_process(tenuto.python, CLAIMS, arguments, tenuto.name)
            running.append(await stack.enter_async_context(starting))
        for process in running:
            await process.read_answer(START_TIMEOUT_SECONDS)
        for process in running:
            await process.send("go")
        answers = [await process.read_answer(START_TIMEOUT_SECONDS + seconds) for process in running]
        for process in running:
            await process.wait_for_exit(END_TIMEOUT_SECONDS)
    rate = sum(len(answer["milliseconds"]) / answer["seconds"] for answer in answers)
    return rate, [taken for answer in answers for taken in answer["milliseconds"]]


async def managers(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure one whole poll in milliseconds with 100 manifests due, among few and among very many."""
    (tenuto,) = contenders
    large, times, due = size.of(100_000, 5_000), size.of(30, 5), 100
    cases: list[Case] = []
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for count in (1_000, large):
            progress(f"setting up {count:,} manifests")
            urls[count] = await stack.enter_async_context(tenuto.prepared_database(f"bench_manifests_{count}"))
            await tenuto.run_command("many", "--url", urls[count], "--count", str(count), limit=600.0)
            cases.append(Case(f"poll with {due} due among {count:,}", "ms", cases[0] if cases else None))

        async def run(_: Contender) -> None:
            for case, url in zip(cases, urls.values(), strict=True):
                arguments = ["--url", url, "--count", str(times), "--due", str(due)]
                answer = await tenuto.run_command("poll", *arguments, limit=300.0)
                case.add("tenuto", percentile(answer["milliseconds"], 0.5))

        await alternate([tenuto], size.runs, run, f"polls with {due} due")
    return cases
