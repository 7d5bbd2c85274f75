"""Expired tasks are not claimed, and end without a failed attempt."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.lifecycle.expiry import expire_tasks
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, settle
from tenuto.postgres.database import Database
from tenuto.store.work import tasks as store
from tests.support.manifests import claim_runs, create_batch, create_manifest
from tests.support.tasks import LEASE, Register, claim, create_and_claim, create_task, now, read_rows

PAST = timedelta(seconds=-5)


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def expire_all(db: Database) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET expires_at = clock_timestamp() - interval '1 second'")


async def test_expired_task_is_not_claimed(db: Database, me: UUID) -> None:
    """By no form of the claim: without limits, under limits, without a cap, on standby, on its last chance."""
    await create_task(db)
    await create_task(db, limit_key="k", limit_max=5)
    stored = await create_manifest(db)
    await create_batch(db, stored, 2)
    await expire_all(db)
    assert await claim(db, me) == []
    assert await claim_runs(db, me) == []
    assert await store.claim_limited_tasks(db, me, ["default"], 10, LEASE) == []
    await db.fetch_all("UPDATE tenuto.tasks SET last_chance = true WHERE limit_key = 'k'")
    assert await store.claim_limited_tasks(db, me, ["default"], 10, LEASE) == []
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE limit_key = 'k'")
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE limit_key IS NOT NULL")
    assert await store.claim_limited_tasks(db, me, ["default"], 10, LEASE) == []
    await create_task(db, limit_key="s", limit_max=1)
    (held,) = await store.claim_limited_tasks(db, me, ["default"], 10, LEASE)
    await create_task(db, limit_key="s", limit_max=1)
    await expire_all(db)
    assert held.limit_slot is not None
    assert await store.claim_standby_tasks(db, me, {held.limit_slot: store.QUEUE_START}, 5, LEASE) == []


async def test_running_task_is_not_listed_as_expired(db: Database, me: UUID) -> None:
    await create_and_claim(db, me, expires_at=now() + timedelta(hours=1))
    await expire_all(db)
    assert await store.list_expired_tasks(db, now(), 10) == []
    assert not (await store.promote_due_tasks(db, now(), ["default"])).has_expired


async def test_expired_tasks_end_in_every_open_state_but_running(db: Database, me: UUID) -> None:
    queued = await create_task(db, expires_at=now() + timedelta(hours=1))
    scheduled = await create_task(db, run_at=now() + timedelta(hours=1), expires_at=now() + timedelta(hours=2))
    held = await create_task(db, is_held=True, expires_at=now() + timedelta(hours=1))
    other = await create_task(db)
    assert (await store.promote_due_tasks(db, now(), ["default"])).next_due_at is not None
    await db.fetch_all("UPDATE tenuto.tasks SET expires_at = expires_at - interval '3 hours'")
    assert (await store.promote_due_tasks(db, now(), ["default"])).has_expired
    assert await expire_tasks(db, now()) == 3
    assert await expire_tasks(db, now()) == 0
    ended = await read_rows(db, "activities")
    assert {row["id"] for row in ended} == {queued, scheduled, held}
    assert {(row["status"], row["reason"], row["failures"], row["final"]) for row in ended} == {
        ("cancelled", "expired", 0, True)
    }
    assert [row["id"] for row in await read_rows(db)] == [other]
    assert await read_rows(db, "dead_letters") == []


@pytest.mark.parametrize(
    ("outcome", "expires"),
    [
        (Outcome(OutcomeStatus.COMPLETED, None, now(), now(), deferral=Deferral(now() + timedelta(hours=9))), False),
        (Outcome(OutcomeStatus.COMPLETED, None, None, now(), deferral=Deferral(now() + timedelta(hours=9))), True),
        (Outcome(OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, now(), now()), False),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.LOST, now(), now()), False),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, now(), now(), may_retry=True), True),
    ],
    ids=["deferred", "unknown job", "handed back", "lost", "failed"],
)
async def test_task_that_has_begun_does_not_expire(db: Database, me: UUID, outcome: Outcome, expires: bool) -> None:
    """It has begun if it gave up its slot, was handed back or lost; not if the worker did not know its job."""
    held = await create_and_claim(db, me, expires_at=now() + timedelta(hours=1))
    assert await finish(db, [settle(held, outcome, now(), new_id)]) == {held.id}
    assert await expire_tasks(db, now() + timedelta(hours=2)) == expires
    assert [row["id"] for row in await read_rows(db)] == [held.id] * (not expires)


async def test_worker_learns_when_the_next_task_expires(db: Database) -> None:
    expires_at = now() + timedelta(minutes=5)
    await create_task(db, expires_at=expires_at)
    assert (await store.promote_due_tasks(db, now(), ["default"])).next_due_at == expires_at
