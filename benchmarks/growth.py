"""Growth: does a claim stay cheap when tables do not stay small, and what does a worker with nothing to do cost?

Tenuto is compared with itself here: the cost of a claim of 100 in a small database over its cost in each other one. All
databases stand side by side and are measured in turn, so that the machine's drift touches them alike. Commits of the
timed session do not wait for the disk: its constant share would hide what grows.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from benchmarks import databases
from benchmarks.contest import Contender
from benchmarks.figures import Size
from benchmarks.measure import Case, alternate, percentile, progress
from benchmarks.processes import started

MODULE = "benchmarks.contenders.tenuto_claims"
APP = "benchmarks.contenders.tenuto_app:app"
BASELINE = "1k waiting"


@dataclass(frozen=True)
class Scene:
    """A database as it looks when the claims are timed."""

    name: str
    waiting: int
    finished: int = 0
    long_transaction: bool = False
    """A transaction was open before anything was consumed and still is, so nothing dead can be cleared away."""
    fresh_worker: bool = False
    """Each claim is that of a worker that has just started and does not know where the last one ended."""

    @property
    def database(self) -> str:
        """Scenes that differ only in who claims share a database."""
        return f"bench_growth_{self.waiting}_{self.finished}_{'held' if self.long_transaction else 'free'}"


def scenes(size: Size) -> list[Scene]:
    small, middle, large = 1_000, size.of(100_000, 10_000), size.of(1_000_000, 20_000)
    consumed = size.of(100_000, 5_000)
    snapshot = f"1k waiting, old snapshot, {_short(consumed)} consumed"
    return [
        Scene(BASELINE, small),
        Scene(f"{_short(middle)} waiting", middle),
        Scene(f"{_short(large)} waiting", large),
        Scene(f"1k waiting, {_short(large)} finished", small, finished=large),
        Scene(snapshot, small, consumed, long_transaction=True),
        Scene(f"{snapshot}, fresh worker", small, consumed, long_transaction=True, fresh_worker=True),
    ]


async def growth(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Claim cost by what the tables hold, then the cost of an idle worker."""
    claims: list[Case] = []
    for contender in contenders:
        if contender.name == "tenuto":
            claims = await claim_cost(contender, size)
    return [*claims, *await idle(contenders, size)]


async def claim_cost(tenuto: Contender, size: Size) -> list[Case]:
    """The median of a claim of 100, in milliseconds, in each scene."""
    times = size.of(50, 10)
    cases: dict[Scene, Case] = {}
    async with contextlib.AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for scene in scenes(size):
            cases[scene] = Case(scene.name, "ms", next(iter(cases.values()), None))
            if scene.database not in urls:
                progress(f"growth, setting up: {scene.name}")
                urls[scene.database] = await stack.enter_async_context(_set(tenuto, scene))

        async def run(_: Contender) -> None:
            for scene, case in cases.items():
                case.add("tenuto", percentile(await _claims(tenuto, urls[scene.database], scene, times), 0.5))

        await alternate([tenuto], size.runs, run, "claims of 100")
    return list(cases.values())


@contextlib.asynccontextmanager
async def _set(tenuto: Contender, scene: Scene) -> AsyncIterator[str]:
    """Fill a database as the scene says, through the product itself."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(tenuto.prepared(scene.database))
        if scene.long_transaction:
            connection = await stack.enter_async_context(databases.connected(url))
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.execute("SELECT count(*) FROM pg_class")
        if scene.finished:
            await tenuto.bulk(url, scene.finished)
            await tenuto.consume(url, scene.finished, workers=2)
        await tenuto.bulk(url, scene.waiting)
        async with databases.connected(tenuto.server) as connection:
            await connection.execute(f'ALTER DATABASE "{scene.database}" SET synchronous_commit TO off')
        await databases.settle(url)
        yield url


async def _claims(tenuto: Contender, url: str, scene: Scene, times: int) -> list[float]:
    arguments = ["claims", "--url", url, "--times", str(times)]
    if scene.fresh_worker:
        arguments.append("--fresh")
    async with started(tenuto.python, MODULE, arguments, tenuto.name) as process:
        answer = await process.answer(120.0)
        await process.end(30.0)
        return [float(taken) for taken in answer["milliseconds"]]


async def idle(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """With nothing to do: CPU and statements per minute of a worker, and of all of Tenuto in one process."""
    seconds = size.seconds(20.0, 3.0)
    cpu, statements = Case("idle worker, CPU", "ms/min"), Case("idle worker, statements", "per min")
    all_cpu, all_statements = Case("idle `tenuto up`, CPU", "ms/min"), Case("idle `tenuto up`, statements", "per min")

    async def run(contender: Contender) -> None:
        used, sent = await contender.idle(seconds)
        cpu.add(contender.name, used)
        statements.add(contender.name, sent)
        if contender.name == "tenuto":
            used, sent = await _idle_up(contender, seconds)
            all_cpu.add(contender.name, used)
            all_statements.add(contender.name, sent)

    chosen = contenders[:1] if size.quick else contenders
    await alternate(chosen, size.runs, run, f"an idle worker for {seconds:.0f} s")
    return [cpu, statements, all_cpu, all_statements]


async def _idle_up(tenuto: Contender, seconds: float) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        async with databases.without_autovacuum(tenuto.server), tenuto.prepared() as url:
            arguments = ["up", "--app", APP, "--database", url, "--home", home, "--quiet"]
            async with started(tenuto.python, "tenuto", arguments, tenuto.name) as process:
                return await tenuto.cost_of_idling(process, seconds)


def _short(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"
