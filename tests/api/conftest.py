"""The web service without a socket: the whole application on a fresh database, with one API key for each role."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from jsonschema_rs import Draft202012Validator

from tenuto import Context, PermanentFailure, Tenuto
from tenuto.api.api_route import ApiRoute
from tenuto.api.application import add_middleware, create_api
from tenuto.api.openapi import openapi_document
from tenuto.api.security.authentication import SAFE_METHODS
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings

HOST = "http://localhost"
MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


@dataclass
class ApiClient:
    """HTTP client with an API key for every role."""

    app: Tenuto
    api: FastAPI
    keys: dict[Role, str]
    client: httpx2.AsyncClient

    async def send(self, method: str, path: str, role: Role | None = Role.ADMIN, **options: Any) -> httpx2.Response:
        headers = dict(options.pop("headers", {}))
        if role is not None:
            headers.setdefault("Authorization", f"Bearer {self.keys[role]}")
        response = await self.client.request(method, path, headers=headers, **options)
        check_response_is_documented(self.api, response)
        await check_audited_action_is_documented(self.app, self.api, response)
        return response

    async def get(self, path: str, role: Role | None = Role.ADMIN, **options: Any) -> httpx2.Response:
        return await self.send("GET", path, role, **options)

    async def post(self, path: str, role: Role | None = Role.ADMIN, **options: Any) -> httpx2.Response:
        return await self.send("POST", path, role, **options)

    async def put(self, path: str, role: Role | None = Role.ADMIN, **options: Any) -> httpx2.Response:
        return await self.send("PUT", path, role, **options)

    async def delete(self, path: str, role: Role | None = Role.ADMIN, **options: Any) -> httpx2.Response:
        return await self.send("DELETE", path, role, **options)

    async def get_json(self, path: str, **options: Any) -> Any:
        """Return the body of a GET that must succeed."""
        response = await self.get(path, **options)
        assert response.status_code == 200, (path, response.text)
        return response.json()


def register_jobs(app: Tenuto) -> Tenuto:
    """Register the jobs that the tests use."""

    @app.job
    async def double(n: int) -> int:
        """Return the double."""
        return 2 * n

    @app.job(name="mail/send", queue="mail")
    async def send(to: str, subject: str = "", times: int = 1) -> str:
        return f"{subject} to {to}"

    @app.job(max_attempts=1)
    async def boom(why: str = "no reason") -> None:
        raise PermanentFailure(why)

    @app.job
    async def family(ctx: Context, children: int) -> None:
        ctx.log.info("a family")
        for number in range(children):
            await app.enqueue(double, number)

    return app


@pytest.fixture
async def service(url: str, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with running_api(url, tmp_path) as client:
        yield client


@asynccontextmanager
async def running_api(
    url: str, home: Path, create: Callable[[Tenuto], FastAPI] = create_api, **settings: Any
) -> AsyncIterator[ApiClient]:
    """Run the API, or the whole web application, on a database for the duration of the block."""
    all_settings = load_settings(database=url, home=home, master_key=MASTER_KEY, **settings)
    app = register_jobs(Tenuto(settings=all_settings))
    try:
        keys = {role: (await app.api_keys.create(role.key, role))[1] for role in Role}
        api = create(app)
        transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
        base_url = HOST + all_settings.web_path
        yield ApiClient(app, api, keys, httpx2.AsyncClient(transport=transport, base_url=base_url))
    finally:
        await app.close()


@dataclass
class Documentation:
    """An OpenAPI document and validators of the responses it describes."""

    document: dict[str, Any]
    validators: dict[tuple[str, str, str], Draft202012Validator] = field(default_factory=dict)

    def validator(self, place: tuple[str, str, str], schema: dict[str, Any]) -> Draft202012Validator:
        """Return the validator of a path, method and status."""
        if place not in self.validators:
            self.validators[place] = Draft202012Validator({**schema, "components": self.document["components"]})
        return self.validators[place]


_documentations: dict[object, Documentation] = {}


def _document(api: FastAPI) -> Documentation:
    """Return the documentation of an API. Those with the same routes and step kinds share it: it takes most of a
    second to generate, longer than most tests."""
    app: Tenuto = api.state.tenuto
    routes = tuple(
        (context.path_format, frozenset(context.methods or ()), getattr(context.route, "endpoint", None))
        for context in iter_route_contexts(api.routes)
    )
    step_kinds = app.extension_registry.describe_step_kinds(app.jobs, lambda _, job: job.input_schema())
    key = (routes, json.dumps(step_kinds, sort_keys=True))
    if key not in _documentations:
        _documentations[key] = Documentation(openapi_document(api))
    return _documentations[key]


def check_response_is_documented(api: FastAPI, response: httpx2.Response) -> None:
    """Check that the OpenAPI document describes a response: the code of a problem, or the schema of a result."""
    route = find_route(api, response.request)
    if route is None or response.status_code in (405, 408, 421, 500):
        return
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if media_type == "application/problem+json":
        documented = route.responses.get(response.status_code, {}).get("x-codes", [])
        code = response.json()["code"]
        assert any(fnmatchcase(code, each) for each in documented), (
            f"{route.operation_id} does not document {response.status_code} {code}: {response.text}"
        )
        return
    documentation = _document(api)
    path, status = re.sub(r":name\}", "}", route.path), str(response.status_code)
    described = documentation.document["paths"][path][response.request.method.lower()]["responses"]
    assert status in described, f"{route.operation_id} does not document {status}"
    schema = described[status].get("content", {}).get(media_type, {}).get("schema")
    if media_type == "application/json" and schema is not None:
        validator = documentation.validator((path, response.request.method, status), schema)
        errors = [
            f"{list(error.instance_path)}: {error.message[:300]}" for error in validator.iter_errors(response.json())
        ]
        assert errors == [], f"the response of {route.operation_id} does not match its schema: {errors[:3]}"


async def check_audited_action_is_documented(app: Tenuto, api: FastAPI, response: httpx2.Response) -> None:
    """Check that the audit entries of a request have the action that its route documents."""
    route = find_route(api, response.request)
    if route is None or route.required_role is None or response.request.method in SAFE_METHODS:
        return
    statement = "SELECT DISTINCT action FROM tenuto.audit WHERE request_id = $1"
    rows = await (await app.open()).fetch_all(statement, response.headers["x-request-id"])
    recorded = {row["action"] for row in rows}
    documented = (route.required_role.action, *route.required_role.other_actions)
    assert recorded <= set(documented), (
        f"{route.operation_id} documents the action {' or '.join(documented)}, but wrote {recorded}"
    )


def find_route(api: FastAPI, request: httpx2.Request) -> ApiRoute | None:
    """Return the documented route of a request."""
    raw_path = request.url.raw_path.partition(b"?")[0]
    path = unquote(re.sub(b"%2f", b"%00", raw_path, flags=re.IGNORECASE).decode())
    for context in iter_route_contexts(api.routes):
        route = context.route
        if not isinstance(route, ApiRoute) or not route.include_in_schema:
            continue
        if request.method in (route.methods or ()) and route.path_regex.match(path):
            return route
    return None


def assert_problem(response: httpx2.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Check that a response is a complete problem with this status and code; return its body."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:tenuto:")
    assert problem["code"]
    assert code is None or problem["code"] == code, problem
    assert problem["title"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return problem
