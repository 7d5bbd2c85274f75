"""The net beneath executions (S10): what was damaged by hand is moved on and counted; else it finds nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control
from tenuto.lifecycle.execution_control import NET_ABANDONED, NET_CIRCLE, NET_ORPHANED_STEP, NET_STUCK, repair
from tenuto.model.tasks import Aside, Outcome, Settlement, Status
from tenuto.postgres.database import Database
from tests.support.model_values import NOON
from tests.support.schedules import ANA, end, play, records, repairs, started, table, take, task_states, the_execution
from tests.support.tasks import Register


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def test_a_group_whose_tasks_somebody_deleted_is_passed_over(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    assert await repair(db, db.clock.now()) == 1
    assert await task_states(db) == {"b": "queued"}
    assert await repairs(db) == {NET_STUCK: 1}
    await play(db, me)
    assert (await the_execution(db, run))["state"] == "completed"


async def test_one_that_cannot_be_repaired_does_not_keep_the_others_from_it(db: Database) -> None:
    bad, good = await started(db, "a", "poison", name="bad"), await started(db, "a", "b", name="good")
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison' OR state = 'waiting')")
    orphan = await started(db, "orphan", name="orphaned")
    await db.all("UPDATE tenuto.executions SET parent_task_id = gen_random_uuid() WHERE id = $1", orphan)
    try:
        assert await repair(db, db.clock.now()) == 2
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert await task_states(db) == {"poison": "waiting", "b": "queued"}
    assert (await the_execution(db, orphan))["state"] == "cancelled"
    assert [(await the_execution(db, run))["current_group"] for run in (bad, good)] == [0, 1]


async def test_an_execution_without_any_task_is_moved_to_its_end(db: Database) -> None:
    run = await started(db, "a", "b", "c")
    await db.all("DELETE FROM tenuto.tasks")
    assert await repair(db, db.clock.now()) == 1
    assert (await the_execution(db, run))["state"] == "completed"
    assert await repairs(db) == {NET_STUCK: 1}
    assert await repair(db, db.clock.now()) == 0


async def test_however_many_groups_have_lost_their_tasks_the_execution_comes_to_its_end(db: Database) -> None:
    run = await started(db, *(f"s{n}" for n in range(1000)))
    await db.all("DELETE FROM tenuto.tasks WHERE name <> 's0'")
    await db.all("UPDATE tenuto.tasks SET state = 'waiting'")
    assert await repair(db, db.clock.now()) == 1
    await db.all("DELETE FROM tenuto.tasks")
    assert await repair(db, db.clock.now()) == 1
    assert (await the_execution(db, run))["state"] == "completed"


async def test_a_step_that_waits_though_it_is_its_turn_is_let_go(db: Database, me: UUID) -> None:
    await started(db, ["a", "b"], "c")
    await db.all("UPDATE tenuto.tasks SET state = 'waiting'")
    assert await repair(db, db.clock.now()) == 1
    assert await task_states(db) == {"a": "queued", "b": "queued", "c": "waiting"}
    assert await repairs(db) == {NET_STUCK: 1}


async def test_a_failure_that_nobody_drew_the_conclusion_from_is_drawn(db: Database, me: UUID) -> None:
    """As if a worker had been killed between the end of a step and the step to the next group."""
    run = await started(db, "a", "b")
    held = await take(db, me)
    await end(db, held["a"], "failed")
    await db.all("ALTER TABLE tenuto.executions DISABLE TRIGGER executions_end_once")
    await db.all("UPDATE tenuto.executions SET state = 'in_progress', ended_at = NULL, failed_steps = 0, error = NULL")
    await db.all("ALTER TABLE tenuto.executions ENABLE TRIGGER executions_end_once")
    assert await repair(db, db.clock.now()) == 1
    ended = await the_execution(db, run)
    assert (ended["state"], ended["error"]) == ("failed", "step 'a' failed: it broke")


async def test_a_cancelled_execution_whose_last_task_is_gone_comes_to_its_end(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await take(db, me)
    await execution_control.cancel(db, run, NOON, ANA)
    await db.all("DELETE FROM tenuto.tasks")
    assert await repair(db, db.clock.now()) == 1
    ended = await the_execution(db, run)
    assert ended["state"] == "cancelled"
    assert ended["ended_at"] is not None


async def test_a_step_that_waits_for_an_execution_which_is_over_is_let_go(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    other = await started(db, "x", name="other")
    held = await take(db, me)
    aside = Outcome(Status.COMPLETED, aside=Aside(execution=other))
    await completion.finish(db, [Settlement(held["a"], aside)])
    assert await task_states(db, run) == {"a": "waiting", "b": "waiting"}
    assert await repair(db, db.clock.now()) == 0, "it waits for something"
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'x'")
    await db.all("DELETE FROM tenuto.executions WHERE id = $1", other)
    assert await repair(db, db.clock.now()) == 1
    assert await task_states(db, run) == {"a": "queued", "b": "waiting"}
    assert await repairs(db) == {NET_ORPHANED_STEP: 1}


async def test_one_that_is_paused_stays_held_back_when_it_waits_for_nothing(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    other = await started(db, "x", name="other")
    held = await take(db, me)
    await completion.finish(db, [Settlement(held["a"], Outcome(Status.COMPLETED, aside=Aside(execution=other)))])
    await execution_control.pause(db, run, NOON, ANA)
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'x'")
    await db.all("DELETE FROM tenuto.executions WHERE id = $1", other)
    assert await repair(db, db.clock.now()) == 1
    assert await task_states(db, run) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume(db, run, db.clock.now())
    assert await task_states(db, run) == {"a": "queued", "b": "waiting"}


async def test_an_execution_whose_step_in_another_one_is_gone_is_cancelled(db: Database) -> None:
    run = await started(db, "a")
    await db.all("UPDATE tenuto.executions SET parent_task_id = $1", new_id())
    assert await repair(db, NOON) == 1
    ended = await the_execution(db, run)
    assert (ended["state"], ended["error"]) == ("cancelled", "cancelled by scheduler: the step that started it is gone")
    assert await repairs(db) == {NET_ABANDONED: 1}
    assert await repair(db, NOON) == 0


async def waits(db: Database, me: UUID, *names: str) -> dict[str, UUID]:
    """Runs of one step each, of which each waits for the next."""
    runs = {name: await started(db, name, name=name) for name in names}
    held = await take(db, me)
    for name, other in pairwise(names):
        aside = Outcome(Status.COMPLETED, aside=Aside(execution=runs[other]))
        await completion.finish(db, [Settlement(held[name], aside)])
    return runs


async def close_the_circle(db: Database, task: str, first: UUID) -> None:
    await db.all(
        "UPDATE tenuto.tasks SET state = 'waiting', waits_for = $2, worker_id = NULL, lease_until = NULL,"
        " claimed_at = NULL WHERE name = $1",
        task,
        first,
    )


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_of_runs_that_wait_for_each_other_one_fails_and_the_others_go_on(
    db: Database, me: UUID, names: str
) -> None:
    runs = await waits(db, me, *names)
    assert await repair(db, db.clock.now()) == 0, "no circle yet"
    await close_the_circle(db, names[-1], runs["a"])
    assert await repair(db, db.clock.now()) == 1
    ended = await the_execution(db, runs[names[-1]])
    assert (ended["state"], ended["error"]) == (
        "failed",
        f"step {names[-1]!r} failed: execution {runs['a']} of 'a' waits for this one",
    )
    assert await repairs(db) == {NET_CIRCLE: 1}
    while await play(db, me):
        pass
    assert {(await the_execution(db, runs[name]))["state"] for name in names[:-1]} == {"completed"}


async def test_every_circle_is_broken_where_a_step_waits_for_a_run_it_has_not_started(db: Database, me: UUID) -> None:
    runs = await waits(db, me, "a", "b")
    await db.all(
        "UPDATE tenuto.executions SET parent_task_id = (SELECT id FROM tenuto.tasks WHERE name = 'b') WHERE id = $1",
        runs["a"],
    )
    await close_the_circle(db, "b", runs["a"])
    others = await waits(db, me, "c", "d")
    await close_the_circle(db, "d", others["c"])
    assert await repair(db, db.clock.now()) == 2
    states = {name: (await the_execution(db, run))["state"] for name, run in {**runs, **others}.items()}
    assert states == {"a": "failed", "b": "in_progress", "c": "in_progress", "d": "failed"}
    assert await task_states(db) == {"b": "queued", "c": "queued"}
    assert await repairs(db) == {NET_CIRCLE: 2}


async def test_many_are_moved_on_in_time_and_by_several_at_once_each_once(db: Database) -> None:
    for number in range(30):
        await started(db, "a", "b", name=f"s{number}")
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'a'")
    assert sum(await asyncio.gather(*(repair(db, db.clock.now()) for _ in range(4)))) == 30
    assert await repairs(db) == {NET_STUCK: 30}
    assert {row["current_group"] for row in await table(db, "executions")} == {1}


async def test_what_goes_its_way_is_left_alone(db: Database, me: UUID) -> None:
    """Queued, running, waiting for the next try, paused, and being stopped."""
    for name in ("queued", "running", "again", "paused", "stopping"):
        await started(db, name, f"then {name}", name=name)
    runs = {row["schedule_name"]: row["id"] for row in await table(db, "executions")}
    await db.all("UPDATE tenuto.tasks SET state = 'scheduled', run_at = now() + interval '1 h' WHERE name = 'again'")
    await execution_control.pause(db, runs["paused"], NOON, ANA)
    await db.all("UPDATE tenuto.tasks SET queue = 'elsewhere' WHERE name = 'queued'")
    assert set(await take(db, me)) == {"running", "stopping"}
    await execution_control.cancel(db, runs["stopping"], NOON, ANA)
    before = await table(db, "tasks"), await table(db, "executions")
    assert await repair(db, db.clock.now()) == 0
    assert (await table(db, "tasks"), await table(db, "executions")) == before
    assert await repairs(db) == {}
    assert [name for name, _, _ in await records(db, runs["stopping"])] == ["then stopping"]
