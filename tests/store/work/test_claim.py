"""Claiming tasks (W3): most urgent first, each by one worker, none before its time, none over a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.ids import new_id
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation, workers
from tenuto.store.work import tasks as store
from tenuto.store.work.tasks import ClaimCursor, LimitKeyCursor
from tests.support.model_values import NOON, make_held_task, make_new_task
from tests.support.tasks import LEASE, Register, claim, create_and_claim, create_task, now, read_only_task, read_rows


async def test_claim_leases_the_task_to_the_worker(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task_id = await create_task(db, priority=5, tags=["a"], correlation_id="c")
    (task,) = await claim(db, worker)
    row = await read_only_task(db)
    assert (row["state"], row["worker_id"], row["fence"]) == ("running", worker, 1)
    assert abs(row["lease_until"] - row["claimed_at"] - LEASE) < timedelta(seconds=5)  # the clock is read twice
    assert abs(row["claimed_at"] - now()) < timedelta(minutes=1)
    assert (task.id, task.activity_id, task.fence, task.worker_id, task.attempt) == (task_id, task_id, 1, worker, 1)
    assert (task.priority, task.tags, task.correlation_id, task.queue) == (5, ["a"], "c", "default")
    assert (task.initiator_type, task.initiator_id, task.initiator_name) == ("user", "ana", "Ana")


async def test_claim_orders_by_priority_due_time_and_id(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    early, late = now() - timedelta(hours=2), now() - timedelta(hours=1)
    wanted = [
        await create_task(db, priority=9, run_at=late),
        await create_task(db, priority=0, run_at=early),
        await create_task(db, priority=0, run_at=late),
        await create_task(db, priority=0, run_at=late),
        await create_task(db, priority=-9, run_at=early),
    ]
    assert [task.id for task in await claim(db, worker)] == wanted


async def test_claim_with_small_limit_takes_the_most_urgent_tasks(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(20):
        await create_task(db, priority=0)
    urgent = await create_task(db, priority=1)
    assert [task.id for task in await claim(db, worker, limit=1)] == [urgent]


async def test_claim_merges_queues_by_urgency(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    same = now() - timedelta(hours=1)
    a_low = await create_task(db, queue="a", priority=1, run_at=same)
    b_high = await create_task(db, queue="b", priority=9, run_at=same)
    a_high = await create_task(db, queue="a", priority=8, run_at=same)
    await create_task(db, queue="c", priority=100, run_at=same)
    assert [task.id for task in await claim(db, worker, "a", "b", limit=2)] == [b_high, a_high]
    assert [task.id for task in await claim(db, worker, "b", "a", limit=2)] == [a_low]


async def test_claim_ignores_scheduled_tasks_and_other_queues(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await create_task(db, run_at=now() + timedelta(hours=1))
    await create_task(db, queue="elsewhere")
    assert await claim(db, worker) == []


async def test_task_is_claimed_once_by_concurrent_workers(db: Database, register_worker: Register) -> None:
    names = [await register_worker() for _ in range(5)]
    await task_creation.enqueue_bulk(db, make_new_task(), ["{}"] * 300)
    claims = await asyncio.gather(*(claim(db, name, limit=10) for name in names * 6))
    taken = [task.id for tasks in claims for task in tasks]
    assert len(taken) == len(set(taken)) == 300


async def test_unregistered_or_ended_worker_claims_nothing(db: Database, register_worker: Register) -> None:
    await create_task(db)
    dead = await register_worker()
    await workers.deregister_process(db, dead)
    for stranger in (dead, new_id()):
        assert await claim(db, stranger) == []
        assert await store.claim_limited_tasks(db, stranger, ["default"], 10, LEASE) == []


async def test_fence_grows_with_every_claim(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    fences = []
    await create_task(db)
    for _ in range(3):
        (task,) = await claim(db, worker)
        fences.append(task.fence)
        await store.return_tasks_to_queue(db, worker, [task])
    assert fences == [1, 2, 3]


async def test_task_returned_to_queue_is_unchanged(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    before = await read_only_task(db)
    assert await store.return_tasks_to_queue(db, worker, [task]) == {task.id}
    row = await read_only_task(db)
    assert (row["state"], row["worker_id"], row["lease_until"], row["claimed_at"]) == ("queued", None, None, None)
    assert (row["attempt"], row["activity_id"], row["failures"], row["losses"]) == (1, task.id, 0, 0)
    assert row["fence"] == before["fence"], "the next claim has a greater fence"
    assert await read_rows(db, "activities") == []


# --- due times -----------------------------------------------------------------------------------------------------


async def test_promotion_queues_due_tasks_and_returns_the_next_instant(db: Database) -> None:
    await create_task(db, run_at=NOON)
    soon = await create_task(db, run_at=NOON + timedelta(minutes=5))
    outlook = await store.promote_due_tasks(db, NOON - timedelta(seconds=1), ["default"])
    assert (outlook.promoted_count, outlook.next_due_at) == (0, NOON)
    outlook = await store.promote_due_tasks(db, NOON, ["default"])
    assert (outlook.promoted_count, outlook.next_due_at) == (1, NOON + timedelta(minutes=5))
    assert {row["id"]: row["state"] for row in await read_rows(db)}[soon] == "scheduled"
    outlook = await store.promote_due_tasks(db, NOON + timedelta(minutes=5), ["default"])
    assert (outlook.promoted_count, outlook.next_due_at) == (1, None)


async def test_promotion_is_limited_and_takes_the_oldest_first(db: Database) -> None:
    for minute in range(5):
        await create_task(db, run_at=NOON + timedelta(minutes=minute))
    assert (await store.promote_due_tasks(db, NOON + timedelta(hours=1), ["default"], limit=2)).promoted_count == 2
    due = [row["run_at"] for row in await read_rows(db) if row["state"] == "queued"]
    assert sorted(due) == [NOON, NOON + timedelta(minutes=1)]


async def test_concurrent_promotions_promote_each_task_once(db: Database) -> None:
    await task_creation.enqueue_bulk(db, make_new_task(run_at=NOON), ["{}"] * 200)
    looks = await asyncio.gather(*(store.promote_due_tasks(db, NOON, ["default"]) for _ in range(4)))
    assert sum(look.promoted_count for look in looks) == 200


@pytest.mark.parametrize(
    ("fields", "has_limits"),
    [
        ({}, False),
        ({"limit_key": "gas", "limit_max": 1}, True),
        ({"limit_key": "gas", "limit_max": 1, "queue": "elsewhere"}, False),
        ({"limit_key": "gas", "limit_max": 1, "run_at": NOON}, True),
    ],
)
async def test_promotion_reports_whether_claims_must_check_limits(
    fields: dict[str, object], has_limits: bool, db: Database
) -> None:
    await create_task(db, **fields)
    assert (await store.promote_due_tasks(db, NOON, ["default"])).has_limits is has_limits


# --- claim cursor -------------------------------------------------------------------------------------------------


async def test_claim_cursor_skips_exactly_the_tasks_before_it(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    cursor = ClaimCursor()
    same = now() - timedelta(hours=1)
    await create_task(db, priority=5, run_at=same)
    cursor.advance_past(await store.claim_tasks(db, worker, ["default"], 10, LEASE, cursor))
    before = await create_task(db, priority=9, run_at=same)
    after = await create_task(db, priority=1, run_at=same)
    assert [task.id for task in await store.claim_tasks(db, worker, ["default"], 10, LEASE, cursor)] == [after]
    assert [task.id for task in await store.claim_tasks(db, worker, ["default"], 10, LEASE, ClaimCursor())] == [before]


async def test_claim_cursor_is_kept_per_queue(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    cursor = ClaimCursor()
    await create_task(db, queue="a", priority=-5)
    cursor.advance_past(await store.claim_tasks(db, worker, ["a"], 10, LEASE, cursor))
    other = await create_task(db, queue="b", priority=9)
    assert [task.id for task in await store.claim_tasks(db, worker, ["a", "b"], 10, LEASE, cursor)] == [other]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=12), st.integers(1, 4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_repeated_claims_with_cursor_claim_all_tasks(
    db: Database, register_worker: Register, urgencies: list[tuple[int, int]], batch: int
) -> None:
    """Like the worker: after a claim with a cursor returned too little, claim once without it."""
    worker = await register_worker()
    ids = {
        await create_task(db, priority=priority, run_at=now() - timedelta(minutes=1 + minute))
        for priority, minute in urgencies
    }
    cursor, taken = ClaimCursor(), set()
    while True:
        tasks = await store.claim_tasks(db, worker, ["default"], batch, LEASE, cursor)
        if len(tasks) < batch and cursor.positions:
            cursor = ClaimCursor()
            tasks += await store.claim_tasks(db, worker, ["default"], batch, LEASE, cursor)
        cursor.advance_past(tasks)
        taken |= {task.id for task in tasks}
        if not tasks:
            break
    assert taken == ids
    await db.fetch_all("DELETE FROM tenuto.tasks")


# --- limits --------------------------------------------------------------------------------------------------------


async def claim_names_under_limits(db: Database, worker_id: object, *queues: str, limit: int = 100) -> list[str]:
    tasks = await store.claim_limited_tasks(db, worker_id, queues or ("default",), limit, LEASE)  # type: ignore[arg-type]
    return [task.name for task in tasks]


async def set_queue(db: Database, name: str, max_running: int | None = None, *, paused: bool = False) -> None:
    await db.transaction(lambda connection: workers.limit_queue(connection, name, max_running))
    if paused:
        await db.transaction(lambda connection: workers.pause_queue(connection, name, by="ana", reason="test"))
    else:
        await db.transaction(lambda connection: workers.resume_queue(connection, name))


async def test_queue_limit_is_never_exceeded(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 3)
    for _ in range(10):
        await create_task(db)
    assert len(await claim_names_under_limits(db, worker)) == 3
    assert await claim_names_under_limits(db, worker) == []
    held = [row for row in await read_rows(db) if row["state"] == "running"]
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE id = $1", held[0]["id"])
    assert len(await claim_names_under_limits(db, worker)) == 1


async def test_unlimited_claim_ignores_limited_and_paused_queues_and_limit_keys(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    await set_queue(db, "narrow", 1)
    await set_queue(db, "closed", paused=True)
    await create_task(db, queue="narrow")
    await create_task(db, queue="closed")
    await create_task(db, queue="open", limit_key="gas", limit_max=1)
    free = await create_task(db, queue="open")
    assert [task.id for task in await claim(db, worker, "narrow", "closed", "open")] == [free]


@pytest.mark.parametrize("max_running", [None, 1], ids=["claim without a cap", "claim under a cap"])
async def test_paused_queue_is_not_claimed_until_resumed(
    db: Database, register_worker: Register, max_running: int | None
) -> None:
    worker = await register_worker()
    await create_task(db)
    await set_queue(db, "other", max_running=max_running)  # a cap of any queue decides which statement claims
    await set_queue(db, "default", paused=True)
    assert await claim_names_under_limits(db, worker, "default", "other") == []
    await set_queue(db, "default")
    assert len(await claim_names_under_limits(db, worker, "default", "other")) == 1


async def test_limit_key_is_never_exceeded_across_queues(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for queue in ("a", "b"):
        for _ in range(5):
            await create_task(db, queue=queue, name="gas", limit_key="gas", limit_max=3)
            await create_task(db, queue=queue, name="free")
    taken = await claim_names_under_limits(db, worker, "a", "b")
    assert (taken.count("gas"), taken.count("free")) == (3, 10)
    assert await claim_names_under_limits(db, worker, "a", "b") == []


async def test_full_limit_key_does_not_block_other_keys(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for n in range(200):
        await create_task(
            db, name=f"key {n % 4}".replace(" ", "-"), limit_key=f"key {n % 4}", limit_max=1, priority=-(n % 4)
        )
    assert sorted(await claim_names_under_limits(db, worker, limit=4)) == ["key-0", "key-1", "key-2", "key-3"]


async def test_queue_limit_and_key_limit_apply_together(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "a", 4)
    for _ in range(10):
        await create_task(db, queue="a", name="gas", limit_key="gas", limit_max=2)
        await create_task(db, queue="a", name="free")
    taken = await claim_names_under_limits(db, worker, "a")
    assert len(taken) == 4
    assert taken.count("gas") <= 2


async def test_expired_lease_does_not_count_under_limits(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 1)
    for _ in range(2):
        await create_task(db)
    assert len(await claim_names_under_limits(db, worker)) == 1
    assert await claim_names_under_limits(db, worker) == []
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
    assert len(await claim_names_under_limits(db, worker)) == 1


async def test_concurrent_claims_stay_within_the_limit(db: Database, register_worker: Register) -> None:
    names = [await register_worker() for _ in range(4)]
    await set_queue(db, "default", 7)
    for _ in range(30):
        await create_task(db)
        await create_task(db, queue="keyed", limit_key="gas", limit_max=5)
    await asyncio.gather(*(claim_names_under_limits(db, name, "default", "keyed", limit=5) for name in names * 5))
    running = [row["queue"] for row in await read_rows(db) if row["state"] == "running"]
    assert (running.count("default"), running.count("keyed")) == (7, 5)


async def test_limited_claim_takes_the_most_urgent_tasks_first(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 2)
    for priority in (1, 9, 5):
        await create_task(db, name=f"p{priority}", priority=priority)
    assert await claim_names_under_limits(db, worker) == ["p9", "p5"]


async def test_queue_list_contains_limits_pauses_and_counts(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "narrow", 3)
    await set_queue(db, "closed", paused=True)
    await create_task(db, queue="narrow")
    await create_task(db, queue="narrow", run_at=NOON)
    await create_and_claim(db, worker)
    listed = {queue.name: queue for queue in await workers.list_queues(db)}
    assert set(listed) == {"narrow", "closed", "default"}
    assert (listed["narrow"].max_running, listed["narrow"].queued_count, listed["narrow"].scheduled_count) == (3, 1, 1)
    assert listed["default"].running_count == 1
    assert (listed["closed"].paused_by, listed["closed"].reason) == ("ana", "test")
    assert listed["closed"].paused_at is not None


# --- many limit keys -----------------------------------------------------------------------------------------------


async def enqueue_with_keys(db: Database, keys: int, each: int = 1, **fields: Any) -> None:
    """Enqueue tasks with limit 1 under several keys: the first of each key, then the second of each key, …"""
    names = [f"key-{n:03}" for n in range(keys)]
    tasks = [make_new_task(name=name, limit_key=name, limit_max=1, **fields) for _ in range(each) for name in names]
    await task_creation.enqueue_tasks(db, tasks)


async def end_all_tasks(db: Database) -> None:
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE state = 'running'")


async def test_limited_claim_continues_after_the_last_key_read(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_KEYS_PER_CLAIM", 5)
    worker, key_cursor = await register_worker(), LimitKeyCursor()
    await enqueue_with_keys(db, 12)
    taken = []
    for left_out in (True, True, False):
        taken.append([t.name for t in await store.claim_limited_tasks(db, worker, ["default"], 100, LEASE, key_cursor)])
        assert key_cursor.has_unseen_keys is left_out or not left_out
    assert taken == [[f"key-{n:03}" for n in group] for group in (range(5), range(5, 10), range(10, 12))]
    assert await store.claim_limited_tasks(db, worker, ["default"], 100, LEASE, key_cursor) == []
    assert not key_cursor.has_unseen_keys, "all keys were read, and none had a claimable task"


async def test_no_limit_key_starves_with_many_keys_and_few_slots(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_KEYS_PER_CLAIM", 5)
    worker, key_cursor = await register_worker(), LimitKeyCursor()
    await enqueue_with_keys(db, 40, each=30)
    served: set[str] = set()
    for _ in range(3 * 40 // 2):  # two per claim: three times the number of keys
        served |= {task.name for task in await store.claim_limited_tasks(db, worker, ["default"], 2, LEASE, key_cursor)}
        await end_all_tasks(db)
    assert len(served) == 40


async def test_limited_claim_finds_a_free_key_behind_many_full_ones(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_KEYS_PER_CLAIM", 5)
    worker = await register_worker()
    await enqueue_with_keys(db, 31, each=2)
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, claimed_at = now(), fence = 1,"
        " lease_until = now() + interval '1 h' WHERE id IN (SELECT min(id::text)::uuid FROM tenuto.tasks"
        " WHERE limit_key < 'key-030' GROUP BY limit_key)",
        worker,
    )
    assert await claim_names_under_limits(db, worker, limit=10) == ["key-030"]
    assert await claim_names_under_limits(db, worker, limit=10) == []


async def test_key_cursor_keeps_its_position_while_the_queue_is_full(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_KEYS_PER_CLAIM", 5)
    worker, key_cursor = await register_worker(), LimitKeyCursor()
    await set_queue(db, "default", 1)
    await enqueue_with_keys(db, 20, each=20)
    served: set[str] = set()
    for _ in range(60):
        taken = await store.claim_limited_tasks(db, worker, ["default"], 10, LEASE, key_cursor)
        assert len(taken) == 1
        assert await store.claim_limited_tasks(db, worker, ["default"], 10, LEASE, key_cursor) == []
        served |= {task.name for task in taken}
        await end_all_tasks(db)
    assert len(served) == 20


async def test_key_cursor_advances_per_queue(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_KEYS_PER_CLAIM", 5)
    worker, key_cursor = await register_worker(), LimitKeyCursor()
    await enqueue_with_keys(db, 12, queue="a")
    await enqueue_with_keys(db, 3, queue="b")  # same names: a limit key applies to all queues
    await create_task(db, queue="c", name="free")
    names = []
    while tasks := await store.claim_limited_tasks(db, worker, ["a", "b", "c"], 100, LEASE, key_cursor):
        names += [task.name for task in tasks]
    assert sorted(names) == sorted([f"key-{n:03}" for n in range(12)] + ["free"])


# --- excluded tasks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"limit_key": "gas", "limit_max": 5}], ids=["free", "limited"])
async def test_claim_skips_excluded_tasks(fields: dict[str, Any], db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    first, second = await create_task(db, **fields), await create_task(db, **fields)
    for without, expected in (({first}, {second}), ({first}, set()), (set(), {first})):
        if fields:
            tasks = await store.claim_limited_tasks(db, worker, ["default"], 10, LEASE, None, without)
        else:
            tasks = await store.claim_tasks(db, worker, ["default"], 10, LEASE, None, without)
        assert {task.id for task in tasks} == expected


# --- announcements during a claim ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("announced_rank", "advances"), [(-6, False), (-5, True), (3, True), (None, False)])
def test_claim_cursor_does_not_pass_a_task_announced_meanwhile(announced_rank: int | None, advances: bool) -> None:
    cursor = ClaimCursor()
    cursor.note_arrival("default", -99)
    cursor.begin_claim()  # the claim sees earlier announcements
    cursor.note_arrival("default") if announced_rank is None else cursor.note_arrival("default", announced_rank)
    cursor.advance_past([make_held_task(priority=5)])
    assert ("default" in cursor.positions) is advances


def test_claim_cursor_dropped_during_a_claim_stays_dropped() -> None:
    cursor = ClaimCursor()
    cursor.advance_past([make_held_task(priority=5)])
    cursor.begin_claim()
    cursor.note_arrival("default", -7)
    cursor.advance_past([make_held_task(priority=4)])
    assert cursor.positions == {}
    cursor.begin_claim()
    cursor.advance_past([make_held_task(priority=4)])
    assert "default" in cursor.positions
