"""Rate limits of keys, queues and groups: claims take tokens, waiting tasks are parked and released in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.work.rate_limits import RateLimit, parse_rate_limit
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import GroupSettings
from tenuto.store.events import external_events
from tenuto.store.work import batches, workers
from tenuto.store.work import tasks as store
from tests.support.manifests import NOON, claim_runs, create_batch, create_manifest, run_in_transaction
from tests.support.schedules import start_execution
from tests.support.tasks import LEASE, Register, create_task, now

QUEUES = ["default", "mail"]
PERIODS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def claim(db: Database, me: UUID, limit: int = 10, free_count: int | None = None) -> list[UUID]:
    found = await store.claim_limited_tasks(db, me, QUEUES, limit, LEASE, free_count=free_count)
    return [task.id for task in found]


async def states(db: Database) -> Counter[tuple[str, str | None]]:
    rows = await db.fetch_all("SELECT state, parked_for FROM tenuto.tasks")
    return Counter((row["state"], row["parked_for"]) for row in rows)


async def let_token_come(db: Database, scope: str, count: int = 1) -> None:
    """Move the bucket back by that many tokens, as if their time had passed."""
    changed = await db.fetch_all(
        "UPDATE tenuto.rate_buckets SET next_at = clock_timestamp() - tenuto.rate_interval(rate_limit) * ($2 - 1),"
        " release_at = CASE WHEN release_at IS NOT NULL THEN clock_timestamp() - interval '1 second' END"
        " WHERE scope = $1 RETURNING scope",
        scope,
        count,
    )
    assert len(changed) == 1


@pytest.mark.parametrize("text", ["1/s", "3/s", "7/m burst 3", "100/m", "99991/h burst 100", "100000/s burst 100000"])
async def test_sql_bucket_decides_as_the_model_does(db: Database, text: str) -> None:
    rate = parse_rate_limit(text)
    assert rate is not None
    at = datetime(2027, 1, 1, 12, tzinfo=UTC)
    interval = await db.fetch_value("SELECT tenuto.rate_interval($1)", text)
    assert interval == rate.interval
    ages: list[timedelta | None] = [
        None,
        timedelta(0),
        timedelta(microseconds=-1),
        timedelta(hours=-1),
        timedelta(days=9),
    ]
    ages += [rate.interval * n + timedelta(microseconds=d) for n in (1, 2, 3) for d in (-1, 0, 1)]
    for age in ages:
        next_at = None if age is None else at - age
        row = await db.fetch_one(
            "SELECT tenuto.rate_tokens($1, $2, $3) AS tokens, tenuto.rate_next_at($1, $2, $3, 1) AS one,"
            " tenuto.rate_next_at($1, $2, $3, $4) AS all_of_them",
            text, next_at, at, rate.burst,
        )  # fmt: skip
        assert row is not None
        assert row["tokens"] == rate.tokens_at(next_at, at), age
        assert row["one"] == rate.next_after(next_at, at, 1), age
        assert row["all_of_them"] == rate.next_after(next_at, at, rate.burst), age


async def test_claim_takes_as_many_tasks_as_the_key_has_tokens(db: Database, me: UUID) -> None:
    ids = [await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h", 3)) for _ in range(5)]
    other = await create_task(db, rate_key="other", rate_limit=RateLimit(10, "h"))
    free = await create_task(db)
    assert set(await claim(db, me)) == {*ids[:3], other, free}
    assert await states(db) == {("running", None): 5, ("scheduled", "rate shop"): 2}
    assert await claim(db, me) == []


async def test_parked_tasks_are_released_with_their_tokens_in_the_order_of_claims(db: Database, me: UUID) -> None:
    rate = RateLimit(60, "h")
    first = await create_task(db, rate_key="shop", rate_limit=rate)
    later = [await create_task(db, rate_key="shop", rate_limit=rate, priority=n) for n in (1, 5, 3)]
    assert len(await claim(db, me)) == 1
    running = await db.fetch_value("SELECT id FROM tenuto.tasks WHERE state = 'running'")
    assert running == later[1]
    assert (await store.promote_due_tasks(db, now(), QUEUES)).promoted_count == 0
    assert await states(db) == {("running", None): 1, ("scheduled", "rate shop"): 3}
    for expected in (later[2], later[0], first):
        await let_token_come(db, "rate shop")
        result = await store.promote_due_tasks(db, now(), QUEUES)
        assert result.has_limits
        assert (await states(db))[("queued", None)] == 1
        assert await claim(db, me) == [expected]
    assert await claim(db, me) == []


async def test_worker_learns_when_the_next_token_comes(db: Database, me: UUID) -> None:
    for _ in range(2):
        await create_task(db, rate_key="shop", rate_limit=RateLimit(60, "h"))
    cursor = store.LimitKeyCursor()
    claimed = await store.claim_limited_tasks(db, me, QUEUES, 10, LEASE, cursor)
    assert len(claimed) == 1
    claimed_at = await db.fetch_value("SELECT claimed_at FROM tenuto.tasks WHERE state = 'running'")
    assert cursor.next_token_at == claimed_at + timedelta(minutes=1)
    result = await store.promote_due_tasks(db, now(), QUEUES)
    assert result.next_due_at == cursor.next_token_at


async def test_many_waiting_tasks_are_parked_once_and_not_read_again(db: Database, me: UUID) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.tasks (id, activity_id, queue, rank, kind, name, input, policy, initiator_type,"
        " initiator_name, limit_key, limit_max, rate_key, rate_limit)"
        " SELECT id, id, 'default', 0, 'job', 'bake', '{}', '{}', 'system', 'test', 'rate:a', 100000, 'a', '10/h'"
        " FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 2500)) AS new"
    )
    assert len(await claim(db, me)) == 1
    assert len(await claim(db, me)) == 0
    assert await states(db) == {("running", None): 1, ("scheduled", "rate a"): 2499}
    parked = await db.fetch_value("SELECT max(xmin::text::bigint) FROM tenuto.tasks WHERE state = 'scheduled'")
    for _ in range(3):
        assert await claim(db, me) == []
        await store.promote_due_tasks(db, now(), QUEUES)
    assert parked == await db.fetch_value("SELECT max(xmin::text::bigint) FROM tenuto.tasks WHERE state = 'scheduled'")


async def test_rate_of_a_queue_applies_to_all_its_tasks(db: Database, me: UUID) -> None:
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "mail", "120/h burst 2")
    for fields in ({}, {}, {"limit_key": "k", "limit_max": 5}, {"limit_key": "k", "limit_max": 5}):
        await create_task(db, queue="mail", **fields)
    free = await create_task(db)
    claimed = await claim(db, me)
    assert free in claimed
    assert len(claimed) == 3
    assert await states(db) == {("running", None): 3, ("scheduled", "queue mail"): 2}


async def test_removed_rate_of_a_queue_releases_its_parked_tasks(db: Database, me: UUID) -> None:
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "mail", "1/h")
    for _ in range(5):
        await create_task(db, queue="mail")
    assert len(await claim(db, me)) == 1
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "mail", None)
    await store.promote_due_tasks(db, now() + timedelta(seconds=1), QUEUES)
    assert len(await claim(db, me)) == 4


async def test_changed_rate_of_a_queue_applies_to_its_parked_tasks(db: Database, me: UUID) -> None:
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "mail", "1/h")
    for _ in range(3):
        await create_task(db, queue="mail")
    assert len(await claim(db, me)) == 1
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "mail", "100000/s")
    await store.promote_due_tasks(db, now() + timedelta(seconds=1), QUEUES)
    assert len(await claim(db, me)) == 1


async def test_claim_under_a_rate_limit_takes_no_more_than_the_free_slots(db: Database, me: UUID) -> None:
    for _ in range(5):
        await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h", 5))
    assert len(await claim(db, me, limit=10, free_count=2)) == 2


async def test_task_under_a_rate_limit_has_no_limit_slot_for_standby_tasks(db: Database, me: UUID) -> None:
    await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h", 5), limit_key="k", limit_max=1)
    await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h", 5), limit_key="k", limit_max=1)
    (held,) = await store.claim_limited_tasks(db, me, QUEUES, 10, LEASE)
    assert held.limit_slot is None


async def test_standby_claim_takes_no_task_with_a_rate_key(db: Database, me: UUID) -> None:
    await create_task(db, limit_key="k", limit_max=1)
    await create_task(db, limit_key="k", limit_max=1, rate_key="shop", rate_limit=RateLimit(10, "h"))
    (held,) = await store.claim_limited_tasks(db, me, QUEUES, 1, LEASE)
    assert held.limit_slot is not None
    slots = {held.limit_slot: store.QUEUE_START}
    assert await store.claim_standby_tasks(db, me, slots, 5, LEASE) == []


async def test_rate_and_concurrency_limit_of_a_task_both_apply(db: Database, me: UUID) -> None:
    for _ in range(4):
        await create_task(db, limit_key="k", limit_max=2, rate_key="shop", rate_limit=RateLimit(100, "h", 3))
    assert len(await claim(db, me)) == 2
    assert len(await claim(db, me)) == 0


async def test_rolled_back_claim_keeps_its_tokens(db: Database, me: UUID) -> None:
    """A worker that is killed in a claim leaves the bucket as it was."""
    await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h"))
    gone = UUID(int=1)
    assert await store.claim_limited_tasks(db, gone, QUEUES, 10, LEASE) == []  # an unknown worker claims nothing
    assert await db.fetch_value("SELECT count(*) FROM tenuto.rate_buckets") == 0
    assert len(await claim(db, me)) == 1


async def test_concurrent_claims_take_each_token_once(db: Database, register_worker: Register) -> None:
    names = [await register_worker() for _ in range(4)]
    for _ in range(60):
        await create_task(db, rate_key="shop", rate_limit=RateLimit(1000, "h", 20))
    results = await asyncio.gather(*(claim(db, name, 3) for name in names for _ in range(6)))
    claimed = [id for ids in results for id in ids]
    assert len(claimed) == len(set(claimed)) == 20


async def test_cancelled_and_paused_parked_tasks_are_not_released(db: Database, me: UUID) -> None:
    for _ in range(3):
        await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h"))
    await claim(db, me)
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'scheduled'")
    await let_token_come(db, "rate shop")
    await store.promote_due_tasks(db, now(), QUEUES)
    assert (await states(db))[("waiting", "rate shop")] == 2


async def test_parked_steps_that_are_paused_and_resumed_are_claimed_under_the_rate(db: Database, me: UUID) -> None:
    async with db.connection() as connection:
        await workers.limit_queue_rate(connection, "default", "1/h")
    run = await start_execution(db, ["a", "b", "c"])
    assert len(await claim(db, me)) == 1
    assert await states(db) == {("running", None): 1, ("scheduled", "queue default"): 2}
    await execution_control.pause_execution(db, run, now(), Actor.user("ana"))
    assert await states(db) == {("running", None): 1, ("waiting", None): 2}
    await execution_control.resume_execution(db, run, now())
    assert await states(db) == {("running", None): 1, ("queued", None): 2}
    assert await claim(db, me) == []
    assert await states(db) == {("running", None): 1, ("scheduled", "queue default"): 2}
    await let_token_come(db, "queue default")
    await store.promote_due_tasks(db, now(), QUEUES)
    assert len(await claim(db, me)) == 1


async def test_parked_items_that_are_paused_and_resumed_are_claimed_under_the_rate(db: Database, me: UUID) -> None:
    await save_group_rate(db, "g", "4/h")
    batch = await create_batch(db, await create_manifest(db, group="g"), 3)
    assert len(await claim_runs(db, me)) == 1

    async def pause(connection: Connection) -> None:
        assert await batches.pause_batch(connection, batch, now(), Actor.user("ana"))
        assert await batches.hold_batch_items(connection, batch, 10) == 2

    async def resume(connection: Connection) -> None:
        assert await batches.resume_batch(connection, batch)
        assert await batches.release_batch_items(connection, batch, now(), 10) == 2

    await run_in_transaction(db, pause)
    assert await states(db) == {("running", None): 1, ("waiting", None): 2}
    await db.fetch_all("UPDATE tenuto.tasks SET parked_for = 'group g' WHERE state = 'waiting'")  # by the last release
    await run_in_transaction(db, resume)
    assert await states(db) == {("running", None): 1, ("queued", None): 2}
    assert await claim_runs(db, me) == []
    await let_token_come(db, "group g")
    await store.promote_due_tasks(db, now(), QUEUES)
    assert len(await claim_runs(db, me)) == 1


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeStatus.COMPLETED, None, now(), now(), deferral=Deferral(now() + timedelta(hours=9))),
        Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, now(), now()),
    ],
    ids=["deferred", "failed"],
)
async def test_running_task_that_was_parked_is_promoted_when_it_continues(
    db: Database, me: UUID, outcome: Outcome
) -> None:
    """A process of the last release that pauses and resumes a parked task leaves its mark."""
    await create_task(db, rate_key="shop", rate_limit=RateLimit(10, "h"))
    (held,) = await store.claim_limited_tasks(db, me, QUEUES, 10, LEASE)
    await db.fetch_all("UPDATE tenuto.tasks SET parked_for = 'rate shop'")
    assert await finish(db, [settle(held, outcome, now(), new_id)]) == {held.id}
    assert await states(db) == {("scheduled", None): 1}
    assert (await store.promote_due_tasks(db, now() + timedelta(hours=10), QUEUES)).promoted_count == 1


async def test_parked_task_that_is_woken_is_claimed_under_the_rate(db: Database, me: UUID) -> None:
    rate = RateLimit(10, "h")
    first = await create_task(db, rate_key="shop", rate_limit=rate, priority=1)
    other = await create_task(db, rate_key="shop", rate_limit=rate)
    assert await claim(db, me) == [first]
    await db.fetch_all("UPDATE tenuto.tasks SET began_at = now() WHERE id = $1", other)
    await run_in_transaction(db, lambda connection: external_events.wake_tasks(connection, {other}, now()))
    assert await states(db) == {("running", None): 1, ("queued", None): 1}
    assert await claim(db, me) == []
    assert await states(db) == {("running", None): 1, ("scheduled", "rate shop"): 1}


@pytest.mark.parametrize("group", ["g", manifests.ALL_MANIFESTS])
async def test_rate_of_a_group_applies_to_runs(db: Database, me: UUID, group: str) -> None:
    await save_group_rate(db, group, "4/h burst 2")
    await create_batch(db, await create_manifest(db, group="g"), 5)
    assert len(await claim_runs(db, me)) == 2
    assert await claim_runs(db, me) == []


async def save_group_rate(db: Database, group: str, rate_limit: str | None) -> None:
    settings = GroupSettings(rate_limit=rate_limit)
    await run_in_transaction(db, lambda connection: manifests.save_group(connection, group, settings, NOON, "test"))


async def test_claim_takes_no_task_of_an_unlocked_rate_key(db: Database, me: UUID) -> None:
    """The head of the limit key has another rate key; one that no transaction has locked comes next."""
    await create_task(db, limit_key="k", limit_max=9, rate_key="a", rate_limit=RateLimit(10, "h", 5), priority=1)
    await create_task(db, limit_key="k", limit_max=9, rate_key="b", rate_limit=RateLimit(10, "h", 5))
    async with db.connection() as connection, connection.transaction():
        locks = await connection.fetchrow(store.SQL.lock_limits, ["default"], [""], 10, [])
        assert locks is not None
        assert "rate b" not in locks["capped_scopes"]
        rows = await connection.fetch(
            store.SQL.claim_limited_tasks, me, LEASE, ["default"], 10, locks["queues_of_keys"], locks["keys"], [],
            None, None, locks["capped_scopes"], locks["uncapped_scopes"], 10,
        )  # fmt: skip
        assert len(rows) == 1
        assert rows[0]["unlocked_scopes"] == ["rate b"]
    assert len(await claim(db, me)) == 1
