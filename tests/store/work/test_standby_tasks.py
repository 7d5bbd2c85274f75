"""Standby tasks count under no limit and start only in the limit slot of a task that has ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.work.tasks import Deferral, Outcome, Settlement, Task, settle
from tenuto.postgres.database import Database
from tenuto.store.reports import doctor
from tenuto.store.work import tasks as store
from tenuto.store.work.tasks import QUEUE_START
from tests.support.manifests import create_batch, create_manifest
from tests.support.tasks import LEASE, Register, completed_outcome, create_task, failed_outcome, now
from tests.support.waiting import eventually


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


@pytest.fixture
async def other(register_worker: Register) -> UUID:
    return await register_worker("other")


async def enqueue(db: Database, count: int, key: str = "a key", limit_max: int = 2) -> None:
    for _ in range(count):
        await create_task(db, limit_key=key, limit_max=limit_max)


async def claim(db: Database, worker: UUID, limit: int = 10) -> list[Task]:
    return await store.claim_limited_tasks(db, worker, ["default"], limit, LEASE)


async def claim_standby(db: Database, worker: UUID, task: Task, limit: int = 10) -> list[Task]:
    assert task.limit_slot is not None
    return await store.claim_standby_tasks(db, worker, {task.limit_slot: QUEUE_START}, limit, LEASE)


def make_settlement(task: Task, successor: Task | None, outcome: Outcome | None = None) -> Settlement:
    settlement = settle(task, outcome or completed_outcome(), now(), new_id)
    return replace(settlement, successor=None if successor is None else successor.id)


async def count_limit_slots(db: Database) -> int:
    count: int = await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND NOT standby")
    return count


async def has_limit_slot(db: Database, task: Task) -> bool:
    return not await db.fetch_value("SELECT standby FROM tenuto.tasks WHERE id = $1", task.id)


async def test_standby_task_counts_under_no_limit(db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 6)
    (first,) = await claim(db, me, 1)
    waiting = await claim_standby(db, me, first, 3)
    assert len(waiting) == 3
    assert {task.limit_slot for task in waiting} == {first.limit_slot}
    assert len(await claim(db, other)) == 1
    assert await claim(db, me) == []
    for over_its_limit in (doctor.SQL.key_limit_exceeded, doctor.SQL.queue_limit_exceeded):
        assert await db.fetch_all(over_its_limit, 10) == []


async def test_successor_receives_the_limit_slot_of_the_finished_task(db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 6)
    first, second = await claim(db, me)
    successor, still = await claim_standby(db, me, first, 2)
    settlement = make_settlement(first, successor)
    assert await finish(db, [settlement, make_settlement(second, None)]) == {first.id, second.id}
    assert settlement.successor == successor.id
    assert (await has_limit_slot(db, successor), await has_limit_slot(db, still)) == (True, False)
    assert len(await claim(db, other)) == 1  # one of the two slots was passed on
    assert await count_limit_slots(db) == 2


@pytest.mark.parametrize("how", ["retry", "deferral"])
async def test_retried_or_deferred_task_passes_its_limit_slot_on(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, limit_max=1)
    (first,) = await claim(db, me)
    (successor,) = await claim_standby(db, me, first, 1)
    later = Outcome(
        completed_outcome().status, started_at=now(), deferral=Deferral(resume_at=now() + timedelta(hours=1))
    )
    settlement = make_settlement(first, successor, failed_outcome() if how == "retry" else later)
    assert (settlement.retry is not None) == (how == "retry")
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.successor == successor.id
    assert await has_limit_slot(db, successor)
    assert await claim(db, other) == []


@pytest.mark.parametrize("how", ["completed", "retry"])
async def test_task_without_live_lease_passes_no_limit_slot_on(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, limit_max=1)
    (first,) = await claim(db, me)
    (successor,) = await claim_standby(db, me, first, 1)
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE id = $1", first.id
    )
    assert len(await claim(db, other)) == 1  # which holds it now
    settlement = make_settlement(first, successor, completed_outcome() if how == "completed" else failed_outcome())
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.successor is None
    assert not await has_limit_slot(db, successor)
    assert await count_limit_slots(db) == 1


@pytest.mark.parametrize("how", ["completed", "retry"])
async def test_late_outcome_passes_no_limit_slot_on(how: str, db: Database, me: UUID) -> None:
    await enqueue(db, 5, limit_max=1)
    (first,) = await claim(db, me)
    (successor,) = await claim_standby(db, me, first, 1)
    stale = replace(first, fence=first.fence - 1)
    settlement = make_settlement(stale, successor, completed_outcome() if how == "completed" else failed_outcome())
    assert await finish(db, [settlement]) == set()
    assert settlement.successor is None
    assert not await has_limit_slot(db, successor)


async def test_standby_claim_takes_only_tasks_with_identical_limits(db: Database, me: UUID) -> None:
    one = await create_manifest(db, "one", max_active=1)
    await create_batch(db, one, 3)
    await create_batch(db, await create_manifest(db, "two", max_active=1), 3)
    await enqueue(db, 2)  # both may run
    held = {task.manifest_id: task for task in await claim(db, me)}
    waiting = await claim_standby(db, me, held[one.id])
    assert {task.batch_id for task in waiting} == {held[one.id].batch_id}
    assert len(waiting) == 2
    await enqueue(db, 2, "another key")
    assert await claim_standby(db, me, held[None]) == []


async def test_standby_claim_takes_nothing_for_paused_limits_or_ended_workers(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db, max_active=1), 4)
    (held,) = await claim(db, me)
    await db.fetch_all("INSERT INTO tenuto.queues (name, paused_at, paused_by) VALUES ('default', now(), 'test')")
    assert await claim_standby(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.queues SET paused_at = NULL")
    await db.fetch_all("INSERT INTO tenuto.manifest_groups VALUES ('*', NULL, 0, false, now(), 'me')")
    assert await claim_standby(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.manifest_groups SET enabled = true")
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = now() WHERE id = $1", batch)
    assert await claim_standby(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = NULL WHERE id = $1", batch)
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = now()")
    assert await claim_standby(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = NULL")
    assert len(await claim_standby(db, me, held)) == 3


async def test_standby_task_returned_to_queue_is_an_ordinary_task(db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 3, limit_max=3)
    (first,) = await claim(db, me, 1)
    waiting = await claim_standby(db, me, first)
    assert await store.return_tasks_to_queue(db, me, waiting) == {task.id for task in waiting}
    taken = await claim(db, other)
    assert {task.id for task in taken} == {task.id for task in waiting}
    assert await count_limit_slots(db) == 3


async def test_standby_claim_continues_after_the_last_position(db: Database, me: UUID) -> None:
    await enqueue(db, 5, limit_max=1)
    (first,) = await claim(db, me)
    assert first.limit_slot is not None
    (second, third) = await claim_standby(db, me, first, 2)
    await store.return_tasks_to_queue(db, me, [second])
    place = (-third.priority, third.run_at, third.id)
    after = await store.claim_standby_tasks(db, me, {first.limit_slot: place}, 1, LEASE)
    assert third.id < after[0].id
    assert [task.id for task in await claim_standby(db, me, first, 1)] == [second.id]


async def test_standby_claim_takes_nothing_of_a_batch_being_cancelled(db: Database, me: UUID, url: str) -> None:
    batch = await create_batch(db, await create_manifest(db, max_active=1), 4)
    (held,) = await claim(db, me)
    elsewhere = await asyncpg.connect(url)
    cancelling = elsewhere.transaction()
    await cancelling.start()
    await elsewhere.execute("UPDATE tenuto.batches SET cancelled_at = now() WHERE id = $1", batch)
    late = asyncio.create_task(claim_standby(db, me, held))

    async def waits_or_is_done() -> bool:
        return late.done() or bool(await elsewhere.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

    await eventually(waits_or_is_done)
    await cancelling.commit()
    assert await late == []
    await elsewhere.close()
