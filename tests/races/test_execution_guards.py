"""Each guard of executions alone: a test that fails when it is taken away (see `tests.mutants`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

from tenuto.ids import new_id
from tenuto.jobs.context import Context
from tenuto.lifecycle import completion, execution_control, task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks, recover_tasks_of_worker
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.schedules import OverlapPolicy
from tenuto.model.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import schedule_step
from tenuto.store import executions
from tenuto.store import workers as register_of_workers
from tests.races import test_execution_races as happens
from tests.races import test_firing_races as falls_due
from tests.races.execution_actions import (
    create_executions,
    create_plan,
    fail_permanently,
    new_execution,
    run_to_end,
    violated_invariants,
)
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, complete, fail

pytestmark = pytest.mark.usefixtures("both_completion_paths")

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = falls_due.NAME


async def ending(db: Database, task: Task) -> None:
    await finish(db, [complete(db, task)])


async def all_ending(db: Database, tasks: list[Task]) -> None:
    await finish(db, [complete(db, task) for task in tasks])


# --- steps that end together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "another", "held", "paused"),
    [
        (happens.a_ends, happens.b_ends, 2, False),
        (happens.both_end, happens.pause, 2, False),
        (happens.both_end, happens.resume, 2, True),
        (happens.a_is_to_be_repeated, happens.resume, 2, True),
        (happens.pause, happens.a_is_put_back, 2, False),
        (happens.cancel, happens.claiming, 1, False),
        (happens.cancel, happens.a_is_to_be_repeated, 2, False),
        (happens.the_last_is_cancelled, happens.both_end, 2, False),
        (happens.pause, happens.both_end, 2, False),
        (happens.cancel, happens.both_end, 2, False),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
async def test_two_things_at_once_leave_an_execution_sound(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    worker_id: UUID,
    register_worker: RegisterWorker,
    one: happens.Action,
    another: happens.Action,
    held: int,
    paused: bool,
) -> None:
    other = await register_worker()
    async for interleaving in interleavings(first, second):
        scenario = await happens.create_scenario(second, worker_id, other, held=held, paused=paused)
        await interleaving.run(partial(one, scenario=scenario), partial(another, scenario=scenario))
        assert await violated_invariants(second) == [], interleaving
        await happens.resume(second, scenario)
        await run_to_end(second, other)
        assert await violated_invariants(second) == [], interleaving


@pytest.mark.parametrize("taking_back", ["the sweep", "its own next life"])
async def test_a_step_given_up_as_lost_and_one_that_ends_begin_the_next_group_once(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    worker_id: UUID,
    register_worker: RegisterWorker,
    taking_back: str,
) -> None:
    dead = await register_worker()

    async def take_back(db: Database) -> None:
        await (
            recover_lost_tasks(db, db.clock.now())
            if taking_back == "the sweep"
            else recover_tasks_of_worker(db, dead, db.clock.now())
        )

    async for interleaving in interleavings(first, second):
        (run,) = await create_executions(second, create_plan(2, 1))
        (lost,) = await claim(second, dead)
        (ends,) = await claim(second, worker_id)
        await second.fetch_all(
            "UPDATE tenuto.tasks SET losses = 2, lease_until = now() - interval '1 s' WHERE id = $1", lost.id
        )
        await interleaving.run(take_back, partial(ending, task=ends))

        assert await violated_invariants(second) == [], interleaving
        assert await second.fetch_value("SELECT state FROM tenuto.executions WHERE id = $1", run) == "failed"


async def test_a_group_whose_steps_were_all_cancelled_beforehand_is_passed_over(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.the_last_is_cancelled(db, scenario)

    await happens.both_end(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.executions") == "failed"
    assert await violated_invariants(db) == []


async def test_a_decision_that_comes_after_the_cancellation_begins_nothing(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scenario)

    await db.fetch_all(executions.SQL.start_groups, [scenario.run], [1], [0], None, None, None, [], 0)

    assert await db.fetch_value("SELECT current_group FROM tenuto.executions") == 0


async def test_what_comes_next_in_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=True)

    await happens.both_end(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "waiting"
    await happens.resume(db, scenario)
    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


async def put_aside(db: Database, task: Task, **aside: object) -> set[UUID]:
    now = db.clock.now()
    outcome = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(**aside))  # type: ignore[arg-type]
    return await finish(db, [settle(task, outcome, now, new_id)])


async def test_what_is_to_be_tried_again_in_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=True)

    await finish(db, [fail(db, scenario.a)])
    await put_aside(db, scenario.b, until=db.clock.now() + timedelta(hours=1))

    states = await db.fetch_all("SELECT DISTINCT state FROM tenuto.tasks")
    assert [row["state"] for row in states] == ["waiting"]


async def test_a_stale_fence_or_another_worker_puts_nothing_aside(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    later = db.clock.now() + timedelta(hours=1)
    stranger = await register_worker()

    scenario.a.fence -= 1
    assert await put_aside(db, scenario.a, until=later) == set()
    scenario.b.worker_id = stranger
    assert await put_aside(db, scenario.b, until=later) == set()

    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2


async def failing(db: Database, task: Task) -> None:
    """For good, which takes more than the one statement of an end that went well."""
    now = db.clock.now()
    await finish(
        db, [settle(task, Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, may_retry=False), now, new_id)]
    )


@pytest.mark.parametrize("first_comes", ["who waits", "the end"])
@pytest.mark.parametrize("how", [ending, failing], ids=lambda action: action.__name__)
async def test_what_would_wait_for_an_execution_that_has_just_ended_goes_on(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    worker_id: UUID,
    how: Callable[..., Awaitable[None]],
    first_comes: str,
) -> None:
    async for interleaving in interleavings(first, second):
        await create_executions(second, create_plan(1))
        (step,) = await claim(second, worker_id)
        (child,) = await create_executions(second, create_plan(1), parent_task_id=step.id, origin="step")
        (last,) = await claim(second, worker_id)

        actions = [partial(put_aside, task=step, execution=child), partial(how, task=last)]
        await interleaving.run(*(actions if first_comes == "who waits" else reversed(actions)))

        assert await second.fetch_value("SELECT state FROM tenuto.tasks") == "queued", interleaving
        await run_to_end(second, worker_id)


async def test_a_step_whose_schedule_has_run_waits_if_its_execution_is_paused(db: Database, worker_id: UUID) -> None:
    (outer,) = await create_executions(db, create_plan(1))
    (step,) = await claim(db, worker_id)
    (child,) = await create_executions(db, create_plan(1), parent_task_id=step.id, origin="step")
    (last,) = await claim(db, worker_id)
    await put_aside(db, step, execution=child)
    await execution_control.pause_execution(db, outer, db.clock.now(), ACTOR)

    await ending(db, last)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "waiting"
    await execution_control.resume_execution(db, outer, db.clock.now())
    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


@pytest.mark.parametrize("order", ["resumed first", "ended first"])
async def test_a_step_whose_schedule_ends_while_its_execution_is_resumed_goes_on(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, order: str
) -> None:
    async for interleaving in interleavings(first, second):
        scenario = await happens.create_waiting_scenario(second, worker_id, worker_id, paused=True)

        actions = [partial(happens.resume, scenario=scenario), partial(happens.the_child_fails, scenario=scenario)]
        await interleaving.run(*(actions if order == "resumed first" else reversed(actions)))

        assert await second.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", scenario.a.id) == "queued", (
            interleaving
        )
        await run_to_end(second, worker_id)


async def test_who_resumes_lets_nobody_go_that_waits_for_another_execution(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_waiting_scenario(db, worker_id, worker_id, paused=True)

    async with db.connection() as connection:
        answer = await connection.fetchrow(executions.SQL.resume_execution, scenario.run, db.clock.now())

    assert answer is not None
    assert answer["notified"] == 0, "there is nothing to be taken"
    (step,) = await db.fetch_all("SELECT state, waits_for FROM tenuto.tasks WHERE id = $1", scenario.a.id)
    assert (step["state"], step["waits_for"]) == ("waiting", scenario.child)


async def test_repair_does_not_wait_for_what_somebody_else_works_on(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    (run,) = await create_executions(db, create_plan(1, 1))
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE group_index = 0")
    async with other.transaction():
        await executions.lock_executions(other, [run])

        assert await asyncio.wait_for(repair_stuck_executions(db, db.clock.now()), timeout=5) == 0

    assert await repair_stuck_executions(db, db.clock.now()) == 1


# --- what is final ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "in_progress"])
async def test_a_cancelled_execution_never_becomes_anything_else(db: Database, worker_id: UUID, state: str) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scenario)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all("UPDATE tenuto.executions SET state = $1", state)

    await happens.both_end(db, scenario)
    await repair_stuck_executions(db, db.clock.now())

    (row,) = await db.fetch_all("SELECT state, ended_at FROM tenuto.executions")
    assert (row["state"], row["ended_at"] is not None) == ("cancelled", True)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all("UPDATE tenuto.executions SET state = $1", state)


@pytest.mark.parametrize("change", ["error = 'none'", "ended_at = now()", "ended_at = NULL", "failed_steps = 0"])
async def test_an_execution_that_has_ended_cannot_be_changed(db: Database, worker_id: UUID, change: str) -> None:
    await create_executions(db, create_plan(1))
    await run_to_end(db, worker_id)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all(f"UPDATE tenuto.executions SET {change}")


async def test_who_follows_a_cancelled_execution_starts_nothing(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    for one, another in (
        (falls_due.the_step_begins, falls_due.the_step_is_cancelled),
        (falls_due.the_step_is_cancelled, falls_due.the_step_begins),
    ):
        async for interleaving in interleavings(first, second):
            scenario = await falls_due.create_scenario(second, worker_id, OverlapPolicy.ALLOW)
            await interleaving.run(partial(one, scenario=scenario), partial(another, scenario=scenario))
            assert await violated_invariants(second) == [], (one, interleaving)
            await falls_due.clear(second)


async def only_the_step_is_cancelled(db: Database, scenario: falls_due.Scenario) -> None:
    assert await task_cancellation.cancel_task(db, scenario.step.id, ACTOR) == "stopping"


async def test_a_step_that_is_told_to_stop_leaves_nothing_running_that_it_has_started(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    for one, another in (
        (falls_due.the_step_begins, only_the_step_is_cancelled),
        (only_the_step_is_cancelled, falls_due.the_step_begins),
    ):
        async for interleaving in interleavings(first, second):
            scenario = await falls_due.create_scenario(second, worker_id, OverlapPolicy.ALLOW)
            await interleaving.run(partial(one, scenario=scenario), partial(another, scenario=scenario))
            assert await violated_invariants(second) == [], (one, interleaving)
            await put_aside(second, scenario.step, execution=scenario.step.activity_id)
            assert (
                await second.fetch_value("SELECT status FROM tenuto.activities WHERE id = $1", scenario.step.id)
                == "cancelled"
            )
            await repair_stuck_executions(second, second.clock.now())
            await falls_due.clear(second)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs") == 0


@pytest.mark.parametrize("gone", ["fence = fence + 1", "worker_id = $2"], ids=["a later fence", "another worker"])
async def test_who_has_lost_its_step_starts_nothing(
    db: Database, worker_id: UUID, register_worker: RegisterWorker, gone: str
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    given = [await register_worker()] if "$2" in gone else []
    await db.fetch_all(f"UPDATE tenuto.tasks SET {gone} WHERE id = $1", scenario.step.id, *given)

    await falls_due.the_step_begins(db, scenario)

    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE parent_task_id IS NOT NULL") == 0


async def test_who_starts_something_again_that_has_ended_meanwhile_starts_nothing(
    db: Database, worker_id: UUID
) -> None:
    """The reply to the first try was lost, and what it had begun was quick."""
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    for _ in range(2):
        await falls_due.the_step_begins(db, scenario)
        while taken := await claim(db, worker_id, 10):
            await all_ending(db, taken)

    begun = await db.fetch_all("SELECT id, state FROM tenuto.executions WHERE parent_task_id = $1", scenario.step.id)
    assert [tuple(row) for row in begun] == [(scenario.step.activity_id, "completed")]


async def test_a_step_ends_as_the_run_of_its_own_attempt_though_an_earlier_one_has_the_greater_id(
    db: Database, worker_id: UUID
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    await create_executions(db, create_plan(1), parent_task_id=scenario.step.id)
    await finish(db, [fail_permanently(db, task) for task in await claim(db, worker_id)])
    own = replace(new_execution(db, create_plan(1), parent_task_id=scenario.step.id), id=scenario.step.activity_id)
    await db.transaction(lambda connection: executions.create_executions(connection, [own]))
    await all_ending(db, await claim(db, worker_id))

    answer = await schedule_step._run_child(db, Context(scenario.step))

    assert answer == {"execution_id": str(own.id), "failed_steps": 0}


async def test_a_circle_that_somebody_is_just_breaking_is_left_to_them(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    broken = "SELECT coalesce(sum(count), 0) FROM tenuto.repairs WHERE net = 'steps_waiting_in_a_circle'"
    async for interleaving in interleavings(first, second):
        one, another = await create_executions(second, create_plan(2), create_plan(1))
        steps = {step.execution_id: step for step in await claim(second, worker_id, 3)}  # of the first, one goes on
        await put_aside(second, steps[one], execution=another)
        await put_aside(second, steps[another], execution=one)

        async def cancel(db: Database, task_id: UUID = steps[one].id) -> int:
            await task_cancellation.cancel_task(db, task_id, ACTOR)
            count: int = await db.fetch_value(broken)
            return count

        _, by_then = await interleaving.run(lambda db: repair_stuck_executions(db, db.clock.now()), cancel)

        assert await second.fetch_value(broken) == by_then, (interleaving, "after that there was no circle")
        assert await violated_invariants(second) == [], interleaving
        await run_to_end(second, worker_id)


async def test_a_worker_declared_dead_does_not_go_on_with_the_next_group(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await register_of_workers.deregister_process(db, worker_id)

    await happens.both_end_and_the_worker_goes_on(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


async def test_the_end_of_a_step_and_the_step_to_the_next_group_are_one(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    settlements = [complete(db, scenario.a), complete(db, scenario.b)]

    async def end_and_think_better_of_it(connection: Connection) -> None:
        await executions.lock_executions(connection, [scenario.run])
        await completion.finish_in_transaction(connection, settlements)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await db.transaction(end_and_think_better_of_it)

    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2
    assert await violated_invariants(db) == []
