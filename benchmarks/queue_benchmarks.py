"""The benchmarks with peers: drain, enqueue, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import databases
from benchmarks.contender import START_TIMEOUT_SECONDS, Contender
from benchmarks.measure import Case, alternate, percentile


@dataclass(frozen=True)
class Size:
    """Size of a measurement: full, or quick enough to try in half a minute."""

    runs: int
    quick: bool
    large: bool = False
    """Also measure a million where that takes long."""

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def choose(self, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.quick else full


async def drain(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Process no-op jobs, each with its full record, with one and with two worker processes: on tables with fresh
    statistics, and right after the jobs were enqueued into empty ones, also fewer of them.
    """
    many, few = size.of(50_000, 5_000), size.of(20_000, 2_000)
    cases = []
    for workers, settled, count, name in (
        (1, True, many, "one worker"),
        (2, True, many, "two workers"),
        (1, False, many, "one worker, right after start"),
        (2, False, many, "two workers, right after start"),
        (1, False, few, f"one worker, {few:,} jobs right after start"),
        (2, False, few, f"two workers, {few:,} jobs right after start"),
    ):
        case = Case(name, "jobs/s")
        worker, server = Case(f"{name}: CPU of the workers", "µs/job"), Case(f"{name}: CPU of the server", "µs/job")
        log = Case(f"{name}: write-ahead log", "bytes/job")
        cases += [case, worker, server, log]

        async def run(
            contender: Contender,
            reported: tuple[Case, ...] = (case, worker, server, log),
            workers: int = workers,
            settled: bool = settled,
            count: int = count,
        ) -> None:
            drained = await contender.measure_drain(count, workers, settled=settled)
            figures = (drained.rate, drained.worker_microseconds, drained.server_microseconds, drained.wal_bytes)
            for each, figure in zip(reported, figures, strict=True):
                each.add(contender.name, figure)

        await alternate(contenders, size.runs, run, f"drain of {count:,} jobs, {name}")
    return cases


async def enqueue(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Enqueue jobs a thousand at a time, and one by one."""
    many, few = size.of(50_000, 5_000), size.of(2_000, 300)
    bulk, single = Case("bulk", "jobs/s"), Case("one by one", "jobs/s")

    async def run(contender: Contender) -> None:
        bulk.add(contender.name, await contender.measure_bulk_enqueue(many))
        single.add(contender.name, await contender.measure_single_enqueue(few))

    await alternate(contenders, size.runs, run, f"enqueue of {many:,} in bulk and {few:,} one by one")
    cases = [bulk, single]
    for contender in contenders:
        if contender.name == "tenuto":
            cases += await _enqueue_in_sql(contender, size, many, few)
    return [*cases, *await _enqueue_concurrently(contenders, size)]


async def _enqueue_in_sql(tenuto: Contender, size: Size, many: int, few: int) -> list[Case]:
    """Enqueue jobs with the SQL function, a thousand in a statement, and one by one."""
    script = replace(tenuto, module="benchmarks.contenders.tenuto_sql")
    bulk, single = (Case(f"SQL function `tenuto.enqueue`, {way}", "jobs/s") for way in ("in thousands", "one by one"))

    async def run(_: Contender) -> None:
        for case, verb, count in ((bulk, "bulk", many), (single, "single", few)):
            async with tenuto.prepared_database() as url:
                await databases.settle(url)
                limit = START_TIMEOUT_SECONDS + count / 20
                answer = await script.run_command(verb, "--url", url, "--count", str(count), limit=limit)
                await tenuto.check(url, waiting=count, recorded=0)
                case.add("tenuto", count / float(answer["seconds"]))

    await alternate([tenuto], size.runs, run, f"enqueue of {many:,} and {few:,} with the SQL function")
    return [bulk, single]


async def _enqueue_concurrently(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Enqueue single jobs from concurrent callers of one process, and of four."""
    count = size.of(20_000, 2_000)
    cases = []
    for callers, processes in ((10, 1), (50, 1), (200, 1), (50, 4)):
        name = f"{callers} callers" + (f" in each of {processes} processes" if processes > 1 else "")
        rate, tail = Case(name, "jobs/s"), Case(f"{name}, p99 of a call", "ms")
        cases += [rate, tail]

        async def run(
            contender: Contender,
            rate: Case = rate,
            tail: Case = tail,
            callers: int = callers,
            processes: int = processes,
        ) -> None:
            per_second, milliseconds = await contender.measure_concurrent_enqueue(count, callers, processes)
            rate.add(contender.name, per_second)
            tail.add(contender.name, percentile(milliseconds, 0.99))

        await alternate(contenders, size.runs, run, f"enqueue of {count:,} by {name}")
    return cases


async def latency(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure the latency on an idle system with one worker: from the enqueuer's commit, and from before its call, to
    the start of the handler.
    """
    samples = size.of(1_000, 100)
    middle, tail = Case("pick-up p50", "ms"), Case("pick-up p99", "ms")
    bound = Case("pick-up p99 ÷ (2 × p50 + 2 ms)", "of the bound")
    whole, whole_tail = Case("enqueue to start p50", "ms"), Case("enqueue to start p99", "ms")

    async def run(contender: Contender) -> None:
        from_commit, from_call = await contender.measure_latency(samples)
        middle.add(contender.name, percentile(from_commit, 0.50))
        tail.add(contender.name, percentile(from_commit, 0.99))
        bound.add(contender.name, percentile(from_commit, 0.99) / (2 * percentile(from_commit, 0.50) + 2))
        whole.add(contender.name, percentile(from_call, 0.50))
        whole_tail.add(contender.name, percentile(from_call, 0.99))

    await alternate(contenders, size.runs, run, f"pick-up of {samples} single jobs")
    return [middle, tail, bound, whole, whole_tail]
