"""Seats under limits are handed on: what stands by counts for nothing, and begins only where something has ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.tasks import Deferral, Outcome, Settlement, Task, settle
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tenuto.store.claim_cursor import QUEUE_START
from tenuto.store.reports import doctor
from tests.support.manifests import create_batch, create_manifest
from tests.support.tasks import LEASE, Register, completed, failed, now, start
from tests.support.waiting import eventually


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


@pytest.fixture
async def other(register_worker: Register) -> UUID:
    return await register_worker("other")


async def enqueue(db: Database, count: int, key: str = "a key", most: int = 2) -> None:
    for _ in range(count):
        await start(db, limit_key=key, limit_max=most)


async def take(db: Database, worker: UUID, limit: int = 10) -> list[Task]:
    return await store.claim_limited_tasks(db, worker, ["default"], limit, LEASE)


async def stand_by(db: Database, worker: UUID, task: Task, limit: int = 10) -> list[Task]:
    assert task.limit_slot is not None
    return await store.claim_standby_tasks(db, worker, {task.limit_slot: QUEUE_START}, limit, LEASE)


def ends(task: Task, heir: Task | None, outcome: Outcome | None = None) -> Settlement:
    settlement = settle(task, outcome or completed(), now(), new_id)
    return replace(settlement, successor=None if heir is None else heir.id)


async def seated(db: Database) -> int:
    count: int = await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND NOT standby")
    return count


async def is_seated(db: Database, task: Task) -> bool:
    return not await db.fetch_value("SELECT standby FROM tenuto.tasks WHERE id = $1", task.id)


async def test_standby_task_counts_under_no_limit(
    db: Database, me: UUID, other: UUID
) -> None:
    await enqueue(db, 6)
    (first,) = await take(db, me, 1)
    waiting = await stand_by(db, me, first, 3)
    assert len(waiting) == 3
    assert {task.limit_slot for task in waiting} == {first.limit_slot}
    assert len(await take(db, other)) == 1
    assert await take(db, me) == []
    for over_its_limit in (doctor.SQL.key_limit_exceeded, doctor.SQL.queue_limit_exceeded):
        assert await db.fetch_all(over_its_limit, 10) == []


async def test_successor_receives_the_limit_slot_of_the_finished_task(
    db: Database, me: UUID, other: UUID
) -> None:
    await enqueue(db, 6)
    first, second = await take(db, me)
    heir, still = await stand_by(db, me, first, 2)
    settlement = ends(first, heir)
    assert await finish(db, [settlement, ends(second, None)]) == {first.id, second.id}
    assert settlement.successor == heir.id
    assert (await is_seated(db, heir), await is_seated(db, still)) == (True, False)
    assert len(await take(db, other)) == 1  # of the two seats one was handed on
    assert await seated(db) == 2


@pytest.mark.parametrize("how", ["again", "aside"])
async def test_retried_or_deferred_task_passes_its_limit_slot_on(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    later = Outcome(completed().status, started_at=now(), deferral=Deferral(resume_at=now() + timedelta(hours=1)))
    settlement = ends(first, heir, failed() if how == "again" else later)
    assert (settlement.retry is not None) == (how == "again")
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.successor == heir.id
    assert await is_seated(db, heir)
    assert await take(db, other) == []


@pytest.mark.parametrize("how", ["completed", "again"])
async def test_task_without_live_lease_passes_no_limit_slot_on(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE id = $1", first.id)
    assert len(await take(db, other)) == 1  # whom it belongs to now
    settlement = ends(first, heir, completed() if how == "completed" else failed())
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.successor is None
    assert not await is_seated(db, heir)
    assert await seated(db) == 1


@pytest.mark.parametrize("how", ["completed", "again"])
async def test_late_outcome_passes_no_limit_slot_on(how: str, db: Database, me: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    stale = replace(first, fence=first.fence - 1)
    settlement = ends(stale, heir, completed() if how == "completed" else failed())
    assert await finish(db, [settlement]) == set()
    assert settlement.successor is None
    assert not await is_seated(db, heir)


async def test_standby_claim_takes_only_tasks_with_identical_limits(db: Database, me: UUID) -> None:
    one = await create_manifest(db, "one", max_active=1)
    await create_batch(db, one, 3)
    await create_batch(db, await create_manifest(db, "two", max_active=1), 3)
    await enqueue(db, 2)  # both of which may run
    held = {task.manifest_id: task for task in await take(db, me)}
    waiting = await stand_by(db, me, held[one.id])
    assert {task.batch_id for task in waiting} == {held[one.id].batch_id}
    assert len(waiting) == 2
    await enqueue(db, 2, "another key")
    assert await stand_by(db, me, held[None]) == []


async def test_standby_claim_takes_nothing_for_paused_limits_or_ended_workers(db: Database, me: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db, max_active=1), 4)
    (held,) = await take(db, me)
    await db.fetch_all("INSERT INTO tenuto.queues (name, paused_at, paused_by) VALUES ('default', now(), 'test')")
    assert await stand_by(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.queues SET paused_at = NULL")
    await db.fetch_all("INSERT INTO tenuto.manifest_groups VALUES ('*', NULL, 0, false, now(), 'me')")
    assert await stand_by(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.manifest_groups SET enabled = true")
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = now() WHERE id = $1", batch)
    assert await stand_by(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = NULL WHERE id = $1", batch)
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = now()")
    assert await stand_by(db, me, held) == []
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = NULL")
    assert len(await stand_by(db, me, held)) == 3


async def test_standby_task_returned_to_queue_is_an_ordinary_task(db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 3, most=3)
    (first,) = await take(db, me, 1)
    waiting = await stand_by(db, me, first)
    assert await store.return_tasks_to_queue(db, me, waiting) == {task.id for task in waiting}
    taken = await take(db, other)
    assert {task.id for task in taken} == {task.id for task in waiting}
    assert await seated(db) == 3


async def test_standby_claim_continues_after_the_last_position(db: Database, me: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    assert first.limit_slot is not None
    (second, third) = await stand_by(db, me, first, 2)
    await store.return_tasks_to_queue(db, me, [second])
    place = (-third.priority, third.run_at, third.id)
    after = await store.claim_standby_tasks(db, me, {first.limit_slot: place}, 1, LEASE)
    assert third.id < after[0].id
    assert [task.id for task in await stand_by(db, me, first, 1)] == [second.id]


async def test_standby_claim_takes_nothing_of_a_batch_being_cancelled(db: Database, me: UUID, url: str) -> None:
    batch = await create_batch(db, await create_manifest(db, max_active=1), 4)
    (held,) = await take(db, me)
    elsewhere = await asyncpg.connect(url)
    cancelling = elsewhere.transaction()
    await cancelling.start()
    await elsewhere.execute("UPDATE tenuto.batches SET cancelled_at = now() WHERE id = $1", batch)
    late = asyncio.create_task(stand_by(db, me, held))

    async def it_waits_or_is_done() -> bool:
        return late.done() or bool(await elsewhere.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

    await eventually(it_waits_or_is_done)
    await cancelling.commit()
    assert await late == []
    await elsewhere.close()
