"""A schedule as a step of another (S6): waits without a slot, failure passes up, cancelling passes down."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, Step, Tenuto, manual
from tenuto.lifecycle import completion, execution_control
from tenuto.maintenance.recovery import recover
from tenuto.model.schedules import Definition
from tenuto.model.tasks import Aside, Outcome, Settlement, Status
from tenuto.operations.schedules import definition
from tenuto.postgres.database import Database
from tests.support.engine_fixtures import Quick
from tests.support.schedules import ANA, MINUTE, end, play, repairs, started, table, take, task_states
from tests.support.tasks import Register
from tests.support.waiting import eventually


def of(name: str, *steps: Any, **options: Any) -> Definition:
    return definition(name, manual(), steps, **options)


class Gate:
    """A job that begins and waits until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.count = 0

    def pass_through(self, ctx: Context) -> None:
        self.count += 1
        self.began.release()
        while not self.go.acquire(timeout=0.02):
            ctx.check()

    async def has_begun(self) -> None:
        await eventually(lambda: self.began.acquire(blocking=False))


@pytest.fixture
def gate(app: Tenuto) -> Gate:
    gate = Gate()

    @app.job(max_retries=1)
    def gated(ctx: Context) -> None:
        gate.pass_through(ctx)

    @app.job(max_retries=1)
    async def quick() -> None: ...

    @app.job(max_retries=1)
    async def broken() -> None:
        raise ValueError("no flour")

    return gate


def job(app: Tenuto, which: str, **options: Any) -> Step:
    return Step.job(app.jobs.by_name[which], **options)


async def run(app: Tenuto, name: str) -> UUID:
    answer = await app.schedules.run(name)
    assert answer.execution_id is not None, answer
    return answer.execution_id


async def the_child(app: Tenuto, name: str) -> dict[str, Any]:
    async def found() -> Any:
        listed = await app.executions.list(schedule=name)
        return listed[0] if listed else None

    child: dict[str, Any] = await eventually(found)
    return child


@pytest.mark.usefixtures("gate")
async def test_three_levels_on_a_worker_with_one_slot_do_not_stand_still(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply(
        [
            of("one", job(app, "quick"), Step.schedule("two"), job(app, "quick", name="after")),
            of("two", Step.schedule("three"), job(app, "quick")),
            of("three", Step.schedule("four"), job(app, "quick")),
            of("four", job(app, "quick")),
        ]
    )
    async with worker(slots=1):
        ended = await app.executions.wait(await run(app, "one"), timeout=20)
    assert (ended["state"], ended["error"]) == ("completed", None)
    assert [step["status"] for step in ended["steps"]] == ["completed"] * 3
    runs = await app.executions.list()
    assert {row["schedule_name"]: row["state"] for row in runs} == dict.fromkeys(
        ("one", "two", "three", "four"), "completed"
    )
    assert {row["origin"] for row in runs if row["schedule_name"] != "one"} == {"step"}
    assert await repairs(await app.open()) == {}


async def test_a_step_that_waits_for_a_schedule_holds_no_slot(app: Tenuto, worker: Quick, gate: Gate) -> None:
    await app.schedules.apply([of("inner", job(app, "gated")), of("outer", Step.schedule("inner"))])
    async with worker(slots=2):
        outer = await run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        await app.wait(await app.enqueue(app.jobs.by_name["quick"]), timeout=5)
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=10)
    (step,) = ended["steps"]
    child = await the_child(app, "inner")
    assert (ended["state"], step["status"], step["attempt"]) == ("completed", "completed", 1)
    assert (child["parent_task_id"], child["initiator_name"]) == (step["task_id"], ended["initiator_name"])
    record = await app.activity(step["activity_id"])
    assert record["output"] == {"execution_id": str(child["id"]), "failed_steps": 0}


