"""Manifest as a step of a schedule (S6): it waits without a slot, fails like its run, and starts no run twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tenuto import Context, Step, Tenuto, manual
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.context import TaskDeferred
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.store.work.activities import ActivityDetails
from tests.support.errors import raises_code
from tests.support.model_values import make_held_task
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


async def run_schedule_of_steps(app: Tenuto, name: str, *steps: Step) -> tuple[ExecutionDetails, ActivityDetails]:
    """Create and run a schedule of these steps; return the ended execution and the activity of its last step."""
    await app.schedules.create(schedule_definition(name, manual(), steps))
    run = await app.schedules.run(name)
    assert run.execution_id is not None
    done = await app.executions.wait(run.execution_id, timeout=60)
    return done, await app.activity(known(done.steps[-1].activity_id))


@pytest.mark.slow
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

        done, last = await run_schedule_of_steps(app, "not waited for", Step.manifest("loads", {"n": 3}, wait=False))
        assert done.state == "completed"
        await eventually(lambda: (3, "people") in given)
    for arguments in ({}, {"manifest": "loads", "inputs": {}}, {"manifest": "loads", "input": 3}):
        with pytest.raises(Invalid):
            await app.schedules.create(schedule_definition("bad", manual(), [Step.of("manifest", arguments)]))


async def test_manifest_step_is_checked_when_the_schedule_is_saved(app: Tenuto) -> None:
    @app.job
    async def load(n: int) -> None: ...

    app.manifest("loads", load, properties={"n": 1})
    await app.manifests.deploy()

    for step, code, field in (
        (Step.manifest("load"), "schedule.step.manifest_not_found", "steps.load.arguments.manifest"),
        (Step.manifest("loads", {"n": "x"}), "job.input.invalid", "steps.loads.arguments.input.n"),
        (Step.manifest("loads", {"m": 1}), "job.input.invalid", "steps.loads.arguments.input.m"),
    ):
        with raises_code(code) as refused:
            await app.schedules.create(schedule_definition("nightly", manual(), [step]))
        assert refused.value.field == field
        if step.name == "load":
            assert refused.value.remedy == "did you mean 'loads'?"

    await app.schedules.create(schedule_definition("nightly", manual(), [Step.manifest("loads", {"n": 2})]))
    with raises_code("manifest.in_use"):
        await app.manifests.delete("loads")
    await app.schedules.delete("nightly")
    await app.manifests.delete("loads")


async def test_declared_schedule_may_run_a_manifest_of_the_same_program(app: Tenuto) -> None:
    @app.job
    async def load(n: int = 1) -> None: ...

    app.schedule("nightly", manual(), [Step.manifest("loads")])
    app.manifest("loads", load)
    async with app.scheduler():
        assert (await app.schedules.get("nightly")).enabled


@pytest.mark.parametrize(
    ("properties", "input", "is_refused"), [("{n: 1}", "{n: 2}", False), ("{n: 1}", "{n: x}", True)]
)
async def test_definition_file_may_declare_a_schedule_before_its_manifest(
    app: Tenuto, properties: str, input: str, is_refused: bool
) -> None:
    @app.job
    async def load(n: int) -> None: ...

    text = f"""
schedules: [{{name: nightly, steps: [{{kind: manifest, arguments: {{manifest: loads, input: {input}}}}}]}}]
manifests: [{{external_id: loads, job: load, properties: {properties}}}]
"""
    planned = await app.plans.plan(read_declarations([parse_document("file.yaml", text.encode())]))
    if is_refused:
        with raises_code("job.input.invalid") as refused:
            await app.plans.apply(planned)
        assert "schedules[0].steps[0].arguments.input.n" in str(refused.value.field)
        assert await app.manifests.list() == [], "nothing was applied"
    else:
        await app.plans.apply(planned)
        assert [each.name for each in await app.schedules.list()] == ["nightly"]


@pytest.mark.slow
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
