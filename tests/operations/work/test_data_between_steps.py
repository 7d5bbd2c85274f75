"""Data between steps and conditions: declared in Python and files, checked when saved, run by workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Step, Tenuto, manual
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.operations.work.executions import ExecutionDetails
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory


class Extract(BaseModel):
    rows: list[int]
    count: int
    label: str = "daily"


@dataclass
class Report:
    total: int
    label: str


seen: dict[str, Any] = {}


@pytest.fixture
def jobs(app: Tenuto) -> dict[str, Any]:
    seen.clear()

    @app.job
    def extract(count: int) -> Extract:
        return Extract(rows=list(range(count)), count=count)

    @app.job
    async def load(source: list[int], note: str = "") -> Report:
        seen["load"] = (source, note)
        return Report(sum(source), note)

    @app.job
    def alert(report: Report) -> None:
        seen["alert"] = report

    @app.job
    def anything() -> Any:
        return {"rows": "none"}

    return {job.__name__: job for job in (extract, load, alert, anything)}


async def run(app: Tenuto, name: str) -> ExecutionDetails:
    started = await app.schedules.run(name)
    assert started.execution_id is not None
    return await app.executions.wait(started.execution_id, timeout=30)


async def test_values_and_conditions_declared_in_python(
    app: Tenuto, worker: WorkerFactory, jobs: dict[str, Any]
) -> None:
    extract = Step.job(jobs["extract"], 4)
    load = Step.job(
        jobs["load"], source=extract.output["rows"], note=f"{extract.output['count']} rows, {extract.output['label']}"
    )
    few = Step.job(jobs["alert"], load.output, name="few", when=extract.output["count"] < 4)
    many = Step.job(jobs["alert"], load.output, name="many", when=(extract.output["count"] >= 4) & load.succeeded)
    app.schedule("Nightly", manual(), [extract, load, [few, many]])
    async with worker():
        ended = await run(app, "Nightly")
    assert [(each.name, each.state) for each in ended.steps] == [
        ("extract", "completed"),
        ("load", "completed"),
        ("few", "skipped"),
        ("many", "completed"),
    ]
    assert seen["load"] == ([0, 1, 2, 3], "4 rows, daily")
    assert seen["alert"] == Report(6, "4 rows, daily")
    loaded, skipped = ended.steps[1], ended.steps[2]
    assert [(each.argument, each.source) for each in loaded.values] == [
        ("note", "steps.extract.output.count"),
        ("note", "steps.extract.output.label"),
        ("source", "steps.extract.output.rows"),
    ]
    assert (skipped.when, skipped.error) == (
        "steps.extract.output.count < 4",
        "skipped: its condition steps.extract.output.count < 4 is not met",
    )
    assert (ended.state, ended.failed_step_count) == ("completed", 0)


FILE = """
schedules:
  - name: nightly
    steps:
      - {name: extract, job: extract, input: {count: 3}}
      - name: load rows
        job: load
        input: {source: "${steps.extract.output.rows}"}
        when: steps.extract.output.count > 2
      - name: tell
        kind: log.append
        needs: [load rows]
        arguments: {log: etl, message: '${steps["load rows"].output}'}