@pytest.mark.usefixtures("gate")
async def test_a_failure_passes_up_with_its_reason(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply(
        [
            of("inner", job(app, "broken")),
            of("middle", Step.schedule("inner")),
            of("outer", Step.schedule("middle"), job(app, "quick")),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await run(app, "outer"), timeout=20)
    assert ended["state"] == "failed"
    assert ended["error"].startswith("step 'middle' failed: execution ")
    assert "step 'broken' failed: no flour" in ended["error"]
    assert [step["status"] for step in ended["steps"]] == ["failed", "cancelled"]


@pytest.mark.usefixtures("gate")
async def test_a_failure_that_may_be_does_not_stop_the_outer_one(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply(
        [
            of("fails", job(app, "broken")),
            of("partly", job(app, "broken", continue_on_failure=True), job(app, "quick")),
            of("outer", Step.schedule("fails", continue_on_failure=True), Step.schedule("partly")),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await run(app, "outer"), timeout=20)
    assert (ended["state"], ended["failed_steps"]) == ("completed", 1)
    assert [step["status"] for step in ended["steps"]] == ["failed", "completed_with_warning"]


@pytest.mark.usefixtures("gate")
async def test_a_step_that_may_be_tried_again_runs_the_schedule_again(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply(
        [
            of("inner", job(app, "broken")),
            of("outer", Step.schedule("inner", retry={"max_retries": 2, "base_seconds": 0.01})),
        ]
    )
    async with worker():
        ended = await app.executions.wait(await run(app, "outer"), timeout=20)
    assert (ended["state"], ended["steps"][0]["attempt"]) == ("failed", 2)
    assert len(await app.executions.list(schedule="inner")) == 2


async def test_cancelling_passes_down_to_the_code_that_runs(app: Tenuto, worker: Quick) -> None:
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
            of("inner", Step.job(endless), Step.job(endless, name="next")),
            of("middle", Step.schedule("inner")),
            of("outer", Step.schedule("middle"), Step.schedule("inner")),
        ]
    )
    async with worker():
        outer = await run(app, "outer")
        await eventually(began.is_set)
        with app.acting_as(ANA):
            await app.executions.cancel(outer, reason="enough")
        ended = await app.executions.wait(outer, timeout=10)
        inner = await app.executions.wait((await the_child(app, "inner"))["id"], timeout=10)
        assert stopped.is_set()
        middle = await app.executions.get((await the_child(app, "middle"))["id"])
    for each in (ended, middle, inner):
        assert (each["state"], each["cancel_name"], each["cancel_reason"]) == ("cancelled", "Ana", "enough")
    assert await repairs(await app.open()) == {}


async def test_cancelling_the_step_cancels_what_it_has_started(app: Tenuto, worker: Quick, gate: Gate) -> None:
    await app.schedules.apply([of("inner", job(app, "gated"), job(app, "quick")), of("outer", Step.schedule("inner"))])
    async with worker():
        outer = await run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        assert await app.cancel(step["task_id"]) == "cancelled"
        assert (await app.executions.get(outer))["state"] == "failed"
        gate.go.release()
        inner = await app.executions.wait((await the_child(app, "inner"))["id"], timeout=10)
    assert inner["state"] == "cancelled"


async def is_waiting(app: Tenuto, task_id: UUID) -> bool:
    return bool((await app.task(task_id))["state"] == "waiting")


async def test_cancelling_the_inner_one_fails_the_step(app: Tenuto, worker: Quick, gate: Gate) -> None:
    await app.schedules.apply([of("inner", job(app, "gated")), of("outer", Step.schedule("inner"))])
    async with worker():
        outer = await run(app, "outer")
        await gate.has_begun()
        with app.acting_as(ANA):
            await app.executions.cancel((await the_child(app, "inner"))["id"])
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=10)
    assert ended["state"] == "failed"
    assert "cancelled by Ana" in ended["error"]


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "cancel_previous"])
async def test_a_step_waits_for_a_run_that_is_active_and_then_runs_its_own(
    app: Tenuto, worker: Quick, gate: Gate, overlap: str
) -> None:
    await app.schedules.apply([of("inner", job(app, "gated"), overlap=overlap), of("outer", Step.schedule("inner"))])
    async with worker():
        first = await run(app, "inner")
        await gate.has_begun()
        outer = await run(app, "outer")
        (step,) = (await app.executions.get(outer))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        assert len(await app.executions.list(schedule="inner")) == 1
        gate.go.release(2)
        ended = await app.executions.wait(outer, timeout=10)
        assert (await app.executions.get(first))["state"] == "completed"
    assert ended["state"] == "completed"
    assert gate.count == 2, "its own run, not the other's"


