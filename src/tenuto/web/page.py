"""Pages as routes: authorization like the API, redirect to the login, errors as pages, one way to render.

A view module has a router with `PageRoute`. Its functions load a model by operations and return `PageView.render(…)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import quote
from uuid import UUID

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, Template
from starlette.exceptions import HTTPException

from tenuto.api.api_route import ApiRoute
from tenuto.api.problems import Problem, Refused, describe_error
from tenuto.api.replica_reads import MAX_AGE_HEADER, replica_reads
from tenuto.api.routes.event_stream import format_instant
from tenuto.api.security.authentication import ApiCall, RequiredRole
from tenuto.app import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.errors import StoreError, TenutoError
from tenuto.extension import StepSubject
from tenuto.model.access.actors import Role
from tenuto.settings import Settings
from tenuto.web.assets import Assets
from tenuto.web.components.extension_kit import Kit
from tenuto.web.components.filters import FilteredList
from tenuto.web.components.html_elements import Elements
from tenuto.web.components.links import Links
from tenuto.web.components.times import Times
from tenuto.web.navigation import Group
from tenuto.web.rendering import HEADERS, PARTS_HEADER, html_response, list_parts, render_part
from tenuto.web.route_table import RouteTable
from tenuto.web.shared_renderings import PartsAnswer, Renderings, SharedRenderings
from tenuto.web.view_cache import ViewCache
from tenuto.web.viewer import Viewer, read_viewer

T = TypeVar("T")

NEXT_COOKIE = "tenuto_next"
"""The page that a browser without a session asked for."""
_NEXT_SECONDS = 600
_MAX_NEXT_LENGTH = 2000
_SIMILAR_LENGTH, _SIMILAR_COUNT = 8, 5

LIST_MODULES = ("filter", "select")
"""Scripts of pages with a filter and rows that can be selected."""


@dataclass(frozen=True, slots=True)
class LoadedPanels:
    """The panels of extensions on one page."""

    topics: str | None
    """Topics that make them load again; None if no extension has a panel for the page."""
    cards: Sequence[Any]


NO_PANELS = LoadedPanels(None, ())
_MAX_AGE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Where the data of a page comes from, if the installation has a read replica."""

    text: str
    details: str


class PanelSource(Protocol):
    """Loads panels of extensions."""

    def has(self, place: str) -> bool:
        """Return whether an extension has a panel for a place."""

    async def load(self, view: PageView, place: str, subject: Any, context: Mapping[str, Any]) -> LoadedPanels:
        """Return the panels of a place that the viewer may see."""


RenderText = Callable[[Callable[[], str]], Awaitable[str]]
"""Runs the function that renders a template."""


