"""Who may use which route: every route says so, and every role is tried on every one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from tenuto import Tenuto
from tenuto.api.application import api
from tenuto.api.strict_route import StrictRoute
from tenuto.model.actors import Role
from tests.api.conftest import Api, problem

OPEN = {
    *(("GET", path) for path in ("/healthz", "/readyz", "/", "/login")),
    *(("POST", path) for path in ("/api/v1/session", "/login")),
}
"""Open to all: signs of life, following a one-time link, and the page that says how to get one."""
UNLESS_SAID = {("GET", "/metrics")}
"""Asks for a key by itself, unless a setting opens it."""
STREAMS = {("GET", "/api/v1/events")}
"""Goes on for as long as one listens."""


def routes(made: FastAPI) -> Iterator[tuple[str, APIRoute]]:
    for route in every_route(made):
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                yield method, route


def every_route(made: FastAPI) -> list[APIRoute]:
    found = [context.route for context in iter_route_contexts(made.routes)]
    return [route for route in found if isinstance(route, APIRoute)]


def test_every_route_says_who_may_use_it_and_as_what_it_goes_on_record() -> None:
    words = set()
    for method, route in routes(api(Tenuto())):
        assert isinstance(route, StrictRoute), f"{method} {route.path} is not read strictly"
        if (method, route.path) in OPEN | UNLESS_SAID:
            continue
        assert route.needs is not None, f"{method} {route.path} does not say who may use it"
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", route.needs.action), route.needs.action
        if method != "GET":
            words.add((route.needs.action, route.path))
        lowest = Role.VIEWER if method == "GET" else Role.OPERATOR
        looks = route.needs.action.endswith(".read") or route.needs.action == "session.close"
        assert route.needs.role >= lowest or looks, f"{method} {route.path} is too open"
    assert len(words) > 40


async def test_each_role_may_do_what_it_may_on_each_route_and_nothing_else(service: Api) -> None:
    tried = 0
    for method, route in routes(service.made):
        if (method, route.path) in OPEN | UNLESS_SAID or not isinstance(route, StrictRoute):
            continue
        assert route.needs is not None
        path = re.sub(r"\{(\w+)(:\w+)?\}", _some_value, route.path)
        nobody = await service.send(method, path, role=None, **_body(method, path))
        problem(nobody, 401)
        assert nobody.headers["www-authenticate"] == "Bearer"
        for role in Role:
            if role >= route.needs.role and (method, route.path) in STREAMS:
                continue
            answer = await service.send(method, path, role=role, **_body(method, path))
            tried += 1
            if role < route.needs.role:
                assert route.needs.role.word in problem(answer, 403)["detail"]
            else:
                assert answer.status_code not in (401, 403), (method, path, role, answer.text)
                assert answer.status_code < 500, (method, path, role, answer.text)
    assert tried > 300


def _some_value(part: re.Match[str]) -> str:
    """Of something that is not there: nothing is to happen here."""
    return "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1" if part[1] == "id" else "nothing"


def _body(method: str, path: str) -> dict[str, Any]:
    if path.endswith("/bulk"):
        return {"content": b"", "headers": {"Content-Type": "application/x-ndjson"}}
    return {"json": {}} if method in ("POST", "PUT") else {}
