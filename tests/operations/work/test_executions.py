"""Execution operations (S11): cancel, pause, resume and retry from the failed group."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, manual
from tenuto.definitions.schedule_definitions import delete, edit
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control, task_cancellation
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, Settlement, settle
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.operations.work import executions
from tenuto.operations.work.executions import StepError
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store.work import executions as execution_store
from tenuto.store.work import tasks as store
from tests.support.errors import raises_code
from tests.support.model_values import NOON
from tests.support.require_value import known
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    claim_steps,
    finish_task,
    list_attempts,
    load_execution,
    make_change_context,
    make_definition,
    make_plan,
    make_settlement,
    make_step,
    open_task_states,
    read_repairs,
    read_table,
    run_claimable_steps,
    run_schedule_now,
    start_execution,
)
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import Register
from tests.support.waiting import eventually

LATER = NOON + MINUTE


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


# --- cancel ---------------------------------------------------------------------------------------------------------


async def test_cancel_removes_steps_that_have_not_started_and_records_the_actor(db: Database) -> None:
    run = await start_execution(db, "a", ["b", "c"])
    assert await execution_control.cancel_execution(db, run, LATER, ANA, "wrong day") == "cancelled"
    assert await open_task_states(db) == {}
    ended = await load_execution(db, run)
    assert (ended.state, ended.ended_at, ended.cancelled_at) == ("cancelled", LATER, LATER)
    assert (ended.cancel_type, ended.cancel_id, ended.cancel_name) == ("user", "u-17", "Ana")
    assert (ended.cancel_reason, ended.error) == ("wrong day", "cancelled by Ana: wrong day")
    assert await list_attempts(db, run) == [(name, "cancelled", "requested") for name in "abc"]
    for record in await read_table(db, "activities"):
        assert '"by": {"id": "u-17", "name": "Ana", "type": "user"}' in record["error"]


async def test_cancelled_execution_ends_when_its_running_steps_have_stopped(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"], "c")
    held = await claim_steps(db, worker_id)
    assert await execution_control.cancel_execution(db, run, LATER, ANA) == "stopping"
    assert await open_task_states(db) == {"a": "running", "b": "running"}
    for task in await read_table(db, "tasks"):
        assert (task["cancel_type"], task["cancel_id"], task["cancel_name"]) == ("user", "u-17", "Ana")
        assert task["cancel_at"] is not None
    await finish_task(db, held["a"], "cancelled")
    assert (await load_execution(db, run)).ended_at is None
    await finish_task(db, held["b"], "cancelled")
    ended = await load_execution(db, run)
    assert (ended.state, ended.error) == ("cancelled", "cancelled by Ana")
    assert ended.ended_at is not None


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_cancelled_execution_stays_cancelled_whatever_its_last_step_returns(
    db: Database, worker_id: UUID, status: str
) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    await finish_task(db, held["a"], status)
    ended = await load_execution(db, run)
    assert (ended.state, ended.error) == ("cancelled", "cancelled by Ana")
    assert await open_task_states(db) == {}, "no step follows"


async def test_database_rejects_state_changes_of_a_cancelled_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    for state in ("completed", "failed", "in_progress"):
        with pytest.raises(DatabaseError, match="which is final"):
            await db.fetch_all("UPDATE tenuto.executions SET state = $1", state)


async def test_failed_step_of_cancelled_execution_is_not_retried(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", max_attempts=5), "b")
    held = await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    await completion.finish(db, [make_settlement(held["a"], db.clock.now(), "failed")])
    assert await open_task_states(db) == {}
    assert (await load_execution(db, run)).state == "cancelled"
    assert (await load_execution(db, run)).ended_at is not None


async def test_step_lost_after_cancellation_ends_the_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    assert await recover_lost_tasks(db, db.clock.now()) == 1
    assert (await load_execution(db, run)).ended_at is not None
    assert await open_task_states(db) == {}


async def test_ended_or_unknown_execution_cannot_be_cancelled(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await run_claimable_steps(db, worker_id)
    with raises_code("execution.already_ended", Conflict):
        await execution_control.cancel_execution(db, run, LATER, ANA)
    with raises_code("execution.not_found", NotFound):
        await execution_control.cancel_execution(db, new_id(), LATER, ANA)


async def test_second_cancellation_is_an_error_and_keeps_the_first_actor(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    with raises_code("execution.already_ended", Conflict):
        await execution_control.cancel_execution(db, run, LATER + MINUTE, Actor.user("u-2", "Ben"))
    assert (await load_execution(db, run)).cancel_name == "Ana"


async def test_paused_execution_can_be_cancelled(db: Database) -> None:
    run = await start_execution(db, "a", "b")
    await execution_control.pause_execution(db, run, LATER, ANA)
    assert await execution_control.cancel_execution(db, run, LATER, ANA) == "cancelled"
    assert (await load_execution(db, run)).paused_at is None


async def test_cancelled_step_counts_as_failed(db: Database) -> None:
    run = await start_execution(db, [make_step("a", continue_on_failure=True), "b"], "c")
    (task,) = await read_table(db, "tasks", "name = 'a'")
    assert await task_cancellation.cancel_task(db, task["id"], ANA) == "cancelled"
    assert await open_task_states(db) == {"b": "queued", "c": "waiting"}
    (task,) = await read_table(db, "tasks", "name = 'b'")
    await task_cancellation.cancel_task(db, task["id"], ANA)
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("failed", 2)
    assert ended.error == "step 'b' was cancelled: cancelled by Ana"


# --- pause and resume -----------------------------------------------------------------------------------------------


async def test_paused_execution_starts_no_steps_until_resumed(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await execution_control.pause_execution(db, run, LATER, ANA)
    assert await claim_steps(db, worker_id) == {}
    paused = await load_execution(db, run)
    assert (paused.state, paused.paused_at, paused.paused_by) == ("in_progress", LATER, "Ana")
    await execution_control.resume_execution(db, run, db.clock.now())
    assert (await load_execution(db, run)).paused_at is None
    assert await run_claimable_steps(db, worker_id) == {"a"}
    assert await run_claimable_steps(db, worker_id) == {"b"}


async def test_running_step_of_paused_execution_ends_and_next_group_waits(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", ["b", "c"])
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, LATER, ANA)
    await finish_task(db, held["a"])
    assert (await load_execution(db, run)).current_group == 1
    assert await open_task_states(db) == {"b": "waiting", "c": "waiting"}
    assert await repair_stuck_executions(db, db.clock.now()) == 0, "a paused execution is not stuck"
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await run_claimable_steps(db, worker_id) == {"b", "c"}
    assert (await load_execution(db, run)).state == "completed"


async def test_wait_of_a_step_counts_from_the_start_of_its_group(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, LATER, ANA)
    began = db.clock.now()
    await completion.finish(db, [make_settlement(held["a"], began)])
    assert (await read_table(db, "tasks"))[0]["run_at"] == began


async def test_last_step_of_paused_execution_ends_it(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, LATER, ANA)
    await finish_task(db, held["a"])
    ended = await load_execution(db, run)
    assert (ended.state, ended.paused_at) == ("completed", None)


async def test_retry_of_a_step_waits_while_execution_is_paused(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", max_attempts=3), "b")
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, LATER, ANA)
    now = db.clock.now()
    await completion.finish(db, [make_settlement(held["a"], now, "failed")])
    assert await open_task_states(db) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume_execution(db, run, now)
    assert await open_task_states(db) == {"a": "scheduled", "b": "waiting"}


@pytest.mark.parametrize("how", ["returned", "handed back", "lost", "deferred"])
async def test_returned_step_waits_while_execution_is_paused(db: Database, worker_id: UUID, how: str) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, LATER, ANA)
    task, now = held["a"], db.clock.now()
    if how == "returned":
        assert await store.return_tasks_to_queue(db, worker_id, [task]) == {task.id}
    elif how == "handed back":
        outcome = Outcome(OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, now, now)
        await completion.finish(db, [settle(task, outcome, now, new_id)])
    elif how == "lost":
        await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE name = 'a'")
        assert await recover_lost_tasks(db, now) == 1
    else:
        outcome = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(resume_at=now + timedelta(hours=1)))
        await completion.finish(db, [Settlement(task, outcome)])
    assert await open_task_states(db) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume_execution(db, run, now + timedelta(hours=2))
    assert await open_task_states(db) == {"a": "queued", "b": "waiting"}


async def test_pausing_twice_or_resuming_an_active_execution_is_an_error(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    with raises_code("execution.not_paused", Conflict):
        await execution_control.resume_execution(db, run, LATER)
    await execution_control.pause_execution(db, run, LATER, ANA)
    with raises_code("execution.already_paused", Conflict):
        await execution_control.pause_execution(db, run, LATER + MINUTE, ANA)
    await execution_control.resume_execution(db, run, LATER)
    await run_claimable_steps(db, worker_id)
    for act in (
        execution_control.pause_execution(db, run, LATER, ANA),
        execution_control.resume_execution(db, run, LATER),
    ):
        with raises_code("execution.already_ended", Conflict):
            await act
    with raises_code("execution.not_found", NotFound):
        await execution_control.pause_execution(db, new_id(), LATER, ANA)


# --- retry ----------------------------------------------------------------------------------------------------------


async def test_execution_retry_starts_at_failed_group_and_keeps_the_old_execution(
    db: Database, worker_id: UUID
) -> None:
    run = await start_execution(db, "a", ["b", "c"], "d")
    await run_claimable_steps(db, worker_id)
    await run_claimable_steps(db, worker_id, b="failed")
    old, old_records = await load_execution(db, run), await list_attempts(db, run)
    again = await execution_control.retry_execution(db, run, LATER, Actor.user("u-2", "Ben"))
    assert await open_task_states(db) == {"b": "queued", "c": "queued", "d": "waiting"}
    new = await load_execution(db, again)
    assert (new.retry_of, new.origin, new.initiator_name) == (run, "retry", "Ben")
    assert (new.first_group, new.current_group, new.group_count, new.step_count) == (1, 1, 3, 4)
    assert await run_claimable_steps(db, worker_id) == {"b", "c"}
    assert await run_claimable_steps(db, worker_id) == {"d"}
    assert (await load_execution(db, again)).state == "completed"
    assert await load_execution(db, run) == old
    assert await list_attempts(db, run) == old_records


async def test_execution_retry_uses_the_plan_of_the_old_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await run_claimable_steps(db, worker_id, a="failed")
    await edit(db, NAME, make_definition("x"), make_change_context(LATER))
    again = await execution_control.retry_execution(db, run, LATER, ANA)
    assert set(await open_task_states(db)) == {"a", "b"}
    assert (await load_execution(db, again)).version == 1


async def test_execution_of_deleted_schedule_can_be_retried(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await run_claimable_steps(db, worker_id, a="failed")
    await delete(db, NAME, make_change_context(LATER))
    again = await execution_control.retry_execution(db, run, LATER, ANA)
    await run_claimable_steps(db, worker_id)
    assert (await load_execution(db, again)).state == "completed"


async def test_cancelled_execution_can_be_retried_after_it_has_stopped(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    with raises_code("execution.not_retryable", Conflict):
        await execution_control.retry_execution(db, run, LATER, ANA)
    await finish_task(db, held["a"], "cancelled")
    await execution_control.retry_execution(db, run, LATER, ANA)
    assert await open_task_states(db) == {"a": "queued", "b": "waiting"}


async def test_execution_retry_requires_a_failure_and_no_active_run(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    with raises_code("execution.not_retryable", Conflict):
        await execution_control.retry_execution(db, run, LATER, ANA)
    await run_claimable_steps(db, worker_id, a="failed")
    await run_schedule_now(db, now=LATER)
    with raises_code("schedule.running", Conflict):
        await execution_control.retry_execution(db, run, LATER, ANA)
    await run_claimable_steps(db, worker_id)
    done = (await read_table(db, "executions", "state = 'completed'"))[0]["id"]
    with raises_code("execution.not_retryable", Conflict):
        await execution_control.retry_execution(db, done, LATER, ANA)
    with raises_code("execution.not_found", NotFound):
        await execution_control.retry_execution(db, new_id(), LATER, ANA)


async def test_concurrent_execution_retries_start_one_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await run_claimable_steps(db, worker_id, a="failed")
    results = await asyncio.gather(
        *(execution_control.retry_execution(db, run, LATER, ANA) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, UUID) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 4
    assert len(await read_table(db, "executions", "retry_of = $1", run)) == 1


# --- with a worker --------------------------------------------------------------------------------------------------


async def test_cancelled_execution_stops_running_code(app: Tenuto, worker: WorkerFactory) -> None:
    started, stopped = threading.Event(), threading.Event()

    @app.job
    async def endless(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    await app.schedules.create(schedule_definition(NAME, manual(), [Step.job(endless), Step.job(endless, name="next")]))
    async with worker():
        run = (await app.schedules.run(NAME)).execution_id
        assert run is not None
        await eventually(started.is_set)
        assert await app.acting_as(ANA).executions.cancel(run, reason="enough") == "stopping"
        ended = await app.executions.wait(run, timeout=10)
        assert stopped.is_set()
    assert (ended.state, ended.cancel_name) == ("cancelled", "Ana")
    assert [step.state for step in ended.steps] == ["cancelled", "cancelled"]
    assert await read_repairs(await app.open()) == {}


async def test_execution_description_lists_every_step(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(max_attempts=1)
    async def breaks() -> None:
        raise ValueError("no flour")

    @app.job
    async def bakes(ctx: Context) -> None:
        ctx.progress(1, 2, "half")

    await app.schedules.create(
        schedule_definition(
            NAME,
            manual(),
            [Step.job(bakes), [Step.job(breaks), Step.job(bakes, name="beside")], Step.job(bakes, name="never")],
        )
    )
    async with worker():
        run = (await app.schedules.run(NAME)).execution_id
        assert run is not None
        execution = await app.executions.wait(run, timeout=10)
        assert (execution.state, execution.error) == ("failed", "step 'breaks' failed: no flour")
        assert [(step.name, step.group, step.state, step.reason) for step in execution.steps] == [
            ("bakes", 0, "completed", None),
            ("breaks", 1, "failed", "error"),
            ("beside", 1, "completed", None),
            ("never", 2, "cancelled", "not_run"),
        ]
        assert execution.steps[1].error == "no flour"
        assert execution.steps[0].progress == {"done": 1, "total": 2, "message": "half"}
        for step in execution.steps[:3]:
            assert known(step.duration_seconds) >= 0
            assert known(step.wait_seconds) >= 0
            assert (await app.activity(known(step.activity_id))).task_id == step.task_id
        again = await app.executions.wait(await app.executions.retry(run), timeout=10)
    assert [step.state for step in again.steps] == ["done_before", "failed", "completed", "cancelled"]
    listed = await app.executions.list(schedule=NAME, state="failed")
    assert [(row.id, row.retry_of) for row in listed] == [(again.id, run), (run, None)]


async def test_execution_of_ten_thousand_steps_is_described_quickly(db: Database) -> None:
    plan = make_plan([f"s{n}" for n in range(10_000)])
    run = replace(await load_execution(db, await start_execution(db, "a")), plan_json=plan.to_json())
    began = time.process_time()
    execution = executions.describe_execution(run, [], LATER)
    assert len(execution.steps) == 10_000
    assert time.process_time() - began < 5


async def test_step_description_has_last_error_only_until_the_step_succeeds(app: Tenuto, worker: WorkerFactory) -> None:
    go_on = threading.Event()

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0, jitter=0))
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        await asyncio.to_thread(go_on.wait)

    app.schedule("again", manual(), [Step.job(second_time)])
    async with worker():
        run = (await app.schedules.run("again")).execution_id
        assert run is not None

        async def is_tried_again() -> bool:
            return bool((await app.executions.get(run)).steps[0].attempt == 2)

        await eventually(is_tried_again)
        (step,) = (await app.executions.get(run)).steps
        assert step.error is None
        assert step.last_error == StepError(1, step.activity_ids[0], "not yet")
        go_on.set()
        ended = await app.executions.wait(run, timeout=10)

    assert (ended.state, ended.steps[0].last_error) == ("completed", None)


async def test_execution_and_its_attempts_are_read_at_the_same_instant(
    app: Tenuto, db: Database, worker_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The execution ends between the query for it and the query for its attempts."""
    run = await start_execution(db, "a")
    fetch = asyncpg.Connection.fetch
    interrupted = asyncio.Event()

    async def fetch_later(self: asyncpg.Connection, query: str, *values: Any, **options: Any) -> Any:
        if query == execution_store.SQL.list_step_attempts and not interrupted.is_set():
            interrupted.set()
            await run_claimable_steps(db, worker_id)
        return await fetch(self, query, *values, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fetch_later)
    found = await app.executions.get(run)
    assert (found.state, found.steps[0].state) == ("in_progress", "queued")
    assert interrupted.is_set()
    found = await app.executions.get(run)
    assert (found.state, found.steps[0].state) == ("completed", "completed")
