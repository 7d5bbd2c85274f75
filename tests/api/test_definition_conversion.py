"""Conversion of definitions between YAML and JSON, and checks of manifests that are not saved."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem

MANIFEST: dict[str, Any] = {"external_id": "numbers", "job": "double", "properties": {"n": 1}}


async def convert(service: ApiClient, body: dict[str, Any]) -> Any:
    response = await service.post("/api/v1/plans/convert", role=Role.VIEWER, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_definition_is_converted_in_both_directions(service: ApiClient) -> None:
    definition = {"name": "nightly", "cron": "0 2 * * *", "steps": [{"job": "double", "input": {"n": 1}}]}
    written = await convert(service, {"definition": definition})
    assert written["text"].startswith("name: nightly\n")
    assert await convert(service, {"text": written["text"]}) == {**written, "definition": definition}


@pytest.mark.parametrize(("text", "code"), [("a: [", "yaml"), ("- a", "not_a_mapping"), ("", "not_a_mapping")])
async def test_text_that_cannot_be_read_is_answered_with_its_error(service: ApiClient, text: str, code: str) -> None:
    found = await convert(service, {"text": text})
    assert found["definition"] is None
    assert found["errors"][0]["field"] == "text"
    assert code in found["errors"][0]["code"] or "line" in found["errors"][0]["message"]


async def test_conversion_takes_exactly_one_form(service: ApiClient) -> None:
    for body in ({}, {"text": "a: 1", "definition": {}}):
        response = await service.post("/api/v1/plans/convert", role=Role.VIEWER, json=body)
        assert_problem(response, 422, code="definition.text.conflict")


async def test_definition_that_is_too_long_or_too_deep_is_refused_with_its_field(service: ApiClient) -> None:
    response = await service.post("/api/v1/plans/convert", role=Role.VIEWER, json={"text": "a: 1\n" + "#" * 100_000})
    problem = assert_problem(response, 422)
    assert [each["field"] for each in problem["errors"]] == ["text"], problem
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep]
    for values in ([1] * 40_000, deep):
        response = await service.post("/api/v1/plans/convert", role=Role.VIEWER, json={"definition": {"a": values}})
        assert assert_problem(response, 422, "definition.text.too_long")["errors"][0]["field"] == "definition"


async def test_aliases_do_not_make_a_short_text_a_long_response(service: ApiClient) -> None:
    found = await convert(service, {"text": f"a: &a {'x' * 50_000}\nb: [{'*a, ' * 10_000}]"})
    assert (found["definition"], found["errors"][0]["code"]) == (None, "definition_file.too_large")


async def check(service: ApiClient, definition: dict[str, Any], query: str = "") -> Any:
    response = await service.post(f"/api/v1/manifests/check{query}", role=Role.VIEWER, json=definition)
    assert response.status_code == 200, response.text
    return response.json()


async def test_manifest_is_checked_without_saving_it(service: ApiClient) -> None:
    trigger = {"kind": "cron", "cron": "0 6 * * 1", "zone": "Europe/London"}
    found = await check(service, {**MANIFEST, "trigger": trigger})
    assert found["is_valid"], found
    assert found["explanation"]["description"] == "Every Monday at 06:00, Europe/London"
    assert (await service.get_json("/api/v1/manifests"))["items"] == [], "nothing is saved"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"properties": {"n": "many"}}, "properties.n"),
        ({"job": "nothing"}, "job"),
        ({"max_active": 0}, "max_active"),
        ({"trigger": {"kind": "cron", "cron": "* * *"}}, "trigger.cron"),
    ],
)
async def test_error_of_a_manifest_names_its_field(service: ApiClient, change: dict[str, Any], field: str) -> None:
    found = await check(service, {**MANIFEST, **change})
    assert not found["is_valid"]
    assert [each["field"] for each in found["errors"]] == [field]


async def test_check_of_a_stored_manifest_names_the_changes(service: ApiClient) -> None:
    await service.post("/api/v1/manifests", role=Role.EDITOR, json=MANIFEST)
    assert (await check(service, MANIFEST, "?replaces=numbers"))["changes"] == []
    found = await check(service, {**MANIFEST, "properties": {"n": 2}}, "?replaces=numbers")
    assert [each["title"] for each in found["changes"]] == ["properties"]
    response = await service.post("/api/v1/manifests/check?replaces=nothing", role=Role.VIEWER, json=MANIFEST)
    assert_problem(response, 404)
