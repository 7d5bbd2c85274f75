"""Recovery (S10, W1): tasks of dead workers are recovered: at once if the death is proven, else after the lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import (
    REPAIR_LEASE_EXPIRED,
    REPAIR_NOT_SETTLED,
    REPAIR_WORKER_RESTARTED,
    recover_lost_tasks,
    recover_tasks_of_worker,
)
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.work.tasks import Settlement
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tenuto.store.work import activities, task_creation, workers
from tenuto.store.work import tasks as store
from tenuto.store.work.tasks import QUEUE_START
from tests.store.test_partitions import RECORD
from tests.support.errors import raises_code
from tests.support.model_values import make_new_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import (
    LEASE,
    Register,
    claim,
    completed_outcome,
    create_and_claim,
    create_task,
    now,
    read_only_task,
    read_rows,
)
from tests.support.waiting import eventually


@pytest.fixture
def expire_leases(db: Database) -> Any:
    async def expire() -> None:
        await db.fetch_all(
            "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms' WHERE state = 'running'"
        )

    return expire


async def test_recovery_retries_a_task_with_expired_lease(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    await expire_leases()
    assert await recover_lost_tasks(db, now()) == 1
    past, ahead = await activities.list_attempts(db, task.id)
    assert (past.state, past.reason, past.final, past.worker_id) == ("failed", "lost", False, worker)
    assert past.started_at is not None
    assert past.error["type"] == "tenuto.Lost"
    assert (ahead.state, ahead.attempt, ahead.failure_count, ahead.loss_count) == ("queued", 2, 0, 1)


async def test_recovery_ignores_tasks_with_live_leases(db: Database, register_worker: Register) -> None:
    await create_and_claim(db, await register_worker())
    await create_task(db)
    before = await read_rows(db)
    assert await recover_lost_tasks(db, now()) == 0
    assert await read_rows(db) == before
    assert await workers.list_repairs(db) == []


async def test_recovery_does_not_wait_for_leases_of_a_dead_worker(db: Database, register_worker: Register) -> None:
    dead, alive = await register_worker(), await register_worker()
    lost = await create_and_claim(db, dead)
    kept = await create_and_claim(db, alive)
    await workers.deregister_process(db, dead)
    assert await recover_lost_tasks(db, now()) == 1
    states = {row["id"]: row["state"] for row in await read_rows(db)}
    assert states == {lost.id: "queued", kept.id: "running"}
    assert [(row.repair, row.count) for row in await workers.list_repairs(db)] == [(REPAIR_WORKER_RESTARTED, 1)]


async def test_recovery_waits_for_leases_of_a_silent_worker(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    silent = await register_worker()
    task_id = await create_task(db)
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    assert await workers.end_silent_processes(db, timedelta(minutes=5)) == 1
    await db.fetch_all(  # a claim that got in while it was being given up
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h'",
        silent,
    )
    assert await recover_lost_tasks(db, now()) == 0
    assert (await read_only_task(db))["state"] == "running"
    await expire_leases()
    assert await recover_lost_tasks(db, now()) == 1
    assert (await read_only_task(db))["id"] == task_id
    assert (await read_only_task(db))["state"] == "queued"


async def test_recovery_takes_tasks_of_an_unknown_worker_after_their_lease(db: Database, expire_leases: Any) -> None:
    await create_task(db)
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = gen_random_uuid(), fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h'"
    )
    await expire_leases()
    assert await recover_lost_tasks(db, now()) == 1
    assert (await read_only_task(db))["state"] == "queued"


async def test_poison_task_fails_at_its_third_loss(db: Database, register_worker: Register, expire_leases: Any) -> None:
    worker = await register_worker()
    task_id = await create_task(db)
    for _ in range(3):
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        assert len(await store.claim_limited_tasks(db, worker, ["default"], 10, LEASE)) == 1
        await expire_leases()
        assert await recover_lost_tasks(db, now()) == 1
    assert await read_rows(db) == []
    records = await activities.list_attempts(db, task_id)
    assert [record.loss_count for record in records] == [1, 2, 3]
    assert [record.failure_count for record in records] == [0, 0, 0]
    assert [record.final for record in records] == [False, False, True]
    assert records[-1].error["type"] == "tenuto.SetAside"
    assert (records[-1].state, records[-1].reason) == ("failed", "lost")


KEYS: list[dict[str, Any]] = [
    {},
    {"limit_key": "batch:x", "limit_max": 100_000},
    {"limit_key": "customer 7", "limit_max": 2},
    {"limit_key": "customer 7", "limit_max": 2, "queue": "other"},
]


async def lose_claimable_tasks(db: Database, worker: UUID, expire_leases: Any, most: int = 10) -> int:
    """Claim all claimable tasks and let them be lost; return their number."""
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now() WHERE state <> 'running'")
    lost = len(await store.claim_limited_tasks(db, worker, ["default", "other"], most, LEASE))
    await expire_leases()
    await recover_lost_tasks(db, now())
    return lost


@pytest.mark.parametrize("others", range(1, len(KEYS)))
async def test_last_chance_tasks_run_one_at_a_time(
    db: Database, register_worker: Register, expire_leases: Any, others: int
) -> None:
    """Otherwise tasks that only ran beside a poison task would be failed with it."""
    worker = await register_worker()
    for options in (KEYS[0], KEYS[others]):
        for _ in range(2):
            await create_task(db, **options)
    assert [await lose_claimable_tasks(db, worker, expire_leases) for _ in range(2)] == [4, 4]
    for left in (4, 3, 2, 1):
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        (alone,) = await store.claim_limited_tasks(db, worker, ["default", "other"], 10, LEASE)
        assert await store.claim_limited_tasks(db, worker, ["default", "other"], 10, LEASE) == []
        assert await finish(db, [Settlement(alone, completed_outcome())]) == {alone.id}
        assert len(await read_rows(db)) == left - 1


async def test_last_chance_task_blocks_no_other_and_is_not_claimed_as_standby(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    worker = await register_worker()
    for _ in range(3):
        await create_task(db, **KEYS[1])
    assert [await lose_claimable_tasks(db, worker, expire_leases) for _ in range(2)] == [3, 3]
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
    for _ in range(3):
        await create_task(db, **KEYS[1])

    taken = await store.claim_limited_tasks(db, worker, ["default"], 3, LEASE)

    assert sorted(task.losses for task in taken) == [0, 0, 2]
    limit_slot = next(task.limit_slot for task in taken if task.losses == 0)
    assert limit_slot is not None
    stands_by = await store.claim_standby_tasks(db, worker, {limit_slot: QUEUE_START}, 10, LEASE)
    assert [task.losses for task in stands_by] == [0]


async def test_losses_do_not_count_as_failures(db: Database, register_worker: Register, expire_leases: Any) -> None:
    worker = await register_worker()
    await create_task(db, policy=TaskPolicy(RetryPolicy(max_attempts=1)).to_json())
    for _ in range(2):
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued', run_at = now()")
        await claim(db, worker)
        await expire_leases()
        await recover_lost_tasks(db, now())
    assert (await read_only_task(db))["failures"] == 0


async def test_lost_task_with_on_lost_fail_is_not_retried(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    task = await create_and_claim(db, await register_worker(), policy=TaskPolicy(on_lost="fail").to_json())
    await expire_leases()
    await recover_lost_tasks(db, now())
    (record,) = await activities.list_attempts(db, task.id)
    assert (record.state, record.reason, record.final) == ("failed", "lost", True)


@pytest.mark.parametrize("policy", [TaskPolicy(), TaskPolicy(on_lost="fail")])
async def test_lost_task_with_cancellation_request_ends_as_cancelled(
    policy: TaskPolicy, db: Database, register_worker: Register, expire_leases: Any
) -> None:
    task = await create_and_claim(db, await register_worker(), policy=policy.to_json())
    await store.request_cancellation(db, task, Actor.user("u-17", "Ana"))
    await expire_leases()
    await recover_lost_tasks(db, now())
    (record,) = await activities.list_attempts(db, task.id)
    assert (record.state, record.reason, record.final) == ("cancelled", "requested", True)
    assert record.error["message"] == "cancelled by Ana"
    assert record.error["by"] == {"type": "user", "id": "u-17", "name": "Ana"}


async def test_recovery_counts_repairs_and_handles_many_batches(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    holders = [await register_worker() for _ in range(3)]
    await task_creation.enqueue_bulk(db, make_new_task(), ["{}"] * 1200)
    for holder in holders:
        await store.claim_tasks(db, holder, ["default"], 400, timedelta(seconds=30))
    await expire_leases()
    assert await recover_lost_tasks(db, now()) == 1200
    assert {row["state"] for row in await read_rows(db)} == {"queued"}
    assert [(row.repair, row.count) for row in await workers.list_repairs(db)] == [(REPAIR_LEASE_EXPIRED, 1200)]


async def test_concurrent_recovery_sweeps_settle_each_task_once(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    worker = await register_worker()
    for _ in range(20):
        await create_task(db)
    await claim(db, worker, limit=20)
    await expire_leases()
    found = await asyncio.gather(*(recover_lost_tasks(db, now()) for _ in range(4)))
    assert sum(found) == 20
    assert len(await read_rows(db, "activities")) == 20


async def test_worker_cannot_finish_a_recovered_task(
    db: Database, register_worker: Register, expire_leases: Any
) -> None:
    task = await create_and_claim(db, await register_worker())
    await expire_leases()
    await recover_lost_tasks(db, now())
    assert await finish(db, [Settlement(task, completed_outcome())]) == set()


async def test_recovery_of_one_worker_leaves_tasks_of_others(db: Database, register_worker: Register) -> None:
    dead, other = await register_worker(), await register_worker()
    await create_and_claim(db, dead)
    kept = await create_and_claim(db, other)
    assert await recover_tasks_of_worker(db, dead, now()) == 1
    assert [row["id"] for row in await read_rows(db) if row["state"] == "running"] == [kept.id]


@pytest.mark.parametrize("batch_size", [2, 500])
async def test_lost_task_that_cannot_be_settled_does_not_block_others(
    batch_size: int, db: Database, register_worker: Register, expire_leases: Any
) -> None:
    worker = await register_worker()
    ids = [await create_task(db) for _ in range(7)]
    await claim(db, worker, limit=7)
    for id in (ids[0], ids[1], ids[4]):  # something already lies where their records belong
        await db.fetch_all(RECORD, id, now(), now())
    await expire_leases()
    assert await recover_lost_tasks(db, now(), batch_size=batch_size) == 4
    states = {row["id"]: row["state"] for row in await read_rows(db)}
    assert {id for id, state in states.items() if state == "running"} == {ids[0], ids[1], ids[4]}
    found = {row.repair: row.count for row in await workers.list_repairs(db)}
    assert found == {REPAIR_LEASE_EXPIRED: 4, REPAIR_NOT_SETTLED: 3}


async def test_recovery_of_a_worker_skips_tasks_that_cannot_be_settled(db: Database, register_worker: Register) -> None:
    dead = await register_worker()
    ids = [await create_task(db) for _ in range(2)]
    await claim(db, dead)
    await db.fetch_all(RECORD, ids[0], now(), now())
    assert await recover_tasks_of_worker(db, dead, now()) == 1


# --- with a worker -------------------------------------------------------------------------------------------------


async def test_restarted_worker_recovers_its_tasks_at_once(app: Tenuto, worker: WorkerFactory, sql: Any) -> None:
    @app.job
    async def bake() -> int:
        return 7

    async with worker(name="baker") as one:
        reach = one.identity.to_registration([], 0).host
    task = await app.enqueue(bake)
    await sql("UPDATE tenuto.workers SET ended_at = NULL, seen_at = now()")  # as if it had been killed
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', fence = 1, claimed_at = now(),"
        " worker_id = (SELECT id FROM tenuto.workers), lease_until = now() + interval '1 h'"
    )
    async with worker(name="baker") as two:
        assert (await app.attempts(task.id))[0].reason == "lost", "before it takes any work"
        record = await app.wait(task, timeout=10)
        assert two.identity.to_registration([], 0).host == reach
    assert (record.output, record.attempt, record.loss_count) == (7, 2, 1)
    assert [(row.repair, row.count) for row in await workers.list_repairs(await app.open())] == [
        (REPAIR_WORKER_RESTARTED, 1)
    ]


async def test_worker_with_the_name_of_a_silent_one_respects_its_leases(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    """The leases of the other worker may be longer."""

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
    with raises_code("process.name.taken"):
        async with worker(name="baker", lease_seconds=30):
            pass
    assert await sql("SELECT * FROM tenuto.tasks") == before


async def test_worker_process_runs_the_recovery_sweep(app: Tenuto, url: str, worker: WorkerFactory, sql: Any) -> None:
    quick = Tenuto(settings=load_settings(database=url, home=app.settings.home, sweep_seconds=0.1))

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
            assert (await quick.wait(task, timeout=10)).output == 7
    finally:
        await quick.close()


async def test_in_normal_operation_the_nets_find_nothing(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake(n: int) -> int:
        return n

    async with worker() as one:
        await app.enqueue_many(bake, range(100))
        await eventually(lambda: one.finished_count == 100)
        await recover_lost_tasks(await app.open(), now())
    assert await workers.list_repairs(await app.open()) == []
