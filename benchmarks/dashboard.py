"""The dashboard on a large installation: server time of every page, first visit, live updates, cost of live pages.

One pass measures all figures in about eight minutes, most of them from many samples. Server times are those of the
header `Server-Timing`, so they do not contain the client; on a loaded machine they still contain the wait for a core,
and the CPU time of the web process beside them does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchmarks import browser, databases
from benchmarks.contender import END_TIMEOUT_SECONDS, QUEUES, START_TIMEOUT_SECONDS, Contender
from benchmarks.contenders.tenuto_dashboard import LINE_COUNT, WATCHED_STEPS
from benchmarks.dashboard_data import LONG_LOG, RARE_NAME, WIDE_SCHEDULE
from benchmarks.measure import Case, percentile, progress
from benchmarks.processes import ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size

DASHBOARD = {"tenuto": "benchmarks.contenders.tenuto_dashboard"}
FILL_TIMEOUT_SECONDS = 600.0
LOAD_RATE = 500
OVERVIEW_PAGES, LIST_PAGES, EXECUTION_PAGES = 20, 20, 10
LIVE_PAGES = OVERVIEW_PAGES + LIST_PAGES + EXECUTION_PAGES
NO_LIST_PAGES = (
    "overview",
    "timeline",
    "execution",
    "schedule",
    "execution of 200 steps",
    "execution of 2,000 steps in a group",
    "activity",
    "dead letter",
    "batch",
    "bulk operation",
    "manifest",
    "queue",
    "log",
)
"""Pages that show one object, or more than a list."""
_STEP_ENDS = "SELECT group_index, ended_at FROM tenuto.activities WHERE execution_id = $1 AND final"


def page_paths(objects: Mapping[str, str]) -> dict[str, str]:
    """Return the address of every page by its name."""
    return {
        "overview": "/",
        "timeline": "/timeline",
        "executions": "/executions",
        "executions, failed": "/executions?q=state:failed",
        "execution": f"/executions/{objects['execution']}",
        "execution of 2,000 steps in a group": f"/executions/{objects['huge_execution']}",
        "execution of 200 steps": f"/executions/{objects['wide_execution']}",
        "schedules": "/schedules",
        "schedule": f"/schedules/{quote(WIDE_SCHEDULE)}",
        "tasks": "/tasks",
        "tasks, one name": "/tasks?q=name:job-7",
        "activities": "/activities",
        "activities, failed": "/activities?q=state:failed",
        "activities, rare name": f"/activities?q=name:{RARE_NAME}",
        "activity": f"/activities/{objects['activity']}",
        "dead letters": "/dead-letters",
        "dead letter": f"/dead-letters/{objects['dead_letter']}",
        "batches": "/batches",
        "batch": f"/batches/{objects['batch']}",
        "manifests": "/manifests",
        "manifest": "/manifests/bills",
        "jobs": "/jobs",
        "one-shots": "/one-shots",
        "one-shots, one tag": "/one-shots?q=tag:reminder",
        "workers": "/workers",
        "queues": "/queues",
        "queue": "/queues/mail",
        "ledger": "/ledger",
        "bulk operations": "/operations",
        "bulk operation": f"/operations/{objects['bulk_operation']}",
        "logs": "/logs",
        "log": f"/logs/{quote(LONG_LOG)}",
        "audit": "/audit",
        "keys": "/keys",
        "secrets": "/secrets",
        "settings": "/settings",
    }


def is_list(page: str) -> bool:
    return page not in NO_LIST_PAGES


async def dashboard(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Run all cases on one data set."""
    (tenuto,) = contenders
    async with tenuto.prepared_database("bench_dashboard") as url:
        progress("creating the data set")
        divided_by = str(size.of(1, 50))
        objects = await tenuto.run_command("fill", "--url", url, "--divided-by", divided_by, limit=FILL_TIMEOUT_SECONDS)
        async with running(tenuto, "serve", url) as (web, answer):
            where = ["--port", str(urlsplit(answer["address"]).port), "--key", answer["key"]]
            cases = [
                *await measure_pages(tenuto, web, where, page_paths(objects), size),
                *await measure_timeline(tenuto, where, size),
                *await measure_first_visit(answer["address"], answer["key"], size),
                *await measure_idle_pages(tenuto, web, where, objects, size),
            ]
            async with running(tenuto, "work", url) as (work, _):
                cases += await measure_changes(work, url, answer["address"], answer["key"])
                cases += await measure_loaded_pages(tenuto, web, work, where, objects, size)
                cases += await measure_hidden_tab(work, answer["address"], answer["key"], size)
    return [*cases, *await measure_unwatched_drain(tenuto, size)]


