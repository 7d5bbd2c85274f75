"""Diagnosis of tasks and executions: reason codes, related ids, and the obstacles that follow."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, manual
from tenuto.diagnostics import task_diagnosis
from tenuto.diagnostics.reasons import Diagnosis, ReasonCode
from tenuto.errors import NotFound
from tenuto.ids import new_id
from tests.support.errors import raises_code
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

ANA = Actor.user("ana")
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


def reason_codes(found: Diagnosis) -> list[str]:
    return [str(reason.code) for reason in found.reasons]


@pytest.fixture
def gate(app: Tenuto) -> threading.Event:
    """Register the jobs ``held``, which runs until the event is set, and ``quick``."""
    opened = threading.Event()

    @app.job
    def held(ctx: Context) -> None:
        ctx.progress(3, 10, "reading")
        opened.wait(30)  # a stop request does not interrupt it

    @app.job
    async def quick() -> None: ...

    return opened


async def insert_worker(
    sql: Sql, *, queues: str = "{default}", slots: int = 2, silent_for: str = "0 s", draining: bool = False
) -> UUID:
    id = new_id()
    await sql(
        "INSERT INTO tenuto.workers"
        " (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at, draining_at)"
        " VALUES ($1, $2, 'worker', 'here', 'boot', 1, '0', $3::text::text[], $4, now(),"
        " now() - $5::text::interval, CASE WHEN $6 THEN now() END)",
        id,
        f"w-{str(id)[-6:]}",
        queues,
        slots,
        silent_for,
        draining,
    )
    return id


async def mark_running(sql: Sql, task_id: UUID, worker_id: UUID, *, lease: str = "1 hour") -> None:
    """Change a task as a claim does."""
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $2, claimed_at = now(), fence = fence + 1,"
        " lease_until = now() + $3::text::interval WHERE id = $1",
        task_id,
        worker_id,
        lease,
    )


async def test_why_names_due_time_of_future_task(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="2h"))
    (reason,) = (await app.why(task.id)).reasons
    assert reason.code is ReasonCode.NOT_DUE
    assert reason.ends_at == (await app.task(task.id)).run_at


async def test_why_counts_failures_of_task_that_backs_off(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=RetryPolicy(max_attempts=4, base_seconds=3600))
    async def fails() -> None:
        raise ValueError("no")

    async with worker():
        task = await app.enqueue(fails)
        await eventually(lambda: is_scheduled(app, task.id))
        found = await app.why(task.id)
    assert reason_codes(found) == ["backing_off"]
    reason = found.reasons[0]
    assert "failed once (last: ValueError: no); try 2 of 4 at" in reason.message
    assert (reason.fields["failure_count"], reason.fields["max_attempts"]) == (1, 4)
    assert reason.last_error is not None
    assert (reason.last_error.type, reason.last_error.message, reason.last_error.attempt) == ("ValueError", "no", 1)
    assert reason.command == f"tenuto task show {task.id}"


async def is_scheduled(app: Tenuto, task_id: UUID) -> bool:
    return bool((await app.task(task_id)).state == "scheduled")


async def test_why_names_dead_and_draining_workers_if_none_is_live(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    task = await app.enqueue(app.jobs.get_job("quick"))
    assert reason_codes(await app.why(task.id)) == ["no_worker"]
    await insert_worker(sql, queues="{mail}")
    assert reason_codes(await app.why(task.id)) == ["no_worker"], "a worker of other queues does not count"
    dead, draining = await insert_worker(sql, silent_for="10 min"), await insert_worker(sql, draining=True)
    found = await app.why(task.id)
    assert reason_codes(found) == ["no_worker"]
    assert set(found.reasons[0].ids) == {dead, draining}
    assert re.search(r"dead \(last seen 6\d\d s ago\)", found.reasons[0].message)


async def test_why_names_actor_and_reason_of_queue_pause(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    task = await app.enqueue(app.jobs.get_job("quick"))
    await app.acting_as(ANA).pause_queue("default", "the server is down")
    (reason,) = (await app.why(task.id)).reasons
    assert reason.code is ReasonCode.QUEUE_PAUSED
    assert "ana" in reason.message
    assert "the server is down" in reason.message


async def test_why_lists_later_obstacles_too(app: Tenuto, gate: threading.Event) -> None:
    await app.pause_queue("default")
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="1h"))
    assert reason_codes(await app.why(task.id)) == ["not_due", "queue_paused", "no_worker"]


async def test_task_diagnosis_names_running_tasks_of_full_queue(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    holder = await insert_worker(sql, slots=10)
    running = [(await app.enqueue(app.jobs.get_job("quick"))).id for _ in range(2)]
    for id in running:
        await mark_running(sql, id, holder)
    await app.limit_queue("default", 2)
    task = await app.enqueue(app.jobs.get_job("quick"))
    (reason,) = (await app.why(task.id)).reasons
    assert (reason.code, set(reason.ids)) == (ReasonCode.QUEUE_LIMIT, set(running))
    assert reason.message.startswith("queue default may run 2 at a time, and 2 are running: quick ")
    assert (reason.fields["limit"], reason.fields["running_count"]) == (2, 2)
    assert reason.command == "tenuto queue limit default N"


async def test_why_names_running_tasks_of_full_limit_key_with_live_leases(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    holder = await insert_worker(sql, slots=10)
    job = app.jobs.get_job("quick").using(limit_key="printer", limit=1)
    first, other = await app.enqueue(job), await app.enqueue(job)
    await mark_running(sql, first.id, holder)
    (reason,) = (await app.why(other.id)).reasons
    assert (reason.code, reason.ids) == (ReasonCode.KEY_LIMIT, (first.id,))
    await mark_running(sql, first.id, holder, lease="-1 s")
    assert reason_codes(await app.why(other.id)) == ["free"]
    assert reason_codes(await app.why(first.id)) == ["lease_expired"]


async def test_why_of_a_running_task_tells_that_its_worker_is_dead(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    killed = await insert_worker(sql, silent_for="5 minutes")
    task = await app.enqueue(app.jobs.get_job("quick"))
    await mark_running(sql, task.id, killed, lease="10 s")
    (reason,) = (await app.why(task.id)).reasons
    assert reason.code is ReasonCode.RUNNING
    assert "is dead (last seen 300 s ago)" in reason.message
    assert "recovered when its lease ends" in reason.message
    assert known(reason.ends_at) > datetime.now(UTC)

    await mark_running(sql, task.id, killed, lease="-1 s")
    expired, missing = (await app.why(task.id)).reasons
    assert (expired.code, missing.code) == (ReasonCode.LEASE_EXPIRED, ReasonCode.NO_WORKER)
    assert "it ran on" in expired.message
    assert missing.command == "tenuto worker --app MODULE:OBJECT --queues default"


async def test_why_counts_tasks_ahead_when_all_slots_are_busy(
    app: Tenuto, gate: threading.Event, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await insert_worker(sql, slots=1)
    busy = await app.enqueue(app.jobs.get_job("quick"))
    await mark_running(sql, busy.id, holder)
    await app.enqueue_many(app.jobs.get_job("quick"), [{}] * 7)
    urgent = await app.enqueue(app.jobs.get_job("quick").using(priority=5))
    last = await app.enqueue(app.jobs.get_job("quick"))
    (reason,) = (await app.why(last.id)).reasons
    assert (reason.code, reason.ids) == (ReasonCode.SLOTS_BUSY, (holder,))
    assert "1 slots" in reason.message
    assert "1 worker" in reason.message
    assert "8 tasks" in reason.message
    assert "0 tasks" in (await app.why(urgent.id)).reasons[0].message
    monkeypatch.setattr(task_diagnosis, "MAX_COUNTED_TASKS", 5)
    assert "more than 5 tasks" in (await app.why(last.id)).reasons[0].message


async def test_why_reports_free_or_others_first_with_free_slots(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    first, second = await app.enqueue(app.jobs.get_job("quick")), await app.enqueue(app.jobs.get_job("quick"))
    assert reason_codes(await app.why(first.id)) == ["free"]
    assert reason_codes(await app.why(second.id)) == ["others_first"]


async def test_why_treats_unpromoted_due_task_as_due(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="1h"))
    await sql("UPDATE tenuto.tasks SET run_at = now() - interval '1 s' WHERE id = $1", task.id)
    assert reason_codes(await app.why(task.id)) == ["no_worker"]
    await insert_worker(sql)
    assert reason_codes(await app.why(task.id)) == ["free"]


async def test_why_names_worker_progress_and_requested_stop_of_running_task(
    app: Tenuto, gate: threading.Event, worker: WorkerFactory
) -> None:
    async with worker(name="w-1"):
        task = await app.enqueue(app.jobs.get_job("held"))
        found = await eventually(lambda: find_diagnosis_with(app, task.id, "3 of 10 done, reading"))
        assert reason_codes(found) == ["running"]
        assert "w-1" in found.reasons[0].message
        database = await app.open()
        await database.fetch_all("UPDATE tenuto.tasks SET cancel_at = now(), cancel_type = 'user', cancel_name = 'ana'")
        assert reason_codes(await app.why(task.id)) == ["stopping", "running"]
        gate.set()
        await app.wait(task.id, 10)
    assert reason_codes(await app.why(task.id)) == ["ended"]


async def find_diagnosis_with(app: Tenuto, task_id: UUID, text: str) -> Diagnosis | None:
    found = await app.why(task_id)
    return found if any(text in reason.message for reason in found.reasons) else None


async def test_why_reports_outcome_of_ended_task(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(max_attempts=1)
    async def fails() -> None:
        raise ValueError("the disk is full")

    async with worker():
        task = await app.enqueue(fails)
        await app.wait(task, 10)
    found = await app.why(task.id)
    assert (reason_codes(found), found.state) == (["ended"], "failed")
    assert found.reasons[0].command == f"tenuto task retry {task.id}"
    assert "the disk is full" in found.reasons[0].message


async def test_why_refuses_unknown_ids(app: Tenuto) -> None:
    with raises_code("task.not_found", NotFound):
        await app.why(new_id())
    with raises_code("execution.not_found", NotFound):
        await app.executions.why(new_id())


# --- steps of executions --------------------------------------------------------------------------------------------


async def start_execution(app: Tenuto, *steps: Any, name: str = "nightly") -> UUID:
    app.schedule(name, manual(), steps)
    await app.schedules.deploy()
    started = await app.schedules.run(name)
    assert started.execution_id is not None
    return started.execution_id


async def load_step_ids(app: Tenuto, execution_id: UUID) -> dict[str, UUID]:
    return {step.name: known(step.task_id) for step in (await app.executions.get(execution_id)).steps}


async def test_why_names_open_steps_that_a_later_group_waits_for(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    quick = app.jobs.get_job("quick")
    run = await start_execution(
        app,
        [Step.job(quick, name="a"), Step.job(quick, name="b")],
        Step.job(quick, name="c"),
    )
    steps = await load_step_ids(app, run)
    (reason,) = (await app.why(steps["c"])).reasons
    assert (reason.code, reason.ids) == (ReasonCode.WAITS_FOR_GROUP, (steps["a"], steps["b"]))
    for fact in ("group 2 of 2", "group 1", "'a' (queued), 'b' (queued)"):
        assert fact in reason.message


async def test_why_names_actor_of_execution_pause(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    quick = app.jobs.get_job("quick")
    run = await start_execution(app, Step.job(quick, name="a"), Step.job(quick, name="b"))
    await app.acting_as(ANA).executions.pause(run)
    steps = await load_step_ids(app, run)
    assert reason_codes(await app.why(steps["a"])) == ["execution_paused"]
    found = await app.why(steps["b"])
    assert reason_codes(found) == ["execution_paused", "waits_for_group"]
    assert "ana" in found.reasons[0].message
    assert found.reasons[0].ids == (run,)
    assert reason_codes(await app.executions.why(run)) == ["execution_paused"], "reported once, not for every step"


async def test_why_names_awaited_execution_of_schedule_step(
    app: Tenuto, gate: threading.Event, worker: WorkerFactory
) -> None:
    app.schedule("inner", manual(), [Step.job(app.jobs.get_job("held"))])
    async with worker():
        outer = await start_execution(app, Step.schedule("inner"), name="outer")
        (task_id,) = (await load_step_ids(app, outer)).values()
        found = await eventually(lambda: find_diagnosis_with(app, task_id, "'inner'"))
        (reason,) = found.reasons
        (inner,) = await app.executions.list(schedule="inner")
        assert (reason.code, reason.ids) == (ReasonCode.WAITS_FOR_EXECUTION, (inner.id,))

        async def is_running() -> bool:
            return reason_codes(await app.executions.why(inner.id)) == ["running"]

        await eventually(is_running)
        gate.set()
        await app.executions.wait(outer, 10)
    assert reason_codes(await app.executions.why(outer)) == ["ended"]


async def test_why_lists_reasons_of_open_steps_of_execution(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    quick = app.jobs.get_job("quick")
    run = await start_execution(app, [Step.job(quick, name="a"), Step.job(quick, name="b")], Step.job(quick, name="c"))
    found = await app.executions.why(run)
    assert [(reason.step, str(reason.code)) for reason in found.reasons] == [("a", "no_worker"), ("b", "no_worker")]
    await app.executions.cancel(run)
    assert reason_codes(await app.executions.why(run)) == ["ended"]


async def test_why_reports_stuck_task_and_execution(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)
    run = await start_execution(app, Step.job(app.jobs.get_job("quick"), name="a"))
    (task_id,) = (await load_step_ids(app, run)).values()
    await sql("UPDATE tenuto.tasks SET state = 'waiting' WHERE id = $1", task_id)
    assert reason_codes(await app.why(task_id)) == ["stuck"]
    await sql("DELETE FROM tenuto.tasks")
    assert reason_codes(await app.executions.why(run)) == ["stuck"]
