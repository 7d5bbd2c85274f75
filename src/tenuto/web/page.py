"""Pages as routes: authorization like the API, redirect to the login, errors as pages, one way to render.

A view module has a router with `PageRoute`. Its functions load a model by operations and return `PageView.render(…)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment
from starlette.exceptions import HTTPException

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, RequiredRole
from tenuto.api.problems import Problem, Refused, describe_error
from tenuto.app import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.errors import TenutoError
from tenuto.model.actors import Role
from tenuto.web.assets import Assets
from tenuto.web.elements import Elements
from tenuto.web.filters import FilteredList
from tenuto.web.links import Links
from tenuto.web.navigation import Group
from tenuto.web.rendering import HEADERS, PARTS_HEADER, entity_tag, html_response, render_parts
from tenuto.web.route_table import RouteTable
from tenuto.web.times import Times
from tenuto.web.view_cache import ViewCache
from tenuto.web.viewer import Viewer, read_viewer

T = TypeVar("T")


@dataclass(slots=True)
class Dashboard:
    """What all pages of one application share; ``api.state.dashboard``."""

    environment: Environment
    assets: Assets
    links: Links
    cache: ViewCache
    simulations: ViewCache
    """Simulated runs, which are expensive and change only with the definitions of schedules."""
    routes: RouteTable
    navigation: tuple[Group, ...]
    load_counts: Callable[[Tenuto], Awaitable[Any]]


class PageRole(RequiredRole):
    """Dependency of a page: the role that it requires."""


def page_role(role: Role, action: str) -> Any:
    """Return the dependency of a page on a role."""
    return Depends(PageRole(role, action))


Reader = Annotated[ApiCall, page_role(Role.VIEWER, "page.read")]
"""The viewer of a page that every role may see."""


class PageView:
    """One request for a page."""

    def __init__(self, request: Request, call: ApiCall) -> None:
        self.request = request
        self.app = call.app
        """Operations on behalf of the viewer."""
        self.dashboard: Dashboard = request.app.state.dashboard
        self.links = self.dashboard.links
        self.viewer: Viewer = read_viewer(request, call.caller.actor.name, call.caller.role)
        self._started = monotonic_seconds()

    async def shared(self, key: Hashable, load: Callable[[Tenuto], Awaitable[T]]) -> T:
        """Return a model that all roles may see, computed once per second for all viewers."""
        app: Tenuto = self.request.app.state.tenuto
        return await self.dashboard.cache.get(key, lambda: load(app))

    async def render(
        self,
        template: str,
        model: Any,
        *,
        title: str,
        current: str,
        modules: Sequence[str] = (),
        status: int = 200,
        icon: str = "",
    ) -> Response:
        """Return the page, or only the parts that the request names.

        ``current`` is the path of the entry of the sidebar, ``modules`` are the scripts of the page besides those of
        the layout, ``icon`` is the status in the title of the tab.
        """
        dashboard, request = self.dashboard, self.request
        now = (await self.app.open()).clock.now()
        counts = await self.shared("counts", dashboard.load_counts)
        times = Times(now, self.viewer.zone_name)
        context = {
            "x": model,
            "ui": Elements(self.links, times, self.viewer, dashboard.routes),
            "links": self.links,
            "viewer": self.viewer,
            "now": now,
            "counts": counts,
            "navigation": dashboard.navigation,
            "settings": self.app.settings,
            "version": dashboard.assets.version,
            "page": {"title": title, "current": current, "modules": modules, "icon": icon},
            "path": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        }
        loaded = dashboard.environment.get_template(template)
        headers = {
            "Tenuto-Now": str(int(now.timestamp() * 1000)),
            "Tenuto-Version": dashboard.assets.version,
            "Server-Timing": f"page;dur={(monotonic_seconds() - self._started) * 1000:.1f}",
        }
        asked = request.headers.get(PARTS_HEADER)
        if asked is None:
            return html_response(loaded.render(context).encode(), status, headers)
        names = [name.strip() for name in asked[:500].split(",")]
        body = render_parts(dashboard.environment, loaded, names, context).encode()
        tag = entity_tag(body)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**HEADERS, **headers, "ETag": tag})
        return html_response(body, status, headers, tag)

    async def render_list(self, template: str, model: FilteredList[Any], *, title: str, current: str) -> Response:
        """Return the page of a list; with the status 422 if its filter is wrong."""
        status = 200 if model.bar.error is None else 422
        return await self.render(template, model, title=title, current=current, status=status)


class PageRoute(ApiRoute):
    """Route of a page: redirects browsers without a session to the login, and shows errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused as refused:
                if refused.status_code == 401 and is_browser_navigation(request):
                    return redirect_to_login(request)
                if refused.status_code == 403 and wants_html(request):
                    return await error_page(request, refused)
                raise
            except (TenutoError, RequestValidationError, HTTPException) as error:
                if not wants_html(request):
                    raise
                return await error_page(request, error)

        return handle_page


def redirect_to_login(request: Request) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return redirect(f"/login?next={quote(target, safe='')}")


def redirect(path: str) -> Response:
    return Response(status_code=303, headers={"Location": path, **HEADERS})


def wants_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "").lower() or PARTS_HEADER in request.headers


def is_browser_navigation(request: Request) -> bool:
    return (
        request.method == "GET"
        and "text/html" in request.headers.get("accept", "").lower()
        and "authorization" not in request.headers
        and PARTS_HEADER not in request.headers
    )


async def error_page(request: Request, error: Exception) -> Response:
    """Return an error as a page: what is wrong, the remedy, and the id of the request."""
    problem: Problem = describe_error(error)
    problem.request_id = request.scope.get("tenuto_request_id")
    dashboard: Dashboard = request.app.state.dashboard
    template = dashboard.environment.get_template("error.html")
    headers = dict(getattr(error, "headers", None) or {})
    context = {
        "problem": problem,
        "links": dashboard.links,
        "version": dashboard.assets.version,
        "viewer": read_viewer(request, "", Role.VIEWER),
        "settings": request.app.state.tenuto.settings,
    }
    return html_response(template.render(context).encode(), problem.status, headers)
