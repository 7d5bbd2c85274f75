"""Many processes on one database: throughput by number of workers, queues and limits; concurrent enqueuers; PgBouncer;
idle workers; and the costs of a task from which `sizing` computes.

Each throughput has its bottleneck: what was fully used, or what the sessions of the database waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks import databases
from benchmarks.bottlenecks import Use, find_bottleneck
from benchmarks.contender import Contender, cpu_seconds
from benchmarks.contenders.stage_clock import StageClock
from benchmarks.measure import Case, percentile, progress
from benchmarks.pgbouncer_server import pgbouncer
from benchmarks.processes import ContenderFailed, ContenderProcess, start_process
from benchmarks.queue_benchmarks import Size
from tenuto import Tenuto

SCALE = {"tenuto": "benchmarks.contenders.tenuto_contender"}
AGENT = "benchmarks.contenders.tenuto_scale"
TEMPLATE, DATABASE = "bench_scale_empty", "bench_scale"
LIMIT = 100
"""Of each queue in the cases with limits. More than run at the same time, so that these show the cost of counting."""
START_SECONDS = 120.0
CASE_SECONDS = 120.0
JOBS = {"noop": "no-op", "sleep_5_ms": "5 ms sleep", "cpu_1_ms": "1 ms CPU"}
WAYS = {"tenuto": "tenuto", "in each statement": "NOTIFY in each statement", "none": "without NOTIFY"}


async def scale(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure all cases with the same processes."""
    cases: list[Case] = []
    for contender in contenders:
        for _ in range(size.runs):
            async with _Scale.start(contender, size) as running:
                _merge(cases, await running.measure())
    return cases


def _merge(cases: list[Case], found: Sequence[Case]) -> None:
    known = {case.name: case for case in cases}
    for case in found:
        if case.name not in known:
            cases.append(case)
            continue
        for name, figures in case.figures.items():
            known[case.name].figures.setdefault(name, []).extend(figures)


@dataclass(frozen=True)
class _Work:
    """Tasks of one job, and the processes and queues among which they are divided."""

    job: str
    queue_count: int
    is_limited: bool
    process_count: int
    count: int

    @property
    def queues(self) -> list[str]:
        return [f"queue-{number}" for number in range(self.queue_count)]

    @property
    def name(self) -> str:
        queues = "1 queue" if self.queue_count == 1 else f"{self.queue_count} queues"
        processes = "1 process" if self.process_count == 1 else f"{self.process_count} processes"
        limits = "with limits" if self.is_limited else "without limits"
        return f"{JOBS[self.job]}, {queues}, {limits}, {processes}"


