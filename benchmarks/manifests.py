"""Manifests: typed items in bulk, the cost of a limit, and a poll with a few due among very many."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from benchmarks.contender import QUEUES, Contender
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.queue_benchmarks import Size

BULK = {"tenuto": "benchmarks.contenders.tenuto_bulk", "pgqueuer": QUEUES["pgqueuer"]}
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
    """Measure workers on plain jobs, on items of a manifest without a cap and with one, and on eight groups with a cap
    each.
    """
    few, count = size.of(10_000, 5_000), size.of(100_000, 5_000)
    plain = Case(f"drain of {few:,} plain jobs", "items/s")
    uncapped = Case(f"drain of {few:,} manifest runs without a cap", "items/s", plain)
    free = Case(f"drain of {count:,} without a cap", "items/s")
    cap = Case(f"drain of {count:,}, 50 active at most", "items/s", free)
    groups = Case(f"drain of {few:,} in 8 groups, 10 active at most in each, 4 workers", "items/s")
    kinds = (
        (plain, "plain", few, 1), (uncapped, "free", few, 1), (free, "free", count, 1), (cap, "capped", count, 1),
        (groups, "groups", few, 4),
    )  # fmt: skip

    async def run(_: Contender) -> None:
        for case, which, tasks, workers in kinds:
            async with tenuto.prepared_database() as url:
                arguments = ["--url", url, "--count", str(tasks), "--which", which, "--workers", str(workers)]
                case.add("tenuto", float((await tenuto.run_command("drain", *arguments, limit=700.0))["rate"]))

    await alternate([tenuto], size.runs, run, "drain with and without a cap")
    return [case for case, *_ in kinds]


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
