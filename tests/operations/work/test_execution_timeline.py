"""The timeline of an execution: every attempt, usual durations, and windows of groups with many steps."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control
from tenuto.model.definitions.steps import Step
from tenuto.model.work.executions import StepState
from tenuto.model.work.tasks import Outcome, OutcomeStatus, settle
from tenuto.operations.work.execution_timeline import (
    ExecutionTimeline,
    GroupWindow,
    load_timeline,
    parse_group_windows,
)
from tenuto.postgres.database import Database
from tenuto.store.work import executions
from tenuto.store.work import tasks as task_store
from tests.support.errors import raises_code
from tests.support.schedules import (
    ANA,
    claim_steps,
    finish_task,
    make_step,
    run_claimable_steps,
    run_schedule_now,
    start_execution,
)
from tests.support.tasks import Register


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def read_timeline(
    db: Database, id: UUID, windows: list[GroupWindow] | None = None, find: str | None = None
) -> ExecutionTimeline:
    found = await executions.load_execution(db, id)
    assert found is not None
    return await load_timeline(db, found, windows or [], find)


async def run_step_for(db: Database, worker_id: UUID, seconds: float) -> None:
    """Run the claimable steps so that each lasts this long."""
    held = await claim_steps(db, worker_id)
    now = db.clock.now()
    outcome = Outcome(OutcomeStatus.COMPLETED, None, now - timedelta(seconds=seconds), now)
    assert await completion.finish(db, [settle(task, outcome, now, new_id) for task in held.values()])


async def test_timeline_shows_every_attempt_of_a_retried_step(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", max_attempts=3), ["b", "c"])
    await finish_task(db, (await claim_steps(db, worker_id))["a"], "failed", "no connection")
    found = await read_timeline(db, run)
    (step,) = found.groups[0].steps
    first, second = step.attempts
    assert (first.attempt, first.state, first.reason, first.message) == (1, "failed", "error", "no connection")
    assert first.worker is not None
    assert first.claimed_at is not None
    assert first.started_at is not None
    assert first.ended_at is not None
    assert first.due_at <= first.started_at <= first.ended_at
    assert (second.attempt, second.state, second.started_at) == (2, "scheduled", None)
    assert (step.state, step.max_attempts) == (StepState.SCHEDULED, 3)
    assert first.activity_id != second.activity_id
    assert [(group.index, group.step_count) for group in found.groups] == [(0, 1), (1, 2)]
    assert [[bar.state for bar in each.attempts] for each in found.groups[1].steps] == [["waiting"], ["waiting"]]
    assert found.groups[1].steps[0].attempts[0].wait_seconds is None, "it waits for group 0, not for a worker"


async def test_timeline_measures_waits_and_durations_of_open_attempts_until_now(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"])
    await task_store.claim_tasks(db, worker_id, ["default"], 1, timedelta(seconds=30))
    found = await read_timeline(db, run)
    bars = {each.attempts[0].state: each.attempts[0] for each in found.groups[0].steps}
    running, queued = bars["running"], bars["queued"]  # type: ignore[index]
    assert running.started_at is not None
    assert running.duration_seconds == max(0.0, (found.read_at - running.started_at).total_seconds())
    assert queued.duration_seconds is None
    assert queued.wait_seconds == max(0.0, (found.read_at - queued.due_at).total_seconds())


async def test_timeline_usual_duration_is_the_median_of_earlier_successful_runs(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", "b")
    for seconds in (1.0, 9.0, 2.0):
        await run_step_for(db, worker_id, seconds)
        await run_step_for(db, worker_id, seconds + 10)
        if seconds != 2.0:
            await run_schedule_now(db, now=db.clock.now())
    failed = (await run_schedule_now(db, now=db.clock.now())).execution_id
    assert failed is not None
    await run_claimable_steps(db, worker_id, a="failed")
    run = (await run_schedule_now(db, now=db.clock.now())).execution_id
    assert run is not None
    found = await read_timeline(db, run)
    usual = [step.usual_seconds for group in found.groups for step in group.steps]
    assert usual == [pytest.approx(2.0), pytest.approx(12.0)]
    assert found.usual_seconds is not None
    missed = await read_timeline(db, failed)
    assert [(each.state, each.count) for each in missed.groups[1].states] == [(StepState.CANCELLED, 1)]


async def test_timeline_folds_a_wide_group_and_lists_the_requested_window(db: Database, worker_id: UUID) -> None:
    names = [f"part-{number:03}" for number in range(230)]
    run = await start_execution(db, "first", names, "last")
    await run_claimable_steps(db, worker_id)
    held = await task_store.claim_tasks(db, worker_id, ["default"], 30, timedelta(seconds=30))
    for task in held[:7]:
        await finish_task(db, task)
    found = await read_timeline(db, run)
    folded = found.groups[1]
    assert (folded.is_folded, folded.step_count, list(folded.steps)) == (True, 230, [])
    assert {each.state: each.count for each in folded.states} == {"completed": 7, "running": 23, "queued": 200}
    assert folded.first_started_at is not None
    assert folded.longest_seconds is not None
    assert [step.name for step in found.groups[0].steps] == ["first"]

    window = (await read_timeline(db, run, [GroupWindow(1, 200)])).groups[1]
    assert [step.name for step in window.steps] == names[200:]
    assert [step.number for step in window.steps] == list(range(201, 231))
    assert all(len(step.attempts) == 1 for step in window.steps)
    matching = (await read_timeline(db, run, find="PART-11")).groups[1]
    assert [step.name for step in matching.steps] == names[110:120]


async def test_timeline_of_a_retry_says_which_groups_were_done_before(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await run_claimable_steps(db, worker_id)
    await run_claimable_steps(db, worker_id, b="failed")
    retry = await execution_control.retry_execution(db, run, db.clock.now(), ANA, new_id(), lambda: None)
    found = await read_timeline(db, retry)
    assert [step.state for group in found.groups for step in group.steps] == [StepState.DONE_BEFORE, StepState.QUEUED]
    assert [(each.state, each.count) for each in found.groups[0].states] == [(StepState.DONE_BEFORE, 1)]


async def test_timeline_names_the_execution_that_a_step_has_started(db: Database, worker_id: UUID) -> None:
    child = await start_execution(db, "x", name="Inner")
    run = await start_execution(db, Step.schedule("Inner"))
    parent = (await read_timeline(db, run)).groups[0].steps[0]
    assert (parent.kind, parent.child_execution_id) == ("schedule", None)
    await db.fetch_all("UPDATE tenuto.executions SET parent_task_id = $1 WHERE id = $2", parent.task_id, child)
    assert (await read_timeline(db, run)).groups[0].steps[0].child_execution_id == child


@pytest.mark.parametrize("text", ["x", "1:", "1-2", "-1", "1:2:3", ",".join("1" * 21)])
def test_group_windows_that_cannot_be_parsed_are_refused(text: str) -> None:
    with raises_code("execution.groups.invalid"):
        parse_group_windows(text)


def test_group_windows_are_parsed_from_text() -> None:
    assert parse_group_windows("2, 3:100,") == [GroupWindow(2), GroupWindow(3, 100)]
    assert parse_group_windows(None) == []
