"""Concurrent enqueues share statements and commits, and each caller gets its own result or error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto import Actor, Tenuto
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.enqueued_task import Enqueued
from tenuto.model.access.operation_context import IdempotencyKey, OperationContext
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.service_notifications import SQL as NOTIFICATIONS
from tenuto.store.work.task_creation import SQL, enqueue_tasks, insert_audited_tasks, insert_tasks
from tests.races.proxy import Proxy
from tests.support.model_values import make_new_task
from tests.support.waiting import eventually

NOTIFY = NOTIFICATIONS.notify_services
KEY = Actor.api_key("k-1", "billing")
GATE = 4711
"""Key of an advisory lock that only tests use."""


@pytest.fixture
async def proxied_app(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(proxy.url, home=tmp_path) as app:

        @app.job(name="bread.bake")
        async def bake(loaves: int) -> None: ...

        yield app


async def bake(app: Tenuto, loaves: int, unique_key: str | None = None) -> Enqueued[object]:
    return await app.enqueue(app.jobs.get_job("bread.bake").using(unique_key=unique_key), loaves=loaves)


async def stored_ids(db: Database) -> set[object]:
    return {row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.tasks")}


@pytest.mark.parametrize("is_audited", [False, True], ids=["by the program", "by an API key"])
async def test_concurrent_enqueues_are_written_in_two_transactions(
    proxied_app: Tenuto, db: Database, is_audited: bool
) -> None:
    app = proxied_app.acting_as(KEY) if is_audited else proxied_app
    enqueued = await asyncio.gather(*(bake(app, number) for number in range(50)))
    assert await stored_ids(db) == {each.id for each in enqueued}
    transactions = await db.fetch_value("SELECT count(DISTINCT xmin::text) FROM tenuto.tasks")
    assert transactions == 2, "the first task at once, the others together"
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit") == (50 if is_audited else 0)


async def test_task_that_the_database_rejects_does_not_fail_those_written_with_it(db: Database) -> None:
    tasks = [make_new_task() for _ in range(5)]
    tasks[2].input = "not JSON"
    made = await asyncio.gather(*(db.write_coalesced(insert_tasks, task) for task in tasks), return_exceptions=True)
    assert [created is True for created in made] == [True, True, False, True, True]
    assert isinstance(made[2], Exception)
    assert await stored_ids(db) == {task.id for task in tasks if task is not tasks[2]}


async def test_input_that_a_job_rejects_does_not_fail_concurrent_callers(proxied_app: Tenuto, db: Database) -> None:
    job = proxied_app.jobs.get_job("bread.bake")
    made = await asyncio.gather(
        *(proxied_app.enqueue(job, loaves="none" if number == 3 else number) for number in range(6)),
        return_exceptions=True,
    )
    assert [type(each) for each in made] == [Enqueued] * 3 + [Invalid] + [Enqueued] * 2
    assert len(await stored_ids(db)) == 5


async def test_task_with_a_key_that_another_transaction_holds_delays_no_other_caller(
    proxied_app: Tenuto, db: Database, other: asyncpg.Connection
) -> None:
    async with other.transaction():
        await other.fetchval("SELECT tenuto.enqueue('bread.bake', '{\"loaves\": 1}'::jsonb, unique_key => 'the oven')")
        keyed = asyncio.create_task(bake(proxied_app, 1, unique_key="the oven"))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        async with asyncio.timeout(5):
            await asyncio.gather(*(bake(proxied_app, number) for number in range(5)))
    assert not (await keyed).created


@contextlib.asynccontextmanager
async def received_notifications(db: Database) -> AsyncIterator[list[str]]:
    received: list[str] = []
    listener = Listener(db, received.append)
    listener.start()
    try:
        await eventually(lambda: RECONNECTED in received)
        yield received
    finally:
        await listener.stop()


async def hold_notifications(other: asyncpg.Connection) -> None:
    """Take the lock of the enqueueing transaction that notifies the workers itself."""
    await other.fetchval("SELECT pg_advisory_xact_lock(hashtext('tenuto enqueue notification'))")


@pytest.mark.parametrize("is_audited", [False, True], ids=["by the program", "by an API key"])
async def test_enqueue_beside_another_notifying_transaction_notifies_after_its_commit(
    proxied_app: Tenuto, db: Database, other: asyncpg.Connection, is_audited: bool
) -> None:
    app = proxied_app.acting_as(KEY) if is_audited else proxied_app
    async with received_notifications(db) as received:
        for count in (1, 20):
            async with other.transaction():
                await hold_notifications(other)
                received.clear()
                await asyncio.gather(*(bake(app, number) for number in range(count)))
                await eventually(lambda: "queued default 0" in received)
        assert len(received) < 20, "concurrent callers share notifications"


async def test_closing_an_app_sends_its_notifications_first(
    proxied_app: Tenuto, db: Database, proxy: Proxy, other: asyncpg.Connection
) -> None:
    proxy.delays[NOTIFY] = 0.3
    job = proxied_app.jobs.get_job("bread.bake")
    async with received_notifications(db) as received, other.transaction():
        await hold_notifications(other)
        await proxied_app.enqueue(job.using(queue="first"), loaves=1)
        await eventually(lambda: "queued first 0" in received)  # its reply is delayed, so the next one waits
        await proxied_app.enqueue(job.using(queue="second"), loaves=1)
        await proxied_app.close()
        await eventually(lambda: "queued second 0" in received)


async def test_tasks_of_a_transaction_are_notified_beside_another_notifying_transaction(
    proxied_app: Tenuto, db: Database, proxy: Proxy, other: asyncpg.Connection
) -> None:
    database = await proxied_app.open()
    entry = AuditEntry(OperationContext(KEY, "one_shot.create", "here"), target="bread.bake")
    async with received_notifications(db) as received, other.transaction():
        await hold_notifications(other)
        await enqueue_tasks(database, [make_new_task(queue="plain")])
        proxy.lose_request(SQL.enqueue_audited_tasks)
        await insert_audited_tasks(database, [(make_new_task(queue="audited"), entry)])
        await eventually(lambda: {"queued plain 0", "queued audited 0"} <= set(received))


@contextlib.asynccontextmanager
async def paused_by_refused_locks(db: Database, url: str) -> AsyncIterator[Database]:
    """A database whose statements pause in the middle, when an advisory lock is refused, until the gate is open."""
    await db.fetch_all("CREATE SCHEMA pausing")
    await db.fetch_all(
        f"""
        CREATE FUNCTION pausing.pg_try_advisory_xact_lock(key integer) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            IF pg_catalog.pg_try_advisory_xact_lock(key) THEN
                RETURN true;
            END IF;
            PERFORM pg_catalog.pg_advisory_xact_lock_shared({GATE});
            RETURN false;
        END $$
        """
    )
    try:
        separator = "&" if "?" in url else "?"
        paused = await Database.open(f"{url}{separator}search_path=pausing,pg_catalog")
        yield paused
        await paused.close()
    finally:
        await db.fetch_all("DROP SCHEMA pausing CASCADE")


@pytest.mark.parametrize("is_audited", [False, True], ids=["by the program", "by an API key"])
async def test_statement_decides_once_for_all_its_queues_whether_it_notifies(
    db: Database, url: str, other: asyncpg.Connection, is_audited: bool
) -> None:
    """The other notifying transaction ends while the statement is asking for its lock, queue by queue."""
    tasks = [make_new_task(queue=f"queue-{number}") for number in range(4)]
    async with paused_by_refused_locks(db, url) as paused:
        async with other.transaction():
            await other.fetchval("SELECT pg_advisory_xact_lock($1)", GATE)
            await hold_notifications(other)
            entries = [AuditEntry(OperationContext(KEY, "task.create", "here")) for _ in tasks]
            writing: asyncio.Task[Any] = asyncio.create_task(
                insert_audited_tasks(paused, list(zip(tasks, entries, strict=True)))
                if is_audited
                else insert_tasks(paused, tasks)
            )
            await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        assert await writing == [True] * 4
    assert [task.queue for task in tasks if task.needs_notification] == [task.queue for task in tasks]


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
@pytest.mark.parametrize("is_audited", [False, True], ids=["by the program", "by an API key"])
async def test_enqueues_that_lost_their_shared_reply_create_each_task_once(
    proxied_app: Tenuto, db: Database, proxy: Proxy, lose: str, is_audited: bool
) -> None:
    app = proxied_app.acting_as(KEY) if is_audited else proxied_app
    await bake(app, 0)
    getattr(proxy, lose)(SQL.enqueue_audited_tasks if is_audited else SQL.enqueue_tasks)
    enqueued = await asyncio.gather(*(bake(app, number) for number in range(20)))
    assert proxy.lost == 1
    assert all(each.created for each in enqueued)
    assert len(await stored_ids(db)) == 21
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit") == (21 if is_audited else 0)


async def test_cancelled_caller_neither_loses_nor_doubles_the_tasks_of_others(
    proxied_app: Tenuto, db: Database, proxy: Proxy
) -> None:
    await bake(proxied_app, 0)
    proxy.delays[SQL.enqueue_tasks] = 0.3
    callers = [asyncio.create_task(bake(proxied_app, number)) for number in range(20)]
    await eventually(lambda: db.fetch_value("SELECT count(*) > 2 FROM tenuto.tasks"))
    for caller in callers[::3]:
        caller.cancel()
    made = await asyncio.gather(*callers, return_exceptions=True)
    ids = {each.id for each in made if isinstance(each, Enqueued)}
    assert len(ids) >= 13
    assert ids <= await stored_ids(db)
    assert len(await stored_ids(db)) <= 21


async def test_concurrent_requests_with_one_idempotency_key_create_one_task(proxied_app: Tenuto, db: Database) -> None:
    async def request() -> object:
        key = IdempotencyKey("api_key:k-1", "order-7", b"print", new_id())
        return await bake(proxied_app.acting_as(KEY, idempotency_key=key), 1)

    made = await asyncio.gather(*(request() for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Conflict"] * 4 + ["Enqueued"]
    assert len(await stored_ids(db)) == 1
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit") == 1


async def test_enqueue_on_another_event_loop_is_written_with_others(proxied_app: Tenuto, db: Database) -> None:
    def enqueue_elsewhere() -> object:
        return asyncio.run(bake(proxied_app, 1))

    made = await asyncio.gather(
        *(asyncio.to_thread(enqueue_elsewhere) for _ in range(3)), *(bake(proxied_app, number) for number in range(3))
    )
    assert len(made) == len(await stored_ids(db)) == 6


async def test_callers_whose_tasks_were_created_after_a_lost_reply_see_no_error_of_others(
    proxied_app: Tenuto, db: Database, proxy: Proxy
) -> None:
    """After the lost request the tasks are created one by one, and the database rejects one of them."""
    app = proxied_app.acting_as(KEY)
    await bake(app, 0)
    database = await proxied_app.open()
    entries = [AuditEntry(OperationContext(KEY, "task.create", "here")) for _ in range(4)]
    tasks = [make_new_task() for _ in entries]
    tasks[2].input = "not JSON"
    proxy.lose_request(SQL.enqueue_audited_tasks)
    made = await insert_audited_tasks(database, list(zip(tasks, entries, strict=True)))
    assert [created is True for created in made] == [True, True, False, True]
    assert isinstance(made[2], Exception)
    assert [entry.is_written for entry in entries] == [True, True, False, True]
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 4
