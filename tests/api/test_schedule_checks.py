"""Checks of triggers and schedules that are not saved, and upcoming runs."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem

LONDON = {"kind": "cron", "cron": "30 1 * * *", "zone": "Europe/London"}
STEP = {"name": "one", "job": "double", "input": {"n": 1}}
DEFINITION: dict[str, Any] = {"name": "Nightly", "trigger": LONDON, "steps": [STEP]}


async def check(service: ApiClient, definition: dict[str, Any], query: str = "") -> Any:
    response = await service.post(f"/api/v1/schedules/check{query}", role=Role.VIEWER, json=definition)
    assert response.status_code == 200, response.text
    return response.json()


async def test_trigger_is_explained_with_next_runs_and_clock_changes(service: ApiClient) -> None:
    response = await service.post("/api/v1/triggers/explain", role=Role.VIEWER, json={"trigger": LONDON, "count": 3})
    found = response.json()
    assert found["description"] == "Every day at 01:30, Europe/London"
    assert len(found["next_runs"]) == 3
    messages = [each["message"] for each in found["clock_changes"]]
    assert len(messages) == 2
    assert any("01:30 does not exist; it runs once, at 02:00" in message for message in messages)
    assert any("01:30 happens twice; it runs once" in message for message in messages)
    assert (await service.get_json("/api/v1/schedules"))["items"] == [], "nothing is saved"


@pytest.mark.parametrize(
    ("trigger", "field"),
    [
        ({"kind": "cron", "cron": "0 0 30 2 *"}, "cron"),
        ({"kind": "cron", "cron": "* * *"}, "cron"),
        ({"kind": "cron", "cron": "0 2 * * *", "zone": "Mars"}, "zone"),
    ],
)
async def test_wrong_trigger_is_refused_at_its_field(service: ApiClient, trigger: dict[str, Any], field: str) -> None:
    response = await service.post("/api/v1/triggers/explain", json={"trigger": trigger})
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["field"].partition(".")[0] == field


async def test_check_names_every_wrong_field_at_once_and_still_explains_the_trigger(service: ApiClient) -> None:
    wrong = {
        **DEFINITION,
        "overlap": "sometimes",
        "steps": [STEP, [{"name": "two", "job": "doubel"}, {"name": "three", "job": "double", "timeout": "soon"}]],
        "colour": "red",
    }
    found = await check(service, wrong)
    assert not found["is_valid"]
    fields = {error["field"]: error for error in found["errors"]}
    assert {"overlap", "steps[1][0]", "steps[1][1].timeout", "colour"} <= fields.keys(), found["errors"]
    assert fields["steps[1][0]"]["remedy"].startswith("did you mean 'double'?")
    trigger_only = await check(service, {**DEFINITION, "steps": []})
    assert [error["field"] for error in trigger_only["errors"]] == ["steps"]
    assert trigger_only["explanation"]["description"] == "Every day at 01:30, Europe/London"
    assert (await check(service, {**DEFINITION, "trigger": {"kind": "cron", "cron": "x"}}))["explanation"] is None


async def test_check_shows_the_difference_from_the_stored_definition(service: ApiClient) -> None:
    created = await service.post("/api/v1/schedules", json=DEFINITION)
    stored = (await service.get(created.headers["location"])).json()
    same = await check(service, stored, "?replaces=Nightly")
    assert (same["is_valid"], same["changes"], same["errors"]) == (True, [], [])
    edited = {**stored, "trigger": {**LONDON, "cron": "0 3 * * *"}, "description": "later"}
    found = await check(service, edited, "?replaces=Nightly")
    assert {change["title"] for change in found["changes"]} == {"when", "description"}
    assert "+ Every day at 03:00, Europe/London" in found["changes"][1]["lines"]
    assert (await service.get_json("/api/v1/schedules/Nightly"))["version"] == 1, "nothing is saved"
    unknown = await service.post("/api/v1/schedules/check?replaces=Daily", json=edited)
    assert_problem(unknown, 404, "schedule.not_found")


async def test_check_reports_conflicts_with_other_schedules(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json={**DEFINITION, "name": "Backup", "trigger": {**LONDON}})
    await service.put("/api/v1/queues/default/limit", json={"max_running": 1})
    async with service.app.worker(slots=2):
        found = await check(service, DEFINITION)
    assert found["is_valid"]
    assert found["conflicts"][0]["queue"] == "default"
    assert set(found["conflicts"][0]["schedules"]) == {"Backup", "Nightly"}


async def test_check_of_an_unchanged_step_does_not_need_its_job(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json=DEFINITION)
    database = await service.app.open()
    await database.fetch_all(
        """UPDATE tenuto.schedules SET plan = replace(plan::text, '"double"', '"unknown here"')::jsonb"""
    )
    stored = await service.get_json("/api/v1/schedules/Nightly")
    assert (await check(service, {**stored, "description": "x"}, "?replaces=Nightly"))["is_valid"]


async def test_upcoming_returns_runs_with_their_usual_duration(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json={**DEFINITION, "trigger": {"kind": "interval", "every": "10m"}})
    await service.post("/api/v1/schedules", json={**DEFINITION, "name": "Other"})
    found = await service.get_json("/api/v1/upcoming", role=Role.VIEWER)
    by_name = {each["name"]: each for each in found["schedules"]}
    assert by_name["Nightly"]["run_count"] == 144
    assert by_name["Other"]["runs"][0]["decision"] == "fired"
    assert by_name["Other"]["duration_source"] == "assumed"
    one = await service.get_json("/api/v1/upcoming?schedule=Other&from=2031-05-04T00:00:00Z&to=2031-05-07T00:00:00Z")
    assert [(each["name"], each["run_count"]) for each in one["schedules"]] == [("Other", 3)]
    assert_problem(await service.get("/api/v1/upcoming?schedule=None"), 404, "schedule.not_found")
    too_long = "/api/v1/upcoming?from=2031-01-01T00:00:00Z&to=2031-05-07T00:00:00Z"
    assert_problem(await service.get(too_long), 422, "upcoming.range.too_long")
    assert_problem(await service.get("/api/v1/upcoming?from=2031-01-01T00:00:00"), 422, "value.instant.no_utc_offset")
