"""Repair of stuck executions (S10): damaged executions are advanced and counted, healthy ones are left alone."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control
from tenuto.maintenance.stuck_executions import (
    REPAIR_ABANDONED_EXECUTION,
    REPAIR_ORPHANED_STEP,
    REPAIR_STUCK_EXECUTION,
    REPAIR_WAIT_CYCLE,
    repair_stuck_executions,
)
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement
from tenuto.postgres.database import Database
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    claim_steps,
    finish_task,
    list_attempts,
    load_execution,
    open_task_states,
    read_repairs,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def test_repair_advances_past_a_group_with_deleted_tasks(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await open_task_states(db) == {"b": "queued"}
    assert await read_repairs(db) == {REPAIR_STUCK_EXECUTION: 1}
    await run_claimable_steps(db, worker_id)
    assert (await load_execution(db, run)).state == "completed"


async def test_execution_that_cannot_be_repaired_does_not_block_others(db: Database) -> None:
    bad, good = await start_execution(db, "a", "poison", name="bad"), await start_execution(db, "a", "b", name="good")
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    await db.fetch_all(
        "ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison' OR state = 'waiting')"
    )
    orphan = await start_execution(db, "orphan", name="orphaned")
    await db.fetch_all("UPDATE tenuto.executions SET parent_task_id = gen_random_uuid() WHERE id = $1", orphan)
    try:
        assert await repair_stuck_executions(db, db.clock.now()) == 2
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert await open_task_states(db) == {"poison": "waiting", "b": "queued"}
    assert (await load_execution(db, orphan)).state == "cancelled"
    assert [(await load_execution(db, run)).current_group for run in (bad, good)] == [0, 1]


async def test_repair_completes_an_execution_without_tasks(db: Database) -> None:
    run = await start_execution(db, "a", "b", "c")
    await db.fetch_all("DELETE FROM tenuto.tasks")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert (await load_execution(db, run)).state == "completed"
    assert await read_repairs(db) == {REPAIR_STUCK_EXECUTION: 1}
    assert await repair_stuck_executions(db, db.clock.now()) == 0


async def test_repair_advances_past_several_empty_groups(db: Database) -> None:
    run = await start_execution(db, *(f"s{n}" for n in range(1000)))
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name <> 's0'")
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'waiting'")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    await db.fetch_all("DELETE FROM tenuto.tasks")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert (await load_execution(db, run)).state == "completed"


async def test_repair_releases_a_waiting_step_of_the_current_group(db: Database, worker_id: UUID) -> None:
    await start_execution(db, ["a", "b"], "c")
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'waiting'")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await open_task_states(db) == {"a": "queued", "b": "queued", "c": "waiting"}
    assert await read_repairs(db) == {REPAIR_STUCK_EXECUTION: 1}


async def test_repair_fails_an_execution_with_an_unhandled_failure(db: Database, worker_id: UUID) -> None:
    """Simulate a worker killed between the end of a step and the start of the next group."""
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["a"], "failed")
    await db.fetch_all("ALTER TABLE tenuto.executions DISABLE TRIGGER executions_end_once")
    await db.fetch_all(
        "UPDATE tenuto.executions SET state = 'in_progress', ended_at = NULL, failed_steps = 0, error = NULL"
    )
    await db.fetch_all("ALTER TABLE tenuto.executions ENABLE TRIGGER executions_end_once")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    ended = await load_execution(db, run)
    assert (ended.state, ended.error) == ("failed", "step 'a' failed: it broke")


async def test_repair_ends_a_cancelled_execution_without_tasks(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, NOON, ANA)
    await db.fetch_all("DELETE FROM tenuto.tasks")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    ended = await load_execution(db, run)
    assert ended.state == "cancelled"
    assert ended.ended_at is not None


async def test_repair_releases_a_step_that_waits_for_an_ended_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    other = await start_execution(db, "x", name="other")
    held = await claim_steps(db, worker_id)
    deferred = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=other))
    await completion.finish(db, [Settlement(held["a"], deferred)])
    assert await open_task_states(db, run) == {"a": "waiting", "b": "waiting"}
    assert await repair_stuck_executions(db, db.clock.now()) == 0, "it waits for an open execution"
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'x'")
    await db.fetch_all("DELETE FROM tenuto.executions WHERE id = $1", other)
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await open_task_states(db, run) == {"a": "queued", "b": "waiting"}
    assert await read_repairs(db) == {REPAIR_ORPHANED_STEP: 1}


async def test_repair_keeps_a_released_step_of_a_paused_execution_waiting(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    other = await start_execution(db, "x", name="other")
    held = await claim_steps(db, worker_id)
    await completion.finish(
        db, [Settlement(held["a"], Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=other)))]
    )
    await execution_control.pause_execution(db, run, NOON, ANA)
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'x'")
    await db.fetch_all("DELETE FROM tenuto.executions WHERE id = $1", other)
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await open_task_states(db, run) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await open_task_states(db, run) == {"a": "queued", "b": "waiting"}


async def test_repair_cancels_an_execution_without_its_parent_step(db: Database) -> None:
    run = await start_execution(db, "a")
    await db.fetch_all("UPDATE tenuto.executions SET parent_task_id = $1", new_id())
    assert await repair_stuck_executions(db, NOON) == 1
    ended = await load_execution(db, run)
    assert (ended.state, ended.error) == ("cancelled", "cancelled by scheduler: the step that started it is gone")
    assert await read_repairs(db) == {REPAIR_ABANDONED_EXECUTION: 1}
    assert await repair_stuck_executions(db, NOON) == 0


async def start_waiting_runs(db: Database, worker_id: UUID, *names: str) -> dict[str, UUID]:
    """Start runs of one step each, of which each waits for the next."""
    runs = {name: await start_execution(db, name, name=name) for name in names}
    held = await claim_steps(db, worker_id)
    for name, other in pairwise(names):
        deferred = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=runs[other]))
        await completion.finish(db, [Settlement(held[name], deferred)])
    return runs


async def close_wait_cycle(db: Database, task: str, first: UUID) -> None:
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'waiting', waits_for = $2, worker_id = NULL, lease_until = NULL,"
        " claimed_at = NULL WHERE name = $1",
        task,
        first,
    )


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_repair_fails_one_step_of_a_wait_cycle(db: Database, worker_id: UUID, names: str) -> None:
    runs = await start_waiting_runs(db, worker_id, *names)
    assert await repair_stuck_executions(db, db.clock.now()) == 0, "no cycle yet"
    await close_wait_cycle(db, names[-1], runs["a"])
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    ended = await load_execution(db, runs[names[-1]])
    assert (ended.state, ended.error) == (
        "failed",
        f"step {names[-1]!r} failed: execution {runs['a']} of 'a' waits for this execution",
    )
    assert await read_repairs(db) == {REPAIR_WAIT_CYCLE: 1}
    while await run_claimable_steps(db, worker_id):
        pass
    assert {(await load_execution(db, runs[name])).state for name in names[:-1]} == {"completed"}


async def test_repair_breaks_every_wait_cycle_at_a_foreign_run(db: Database, worker_id: UUID) -> None:
    runs = await start_waiting_runs(db, worker_id, "a", "b")
    await db.fetch_all(
        "UPDATE tenuto.executions SET parent_task_id = (SELECT id FROM tenuto.tasks WHERE name = 'b') WHERE id = $1",
        runs["a"],
    )
    await close_wait_cycle(db, "b", runs["a"])
    others = await start_waiting_runs(db, worker_id, "c", "d")
    await close_wait_cycle(db, "d", others["c"])
    assert await repair_stuck_executions(db, db.clock.now()) == 2
    states = {name: (await load_execution(db, run)).state for name, run in {**runs, **others}.items()}
    assert states == {"a": "failed", "b": "in_progress", "c": "in_progress", "d": "failed"}
    assert await open_task_states(db) == {"b": "queued", "c": "queued"}
    assert await read_repairs(db) == {REPAIR_WAIT_CYCLE: 2}


async def test_concurrent_repairs_advance_each_execution_once(db: Database) -> None:
    for number in range(30):
        await start_execution(db, "a", "b", name=f"s{number}")
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    assert sum(await asyncio.gather(*(repair_stuck_executions(db, db.clock.now()) for _ in range(4)))) == 30
    assert await read_repairs(db) == {REPAIR_STUCK_EXECUTION: 30}
    assert {row["current_group"] for row in await read_table(db, "executions")} == {1}


async def test_repair_leaves_healthy_executions_alone(db: Database, worker_id: UUID) -> None:
    """Executions that are queued, running, waiting for a retry, paused or stopping."""
    for name in ("queued", "running", "again", "paused", "stopping"):
        await start_execution(db, name, f"then {name}", name=name)
    runs = {row["schedule_name"]: row["id"] for row in await read_table(db, "executions")}
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'scheduled', run_at = now() + interval '1 h' WHERE name = 'again'"
    )
    await execution_control.pause_execution(db, runs["paused"], NOON, ANA)
    await db.fetch_all("UPDATE tenuto.tasks SET queue = 'elsewhere' WHERE name = 'queued'")
    assert set(await claim_steps(db, worker_id)) == {"running", "stopping"}
    await execution_control.cancel_execution(db, runs["stopping"], NOON, ANA)
    before = await read_table(db, "tasks"), await read_table(db, "executions")
    assert await repair_stuck_executions(db, db.clock.now()) == 0
    assert (await read_table(db, "tasks"), await read_table(db, "executions")) == before
    assert await read_repairs(db) == {}
    assert [name for name, _, _ in await list_attempts(db, runs["stopping"])] == ["then stopping"]
