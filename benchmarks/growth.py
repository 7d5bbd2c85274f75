"""Growth: the cost of a claim with large tables, and the cost of an idle worker.

Tenuto is compared with itself: the cost of a claim of 100 in a small database divided by its cost in each other one.
All
databases exist side by side and are measured alternately, so that a drift of the machine affects them alike. Commits
of
the timed session do not wait for the disk: its constant share would hide the growth.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from benchmarks import databases
from benchmarks.contender import Contender, Idle
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import start_process
from benchmarks.queue_benchmarks import Size

MODULE = "benchmarks.contenders.tenuto_claims"
APP = "benchmarks.contenders.tenuto_app:app"
BASELINE = "1k waiting"


@dataclass(frozen=True)
class TableState:
    """Contents of the database when the claims are timed."""

    name: str
    waiting: int
    finished: int = 0
    long_transaction: bool = False
    """A transaction has been open since before the tasks were consumed, so vacuum can remove no dead row."""
    fresh_worker: bool = False
    """Each claim is that of a worker that has just started and has no claim cursor."""

    @property
    def database(self) -> str:
        """Return the database name; states that differ only in the worker share a database."""
        return f"bench_growth_{self.waiting}_{self.finished}_{'held' if self.long_transaction else 'free'}"


def table_states(size: Size) -> list[TableState]:
    small, middle, large = 1_000, size.of(100_000, 10_000), size.of(1_000_000, 20_000)
    consumed = size.of(100_000, 5_000)
    snapshot = f"1k waiting, old snapshot, {_short(consumed)} consumed"
    return [
        TableState(BASELINE, small),
        TableState(f"{_short(middle)} waiting", middle),
        TableState(f"{_short(large)} waiting", large),
        TableState(f"1k waiting, {_short(large)} finished", small, finished=large),
        TableState(snapshot, small, consumed, long_transaction=True),
        TableState(f"{snapshot}, fresh worker", small, consumed, long_transaction=True, fresh_worker=True),
    ]


async def growth(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure the claim cost by table contents, then the cost of an idle worker."""
    claims: list[Case] = []
    for contender in contenders:
        if contender.name == "tenuto":
            claims = await measure_claim_cost(contender, size)
    return [*claims, *await measure_idle(contenders, size)]


async def measure_claim_cost(tenuto: Contender, size: Size) -> list[Case]:
    """Return the median of a claim of 100 in milliseconds for each table state."""
    times = size.of(50, 10)
    cases: dict[TableState, Case] = {}
    async with contextlib.AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for scene in table_states(size):
            cases[scene] = Case(scene.name, "ms", next(iter(cases.values()), None))
            if scene.database not in urls:
                progress(f"growth, setting up: {scene.name}")
                urls[scene.database] = await stack.enter_async_context(_set_up(tenuto, scene))

        async def run(_: Contender) -> None:
            for scene, case in cases.items():
                case.add(
                    "tenuto",
                    percentile(await time_claims(tenuto, urls[scene.database], times, fresh=scene.fresh_worker), 0.5),
                )

        await alternate([tenuto], size.runs, run, "claims of 100")
    return list(cases.values())


@contextlib.asynccontextmanager
async def _set_up(tenuto: Contender, scene: TableState) -> AsyncIterator[str]:
    """Fill a database through the product itself."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(tenuto.prepared_database(scene.database))
        if scene.long_transaction:
            connection = await stack.enter_async_context(databases.connected(url))
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.execute("SELECT count(*) FROM pg_class")
        if scene.finished:
            await tenuto.enqueue_in_bulk(url, scene.finished)
            await tenuto.consume(url, scene.finished, workers=2)
        await tenuto.enqueue_in_bulk(url, scene.waiting)
        async with databases.connected(tenuto.server) as connection:
            await connection.execute(f'ALTER DATABASE "{scene.database}" SET synchronous_commit TO off')
        await databases.settle(url)
        yield url


async def time_claims(tenuto: Contender, url: str, times: int, *, fresh: bool = False) -> list[float]:
    """Return the milliseconds of that many claims of 100."""
    arguments = ["claims", "--url", url, "--times", str(times)]
    if fresh:
        arguments.append("--fresh")
    async with start_process(tenuto.python, MODULE, arguments, tenuto.name) as process:
        answer = await process.read_answer(120.0)
        await process.wait_for_exit(30.0)
        return [float(taken) for taken in answer["milliseconds"]]


async def measure_idle(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure CPU and statements per minute of an idle worker, and of all of Tenuto in one process. The CPU time of the
    server includes its background processes.
    """
    seconds, counting_seconds = size.seconds(60.0, 3.0), size.seconds(20.0, 3.0)
    worker_cases, up_cases = _idle_cases("idle worker"), _idle_cases("idle `tenuto up`")

    async def run(contender: Contender) -> None:
        _add_idle(worker_cases, contender, await contender.measure_idle(seconds, counting_seconds))
        if contender.name == "tenuto":
            _add_idle(up_cases, contender, await _measure_idle_up(contender, seconds, counting_seconds))

    chosen = contenders[:1] if size.quick else contenders
    await alternate(chosen, size.runs, run, f"an idle worker for {seconds:.0f} s")
    return [*worker_cases, *up_cases]


def _idle_cases(what: str) -> list[Case]:
    return [
        Case(f"{what}, CPU", "ms/min"),
        Case(f"{what}, CPU of the server", "ms/min"),
        Case(f"{what}, CPU with the server", "ms/min"),
        Case(f"{what}, statements", "per min"),
    ]


def _add_idle(cases: Sequence[Case], contender: Contender, cost: Idle) -> None:
    both = cost.cpu_milliseconds + cost.server_milliseconds
    for case, figure in zip(
        cases, (cost.cpu_milliseconds, cost.server_milliseconds, both, cost.statements), strict=True
    ):
        case.add(contender.name, figure)


async def _measure_idle_up(tenuto: Contender, seconds: float, counting_seconds: float) -> Idle:
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        async with tenuto.prepared_database() as url:
            arguments = ["up", "--app", APP, "--database", url, "--home", home, "--quiet"]
            async with start_process(tenuto.python, "tenuto", arguments, tenuto.name) as process:
                return await tenuto.measure_idle_process(process, seconds, counting_seconds)


def _short(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"
