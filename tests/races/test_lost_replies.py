"""The database committed, but the reply is lost: repeating the request doubles nothing and loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.lifecycle import task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.store import partitions, service_notifications
from tenuto.store.work import task_creation, workers
from tenuto.store.work import tasks as store
from tests.races import jobs
from tests.races.invariants import assert_invariants_hold
from tests.races.proxy import Proxy
from tests.races.task_actions import ACTOR, LEASE, claim, complete, enqueue, fail, new_task

SQL = store.SQL
RegisterWorker = Callable[..., Awaitable[UUID]]


@pytest.fixture
async def proxied_db(proxy: Proxy) -> AsyncIterator[Database]:
    """The database behind the proxy."""
    database = await Database.open(proxy.url, generic_plans=True)
    yield database
    await database.close()


@pytest.fixture
async def proxied_app(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(proxy.url, home=tmp_path) as app:
        yield app


async def count_rows(database: Database, table: str = "tasks", where: str = "true") -> int:
    found: int = await database.fetch_value(f"SELECT count(*) FROM tenuto.{table} WHERE {where}")
    return found


# --- enqueue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
async def test_task_enqueued_again_after_a_lost_reply_exists_once(
    proxied_app: Tenuto, db: Database, proxy: Proxy, lose: str
) -> None:
    getattr(proxy, lose)(task_creation.SQL.enqueue_task)

    enqueued = await proxied_app.enqueue(jobs.touch, 1)

    assert proxy.lost == 1
    assert enqueued.created
    assert await count_rows(db) == 1
    assert await count_rows(db, where=f"id = '{enqueued.id}'") == 1


async def test_enqueue_with_key_reports_creation_despite_a_lost_reply(
    proxied_app: Tenuto, db: Database, proxy: Proxy
) -> None:
    proxy.lose_reply(task_creation.SQL.enqueue_task)

    enqueued = await proxied_app.enqueue(jobs.touch.using(unique_key="only one"), 1)

    assert enqueued.created
    assert (await proxied_app.enqueue(jobs.touch.using(unique_key="only one"), 1)).id == enqueued.id
    assert await count_rows(db) == 1


@pytest.mark.parametrize("key", [None, "a key"])
async def test_task_that_ended_before_its_lost_reply_was_noticed_is_not_created_again(
    proxied_app: Tenuto, db: Database, proxy: Proxy, register_worker: RegisterWorker, key: str | None
) -> None:
    worker_id = await register_worker()

    async def finish_it() -> None:
        (task,) = await claim(db, worker_id)
        assert await finish(db, [complete(db, task)]) == {task.id}

    proxy.lose_reply(task_creation.SQL.enqueue_task)
    proxy.after_loss = finish_it
    enqueued = await proxied_app.enqueue(jobs.touch.using(unique_key=key), 1)

    assert enqueued.created
    assert await count_rows(db) == 0
    assert (await proxied_app.wait(enqueued.id, timeout=1)).state == "completed"


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
@pytest.mark.parametrize("statement", ["COPY", service_notifications.SQL.notify_services], ids=["copy", "wake"])
async def test_many_tasks_enqueued_over_a_failing_connection_exist_once_each(
    proxied_app: Tenuto, db: Database, proxy: Proxy, statement: str, lose: str
) -> None:
    getattr(proxy, lose)(statement)

    created = await proxied_app.enqueue_many(jobs.touch, ({"number": number} for number in range(200)))

    assert proxy.lost == 1
    assert created == 200
    assert await count_rows(db) == 200
    assert await db.fetch_value("SELECT count(DISTINCT input) FROM tenuto.tasks") == 200


async def test_stored_tasks_are_reported_even_if_the_notification_fails(
    proxied_app: Tenuto, db: Database, proxy: Proxy
) -> None:
    proxy.lose_request(service_notifications.SQL.notify_services, times=100)

    assert await proxied_app.enqueue_many(jobs.touch, ({"number": number} for number in range(200))) == 200

    assert proxy.lost >= 1
    assert await count_rows(db) == 200


@pytest.mark.parametrize("done", [10, 200])
async def test_many_tasks_that_ended_before_the_lost_reply_was_noticed_are_not_created_again(
    proxied_app: Tenuto, db: Database, proxy: Proxy, register_worker: RegisterWorker, done: int
) -> None:
    worker_id = await register_worker()

    async def finish_some() -> None:
        claimed = await claim(db, worker_id, count=done)
        assert len(await finish(db, [complete(db, task) for task in claimed])) == done

    proxy.lose_reply("COPY")
    proxy.after_loss = finish_some
    created = await proxied_app.enqueue_many(jobs.touch, ({"number": number} for number in range(200)))

    assert created == 200
    assert await count_rows(db) == 200 - done
    assert await count_rows(db, "activities") == done


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
@pytest.mark.parametrize("number", [20, 200])
async def test_store_enqueues_tasks_once_over_a_failing_connection(
    db: Database, proxied_db: Database, proxy: Proxy, number: int, lose: str
) -> None:
    tasks = [new_task(proxied_db) for _ in range(number)]
    getattr(proxy, lose)(task_creation.SQL.enqueue_tasks)

    await task_creation.enqueue_tasks(proxied_db, tasks)

    assert proxy.lost == 1
    assert {row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.tasks")} == {task.id for task in tasks}


async def test_store_enqueues_the_same_tasks_once(db: Database) -> None:
    tasks = await enqueue(db, 60)

    assert await task_creation.enqueue_tasks(db, tasks) == set()
    assert await task_creation.enqueue_tasks(db, tasks[:5]) == set()
    assert await task_creation.enqueue_tasks(db, tasks[:1]) == set()
    assert await count_rows(db) == 60


# --- claim, renew ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limited", [False, True])
async def test_tasks_of_a_lost_claim_return_when_their_lease_expires(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker, limited: bool
) -> None:
    worker_id = await register_worker()
    limit = {"limit_key": "a key", "limit_max": 5} if limited else {}
    await enqueue(db, 10, **limit)
    proxy.lose_reply("COMMIT", within=SQL.claim_limited_tasks) if limited else proxy.lose_reply(SQL.claim_tasks)

    with_lease = (worker_id, ["default"], 5, LEASE)
    take = store.claim_limited_tasks if limited else store.claim_tasks
    with pytest.raises(Unavailable):  # sent once: a lease counts from the moment of the request
        await take(proxied_db, *with_lease)
    claimed = await take(proxied_db, *with_lease)
    # The tasks of the lost claim are held, unknown to the worker: no other worker gets them, and limits count them.
    assert proxy.lost == 1
    assert await count_rows(db, where="state = 'running'") == (5 if limited else 10)
    assert len(claimed) == (0 if limited else 5)

    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 second'"
        " WHERE state = 'running' AND NOT id = ANY ($1)",
        [task.id for task in claimed],
    )
    assert await recover_lost_tasks(db, db.clock.now()) == 5
    repeated = await take(db, *with_lease)
    assert len(repeated) == 5
    await finish(db, [complete(db, task) for task in [*claimed, *repeated]])
    await assert_invariants_hold(db.url, 10)


async def test_renewal_sent_again_after_a_lost_reply_renews(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await enqueue(db)
    (task,) = await claim(db, worker_id)
    proxy.lose_reply(SQL.renew_leases)

    renewed = await store.renew_leases(proxied_db, worker_id, [(task.id, task.fence, '{"done": 1}')], LEASE)

    assert proxy.lost == 1
    assert renewed == {task.id}


# --- finish ----------------------------------------------------------------------------------------------------------


async def test_finish_repeated_after_a_lost_reply_is_written_once(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await enqueue(db, 3)
    claimed = await claim(db, worker_id, 3)
    proxy.lose_reply(SQL.finish_tasks)

    await finish(proxied_db, [complete(proxied_db, task) for task in claimed])

    assert proxy.lost == 1
    assert await count_rows(db) == 0
    assert await count_rows(db, "activities", "final") == 3
    await assert_invariants_hold(db.url, 3)


async def test_retry_repeated_after_a_lost_reply_is_written_once(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await enqueue(db, 4)
    claimed = await claim(db, worker_id, 4)
    proxy.lose_reply("COMMIT", within=SQL.retry_tasks)

    mixed = [fail(proxied_db, task) for task in claimed[:2]] + [complete(proxied_db, task) for task in claimed[2:]]
    await finish(proxied_db, mixed)

    assert proxy.lost == 1
    assert await count_rows(db, where="attempt = 2 AND failures = 1") == 2
    assert await count_rows(db) == 2
    assert await count_rows(db, "activities") == 4
    await assert_invariants_hold(db.url, 4)


async def test_retry_repeated_after_a_lost_reply_does_not_touch_the_next_holder(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    first, second = await register_worker(), await register_worker()
    await enqueue(db)
    (task,) = await claim(db, first)

    async def claim_again() -> None:
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        assert len(await claim(db, second)) == 1

    proxy.lose_reply("COMMIT", within=SQL.retry_tasks)
    proxy.after_loss = claim_again
    await finish(proxied_db, [fail(proxied_db, task)])

    held = await db.fetch_one("SELECT worker_id, attempt, failures, fence FROM tenuto.tasks")
    assert held is not None
    assert tuple(held) == (second, 2, 1, 2)
    await assert_invariants_hold(db.url, 1)


async def test_return_to_queue_repeated_after_a_lost_reply_happens_once(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    first, second = await register_worker(), await register_worker()
    await enqueue(db)
    claimed = await claim(db, first)

    async def claim_again() -> None:
        assert len(await claim(db, second)) == 1

    proxy.lose_reply(SQL.return_tasks_to_queue)
    proxy.after_loss = claim_again
    await store.return_tasks_to_queue(proxied_db, first, claimed)

    assert proxy.lost == 1
    assert await count_rows(db, where=f"worker_id = '{second}' AND attempt = 1") == 1


async def test_cancellation_repeated_after_a_lost_reply_happens_once(
    db: Database, proxied_db: Database, proxy: Proxy
) -> None:
    (task,) = await enqueue(db)
    proxy.lose_reply(SQL.finish_tasks)

    assert await task_cancellation.cancel_task(proxied_db, task.id, ACTOR) == "cancelled"

    assert proxy.lost == 1
    assert await count_rows(db, "activities", "final AND status = 'cancelled'") == 1
    await assert_invariants_hold(db.url, 1)


async def test_recovery_with_lost_reply_counts_a_loss_once(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    await enqueue(db, 3)
    await claim(db, worker_id, 3)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 second'")
    proxy.lose_reply("COMMIT", within=SQL.lock_expired_tasks)

    await recover_lost_tasks(proxied_db, proxied_db.clock.now())

    assert proxy.lost == 1
    assert await count_rows(db, where="losses = 1 AND attempt = 2") == 3
    assert await count_rows(db, "activities", "reason = 'lost'") == 3
    assert await db.fetch_value("SELECT count FROM tenuto.repairs WHERE net = 'lease_expired'") == 3


# --- other ----------------------------------------------------------------------------------------------------------


async def test_worker_registration_repeated_after_a_lost_reply_exists_once(
    db: Database, proxied_db: Database, proxy: Proxy
) -> None:
    registration = workers.ProcessRegistration(new_id(), "me", "worker", "here", "boot", 1, "0", ["default"], 10)
    proxy.lose_reply("COMMIT", within=workers.SQL.register_process)

    await workers.register_process(proxied_db, registration, holds_name_lock=True, reserved_for=LEASE)

    assert proxy.lost == 1
    assert await count_rows(db, "workers", "ended_at IS NULL") == 1
    assert await count_rows(db, "workers") == 1


async def test_migration_with_lost_reply_is_applied_once(empty_url: str) -> None:
    async with Proxy(empty_url) as proxy:
        database = await Database.open(proxy.url)
        proxy.lose_reply("COMMIT")
        await migrator.migrate(database)
        assert proxy.lost == 1
        await migrator.check_schema(database)
        assert await count_rows(database, "migrations") == len(migrator.load_migrations())
        proxy.lose_reply("COMMIT")
        await partitions.ensure_partitions(database, database.clock.now())
        assert proxy.lost == 1
        assert len(await partitions.ensure_partitions(database, database.clock.now())) == 0
        await database.close()


async def test_connection_that_fails_repeatedly_is_reported(proxied_db: Database, proxy: Proxy) -> None:
    proxy.lose_reply(task_creation.SQL.enqueue_tasks, times=100)

    with pytest.raises(Unavailable):
        await task_creation.enqueue_tasks(proxied_db, [new_task(proxied_db)])

    assert 2 <= proxy.lost <= 10
