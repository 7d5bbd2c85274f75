"""The models of definitions in the OpenAPI document have the fields that the parser of definition files accepts."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.bodies import definition_bodies, definition_models
from tenuto.api.openapi import openapi_document
from tenuto.definitions import definition_files
from tenuto.extension.contract import CORE_LISTS
from tenuto.model.triggers import serialization

SCHEDULE_FIELDS = set(definition_files._SCHEDULE_FIELDS)
MANIFEST_FIELDS = set(definition_files._MANIFEST_FIELDS)
STEP_MODELS = (definition_models.JobStep, definition_models.ScheduleStep, definition_models.KindStep)
TRIGGER_MODELS: dict[str, type[BaseModel]] = {
    "cron": definition_models.CronTrigger,
    "times": definition_models.TimesTrigger,
    "interval": definition_models.IntervalTrigger,
    "manual": definition_models.ManualTrigger,
}


@pytest.mark.parametrize(
    ("model", "accepted"),
    [
        (definition_models.ScheduleDeclaration, SCHEDULE_FIELDS),
        (definition_models.NewSchedule, SCHEDULE_FIELDS | {"enabled"}),
        (
            definition_models.ScheduleReplacement,
            SCHEDULE_FIELDS | set(definition_bodies.SCHEDULE_READ_ONLY_FIELDS),
        ),
        (definition_models.ManifestDeclaration, MANIFEST_FIELDS),
        (definition_models.NewManifest, MANIFEST_FIELDS | {"enabled"}),
        (
            definition_models.ManifestReplacement,
            MANIFEST_FIELDS | set(definition_bodies.MANIFEST_READ_ONLY_FIELDS),
        ),
        (definition_models.GroupDeclaration, set(definition_files._GROUP_FIELDS)),
        (definition_models.QueueDeclaration, set(definition_files._DECLARED_QUEUE_FIELDS)),
        (definition_models.RetryPolicyFields, set(definition_files._RETRY_FIELDS)),
        (definition_models.MisfireFields, set(definition_files._MISFIRE_FIELDS)),
        (definition_models.DefinitionDocument, set(CORE_LISTS)),
    ],
)
def test_definition_model_has_the_fields_of_the_parser(model: type[BaseModel], accepted: set[str]) -> None:
    assert set(model.model_fields) == accepted


def test_step_models_have_the_fields_of_the_parser() -> None:
    assert set().union(*(model.model_fields for model in STEP_MODELS)) == set(definition_files._STEP_FIELDS)


def test_trigger_models_have_the_fields_of_every_kind_of_trigger() -> None:
    assert set(TRIGGER_MODELS) == set(serialization._KINDS)
    for kind, (_make, required, optional) in serialization._KINDS.items():
        fields = TRIGGER_MODELS[kind].model_fields
        assert set(fields) == {"kind", *((required,) if required else ()), *optional}, kind
        assert {name for name, field in fields.items() if field.is_required()} == {"kind", required} - {None}, kind


def test_openapi_document_describes_the_arguments_of_each_registered_step_kind() -> None:
    app = Tenuto()
    document = openapi_document(create_api(app))
    schemas = document["components"]["schemas"]
    kinds = {
        schemas[each["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"]
        for each in schemas["Step"]["anyOf"]
        if "kind" in schemas[each["$ref"].rpartition("/")[2]]["properties"]
    }
    assert kinds == set(app.jobs.handlers_by_kind) - {"schedule"}
    assert _errors(document, "Step", {"kind": "http.call", "arguments": {"url": "https://example.org"}}) == []
    assert _errors(document, "Step", {"kind": "http.call", "arguments": {"uri": "https://example.org"}})
    assert _errors(document, "Step", {"kind": "unknown", "arguments": {}})
    assert _errors(document, "Step", {"job": "hr_import", "input": None}), "fields are left out instead of being null"


def _errors(document: dict[str, Any], name: str, value: Any) -> list[Any]:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return list(Draft202012Validator(schema).iter_errors(value))
