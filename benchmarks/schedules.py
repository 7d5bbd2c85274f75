"""Schedules: very many due at one instant, a few due among very many, and starting on time.

Only the last case has a peer: no other product fires one schedule from several schedulers and proves that it fired
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from benchmarks.contender import END_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, Contender
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size

CLOCKS = {
    "tenuto": "benchmarks.contenders.tenuto_schedules",
    "apscheduler": "benchmarks.contenders.apscheduler_schedules",
}


async def schedules(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure all due at once with two schedulers, then few among many, then a hundred a minute."""
    cases: list[Case] = []
    for contender in contenders:
        if contender.name == "tenuto":
            cases = [*await measure_all_at_once(contender, size), *await measure_few_among_many(contender, size)]
    return [*cases, *await measure_punctuality(contenders, size)]


async def measure_all_at_once(tenuto: Contender, size: Size) -> list[Case]:
    """Return the seconds from the due instant until the last schedule fired; the ledger proves that each fired once."""
    count = size.of(10_000, 1_000)
    case = Case(f"{count:,} due at once, two schedulers", "s")

    async def run(_: Contender) -> None:
        async with tenuto.prepared_database() as url, _running_services(tenuto, url, "schedule", "schedule"):
            answer = await tenuto.run_command("burst", "--url", url, "--count", str(count), limit=400.0)
            case.add("tenuto", float(answer["seconds"]))
            progress(f"  fired by each: {answer['fired_by']}")

    await alternate([tenuto], size.runs, run, case.name)
    return [case]


async def measure_few_among_many(tenuto: Contender, size: Size) -> list[Case]:
    """Return the milliseconds of the two queries of a scheduler: due schedules, and the next due instant."""
    large, times, some = size.of(1_000_000, 20_000), size.of(100, 20), 100
    baselines: dict[str, Case] = {}
    cases: list[Case] = []
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for count in (1_000, large):
            progress(f"setting up {count:,} schedules")
            urls[count] = await stack.enter_async_context(tenuto.prepared_database(f"bench_schedules_{count}"))
            await tenuto.run_command("fill", "--url", urls[count], "--count", str(count), limit=900.0)
            for name in ("none due", f"{some} due", "the next one"):
                case = Case(f"{name} among {count:,}", "ms", baselines.get(name))
                baselines.setdefault(name, case)
                cases.append(case)

        async def run(_: Contender) -> None:
            for place, url in enumerate(urls.values()):
                none, found, next_one = cases[place * 3 : place * 3 + 3]
                answer = await _time_due_query(tenuto, url, times, due=0)
                none.add("tenuto", percentile(answer["due"], 0.5))
                next_one.add("tenuto", percentile(answer["next_due"], 0.5))
                answer = await _time_due_query(tenuto, url, times, due=some)
                found.add("tenuto", percentile(answer["due"], 0.5))

        await alternate([tenuto], size.runs, run, "queries for due schedules")
    return cases


async def _time_due_query(tenuto: Contender, url: str, times: int, *, due: int) -> dict[str, list[float]]:
    arguments = ["--url", url, "--count", str(times), "--due", str(due)]
    return await tenuto.run_command("due-query", *arguments, limit=300.0)


async def measure_punctuality(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Fire a hundred schedules a minute: from the due instant to the start of the first step."""
    seconds = size.of(90, 15)
    middle, tail = Case("start after it was due p50", "ms"), Case("start after it was due p99", "ms")

    async def run(contender: Contender) -> None:
        services = ("schedule", "work") if contender.name == "tenuto" else ()
        async with contender.prepared_database() as url, _running_services(contender, url, *services):
            answer = await contender.run_command("minute", "--url", url, "--count", str(seconds), limit=seconds + 400.0)
            middle.add(contender.name, percentile(answer["milliseconds"], 0.50))
            tail.add(contender.name, percentile(answer["milliseconds"], 0.99))

    await alternate(contenders, size.runs, run, f"a hundred fires a minute, for {seconds} s")
    return [middle, tail]


@contextlib.asynccontextmanager
async def _running_services(contender: Contender, url: str, *verbs: str) -> AsyncIterator[None]:
    """Provide running services in separate processes, stopped cleanly at the end."""
    async with contextlib.AsyncExitStack() as stack:
        processes: list[ContenderProcess] = []
        for verb in verbs:
            running = start_process(contender.python, contender.module, [verb, "--url", url], contender.name)
            processes.append(await stack.enter_async_context(running))
        for process in processes:
            await process.read_answer(START_TIMEOUT_SECONDS)
            await process.send("go")
        yield
        for process in processes:
            await process.send("stop")
            await process.wait_for_exit(END_TIMEOUT_SECONDS)