"""


async def test_values_and_conditions_declared_in_a_file(app: Tenuto, worker: WorkerFactory, jobs: Any) -> None:
    declared = read_declarations([parse_document("nightly.yaml", FILE.encode())])
    await app.plans.apply(await app.plans.plan(declared))
    assert not (await app.plans.plan(declared)).has_changes
    async with worker():
        ended = await run(app, "nightly")
    assert [each.state for each in ended.steps] == ["completed"] * 3
    assert ended.steps[2].needs == ("load rows",)
    entries = await app.logs.read("etl")
    assert [each.message for each in entries] == ['{"label":"","total":3}']


async def test_value_that_does_not_fit_the_job_fails_the_step(app: Tenuto, worker: WorkerFactory, jobs: Any) -> None:
    source = Step.job(jobs["anything"])
    app.schedule("Nightly", manual(), [source, Step.job(jobs["load"], source=source.output["rows"])])
    async with worker():
        ended = await run(app, "Nightly")
    assert (ended.state, ended.steps[1].state, ended.steps[1].reason) == ("failed", "failed", "refused")
    error = str(ended.steps[1].error)
    assert error.startswith("source: Input should be a valid array")
    assert 'the value comes from steps.anything.output.rows: "none"' in error


@pytest.mark.parametrize(
    ("step", "code", "field"),
    [
        ({"source": "${steps.extrct.output.rows}"}, "step.reference.step_not_found", "arguments.source"),
        ({"source": "${steps.load.output}"}, "step.reference.not_earlier", "arguments.source"),
        ({"source": "${steps.extract.output.lines}"}, "step.reference.path_not_found", "arguments.source"),
        ({"source": "${steps.extract.output.rows[0].x}"}, "step.reference.path_not_found", "arguments.source"),
        ({"source": "${steps.extract.output.label}"}, "step.reference.type_mismatch", "arguments.source"),
        ({"source": "${steps.extract.output}"}, "step.reference.type_mismatch", "arguments.source"),
        ({"source": "${steps.extract.outputs}"}, "step.reference.syntax", "arguments.source"),
        ({"target": "${steps.extract.output.rows}"}, "job.parameter.unknown", "target"),
        ({"note": "${steps.extract.output.label}"}, "job.input.invalid", "source"),
    ],
)
async def test_reference_that_cannot_work_is_rejected_when_saved(
    app: Tenuto, jobs: Any, step: dict[str, Any], code: str, field: str
) -> None:
    plan = [Step.of("job", {"count": 1}, target="extract"), Step.of("job", step, target="load")]
    with raises_code(code) as rejected:
        await app.schedules.create(schedule_definition("Nightly", manual(), plan))
    assert rejected.value.field == f"steps.load.{field}"


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"when": "steps.other.succeeded"}, "step.reference.step_not_found", "when"),
        ({"when": "steps.load.succeeded"}, "step.reference.not_earlier", "when"),
        ({"when": "steps.extract.failed"}, "step.when.never_true", "when"),
        ({"when": "steps.extract.skipped"}, "step.when.never_true", "when"),
        ({"when": "steps.extract.output.counts > 1"}, "step.reference.path_not_found", "when"),
        ({"when": 'steps.extract.output.count > "1"'}, "step.when.type_mismatch", "when"),
        ({"needs": ["other"]}, "step.reference.step_not_found", "needs"),
        ({"needs": ["load"]}, "step.reference.not_earlier", "needs"),
    ],
)
async def test_condition_or_edge_that_cannot_work_is_rejected_when_saved(
    app: Tenuto, jobs: Any, options: dict[str, Any], code: str, field: str
) -> None:
    plan = [Step.job(jobs["extract"], 1), Step.job(jobs["load"], [1], **options)]
    with raises_code(code) as rejected:
        await app.schedules.create(schedule_definition("Nightly", manual(), plan))
    assert rejected.value.field == f"steps.load.{field}"


@pytest.mark.parametrize(
    ("kind", "arguments", "code"),
    [
        ("executable", {"program": "${steps.extract.output.label}"}, "step.reference.not_allowed"),
        ("sql", {"connection": "hr", "script": "DELETE ${steps.extract.output.label}"}, "step.reference.not_allowed"),
        (
            "http.call",
            {"url": "http://localhost", "headers": {"X": {"secret": "${steps.extract.output.label}"}}},
            "step.reference.secret",
        ),
    ],
)  # fmt: skip
async def test_output_cannot_choose_code_or_secrets(
    app: Tenuto, jobs: Any, kind: str, arguments: dict[str, Any], code: str
) -> None:
    plan = [Step.job(jobs["extract"], 1), Step.of(kind, arguments)]
    with raises_code(code):
        await app.schedules.create(schedule_definition("Nightly", manual(), plan))


async def test_edit_and_run_with_other_arguments_keep_references(app: Tenuto, worker: WorkerFactory, jobs: Any) -> None:
    extract = Step.job(jobs["extract"], 1)
    await app.schedules.create(
        schedule_definition("Nightly", manual(), [extract, Step.job(jobs["load"], extract.output["rows"])])
    )
    started = await app.schedules.run(
        "Nightly", arguments={"extract": {"count": 2}, "load": {"note": "of ${steps.extract.output.count}"}}
    )
    assert started.execution_id is not None
    async with worker():
        await app.executions.wait(started.execution_id, timeout=30)
    assert seen["load"] == ([0, 1], "of 2")
