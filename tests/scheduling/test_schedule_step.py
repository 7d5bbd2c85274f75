"""Schedule as a step of another (S6): it waits without a slot, passes failures up and cancellation down."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, Step, Tenuto, manual
from tenuto.lifecycle import completion, execution_control
from tenuto.maintenance.recovery import recover_tasks_of_worker
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.store.work.executions import ExecutionRecord
from tests.support.require_value import known
from tests.support.schedules import (
    ANA,
    MINUTE,
    claim_steps,
    finish_task,
    open_task_states,
    read_repairs,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import Register
from tests.support.waiting import eventually


def make_manual_schedule(name: str, *steps: Any, **options: Any) -> ScheduleDefinition:
    return schedule_definition(name, manual(), steps, **options)


class Gate:
    """A job that starts and waits until it is released."""

    def __init__(self) -> None:
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.count = 0

    def pass_through(self, ctx: Context) -> None:
        self.count += 1
        self.began.release()
        while not self.go.acquire(timeout=0.02):
            ctx.raise_if_cancelled()

    async def has_begun(self) -> None:
        await eventually(lambda: self.began.acquire(blocking=False))


@pytest.fixture
def gate(app: Tenuto) -> Gate:
    gate = Gate()

    @app.job(max_attempts=1)
    def gated(ctx: Context) -> None:
        gate.pass_through(ctx)

    @app.job(max_attempts=1)
    async def quick() -> None: ...

    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no flour")

    return gate


def make_job_step(app: Tenuto, which: str, **options: Any) -> Step:
    return Step.job(app.jobs.jobs_by_name[which], **options)


async def start_run(app: Tenuto, name: str) -> UUID:
    answer = await app.schedules.run(name)
    assert answer.execution_id is not None, answer
    return answer.execution_id


async def wait_for_child(app: Tenuto, name: str) -> ExecutionRecord:
    async def found() -> Any:
        listed = await app.executions.list(schedule=name)
        return listed[0] if listed else None

    child: ExecutionRecord = await eventually(found)
    return child


@pytest.mark.usefixtures("gate")
async def test_three_levels_of_schedule_steps_run_on_one_slot(app: Tenuto, worker: WorkerFactory) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule(
                "one", make_job_step(app, "quick"), Step.schedule("two"), make_job_step(app, "quick", name="after")
            ),
            make_manual_schedule("two", Step.schedule("three"), make_job_step(app, "quick")),
            make_manual_schedule("three", Step.schedule("four"), make_job_step(app, "quick")),
            make_manual_schedule("four", make_job_step(app, "quick")),
        ]
    )
    async with worker(slots=1):
        ended = await app.executions.wait(await start_run(app, "one"), timeout=20)
    assert (ended.state, ended.error) == ("completed", None)
    assert [step.state for step in ended.steps] == ["completed"] * 3
    runs = await app.executions.list()
    assert {row.schedule_name: row.state for row in runs} == dict.fromkeys(("one", "two", "three", "four"), "completed")
    assert {row.origin for row in runs if row.schedule_name != "one"} == {"step"}
    assert await read_repairs(await app.open()) == {}


async def test_waiting_schedule_step_holds_no_slot(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated")),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    async with worker(slots=2):
        outer = await start_run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        await app.wait(await app.enqueue(app.jobs.jobs_by_name["quick"]), timeout=5)
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=10)
    (step,) = ended.steps
    child = await wait_for_child(app, "inner")
    assert (ended.state, step.state, step.attempt) == ("completed", "completed", 1)
    assert (child.parent_task_id, child.initiator_name) == (step.task_id, ended.initiator_name)
    record = await app.activity(known(step.activity_id))
    assert record.output == {"execution_id": str(child.id), "failed_steps": 0}


@pytest.mark.usefixtures("gate")
async def test_schedule_step_fails_with_the_error_of_its_child(app: Tenuto, worker: WorkerFactory) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "broken")),
            make_manual_schedule("middle", Step.schedule("inner")),
            make_manual_schedule("outer", Step.schedule("middle"), make_job_step(app, "quick")),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await start_run(app, "outer"), timeout=20)
    assert ended.state == "failed"
    assert known(ended.error).startswith("step 'middle' failed: execution ")
    assert "step 'broken' failed: no flour" in known(ended.error)
    assert [step.state for step in ended.steps] == ["failed", "cancelled"]


@pytest.mark.usefixtures("gate")
async def test_schedule_step_with_continue_on_failure_does_not_fail_its_execution(
    app: Tenuto, worker: WorkerFactory
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("fails", make_job_step(app, "broken")),
            make_manual_schedule(
                "partly", make_job_step(app, "broken", continue_on_failure=True), make_job_step(app, "quick")
            ),
            make_manual_schedule("outer", Step.schedule("fails", continue_on_failure=True), Step.schedule("partly")),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await start_run(app, "outer"), timeout=20)
    assert (ended.state, ended.failed_step_count) == ("completed", 1)
    assert [step.state for step in ended.steps] == ["failed", "completed_with_warning"]


@pytest.mark.usefixtures("gate")
async def test_retried_schedule_step_runs_the_schedule_again(app: Tenuto, worker: WorkerFactory) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "broken")),
            make_manual_schedule("outer", Step.schedule("inner", retry={"max_attempts": 2, "base_seconds": 0.01})),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await start_run(app, "outer"), timeout=20)
    assert (ended.state, ended.steps[0].attempt) == ("failed", 2)
    assert len(await app.executions.list(schedule="inner")) == 2


async def test_cancelling_the_parent_execution_stops_the_code_of_its_child(app: Tenuto, worker: WorkerFactory) -> None:
    began, stopped = threading.Event(), threading.Event()

    @app.job
    async def endless(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    await app.schedules.apply(
        [
            make_manual_schedule("inner", Step.job(endless), Step.job(endless, name="next")),
            make_manual_schedule("middle", Step.schedule("inner")),
            make_manual_schedule("outer", Step.schedule("middle"), Step.schedule("inner")),
        ]
    )
    async with worker():
        outer = await start_run(app, "outer")
        await eventually(began.is_set)
        await app.acting_as(ANA).executions.cancel(outer, reason="enough")
        ended = await app.executions.wait(outer, timeout=10)
        inner = await app.executions.wait((await wait_for_child(app, "inner")).id, timeout=10)
        assert stopped.is_set()
        middle = await app.executions.get((await wait_for_child(app, "middle")).id)
    for each in (ended, middle, inner):
        assert (each.state, each.cancel_name, each.cancel_reason) == ("cancelled", "Ana", "enough")
    assert await read_repairs(await app.open()) == {}


async def test_cancelling_a_schedule_step_cancels_its_child(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated"), make_job_step(app, "quick")),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    async with worker():
        outer = await start_run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        assert await app.cancel(known(step.task_id)) == "cancelled"
        assert (await app.executions.get(outer)).state == "failed"
        gate.go.release()
        inner = await app.executions.wait((await wait_for_child(app, "inner")).id, timeout=10)
    assert inner.state == "cancelled"


async def is_waiting(app: Tenuto, task_id: UUID) -> bool:
    return bool((await app.task(task_id)).state == "waiting")


async def test_cancelling_the_child_execution_fails_the_schedule_step(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated")),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    async with worker():
        outer = await start_run(app, "outer")
        await gate.has_begun()
        await app.acting_as(ANA).executions.cancel((await wait_for_child(app, "inner")).id)
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=10)
    assert ended.state == "failed"
    assert "cancelled by Ana" in known(ended.error)


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "cancel_previous"])
async def test_schedule_step_waits_for_an_active_execution_before_its_own(
    app: Tenuto, worker: WorkerFactory, gate: Gate, overlap: str
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated"), overlap=overlap),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    async with worker():
        first = await start_run(app, "inner")
        await gate.has_begun()
        outer = await start_run(app, "outer")
        (step,) = (await app.executions.get(outer)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        assert len(await app.executions.list(schedule="inner")) == 1
        gate.go.release(2)
        ended = await app.executions.wait(outer, timeout=10)
        assert (await app.executions.get(first)).state == "completed"
    assert ended.state == "completed"
    assert gate.count == 2, "its own run, not the other's"


async def test_schedule_step_runs_side_by_side_where_overlap_is_allowed(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated"), overlap="allow"),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    async with worker():
        await start_run(app, "inner")
        outer = await start_run(app, "outer")
        await gate.has_begun()
        await gate.has_begun()
        gate.go.release(2)
        assert (await app.executions.wait(outer, timeout=10)).state == "completed"


async def test_two_steps_of_the_same_schedule_run_one_after_the_other(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated")),
            make_manual_schedule("outer", [Step.schedule("inner", name="left"), Step.schedule("inner", name="right")]),
        ]
    )
    async with worker():
        outer = await start_run(app, "outer")
        await gate.has_begun()
        gate.go.release()
        await gate.has_begun()
        gate.go.release()
        assert (await app.executions.wait(outer, timeout=10)).state == "completed"
    assert len(await app.executions.list(schedule="inner")) == 2


async def test_schedule_step_of_a_paused_execution_waits_after_its_child_ended(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated")),
            make_manual_schedule("outer", Step.schedule("inner"), make_job_step(app, "quick")),
        ]
    )
    async with worker():
        outer = await start_run(app, "outer")
        await gate.has_begun()
        (step, _) = (await app.executions.get(outer)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        await app.executions.pause(outer)
        gate.go.release()
        await app.executions.wait((await wait_for_child(app, "inner")).id, timeout=10)
        assert await is_waiting(app, known(step.task_id))
        await app.executions.resume(outer)
        assert (await app.executions.wait(outer, timeout=10)).state == "completed"
    assert await read_repairs(await app.open()) == {}


async def test_lost_schedule_step_does_not_run_its_child_twice(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "gated")),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    database = await app.open()
    async with worker() as one:
        outer = await start_run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        # as if its worker had died before it could put the step aside
        dead = await database.fetch_value(
            "INSERT INTO tenuto.workers SELECT gen_random_uuid(), 'dead', service, host, boot, pid, version, queues,"
            " slots, started_at, seen_at FROM tenuto.workers WHERE id = $1 RETURNING id",
            one.identity.id,
        )
        await database.fetch_all(
            "UPDATE tenuto.tasks SET state = 'running', waits_for = NULL, worker_id = $2, fence = fence + 1,"
            " claimed_at = now(), lease_until = now() + interval '1 h' WHERE id = $1",
            step.task_id,
            dead,
        )
        assert await recover_tasks_of_worker(database, dead, database.clock.now()) == 1
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=20)
    assert (ended.state, ended.steps[0].attempt) == ("completed", 2)
    assert len(await app.executions.list(schedule="inner")) == 1
    assert gate.count == 1


@pytest.mark.usefixtures("gate")
async def test_schedule_step_of_a_renamed_schedule_fails_without_retry(app: Tenuto, worker: WorkerFactory) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "quick")),
            make_manual_schedule("outer", Step.schedule("inner")),
        ]
    )
    database = await app.open()
    await database.fetch_all("UPDATE tenuto.schedules SET name = 'elsewhere' WHERE name = 'inner'")
    async with worker():
        ended = await app.executions.wait(await start_run(app, "outer"), timeout=10)
    assert (ended.state, ended.error) == ("failed", "step 'inner' failed: schedule 'inner' does not exist")


async def test_schedule_step_detects_a_wait_cycle(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    """No plan contains a cycle, but one execution is older than the edit of its schedule."""
    await app.schedules.apply(
        [
            make_manual_schedule("B", make_job_step(app, "quick")),
            make_manual_schedule("A", make_job_step(app, "gated"), Step.schedule("B")),
        ]
    )
    async with worker():
        old = await start_run(app, "A")
        await gate.has_begun()
        await app.schedules.edit("A", make_manual_schedule("A", make_job_step(app, "quick")))
        await app.schedules.edit("B", make_manual_schedule("B", Step.schedule("A")))
        new = await start_run(app, "B")
        (step,) = (await app.executions.get(new)).steps
        await eventually(lambda: is_waiting(app, known(step.task_id)))
        gate.go.release()
        ended = await app.executions.wait(old, timeout=10)
        assert ended.state == "failed"
        assert "waits for this execution" in known(ended.error)
        assert (await app.executions.wait(new, timeout=10)).state == "completed"


async def test_pausing_during_the_end_of_the_child_holds_the_schedule_step(
    db: Database, register_worker: Register
) -> None:
    worker_id = await register_worker()
    for number in range(30):
        outer = await start_execution(db, f"o{number}", name=f"outer {number}", trigger=manual())
        inner = await start_execution(db, f"i{number}", name=f"inner {number}", trigger=manual())
        held = await claim_steps(db, worker_id)
        aside = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=inner))
        await completion.finish(db, [Settlement(held[f"o{number}"], aside)])
        await asyncio.gather(
            execution_control.pause_execution(db, outer, db.clock.now(), ANA), finish_task(db, held[f"i{number}"])
        )
        assert await open_task_states(db, outer) == {f"o{number}": "waiting"}
        await execution_control.resume_execution(db, outer, db.clock.now() + MINUTE)
        assert await open_task_states(db, outer) == {f"o{number}": "queued"}
        await run_claimable_steps(db, worker_id)
    assert await read_repairs(db) == {}


@pytest.mark.usefixtures("gate")
async def test_repair_finds_nothing_in_nested_executions(app: Tenuto, worker: WorkerFactory) -> None:
    await app.schedules.apply(
        [
            make_manual_schedule("inner", make_job_step(app, "quick"), overlap="allow"),
            make_manual_schedule("outer", [Step.schedule("inner", name=f"n{n}") for n in range(8)], overlap="allow"),
        ]
    )
    database = await app.open()
    async with worker():
        runs = [await start_run(app, "outer") for _ in range(5)]
        for _ in range(20):
            await repair_stuck_executions(database, database.clock.now())
        for each in runs:
            assert (await app.executions.wait(each, timeout=30)).state == "completed"
    assert await read_repairs(database) == {}
    assert len(await read_table(database, "executions")) == 45


async def test_duration_of_a_schedule_step_is_that_of_its_child(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def slow() -> None:
        await asyncio.sleep(1.5)

    app.schedule("Inner", manual(), [Step.job(slow)])
    app.schedule("Outer", manual(), [Step.schedule("Inner")])
    async with worker():
        started = await app.schedules.run("Outer")
        assert started.execution_id is not None
        ended = await app.executions.wait(started.execution_id, 30)
        (inner,) = await app.executions.list(schedule="Inner")
    (step,) = ended.steps
    # Measured by two clocks, each behind the database clock by the time of one reply.
    assert known(step.ended_at) - known(step.started_at) > timedelta(seconds=1)
    for which in ("started_at", "ended_at"):
        assert abs(getattr(step, which) - getattr(inner, which)) < timedelta(seconds=5)
    assert step.duration_seconds == (known(step.ended_at) - known(step.started_at)).total_seconds()
    assert step.wait_seconds == max(0.0, (known(step.started_at) - known(step.run_at)).total_seconds())