async def test_side_by_side_where_that_is_allowed(app: Tenuto, worker: Quick, gate: Gate) -> None:
    await app.schedules.apply([of("inner", job(app, "gated"), overlap="allow"), of("outer", Step.schedule("inner"))])
    async with worker():
        await run(app, "inner")
        outer = await run(app, "outer")
        await gate.has_begun()
        await gate.has_begun()
        gate.go.release(2)
        assert (await app.executions.wait(outer, timeout=10))["state"] == "completed"


async def test_two_steps_that_run_the_same_schedule_take_turns(app: Tenuto, worker: Quick, gate: Gate) -> None:
    await app.schedules.apply(
        [
            of("inner", job(app, "gated")),
            of("outer", [Step.schedule("inner", name="left"), Step.schedule("inner", name="right")]),
        ]
    )
    async with worker():
        outer = await run(app, "outer")
        await gate.has_begun()
        gate.go.release()
        await gate.has_begun()
        gate.go.release()
        assert (await app.executions.wait(outer, timeout=10))["state"] == "completed"
    assert len(await app.executions.list(schedule="inner")) == 2


async def test_pausing_the_outer_one_holds_the_step_back_when_the_inner_one_has_ended(
    app: Tenuto, worker: Quick, gate: Gate
) -> None:
    await app.schedules.apply([of("inner", job(app, "gated")), of("outer", Step.schedule("inner"), job(app, "quick"))])
    async with worker():
        outer = await run(app, "outer")
        await gate.has_begun()
        (step, _) = (await app.executions.get(outer))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        await app.executions.pause(outer)
        gate.go.release()
        await app.executions.wait((await the_child(app, "inner"))["id"], timeout=10)
        assert await is_waiting(app, step["task_id"])
        await app.executions.resume(outer)
        assert (await app.executions.wait(outer, timeout=10))["state"] == "completed"
    assert await repairs(await app.open()) == {}


async def test_an_attempt_that_is_lost_after_it_began_the_inner_one_does_not_run_it_twice(
    app: Tenuto, worker: Quick, gate: Gate
) -> None:
    await app.schedules.apply([of("inner", job(app, "gated")), of("outer", Step.schedule("inner"))])
    database = await app.open()
    async with worker() as one:
        outer = await run(app, "outer")
        await gate.has_begun()
        (step,) = (await app.executions.get(outer))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        # as if its worker had died before it could put the step aside
        dead = await database.value(
            "INSERT INTO tenuto.workers SELECT gen_random_uuid(), 'dead', service, host, boot, pid, version, queues,"
            " slots, started_at, seen_at FROM tenuto.workers WHERE id = $1 RETURNING id",
            one.identity.id,
        )
        await database.all(
            "UPDATE tenuto.tasks SET state = 'running', waits_for = NULL, worker_id = $2, fence = fence + 1,"
            " claimed_at = now(), lease_until = now() + interval '1 h' WHERE id = $1",
            step["task_id"],
            dead,
        )
        assert await recover(database, dead, database.clock.now()) == 1
        gate.go.release()
        ended = await app.executions.wait(outer, timeout=20)
    assert (ended["state"], ended["steps"][0]["attempt"]) == ("completed", 2)
    assert len(await app.executions.list(schedule="inner")) == 1
    assert gate.count == 1


