"""Arguments for one run: operators may give them to jobs; what the other steps do is not theirs to say."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.model.actors import Role
from tenuto.operations.schedules import definition
from tests.api.test_one_shots import calling

ELSEWHERE = {
    "program": Step.executable("/bin/true", name="program"),
    "call": Step.http("https://example.org", name="call"),
    "note": Step.log("a message", log="notes", name="note"),
}


@pytest.fixture
async def nightly(app: Tenuto) -> None:
    @app.job
    async def load(full: bool = False) -> None: ...

    await app.schedules.create(definition("nightly", manual(), [Step.job(load, name="load"), *ELSEWHERE.values()]))


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        ("program", {"program": "/bin/sh", "args": ["-c", "id"]}),
        ("call", {"url": "https://evil.example"}),
        ("note", {"log": "another"}),
    ],
)
async def test_an_operator_cannot_say_what_a_step_does_that_is_no_job(
    app: Tenuto, nightly: None, step: str, arguments: dict[str, Any]
) -> None:
    asked = {"arguments": {step: arguments}}
    async with calling(app, Role.OPERATOR) as operator:
        refused = await operator.post("/api/v1/schedules/nightly/run", json=asked)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, step)
        assert (await operator.get("/api/v1/executions")).json()["items"] == []


async def test_an_operator_gives_arguments_to_jobs_and_an_editor_to_all(app: Tenuto, nightly: None) -> None:
    async with calling(app, Role.OPERATOR) as operator, calling(app, Role.EDITOR) as editor:
        run = await operator.post("/api/v1/schedules/nightly/run", json={"arguments": {"load": {"full": True}}})
        assert run.json()["decision"] == "Fired"
        await app.executions.cancel(UUID(run.json()["execution_id"]))
        run = await editor.post("/api/v1/schedules/nightly/run", json={"arguments": {"note": {"message": "mine"}}})
        assert run.json()["decision"] == "Fired"
