"""Manifests: typed items in bulk, a cap that costs little, and a poll that finds a few due among very many."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from benchmarks.contest import QUEUES, Contender
from benchmarks.figures import Size
from benchmarks.measure import Case, alternate, percentile, progress

BULK = {"tenuto": "benchmarks.contenders.tenuto_bulk", "pgqueuer": QUEUES["pgqueuer"]}
MANAGERS = {"tenuto": "benchmarks.contenders.tenuto_bulk"}


async def bulk(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Typed items as one batch against a peer's untyped ones; memory while streaming; what a cap costs."""
    count = size.of(100_000, 5_000)
    rate = Case(f"bulk of {count:,} typed items", "items/s")

    async def run(contender: Contender) -> None:
        if contender.name == "tenuto":
            async with contender.prepared() as url:
                answer = await contender.ask("fill", "--url", url, "--count", str(count), limit=300.0)
                rate.add("tenuto", float(answer["rate"]))
        else:
            rate.add(contender.name, await contender.bulk_enqueue(count))

    await alternate(contenders, size.runs, run, f"bulk of {count:,} items")
    cases = [rate]
    for contender in contenders:
        if contender.name == "tenuto":
            cases += [*await streamed(contender, size), *await capped(contender, size)]
    return cases


async def streamed(tenuto: Contender, size: Size) -> list[Case]:
    """How far memory grows while a stream of items is taken in: the same for few and for very many."""
    few, many = size.of(50_000, 5_000), size.of(1_000_000, 20_000)
    small = Case(f"memory grown by {few:,} items", "MB")
    large = Case(f"memory grown by {many:,} items", "MB", small)
    for case, count in ((small, few), (large, many)):
        async with tenuto.prepared() as url:
            progress(f"streaming {count:,} items")
            answer = await tenuto.ask("fill", "--url", url, "--count", str(count), limit=900.0)
            case.add("tenuto", max(float(answer["grown"]), 1.0))
    return [small, large]


async def capped(tenuto: Contender, size: Size) -> list[Case]:
    """Items worked off by one worker, of a manifest without a cap and of one of which 50 may be active."""
    count = size.of(100_000, 5_000)
    free = Case(f"drain of {count:,} without a cap", "items/s")
    cap = Case(f"drain of {count:,}, 50 active at most", "items/s", free)

    async def run(_: Contender) -> None:
        for case, which in ((free, "free"), (cap, "capped")):
            async with tenuto.prepared() as url:
                arguments = ["--url", url, "--count", str(count), "--which", which]
                case.add("tenuto", float((await tenuto.ask("drain", *arguments, limit=700.0))["rate"]))

    await alternate([tenuto], size.runs, run, "drain with and without a cap")
    return [free, cap]


async def managers(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Milliseconds of one whole poll with 100 manifests due: among few, and among very many."""
    (tenuto,) = contenders
    large, times, due = size.of(100_000, 5_000), size.of(30, 5), 100
    cases: list[Case] = []
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for count in (1_000, large):
            progress(f"setting up {count:,} manifests")
            urls[count] = await stack.enter_async_context(tenuto.prepared(f"bench_manifests_{count}"))
            await tenuto.ask("many", "--url", urls[count], "--count", str(count), limit=600.0)
            cases.append(Case(f"poll with {due} due among {count:,}", "ms", cases[0] if cases else None))

        async def run(_: Contender) -> None:
            for case, url in zip(cases, urls.values(), strict=True):
                arguments = ["--url", url, "--count", str(times), "--due", str(due)]
                answer = await tenuto.ask("poll", *arguments, limit=300.0)
                case.add("tenuto", percentile(answer["milliseconds"], 0.5))

        await alternate([tenuto], size.runs, run, f"polls with {due} due")
    return cases
