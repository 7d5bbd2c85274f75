"""The nets (S10, W1): what a dead worker held is taken back, at once if it is known to be dead, else when its lease has
run out; in normal operation they find nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.errors import Conflict
from tenuto.lifecycle.completion import finish
from tenuto.maintenance import recovery
from tenuto.maintenance.recovery import NET_EXPIRED, NET_RESTARTED, NET_STUCK, recover, sweep
from tenuto.model.actors import Actor
from tenuto.model.policies import Policy
from tenuto.model.tasks import Settlement
from tenuto.postgres.database import Database
from tenuto.settings import load
from tenuto.store import activities, workers
from tenuto.store import tasks as store
from tenuto.store.claim_cursor import NOTHING_BEFORE
from tests.store.test_partitions import RECORD
from tests.support.engine_fixtures import Quick
from tests.support.model_values import a_new_task
from tests.support.tasks import LEASE, Register, claim, completed, now, rows, start, start_and_claim, the_task
from tests.support.waiting import eventually


@pytest.fixture
def expire(db: Database) -> Any:
    async def run_out() -> None:
        await db.all(
            "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms' WHERE state = 'running'"
        )

    return run_out


async def test_a_lease_that_has_run_out_makes_the_attempt_lost_and_the_task_is_tried_again_at_once(
    db: Database, register_worker: Register, expire: Any
) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker)
    await expire()
    assert await sweep(db, now()) == 1
    past, ahead = await activities.attempts(db, task.id)
    assert (past["status"], past["reason"], past["final"], past["worker_id"]) == ("failed", "lost", False, worker)
    assert past["started_at"] is not None
    assert past["error"]["type"] == "tenuto.Lost"
    assert (ahead["status"], ahead["attempt"], ahead["failures"], ahead["losses"]) == ("queued", 2, 0, 1)


async def test_a_live_lease_is_left_alone(db: Database, register_worker: Register) -> None:
    await start_and_claim(db, await register_worker())
    await start(db)
    before = await rows(db)
    assert await sweep(db, now()) == 0
    assert await rows(db) == before
    assert await workers.list_repairs(db) == []


async def test_what_a_worker_known_to_be_dead_held_is_taken_back_without_waiting(
    db: Database, register_worker: Register
) -> None:
    dead, alive = await register_worker(), await register_worker()
    lost = await start_and_claim(db, dead)
    kept = await start_and_claim(db, alive)
    await workers.leave(db, dead)
    assert await sweep(db, now()) == 1
    states = {row["id"]: row["state"] for row in await rows(db)}
    assert states == {lost.id: "queued", kept.id: "running"}
    assert [(row["net"], row["count"]) for row in await workers.list_repairs(db)] == [(NET_RESTARTED, 1)]


async def test_what_one_that_only_fell_silent_held_is_taken_back_when_its_lease_has_run_out(
    db: Database, register_worker: Register, expire: Any
) -> None:
    silent = await register_worker()
    task_id = await start(db)
    await db.all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    assert await workers.bury_silent(db, timedelta(minutes=5)) == 1
    await db.all(  # a claim that got in while it was being given up
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h'",
        silent,
    )
    assert await sweep(db, now()) == 0
    assert (await the_task(db))["state"] == "running"
    await expire()
    assert await sweep(db, now()) == 1
    assert (await the_task(db))["id"] == task_id
    assert (await the_task(db))["state"] == "queued"


async def test_a_holder_nobody_ever_heard_of_holds_nothing_for_longer_than_its_lease(db: Database, expire: Any) -> None:
    await start(db)
    await db.all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = gen_random_uuid(), fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h'"
    )
    await expire()
    assert await sweep(db, now()) == 1
    assert (await the_task(db))["state"] == "queued"


async def test_a_task_that_keeps_killing_its_workers_is_set_aside_at_the_third(
    db: Database, register_worker: Register, expire: Any
) -> None:
    worker = await register_worker()
    task_id = await start(db)
    for _ in range(3):
        await db.all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        assert len(await store.claim_under_limits(db, worker, ["default"], 10, LEASE)) == 1
        await expire()
        assert await sweep(db, now()) == 1
    assert await rows(db) == []
    records = await activities.attempts(db, task_id)
    assert [record["losses"] for record in records] == [1, 2, 3]
    assert [record["failures"] for record in records] == [0, 0, 0]
    assert [record["final"] for record in records] == [False, False, True]
    assert records[-1]["error"]["type"] == "tenuto.SetAside"
    assert (records[-1]["status"], records[-1]["reason"]) == ("failed", "lost")


KEYS: list[dict[str, Any]] = [
    {},
    {"limit_key": "batch:x", "limit_max": 100_000},
    {"limit_key": "customer 7", "limit_max": 2},
    {"limit_key": "customer 7", "limit_max": 2, "queue": "other"},
]


async def lose_all(db: Database, worker: UUID, expire: Any, most: int = 10) -> int:
    """What can be taken is taken and lost; how many."""
    await db.all("UPDATE tenuto.tasks SET state = 'queued', run_at = now() WHERE state <> 'running'")
    lost = len(await store.claim_under_limits(db, worker, ["default", "other"], most, LEASE))
    await expire()
    await sweep(db, now())
    return lost


@pytest.mark.parametrize("others", range(1, len(KEYS)))
async def test_tasks_with_one_chance_left_run_one_at_a_time_whatever_their_keys(
    db: Database, register_worker: Register, expire: Any, others: int
) -> None:
    """Else those that only ran beside a task that kills its workers would be set aside with it."""
    worker = await register_worker()
    for options in (KEYS[0], KEYS[others]):
        for _ in range(2):
            await start(db, **options)
    assert [await lose_all(db, worker, expire) for _ in range(2)] == [4, 4]
    for left in (4, 3, 2, 1):
        await db.all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        (alone,) = await store.claim_under_limits(db, worker, ["default", "other"], 10, LEASE)
        assert await store.claim_under_limits(db, worker, ["default", "other"], 10, LEASE) == []
        assert await finish(db, [Settlement(alone, completed())]) == {alone.id}
        assert len(await rows(db)) == left - 1


async def test_what_is_on_its_last_chance_keeps_nothing_behind_it_from_running_and_stands_by_for_nobody(
    db: Database, register_worker: Register, expire: Any
) -> None:
    worker = await register_worker()
    for _ in range(3):
        await start(db, **KEYS[1])
    assert [await lose_all(db, worker, expire) for _ in range(2)] == [3, 3]
    await db.all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
    for _ in range(3):
        await start(db, **KEYS[1])

    taken = await store.claim_under_limits(db, worker, ["default"], 3, LEASE)

    assert sorted(task.losses for task in taken) == [0, 0, 2]
    seat = next(task.seat for task in taken if task.losses == 0)
    assert seat is not None
    stands_by = await store.stand_by(db, worker, {seat: NOTHING_BEFORE}, 10, LEASE)
    assert [task.losses for task in stands_by] == [0]


async def test_losses_do_not_use_up_the_failures(db: Database, register_worker: Register, expire: Any) -> None:
    worker = await register_worker()
    await start(db, policy=Policy(RetryPolicy(max_retries=1)).to_json())
    for _ in range(2):
        await db.all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        await claim(db, worker)
        await expire()
        await sweep(db, now())
    assert (await the_task(db))["failures"] == 0


async def test_a_task_that_must_not_run_twice_fails_instead(
    db: Database, register_worker: Register, expire: Any
) -> None:
    task = await start_and_claim(db, await register_worker(), policy=Policy(on_lost="fail").to_json())
    await expire()
    await sweep(db, now())
    (record,) = await activities.attempts(db, task.id)
    assert (record["status"], record["reason"], record["final"]) == ("failed", "lost", True)


@pytest.mark.parametrize("policy", [Policy(), Policy(on_lost="fail")])
async def test_a_task_somebody_had_asked_to_stop_ends_as_cancelled(
    policy: Policy, db: Database, register_worker: Register, expire: Any
) -> None:
    task = await start_and_claim(db, await register_worker(), policy=policy.to_json())
    await store.ask_to_cancel(db, task, Actor.user("u-17", "Ana"))
    await expire()
    await sweep(db, now())
    (record,) = await activities.attempts(db, task.id)
    assert (record["status"], record["reason"], record["final"]) == ("cancelled", "requested", True)
    assert record["error"]["message"] == "cancelled by Ana"
    assert record["error"]["by"] == {"type": "user", "id": "u-17", "name": "Ana"}


async def test_what_is_found_is_counted_and_a_flood_is_taken_back_whole(
    db: Database, register_worker: Register, expire: Any
) -> None:
    holders = [await register_worker() for _ in range(3)]
    await store.start_alike(db, a_new_task(), ["{}"] * 1200)
    for holder in holders:
        await store.claim(db, holder, ["default"], 400, timedelta(seconds=30))
    await expire()
    assert await sweep(db, now()) == 1200
    assert {row["state"] for row in await rows(db)} == {"queued"}
    assert [(row["net"], row["count"]) for row in await workers.list_repairs(db)] == [(NET_EXPIRED, 1200)]


async def test_several_that_sweep_at_once_take_each_task_back_once(
    db: Database, register_worker: Register, expire: Any
) -> None:
    worker = await register_worker()
    for _ in range(20):
        await start(db)
    await claim(db, worker, limit=20)
    await expire()
    found = await asyncio.gather(*(sweep(db, now()) for _ in range(4)))
    assert sum(found) == 20
    assert len(await rows(db, "activities")) == 20


async def test_a_late_holder_finds_its_task_gone(db: Database, register_worker: Register, expire: Any) -> None:
    task = await start_and_claim(db, await register_worker())
    await expire()
    await sweep(db, now())
    assert await finish(db, [Settlement(task, completed())]) == set()


async def test_recovering_takes_back_what_one_worker_held(db: Database, register_worker: Register) -> None:
    dead, other = await register_worker(), await register_worker()
    await start_and_claim(db, dead)
    kept = await start_and_claim(db, other)
    assert await recover(db, dead, now()) == 1
    assert [row["id"] for row in await rows(db) if row["state"] == "running"] == [kept.id]


@pytest.mark.parametrize("batch", [2, 500])
async def test_a_task_that_cannot_be_settled_holds_up_no_other(
    batch: int, db: Database, register_worker: Register, expire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BATCH", batch)
    worker = await register_worker()
    ids = [await start(db) for _ in range(7)]
    await claim(db, worker, limit=7)
    for id in (ids[0], ids[1], ids[4]):  # something already lies where their records belong
        await db.all(RECORD, id, now(), now())
    await expire()
    assert await sweep(db, now()) == 4
    states = {row["id"]: row["state"] for row in await rows(db)}
    assert {id for id, state in states.items() if state == "running"} == {ids[0], ids[1], ids[4]}
    found = {row["net"]: row["count"] for row in await workers.list_repairs(db)}
    assert found == {NET_EXPIRED: 4, NET_STUCK: 3}


async def test_a_worker_starts_though_something_its_last_start_held_cannot_be_settled(
    db: Database, register_worker: Register
) -> None:
    dead = await register_worker()
    ids = [await start(db) for _ in range(2)]
    await claim(db, dead)
    await db.all(RECORD, ids[0], now(), now())
    assert await recover(db, dead, now()) == 1


# --- with a worker -------------------------------------------------------------------------------------------------


async def test_a_worker_that_starts_again_takes_back_at_once_what_its_last_start_held(
    app: Tenuto, worker: Quick, sql: Any
) -> None:
    @app.job
    async def bake() -> int:
        return 7

    async with worker(name="baker") as one:
        reach = one.identity.incarnation([], 0).host
    task = await app.enqueue(bake)
    await sql("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now()")  # as if it had been killed
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', fence = 1, claimed_at = now(),"
        " worker_id = (SELECT id FROM tenuto.workers), lease_until = now() + interval '1 h'"
    )
    async with worker(name="baker") as two:
        assert (await app.attempts(task.id))[0]["reason"] == "lost", "before it takes any work"
        record = await app.wait(task, timeout=10)
        assert two.identity.incarnation([], 0).host == reach
    assert (record["output"], record["attempt"], record["losses"]) == (7, 2, 1)
    assert [(row["net"], row["count"]) for row in await workers.list_repairs(await app.open())] == [(NET_RESTARTED, 1)]


async def test_a_worker_of_a_silent_one_s_name_leaves_it_what_its_lease_still_covers(
    app: Tenuto, worker: Quick, sql: Any
) -> None:
    """The other one's leases may be longer than ours."""

    @app.job
    async def bake() -> int:
        return 7

    await app.enqueue(bake)
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), 'baker', 'worker', 'elsewhere', 'x', 1, '0', '{}', 1, now(),"
        " now() - interval '61 s')"
    )
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', fence = 1, claimed_at = now(),"
        " worker_id = (SELECT id FROM tenuto.workers), lease_until = now() + interval '10 min'"
    )
    before = await sql("SELECT * FROM tenuto.tasks")
    with pytest.raises(Conflict, match="baker on elsewhere"):
        async with worker(name="baker", lease_seconds=30):
            pass
    assert await sql("SELECT * FROM tenuto.tasks") == before


async def test_the_sweep_runs_beside_a_worker(app: Tenuto, url: str, worker: Quick, sql: Any) -> None:
    quick = Tenuto(settings=load(database=url, home=app.settings.home, sweep_seconds=0.1))

    @quick.job
    async def bake() -> int:
        return 7

    try:
        async with quick.worker(slots=2, poll_seconds=60):
            task = await quick.enqueue(bake.using(queue="elsewhere"))
            await sql(
                "UPDATE tenuto.tasks SET queue = 'default', state = 'running', worker_id = gen_random_uuid(),"
                " fence = 1, claimed_at = now(), lease_until = now() - interval '1 s'"
            )
            assert (await quick.wait(task, timeout=10))["output"] == 7
    finally:
        await quick.close()


async def test_in_normal_operation_the_nets_find_nothing(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake(n: int) -> int:
        return n

    async with worker() as one:
        await app.enqueue_many(bake, range(100))
        await eventually(lambda: one.finished == 100)
        await sweep(await app.open(), now())
    assert await workers.list_repairs(await app.open()) == []
