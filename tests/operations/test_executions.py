"""What may be done to an execution (S11): cancel, pause, resume, run again from where it failed."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, manual
from tenuto.definitions.schedule_definitions import delete, edit
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control, task_cancellation
from tenuto.maintenance.recovery import sweep
from tenuto.model.tasks import Aside, Outcome, Reason, Settlement, Status, settle
from tenuto.operations import executions
from tenuto.operations.schedules import definition
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store import tasks as store
from tests.support.engine_fixtures import Quick
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    a_definition,
    a_plan,
    a_step,
    author,
    end,
    outcome,
    play,
    records,
    repairs,
    run_now,
    started,
    table,
    take,
    task_states,
    the_execution,
)
from tests.support.tasks import Register
from tests.support.waiting import eventually

LATER = NOON + MINUTE


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


# --- cancel ---------------------------------------------------------------------------------------------------------


async def test_cancelling_removes_what_has_not_begun_at_once_and_says_who(db: Database) -> None:
    run = await started(db, "a", ["b", "c"])
    assert await execution_control.cancel(db, run, LATER, ANA, "wrong day") == "cancelled"
    assert await task_states(db) == {}
    ended = await the_execution(db, run)
    assert (ended["state"], ended["ended_at"], ended["cancelled_at"]) == ("cancelled", LATER, LATER)
    assert (ended["cancel_type"], ended["cancel_id"], ended["cancel_name"]) == ("user", "u-17", "Ana")
    assert (ended["cancel_reason"], ended["error"]) == ("wrong day", "cancelled by Ana: wrong day")
    assert await records(db, run) == [(name, "cancelled", "requested") for name in "abc"]
    for record in await table(db, "activities"):
        assert '"by": {"id": "u-17", "name": "Ana", "type": "user"}' in record["error"]


async def test_what_runs_is_asked_to_stop_and_the_execution_ends_with_it(db: Database, me: UUID) -> None:
    run = await started(db, ["a", "b"], "c")
    held = await take(db, me)
    assert await execution_control.cancel(db, run, LATER, ANA) == "stopping"
    assert await task_states(db) == {"a": "running", "b": "running"}
    for task in await table(db, "tasks"):
        assert (task["cancel_type"], task["cancel_id"], task["cancel_name"]) == ("user", "u-17", "Ana")
        assert task["cancel_at"] is not None
    await end(db, held["a"], "cancelled")
    assert (await the_execution(db, run))["ended_at"] is None
    await end(db, held["b"], "cancelled")
    ended = await the_execution(db, run)
    assert (ended["state"], ended["error"]) == ("cancelled", "cancelled by Ana")
    assert ended["ended_at"] is not None


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_a_cancelled_execution_stays_cancelled_whatever_its_last_step_comes_to(
    db: Database, me: UUID, status: str
) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    await end(db, held["a"], status)
    ended = await the_execution(db, run)
    assert (ended["state"], ended["error"]) == ("cancelled", "cancelled by Ana")
    assert await task_states(db) == {}, "and nothing follows"


async def test_the_database_itself_refuses_to_call_a_cancelled_execution_anything_else(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    for state in ("completed", "failed", "in_progress"):
        with pytest.raises(DatabaseError, match="which is final"):
            await db.all("UPDATE tenuto.executions SET state = $1", state)


async def test_a_step_that_would_be_tried_again_is_stopped_instead(db: Database, me: UUID) -> None:
    run = await started(db, a_step("a", max_retries=5), "b")
    held = await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    await completion.finish(db, [outcome(held["a"], db.clock.now(), "failed")])
    assert await task_states(db) == {}
    assert (await the_execution(db, run))["state"] == "cancelled"
    assert (await the_execution(db, run))["ended_at"] is not None


async def test_a_step_lost_with_its_worker_after_the_cancellation_ends_it(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    assert await sweep(db, db.clock.now()) == 1
    assert (await the_execution(db, run))["ended_at"] is not None
    assert await task_states(db) == {}


async def test_what_has_ended_or_never_was_cannot_be_cancelled(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await play(db, me)
    with pytest.raises(Conflict, match="completed already"):
        await execution_control.cancel(db, run, LATER, ANA)
    with pytest.raises(NotFound):
        await execution_control.cancel(db, new_id(), LATER, ANA)


async def test_the_second_to_cancel_is_told_so_and_the_first_stays_on_record(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    with pytest.raises(Conflict, match="cancelled already"):
        await execution_control.cancel(db, run, LATER + MINUTE, Actor.user("u-2", "Ben"))
    assert (await the_execution(db, run))["cancel_name"] == "Ana"


async def test_a_paused_execution_can_be_cancelled(db: Database) -> None:
    run = await started(db, "a", "b")
    await execution_control.pause(db, run, LATER, ANA)
    assert await execution_control.cancel(db, run, LATER, ANA) == "cancelled"
    assert (await the_execution(db, run))["paused_at"] is None


async def test_cancelling_one_step_counts_as_its_failure(db: Database) -> None:
    run = await started(db, [a_step("a", continue_on_failure=True), "b"], "c")
    (task,) = await table(db, "tasks", "name = 'a'")
    assert await task_cancellation.cancel(db, task["id"], ANA) == "cancelled"
    assert await task_states(db) == {"b": "queued", "c": "waiting"}
    (task,) = await table(db, "tasks", "name = 'b'")
    await task_cancellation.cancel(db, task["id"], ANA)
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"]) == ("failed", 2)
    assert ended["error"] == "step 'b' was cancelled: cancelled by Ana"


# --- pause and resume -----------------------------------------------------------------------------------------------


async def test_pausing_holds_back_what_has_not_begun_until_it_is_resumed(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    await execution_control.pause(db, run, LATER, ANA)
    assert await take(db, me) == {}
    paused = await the_execution(db, run)
    assert (paused["state"], paused["paused_at"], paused["paused_by"]) == ("in_progress", LATER, "Ana")
    await execution_control.resume(db, run, db.clock.now())
    assert (await the_execution(db, run))["paused_at"] is None
    assert await play(db, me) == {"a"}
    assert await play(db, me) == {"b"}


async def test_what_runs_goes_on_to_its_end_and_the_next_group_waits(db: Database, me: UUID) -> None:
    run = await started(db, "a", ["b", "c"])
    held = await take(db, me)
    await execution_control.pause(db, run, LATER, ANA)
    await end(db, held["a"])
    assert (await the_execution(db, run))["current_group"] == 1
    assert await task_states(db) == {"b": "waiting", "c": "waiting"}
    assert await execution_control.repair(db, db.clock.now()) == 0, "it does not stand still by mistake"
    await execution_control.resume(db, run, db.clock.now())
    assert await play(db, me) == {"b", "c"}
    assert (await the_execution(db, run))["state"] == "completed"


async def test_the_wait_of_a_step_counts_from_when_its_group_began(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await execution_control.pause(db, run, LATER, ANA)
    began = db.clock.now()
    await completion.finish(db, [outcome(held["a"], began)])
    assert (await table(db, "tasks"))[0]["run_at"] == began


async def test_the_last_step_of_a_paused_execution_ends_it(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    held = await take(db, me)
    await execution_control.pause(db, run, LATER, ANA)
    await end(db, held["a"])
    ended = await the_execution(db, run)
    assert (ended["state"], ended["paused_at"]) == ("completed", None)


async def test_a_step_that_is_to_be_tried_again_waits_too_and_keeps_its_wait(db: Database, me: UUID) -> None:
    run = await started(db, a_step("a", max_retries=3), "b")
    held = await take(db, me)
    await execution_control.pause(db, run, LATER, ANA)
    now = db.clock.now()
    await completion.finish(db, [outcome(held["a"], now, "failed")])
    assert await task_states(db) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume(db, run, now)
    assert await task_states(db) == {"a": "scheduled", "b": "waiting"}


@pytest.mark.parametrize("how", ["put back", "handed back", "lost", "put aside"])
async def test_what_comes_back_without_having_ended_waits_too(db: Database, me: UUID, how: str) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await execution_control.pause(db, run, LATER, ANA)
    task, now = held["a"], db.clock.now()
    if how == "put back":
        assert await store.put_back(db, me, [task]) == {task.id}
    elif how == "handed back":
        came_to = Outcome(Status.CANCELLED, Reason.HANDED_BACK, now, now)
        await completion.finish(db, [settle(task, came_to, now, new_id)])
    elif how == "lost":
        await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE name = 'a'")
        assert await sweep(db, now) == 1
    else:
        aside = Outcome(Status.COMPLETED, aside=Aside(until=now + timedelta(hours=1)))
        await completion.finish(db, [Settlement(task, aside)])
    assert await task_states(db) == {"a": "waiting", "b": "waiting"}
    await execution_control.resume(db, run, now + timedelta(hours=2))
    assert await task_states(db) == {"a": "queued", "b": "waiting"}


async def test_pausing_twice_and_resuming_what_is_not_paused_is_refused(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    with pytest.raises(Conflict, match="is not paused"):
        await execution_control.resume(db, run, LATER)
    await execution_control.pause(db, run, LATER, ANA)
    with pytest.raises(Conflict, match="is paused already"):
        await execution_control.pause(db, run, LATER + MINUTE, ANA)
    await execution_control.resume(db, run, LATER)
    await play(db, me)
    for act in (execution_control.pause(db, run, LATER, ANA), execution_control.resume(db, run, LATER)):
        with pytest.raises(Conflict, match="completed already"):
            await act
    with pytest.raises(NotFound):
        await execution_control.pause(db, new_id(), LATER, ANA)


# --- retry ----------------------------------------------------------------------------------------------------------


async def test_a_retry_begins_with_the_group_that_failed_and_leaves_the_old_one_as_it_ended(
    db: Database, me: UUID
) -> None:
    run = await started(db, "a", ["b", "c"], "d")
    await play(db, me)
    await play(db, me, b="failed")
    old, old_records = await the_execution(db, run), await records(db, run)
    again = await execution_control.retry(db, run, LATER, Actor.user("u-2", "Ben"))
    assert await task_states(db) == {"b": "queued", "c": "queued", "d": "waiting"}
    new = await the_execution(db, again)
    assert (new["retry_of"], new["origin"], new["initiator_name"]) == (run, "retry", "Ben")
    assert (new["first_group"], new["current_group"], new["total_groups"], new["total_steps"]) == (1, 1, 3, 4)
    assert await play(db, me) == {"b", "c"}
    assert await play(db, me) == {"d"}
    assert (await the_execution(db, again))["state"] == "completed"
    assert await the_execution(db, run) == old
    assert await records(db, run) == old_records


async def test_a_retry_follows_the_snapshot_and_not_the_plan_as_it_stands(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    await play(db, me, a="failed")
    await edit(db, NAME, a_definition("x"), author(LATER))
    again = await execution_control.retry(db, run, LATER, ANA)
    assert set(await task_states(db)) == {"a", "b"}
    assert (await the_execution(db, again))["version"] == 1


async def test_the_run_of_a_deleted_schedule_can_be_retried(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await play(db, me, a="failed")
    await delete(db, NAME, author(LATER))
    again = await execution_control.retry(db, run, LATER, ANA)
    await play(db, me)
    assert (await the_execution(db, again))["state"] == "completed"


async def test_a_cancelled_execution_can_be_retried_once_it_has_stopped(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await execution_control.cancel(db, run, LATER, ANA)
    with pytest.raises(Conflict):
        await execution_control.retry(db, run, LATER, ANA)
    await end(db, held["a"], "cancelled")
    await execution_control.retry(db, run, LATER, ANA)
    assert await task_states(db) == {"a": "queued", "b": "waiting"}


async def test_only_an_ended_failure_can_be_retried_and_not_beside_another_run(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    with pytest.raises(Conflict, match="in progress"):
        await execution_control.retry(db, run, LATER, ANA)
    await play(db, me, a="failed")
    await run_now(db, now=LATER)
    with pytest.raises(Conflict, match="is running"):
        await execution_control.retry(db, run, LATER, ANA)
    await play(db, me)
    done = (await table(db, "executions", "state = 'completed'"))[0]["id"]
    with pytest.raises(Conflict, match=r"completed.*`tenuto schedule run NAME` starts a new one"):
        await execution_control.retry(db, done, LATER, ANA)
    with pytest.raises(NotFound):
        await execution_control.retry(db, new_id(), LATER, ANA)


async def test_retries_at_the_same_moment_start_one(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await play(db, me, a="failed")
    answers = await asyncio.gather(
        *(execution_control.retry(db, run, LATER, ANA) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(answer, UUID) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 4
    assert len(await table(db, "executions", "retry_of = $1", run)) == 1


# --- with a worker --------------------------------------------------------------------------------------------------


async def test_cancelling_really_stops_the_code(app: Tenuto, worker: Quick) -> None:
    began, stopped = threading.Event(), threading.Event()

    @app.job
    async def endless(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    await app.schedules.create(definition(NAME, manual(), [Step.job(endless), Step.job(endless, name="next")]))
    async with worker():
        run = (await app.schedules.run(NAME)).execution_id
        assert run is not None
        await eventually(began.is_set)
        with app.acting_as(ANA):
            assert await app.executions.cancel(run, reason="enough") == "stopping"
        ended = await app.executions.wait(run, timeout=10)
        assert stopped.is_set()
    assert (ended["state"], ended["cancel_name"]) == ("cancelled", "Ana")
    assert [step["status"] for step in ended["steps"]] == ["cancelled", "cancelled"]
    assert await repairs(await app.open()) == {}


async def test_an_execution_is_told_step_by_step(app: Tenuto, worker: Quick) -> None:
    @app.job(max_retries=1)
    async def breaks() -> None:
        raise ValueError("no flour")

    @app.job
    async def bakes(ctx: Context) -> None:
        ctx.progress(1, 2, "half")

    await app.schedules.create(
        definition(
            NAME,
            manual(),
            [Step.job(bakes), [Step.job(breaks), Step.job(bakes, name="beside")], Step.job(bakes, name="never")],
        )
    )
    async with worker():
        run = (await app.schedules.run(NAME)).execution_id
        assert run is not None
        told = await app.executions.wait(run, timeout=10)
        assert (told["state"], told["error"]) == ("failed", "step 'breaks' failed: no flour")
        assert [(step["name"], step["group"], step["status"], step["reason"]) for step in told["steps"]] == [
            ("bakes", 0, "completed", None),
            ("breaks", 1, "failed", "error"),
            ("beside", 1, "completed", None),
            ("never", 2, "cancelled", "not_run"),
        ]
        assert told["steps"][1]["error"] == "no flour"
        assert told["steps"][0]["progress"] == {"done": 1, "total": 2, "message": "half"}
        for step in told["steps"][:3]:
            assert step["duration"] >= 0
            assert step["wait"] >= 0
            assert (await app.activity(step["activity_id"]))["task_id"] == step["task_id"]
        again = await app.executions.wait(await app.executions.retry(run), timeout=10)
    assert [step["status"] for step in again["steps"]] == ["done_before", "failed", "completed", "cancelled"]
    listed = await app.executions.list(schedule=NAME, state="failed")
    assert [(row["id"], row["retry_of"]) for row in listed] == [(again["id"], run), (run, None)]


def test_an_execution_of_ten_thousand_steps_is_told_at_once() -> None:
    plan = a_plan([f"s{n}" for n in range(10_000)])
    run = {"plan": plan.to_json(), "started_at": NOON, "ended_at": None, "first_group": 0}
    began = time.process_time()
    told = executions.told(run, [], LATER)
    assert len(told["steps"]) == 10_000
    assert time.process_time() - began < 5


# --- told ------------------------------------------------------------------------------------------------------------


async def test_what_went_wrong_so_far_is_told_while_a_step_is_tried_again_and_not_once_it_has_gone_well(
    app: Tenuto, worker: Quick
) -> None:
    go_on = threading.Event()

    @app.job(retry=RetryPolicy(max_retries=3, base_seconds=0, jitter=0))
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        await asyncio.to_thread(go_on.wait)

    app.schedule("again", manual(), [Step.job(second_time)])
    async with worker():
        run = (await app.schedules.run("again")).execution_id
        assert run is not None

        async def is_tried_again() -> bool:
            return bool((await app.executions.get(run))["steps"][0]["attempt"] == 2)

        await eventually(is_tried_again)
        (step,) = (await app.executions.get(run))["steps"]
        assert (step["error"], step["last_error"]["attempt"], step["last_error"]["message"]) == (None, 1, "not yet")
        assert step["last_error"]["activity_id"] == step["activities"][0]
        go_on.set()
        ended = await app.executions.wait(run, timeout=10)

    assert (ended["state"], ended["steps"][0]["last_error"]) == ("completed", None)
