"""Values, conditions and edges of steps over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.model.access.actors import Role
from tenuto.testing import run_until_idle
from tests.api.conftest import ApiClient, assert_problem

FIRST = {"name": "first", "job": "double", "input": {"n": 2}}
SECOND = {
    "name": "second", "job": "double", "input": {"n": "${steps.first.output}"}, "needs": ["first"],
    "when": "steps.first.output > 3",
}  # fmt: skip
THIRD = {"name": "third", "job": "double", "input": {"n": 1}, "when": "steps.second.skipped"}
DEFINITION: dict[str, Any] = {"name": "flow", "trigger": "manual", "steps": [FIRST, SECOND, THIRD]}


async def run_flow(service: ApiClient) -> Any:
    created = await service.post("/api/v1/schedules", json=DEFINITION)
    assert created.status_code == 201, created.text
    started = await service.post("/api/v1/schedules/flow/run", json={})
    await run_until_idle(service.app)
    return await service.get_json(f"/api/v1/executions/{started.json()['execution_id']}")


async def test_schedule_and_execution_show_what_steps_take_from_each_other(service: ApiClient) -> None:
    execution = await run_flow(service)
    stored = await service.get_json("/api/v1/schedules/flow")
    assert [each.get("when") for each in stored["steps"]] == [None, "steps.first.output > 3", "steps.second.skipped"]
    assert stored["steps"][1]["needs"] == ["first"]
    assert stored["steps"][1]["input"] == {"n": "${steps.first.output}"}
    replaced = await service.put("/api/v1/schedules/flow", json=stored)
    assert replaced.status_code == 200, replaced.text
    assert replaced.json()["version"] == stored["version"], "nothing changed"

    steps = {each["name"]: each for each in execution["steps"]}
    assert {name: each["state"] for name, each in steps.items()} == {
        "first": "completed", "second": "completed", "third": "skipped",
    }  # fmt: skip
    assert steps["second"]["values"] == [{"argument": "n", "source": "steps.first.output"}]
    assert (steps["second"]["needs"], steps["second"]["when"]) == (["first"], "steps.first.output > 3")
    assert steps["third"]["error"] == "skipped: its condition steps.second.skipped is not met"
    record = await service.get_json(f"/api/v1/activities/{steps['second']['activity_id']}")
    assert (record["input"], record["output"]) == ({"n": 4}, 8)
    timeline = await service.get_json(f"/api/v1/executions/{execution['id']}/timeline")
    assert timeline["groups"][1]["steps"][0]["values"] == [{"argument": "n", "source": "steps.first.output"}]
    skipped = await service.get_json("/api/v1/activities?state=skipped")
    assert [each["id"] for each in skipped["items"]] == [steps["third"]["activity_id"]]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"input": {"n": "${steps.other.output}"}}, "step.reference.step_not_found", "steps[1].input.n"),
        ({"input": {"n": "${steps.first.output.x}"}}, "step.reference.path_not_found", "steps[1].input.n"),
        ({"when": "steps.second.succeeded"}, "step.reference.not_earlier", "steps[1].when"),
        ({"when": "steps.first.failed"}, "step.when.never_true", "steps[1].when"),
        ({"when": "steps.first"}, "step.when.syntax", "steps[1].when"),
        ({"needs": ["third"]}, "step.reference.not_earlier", "steps[1].needs"),
        ({"needs": "first"}, "step.needs.invalid", "steps[1].needs"),
    ],
)
async def test_wrong_dependency_is_refused_at_its_field(
    service: ApiClient, change: dict[str, Any], code: str, field: str
) -> None:
    wrong = {**DEFINITION, "steps": [FIRST, {**SECOND, **change}, THIRD]}
    refused = await service.post("/api/v1/schedules", json=wrong)
    assert [each["field"] for each in assert_problem(refused, 422, code)["errors"]] == [field]
    checked = await service.post("/api/v1/schedules/check", role=Role.VIEWER, json=wrong)
    assert [(each["code"], each["field"]) for each in checked.json()["errors"]] == [(code, field)]
    valid = await service.post("/api/v1/schedules/check", role=Role.VIEWER, json=DEFINITION)
    assert (valid.json()["is_valid"], valid.json()["errors"]) == (True, [])