@pytest.mark.usefixtures("gate")
async def test_a_schedule_that_was_renamed_away_fails_the_step_for_good(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply([of("inner", job(app, "quick")), of("outer", Step.schedule("inner"))])
    database = await app.open()
    await database.all("UPDATE tenuto.schedules SET name = 'elsewhere' WHERE name = 'inner'")
    async with worker():
        ended = await app.executions.wait(await run(app, "outer"), timeout=10)
    assert (ended["state"], ended["error"]) == ("failed", "step 'inner' failed: there is no schedule named 'inner'")


async def test_runs_that_would_wait_for_each_other_for_ever_do_not(app: Tenuto, worker: Quick, gate: Gate) -> None:
    """No plan ever was in a circle, but the run of one is older than its edit."""
    await app.schedules.apply([of("B", job(app, "quick")), of("A", job(app, "gated"), Step.schedule("B"))])
    async with worker():
        old = await run(app, "A")
        await gate.has_begun()
        await app.schedules.edit("A", of("A", job(app, "quick")))
        await app.schedules.edit("B", of("B", Step.schedule("A")))
        new = await run(app, "B")
        (step,) = (await app.executions.get(new))["steps"]
        await eventually(lambda: is_waiting(app, step["task_id"]))
        gate.go.release()
        ended = await app.executions.wait(old, timeout=10)
        assert ended["state"] == "failed"
        assert "waits for this one" in ended["error"]
        assert (await app.executions.wait(new, timeout=10))["state"] == "completed"


async def test_pausing_at_the_moment_the_inner_one_ends_holds_the_step_back(
    db: Database, register_worker: Register
) -> None:
    me = await register_worker()
    for number in range(30):
        outer = await started(db, f"o{number}", name=f"outer {number}", trigger=manual())
        inner = await started(db, f"i{number}", name=f"inner {number}", trigger=manual())
        held = await take(db, me)
        aside = Outcome(Status.COMPLETED, aside=Aside(execution=inner))
        await completion.finish(db, [Settlement(held[f"o{number}"], aside)])
        await asyncio.gather(execution_control.pause(db, outer, db.clock.now(), ANA), end(db, held[f"i{number}"]))
        assert await task_states(db, outer) == {f"o{number}": "waiting"}
        await execution_control.resume(db, outer, db.clock.now() + MINUTE)
        assert await task_states(db, outer) == {f"o{number}": "queued"}
        await play(db, me)
    assert await repairs(db) == {}


@pytest.mark.usefixtures("gate")
async def test_the_net_finds_nothing_where_schedules_run_each_other(app: Tenuto, worker: Quick) -> None:
    await app.schedules.apply(
        [
            of("inner", job(app, "quick"), overlap="allow"),
            of("outer", [Step.schedule("inner", name=f"n{n}") for n in range(8)], overlap="allow"),
        ]
    )
    database = await app.open()
    async with worker():
        runs = [await run(app, "outer") for _ in range(5)]
        for _ in range(20):
            await execution_control.repair(database, database.clock.now())
        for each in runs:
            assert (await app.executions.wait(each, timeout=30))["state"] == "completed"
    assert await repairs(database) == {}
    assert len(await table(database, "executions")) == 45


async def test_the_time_of_a_step_that_runs_a_schedule_is_that_of_the_whole_run(app: Tenuto, worker: Quick) -> None:
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
    (step,) = ended["steps"]
    # Told by two clocks, each behind the database's by as long as it took to hear of it.
    assert step["ended_at"] - step["started_at"] > timedelta(seconds=1)
    for which in ("started_at", "ended_at"):
        assert abs(step[which] - inner[which]) < timedelta(seconds=5)
    assert step["duration"] == (step["ended_at"] - step["started_at"]).total_seconds()
    assert step["wait"] == max(0.0, (step["started_at"] - step["run_at"]).total_seconds())
