"""Rows of executions (S4, S7, S11): created with all tasks, never overlapping, list_ids, deleted by retention."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.model.filters import Filter
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store.work import executions
from tenuto.store.work.executions import NewExecution
from tests.support.model_values import NOON
from tests.support.schedules import (
    claim_steps,
    finish_task,
    load_execution,
    make_plan,
    make_step,
    open_task_states,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register

MONTH = timedelta(days=30)


def make_execution(**fields: Any) -> NewExecution:
    given: dict[str, Any] = {
        "id": new_id(),
        "schedule_id": new_id(),
        "schedule_name": "Nightly",
        "version": 3,
        "origin": "trigger",
        "alone": True,
        "plan": make_plan("a", ["b", "c"]),
        "due_at": NOON,
        "started_at": NOON + timedelta(seconds=1),
        "initiator": Actor.api_key("k-1", "Robot"),
        **fields,
    }
    return NewExecution(**given)


async def create(db: Database, *wanted: NewExecution) -> None:
    await db.transaction(lambda connection: executions.create_executions(connection, wanted))


async def test_execution_is_created_with_all_its_tasks(db: Database) -> None:
    step = make_step(
        "b",
        arguments={"wörd": "✓"},
        queue="oven",
        priority=7,
        limit_key="oven",
        limit_max=2,
        policy=TaskPolicy(timeout_seconds=61.5),
    )
    run = make_execution(plan=make_plan("a", step))
    await create(db, run)
    first, second = await read_table(db, "tasks")
    assert [(task["name"], task["state"]) for task in (first, second)] == [("a", "queued"), ("b", "waiting")]
    assert (second["queue"], second["rank"], second["limit_key"], second["limit_max"]) == ("oven", -7, "oven", 2)
    assert second["input"] == '{"wörd": "✓"}'
    assert json.loads(second["policy"]) == {
        "timeout_seconds": 61.5,
        "occurrence": [None, int(NOON.timestamp()) * 10**6],
    }
    for task in (first, second):
        assert (task["initiator_type"], task["initiator_id"], task["initiator_name"]) == ("api_key", "k-1", "Robot")
        assert (task["execution_id"], task["correlation_id"], task["attempt"]) == (run.id, str(run.id), 1)
        assert task["created_at"] == run.started_at


async def test_execution_from_a_later_group_has_no_earlier_tasks(db: Database) -> None:
    run = make_execution(first_group=1, retry_of=new_id())
    await create(db, run)
    assert await open_task_states(db) == {"b": "queued", "c": "queued"}
    found = await load_execution(db, run.id)
    assert (found.current_group, found.first_group, found.group_count, found.step_count) == (1, 1, 2, 3)
    steps = await executions.list_step_attempts(db, run.id)
    assert [step.step_index for step in steps] == [1, 2], "positions are those of the plan"


async def test_many_executions_are_created_in_one_statement(db: Database) -> None:
    runs = [make_execution() for _ in range(50)]
    await create(db, *runs)
    assert len(await read_table(db, "tasks", "state = 'queued'")) == 50
    assert len(await read_table(db, "tasks", "state = 'waiting'")) == 100
    await create(db)


async def test_database_allows_one_active_non_overlapping_execution(db: Database) -> None:
    schedule = new_id()
    await create(db, make_execution(schedule_id=schedule))
    with pytest.raises(DatabaseError, match="executions_one_active"):
        await create(db, make_execution(schedule_id=schedule))
    assert len(await read_table(db, "executions")) == 1
    await create(db, make_execution(schedule_id=schedule, alone=False))


async def test_database_rejects_a_step_with_missing_indexes(db: Database) -> None:
    await create(db, make_execution())
    for column in ("execution_id", "group_index", "step_index"):
        with pytest.raises(DatabaseError, match="tasks_step_is_whole"):
            await db.fetch_all(f"UPDATE tenuto.tasks SET {column} = NULL")


async def test_database_rejects_ended_at_of_execution_in_progress(db: Database) -> None:
    await create(db, make_execution())
    with pytest.raises(DatabaseError, match="executions_end_only_in_an_end"):
        await db.fetch_all("UPDATE tenuto.executions SET ended_at = now()")


async def test_executions_are_paged_and_filtered(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    first = await start_execution(db, "a", name="one")
    await run_claimable_steps(db, me, a="failed")
    second = await start_execution(db, "b", name="two")
    third = await start_execution(db, "c", name="three")

    async def list_ids(*, below: UUID | None = None, limit: int = 10, **values: str) -> list[UUID]:
        filter = Filter(EXECUTION_KEYS).where(**values)
        return [row.id for row in await executions.list_executions(db, filter, below=below, limit=limit)]

    assert await list_ids() == [third, second, first]
    assert await list_ids(limit=2) == [third, second]
    assert await list_ids(below=second) == [first]
    assert await list_ids(state="failed") == [first]
    assert await list_ids(schedule="no such schedule") == []


async def test_old_executions_are_deleted_in_batches_and_open_ones_kept(
    db: Database, register_worker: Register
) -> None:
    me = await register_worker()
    for number in range(5):
        await start_execution(db, f"s{number}", name=f"n{number}")
    await run_claimable_steps(db, me)
    open_one = await start_execution(db, "open")
    cutoff = db.clock.now() + MONTH
    await db.fetch_all("UPDATE tenuto.executions SET started_at = now() - interval '9 years' WHERE id = $1", open_one)
    assert [await executions.delete_old_executions(db, cutoff, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert [row["id"] for row in await read_table(db, "executions")] == [open_one]


async def test_recent_executions_are_kept(db: Database, register_worker: Register) -> None:
    await start_execution(db, "a")
    await run_claimable_steps(db, await register_worker())
    assert await executions.delete_old_executions(db, db.clock.now() - MONTH, 100) == 0


async def test_child_executions_are_found_by_their_step(db: Database) -> None:
    step = new_id()
    first, last = make_execution(parent_task_id=step, alone=False), make_execution(parent_task_id=step, alone=False)
    await create(db, first, last, make_execution())
    found = await executions.load_last_child_of_step(db, step, new_id())
    assert found is not None
    assert found.id == last.id
    assert await executions.list_open_children(db, step) == [first.id, last.id]
    assert await executions.load_last_child_of_step(db, new_id(), new_id()) is None


async def test_last_child_execution_is_found_by_attempt_and_time(
    db: Database,
) -> None:
    step = new_id()
    older, younger = make_execution(parent_task_id=step, alone=False), make_execution(parent_task_id=step, alone=False)
    older, younger = (
        replace(older, id=younger.id),
        replace(younger, id=older.id),
    )  # as created by a machine whose clock is ahead
    await create(db, older, replace(younger, started_at=older.started_at + timedelta(milliseconds=1)))
    for attempt, wanted in ((older.id, older.id), (younger.id, younger.id), (new_id(), younger.id)):
        found = await executions.load_last_child_of_step(db, step, attempt)
        assert found is not None
        assert found.id == wanted


async def test_child_execution_of_an_open_step_is_not_deleted(db: Database, register_worker: Register) -> None:
    me, cutoff = await register_worker(), db.clock.now() + MONTH
    await start_execution(db, "outer", name="outer")
    step = (await claim_steps(db, me))["outer"]
    await create(db, inner := make_execution(parent_task_id=step.id, plan=make_plan("inner")))
    await run_claimable_steps(db, me)
    assert await executions.delete_old_executions(db, cutoff, 100) == 0
    await finish_task(db, step)
    assert await executions.delete_old_executions(db, cutoff, 100) == 2
    assert await executions.load_execution(db, inner.id) is None
