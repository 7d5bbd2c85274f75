"""Access control: every route declares its role, and every role is request_count on every route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from tenuto import Tenuto
from tenuto.api.api_route import ApiRoute
from tenuto.api.application import create_api
from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem

OPEN_ROUTES = {
    *(("GET", path) for path in ("/healthz", "/readyz")),
    ("POST", "/api/v1/session"),
    ("POST", "/api/v1/invitations/accept"),
}
"""Open to all: probes, and login with a one-time link."""
OPTIONALLY_OPEN_ROUTES = {("GET", "/metrics")}
"""Requires a key unless a setting opens it."""
STREAMING_ROUTES = {("GET", "/api/v1/events")}
"""Responses without an end."""


def list_methods_and_routes(api: FastAPI) -> Iterator[tuple[str, APIRoute]]:
    for route in list_routes(api):
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                yield method, route


def list_routes(api: FastAPI) -> list[APIRoute]:
    found = [context.route for context in iter_route_contexts(api.routes)]
    return [route for route in found if isinstance(route, APIRoute)]


def test_every_route_declares_its_role_and_audit_action() -> None:
    actions = set()
    for method, route in list_methods_and_routes(create_api(Tenuto())):
        assert isinstance(route, ApiRoute), f"{method} {route.path} is not a ApiRoute"
        if (method, route.path) in OPEN_ROUTES | OPTIONALLY_OPEN_ROUTES:
            continue
        assert route.required_role is not None, f"{method} {route.path} declares no role"
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", route.required_role.action), route.required_role.action
        if method != "GET":
            actions.add((route.required_role.action, route.path))
        lowest = Role.VIEWER if method == "GET" else Role.OPERATOR
        is_own = route.required_role.action == "session.close" or route.path.startswith("/api/v1/account/")
        decides_itself = route.required_role.action in ("approval.approve", "approval.reject")  # names its approvers
        is_read = route.required_role.action.endswith(".read")
        assert route.required_role.role >= lowest or is_read or is_own or decides_itself, (
            f"{method} {route.path} is too open"
        )
    assert len(actions) > 40


async def test_each_role_can_use_exactly_the_routes_of_its_level(service: ApiClient) -> None:
    request_count = 0
    for method, route in list_methods_and_routes(service.api):
        if (method, route.path) in OPEN_ROUTES | OPTIONALLY_OPEN_ROUTES or not isinstance(route, ApiRoute):
            continue
        assert route.required_role is not None
        path = re.sub(r"\{(\w+)(:\w+)?\}", _unknown_id, route.path)
        anonymous = await service.send(method, path, role=None, **_body(method, path))
        assert_problem(anonymous, 401, "auth.missing")
        assert anonymous.headers["www-authenticate"] == "Bearer"
        for role in Role:
            if role >= route.required_role.role and (method, route.path) in STREAMING_ROUTES:
                continue
            response = await service.send(method, path, role=role, **_body(method, path))
            request_count += 1
            if role < route.required_role.role:
                assert_problem(response, 403, "auth.role.insufficient")
            else:
                assert response.status_code not in (401, 403), (method, path, role, response.text)
                assert response.status_code < 500, (method, path, role, response.text)
    assert request_count > 300


def _unknown_id(part: re.Match[str]) -> str:
    """Return an id or name that does not exist, so that nothing changes."""
    return "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1" if part[1] == "id" else "nothing"


def _body(method: str, path: str) -> dict[str, Any]:
    if path.endswith("/bulk"):
        return {"content": b"", "headers": {"Content-Type": "application/x-ndjson"}}
    return {"json": {}} if method in ("POST", "PUT") else {}