@contextlib.asynccontextmanager
async def running(tenuto: Contender, verb: str, url: str) -> AsyncIterator[tuple[ContenderProcess, dict[str, Any]]]:
    """Provide a process of the script and its first answer."""
    async with start_process(tenuto.python, tenuto.module, [verb, "--url", url], tenuto.name) as process:
        yield process, await process.read_answer(START_TIMEOUT_SECONDS)
        await process.send("stop")
        await process.read_answer(END_TIMEOUT_SECONDS)
        await process.wait_for_exit(END_TIMEOUT_SECONDS)


async def ask(process: ContenderProcess, command: str) -> dict[str, Any]:
    await process.send(command)
    return await process.read_answer(END_TIMEOUT_SECONDS)


async def cpu_used(web: ContenderProcess) -> float:
    return float((await ask(web, "used"))["cpu_seconds"])


# --- server time ------------------------------------------------------------------------------------------------------


async def measure_pages(
    tenuto: Contender, web: ContenderProcess, where: Sequence[str], paths: Mapping[str, str], size: Size
) -> list[Case]:
    """Measure the server time of every page, each later than the shared models of pages are valid."""
    rounds = size.of(60, 3)
    progress(f"{len(paths)} pages, {rounds} times")
    before = await cpu_used(web)
    arguments = [*where, "--rounds", str(rounds), "--paths", *paths.values()]
    answer = await tenuto.run_command("pages", *arguments, limit=300.0)
    used = await cpu_used(web) - before
    cases: list[Case] = []
    tails: dict[str, float] = {}
    for page, path in paths.items():
        middle, tail = Case(f"server time of {page}, p50", "ms"), Case(f"server time of {page}, p95", "ms")
        tails[page] = percentile(answer["server"][path], 0.95)
        middle.add("tenuto", percentile(answer["server"][path], 0.50))
        tail.add("tenuto", tails[page])
        cases += [middle, tail]
        at_first = Case(f"first request for {page}", "ms")
        at_first.add("tenuto", answer["first"][path])
        cases.append(at_first)
    slowest = Case("slowest list page, p95", "ms")
    slowest.add("tenuto", max(tail for page, tail in tails.items() if is_list(page)))
    first = Case("slowest first request for a page", "ms")
    first.add("tenuto", max(answer["first"].values()))
    cpu = Case("CPU time of the web process per page", "ms")
    cpu.add("tenuto", used * 1000 / (len(paths) * (rounds + 1)))
    return [slowest, first, cpu, *cases]


async def measure_timeline(tenuto: Contender, where: Sequence[str], size: Size) -> list[Case]:
    """Measure the timeline without a cached simulation: each request shows another period."""
    count = size.of(10, 2)
    cases = []
    for window, step in (("24h", timedelta(minutes=30)), ("7d", timedelta(hours=4))):
        now = datetime.now().astimezone()
        instants = [(now + number * step).strftime("%Y-%m-%dT%H:%M:%S%z") for number in range(count)]
        paths = [f"/timeline?window={window}&at={quote(instant)}" for instant in instants]
        answer = await tenuto.run_command("pages", *where, "--rounds", "0", "--paths", *paths, limit=300.0)
        case = Case(f"timeline of {window}, nothing cached, p95", "ms")
        case.add("tenuto", percentile(list(answer["first"].values()), 0.95))
        cases.append(case)
    return cases


# --- browser ----------------------------------------------------------------------------------------------------------