class _Scale:
    def __init__(self, contender: Contender, size: Size, agents: Sequence[ContenderProcess]) -> None:
        self._server = contender.server
        self._size = size
        self._agents = agents
        self._cases: list[Case] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, contender: Contender, size: Size) -> AsyncIterator[_Scale]:
        """Start the processes and prepare an empty database, from which each case gets a copy."""
        count = size.of(20, 4)
        progress(f"scale: starting {count} processes")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(contender.prepared_database(TEMPLATE))
            agents = [
                await stack.enter_async_context(start_process(contender.python, AGENT, [str(number)], "scale agent"))
                for number in range(count)
            ]
            await asyncio.gather(*(agent.read_answer(START_SECONDS) for agent in agents))
            yield cls(contender, size, agents)

    async def measure(self) -> list[Case]:
        for job in JOBS:
            for queue_count in self._size.choose((1, 8), (1,)):
                for is_limited in (False, True):
                    for process_count in self._size.choose((1, 2, 4, 8), (1, 2)):
                        await self._drain(
                            _Work(job, queue_count, is_limited, process_count, self._count(job, process_count))
                        )
        await self._enqueue_concurrently()
        await self._use_pooler()
        await self._idle()
        await self._cost()
        return self._cases

    def _count(self, job: str, process_count: int) -> int:
        full = {"noop": 16_000, "sleep_5_ms": 8_000, "cpu_1_ms": 1_600}[job]
        return self._size.of(full if process_count > 1 else full // 2, full // 20)

    def _add(self, name: str, unit: str, figure: float, note: str = "") -> None:
        case = Case(name, unit, note=note)
        case.add("tenuto", figure)
        self._cases.append(case)

    # --- throughput ---------------------------------------------------------------------------------------------------

    async def _drain(self, work: _Work) -> None:
        async with self._fresh_database() as url:
            await self._command(
                [self._agents[0]], do="bulk", url=url, job=work.job, queues=work.queues, count=work.count
            )
            if work.is_limited:
                await _limit_queues(url, work.queues)
            await databases.settle(url)
            workers = self._agents[: work.process_count]
            working = self._working(workers, url, work.queues, 1, is_pooled=False)
            async with self._observed() as observed, working as answers:
                await _wait_until_drained(url)
            rate = await _completed_rate(url, work.count)
        starts = sum(answer["starts"] for answer in answers)
        if starts != work.count:
            raise ContenderFailed(f"{starts} starts of {work.count} tasks: {work.name}")
        use = Use(observed.seconds, sum(answer["cpu_seconds"] for answer in answers), observed.server_seconds)
        busiest = max(answer["cpu_seconds"] for answer in answers)
        self._add(work.name, "jobs/s", rate, find_bottleneck(use, busiest, observed.waits, observed.sample_count))

    @contextlib.asynccontextmanager
    async def _working(
        self, agents: Sequence[ContenderProcess], url: str, queues: Sequence[str], workers: int, is_pooled: bool
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Run workers in some processes; their answers are complete after the block."""
        answers: list[dict[str, Any]] = []
        await self._command(agents, do="work", url=url, queues=queues, workers=workers, is_pooled=is_pooled)
        yield answers
        for agent in agents:
            await agent.send("stop")
        answers += await asyncio.gather(*(agent.read_answer(CASE_SECONDS) for agent in agents))

    # --- enqueueing ---------------------------------------------------------------------------------------------------

    async def _enqueue_concurrently(self) -> None:
        """Enqueue from 200 callers over 20 processes, as Tenuto does and with other ways of notifying."""
        processes, callers = len(self._agents), self._size.of(10, 5)
        name = f"enqueue, {processes * callers} callers over {processes} processes"
        rate, tail = Case(name, "jobs/s"), Case(f"{name}, p99 of a call", "ms")
        flushes = Case(f"{name}, flushes of the disk", "per commit")
        self._cases += [rate, tail, flushes]
        for way, label in WAYS.items():
            async with self._fresh_database() as url, _listening(url):
                found = await self._enqueue(url, callers, 1, way, is_pooled=False)
            rate.add(label, found.rate)
            tail.add(label, percentile(found.milliseconds, 0.99))
            flushes.add(label, found.flushes_per_commit)
            if way == "tenuto":
                rate.note = found.bottleneck

    async def _use_pooler(self) -> None:
        """Enqueue from 500 connections through PgBouncer, and drain through it."""
        async with self._fresh_database() as url, pgbouncer(url) as pooler:
            if pooler is None:
                return
            connections = self._size.of(25, 5)
            found = await self._enqueue(pooler, connections, connections, "tenuto", is_pooled=True)
            name = f"enqueue, {len(self._agents) * connections} connections through PgBouncer"
            self._add(name, "jobs/s", found.rate, found.bottleneck)
            self._add(f"{name}, p99 of a call", "ms", percentile(found.milliseconds, 0.99))
            self._add(f"{name}, connections to the server", "count", found.connection_count)
            workers = self._agents[:2]
            async with self._working(workers, pooler, ["default"], 1, is_pooled=True):
                await _wait_until_drained(url)
            count = len(found.milliseconds) + 3 * len(self._agents) * connections
            self._add(
                "no-op, 1 queue, without limits, 2 processes through PgBouncer",
                "jobs/s",
                await _completed_rate(url, count),
            )

    async def _enqueue(self, url: str, callers: int, connections: int, way: str, *, is_pooled: bool) -> _Enqueued:
        await self._command(
            self._agents, do="enqueue", url=url, callers=callers, connections=connections,
            seconds=self._size.seconds(3.0, 0.5), way=way, is_pooled=is_pooled,
        )  # fmt: skip
        async with self._observed(counts=True) as observed:
            for agent in self._agents:
                await agent.send("go")
            answers = await asyncio.gather(*(agent.read_answer(CASE_SECONDS) for agent in self._agents))
        seconds = (max(one["ended"] for one in answers) - min(one["began"] for one in answers)) / 1e9
        calls = [taken for one in answers for taken in one["milliseconds"]]
        cpu = sum(one["cpu_seconds"] for one in answers)
        use = Use(seconds, cpu, observed.server_seconds)
        note = find_bottleneck(use, cpu / len(answers), observed.waits, observed.sample_count)
        flushes = observed.flush_count / max(1, observed.commit_count)
        return _Enqueued(len(calls) / seconds, calls, flushes, observed.connection_count, note)

    # --- idle workers and costs ---------------------------------------------------------------------------------------

    async def _idle(self) -> None:
        """Measure 64 idle workers, eight in each of eight processes."""
        processes, each = self._size.of(8, 2), self._size.of(8, 2)
        seconds, agents = self._size.seconds(20.0, 2.0), self._agents[:processes]
        name = f"{processes * each} idle workers"
        async with (
            self._fresh_database() as url,
            databases.without_autovacuum(self._server),
            self._working(agents, url, ["default"], each, is_pooled=False),
        ):
            await asyncio.sleep(self._size.seconds(5.0, 1.0))
            count = await databases.transaction_count(self._server, DATABASE)
            used = sum(cpu_seconds(agent.pid) for agent in agents)
            async with self._observed() as observed:
                await asyncio.sleep(seconds)
            count = await databases.transaction_count(self._server, DATABASE) - count
            used = sum(cpu_seconds(agent.pid) for agent in agents) - used
        self._add(f"{name}, statements", "per min", count * 60 / seconds)
        self._add(f"{name}, CPU of the workers", "ms/min", used * 60_000 / seconds)
        self._add(f"{name}, CPU of the database", "ms/min", observed.server_seconds * 60_000 / seconds)
        self._add(f"{name}, connections of each", "count", observed.connection_count / (processes * each))

    async def _cost(self) -> None:
        """Measure what a no-op task with 200 bytes of input costs, in a second round: free space is reused then."""
        count, agent = self._size.of(8_000, 500), self._agents[0]
        async with self._fresh_database() as url:
            for _ in range(2):
                await databases.settle(url)
                async with self._observed(counts=True) as enqueueing:
                    await self._command([agent], do="bulk", url=url, job="noop", queues=["default"], count=count)
                working = self._working([agent], url, ["default"], 1, is_pooled=False)
                async with self._observed(counts=True) as running, working as answers:
                    await _wait_until_drained(url)
            async with databases.connected(url) as connection:
                stored: int = await connection.fetchval(
                    "SELECT sum(pg_total_relation_size(relid))::bigint"
                    " FROM pg_partition_tree('tenuto.activities') WHERE isleaf"
                )
                single = await self._single_wal_bytes(url, connection)
                async with self._observed(counts=True) as alone:
                    alone_count = await self._enqueue_alone(url, self._size.seconds(3.0, 0.5))
        self._add("cost of a task, WAL to enqueue it alone", "bytes", single)
        cpu_ms = alone.server_seconds * 1000 / max(alone_count, 1)
        self._add("cost of a task, CPU of the database to enqueue it alone", "ms", cpu_ms)
        self._add("cost of a task, WAL to enqueue it in bulk", "bytes", enqueueing.wal_bytes / count)
        self._add("cost of a task, WAL to run it", "bytes", running.wal_bytes / count)
        self._add("cost of a task, disk for its record", "bytes", stored / (2 * count))
        self._add("cost of a task, CPU of the database to run it", "ms", running.server_seconds * 1000 / count)
        self._add("cost of a task, CPU of the worker", "ms", answers[0]["cpu_seconds"] * 1000 / count)
        self._add("connections of a busy worker", "count", running.connection_count)

    async def _single_wal_bytes(self, url: str, connection: asyncpg.Connection[Any]) -> float:
        await databases.settle(url)
        found = await self._enqueue_alone(url, 0.3)  # touches the pages once after the checkpoint
        before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        found = await self._enqueue_alone(url, self._size.seconds(3.0, 0.5))
        written: int = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", before)
        return float(written) / (found + 3)

    async def _enqueue_alone(self, url: str, seconds: float) -> int:
        agent = self._agents[0]
        await self._command(
            [agent], do="enqueue", url=url, callers=1, connections=1, seconds=seconds, way="tenuto", is_pooled=False
        )
        await agent.send("go")
        return len((await agent.read_answer(CASE_SECONDS))["milliseconds"])

    # --- database and processes ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _fresh_database(self) -> AsyncIterator[str]:
        async with databases.connected(self._server) as connection:
            await connection.execute(f'DROP DATABASE IF EXISTS "{DATABASE}" WITH (FORCE)')
            await connection.execute(f'CREATE DATABASE "{DATABASE}" TEMPLATE "{TEMPLATE}"')
        try:
            yield databases.url_of_database(self._server, DATABASE)
        finally:
            await databases.drop(self._server, DATABASE)

    @contextlib.asynccontextmanager
    async def _observed(self, *, counts: bool = False) -> AsyncIterator[_Observation]:
        """Observe the server during the block, from another database; with ``counts`` also WAL, flushes and commits."""
        async with databases.connected(self._server) as connection:
            observation = _Observation(connection)
            clock = StageClock(await connection.fetchval("SELECT pg_backend_pid()"))
            before = await observation.read_counters()
            sampling = asyncio.create_task(observation.sample())
            try:
                with clock.stage("case"):
                    yield observation
            finally:
                sampling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampling
            observation.seconds = clock.stages["case"]["seconds"]
            observation.server_seconds = clock.stages["case"]["server"]
            if not counts:
                return
            await asyncio.sleep(1.1)  # sessions report their counters at most once a second
            after = await observation.read_counters()
            observation.wal_bytes, observation.flush_count, observation.commit_count = (
                now - then for now, then in zip(after, before, strict=True)
            )

    async def _command(self, agents: Sequence[ContenderProcess], **command: Any) -> None:
        """Send a command to some processes and wait until each is ready or has done it."""
        for agent in agents:
            await agent.send(json.dumps(command))
        await asyncio.gather(*(agent.read_answer(START_SECONDS) for agent in agents))


@dataclass(frozen=True)
class _Enqueued:
    rate: float
    milliseconds: list[float]
    flushes_per_commit: float
    connection_count: int
    bottleneck: str


class _Observation:
    """What the sessions of the benchmarked database wait for, and counters of the server."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self.waits: Counter[str] = Counter()
        self.sample_count = 0
        self.connection_count = 0
        self.seconds = self.server_seconds = 0.0
        self.wal_bytes = self.flush_count = self.commit_count = 0

    async def sample(self) -> None:
        while True:
            async with self._lock:
                rows = await self._connection.fetch(
                    "SELECT state, wait_event_type, wait_event, query FROM pg_stat_activity"
                    " WHERE datname = $1 AND backend_type = 'client backend'", DATABASE,
                )  # fmt: skip
            self.sample_count += 1
            self.connection_count = max(self.connection_count, len(rows))
            self.waits.update(
                f"{row['wait_event_type']}:{row['wait_event']}"
                for row in rows
                if row["state"] == "active" and row["wait_event"] is not None
            )
            await asyncio.sleep(0.05)

    async def read_counters(self) -> tuple[int, int, int]:
        async with self._lock:
            row = await self._connection.fetchrow(
                "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal,"
                " (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal') AS flushes,"
                " (SELECT xact_commit FROM pg_stat_database WHERE datname = $1) AS commits", DATABASE,
            )  # fmt: skip
        assert row is not None
        return int(row["wal"]), int(row["flushes"]), int(row["commits"])


async def _wait_until_drained(url: str) -> None:
    async with databases.connected(url) as connection, asyncio.timeout(CASE_SECONDS):
        while await connection.fetchval("SELECT EXISTS (SELECT FROM tenuto.tasks)"):  # noqa: ASYNC110 — a peer polls, too
            await asyncio.sleep(0.02)


async def _completed_rate(url: str, count: int) -> float:
    """Return tasks per second from the first claim to the last end, by the clock of the database; all must be recorded
    as completed.
    """
    async with databases.connected(url) as connection:
        row = await connection.fetchrow(
            "SELECT count(*) AS count, extract(epoch FROM max(ended_at) - min(claimed_at))::float AS seconds"
            " FROM tenuto.activities WHERE status = 'completed'"
        )
    assert row is not None
    if row["count"] != count:
        raise ContenderFailed(f"{row['count']} of {count} tasks are recorded as completed")
    return float(count / row["seconds"])


async def _limit_queues(url: str, queues: Sequence[str]) -> None:
    async with Tenuto(url, home="/tmp/tenuto-never-made") as app:
        for queue in queues:
            await app.limit_queue(queue, LIMIT)


@contextlib.asynccontextmanager
async def _listening(url: str) -> AsyncIterator[None]:
    """Listen as a worker does: without listeners, notifications cost less."""
    async with databases.connected(url) as connection:
        await connection.add_listener("tenuto", lambda *_: None)
        yield