@dataclass(slots=True)
class Dashboard:
    """State that all pages of one application share; ``api.state.dashboard``."""

    environment: Environment
    assets: Assets
    links: Links
    cache: ViewCache
    simulations: ViewCache
    """Simulated runs, which are expensive and change only with the definitions of schedules."""
    renderings: SharedRenderings
    routes: RouteTable
    navigation: tuple[Group, ...]
    load_counts: Callable[[Tenuto], Awaitable[Any]]
    panels: PanelSource


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
        self.replica = call.replica
        caller = call.caller
        self.viewer: Viewer = read_viewer(request, caller.actor.name, caller.role, is_initial_key=caller.is_initial_key)
        self._started = monotonic_seconds()
        self._shared_models: list[object] = []

    async def shared(self, key: Hashable, load: Callable[[Tenuto], Awaitable[T]]) -> T:
        """Return a model that all roles may see, computed once per change for all live pages that show it."""
        app: Tenuto = self.request.app.state.tenuto
        staleness = 0.0
        if self.replica is not None:
            app, staleness = app.reading_from(self.replica.database), self.replica.staleness_seconds
        model = await self.dashboard.cache.get(
            key, lambda: load(app), read_max_age(self.request), staleness_seconds=staleness
        )
        self._shared_models.append(model)
        return model

    def _describe_source(self) -> ReadSource | None:
        reads = replica_reads(self.request.app)
        if reads is None:
            return None
        if self.replica is not None:
            seconds = ceil(self.replica.staleness_seconds)
            return ReadSource(f"replica, up to {seconds} s old", "This page was read from the read replica")
        if reads.replica.problem is not None:
            return ReadSource("replica not used", f"This page was read from the primary: {reads.replica.problem}")
        return ReadSource("primary", "This page was read from the primary, which has the newest changes")

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
        topics: str = "",
        place: str = "",
        subject: Any = None,
        step_subject: StepSubject | None = None,
        render_text: RenderText | None = None,
    ) -> Response:
        """Return the page, or only the parts that the request names.

        ``current`` is the path of the entry of the sidebar, ``modules`` are the scripts of the page besides those of
        the layout, ``icon`` is the status in the title of the tab, ``topics`` are those of a page of an extension.
        Extensions add panels for ``place``, about ``subject``, and for the selected step, ``step_subject``.
        ``render_text`` renders the template in another way than at once.
        """
        dashboard, request = self.dashboard, self.request
        now = (await self.app.open()).clock.now()
        counts = await self.shared("counts", dashboard.load_counts)
        loaded = dashboard.environment.get_template(template)
        asked = request.headers.get(PARTS_HEADER)
        names = [name.strip() for name in (asked or "")[:500].split(",")]
        names = list_parts(dashboard.environment, loaded, names)
        is_shared = asked is not None and any(model is each for each in self._shared_models)
        viewer = replace(self.viewer, name="") if is_shared else self.viewer
        page = {"title": title, "current": current, "modules": modules, "icon": icon, "topics": topics}
        context = self._template_context(model, page, counts, now, viewer)
        shows_panels, shows_step = (asked is None or part in names for part in ("panels", "inspector"))
        context["panels"] = await self._load_panels(place if shows_panels else "", subject, context)
        step_place = f"step:{step_subject.kind}" if step_subject is not None and shows_step else ""
        context["step_panels"] = await self._load_panels(step_place, step_subject, context)
        if asked is None:
            render = partial(loaded.render, context)
            body = (render() if render_text is None else await render_text(render)).encode()
            return html_response(body, status, self._response_headers(now, context["code_version"]))
        render_one = partial(self._render_part, loaded, context)
        if render_text is not None:
            answer = PartsAnswer([await render_text(lambda: "\n".join(map(render_one, names)))])
        else:
            renderings = Renderings(())
            if is_shared:
                # guard: web.rendering_for_this_viewer
                key = (template, context["path"], viewer, title, icon, context["code_version"])
                renderings = dashboard.renderings.find(key, model, counts)
            answer = renderings.answer(names, render_one, _unshared_parts(context))
        return answer.to_response(
            status,
            HEADERS | self._response_headers(now, context["code_version"]),
            request.headers.get("if-none-match"),
            request.headers.get("accept-encoding", ""),
        )

    def _render_part(self, template: Template, context: dict[str, Any], name: str) -> str:
        return render_part(self.dashboard.environment, template, name, context)

    def _template_context(
        self, model: Any, page: Mapping[str, Any], counts: Any, now: datetime, viewer: Viewer
    ) -> dict[str, Any]:
        dashboard, url = self.dashboard, self.request.url
        shows_changes_until = self._started if self.replica is None else min(self._started, self.replica.current_at)
        context: dict[str, Any] = {
            "x": model,
            "ui": Elements(self.links, Times(now, viewer.zone_name), viewer, dashboard.routes),
            "links": self.links,
            "viewer": viewer,
            "now": now,
            # The event stream begins with the changes since then.
            "loaded_at": format_instant(now - timedelta(seconds=monotonic_seconds() - shows_changes_until)),
            "source": self._describe_source(),
            "counts": counts,
            "navigation": dashboard.navigation,
            "settings": self.app.settings,
            "version": dashboard.assets.version,
            "code_version": dashboard.assets.code_version,
            "page": page,
            "path": url.path + (f"?{url.query}" if url.query else ""),
        }
        # A copy: in a reference cycle, the whole model of the page would wait for a garbage collection.
        context["kit"] = Kit(dashboard.environment, dict(context))
        return context

    def _response_headers(self, now: datetime, code_version: str | None) -> dict[str, str]:
        headers = {
            "Tenuto-Now": str(int(now.timestamp() * 1000)),
            "Tenuto-Version": self.dashboard.assets.version,
            "Server-Timing": f"page;dur={(monotonic_seconds() - self._started) * 1000:.1f}",
        }
        if code_version is not None:
            headers["Tenuto-Code"] = code_version
        return headers

    async def _load_panels(self, place: str, subject: Any, context: Mapping[str, Any]) -> LoadedPanels:
        panels = self.dashboard.panels
        if not place or not panels.has(place):
            return NO_PANELS
        return await panels.load(self, place, subject, {**context, "viewer": self.viewer})

    async def render_list(self, template: str, model: FilteredList[Any], *, title: str, current: str) -> Response:
        """Return the page of a list; with the status 422 if its filter is wrong."""
        status = 200 if model.bar.error is None else 422
        return await self.render(template, model, title=title, current=current, status=status, modules=LIST_MODULES)