async def measure_first_visit(address: str, key: str, size: Size) -> list[Case]:
    """Measure the first visit to the overview with an empty cache, and the second one."""
    if browser.CHROMIUM is None:
        progress("chromium is not installed (apt-get install chromium): no figures of a browser")
        return []
    transferred, requests = Case("first visit, transferred", "kB"), Case("first visit, requests", "requests")
    loaded, painted = Case("first visit, DOMContentLoaded", "ms"), Case("first visit, largest contentful paint", "ms")
    again = Case("second visit, transferred", "kB")
    async with browser.chromium() as chromium:
        for _ in range(size.of(5, 2)):
            context = await browser.log_in(chromium, address, key)
            first = await browser.visit(context, "/")
            transferred.add("tenuto", first.transferred_bytes / 1000)
            requests.add("tenuto", first.request_count)
            loaded.add("tenuto", first.loaded_milliseconds)
            painted.add("tenuto", first.painted_milliseconds)
            again.add("tenuto", (await browser.visit(context, "/")).transferred_bytes / 1000)
            await context.close()
    return [transferred, requests, loaded, painted, again]


async def measure_changes(work: ContenderProcess, url: str, address: str, key: str) -> list[Case]:
    """Measure the time from the end of a step to its row on the screen, and from a line of a log to its display."""
    if browser.CHROMIUM is None:
        return []
    change, line = Case("end of a step to the screen, p95", "s"), Case("line of a log to the screen, p95", "s")
    async with browser.chromium() as chromium:
        context = await browser.log_in(chromium, address, key)
        execution = (await ask(work, "run"))["execution"]
        path = f"/executions/{execution}?step={WATCHED_STEPS + 1}&tab=log"
        progress(f"watching {path}")
        watched = await browser.watch_execution(context, path, WATCHED_STEPS, LINE_COUNT // 2)
        await context.close()
    async with databases.connected(url) as connection:
        ends = {
            row["group_index"]: row["ended_at"].timestamp() for row in await connection.fetch(_STEP_ENDS, execution)
        }
    change.add("tenuto", percentile([seen - ends[step] for step, seen in watched.steps.items() if step in ends], 0.95))
    line.add("tenuto", percentile(watched.line_delays, 0.95))
    return [change, line]


async def measure_hidden_tab(work: ContenderProcess, address: str, key: str, size: Size) -> list[Case]:
    """Count the requests of a hidden tab while jobs run."""
    if browser.CHROMIUM is None:
        return []
    seconds = size.seconds(10.0, 3.0)
    case = Case(f"requests of a hidden tab in {seconds:.0f} s while {LOAD_RATE} jobs/s run", "requests")
    await ask(work, f"rate {LOAD_RATE}")
    async with browser.chromium() as chromium:
        context = await browser.log_in(chromium, address, key)
        case.add("tenuto", await browser.count_requests_of_hidden_tab(context, "/", seconds))
        await context.close()
    await ask(work, "rate 0")
    return [case]


# --- live pages -------------------------------------------------------------------------------------------------------


def live_paths(objects: Mapping[str, str]) -> list[str]:
    lists = ("/executions", "/tasks", "/activities", "/schedules")
    return [
        *["/"] * OVERVIEW_PAGES,
        *[lists[number % len(lists)] for number in range(LIST_PAGES)],
        *[f"/executions/{objects['execution']}"] * EXECUTION_PAGES,
    ]


@contextlib.asynccontextmanager
async def open_pages(
    tenuto: Contender, where: Sequence[str], objects: Mapping[str, str]
) -> AsyncIterator[ContenderProcess]:
    """Keep live pages open."""
    arguments = ["watch", *where, "--paths", *live_paths(objects)]
    async with start_process(tenuto.python, tenuto.module, arguments, "viewers") as viewers:
        await viewers.read_answer(START_TIMEOUT_SECONDS)
        await asyncio.sleep(3)
        yield viewers
        await viewers.send("stop")
        await viewers.read_answer(END_TIMEOUT_SECONDS)


async def measure_idle_pages(
    tenuto: Contender, web: ContenderProcess, where: Sequence[str], objects: Mapping[str, str], size: Size
) -> list[Case]:
    """Measure the cost of live pages while nothing happens."""
    seconds = size.seconds(15.0, 4.0)
    case = Case(f"{LIVE_PAGES} live pages, idle system", "% of a core")
    async with open_pages(tenuto, where, objects):
        before = await cpu_used(web)
        await asyncio.sleep(seconds)
        case.add("tenuto", 100 * (await cpu_used(web) - before) / seconds)
    return [case]


async def measure_loaded_pages(
    tenuto: Contender,
    web: ContenderProcess,
    work: ContenderProcess,
    where: Sequence[str],
    objects: Mapping[str, str],
    size: Size,
) -> list[Case]:
    """Measure the cost of live pages while jobs run, and the rate of the jobs with and without them."""
    seconds, runs = size.seconds(12.0, 4.0), size.of(2, 1)
    cost = Case(f"{LIVE_PAGES} live pages while {LOAD_RATE} jobs/s run", "% of a core")
    fetched = Case(f"{LIVE_PAGES} live pages while {LOAD_RATE} jobs/s run, requests", "requests/s")
    alone = Case(f"jobs at {LOAD_RATE}/s without live pages", "jobs/s")
    together = Case(f"jobs at {LOAD_RATE}/s with {LIVE_PAGES} live pages", "jobs/s", alone)
    await ask(work, f"rate {LOAD_RATE}")
    await asyncio.sleep(2)
    for _ in range(runs):
        alone.add("tenuto", await _job_rate(work, seconds))
        async with open_pages(tenuto, where, objects) as viewers:
            before, count = await cpu_used(web), (await ask(viewers, "count"))["fetched"]
            together.add("tenuto", await _job_rate(work, seconds))
            cost.add("tenuto", 100 * (await cpu_used(web) - before) / seconds)
            fetched.add("tenuto", ((await ask(viewers, "count"))["fetched"] - count) / seconds)
    await ask(work, "rate 0")
    return [cost, fetched, alone, together]


async def _job_rate(work: ContenderProcess, seconds: float) -> float:
    before = (await ask(work, "count"))["ended"]
    await asyncio.sleep(seconds)
    return float(((await ask(work, "count"))["ended"] - before) / seconds)


# --- without viewers -------------------------------------------------------------------------------------------------


async def measure_unwatched_drain(tenuto: Contender, size: Size) -> list[Case]:
    """Compare a drain beside an unused web service with a drain without one, in pairs of runs.

    The goal is near the noise of one pair, so the figure is the median of the ratios of the pairs, beside their spread.
    The order within a pair alternates.
    """
    count, pairs = size.of(30_000, 3_000), max(3, size.runs)
    alone = Case("drain without a web service", "jobs/s")
    beside = Case("drain beside an unused web service", "jobs/s", alone)
    compared = Case("drain beside an unused web service ÷ without one, median of pairs", "×")
    spread = Case("drain beside an unused web service ÷ without one, spread of pairs", "×")
    queue = Contender(tenuto.name, QUEUES["tenuto"], Path(sys.executable), tenuto.server)

    async def drain(*, beside_service: bool) -> float:
        """Drain while the web service runs, or right after it has ended, so that both begin in the same state."""
        async with queue.prepared_database() as url:
            await queue.enqueue_in_bulk(url, count)
            await databases.settle(url)
            async with running(tenuto, "serve", url):
                if beside_service:
                    return (await queue.consume(url, count, 1)).rate
            return (await queue.consume(url, count, 1)).rate

    ratios: list[float] = []
    for pair in range(pairs):
        progress(f"drain of {count:,} jobs, pair {pair + 1} of {pairs}")
        first = await drain(beside_service=pair % 2 == 1)
        second = await drain(beside_service=pair % 2 == 0)
        with_service, without = (first, second) if pair % 2 else (second, first)
        alone.add("tenuto", without)
        beside.add("tenuto", with_service)
        ratios.append(with_service / without)
        compared.add("tenuto", ratios[-1])
    spread.add("tenuto", max(ratios) - min(ratios))
    return [alone, beside, compared, spread]
