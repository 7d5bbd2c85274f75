"""The OpenAPI document is valid and complete, and no request generated from it causes a 5xx.

Schemathesis generates valid and invalid requests until the time budget is used up.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import Draft202012Validator, meta
from schemathesis.generation import GenerationMode

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tenuto.model.access.actors import Role
from tenuto.observability.event_sources import TOPICS
from tests.api.conftest import HOST, ApiClient, running_api
from tests.api.test_access import STREAMING_ROUTES, list_routes
from tests.docs.error_reference import error_codes

TIME_BUDGET_SECONDS = 22.0
MODES = (
    (GenerationMode.POSITIVE, 1),
    (GenerationMode.NEGATIVE, 2),
    (GenerationMode.POSITIVE, 8),
    (GenerationMode.NEGATIVE, 20),
)
REQUEST_OPTIONS = ("method", "url", "headers", "params", "json", "data", "files", "cookies")
RESULTS_WITHOUT_JSON = {
    "service_health", "service_metrics", "activities_log", "events_stream", "audit_export", "batches_items_csv",
    "operations_items_csv",
}  # fmt: skip
FREE_RESULTS = {"service_openapi"}
"""Results that have a schema of a standard."""
OPERATIONS_WITHOUT_404 = {
    "logs_read", "manifest_groups_change", "queues_limit", "queues_limit_rate", "queues_pause", "queues_resume",
    "secrets_set", "sent_events_send",
}  # fmt: skip
"""Operations on names that need not exist."""
CODES_OF_REQUESTS = {
    "auth.invalid", "auth.missing", "request.idempotency_key.already_done", "request.invalid", "request.path.nul",
    "request.too_large",
}  # fmt: skip
"""Codes that no literal of an error in Python has."""
OTHER_PROBLEMS = {("service_readiness", "503")}
"""Responses that are not problems in the format of RFC 9457."""
REFUSALS = (400, 401, 403, 404, 405, 409, 413, 415, 422, 429)


@schemathesis.serializer("application/x-ndjson")
def serialize_json_lines(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document(create_api(Tenuto()))


def list_operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_openapi_document_is_valid_and_describes_every_operation(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r"'\$ref': '([^']+)'", repr(document))) <= known
    ids = []
    for method, path, operation in list_operations(document):
        ids.append(operation["operationId"])
        assert re.match(r"[A-Z][a-z]+ ", operation["summary"]), (method, path)
        assert operation["description"].endswith("."), (method, path)
        assert operation["tags"], (method, path)
        for body in operation.get("requestBody", {}).get("content", {}).values():
            assert _has_example(document, body), f"{method} {path} has no example of its body"
    assert len(set(ids)) == len(ids)


def _has_example(document: dict[str, Any], body: dict[str, Any]) -> bool:
    text = repr(body)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        text += repr(document["components"]["schemas"][name])
    return "'example" in text


def test_openapi_document_contains_every_route(document: dict[str, Any]) -> None:
    documented = {path for _, path, _ in list_operations(document)}
    created = {
        re.sub(r":\w+\}", "}", route.path) for route in list_routes(create_api(Tenuto())) if route.include_in_schema
    }
    assert created == documented


def test_every_operation_has_a_readable_id(document: dict[str, Any]) -> None:
    for method, path, operation in list_operations(document):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", operation["operationId"]), (method, path, operation["operationId"])


def test_every_operation_describes_its_result_by_a_model_with_an_example(document: dict[str, Any]) -> None:
    faults = []
    for method, path, operation in list_operations(document):
        status = next(each for each in operation["responses"] if each.startswith("2"))
        contents = operation["responses"][status].get("content", {})
        if status == "204":
            assert contents == {}, operation["operationId"]
            continue
        content = contents.get("application/json")
        if content is None:
            assert operation["operationId"] in RESULTS_WITHOUT_JSON, (method, path)
            continue
        if not is_typed(content["schema"]) and operation["operationId"] not in FREE_RESULTS:
            faults.append(f"{operation['operationId']} has no response model: {content['schema']}")
        if "example" not in content:
            faults.append(f"{operation['operationId']} has no example")
            continue
        validator = Draft202012Validator({**content["schema"], "components": document["components"]})
        errors = [f"{list(error.instance_path)} {error.message}" for error in validator.iter_errors(content["example"])]
        if errors:
            faults.append(f"the example of {operation['operationId']} does not match its schema: {errors[:3]}")
    assert faults == []


def is_typed(schema: dict[str, Any]) -> bool:
    """Return whether a schema refers to a named model, or is a mapping of values that do."""
    if "$ref" in schema:
        return not schema["$ref"].endswith(("/AnyPage", "/AnyList"))
    return isinstance(schema.get("additionalProperties"), dict) and is_typed(schema["additionalProperties"])


def test_every_request_body_is_described_by_a_model(document: dict[str, Any]) -> None:
    for method, path, operation in list_operations(document):
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            if media_type == "application/json":
                assert is_typed(content["schema"]), (method, path, content["schema"])


def test_every_operation_lists_its_problems_with_their_codes(document: dict[str, Any]) -> None:
    known = {each.code for each in error_codes()} | CODES_OF_REQUESTS
    for _method, path, operation in list_operations(document):
        name, responses = operation["operationId"], operation["responses"]
        problems = {status: each for status, each in responses.items() if status.startswith(("4", "5"))}
        expected = {"422"} | ({"400", "401", "403", "429", "503"} if "x-role" in operation else set())
        if "{" in path and name not in OPERATIONS_WITHOUT_404:
            expected.add("404")
        if "application/json" in operation.get("requestBody", {}).get("content", {}):
            expected |= {"400", "413", "415"}
        assert set(problems) >= expected, f"{name} does not describe {sorted(expected - set(problems))}"
        for status, problem in problems.items():
            if (name, status) in OTHER_PROBLEMS:
                continue
            schema = problem["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}, (name, status)
            for code in problem["x-codes"]:
                assert fnmatch.filter(known, code), f"{name} lists the unknown code {code}"


def test_every_topic_of_events_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    described = set(schemas["ServerSentEvent"]["discriminator"]["mapping"])
    assert described == {name for each in TOPICS for name in each.topics} | {"changed", "reset"}


def test_openapi_examples_of_bodies_match_their_schemas(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for example in schema.get("examples", []):
            assert list(validator.iter_errors(example)) == [], name


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.mark.slow
def test_api_answers_generated_requests_without_server_errors(
    portal: BlockingPortal, url: str, tmp_path: Path, document: dict[str, Any]
) -> None:
    with portal.wrap_async_context_manager(running_api(url, tmp_path)) as service:
        example_counts = _try_all_operations(service, portal, document)
    assert len(example_counts) >= 90, "some operations were not tried"


def _try_all_operations(service: ApiClient, portal: BlockingPortal, document: dict[str, Any]) -> dict[str, int]:
    """Return the number of generated requests for each operation."""
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]  # type: ignore[union-attr]
    deadline = time.monotonic() + TIME_BUDGET_SECONDS
    example_counts: dict[str, int] = {}
    for mode, examples in MODES:
        for operation in found:
            name = f"{operation.method.upper()} {operation.path}"
            if (operation.method.upper(), operation.path) in STREAMING_ROUTES:
                continue
            if name in example_counts and time.monotonic() > deadline:
                return example_counts
            with suppress(Unsatisfiable):  # operations without parameters have no invalid requests
                _try_operation(service, portal, operation.as_strategy(generation_mode=mode), name, examples)
            example_counts[name] = example_counts.get(name, 0) + examples
    return example_counts


def _try_operation(service: ApiClient, portal: BlockingPortal, cases: Any, name: str, examples: int) -> None:
    @given(case=cases)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    def attempt(case: Any) -> None:
        response = portal.call(_send, service, case)
        assert response.status_code < 500, (name, case, response.text)
        if response.status_code >= 400:
            assert response.status_code in REFUSALS, (name, response.status_code)
            assert response.headers["content-type"] == "application/problem+json", (name, case)

    attempt()


async def _send(service: ApiClient, case: Any) -> httpx2.Response:
    sent = case.as_transport_kwargs(base_url=HOST)
    created = requests.Request(**{name: value for name, value in sent.items() if name in REQUEST_OPTIONS}).prepare()
    headers = {name.encode(): str(value).encode("utf-8") for name, value in created.headers.items()}
    headers[b"Authorization"] = f"Bearer {service.keys[Role.ADMIN]}".encode()
    service.client.cookies.clear()
    assert created.method is not None
    assert created.body is None or isinstance(created.body, str | bytes)
    return await service.client.request(created.method, str(created.url), content=created.body, headers=headers)
