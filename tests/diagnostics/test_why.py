"""Every open task can say why it is not running, what would hold it up next, and by which ids."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, manual
from tenuto.diagnostics import why
from tenuto.diagnostics.why import Diagnosis, ReasonCode
from tenuto.errors import NotFound
from tenuto.ids import new_id
from tests.support.engine_fixtures import WorkerFactory
from tests.support.waiting import eventually

ANA = Actor.user("ana")
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


def reason_codes(found: Diagnosis) -> list[str]:
    return [str(reason.code) for reason in found.reasons]


@pytest.fixture
def gate(app: Tenuto) -> threading.Event:
    """Jobs named ``held`` run until the gate is opened."""
    opened = threading.Event()

    @app.job
    def held(ctx: Context) -> None:
        ctx.progress(3, 10, "reading")
        opened.wait(30)  # also if somebody wants it stopped

    @app.job
    async def quick() -> None: ...

    return opened


def insert_worker(sql: Sql) -> Callable[..., Awaitable[UUID]]:
    async def enter(*, queues: str = "{default}", slots: int = 2, silent: str = "0 s", draining: bool = False) -> UUID:
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
            silent,
            draining,
        )
        return id

    return enter


async def mark_running(sql: Sql, task_id: UUID, worker_id: UUID, *, lease: str = "1 hour") -> None:
    """As a claim leaves it."""
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $2, claimed_at = now(), fence = fence + 1,"
        " lease_until = now() + $3::text::interval WHERE id = $1",
        task_id,
        worker_id,
        lease,
    )


async def test_a_task_that_is_not_due_says_until_when(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)()
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="2h"))
    (reason,) = (await app.why(task.id)).reasons
    assert reason.code is ReasonCode.NOT_DUE
    assert reason.until == (await app.task(task.id))["run_at"]


async def test_a_failed_task_says_that_it_backs_off_and_after_which_failure(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=RetryPolicy(max_retries=4, base_seconds=3600))
    async def fails() -> None:
        raise ValueError("no")

    async with worker():
        task = await app.enqueue(fails)
        await eventually(lambda: is_scheduled(app, task.id))
        found = await app.why(task.id)
    assert reason_codes(found) == ["backing_off"]
    assert "after failure 1 of 4" in found.reasons[0].text


async def is_scheduled(app: Tenuto, task_id: UUID) -> bool:
    return bool((await app.task(task_id))["state"] == "scheduled")


async def test_without_a_live_worker_that_is_what_it_says(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    task = await app.enqueue(app.jobs.get_job("quick"))
    assert reason_codes(await app.why(task.id)) == ["no_worker"]
    enter = insert_worker(sql)
    await enter(queues="{mail}")
    assert reason_codes(await app.why(task.id)) == ["no_worker"], "a worker of other queues does not count"
    silent, leaving = await enter(worker_silence="10 min"), await enter(draining=True)
    found = await app.why(task.id)
    assert reason_codes(found) == ["no_worker"]
    assert set(found.reasons[0].ids) == {silent, leaving}
    assert re.search(r"silent for 6\d\d s", found.reasons[0].text)


async def test_a_paused_queue_says_who_paused_it_and_why(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)()
    task = await app.enqueue(app.jobs.get_job("quick"))
    with app.acting_as(ANA):
        await app.pause_queue("default", "the server is down")
    (reason,) = (await app.why(task.id)).reasons
    assert reason.code is ReasonCode.QUEUE_PAUSED
    assert "by ana" in reason.text
    assert "the server is down" in reason.text


async def test_what_would_hold_it_up_next_is_told_too(app: Tenuto, gate: threading.Event) -> None:
    await app.pause_queue("default")
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="1h"))
    assert reason_codes(await app.why(task.id)) == ["not_due", "queue_paused", "no_worker"]


async def test_a_full_queue_names_the_tasks_that_fill_it(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    holder = await insert_worker(sql)(slots=10)
    running = [(await app.enqueue(app.jobs.get_job("quick"))).id for _ in range(2)]
    for id in running:
        await mark_running(sql, id, holder)
    await app.limit_queue("default", 2)
    task = await app.enqueue(app.jobs.get_job("quick"))
    (reason,) = (await app.why(task.id)).reasons
    assert (reason.code, set(reason.ids)) == (ReasonCode.QUEUE_LIMIT, set(running))
    assert "2 of at most 2 run" in reason.text


async def test_a_full_key_names_the_tasks_that_fill_it_and_a_slipped_lease_fills_nothing(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    holder = await insert_worker(sql)(slots=10)
    job = app.jobs.get_job("quick").using(limit_key="printer", limit=1)
    first, other = await app.enqueue(job), await app.enqueue(job)
    await mark_running(sql, first.id, holder)
    (reason,) = (await app.why(other.id)).reasons
    assert (reason.code, reason.ids) == (ReasonCode.KEY_LIMIT, (first.id,))
    await mark_running(sql, first.id, holder, lease="-1 s")
    assert reason_codes(await app.why(other.id)) == ["free"]
    assert reason_codes(await app.why(first.id)) == ["lease_expired", "running"]


async def test_when_all_slots_are_busy_it_says_how_many_go_before_it(
    app: Tenuto, gate: threading.Event, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await insert_worker(sql)(slots=1)
    busy = await app.enqueue(app.jobs.get_job("quick"))
    await mark_running(sql, busy.id, holder)
    await app.enqueue_many(app.jobs.get_job("quick"), [{}] * 7)
    urgent = await app.enqueue(app.jobs.get_job("quick").using(priority=5))
    last = await app.enqueue(app.jobs.get_job("quick"))
    (reason,) = (await app.why(last.id)).reasons
    assert (reason.code, reason.ids) == (ReasonCode.SLOTS_BUSY, (holder,))
    assert "all 1 slots of the 1 worker" in reason.text
    assert "8 tasks go before it" in reason.text
    assert "0 tasks go before it" in (await app.why(urgent.id)).reasons[0].text
    monkeypatch.setattr(why, "COUNTED", 5)
    assert "more than 5 tasks go before it" in (await app.why(last.id)).reasons[0].text


async def test_with_free_slots_it_is_others_first_or_nothing_at_all(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    await insert_worker(sql)()
    first, second = await app.enqueue(app.jobs.get_job("quick")), await app.enqueue(app.jobs.get_job("quick"))
    assert reason_codes(await app.why(first.id)) == ["free"]
    assert reason_codes(await app.why(second.id)) == ["others_first"]


async def test_what_fell_due_while_nobody_looked_is_judged_as_due(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    task = await app.enqueue(app.jobs.get_job("quick").using(delay="1h"))
    await sql("UPDATE tenuto.tasks SET run_at = now() - interval '1 s' WHERE id = $1", task.id)
    assert reason_codes(await app.why(task.id)) == ["no_worker"]
    await insert_worker(sql)()
    assert reason_codes(await app.why(task.id)) == ["free"]


async def test_a_running_task_says_by_whom_and_how_far_and_who_wants_it_stopped(
    app: Tenuto, gate: threading.Event, worker: WorkerFactory
) -> None:
    async with worker(name="w-1"):
        task = await app.enqueue(app.jobs.get_job("held"))
        found = await eventually(lambda: find_diagnosis_with(app, task.id, "3 of 10 done, reading"))
        assert reason_codes(found) == ["running"]
        assert "by w-1 since" in found.reasons[0].words
        database = await app.open()
        await database.fetch_all("UPDATE tenuto.tasks SET cancel_at = now(), cancel_type = 'user', cancel_name = 'ana'")
        assert reason_codes(await app.why(task.id)) == ["stopping", "running"]
        gate.set()
        await app.wait(task.id, 10)
    assert reason_codes(await app.why(task.id)) == ["ended"]


async def find_diagnosis_with(app: Tenuto, task_id: UUID, words: str) -> Diagnosis | None:
    found = await app.why(task_id)
    return found if any(words in reason.text for reason in found.reasons) else None


async def test_an_ended_task_says_how_it_ended(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(max_retries=0)
    async def fails() -> None:
        raise ValueError("the disk is full")

    async with worker():
        task = await app.enqueue(fails)
        await app.wait(task, 10)
    found = await app.why(task.id)
    assert (reason_codes(found), found.state) == (["ended"], "failed")
    assert "the disk is full" in found.reasons[0].text


async def test_a_task_that_never_was_is_not_found(app: Tenuto) -> None:
    with pytest.raises(NotFound):
        await app.why(new_id())
    with pytest.raises(NotFound):
        await app.executions.why(new_id())


# --- steps of executions --------------------------------------------------------------------------------------------


async def start_execution(app: Tenuto, *steps: Any, name: str = "nightly") -> UUID:
    app.schedule(name, manual(), steps)
    await app.schedules.deploy()
    started = await app.schedules.run(name)
    assert started.execution_id is not None
    return started.execution_id


async def load_step_ids(app: Tenuto, execution_id: UUID) -> dict[str, UUID]:
    return {step["name"]: step["task_id"] for step in (await app.executions.get(execution_id))["steps"]}


async def test_a_step_of_a_later_group_says_which_steps_are_open(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)()
    quick = app.jobs.get_job("quick")
    run = await start_execution(
        app,
        [Step.job(quick, name="a"), Step.job(quick, name="b")],
        Step.job(quick, name="c"),
    )
    steps = await load_step_ids(app, run)
    (reason,) = (await app.why(steps["c"])).reasons
    assert (reason.code, reason.ids) == (ReasonCode.WAITS_FOR_GROUP, (steps["a"], steps["b"]))
    assert "group 2 of 2, and group 1 is not done: 'a' (queued), 'b' (queued) open" in reason.text


async def test_steps_of_a_paused_execution_say_who_paused_it(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)()
    quick = app.jobs.get_job("quick")
    run = await start_execution(app, Step.job(quick, name="a"), Step.job(quick, name="b"))
    with app.acting_as(ANA):
        await app.executions.pause(run)
    steps = await load_step_ids(app, run)
    assert reason_codes(await app.why(steps["a"])) == ["execution_paused"]
    found = await app.why(steps["b"])
    assert reason_codes(found) == ["execution_paused", "waits_for_group"]
    assert "by ana since" in found.reasons[0].text
    assert found.reasons[0].ids == (run,)
    assert reason_codes(await app.executions.why(run)) == ["execution_paused"], "told once, not for every step"


async def test_a_step_that_runs_another_schedule_says_for_which_execution_it_waits(
    app: Tenuto, gate: threading.Event, worker: WorkerFactory
) -> None:
    app.schedule("inner", manual(), [Step.job(app.jobs.get_job("held"))])
    async with worker():
        outer = await start_execution(app, Step.schedule("inner"), name="outer")
        (task_id,) = (await load_step_ids(app, outer)).values()
        found = await eventually(lambda: find_diagnosis_with(app, task_id, "waits for execution"))
        (reason,) = found.reasons
        (inner,) = await app.executions.list(schedule="inner")
        assert (reason.code, reason.ids) == (ReasonCode.WAITS_FOR_EXECUTION, (inner["id"],))

        async def it_runs() -> bool:
            return reason_codes(await app.executions.why(inner["id"])) == ["running"]

        await eventually(it_runs)
        gate.set()
        await app.executions.wait(outer, 10)
    assert reason_codes(await app.executions.why(outer)) == ["ended"]


async def test_an_execution_tells_the_reasons_of_its_open_steps_by_name(
    app: Tenuto, gate: threading.Event, sql: Sql
) -> None:
    quick = app.jobs.get_job("quick")
    run = await start_execution(app, [Step.job(quick, name="a"), Step.job(quick, name="b")], Step.job(quick, name="c"))
    found = await app.executions.why(run)
    assert [(reason.step, str(reason.code)) for reason in found.reasons] == [("a", "no_worker"), ("b", "no_worker")]
    await app.executions.cancel(run)
    assert reason_codes(await app.executions.why(run)) == ["ended"]


async def test_damage_is_told_as_such_and_points_to_the_net(app: Tenuto, gate: threading.Event, sql: Sql) -> None:
    await insert_worker(sql)()
    run = await start_execution(app, Step.job(app.jobs.get_job("quick"), name="a"))
    (task_id,) = (await load_step_ids(app, run)).values()
    await sql("UPDATE tenuto.tasks SET state = 'waiting' WHERE id = $1", task_id)
    assert reason_codes(await app.why(task_id)) == ["stuck"]
    await sql("DELETE FROM tenuto.tasks")
    assert reason_codes(await app.executions.why(run)) == ["stuck"]
