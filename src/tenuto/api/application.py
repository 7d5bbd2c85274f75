"""The web application put together: the routers, what guards them, and how errors are told.

All routers, in the order in which they are documented. A new one is added here, and nowhere else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.api import html_pages, problems
from tenuto.api.auth import Needs, Replay, replayed
from tenuto.api.middleware import Guard
from tenuto.api.problems import Problem
from tenuto.api.rate_limit import Rates
from tenuto.api.routes import (
    activities,
    api_keys,
    audit_log,
    batch_submit,
    batches,
    dead_letters,
    events,
    executions,
    introspection,
    logs,
    manifests,
    one_shots,
    plans,
    probes,
    schedules,
    secrets,
    tasks,
    workers,
)
from tenuto.api.strict_route import StrictRoute
from tenuto.app import Tenuto
from tenuto.model.actors import Role
from tenuto.version import __version__

_STREAMS = (re.compile(r"/api/v1/manifests/[^/]+/bulk"),)
"""Where a body may go on for as long as it likes: it is taken in line by line."""


def api(tenuto: Tenuto, routers: Sequence[APIRouter] | None = None) -> FastAPI:
    """The routes, without what stands before them."""
    made = FastAPI(
        title="Tenuto",
        version=__version__,
        summary="A durable scheduler: schedules, executions, tasks, manifests, one-shots.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=problems.described(),
    )
    made.router.route_class = StrictRoute
    made.state.tenuto = tenuto
    made.state.streams = Counter()
    made.state.rates = Rates(tenuto.settings.api_rate)
    problems.install(made)
    made.add_exception_handler(Replay, _replay)
    for router in ROUTERS if routers is None else routers:
        made.include_router(router)
    made.include_router(_document())
    return made


def guarded(tenuto: Tenuto, inner: FastAPI) -> ASGIApp:
    """The application behind its guards."""
    return Guard(_Packed(inner), tenuto.settings.web_hosts, _STREAMS)


class _Packed:
    """Answers to those who look are packed, if they are long; what a change is answered with is short."""

    def __init__(self, inner: ASGIApp) -> None:
        self._plain = inner
        self._packing = GZipMiddleware(inner, minimum_size=1024)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        looks = scope["type"] == "http" and scope["method"] == "GET"
        await (self._packing if looks else self._plain)(scope, receive, send)


async def _replay(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Replay)
    return replayed(error)


def _document() -> APIRouter:
    """The OpenAPI document, for those who may look."""
    router = APIRouter(route_class=StrictRoute, tags=["about"])

    @router.get("/api/v1/openapi.json", dependencies=[Depends(Needs(Role.VIEWER, "openapi.read"))])
    async def openapi(request: Request) -> JSONResponse:
        """This document."""
        return JSONResponse(describe(request.app))

    return router


def describe(made: FastAPI) -> dict[str, object]:
    """The OpenAPI document."""
    if made.openapi_schema is None:
        schema = get_openapi(
            title=made.title, version=made.version, summary=made.summary, routes=made.routes, openapi_version="3.1.0"
        )
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = Problem.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        definitions = components["schemas"]["Problem"].pop("$defs", {})
        components["schemas"].update(definitions)
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}]
        made.openapi_schema = schema
    return made.openapi_schema


ROUTERS = (
    probes.router,
    one_shots.router,
    logs.router,
    schedules.router,
    executions.router,
    tasks.router,
    activities.router,
    manifests.router,
    batch_submit.router,
    batches.router,
    dead_letters.router,
    plans.router,
    workers.router,
    events.router,
    introspection.router,
    api_keys.router,
    secrets.router,
    audit_log.router,
    html_pages.router,
)
