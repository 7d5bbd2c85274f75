"""The web application: the API with the pages of the dashboard and its static files.

A new view module is added to `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException

from tenuto.api.api_route import ApiRoute
from tenuto.api.application import add_own_routes, create_api
from tenuto.api.problems import handle_http_error
from tenuto.app import Tenuto
from tenuto.web.assets import FOLDER, Assets, asset_response
from tenuto.web.components.links import Links
from tenuto.web.extension_pages import ExtensionPages, ExtensionPanels, TemplateRenderer, merge_groups
from tenuto.web.navigation import load_counts, visible_groups
from tenuto.web.page import Dashboard, PageRoute, error_page, wants_html
from tenuto.web.rendering import create_environment
from tenuto.web.route_table import RouteTable
from tenuto.web.shared_renderings import SharedRenderings
from tenuto.web.view_cache import ViewCache
from tenuto.web.views import (
    access,
    api_reference,
    approval_links,
    login,
    manifest_editor,
    manifests,
    overview,
    record_lists,
    schedule_editor,
    schedules,
    timeline,
    workers_and_queues,
)
from tenuto.web.views.work import (
    bulk_operations,
    dead_letters,
    execution,
    execution_comparison,
    executions,
    tasks,
)

SIMULATION_VALID_SECONDS = 60.0

VIEWS = (
    login.router,
    approval_links.router,
    overview.router,
    timeline.router,
    executions.router,
    execution_comparison.router,
    execution.router,
    schedule_editor.router,
    schedules.router,
    tasks.router,
    dead_letters.router,
    workers_and_queues.router,
    bulk_operations.router,
    manifest_editor.router,
    manifests.router,
    record_lists.router,
    access.router,
    api_reference.router,
)

_static_router = APIRouter(route_class=ApiRoute, include_in_schema=False)


@_static_router.get("/static/{version}/{path:path}")
async def get_static_file(request: Request, version: str, path: str) -> Response:
    """Return a static file of the dashboard."""
    dashboard: Dashboard = request.app.state.dashboard
    return asset_response(dashboard.assets.find(version, path), request.headers.get("accept-encoding", ""))


def create_web_application(tenuto: Tenuto, *, reload: bool = False) -> FastAPI:
    """Return the application without its middleware. With ``reload``, changed templates and files are read again."""
    api = create_api(tenuto)
    add_own_routes(api, (*VIEWS, _static_router))
    paths = {
        context.path_format or ""
        for context in iter_route_contexts(api.routes)
        if isinstance(context.route, PageRoute) and "GET" in (context.methods or ())
    }
    registry = tenuto.extension_registry
    assets = [(each.extension.name, each.value) for each in registry.page_assets()]
    environment = create_environment({name: each.templates for name, each in assets}, reload=reload)
    renderer = TemplateRenderer(registry)
    pages = ExtensionPages(registry, renderer, paths | {"/api/", "/static/", "/healthz", "/readyz", "/metrics"})
    api.include_router(pages.router)
    folders = [("", FOLDER), *((f"{name}/", each.static) for name, each in assets if each.static is not None)]
    api.state.dashboard = Dashboard(
        environment=environment,
        assets=Assets(folders, reload=reload),
        links=Links(tenuto.settings.web_path),
        cache=ViewCache(),
        simulations=ViewCache(SIMULATION_VALID_SECONDS),
        renderings=SharedRenderings(),
        routes=RouteTable(api),
        navigation=merge_groups(visible_groups(paths), pages.groups),
        load_counts=load_counts,
        panels=ExtensionPanels(registry, environment, renderer),
    )
    api.add_exception_handler(HTTPException, _show_http_error)
    return api


async def _show_http_error(request: Request, error: Exception) -> Response:
    """Show an unknown address as a page to browsers, and as a problem to programs."""
    show: Callable[[Request, Exception], Awaitable[Response]] = handle_http_error
    is_unknown_page = getattr(error, "status_code", 0) == 404 and not request.url.path.startswith("/api/")
    if is_unknown_page and request.method == "GET" and wants_html(request):
        show = error_page
    return await show(request, error)
