"""The web application: FastAPI with all routers, error handlers and the OpenAPI document, behind the middleware.

A new router is added to `ROUTERS`, which is also the order of the documentation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.api.api_route import ApiRoute
from tenuto.api.extension_routes import include_extension_routers
from tenuto.api.openapi import describe, openapi_document
from tenuto.api.problems import install_error_handlers
from tenuto.api.replica_reads import create_replica_reads
from tenuto.api.routes import (
    batches,
    dead_letters,
    event_stream,
    executions,
    manifests,
    plans,
    reports,
    schedules,
    tasks,
    workers_and_queues,
)
from tenuto.api.routes.admin import access, api_keys, audit_log, secrets, service_info
from tenuto.api.security.authentication import ApiCall, ReplayedResponse, requires
from tenuto.api.security.middleware import RequestMiddleware
from tenuto.api.security.rate_limit import RateLimiter
from tenuto.app import Tenuto
from tenuto.model.access.actors import Role
from tenuto.version import __version__

COMPRESSION_LEVEL = 5
"""Measured on pages: the highest level takes twice the time and saves 3 to 6 %."""
_UNBOUNDED_BODY_PATHS = (re.compile(r"/api/v1/manifests/[^/]+/bulk"),)
"""Paths without a limit on the body: the route reads it line by line."""

_openapi_router = APIRouter(route_class=ApiRoute, tags=["about"])


@_openapi_router.get(
    "/api/v1/openapi.json", operation_id="service_openapi", response_model=dict[str, Any], responses=describe({})
)
async def get_openapi_document(
    request: Request, _call: Annotated[ApiCall, requires(Role.VIEWER, "openapi.read")]
) -> JSONResponse:
    """Get the OpenAPI document."""
    return JSONResponse(openapi_document(request.app))


ROUTERS = (
    service_info.probe_router,
    schedules.router,
    executions.router,
    tasks.router,
    tasks.activity_router,
    manifests.router,
    batches.submit_router,
    batches.router,
    dead_letters.router,
    plans.router,
    workers_and_queues.router,
    reports.router,
    event_stream.router,
    service_info.router,
    api_keys.router,
    access.router,
    secrets.router,
    audit_log.router,
    _openapi_router,
)


def create_api(tenuto: Tenuto) -> FastAPI:
    """Return the application without its middleware."""
    api = FastAPI(
        title="Tenuto",
        version=__version__,
        summary="A durable scheduler: schedules, executions, tasks, manifests, one-shots.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.router.route_class = ApiRoute
    api.state.tenuto = tenuto
    api.state.event_streams = Counter()
    api.state.described_models = (event_stream.ServerSentEvent,)
    api.state.rate_limiter = RateLimiter(tenuto.settings.api_rate_limit)
    api.state.replica_reads = create_replica_reads(tenuto)
    install_error_handlers(api)
    api.add_exception_handler(ReplayedResponse, _replay_response)
    add_own_routes(api, ROUTERS)
    include_extension_routers(api, tenuto.extension_registry, ROUTERS)
    return api


def add_own_routes(api: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Add routes as they are. `FastAPI.include_router` would build each of them again, for 0.3 s of CPU in all."""
    api.router.routes.extend(route for router in routers for route in router.routes)


async def _replay_response(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ReplayedResponse)
    return error.to_response()


def add_middleware(tenuto: Tenuto, api: FastAPI) -> ASGIApp:
    """Return the application with its middleware."""
    settings = tenuto.settings
    return RequestMiddleware(_CompressedReads(api), settings.web_hosts, _UNBOUNDED_BODY_PATHS, settings.web_path)


class _CompressedReads:
    """Compress long responses to GET; responses to changes are short."""

    def __init__(self, inner: ASGIApp) -> None:
        self._plain = inner
        self._compressed = GZipMiddleware(inner, minimum_size=1024, compresslevel=COMPRESSION_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = scope["type"] == "http" and scope["method"] == "GET"
        await (self._compressed if is_read else self._plain)(scope, receive, send)
