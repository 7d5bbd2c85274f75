"""Manifest as a step of a schedule (S6): it waits without a slot, fails like its run, and starts no run twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tenuto import Context, Step, Tenuto, manual
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.context import TaskDeferred
from tenuto.operations.executions import ExecutionDetails
from tenuto.operations.schedules import schedule_definition
from tenuto.store.activities import ActivityDetails
from tests.support.known_values import known
from tests.support.model_values import make_held_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


async def run_schedule_of_steps(app: Tenuto, name: str, *steps: Step) -> tuple[ExecutionDetails, ActivityDetails]:
    """Create and run a schedule of these steps; return the ended execution and the activity of its last step."""
    await app.schedules.create(schedule_definition(name, manual(), steps))
    run = await app.schedules.run(name)
    assert run.execution_id is not None
    done = await app.executions.wait(run.execution_id, timeout=60)
    return done, await app.activity(known(done.steps[-1].activity_id))


async def test_manifest_step_ends_like_its_run(app: Tenuto, worker: WorkerFactory) -> None:
    given: list[tuple[int, str]] = []

    @app.job(max_attempts=1)
    async def load(ctx: Context, n: int, of: str = "all") -> dict[str, int]:
        given.append((n, of))
        if n < 0:
            raise ValueError("nothing to load")
        if n == 7:
            ctx.warn("an odd number")
        return {"loaded": n}

    app.manifest("loads", load, properties={"of": "people", "n": 1})
    await app.manifests.deploy()
    async with worker(slots=1), app.scheduler():
        done, last = await run_schedule_of_steps(app, "well", Step.manifest("loads", {"n": 5}), Step.job(load, 2))
        assert done.state == "completed", done.error
        first = await app.activity(known(done.steps[0].activity_id))
        assert first.output["output"] == {"loaded": 5}, "one slot is enough: the step holds none while it waits"
        assert given == [(5, "people"), (2, "all")], "once, and in order"

        done, last = await run_schedule_of_steps(app, "odd", Step.manifest("loads", {"n": 7}, name="odd one"))
        assert (done.state, last.state) == ("completed", "completed_with_warning")

        done, last = await run_schedule_of_steps(app, "badly", Step.manifest("loads", {"n": -1}))
        assert done.state == "failed"
        assert "ended as failed: nothing to load" in last.error["message"]
        assert given.count((-1, "people")) == 1

        for step, words in (
            (Step.manifest("nowhere"), "nowhere"),
            (Step.manifest("loads", {"n": "x"}), "integer"),
            (Step.manifest("loads", {"m": 1}), "m"),
        ):
            done, last = await run_schedule_of_steps(app, f"refused {words}", step)
            assert (done.state, words in last.error["message"]) == ("failed", True), last.error

        done, last = await run_schedule_of_steps(app, "not waited for", Step.manifest("loads", {"n": 3}, wait=False))
        assert done.state == "completed"
        await eventually(lambda: (3, "people") in given)
    for arguments in ({}, {"manifest": "loads", "inputs": {}}, {"manifest": "loads", "input": 3}):
        with pytest.raises(Invalid):
            await app.schedules.create(schedule_definition("bad", manual(), [Step.of("manifest", arguments)]))


async def test_time_limit_of_a_manifest_step_counts_from_its_start(app: Tenuto, worker: WorkerFactory) -> None:
    over: list[int] = []

    @app.job(max_attempts=1)
    async def slow(ctx: Context, n: int = 0) -> int:
        await eventually(lambda: bool(over), timeout=60)
        return n

    app.manifest("slow", slow)
    await app.manifests.deploy()
    async with worker(), app.scheduler():
        done, last = await run_schedule_of_steps(app, "impatient", Step.manifest("slow", timeout="1.2s"))
        assert (done.state, last.state, last.reason) == ("failed", "failed", "timed_out")
        assert (last.error["type"], last.attempt) == ("tenuto.TimedOut", 1)
        # The clock is synchronised now and then; less than the timeout of the wait for the run.
        assert 1.0 <= (known(last.ended_at) - known(last.started_at)).total_seconds() < 30

        async def it_runs() -> bool:
            (run,) = await app.tasks(limit=10)
            return bool(run.state == "running")

        await eventually(it_runs, what="the run is the manifest's own affair")

        done, last = await run_schedule_of_steps(app, "in vain", Step.manifest("slow", timeout="1.2s"))
        assert last.reason == "timed_out", "also while it waits for the run before it"
        over.append(1)
        done, last = await run_schedule_of_steps(app, "in time", Step.manifest("slow", timeout="1m"))
        assert done.state == "completed", done.error


async def test_manifest_step_waits_for_an_earlier_run(app: Tenuto, worker: WorkerFactory) -> None:
    began: list[int] = []
    go: list[int] = []

    @app.job(max_attempts=1)
    async def slow(ctx: Context, n: int) -> int:
        began.append(n)
        await eventually(lambda: n in go, timeout=60)
        return n

    app.manifest("slow", slow, properties={"n": 0})
    await app.manifests.deploy()
    database = await app.open()
    async with worker(), app.scheduler():
        await app.manifests.run("slow")
        await eventually(lambda: began == [0])
        await app.schedules.create(
            schedule_definition("after", manual(), [Step.manifest("slow", {"n": 1}, on_lost="retry")])
        )
        run = await app.schedules.run("after")
        assert run.execution_id is not None

        async def put_aside() -> bool:
            return bool(
                await database.fetch_value(
                    "SELECT count(*) FROM tenuto.tasks WHERE kind = 'manifest' AND run_at > now()"
                )
            )

        await eventually(put_aside)
        assert began == [0], "one run at a time"
        go.append(0)
        await eventually(lambda: began == [0, 1], timeout=30)
        await eventually(put_aside)
        go.append(1)
        done = await app.executions.wait(run.execution_id, timeout=60)
        assert (done.state, began) == ("completed", [0, 1])


async def test_manifest_step_continues_the_run_of_a_lost_attempt(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def load(n: int = 1) -> int:
        return n

    app.manifest("loads", load)
    await app.manifests.deploy()
    database = await app.open()
    async with worker():
        await app.wait(await app.enqueue(load), timeout=30)
    step = app.jobs.get_handler("manifest", "manifest").function
    first = make_held_task(kind="manifest", name="manifest")
    for _ in range(2):  # the second time only the reply was lost
        with pytest.raises(TaskDeferred):
            await step(Context(first), manifest="loads")
    lost = {"id": str(first.id), "task_id": str(first.id), "status": "failed", "reason": "lost"}
    await database.fetch_all(
        "INSERT INTO tenuto.activities SELECT (jsonb_populate_record(known, $1::jsonb)).*"
        " FROM tenuto.activities AS known LIMIT 1",
        json.dumps(lost),
    )
    second = replace(first, activity_id=new_id(), attempt=2)
    with pytest.raises(TaskDeferred):
        await step(Context(second), manifest="loads")
    runs = await database.fetch_all("SELECT id FROM tenuto.tasks WHERE manifest_id IS NOT NULL")
    assert len(runs) == 1, "which waits for a worker"
    async with worker():
        await app.wait(runs[0]["id"], timeout=30)
    assert (await step(Context(second), manifest="loads"))["output"] == 1
