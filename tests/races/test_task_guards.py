"""Each guard of tasks alone: tests that fail when the guard is removed (`scripts/mutants` removes them one by one)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.model.work.tasks import Task
from tenuto.operations.work import one_shots
from tenuto.postgres.database import Database
from tenuto.store.work import batches, task_creation
from tenuto.store.work import tasks as store
from tenuto.store.work import workers as register_of_workers
from tests.races.invariants import assert_invariants_hold
from tests.races.task_actions import ACTOR, LEASE, claim, complete, enqueue, fail, new_task
from tests.support.manifests import create_batch, create_manifest
from tests.support.operations import make_unaudited_operation
from tests.support.waiting import eventually

RegisterWorker = Callable[..., Awaitable[UUID]]
LIMITED: dict[str, Any] = {"limit_key": "a key", "limit_max": 1}


async def claim_in_open_transaction(
    connection: asyncpg.Connection, worker_id: UUID, queue: str = "default", limit: int = 1
) -> list[asyncpg.Record]:
    """Claim as `claim_limited_tasks` does, without committing; the connection is in a transaction."""
    locks = await connection.fetchrow(store.SQL.lock_limits, [queue], [""], 9, [])
    assert locks is not None
    values: tuple[Any, ...] = (
        worker_id, LEASE, [queue], limit, locks["queues_of_keys"], locks["keys"], [], None, None,
        locks["capped_scopes"], locks["uncapped_scopes"],
    )  # fmt: skip
    if locks["capped_scopes"]:
        rows = await connection.fetch(store.SQL.claim_limited_tasks, *values, limit)
    else:
        rows = await connection.fetch(store.SQL.claim_uncapped_tasks, *values, locks["batches_of_keys"])
    return [row for row in rows if row["id"] is not None]


async def only_row(db: Database) -> dict[str, Any]:
    (row,) = await db.fetch_all("SELECT * FROM tenuto.tasks")
    return dict(row)


async def expire_leases(db: Database) -> None:
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'running'"
    )


async def lose_and_reclaim(db: Database, worker_id: UUID) -> tuple[Task, Task]:
    """Return a task as it was held first, and as it is held after it was lost and claimed again."""
    await enqueue(db)
    (before,) = await claim(db, worker_id)
    await expire_leases(db)
    assert await recover_lost_tasks(db, db.clock.now()) == 1
    (now,) = await claim(db, worker_id)
    assert (now.id, now.worker_id) == (before.id, before.worker_id)
    return before, now


# --- finish ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [complete, fail])
async def test_outcome_with_stale_fence_changes_nothing(
    db: Database, worker_id: UUID, settled: Callable[[Database, Task], Any]
) -> None:
    before, now = await lose_and_reclaim(db, worker_id)
    held = await only_row(db)

    assert await finish(db, [settled(db, before)]) == set()

    assert await only_row(db) == held
    assert await finish(db, [settled(db, now)]) == {now.id}
    await assert_invariants_hold(db.url, 1)


@pytest.mark.parametrize("settled", [complete, fail])
async def test_outcome_of_another_worker_changes_nothing_despite_equal_fence(
    db: Database, worker_id: UUID, register_worker: RegisterWorker, settled: Callable[[Database, Task], Any]
) -> None:
    # After a failover to a lagging replica, two workers may have the same fence.
    await enqueue(db)
    (task,) = await claim(db, worker_id)
    await db.fetch_all("UPDATE tenuto.tasks SET worker_id = $1", await register_worker())
    held = await only_row(db)

    assert await finish(db, [settled(db, task)]) == set()

    assert await only_row(db) == held


async def test_only_one_of_two_equal_concurrent_outcomes_is_written(db: Database, worker_id: UUID) -> None:
    for settled in (complete, fail):
        await enqueue(db)
        (task,) = await claim(db, worker_id)

        done = await asyncio.gather(*(finish(db, [settled(db, task)]) for _ in range(5)))

        assert sorted(map(len, done)) == [0, 0, 0, 0, 1]
    await assert_invariants_hold(db.url, 2)


async def test_task_with_cancel_request_is_not_retried(db: Database, worker_id: UUID) -> None:
    await enqueue(db)
    (task,) = await claim(db, worker_id)
    assert await store.request_cancellation(db, task, ACTOR)

    assert await finish(db, [fail(db, task)]) == {task.id}

    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 0
    assert await db.fetch_value("SELECT status FROM tenuto.activities WHERE final") == "cancelled"


# --- renew, return to queue, cancel
# ----------------------------------------------------------------------------------


async def test_expired_lease_is_not_renewed(db: Database, worker_id: UUID) -> None:
    await enqueue(db)
    (task,) = await claim(db, worker_id)
    await expire_leases(db)

    assert await store.renew_leases(db, worker_id, [(task.id, task.fence, None)], LEASE) == set()

    assert await recover_lost_tasks(db, db.clock.now()) == 1


async def test_renewal_with_stale_fence_changes_nothing(db: Database, worker_id: UUID) -> None:
    before, now = await lose_and_reclaim(db, worker_id)
    held = await only_row(db)

    assert await store.renew_leases(db, worker_id, [(before.id, before.fence, '{"done": 1}')], LEASE) == set()

    assert await only_row(db) == held
    assert await store.renew_leases(db, worker_id, [(now.id, now.fence, None)], LEASE) == {now.id}


async def test_long_lock_on_one_task_does_not_block_renewal_of_others(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await enqueue(db, 2)
    busy, free = await claim(db, worker_id, count=2)
    async with other.transaction(), asyncio.timeout(5):
        await other.execute("SELECT FROM tenuto.tasks WHERE id = $1 FOR UPDATE", busy.id)
        held = [(task.id, task.fence, None) for task in (busy, free)]
        assert await store.renew_leases(db, worker_id, held, LEASE) == {free.id}
        fences = [(task.id, task.fence) for task in (busy, free)]
        assert await store.find_held_tasks(db, worker_id, fences) == {busy.id, free.id}

    assert await store.renew_leases(db, worker_id, held, LEASE) == {busy.id, free.id}


async def test_task_with_new_fence_new_holder_or_expired_lease_is_no_longer_held(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    before, now = await lose_and_reclaim(db, worker_id)
    fences = [(task.id, task.fence) for task in (before, now)]

    assert await store.find_held_tasks(db, worker_id, fences[:1]) == set()
    assert await store.find_held_tasks(db, worker_id, fences) == {now.id}
    assert await store.find_held_tasks(db, await register_worker(), fences) == set()
    await expire_leases(db)
    assert await store.find_held_tasks(db, worker_id, fences) == set()


async def test_cancelling_all_one_shots_locks_running_tasks_last(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await task_creation.enqueue_tasks(db, [new_task(db, origin="once")])
    (running,) = await claim(db, worker_id)
    await task_creation.enqueue_tasks(db, [waiting := new_task(db, origin="once")])
    async with other.transaction(), asyncio.timeout(5):
        await other.execute("SELECT FROM tenuto.tasks WHERE id = $1 FOR UPDATE", waiting.id)
        wiping = asyncio.create_task(one_shots.cancel_all_one_shots(make_unaudited_operation(db, ACTOR)))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        assert await store.renew_leases(db, worker_id, [(running.id, running.fence, None)], LEASE) == {running.id}

    wiped = await wiping
    assert wiped.terminated == [waiting.id, running.id]
    assert wiped.stopping == [running.id]


async def test_worker_renews_no_task_of_another_worker(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    await enqueue(db)
    (task,) = await claim(db, worker_id)

    assert await store.renew_leases(db, await register_worker(), [(task.id, task.fence, None)], LEASE) == set()


async def test_return_to_queue_with_stale_fence_changes_nothing(db: Database, worker_id: UUID) -> None:
    before, _ = await lose_and_reclaim(db, worker_id)
    held = await only_row(db)

    assert await store.return_tasks_to_queue(db, worker_id, [before]) == set()

    assert await only_row(db) == held


async def test_worker_returns_no_task_of_another_worker(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    await enqueue(db)
    claimed = await claim(db, worker_id)

    assert await store.return_tasks_to_queue(db, await register_worker(), claimed) == set()


async def test_task_with_cancel_request_is_not_returned_to_queue(db: Database, worker_id: UUID) -> None:
    await enqueue(db)
    (task,) = await claim(db, worker_id)
    assert await store.request_cancellation(db, task, ACTOR)

    assert await store.return_tasks_to_queue(db, worker_id, [task]) == set()

    assert (await only_row(db))["state"] == "running", "the recovery sweep ends it as cancelled"


async def test_cancel_request_of_an_earlier_attempt_does_not_affect_the_next(db: Database, worker_id: UUID) -> None:
    before, _ = await lose_and_reclaim(db, worker_id)

    assert not await store.request_cancellation(db, before, ACTOR)

    assert (await only_row(db))["cancel_at"] is None


# --- claim ----------------------------------------------------------------------------------------------------------


async def test_claim_skips_tasks_locked_by_another_claim(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    first, second = await enqueue(db, 2)
    async with other.transaction():
        await other.execute("SELECT 1 FROM tenuto.tasks WHERE id = $1 FOR UPDATE", first.id)

        (claimed,) = await asyncio.wait_for(claim(db, worker_id, 2), timeout=5)

    assert claimed.id == second.id


async def test_due_task_is_promoted_once_and_no_worker_waits_for_it(db: Database, other: asyncpg.Connection) -> None:
    later = db.clock.now() + timedelta(hours=1)
    first, second = await enqueue(db, 2, run_at=later)
    async with other.transaction():
        await other.execute("SELECT 1 FROM tenuto.tasks WHERE id = $1 FOR UPDATE", first.id)

        outlook = await asyncio.wait_for(store.promote_due_tasks(db, later, ["default"]), timeout=5)

    assert outlook.promoted_count == 1
    states = {row["id"]: row["state"] for row in await db.fetch_all("SELECT id, state FROM tenuto.tasks")}
    assert (states[first.id], states[second.id]) == ("scheduled", "queued")


async def test_task_claimed_by_one_transaction_is_not_claimed_by_another(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await enqueue(db, 3)
    begun = other.transaction()
    await begun.start()
    from_the_beginning = ([-32768], [datetime(1, 1, 1, tzinfo=UTC)], [UUID(int=0)])
    first = await other.fetch(
        store.SQL.claim_tasks, worker_id, LEASE, ["default"], 2, *from_the_beginning, [], None, None
    )
    assert len(first) == 2

    second = asyncio.create_task(claim(db, worker_id, 3))

    async def it_waits_or_is_done() -> bool:
        return second.done() or await db.fetch_value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await eventually(it_waits_or_is_done, timeout=5, what="the second claim waits or is done")
    await begun.commit()
    assert {task.id for task in await second}.isdisjoint(row["id"] for row in first)
    assert await db.fetch_value("SELECT max(fence) FROM tenuto.tasks") == 1


@pytest.mark.parametrize("limited", [False, True])
async def test_worker_declared_dead_claims_no_task(db: Database, worker_id: UUID, limited: bool) -> None:
    await enqueue(db, **(LIMITED if limited else {}))
    await register_of_workers.deregister_process(db, worker_id)

    take = store.claim_limited_tasks if limited else store.claim_tasks
    assert await take(db, worker_id, ["default"], 1, LEASE) == []


@pytest.mark.parametrize("limited", ["the key", "the queue"])
async def test_limited_claim_waits_for_the_previous_limited_claim(
    db: Database, worker_id: UUID, other: asyncpg.Connection, limited: str
) -> None:
    if limited == "the queue":
        await db.fetch_all("INSERT INTO tenuto.queues (name, max_running) VALUES ('default', 1)")
    key = LIMITED if limited == "the key" else {}
    await enqueue(db, **key)
    begun = other.transaction()
    await begun.start()
    assert len(await claim_in_open_transaction(other, worker_id)) == 1
    await enqueue(db, priority=5, **key)  # a more urgent task would be claimed first if the limit allowed it

    late = asyncio.create_task(store.claim_limited_tasks(db, worker_id, ["default"], 1, LEASE))

    async def it_waits_or_is_done() -> bool:
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
        return late.done() or await db.fetch_value(waits)

    await eventually(it_waits_or_is_done, timeout=5, what="the second claim waits or is done")
    await begun.commit()
    assert await late == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 1


@pytest.mark.parametrize("holder", ["a claim", "a batch"])
async def test_process_that_stalls_with_the_limit_lock_is_disconnected(
    db: Database, worker_id: UUID, other: asyncpg.Connection, holder: str
) -> None:
    """The locks of a frozen process stay: the database does not notice that it is gone."""
    stored = await create_manifest(db, max_active=1)
    batch = await create_batch(db, stored, 2)
    await other.execute("BEGIN")
    if holder == "a claim":
        await other.fetch(store.SQL.lock_limits, ["default"], [""], 9, [])
    else:
        await other.fetch(batches.SQL.lock_limits, batch)

    async with asyncio.timeout(8):  # a lock wait takes longer than that
        assert len(await store.claim_limited_tasks(db, worker_id, ["default"], 1, LEASE)) == 1


async def test_limit_counts_only_unexpired_leases(db: Database, worker_id: UUID) -> None:
    await enqueue(db, 2, **LIMITED)
    for expected in (1, 0):
        assert len(await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE)) == expected

    await expire_leases(db)

    assert len(await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE)) == 1


# --- enqueue --------------------------------------------------------------------------------------------------------


async def test_task_enqueued_twice_exists_once(db: Database) -> None:
    task = new_task(db)

    started = await asyncio.gather(*(task_creation.enqueue_tasks(db, [task]) for _ in range(5)))

    assert sorted(map(len, started)) == [0, 0, 0, 0, 1]
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 1


@pytest.mark.parametrize("many", [3, 200])
async def test_finished_tasks_are_not_enqueued_again(many: int, db: Database, worker_id: UUID) -> None:
    tasks = await enqueue(db, many)
    await finish(db, [complete(db, task) for task in await claim(db, worker_id, many)])

    assert await task_creation.enqueue_tasks(db, tasks[:1]) == set()
    assert await task_creation.enqueue_tasks(db, tasks) == set()
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 0


async def test_finished_task_takes_no_key_from_a_task_enqueued_with_it(db: Database, worker_id: UUID) -> None:
    ended = new_task(db, unique_key="a key")
    await task_creation.enqueue_tasks(db, [ended])
    await finish(db, [complete(db, task) for task in await claim(db, worker_id)])
    new = new_task(db, unique_key="a key")

    assert await task_creation.enqueue_tasks(db, [ended, new]) == {new.id}


async def test_key_of_an_open_task_is_unique(db: Database, worker_id: UUID) -> None:
    one, two = new_task(db, unique_key="a key"), new_task(db, unique_key="a key")

    assert sorted(
        map(len, await asyncio.gather(task_creation.enqueue_tasks(db, [one]), task_creation.enqueue_tasks(db, [two])))
    ) == [
        0,
        1,
    ]
    assert len(await task_creation.enqueue_tasks(db, [new_task(db, unique_key="a key") for _ in range(2)])) == 0

    (task,) = await claim(db, worker_id)
    await finish(db, [complete(db, task)])
    assert len(await task_creation.enqueue_tasks(db, [new_task(db, unique_key="a key")])) == 1


# --- recovery, worker registration, history
# --------------------------------------------------------------------------


async def test_two_concurrent_recovery_sweeps_count_a_loss_once(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await enqueue(db, 3)
    await claim(db, worker_id, 3)
    await expire_leases(db)
    async with other.transaction():
        assert len(await store.lock_expired_tasks(other, 100)) == 3

        assert await asyncio.wait_for(recover_lost_tasks(db, db.clock.now()), timeout=5) == 0

    assert await recover_lost_tasks(db, db.clock.now()) == 3
    assert await db.fetch_value("SELECT count FROM tenuto.repairs") == 3


async def test_task_locked_by_a_recovery_sweep_cannot_get_a_cancel_request_unnoticed(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await enqueue(db)
    await claim(db, worker_id)
    await expire_leases(db)
    begun = other.transaction()
    await begun.start()
    (task,) = await store.lock_expired_tasks(other, 100)

    asking = asyncio.create_task(store.request_cancellation(db, task, ACTOR))

    async def it_waits_or_is_done() -> bool:
        return asking.done() or await db.fetch_value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await eventually(it_waits_or_is_done, timeout=5, what="the cancel request waits or is done")
    assert not asking.done()
    await begun.rollback()
    assert await asking


async def test_worker_name_has_one_live_process(db: Database, register_worker: RegisterWorker) -> None:
    await register_worker("a name")

    with pytest.raises(Exception, match="workers_one_alive_per_name"):
        await register_worker("a name")


@pytest.mark.parametrize(
    "change",
    ["UPDATE tenuto.activities SET status = 'failed'", "DELETE FROM tenuto.activities", "TRUNCATE tenuto.activities"],
)
async def test_activity_cannot_be_changed(db: Database, worker_id: UUID, change: str) -> None:
    await enqueue(db)
    await finish(db, [complete(db, task) for task in await claim(db, worker_id)])

    with pytest.raises(Exception, match="written once"):
        await db.fetch_all(change)

    assert await db.fetch_value("SELECT status FROM tenuto.activities") == "completed"


async def test_running_task_has_holder_lease_and_claim_time(db: Database, worker_id: UUID) -> None:
    await enqueue(db)
    await claim(db, worker_id)
    for column in ("worker_id", "lease_until", "claimed_at"):
        with pytest.raises(Exception, match="tasks_running_means_held"):
            await db.fetch_all(f"UPDATE tenuto.tasks SET {column} = NULL")
    with pytest.raises(Exception, match="tasks_running_means_held"):
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued'")


async def test_unreadable_policy_does_not_block_other_tasks(db: Database, worker_id: UUID) -> None:
    broken, *_ = await enqueue(db, 3)
    await db.fetch_all("UPDATE tenuto.tasks SET policy = $2 WHERE id = $1", broken.id, '{"max_attempts": "many"}')
    claimed = await claim(db, worker_id, 3)
    await expire_leases(db)

    assert await recover_lost_tasks(db, db.clock.now()) == 3

    repeated = await claim(db, worker_id, 3, timedelta(seconds=30))
    assert {task.id for task in repeated} == {task.id for task in claimed}
    assert await finish(db, [fail(db, task) for task in repeated]) == {task.id for task in claimed}
