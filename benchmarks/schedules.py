"""Schedules: very many due at one instant, a few due among very many, and starting on time.

Only the last has a peer: none of them fires one schedule from several schedulers and can show that it did so once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from benchmarks.contest import END_LIMIT, START_LIMIT, Contender
from benchmarks.figures import Size
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import Talking, started

CLOCKS = {
    "tenuto": "benchmarks.contenders.tenuto_schedules",
    "apscheduler": "benchmarks.contenders.apscheduler_schedules",
}


async def schedules(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """All due at once with two schedulers, then few among many, then a hundred a minute."""
    cases: list[Case] = []
    for contender in contenders:
        if contender.name == "tenuto":
            cases = [*await all_at_once(contender, size), *await few_among_many(contender, size)]
    return [*cases, *await on_time(contenders, size)]


async def all_at_once(tenuto: Contender, size: Size) -> list[Case]:
    """Seconds from the instant at which all are due until the last is fired; the ledger says that each was so once."""
    count = size.of(10_000, 1_000)
    case = Case(f"{count:,} due at once, two schedulers", "s")

    async def run(_: Contender) -> None:
        async with tenuto.prepared() as url, _serving(tenuto, url, "schedule", "schedule"):
            answer = await tenuto.ask("burst", "--url", url, "--count", str(count), limit=400.0)
            case.add("tenuto", float(answer["seconds"]))
            progress(f"  fired by each: {answer['fired_by']}")

    await alternate([tenuto], size.runs, run, case.name)
    return [case]


async def few_among_many(tenuto: Contender, size: Size) -> list[Case]:
    """Milliseconds a scheduler waits for the answer to its two questions: which are due, and when is the next one?"""
    large, times, some = size.of(1_000_000, 20_000), size.of(100, 20), 100
    baselines: dict[str, Case] = {}
    cases: list[Case] = []
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for count in (1_000, large):
            progress(f"setting up {count:,} schedules")
            urls[count] = await stack.enter_async_context(tenuto.prepared(f"bench_schedules_{count}"))
            await tenuto.ask("fill", "--url", urls[count], "--count", str(count), limit=900.0)
            for name in ("none due", f"{some} due", "the next one"):
                case = Case(f"{name} among {count:,}", "ms", baselines.get(name))
                baselines.setdefault(name, case)
                cases.append(case)

        async def run(_: Contender) -> None:
            for place, url in enumerate(urls.values()):
                none, found, next_one = cases[place * 3 : place * 3 + 3]
                answer = await _look(tenuto, url, times, due=0)
                none.add("tenuto", percentile(answer["due"], 0.5))
                next_one.add("tenuto", percentile(answer["next_due"], 0.5))
                answer = await _look(tenuto, url, times, due=some)
                found.add("tenuto", percentile(answer["due"], 0.5))

        await alternate([tenuto], size.runs, run, "looking for what is due")
    return cases


async def _look(tenuto: Contender, url: str, times: int, *, due: int) -> dict[str, list[float]]:
    arguments = ["--url", url, "--count", str(times), "--due", str(due)]
    return await tenuto.ask("look", *arguments, limit=300.0)


async def on_time(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """A hundred fires a minute: from the instant one is due to the start of its first step."""
    seconds = size.of(90, 15)
    middle, tail = Case("start after it was due p50", "ms"), Case("start after it was due p99", "ms")

    async def run(contender: Contender) -> None:
        services = ("schedule", "work") if contender.name == "tenuto" else ()
        async with contender.prepared() as url, _serving(contender, url, *services):
            answer = await contender.ask("minute", "--url", url, "--count", str(seconds), limit=seconds + 400.0)
            middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
            tail.add(contender.name, percentile(answer["milliseconds"], 0.99))

    await alternate(contenders, size.runs, run, f"a hundred fires a minute, for {seconds} s")
    return [middle, tail]


@contextlib.asynccontextmanager
async def _serving(contender: Contender, url: str, *verbs: str) -> AsyncIterator[None]:
    """Services in processes of their own, all of them ready; stopped in good order."""
    async with contextlib.AsyncExitStack() as stack:
        processes: list[Talking] = []
        for verb in verbs:
            running = started(contender.python, contender.module, [verb, "--url", url], contender.name)
            processes.append(await stack.enter_async_context(running))
        for process in processes:
            await process.answer(START_LIMIT)
            await process.say("go")
        yield
        for process in processes:
            await process.say("stop")
            await process.end(END_LIMIT)