def _unshared_parts(context: Mapping[str, Any]) -> set[str]:
    """Return the parts that each viewer gets rendered for itself: what extensions show may depend on the person, and
    the age of a replica is that of this request."""
    own = {"panels": context["panels"], "inspector": context["step_panels"]}
    unshared = {part for part, found in own.items() if found is not NO_PANELS}  # guard: web.unshared_panels
    return unshared if context["source"] is None else {*unshared, "source"}


_PRIMARY_PAGES = ("/new", "/edit", "/account", "/settings")
"""Endings of pages that are read from the primary: forms that change the newest version, and the own sessions."""


class PageRoute(ApiRoute):
    """Route of a page: redirects browsers without a session to the login, and shows errors as pages."""

    @property
    def may_read_replica(self) -> bool:
        role = self.required_role
        is_read = "GET" in (self.methods or ()) and role is not None and role.role < Role.ADMIN
        return is_read and not self.path.endswith(_PRIMARY_PAGES)

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
    """Redirect to the login. A cookie remembers the page too, for a login link that is opened in the same browser."""
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    response = redirect(f"/login?next={quote(target, safe='')}")
    settings: Settings = request.app.state.tenuto.settings
    response.set_cookie(
        NEXT_COOKIE,
        quote(target, safe="")[:_MAX_NEXT_LENGTH],
        max_age=_NEXT_SECONDS,
        path=f"{settings.web_path}/login",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return response


def redirect(path: str) -> Response:
    return Response(status_code=303, headers={"Location": path, **HEADERS})


def read_max_age(request: Request) -> float | None:
    """Return how old a model may be, in seconds; None is as old as the cache allows.

    A page that is opened shows the state at ``loaded_at`` or later; its event stream begins with the changes since.
    """
    if PARTS_HEADER not in request.headers:
        return 0.0
    text = request.headers.get(MAX_AGE_HEADER, "")
    return int(text) / 1000 if text.isascii() and text.isdigit() and len(text) <= _MAX_AGE_DIGITS else None


def wants_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "").lower() or PARTS_HEADER in request.headers


def is_browser_navigation(request: Request) -> bool:
    return (
        request.method == "GET"
        and "text/html" in request.headers.get("accept", "").lower()
        and not request.headers.get("authorization", "").lower().startswith("bearer")
        and PARTS_HEADER not in request.headers
    )


async def error_page(request: Request, error: Exception) -> Response:
    """Return an error as a page: what is wrong, the remedy, and the id of the request."""
    problem: Problem = describe_error(error)
    problem.request_id = request.scope.get("tenuto_request_id")
    dashboard: Dashboard = request.app.state.dashboard
    template = dashboard.environment.get_template("error.html")
    headers = dict(getattr(error, "headers", None) or {})
    missing = None
    if problem.status == 404:
        with suppress(StoreError):  # the page says less if the database cannot be queried
            missing = await find_similar(request)
    context = {
        "problem": problem,
        "missing": missing,
        "links": dashboard.links,
        "version": dashboard.assets.version,
        "viewer": read_viewer(request, "", Role.VIEWER),
        "settings": request.app.state.tenuto.settings,
    }
    return html_response(template.render(context).encode(), problem.status, headers)


@dataclass(frozen=True, slots=True)
class MissingObject:
    """What is known of an object that does not exist."""

    created_at: datetime | None
    """When its id was created; None if the id does not say so."""
    is_past_retention: bool
    similar: Sequence[tuple[str, str, str]]
    """Kind, name and address of objects whose id begins like the one asked for."""


async def find_similar(request: Request) -> MissingObject | None:
    """Return what is known of the id in the address; None if it has none. Ids begin with the time of their creation."""
    try:
        id = UUID(str(request.path_params.get("id", "")))
    except ValueError:
        return None
    app: Tenuto = request.app.state.tenuto
    links: Links = request.app.state.dashboard.links
    now = (await app.open()).clock.now()
    created = datetime.fromtimestamp((id.int >> 80) / 1000, UTC) if id.version == 7 else None
    if created is not None and created > now:
        created = None
    is_old = created is not None and now - created > timedelta(days=app.settings.retention_days)
    pages = {"execution": links.execution, "task": links.task, "activity": links.activity, "batch": links.batch}
    hits = await app.reports.search(str(id)[:_SIMILAR_LENGTH], limit=_SIMILAR_COUNT)
    similar = [(each.kind, each.name, pages[each.kind](each.id)) for each in hits if each.kind in pages and each.id]
    return MissingObject(created, is_old, similar)
