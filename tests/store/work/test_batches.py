"""Rows of batches (J6): counts that add up, items with outcomes, pause, resume and cancel."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from asyncpg.transaction import Transaction

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.operations.work import batches as bulk
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Connection, Database
from tenuto.store.work import batches
from tenuto.store.work import tasks as store
from tests.support.errors import raises_code
from tests.support.manifests import (
    ANA,
    batch_counts,
    claim_runs,
    create_batch,
    create_manifest,
    finish_all_runs,
    finish_task,
    read_table,
    task_state_counts,
)
from tests.support.tasks import Register
from tests.support.waiting import eventually


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def pause(db: Database, id: UUID) -> None:
    await bulk.pause_batch(db, id, db.clock.now(), ANA)


async def cancel(db: Database, id: UUID) -> None:
    await bulk.cancel_batch(db, id, db.clock.now(), ANA)


async def test_batch_counts_always_add_up(db: Database, me: UUID) -> None:
    batch = await create_batch(
        db, await create_manifest(db, policy=TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=0, jitter=0))), 8
    )
    assert await batch_counts(db, batch) == {"left": 8, "done": 0, "failed": 0, "cancelled": 0}
    first, second, third, fourth, *_ = await claim_runs(db, me, 5)
    await finish_task(db, first)
    await finish_task(db, second, "completed_with_warning")
    await finish_task(db, third, "failed")
    assert await batch_counts(db, batch) == {"left": 6, "done": 2, "failed": 0, "cancelled": 0}, "one is tried again"
    await finish_task(db, fourth, "completed_with_error")
    assert await batch_counts(db, batch) == {"left": 5, "done": 2, "failed": 1, "cancelled": 0}
    await store.promote_due_tasks(db, db.clock.now(), ["default"])
    await cancel(db, batch)
    assert await batch_counts(db, batch) == {"left": 1, "done": 2, "failed": 1, "cancelled": 4}, "one still runs"
    (row,) = await read_table(db, "tasks")
    assert (row["state"], row["cancel_name"]) == ("running", "Ana")


async def test_retried_batch_item_is_represented_by_its_new_task(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 3)
    for status in ("failed", "failed", "completed"):
        (task,) = await claim_runs(db, me, 1)
        await finish_task(db, task, status)
    assert await batch_counts(db, batch) == {"left": 0, "done": 1, "failed": 2, "cancelled": 0}
    chosen = [row["id"] for row in await read_table(db, "dead_letters")]
    assert len(await dead_letters.retry_dead_letters(db, chosen, db.clock.now(), ANA)) == 2
    assert await batch_counts(db, batch) == {"left": 2, "done": 1, "failed": 0, "cancelled": 0}
    assert await finish_all_runs(db, me) == 2
    assert await batch_counts(db, batch) == {"left": 0, "done": 3, "failed": 0, "cancelled": 0}
    items = await batches.list_batch_items(db, batch, after=None, state=None, limit=10)
    assert [item.state for item in items] == ["completed"] * 3


async def test_batch_items_are_paged_and_filtered_by_status(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 5)
    held = await claim_runs(db, me, 3)
    await finish_task(db, held[0])
    await finish_task(db, held[1], "failed")
    items = await batches.list_batch_items(db, batch, after=None, state=None, limit=10)
    assert sorted(item.state for item in items) == ["completed", "failed", "queued", "queued", "running"]
    first = await batches.list_batch_items(db, batch, after=None, state=None, limit=2)
    rest = await batches.list_batch_items(db, batch, after=first[-1].task_id, state=None, limit=10)
    assert [item.task_id for item in first + rest] == sorted(item.task_id for item in items)
    for status, number in (("completed", 1), ("failed", 1), ("running", 1), ("queued", 2), ("waiting", 0)):
        assert len(await batches.list_batch_items(db, batch, after=None, state=status, limit=10)) == number, status


async def test_paused_batch_starts_no_item_and_running_items_continue(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 4)
    (running,) = await claim_runs(db, me, 1)
    await pause(db, batch)
    assert await task_state_counts(db) == {"running": 1, "waiting": 3}
    assert await claim_runs(db, me) == []
    await finish_task(db, running)
    assert await batch_counts(db, batch) == {"left": 3, "done": 1, "failed": 0, "cancelled": 0}
    await bulk.resume_batch(db, batch, db.clock.now())
    assert await finish_all_runs(db, me) == 3


@pytest.mark.parametrize("max_active", [None, 10], ids=["claim without a cap", "claim under a cap"])
async def test_items_of_a_paused_or_cancelled_batch_are_not_claimed_before_they_are_held(
    db: Database, me: UUID, max_active: int | None
) -> None:
    """The pause of many items may be interrupted after the first. A cap decides which statement claims."""
    batch, other = (
        await create_batch(db, await create_manifest(db), 3),
        await create_batch(db, await create_manifest(db, "other"), 1),
    )
    await db.fetch_all("UPDATE tenuto.manifests SET max_active = $1", max_active)
    for column in ("paused_at", "cancelled_at"):
        await db.fetch_all(f"UPDATE tenuto.batches SET {column} = now() WHERE id = $1", batch)
        assert await task_state_counts(db) == {"queued": 4}
        (task,) = await claim_runs(db, me)
        assert task.batch_id == other, column
        await store.return_tasks_to_queue(db, me, [task])
        await db.fetch_all(f"UPDATE tenuto.batches SET {column} = NULL")


async def test_interrupted_pause_resume_and_cancel_of_a_batch_are_completed(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 3)
    await db.fetch_all("UPDATE tenuto.batches SET paused_at = now(), paused_by = 'Ana'")
    await pause(db, batch)
    assert await task_state_counts(db) == {"waiting": 3}
    with raises_code("batch.already_paused", Conflict):
        await pause(db, batch)
    await db.fetch_all("UPDATE tenuto.batches SET paused_at = NULL, paused_by = NULL")
    await bulk.resume_batch(db, batch, db.clock.now())
    assert await task_state_counts(db) == {"queued": 3}
    with raises_code("batch.not_paused", Conflict):
        await bulk.resume_batch(db, batch, db.clock.now())
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = now(), cancelled_by = 'Ana'")
    await cancel(db, batch)
    assert await batch_counts(db, batch) == {"left": 0, "done": 0, "failed": 0, "cancelled": 3}
    for operation in (pause, cancel):
        with raises_code("batch.cancelled", Conflict):
            await operation(db, batch)


async def test_retried_item_of_a_paused_batch_waits_and_keeps_its_due_time(db: Database, me: UUID) -> None:
    policy = TaskPolicy(RetryPolicy(max_attempts=3, base_seconds=3600, jitter=0))
    batch = await create_batch(db, await create_manifest(db, policy=policy), 2)
    first, second = await claim_runs(db, me)
    await finish_task(db, first, "failed")
    await pause(db, batch)
    await finish_task(db, second, "failed")
    assert await task_state_counts(db) == {"waiting": 2}
    assert await batch_counts(db, batch) == {"left": 2, "done": 0, "failed": 0, "cancelled": 0}
    await bulk.resume_batch(db, batch, db.clock.now())
    assert await task_state_counts(db) == {"scheduled": 2}
    await pause(db, batch)
    later = db.clock.now() + timedelta(hours=2)
    assert (await store.promote_due_tasks(db, later, ["default"])).promoted_count == 0, (
        "what falls due during the pause stays back"
    )
    await bulk.resume_batch(db, batch, later)
    assert await task_state_counts(db) == {"queued": 2}


async def test_unstarted_item_returns_to_waiting_in_a_paused_batch(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 1)
    held = await claim_runs(db, me)
    await pause(db, batch)
    await store.return_tasks_to_queue(db, me, held)
    assert await task_state_counts(db) == {"waiting": 1}


async def test_recovered_item_of_a_paused_batch_waits(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 1)
    (task,) = await claim_runs(db, me)
    await pause(db, batch)
    await finish_task(db, task, "lost")
    assert await task_state_counts(db) == {"waiting": 1}


async def pause_during(db: Database, batch: UUID, open_transaction: Transaction) -> None:
    """Pause a batch while a transaction with changes of its items is open, which commits once the pause waits."""

    async def commit_once_the_pause_waits() -> None:
        try:
            await eventually(lambda: db.fetch_value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"), 5)
        finally:
            await open_transaction.commit()

    await asyncio.gather(pause(db, batch), commit_once_the_pause_waits())


async def test_item_being_promoted_during_a_pause_is_held(db: Database, me: UUID, url: str) -> None:
    policy = TaskPolicy(RetryPolicy(max_attempts=3, base_seconds=3600, jitter=0))
    batch = await create_batch(db, await create_manifest(db, policy=policy), 1)
    (task,) = await claim_runs(db, me)
    await finish_task(db, task, "failed")
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(store.SQL.promote_due_tasks, db.clock.now() + timedelta(hours=2), 10, ["default"])
    await pause_during(db, batch, transaction)
    await other.close()
    assert await task_state_counts(db) == {"waiting": 1}


async def test_item_being_returned_to_queue_during_a_pause_is_held(db: Database, me: UUID, url: str) -> None:
    batch = await create_batch(db, await create_manifest(db), 1)
    (task,) = await claim_runs(db, me)
    other = await asyncpg.connect(url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(store.SQL.return_tasks_to_queue, me, [task.id], [task.fence])
    await pause_during(db, batch, transaction)
    await other.close()
    assert await task_state_counts(db) == {"waiting": 1}


async def test_cancelled_batch_accepts_no_items_and_no_retries(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    batch = await create_batch(db, stored, 3)
    (failed,) = await claim_runs(db, me, 1)
    await finish_task(db, failed, "failed")
    await cancel(db, batch)
    template = await bulk.item_template(db, stored, batch, db.clock.now(), ANA)
    with raises_code("batch.cancelled", Conflict):
        await bulk.add_items(db, batch, 3, template, ["{}"], None)
    with raises_code("batch.cancelled", Conflict):
        await bulk.resume_batch(db, batch, db.clock.now())
    (letter,) = await read_table(db, "dead_letters")
    with raises_code("dead_letter.batch.cancelled", Conflict):
        await dead_letters.retry_dead_letters(db, [letter["id"]], db.clock.now(), ANA, strict=True)
    assert await dead_letters.retry_dead_letters(db, [letter["id"]], db.clock.now(), ANA) == {}
    assert await batch_counts(db, batch) == {"left": 0, "done": 0, "failed": 1, "cancelled": 2}


async def test_dead_letter_retry_in_a_paused_batch_waits(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 1)
    await finish_all_runs(db, me, "failed")
    await pause(db, batch)
    (letter,) = await read_table(db, "dead_letters")
    await dead_letters.retry_dead_letters(db, [letter["id"]], db.clock.now(), ANA)
    assert await task_state_counts(db) == {"waiting": 1}
    await bulk.resume_batch(db, batch, db.clock.now())
    assert await finish_all_runs(db, me) == 1


async def test_batch_part_is_added_once_and_only_missing_items(db: Database) -> None:
    stored = await create_manifest(db)
    now = db.clock.now()
    batch = (await bulk.open_batch(db, stored, now, ANA, key="k", name=None)).id
    template = await bulk.item_template(db, stored, batch, now, ANA)
    assert await bulk.add_items(db, batch, 0, template, ["{}"] * 3, None) == 3
    assert await bulk.add_items(db, batch, 0, template, ["{}"] * 3, None) == 0
    assert await bulk.add_items(db, batch, 0, template, ["{}"] * 5, None) == 2
    assert (await bulk.open_batch(db, stored, now, ANA, key="k", name=None)).id == batch
    assert (await batch_counts(db, batch))["left"] == 5


async def test_item_added_to_a_paused_batch_waits(db: Database) -> None:
    stored = await create_manifest(db)
    batch = await create_batch(db, stored, 1)
    await pause(db, batch)
    template = await bulk.item_template(db, stored, batch, db.clock.now(), ANA)
    await bulk.add_items(db, batch, 1, template, ["{}"] * 2, None)
    assert await task_state_counts(db) == {"waiting": 3}


async def test_batch_of_a_deleted_manifest_accepts_no_items(db: Database) -> None:
    stored = await create_manifest(db)
    batch = (await bulk.open_batch(db, stored, db.clock.now(), ANA, key=None, name=None)).id
    template = await bulk.item_template(db, stored, batch, db.clock.now(), ANA)
    await db.fetch_all("DELETE FROM tenuto.manifests")
    with raises_code("batch.manifest.deleted", Conflict):
        await bulk.add_items(db, batch, 0, template, ["{}"], None)


async def test_batch_key_belongs_to_its_manifest(db: Database) -> None:
    await create_batch(db, await create_manifest(db), 1, key="k")
    with raises_code("batch.key.in_use", Conflict):
        await create_batch(db, await create_manifest(db, "other"), 1, key="k")


async def test_unknown_batch_is_not_found(db: Database) -> None:
    for operation in (pause, cancel):
        with raises_code("batch.not_found", NotFound):
            await operation(db, new_id())
    with raises_code("batch.not_found", NotFound):
        await bulk.resume_batch(db, new_id(), db.clock.now())


async def test_batch_is_deleted_when_nothing_of_it_is_left(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    over, failed, open_one = [await create_batch(db, stored, 1) for _ in range(3)]
    by_batch = {task.batch_id: task for task in await claim_runs(db, me)}
    await finish_task(db, by_batch[over])
    await finish_task(db, by_batch[failed], "failed")
    cutoff = db.clock.now() + timedelta(days=1)
    assert await batches.delete_old_batches(db, cutoff, 10) == 0, "their activities still exist"
    async with db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL tenuto.retention = 'on'")
        await connection.execute("DELETE FROM tenuto.activities")
    assert await batches.delete_old_batches(db, db.clock.now() - timedelta(days=1), 10) == 0
    assert await batches.delete_old_batches(db, cutoff, 10) == 1
    assert {row["id"] for row in await read_table(db, "batches")} == {failed, open_one}


async def test_ending_thousands_of_batch_items_uses_a_hash_join(db: Database) -> None:
    """Measured with 5,000 items: 13 s by nested loops, 0.1 s by a hash join."""

    async def explain(connection: Connection) -> str:
        await connection.execute("SET LOCAL enable_nestloop = on")  # as in sessions other than workers
        await batches.lock_unclaimed_items(connection, new_id(), 1)
        joined: str = await connection.fetchval("SHOW enable_nestloop")
        return joined

    before = await db.fetch_value("SHOW enable_nestloop")
    assert await db.transaction(explain) == "off"
    assert await db.fetch_value("SHOW enable_nestloop") == before, "for that transaction only"
