"""The OpenAPI document is valid and complete, and whatever is made up from it is answered: never with a 5xx.

Requests are made up by schemathesis, some that fit the document and some that do not, for as long as there is time.
"""

from __future__ import annotations

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
from tenuto.api.application import api, describe
from tenuto.model.actors import Role
from tests.api.conftest import HOST, Api, serving
from tests.api.test_access import STREAMS, every_route

SECONDS = 22.0
ROUNDS = (
    (GenerationMode.POSITIVE, 1),
    (GenerationMode.NEGATIVE, 2),
    (GenerationMode.POSITIVE, 8),
    (GenerationMode.NEGATIVE, 20),
)
SENT = ("method", "url", "headers", "params", "json", "data", "files", "cookies")
REFUSALS = (400, 401, 403, 404, 405, 409, 413, 415, 422, 429)


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe(api(Tenuto()))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_the_document_is_valid_and_every_operation_is_explained(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r"'\$ref': '([^']+)'", repr(document))) <= known
    ids = []
    for method, path, operation in operations(document):
        ids.append(operation["operationId"])
        assert operation.get("description") or operation.get("summary"), (method, path)
        assert operation["tags"], (method, path)
        for body in operation.get("requestBody", {}).get("content", {}).values():
            assert _has_example(document, body), f"{method} {path} shows no example of its body"
    assert len(set(ids)) == len(ids)


def _has_example(document: dict[str, Any], body: dict[str, Any]) -> bool:
    text = repr(body)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        text += repr(document["components"]["schemas"][name])
    return "'example" in text


def test_the_document_has_every_route(document: dict[str, Any]) -> None:
    told = {path for _, path, _ in operations(document)}
    made = {re.sub(r":\w+\}", "}", route.path) for route in every_route(api(Tenuto())) if route.include_in_schema}
    assert made == told


def test_examples_of_bodies_are_accepted_as_far_as_they_can_be(document: dict[str, Any]) -> None:
    """An example that its own schema refuses helps nobody."""
    for name, schema in document["components"]["schemas"].items():
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for example in schema.get("examples", []):
            assert list(validator.iter_errors(example)) == [], name


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


def test_no_request_made_up_from_the_document_breaks_anything(
    portal: BlockingPortal, url: str, tmp_path: Path, document: dict[str, Any]
) -> None:
    block = serving(url, tmp_path)
    service = portal.call(block.__aenter__)
    try:
        tried = _try_all(service, portal, document)
    finally:
        portal.call(block.__aexit__)
    assert len(tried) >= 90, "every operation was tried"


def _try_all(service: Api, portal: BlockingPortal, document: dict[str, Any]) -> dict[str, int]:
    """How often each operation was tried."""
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]  # type: ignore[union-attr]
    deadline = time.monotonic() + SECONDS
    tried: dict[str, int] = {}
    for mode, examples in ROUNDS:
        for operation in found:
            what = f"{operation.method.upper()} {operation.path}"
            if (operation.method.upper(), operation.path) in STREAMS:
                continue
            if what in tried and time.monotonic() > deadline:
                return tried
            with suppress(Unsatisfiable):  # where nothing can be said, nothing can be said wrong
                _attempt(service, portal, operation.as_strategy(generation_mode=mode), what, examples)
            tried[what] = tried.get(what, 0) + examples
    return tried


def _attempt(service: Api, portal: BlockingPortal, cases: Any, what: str, examples: int) -> None:
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
        answer = portal.call(_send, service, case)
        assert answer.status_code < 500, (what, case, answer.text)
        if answer.status_code >= 400:
            assert answer.status_code in REFUSALS, (what, answer.status_code)
            assert answer.headers["content-type"] == "application/problem+json", (what, case)

    attempt()


async def _send(service: Api, case: Any) -> httpx2.Response:
    sent = case.as_transport_kwargs(base_url=HOST)
    made = requests.Request(**{name: value for name, value in sent.items() if name in SENT}).prepare()
    headers = {name.encode(): str(value).encode("utf-8") for name, value in made.headers.items()}
    headers[b"Authorization"] = f"Bearer {service.keys[Role.ADMIN]}".encode()
    service.client.cookies.clear()
    assert made.method is not None
    assert made.body is None or isinstance(made.body, str | bytes)
    return await service.client.request(made.method, str(made.url), content=made.body, headers=headers)
