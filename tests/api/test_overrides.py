"""Arguments for one run: an operator may override those of jobs, only an editor those of other steps."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tests.api.test_one_shots import client_with_role

OTHER_STEPS = {
    "program": Step.executable("/bin/true", name="program"),
    "call": Step.http("https://example.org", name="call"),
    "note": Step.log("a message", log="notes", name="note"),
}


@pytest.fixture
async def nightly(app: Tenuto) -> None:
    @app.job
    async def load(full: bool = False) -> None: ...

    await app.schedules.create(
        schedule_definition("nightly", manual(), [Step.job(load, name="load"), *OTHER_STEPS.values()])
    )


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        ("program", {"program": "/bin/sh", "args": ["-c", "id"]}),
        ("call", {"url": "https://evil.example"}),
        ("note", {"log": "another"}),
    ],
)
async def test_operator_cannot_override_arguments_of_steps_other_than_jobs(
    app: Tenuto, nightly: None, step: str, arguments: dict[str, Any]
) -> None:
    body = {"arguments": {step: arguments}}
    async with client_with_role(app, Role.OPERATOR) as operator:
        refused = await operator.post("/api/v1/schedules/nightly/run", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "step.arguments.forbidden")
        assert (await operator.get("/api/v1/executions")).json()["items"] == []


async def test_operator_overrides_arguments_of_jobs_and_editor_of_all_steps(app: Tenuto, nightly: None) -> None:
    async with client_with_role(app, Role.OPERATOR) as operator, client_with_role(app, Role.EDITOR) as editor:
        run = await operator.post("/api/v1/schedules/nightly/run", json={"arguments": {"load": {"full": True}}})
        assert run.json()["decision"] == "fired"
        await app.executions.cancel(UUID(run.json()["execution_id"]))
        run = await editor.post("/api/v1/schedules/nightly/run", json={"arguments": {"note": {"message": "auth"}}})
        assert run.json()["decision"] == "fired"
