"""Taking tasks (W3): the most urgent first, each by one worker only, none before its time, none over a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.ids import new_id
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tenuto.store import workers
from tenuto.store.claim_cursor import Bounds, Lap
from tests.support.model_values import NOON, a_held_task, a_new_task
from tests.support.tasks import LEASE, Register, claim, now, rows, start, start_and_claim, the_task


async def test_a_claim_makes_the_task_this_workers_for_the_time_of_the_lease(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    task_id = await start(db, priority=5, tags=["a"], correlation_id="c")
    (task,) = await claim(db, worker)
    row = await the_task(db)
    assert (row["state"], row["worker_id"], row["fence"]) == ("running", worker, 1)
    assert abs(row["lease_until"] - row["claimed_at"] - LEASE) < timedelta(seconds=5)  # the clock is read twice
    assert abs(row["claimed_at"] - now()) < timedelta(minutes=1)
    assert (task.id, task.activity_id, task.fence, task.worker_id, task.attempt) == (task_id, task_id, 1, worker, 1)
    assert (task.priority, task.tags, task.correlation_id, task.queue) == (5, ["a"], "c", "default")
    assert (task.initiator_type, task.initiator_id, task.initiator_name) == ("user", "ana", "Ana")


async def test_priority_goes_before_due_time_and_due_time_before_id(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    early, late = now() - timedelta(hours=2), now() - timedelta(hours=1)
    wanted = [
        await start(db, priority=9, run_at=late),
        await start(db, priority=0, run_at=early),
        await start(db, priority=0, run_at=late),
        await start(db, priority=0, run_at=late),
        await start(db, priority=-9, run_at=early),
    ]
    assert [task.id for task in await claim(db, worker)] == wanted


async def test_a_short_claim_takes_the_most_urgent(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(20):
        await start(db, priority=0)
    urgent = await start(db, priority=1)
    assert [task.id for task in await claim(db, worker, limit=1)] == [urgent]


async def test_several_queues_are_merged_by_urgency(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    same = now() - timedelta(hours=1)
    a_low = await start(db, queue="a", priority=1, run_at=same)
    b_high = await start(db, queue="b", priority=9, run_at=same)
    a_high = await start(db, queue="a", priority=8, run_at=same)
    await start(db, queue="c", priority=100, run_at=same)
    assert [task.id for task in await claim(db, worker, "a", "b", limit=2)] == [b_high, a_high]
    assert [task.id for task in await claim(db, worker, "b", "a", limit=2)] == [a_low]


async def test_what_is_not_due_or_not_of_these_queues_is_not_taken(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await start(db, run_at=now() + timedelta(hours=1))
    await start(db, queue="elsewhere")
    assert await claim(db, worker) == []


async def test_a_task_is_taken_once_however_many_ask(db: Database, register_worker: Register) -> None:
    names = [await register_worker() for _ in range(5)]
    await store.start_alike(db, a_new_task(), ["{}"] * 300)
    claims = await asyncio.gather(*(claim(db, name, limit=10) for name in names * 6))
    taken = [task.id for tasks in claims for task in tasks]
    assert len(taken) == len(set(taken)) == 300


async def test_a_worker_that_is_not_registered_or_was_declared_dead_takes_nothing(
    db: Database, register_worker: Register
) -> None:
    await start(db)
    dead = await register_worker()
    await workers.leave(db, dead)
    for stranger in (dead, new_id()):
        assert await claim(db, stranger) == []
        assert await store.claim_under_limits(db, stranger, ["default"], 10, LEASE) == []


async def test_the_fence_grows_with_every_claim(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    fences = []
    await start(db)
    for _ in range(3):
        (task,) = await claim(db, worker)
        fences.append(task.fence)
        await store.put_back(db, worker, [task])
    assert fences == [1, 2, 3]


async def test_what_is_put_back_unstarted_is_as_if_it_had_not_been_touched(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker)
    before = await the_task(db)
    assert await store.put_back(db, worker, [task]) == {task.id}
    row = await the_task(db)
    assert (row["state"], row["worker_id"], row["lease_until"], row["claimed_at"]) == ("queued", None, None, None)
    assert (row["attempt"], row["activity_id"], row["failures"], row["losses"]) == (1, task.id, 0, 0)
    assert row["fence"] == before["fence"], "the old holder's fence is used up: the next claim has a greater one"
    assert await rows(db, "activities") == []


# --- due times -----------------------------------------------------------------------------------------------------


async def test_what_has_fallen_due_becomes_free_and_the_next_instant_is_told(db: Database) -> None:
    await start(db, run_at=NOON)
    soon = await start(db, run_at=NOON + timedelta(minutes=5))
    outlook = await store.promote(db, NOON - timedelta(seconds=1), ["default"])
    assert (outlook.promoted, outlook.next_due) == (0, NOON)
    outlook = await store.promote(db, NOON, ["default"])
    assert (outlook.promoted, outlook.next_due) == (1, NOON + timedelta(minutes=5))
    assert {row["id"]: row["state"] for row in await rows(db)}[soon] == "scheduled"
    outlook = await store.promote(db, NOON + timedelta(minutes=5), ["default"])
    assert (outlook.promoted, outlook.next_due) == (1, None)


async def test_a_flood_of_due_tasks_is_let_in_a_batch_at_a_time_the_oldest_first(db: Database) -> None:
    for minute in range(5):
        await start(db, run_at=NOON + timedelta(minutes=minute))
    assert (await store.promote(db, NOON + timedelta(hours=1), ["default"], limit=2)).promoted == 2
    due = [row["run_at"] for row in await rows(db) if row["state"] == "queued"]
    assert sorted(due) == [NOON, NOON + timedelta(minutes=1)]


async def test_two_that_promote_at_once_promote_each_task_once(db: Database) -> None:
    await store.start_alike(db, a_new_task(run_at=NOON), ["{}"] * 200)
    looks = await asyncio.gather(*(store.promote(db, NOON, ["default"]) for _ in range(4)))
    assert sum(look.promoted for look in looks) == 200


@pytest.mark.parametrize(
    ("fields", "limited"),
    [
        ({}, False),
        ({"limit_key": "gas", "limit_max": 1}, True),
        ({"limit_key": "gas", "limit_max": 1, "queue": "elsewhere"}, False),
        ({"limit_key": "gas", "limit_max": 1, "run_at": NOON}, True),
    ],
)
async def test_looking_ahead_tells_whether_claims_must_count(
    fields: dict[str, object], limited: bool, db: Database
) -> None:
    await start(db, **fields)
    assert (await store.promote(db, NOON, ["default"])).limited is limited


# --- the shortcut --------------------------------------------------------------------------------------------------


async def test_a_bound_passes_over_what_lies_before_it_and_no_more(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    bounds = Bounds()
    same = now() - timedelta(hours=1)
    await start(db, priority=5, run_at=same)
    bounds.moved_past(await store.claim(db, worker, ["default"], 10, LEASE, bounds))
    before = await start(db, priority=9, run_at=same)
    after = await start(db, priority=1, run_at=same)
    assert [task.id for task in await store.claim(db, worker, ["default"], 10, LEASE, bounds)] == [after]
    assert [task.id for task in await store.claim(db, worker, ["default"], 10, LEASE, Bounds())] == [before]


async def test_each_queue_has_a_bound_of_its_own(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    bounds = Bounds()
    await start(db, queue="a", priority=-5)
    bounds.moved_past(await store.claim(db, worker, ["a"], 10, LEASE, bounds))
    other = await start(db, queue="b", priority=9)
    assert [task.id for task in await store.claim(db, worker, ["a", "b"], 10, LEASE, bounds)] == [other]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=12), st.integers(1, 4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_claiming_with_bounds_until_nothing_comes_leaves_nothing(
    db: Database, register_worker: Register, urgencies: list[tuple[int, int]], batch: int
) -> None:
    """As the worker does: when a claim under bounds comes back short, it looks once more without."""
    worker = await register_worker()
    ids = {
        await start(db, priority=priority, run_at=now() - timedelta(minutes=1 + minute))
        for priority, minute in urgencies
    }
    bounds, taken = Bounds(), set()
    while True:
        tasks = await store.claim(db, worker, ["default"], batch, LEASE, bounds)
        if len(tasks) < batch and bounds.after:
            bounds = Bounds()
            tasks += await store.claim(db, worker, ["default"], batch, LEASE, bounds)
        bounds.moved_past(tasks)
        taken |= {task.id for task in tasks}
        if not tasks:
            break
    assert taken == ids
    await db.all("DELETE FROM tenuto.tasks")


# --- limits --------------------------------------------------------------------------------------------------------


async def limited(db: Database, worker_id: object, *queues: str, limit: int = 100) -> list[str]:
    tasks = await store.claim_under_limits(db, worker_id, queues or ("default",), limit, LEASE)  # type: ignore[arg-type]
    return [task.name for task in tasks]


async def set_queue(db: Database, name: str, max_running: int | None = None, *, paused: bool = False) -> None:
    await workers.limit_queue(db, name, max_running)
    if paused:
        await workers.pause_queue(db, name, by="ana", reason="test")
    else:
        await workers.resume_queue(db, name)


async def test_a_queue_never_runs_more_than_its_limit(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 3)
    for _ in range(10):
        await start(db)
    assert len(await limited(db, worker)) == 3
    assert await limited(db, worker) == []
    held = [row for row in await rows(db) if row["state"] == "running"]
    await db.all("DELETE FROM tenuto.tasks WHERE id = $1", held[0]["id"])
    assert len(await limited(db, worker)) == 1


async def test_a_plain_claim_leaves_limited_and_paused_queues_and_limited_keys_alone(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    await set_queue(db, "narrow", 1)
    await set_queue(db, "closed", paused=True)
    await start(db, queue="narrow")
    await start(db, queue="closed")
    await start(db, queue="open", limit_key="gas", limit_max=1)
    free = await start(db, queue="open")
    assert [task.id for task in await claim(db, worker, "narrow", "closed", "open")] == [free]


async def test_nothing_of_a_paused_queue_is_taken_until_it_is_resumed(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await start(db)
    await set_queue(db, "default", paused=True)
    assert await limited(db, worker) == []
    await set_queue(db, "default")
    assert len(await limited(db, worker)) == 1


async def test_a_key_never_runs_more_than_its_limit_over_all_queues(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for queue in ("a", "b"):
        for _ in range(5):
            await start(db, queue=queue, name="gas", limit_key="gas", limit_max=3)
            await start(db, queue=queue, name="free")
    taken = await limited(db, worker, "a", "b")
    assert (taken.count("gas"), taken.count("free")) == (3, 10)
    assert await limited(db, worker, "a", "b") == []


async def test_a_full_key_does_not_stand_in_the_way_of_other_keys(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for n in range(200):
        await start(db, name=f"key {n % 4}".replace(" ", "-"), limit_key=f"key {n % 4}", limit_max=1, priority=-(n % 4))
    assert sorted(await limited(db, worker, limit=4)) == ["key-0", "key-1", "key-2", "key-3"]


async def test_a_queue_and_a_key_limit_hold_together(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "a", 4)
    for _ in range(10):
        await start(db, queue="a", name="gas", limit_key="gas", limit_max=2)
        await start(db, queue="a", name="free")
    taken = await limited(db, worker, "a")
    assert len(taken) == 4
    assert taken.count("gas") <= 2


async def test_a_lease_that_has_run_out_takes_no_place(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 1)
    for _ in range(2):
        await start(db)
    assert len(await limited(db, worker)) == 1
    assert await limited(db, worker) == []
    await db.all("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
    assert len(await limited(db, worker)) == 1


async def test_many_that_claim_under_a_limit_at_once_stay_within_it(db: Database, register_worker: Register) -> None:
    names = [await register_worker() for _ in range(4)]
    await set_queue(db, "default", 7)
    for _ in range(30):
        await start(db)
        await start(db, queue="keyed", limit_key="gas", limit_max=5)
    await asyncio.gather(*(limited(db, name, "default", "keyed", limit=5) for name in names * 5))
    running = [row["queue"] for row in await rows(db) if row["state"] == "running"]
    assert (running.count("default"), running.count("keyed")) == (7, 5)


async def test_under_limits_the_most_urgent_still_go_first(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    await set_queue(db, "default", 2)
    for priority in (1, 9, 5):
        await start(db, name=f"p{priority}", priority=priority)
    assert await limited(db, worker) == ["p9", "p5"]


async def test_the_list_of_queues_tells_limits_pauses_and_what_is_in_them(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    await set_queue(db, "narrow", 3)
    await set_queue(db, "closed", paused=True)
    await start(db, queue="narrow")
    await start(db, queue="narrow", run_at=NOON)
    await start_and_claim(db, worker)
    listed = {queue["name"]: queue for queue in await workers.list_queues(db)}
    assert set(listed) == {"narrow", "closed", "default"}
    assert (listed["narrow"]["max_running"], listed["narrow"]["queued"], listed["narrow"]["scheduled"]) == (3, 1, 1)
    assert listed["default"]["running"] == 1
    assert (listed["closed"]["paused_by"], listed["closed"]["reason"]) == ("ana", "test")
    assert listed["closed"]["paused_at"] is not None


# --- many limited keys ---------------------------------------------------------------------------------------------


async def keyed(db: Database, keys: int, each: int = 1, **fields: Any) -> None:
    """Tasks under so many keys, each of which lets one run: the first of each key, then the second of each key …"""
    names = [f"key-{n:03}" for n in range(keys)]
    tasks = [a_new_task(name=name, limit_key=name, limit_max=1, **fields) for _ in range(each) for name in names]
    await store.start(db, tasks)


async def end_all(db: Database) -> None:
    await db.all("DELETE FROM tenuto.tasks WHERE state = 'running'")


async def test_a_claim_looks_at_some_keys_and_the_next_one_goes_on_from_there(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEYS_PER_CLAIM", 5)
    worker, lap = await register_worker(), Lap()
    await keyed(db, 12)
    taken = []
    for left_out in (True, True, False):
        taken.append([t.name for t in await store.claim_under_limits(db, worker, ["default"], 100, LEASE, lap)])
        assert lap.left_out is left_out or not left_out
    assert taken == [[f"key-{n:03}" for n in group] for group in (range(5), range(5, 10), range(10, 12))]
    assert await store.claim_under_limits(db, worker, ["default"], 100, LEASE, lap) == []
    assert not lap.left_out, "now it has been round, and there was nothing"


async def test_no_key_starves_however_many_there_are_and_however_few_slots(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEYS_PER_CLAIM", 5)
    worker, lap = await register_worker(), Lap()
    await keyed(db, 40, each=30)
    served: set[str] = set()
    for _ in range(3 * 40 // 2):  # at two a claim, three times as many as there are keys
        served |= {task.name for task in await store.claim_under_limits(db, worker, ["default"], 2, LEASE, lap)}
        await end_all(db)
    assert len(served) == 40


async def test_a_key_with_room_is_found_behind_any_number_without(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEYS_PER_CLAIM", 5)
    worker = await register_worker()
    await keyed(db, 31, each=2)
    await db.all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, claimed_at = now(), fence = 1,"
        " lease_until = now() + interval '1 h' WHERE id IN (SELECT min(id::text)::uuid FROM tenuto.tasks"
        " WHERE limit_key < 'key-030' GROUP BY limit_key)",
        worker,
    )
    assert await limited(db, worker, limit=10) == ["key-030"]
    assert await limited(db, worker, limit=10) == []


async def test_a_queue_that_had_no_room_for_a_while_goes_on_where_it_was(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEYS_PER_CLAIM", 5)
    worker, lap = await register_worker(), Lap()
    await set_queue(db, "default", 1)
    await keyed(db, 20, each=20)
    served: set[str] = set()
    for _ in range(60):
        taken = await store.claim_under_limits(db, worker, ["default"], 10, LEASE, lap)
        assert len(taken) == 1
        assert await store.claim_under_limits(db, worker, ["default"], 10, LEASE, lap) == []
        served |= {task.name for task in taken}
        await end_all(db)
    assert len(served) == 20


async def test_each_queue_is_gone_through_at_its_own_pace(
    db: Database, register_worker: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEYS_PER_CLAIM", 5)
    worker, lap = await register_worker(), Lap()
    await keyed(db, 12, queue="a")
    await keyed(db, 3, queue="b")  # of the same names: a key is one over all queues
    await start(db, queue="c", name="free")
    names = []
    while tasks := await store.claim_under_limits(db, worker, ["a", "b", "c"], 100, LEASE, lap):
        names += [task.name for task in tasks]
    assert sorted(names) == sorted([f"key-{n:03}" for n in range(12)] + ["free"])


# --- what is not to be taken ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"limit_key": "gas", "limit_max": 5}], ids=["free", "limited"])
async def test_a_claim_leaves_out_what_it_is_told_to_and_takes_the_rest(
    fields: dict[str, Any], db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    first, second = await start(db, **fields), await start(db, **fields)
    for without, expected in (({first}, {second}), ({first}, set()), (set(), {first})):
        if fields:
            tasks = await store.claim_under_limits(db, worker, ["default"], 10, LEASE, None, without)
        else:
            tasks = await store.claim(db, worker, ["default"], 10, LEASE, None, without)
        assert {task.id for task in tasks} == expected


# --- what is told while a claim is under way -----------------------------------------------------------------------


@pytest.mark.parametrize(("heard", "kept"), [(-6, False), (-5, True), (3, True), (None, False)])
def test_a_bound_is_not_set_up_past_what_was_told_of_meanwhile(heard: int | None, kept: bool) -> None:
    bounds = Bounds()
    bounds.more_urgent("default", -99)
    bounds.asked()  # what was told before, this claim sees
    bounds.more_urgent("default") if heard is None else bounds.more_urgent("default", heard)
    bounds.moved_past([a_held_task(priority=5)])
    assert ("default" in bounds.after) is kept


def test_a_bound_dropped_while_a_claim_is_under_way_stays_dropped() -> None:
    bounds = Bounds()
    bounds.moved_past([a_held_task(priority=5)])
    bounds.asked()
    bounds.more_urgent("default", -7)
    bounds.moved_past([a_held_task(priority=4)])
    assert bounds.after == {}
    bounds.asked()
    bounds.moved_past([a_held_task(priority=4)])
    assert "default" in bounds.after
