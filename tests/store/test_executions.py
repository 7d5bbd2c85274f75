"""Executions in the database (S4, S7, S11): begun whole, one alone, read back as they are, forgotten in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.policies import Policy
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store import executions
from tenuto.store.executions import NewExecution
from tests.support.model_values import NOON
from tests.support.schedules import a_plan, a_step, end, play, started, table, take, task_states, the_execution
from tests.support.tasks import Register

MONTH = timedelta(days=30)


def new(**fields: Any) -> NewExecution:
    given: dict[str, Any] = {
        "id": new_id(),
        "schedule_id": new_id(),
        "schedule_name": "Nightly",
        "version": 3,
        "origin": "trigger",
        "alone": True,
        "plan": a_plan("a", ["b", "c"]),
        "due_at": NOON,
        "started_at": NOON + timedelta(seconds=1),
        "initiator": Actor.api_key("k-1", "Robot"),
        **fields,
    }
    return NewExecution(**given)


async def begin(db: Database, *wanted: NewExecution) -> None:
    await db.transaction(lambda connection: executions.begin(connection, wanted))


async def test_an_execution_begins_with_all_its_tasks(db: Database) -> None:
    step = a_step(
        "b",
        arguments={"wörd": "✓"},
        queue="oven",
        priority=7,
        limit_key="oven",
        limit_max=2,
        policy=Policy(timeout_seconds=61.5),
    )
    run = new(plan=a_plan("a", step))
    await begin(db, run)
    first, second = await table(db, "tasks")
    assert [(task["name"], task["state"]) for task in (first, second)] == [("a", "queued"), ("b", "waiting")]
    assert (second["queue"], second["rank"], second["limit_key"], second["limit_max"]) == ("oven", -7, "oven", 2)
    assert (second["input"], second["policy"]) == ('{"wörd": "✓"}', '{"timeout_seconds": 61.5}')
    for task in (first, second):
        assert (task["initiator_type"], task["initiator_id"], task["initiator_name"]) == ("api_key", "k-1", "Robot")
        assert (task["execution_id"], task["correlation_id"], task["attempt"]) == (run.id, str(run.id), 1)
        assert task["created_at"] == run.started_at


async def test_one_that_begins_in_the_middle_has_no_tasks_of_what_lies_before(db: Database) -> None:
    run = new(first_group=1, retry_of=new_id())
    await begin(db, run)
    assert await task_states(db) == {"b": "queued", "c": "queued"}
    found = await the_execution(db, run.id)
    assert (found["current_group"], found["first_group"], found["total_groups"], found["total_steps"]) == (1, 1, 2, 3)
    steps = await executions.steps(db, run.id)
    assert [step["step_index"] for step in steps] == [1, 2], "positions are those of the plan"


async def test_many_begin_in_one_go(db: Database) -> None:
    runs = [new() for _ in range(50)]
    await begin(db, *runs)
    assert len(await table(db, "tasks", "state = 'queued'")) == 50
    assert len(await table(db, "tasks", "state = 'waiting'")) == 100
    await begin(db)


async def test_of_a_schedule_that_must_be_alone_one_is_active(db: Database) -> None:
    schedule = new_id()
    await begin(db, new(schedule_id=schedule))
    with pytest.raises(DatabaseError, match="executions_one_active"):
        await begin(db, new(schedule_id=schedule))
    assert len(await table(db, "executions")) == 1
    await begin(db, new(schedule_id=schedule, alone=False))


async def test_a_step_of_an_execution_is_one_wholly_or_not_at_all(db: Database) -> None:
    await begin(db, new())
    for column in ("execution_id", "group_index", "step_index"):
        with pytest.raises(DatabaseError, match="tasks_step_is_whole"):
            await db.all(f"UPDATE tenuto.tasks SET {column} = NULL")


async def test_an_execution_that_has_ended_is_not_in_progress(db: Database) -> None:
    await begin(db, new())
    with pytest.raises(DatabaseError, match="executions_end_only_in_an_end"):
        await db.all("UPDATE tenuto.executions SET ended_at = now()")


async def test_executions_are_listed_by_the_page_and_by_what_they_are(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    first = await started(db, "a", name="one")
    await play(db, me, a="failed")
    second = await started(db, "b", name="two")
    third = await started(db, "c", name="three")
    everything: dict[str, Any] = {"below": None, "state": None, "schedule_id": None, "limit": 10}

    async def listed(**given: Any) -> list[Any]:
        return [row["id"] for row in await executions.list_executions(db, **{**everything, **given})]

    assert await listed() == [third, second, first]
    assert await listed(limit=2) == [third, second]
    assert await listed(below=second) == [first]
    assert await listed(state="failed") == [first]
    assert await listed(schedule_id=(await the_execution(db, second))["schedule_id"]) == [second]


async def test_the_old_are_forgotten_in_small_batches_and_the_open_never(
    db: Database, register_worker: Register
) -> None:
    me = await register_worker()
    for number in range(5):
        await started(db, f"s{number}", name=f"n{number}")
    await play(db, me)
    open_one = await started(db, "open")
    cutoff = db.clock.now() + MONTH
    await db.all("UPDATE tenuto.executions SET started_at = now() - interval '9 years' WHERE id = $1", open_one)
    assert [await executions.forget(db, cutoff, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert [row["id"] for row in await table(db, "executions")] == [open_one]


async def test_the_young_are_kept(db: Database, register_worker: Register) -> None:
    await started(db, "a")
    await play(db, await register_worker())
    assert await executions.forget(db, db.clock.now() - MONTH, 100) == 0


async def test_what_a_step_has_started_is_found_by_the_step(db: Database) -> None:
    step = new_id()
    first, last = new(parent_task_id=step, alone=False), new(parent_task_id=step, alone=False)
    await begin(db, first, last, new())
    found = await executions.last_of_step(db, step, new_id())
    assert found is not None
    assert found["id"] == last.id
    assert await executions.children_of_task(db, step) == [first.id, last.id]
    assert await executions.last_of_step(db, new_id(), new_id()) is None


async def test_what_an_attempt_has_started_is_told_by_the_attempt_and_by_the_time_not_by_the_order_of_ids(
    db: Database,
) -> None:
    step = new_id()
    older, younger = new(parent_task_id=step, alone=False), new(parent_task_id=step, alone=False)
    older, younger = replace(older, id=younger.id), replace(younger, id=older.id)  # as of a clock that is ahead
    await begin(db, older, replace(younger, started_at=older.started_at + timedelta(milliseconds=1)))
    for attempt, wanted in ((older.id, older.id), (younger.id, younger.id), (new_id(), younger.id)):
        found = await executions.last_of_step(db, step, attempt)
        assert found is not None
        assert found["id"] == wanted


async def test_what_an_open_step_has_started_is_not_forgotten(db: Database, register_worker: Register) -> None:
    me, cutoff = await register_worker(), db.clock.now() + MONTH
    await started(db, "outer", name="outer")
    step = (await take(db, me))["outer"]
    await begin(db, inner := new(parent_task_id=step.id, plan=a_plan("inner")))
    await play(db, me)
    assert await executions.forget(db, cutoff, 100) == 0
    await end(db, step)
    assert await executions.forget(db, cutoff, 100) == 2
    assert await executions.execution(db, inner.id) is None
