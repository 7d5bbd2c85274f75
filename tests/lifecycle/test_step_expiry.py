"""Expiry of steps: counted from the start of their group, not while they wait for it or for the end of a pause.

Equivalence test of the SQL fast path ``finish_group``: every test runs with and without it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.lifecycle import execution_control
from tenuto.lifecycle.expiry import expire_tasks
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.postgres.database import Database
from tests.support.schedules import (
    ANA,
    claim_steps,
    finish_task,
    list_attempts,
    load_execution,
    make_step,
    open_task_states,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register

pytestmark = pytest.mark.usefixtures("both_completion_paths")
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


def short(name: str, **options: Any) -> Any:
    return make_step(name, expires_seconds=60.0, **options)


async def make_it_wait(db: Database, seconds: int) -> None:
    """Let the open steps have been created that long ago."""
    await db.fetch_all(
        "UPDATE tenuto.tasks SET created_at = created_at - $1 * interval '1 second',"
        " run_at = run_at - $1 * interval '1 second', expires_at = expires_at - $1 * interval '1 second'",
        seconds,
    )


async def read_time_left(db: Database, name: str) -> timedelta:
    (task,) = await read_table(db, "tasks", "name = $1", name)
    left: timedelta = task["expires_at"] - db.clock.now()
    return left


async def test_step_expires_after_the_start_of_its_group(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", [short("b"), "c"], "d")
    await make_it_wait(db, 3600)
    assert await expire_tasks(db, db.clock.now()) == 0, "it waits for its group"
    assert await run_claimable_steps(db, worker_id) == {"a"}
    assert await open_task_states(db) == {"b": "queued", "c": "queued", "d": "waiting"}
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "b") <= MINUTE
    assert await expire_tasks(db, db.clock.now()) == 0
    held = await claim_steps(db, worker_id, 1)
    assert set(held) == {"b"}
    assert await expire_tasks(db, db.clock.now() + timedelta(hours=1)) == 0, "it runs"
    await finish_task(db, held["b"])
    await run_claimable_steps(db, worker_id)
    assert await run_claimable_steps(db, worker_id) == {"d"}
    assert (await load_execution(db, run)).state == "completed"


@pytest.mark.parametrize("goes_on", [False, True])
async def test_expired_step_fails_its_execution_unless_it_continues_on_failure(
    db: Database, worker_id: UUID, goes_on: bool
) -> None:
    run = await start_execution(db, "a", [short("b", continue_on_failure=goes_on), "c"], "d")
    assert await run_claimable_steps(db, worker_id) == {"a"}
    later = db.clock.now() + timedelta(minutes=2)
    assert await expire_tasks(db, later) == 1
    assert await open_task_states(db) == {"c": "queued", "d": "waiting"}, "the other steps of the group end first"
    await run_claimable_steps(db, worker_id)
    if goes_on:
        assert await run_claimable_steps(db, worker_id) == {"d"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("completed" if goes_on else "failed", 1)
    if not goes_on:
        assert ended.error is not None
        assert "'b' expired before it started" in ended.error
    assert (await list_attempts(db, run))[1] == ("b", "cancelled", "expired")


async def test_step_does_not_expire_while_its_execution_is_paused(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", [short("b"), "c"])
    await run_claimable_steps(db, worker_id)
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await make_it_wait(db, 3600)
    assert await expire_tasks(db, db.clock.now()) == 0
    await execution_control.resume_execution(db, run, db.clock.now())
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "b") <= MINUTE


async def test_step_whose_group_starts_during_a_pause_expires_after_the_pause(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", short("b"))
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await finish_task(db, held["a"])
    await make_it_wait(db, 3600)
    assert await expire_tasks(db, db.clock.now()) == 0
    await execution_control.resume_execution(db, run, db.clock.now())
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "b") <= MINUTE


async def test_step_that_fails_during_a_pause_does_not_expire_before_its_end(db: Database, worker_id: UUID) -> None:
    later = TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=600))
    run = await start_execution(db, [short("a", policy=later), "b"])
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await finish_task(db, held["a"], "failed")
    await finish_task(db, held["b"])
    assert await open_task_states(db) == {"a": "waiting"}
    await make_it_wait(db, 3600)
    assert await expire_tasks(db, db.clock.now()) == 0
    await execution_control.resume_execution(db, run, db.clock.now())
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "a") <= MINUTE


async def test_stuck_step_expires_after_its_repair(db: Database) -> None:
    await start_execution(db, [short("a"), "b"])
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'waiting'")
    await make_it_wait(db, 3600)
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await open_task_states(db) == {"a": "queued", "b": "queued"}
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "a") <= MINUTE


async def test_step_with_edges_expires_after_its_own_start(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "slow"], [short("b", needs=("a",))])
    await make_it_wait(db, 3600)
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["a"])
    assert await open_task_states(db) == {"slow": "running", "b": "queued"}
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "b") <= MINUTE
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await make_it_wait(db, 3600)
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await open_task_states(db) == {"slow": "running", "b": "queued"}
    assert MINUTE - timedelta(seconds=10) < await read_time_left(db, "b") <= MINUTE
