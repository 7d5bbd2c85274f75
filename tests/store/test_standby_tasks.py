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
from tenuto.model.tasks import Aside, Outcome, Settlement, Task, settle
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tenuto.store.claim_cursor import NOTHING_BEFORE
from tenuto.store.reports import doctor
from tests.support.manifests import a_batch, kept
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
    return await store.claim_under_limits(db, worker, ["default"], limit, LEASE)


async def stand_by(db: Database, worker: UUID, task: Task, limit: int = 10) -> list[Task]:
    assert task.seat is not None
    return await store.stand_by(db, worker, {task.seat: NOTHING_BEFORE}, limit, LEASE)


def ends(task: Task, heir: Task | None, outcome: Outcome | None = None) -> Settlement:
    settlement = settle(task, outcome or completed(), now(), new_id)
    return replace(settlement, heir=None if heir is None else heir.id)


async def seated(db: Database) -> int:
    count: int = await db.value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND NOT standby")
    return count


async def is_seated(db: Database, task: Task) -> bool:
    return not await db.value("SELECT standby FROM tenuto.tasks WHERE id = $1", task.id)


async def test_what_stands_by_counts_under_no_limit_and_takes_no_seat_from_anybody(
    db: Database, me: UUID, other: UUID
) -> None:
    await enqueue(db, 6)
    (first,) = await take(db, me, 1)
    waiting = await stand_by(db, me, first, 3)
    assert len(waiting) == 3
    assert {task.seat for task in waiting} == {first.seat}
    assert len(await take(db, other)) == 1
    assert await take(db, me) == []
    for over_its_limit in (doctor.SQL.key_over_limit, doctor.SQL.queue_over_limit):
        assert await db.all(over_its_limit, 10) == []


async def test_an_heir_has_its_seat_from_the_end_of_the_one_before_and_nobody_else_gets_it(
    db: Database, me: UUID, other: UUID
) -> None:
    await enqueue(db, 6)
    first, second = await take(db, me)
    heir, still = await stand_by(db, me, first, 2)
    settlement = ends(first, heir)
    assert await finish(db, [settlement, ends(second, None)]) == {first.id, second.id}
    assert settlement.heir == heir.id
    assert (await is_seated(db, heir), await is_seated(db, still)) == (True, False)
    assert len(await take(db, other)) == 1  # of the two seats one was handed on
    assert await seated(db) == 2


@pytest.mark.parametrize("how", ["again", "aside"])
async def test_who_leaves_without_ending_hands_its_seat_on_too(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    later = Outcome(completed().status, started_at=now(), aside=Aside(until=now() + timedelta(hours=1)))
    settlement = ends(first, heir, failed() if how == "again" else later)
    assert (settlement.again is not None) == (how == "again")
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.heir == heir.id
    assert await is_seated(db, heir)
    assert await take(db, other) == []


@pytest.mark.parametrize("how", ["completed", "again"])
async def test_whoever_has_lost_its_seat_has_none_to_hand_on(how: str, db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE id = $1", first.id)
    assert len(await take(db, other)) == 1  # whom it belongs to now
    settlement = ends(first, heir, completed() if how == "completed" else failed())
    assert await finish(db, [settlement]) == {first.id}
    assert settlement.heir is None
    assert not await is_seated(db, heir)
    assert await seated(db) == 1


@pytest.mark.parametrize("how", ["completed", "again"])
async def test_an_end_that_comes_too_late_hands_nothing_on(how: str, db: Database, me: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    (heir,) = await stand_by(db, me, first, 1)
    stale = replace(first, fence=first.fence - 1)
    settlement = ends(stale, heir, completed() if how == "completed" else failed())
    assert await finish(db, [settlement]) == set()
    assert settlement.heir is None
    assert not await is_seated(db, heir)


async def test_only_those_stand_by_that_share_every_limit(db: Database, me: UUID) -> None:
    one = await kept(db, "one", max_active=1)
    await a_batch(db, one, 3)
    await a_batch(db, await kept(db, "two", max_active=1), 3)
    await enqueue(db, 2)  # both of which may run
    held = {task.manifest_id: task for task in await take(db, me)}
    waiting = await stand_by(db, me, held[one.id])
    assert {task.batch_id for task in waiting} == {held[one.id].batch_id}
    assert len(waiting) == 2
    await enqueue(db, 2, "another key")
    assert await stand_by(db, me, held[None]) == []


async def test_nothing_stands_by_for_what_is_paused_nor_for_the_dead(db: Database, me: UUID) -> None:
    batch = await a_batch(db, await kept(db, max_active=1), 4)
    (held,) = await take(db, me)
    await db.all("INSERT INTO tenuto.queues (name, paused_at, paused_by) VALUES ('default', now(), 'test')")
    assert await stand_by(db, me, held) == []
    await db.all("UPDATE tenuto.queues SET paused_at = NULL")
    await db.all("INSERT INTO tenuto.manifest_groups VALUES ('*', NULL, 0, false, now(), 'me')")
    assert await stand_by(db, me, held) == []
    await db.all("UPDATE tenuto.manifest_groups SET enabled = true")
    await db.all("UPDATE tenuto.batches SET cancelled_at = now() WHERE id = $1", batch)
    assert await stand_by(db, me, held) == []
    await db.all("UPDATE tenuto.batches SET cancelled_at = NULL WHERE id = $1", batch)
    await db.all("UPDATE tenuto.workers SET ended_at = now()")
    assert await stand_by(db, me, held) == []
    await db.all("UPDATE tenuto.workers SET ended_at = NULL")
    assert len(await stand_by(db, me, held)) == 3


async def test_what_stood_by_and_goes_back_is_as_any_other(db: Database, me: UUID, other: UUID) -> None:
    await enqueue(db, 3, most=3)
    (first,) = await take(db, me, 1)
    waiting = await stand_by(db, me, first)
    assert await store.put_back(db, me, waiting) == {task.id for task in waiting}
    taken = await take(db, other)
    assert {task.id for task in taken} == {task.id for task in waiting}
    assert await seated(db) == 3


async def test_who_stands_by_is_looked_for_from_where_the_last_one_was(db: Database, me: UUID) -> None:
    await enqueue(db, 5, most=1)
    (first,) = await take(db, me)
    assert first.seat is not None
    (second, third) = await stand_by(db, me, first, 2)
    await store.put_back(db, me, [second])
    place = (-third.priority, third.run_at, third.id)
    after = await store.stand_by(db, me, {first.seat: place}, 1, LEASE)
    assert third.id < after[0].id
    assert [task.id for task in await stand_by(db, me, first, 1)] == [second.id]


async def test_nobody_stands_by_for_a_batch_that_is_just_being_cancelled(db: Database, me: UUID, url: str) -> None:
    batch = await a_batch(db, await kept(db, max_active=1), 4)
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
