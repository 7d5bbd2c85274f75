"""The completer (W6): outcomes that cannot be stored whole are stored without details, and outcomes are kept until the
database answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Context, RetryPolicy, Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation
from tenuto.store.work import tasks as store
from tenuto.worker.completer import MAX_BATCH_CHARACTERS, CompletedAttempt, Completer
from tests.support.model_values import make_new_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import LEASE, Register, completed_outcome
from tests.support.waiting import eventually


def unstorable(ctx: Context) -> None:
    """Set a progress that passes every check of the worker, but that the database cannot store."""
    ctx.set_progress_json("this is not JSON")


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_completer_stores_an_unstorable_outcome_without_details(
    how: str, app: Tenuto, worker: WorkerFactory
) -> None:
    @app.job(max_attempts=1)
    async def bake(ctx: Context) -> int:
        print("words")
        unstorable(ctx)
        if how == "raises":
            raise ValueError("no flour")
        return 7

    async with worker():
        record = await app.wait(await app.enqueue(bake), timeout=10)
    assert (record.state, record.final) == ("completed" if how == "returns" else "failed", True)
    assert record.error["type"] == "tenuto.NotStored"
    assert "could not be stored" in record.error["message"]
    output: Any = record.output  # typed as the result of a success
    assert (output, record.log, record.progress) == (None, None, None)
    assert record.ended_at is not None


async def test_completer_retries_a_task_whose_outcome_is_stored_without_details(
    app: Tenuto, worker: WorkerFactory
) -> None:
    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0.01))
    async def bake(ctx: Context) -> int:
        if ctx.attempt == 1:
            unstorable(ctx)
            raise ValueError
        return 7

    async with worker():
        record = await app.wait(task := await app.enqueue(bake), timeout=10)
    assert (record.output, record.attempt, record.failure_count) == (7, 2, 1)
    assert (await app.attempts(task.id))[0].error["type"] == "tenuto.NotStored"


async def test_completer_stores_other_outcomes_of_the_same_batch_whole(app: Tenuto, worker: WorkerFactory) -> None:
    together = threading.Barrier(6)

    @app.job
    def bake(n: int, ctx: Context) -> int:
        if n == 3:
            unstorable(ctx)
        together.wait(10)
        return n

    async with worker():
        tasks = [await app.enqueue(bake, n) for n in range(6)]
        records = [await app.wait(task, timeout=10) for task in tasks]
    assert [record.output for record in records] == [0, 1, 2, None, 4, 5]
    assert {record.state for record in records} == {"completed"}


@asynccontextmanager
async def closing_down(connection: asyncpg.Connection) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await connection.close()


async def test_completer_keeps_outcomes_until_the_database_answers(
    app: Tenuto, worker: WorkerFactory, url: str, server: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.job
    def bake() -> int:
        begun.set()
        go_on.wait(30)
        return 7

    connection = await asyncpg.connect(server)
    name = str(await (await app.open()).fetch_value("SELECT current_database()"))
    async with closing_down(connection), worker() as one:
        task = await app.enqueue(bake)
        await eventually(begun.is_set)
        await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
            go_on.set()
            await eventually(lambda: bool(one._completer._task) and one._slots.running_count == 0)
            assert one.finished_count == 0
        finally:
            await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        record = await app.wait(task, timeout=20)
    assert (record.state, record.output, record.attempt) == ("completed", 7, 1)


async def test_completer_rejects_an_outcome_after_the_lease_was_lost(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.job
    def bake() -> int:
        begun.set()
        go_on.wait(30)
        return 7

    async with worker(lease_seconds=3600) as one:  # no renewal detects the lost lease before the end
        task = await app.enqueue(bake)
        await eventually(begun.is_set)
        await sql("UPDATE tenuto.tasks SET fence = fence + 1")  # as if another worker had claimed it
        go_on.set()
        await eventually(lambda: one.finished_count == 1)
        assert one._completer.stale_count == 1
        assert (await app.activity(task.id)).state == "running"
        assert await app.activities() == []
        await sql("DELETE FROM tenuto.tasks")


async def test_stopped_worker_has_written_every_outcome(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake(n: int) -> int:
        return n

    await app.enqueue_many(bake, range(200))
    async with worker(slots=200, grace_seconds=10) as one:
        await eventually(lambda: one._slots.running_count > 0 or one.finished_count > 0)
    open_tasks = await app.tasks(limit=500)
    done = await app.activities(limit=500)
    assert len(open_tasks) + len(done) == 200
    assert {task.state for task in open_tasks} <= {"queued"}
    assert {record.state for record in done} <= {"completed"}
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no background task is left"


def complete_with(completer: Completer, written: list[Attempt]) -> Callable[..., Awaitable[None]]:
    """Return the stages of a worker after the outcome; the attempts that it would release are added to ``written``."""

    async def complete(results: Sequence[CompletedAttempt]) -> None:
        await completer.write(completer.settle(results))
        written.extend(attempt for attempt, _ in results)

    return complete


async def attempts_of(db: Database, worker_id: UUID, count: int) -> list[Attempt]:
    await task_creation.enqueue_bulk(db, make_new_task(), ["{}"] * count)
    tasks = await store.claim_tasks(db, worker_id, ["default"], count, LEASE)
    assert len(tasks) == count
    return [
        Attempt(task, Context(task), lease_expires_at=monotonic_seconds() + 30, claimed_at=monotonic_seconds())
        for task in tasks
    ]


async def test_completer_limits_the_size_of_a_batch(db: Database, register_worker: Register) -> None:
    written: list[Attempt] = []
    completer = Completer(db, db.clock)
    for attempt in await attempts_of(db, await register_worker(), 24):
        completer.put([(attempt, replace(completed_outcome(), output=f'"{"x" * 1_000_000}"'))])
    completer.start(complete_with(completer, written))
    await completer.stop()
    assert len(written) == 24
    batches = await db.fetch_all("SELECT sum(octet_length(output::text)) FROM tenuto.activities GROUP BY xmin::text")
    assert len(batches) > 1
    assert max(row["sum"] for row in batches) <= MAX_BATCH_CHARACTERS + 1_100_000, (
        "the last outcome of a batch may exceed the limit"
    )


async def test_completer_splits_a_batch_that_takes_too_long(url: str, register_worker: Register) -> None:
    db = await Database.open(url, max_connections=1)
    written: list[Attempt] = []
    try:
        attempts = await attempts_of(db, await register_worker(), 16)
        await db.fetch_all(
            "CREATE FUNCTION tenuto.be_slow() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END'"
        )
        await db.fetch_all(
            "CREATE TRIGGER slow BEFORE INSERT ON tenuto.activities FOR EACH ROW EXECUTE FUNCTION tenuto.be_slow()"
        )
        await db.fetch_all("SET statement_timeout = '500ms'")
        completer = Completer(db, db.clock)
        for attempt in attempts:
            completer.put([(attempt, completed_outcome())])
        completer.start(complete_with(completer, written))
        await asyncio.wait_for(completer.stop(), 20)
        await db.fetch_all("SET statement_timeout = '30s'")
        assert len(written) == 16
        assert completer.stale_count == 0
        assert await db.fetch_value("SELECT count(*) FROM tenuto.activities WHERE status = 'completed'") == 16
        assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 0
    finally:
        await db.fetch_all("DROP FUNCTION IF EXISTS tenuto.be_slow CASCADE")
        await db.close()
