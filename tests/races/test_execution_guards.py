"""Each guard of executions alone: tests that fail when the guard is removed (see `tests.guards`)."""

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
from tenuto.model.definitions.schedules import OverlapPolicy
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import schedule_step
from tenuto.store.work import executions
from tenuto.store.work import workers as register_of_workers
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


async def finish_one(db: Database, task: Task) -> None:
    await finish(db, [complete(db, task)])


async def finish_all(db: Database, tasks: list[Task]) -> None:
    await finish(db, [complete(db, task) for task in tasks])


# --- concurrent ends of steps
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "another", "held", "paused"),
    [
        (happens.finish_a, happens.finish_b, 2, False),
        (happens.finish_both, happens.pause, 2, False),
        (happens.finish_both, happens.resume, 2, True),
        (happens.retry_a, happens.resume, 2, True),
        (happens.pause, happens.return_a_to_queue, 2, False),
        (happens.cancel, happens.claim_next, 1, False),
        (happens.cancel, happens.retry_a, 2, False),
        (happens.cancel_last, happens.finish_both, 2, False),
        (happens.pause, happens.finish_both, 2, False),
        (happens.cancel, happens.finish_both, 2, False),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
async def test_execution_stays_sound_under_two_concurrent_actions(
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


@pytest.mark.parametrize("taking_back", ["the sweep", "restart of the same worker"])
async def test_step_recovered_as_lost_and_finishing_step_start_the_next_group_once(
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
        await interleaving.run(take_back, partial(finish_one, task=ends))

        assert await violated_invariants(second) == [], interleaving
        assert await second.fetch_value("SELECT state FROM tenuto.executions WHERE id = $1", run) == "failed"


async def test_group_whose_steps_are_all_cancelled_is_skipped(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel_last(db, scenario)

    await happens.finish_both(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.executions") == "failed"
    assert await violated_invariants(db) == []


async def test_advancement_decided_before_a_cancellation_starts_no_group(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scenario)

    await db.fetch_all(executions.SQL.start_groups, [scenario.run], [1], [0], None, None, None, [], 0, None, None)

    assert await db.fetch_value("SELECT current_group FROM tenuto.executions") == 0


async def test_next_group_of_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=True)

    await happens.finish_both(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "waiting"
    await happens.resume(db, scenario)
    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


async def defer_task(db: Database, task: Task, **fields: object) -> set[UUID]:
    now = db.clock.now()
    outcome = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(**fields))  # type: ignore[arg-type]
    return await finish(db, [settle(task, outcome, now, new_id)])


async def test_retry_in_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=True)

    await finish(db, [fail(db, scenario.held_a)])
    await defer_task(db, scenario.held_b, resume_at=db.clock.now() + timedelta(hours=1))

    states = await db.fetch_all("SELECT DISTINCT state FROM tenuto.tasks")
    assert [row["state"] for row in states] == ["waiting"]


async def test_deferral_with_stale_fence_or_other_worker_changes_nothing(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    later = db.clock.now() + timedelta(hours=1)
    stranger = await register_worker()

    scenario.held_a.fence -= 1
    assert await defer_task(db, scenario.held_a, resume_at=later) == set()
    scenario.held_b.worker_id = stranger
    assert await defer_task(db, scenario.held_b, resume_at=later) == set()

    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2


async def fail_one(db: Database, task: Task) -> None:
    """Fail permanently, which takes more statements than a success."""
    now = db.clock.now()
    await finish(
        db, [settle(task, Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, may_retry=False), now, new_id)]
    )


@pytest.mark.parametrize("first_comes", ["the waiting step", "the end"])
@pytest.mark.parametrize("how", [finish_one, fail_one], ids=lambda action: action.__name__)
async def test_step_that_would_wait_for_an_ended_child_execution_continues(
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

        actions = [partial(defer_task, task=step, execution_id=child), partial(how, task=last)]
        await interleaving.run(*(actions if first_comes == "the waiting step" else reversed(actions)))

        assert await second.fetch_value("SELECT state FROM tenuto.tasks") == "queued", interleaving
        await run_to_end(second, worker_id)


async def test_step_whose_child_execution_ended_waits_while_its_execution_is_paused(
    db: Database, worker_id: UUID
) -> None:
    (outer,) = await create_executions(db, create_plan(1))
    (step,) = await claim(db, worker_id)
    (child,) = await create_executions(db, create_plan(1), parent_task_id=step.id, origin="step")
    (last,) = await claim(db, worker_id)
    await defer_task(db, step, execution_id=child)
    await execution_control.pause_execution(db, outer, db.clock.now(), ACTOR)

    await finish_one(db, last)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "waiting"
    await execution_control.resume_execution(db, outer, db.clock.now())
    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


@pytest.mark.parametrize("order", ["resumed first", "ended first"])
async def test_step_whose_child_execution_ends_during_resume_continues(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, order: str
) -> None:
    async for interleaving in interleavings(first, second):
        scenario = await happens.create_waiting_scenario(second, worker_id, worker_id, paused=True)

        actions = [partial(happens.resume, scenario=scenario), partial(happens.fail_child, scenario=scenario)]
        await interleaving.run(*(actions if order == "resumed first" else reversed(actions)))

        assert (
            await second.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", scenario.held_a.id) == "queued"
        ), interleaving
        await run_to_end(second, worker_id)


async def test_resume_releases_no_step_that_waits_for_a_child_execution(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_waiting_scenario(db, worker_id, worker_id, paused=True)

    async with db.connection() as connection:
        result = await connection.fetchrow(executions.SQL.resume_execution, scenario.run, db.clock.now())

    assert result is not None
    assert result["notified"] == 0, "no step can be claimed"
    (step,) = await db.fetch_all("SELECT state, waits_for FROM tenuto.tasks WHERE id = $1", scenario.held_a.id)
    assert (step["state"], step["waits_for"]) == ("waiting", scenario.child)


async def test_repair_skips_executions_locked_by_another_process(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    (run,) = await create_executions(db, create_plan(1, 1))
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE group_index = 0")
    async with other.transaction():
        await executions.lock_executions(other, [run])

        assert await asyncio.wait_for(repair_stuck_executions(db, db.clock.now()), timeout=5) == 0

    assert await repair_stuck_executions(db, db.clock.now()) == 1


# --- final states
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "in_progress"])
async def test_cancelled_execution_never_changes_state(db: Database, worker_id: UUID, state: str) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scenario)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all("UPDATE tenuto.executions SET state = $1", state)

    await happens.finish_both(db, scenario)
    await repair_stuck_executions(db, db.clock.now())

    (row,) = await db.fetch_all("SELECT state, ended_at FROM tenuto.executions")
    assert (row["state"], row["ended_at"] is not None) == ("cancelled", True)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all("UPDATE tenuto.executions SET state = $1", state)


@pytest.mark.parametrize("change", ["error = 'none'", "ended_at = now()", "ended_at = NULL", "failed_steps = 0"])
async def test_ended_execution_cannot_be_changed(db: Database, worker_id: UUID, change: str) -> None:
    await create_executions(db, create_plan(1))
    await run_to_end(db, worker_id)
    with pytest.raises(Exception, match="which is final"):
        await db.fetch_all(f"UPDATE tenuto.executions SET {change}")


async def test_advancement_of_a_cancelled_execution_starts_no_group(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    for one, another in (
        (falls_due.start_call_step, falls_due.cancel_call_step),
        (falls_due.cancel_call_step, falls_due.start_call_step),
    ):
        async for interleaving in interleavings(first, second):
            scenario = await falls_due.create_scenario(second, worker_id, OverlapPolicy.ALLOW)
            await interleaving.run(partial(one, scenario=scenario), partial(another, scenario=scenario))
            assert await violated_invariants(second) == [], (one, interleaving)
            await falls_due.truncate(second)


async def cancel_step_only(db: Database, scenario: falls_due.Scenario) -> None:
    assert await task_cancellation.cancel_task(db, scenario.step.id, ACTOR) == "stopping"


async def test_cancelled_step_leaves_no_child_execution_running(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    for one, another in (
        (falls_due.start_call_step, cancel_step_only),
        (cancel_step_only, falls_due.start_call_step),
    ):
        async for interleaving in interleavings(first, second):
            scenario = await falls_due.create_scenario(second, worker_id, OverlapPolicy.ALLOW)
            await interleaving.run(partial(one, scenario=scenario), partial(another, scenario=scenario))
            assert await violated_invariants(second) == [], (one, interleaving)
            await defer_task(second, scenario.step, execution_id=scenario.step.activity_id)
            assert (
                await second.fetch_value("SELECT status FROM tenuto.activities WHERE id = $1", scenario.step.id)
                == "cancelled"
            )
            await repair_stuck_executions(second, second.clock.now())
            await falls_due.truncate(second)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs") == 0


@pytest.mark.parametrize("gone", ["fence = fence + 1", "worker_id = $2"], ids=["a later fence", "another worker"])
async def test_worker_that_lost_its_step_starts_no_child_execution(
    db: Database, worker_id: UUID, register_worker: RegisterWorker, gone: str
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    given = [await register_worker()] if "$2" in gone else []
    await db.fetch_all(f"UPDATE tenuto.tasks SET {gone} WHERE id = $1", scenario.step.id, *given)

    await falls_due.start_call_step(db, scenario)

    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE parent_task_id IS NOT NULL") == 0


async def test_step_that_repeats_the_start_of_an_ended_child_execution_starts_none(
    db: Database, worker_id: UUID
) -> None:
    """The reply to the first start was lost, and the child execution ended quickly."""
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    for _ in range(2):
        await falls_due.start_call_step(db, scenario)
        while claimed := await claim(db, worker_id, 10):
            await finish_all(db, claimed)

    started = await db.fetch_all("SELECT id, state FROM tenuto.executions WHERE parent_task_id = $1", scenario.step.id)
    assert [tuple(row) for row in started] == [(scenario.step.activity_id, "completed")]


async def test_call_step_reports_the_child_of_its_own_attempt_even_if_an_earlier_child_has_a_greater_id(
    db: Database, worker_id: UUID
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.ALLOW)
    await create_executions(db, create_plan(1), parent_task_id=scenario.step.id)
    await finish(db, [fail_permanently(db, task) for task in await claim(db, worker_id)])
    own = replace(new_execution(db, create_plan(1), parent_task_id=scenario.step.id), id=scenario.step.activity_id)
    await db.transaction(lambda connection: executions.create_executions(connection, [own]))
    await finish_all(db, await claim(db, worker_id))

    result = await schedule_step._run_child(db, Context(scenario.step))

    assert result == {"execution_id": str(own.id), "failed_steps": 0}


async def test_call_cycle_that_another_process_is_breaking_is_left_alone(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    broken = "SELECT coalesce(sum(count), 0) FROM tenuto.repairs WHERE net = 'steps_waiting_in_a_circle'"
    async for interleaving in interleavings(first, second):
        one, another = await create_executions(second, create_plan(2), create_plan(1))
        steps = {step.execution_id: step for step in await claim(second, worker_id, 3)}  # one of the first continues
        await defer_task(second, steps[one], execution_id=another)
        await defer_task(second, steps[another], execution_id=one)

        async def cancel(db: Database, task_id: UUID = steps[one].id) -> int:
            await task_cancellation.cancel_task(db, task_id, ACTOR)
            count: int = await db.fetch_value(broken)
            return count

        _, by_then = await interleaving.run(lambda db: repair_stuck_executions(db, db.clock.now()), cancel)

        assert await second.fetch_value(broken) == by_then, (interleaving, "the cycle is already broken")
        assert await violated_invariants(second) == [], interleaving
        await run_to_end(second, worker_id)


async def test_worker_declared_dead_starts_no_next_group(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    await register_of_workers.deregister_process(db, worker_id)

    await happens.finish_both_and_claim_next(db, scenario)

    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"


async def test_end_of_a_step_and_advancement_are_one_transaction(db: Database, worker_id: UUID) -> None:
    scenario = await happens.create_scenario(db, worker_id, worker_id, held=2, paused=False)
    settlements = [complete(db, scenario.held_a), complete(db, scenario.held_b)]

    async def finish_and_roll_back(connection: Connection) -> None:
        await executions.lock_executions(connection, [scenario.run])
        await completion.finish_in_transaction(connection, settlements)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await db.transaction(finish_and_roll_back)

    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2
    assert await violated_invariants(db) == []
