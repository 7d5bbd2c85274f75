"""Pages and panels of extensions: loaded and rendered with time limits, their errors shown in their own place.

The code of an extension gets the operations of its viewer and returns a model. An error of the code or of a template
replaces the page or the panel by a card that names the extension. Everything else of the page works.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from jinja2 import Environment
from markupsafe import Markup

from tenuto.api.security.authentication import ApiCall
from tenuto.clock import monotonic_seconds
from tenuto.errors import EngineError, Invalid, TenutoError, Unavailable, UserError
from tenuto.extension import Contribution, Extension, Page, PageRequest, Panel
from tenuto.extension.registry import ExtensionRegistry, resolve_target
from tenuto.model.access.actors import Role
from tenuto.web.components.extension_kit import Kit
from tenuto.web.navigation import Entry, Group
from tenuto.web.page import LoadedPanels, PageRoute, PageView, page_role

PANEL_SECONDS = 3.0
"""How long a page of Tenuto waits for the panels of extensions."""
PAUSE_SECONDS = 30.0
"""How long a panel is not asked again after it did not answer in time."""
MAX_HTML_LENGTH = 2_000_000
_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_ERRORS = (Exception, SystemExit)
_OWN_CODES = ("extension.timeout", "extension.template.endless", "extension.template.too_long", "extension.page.load")
"""Of errors whose text is Tenuto's own."""


@dataclass(frozen=True, slots=True)
class Card:
    """A rendered panel, or the reason why it cannot be shown."""

    key: str
    title: str
    extension: str
    html: Markup | None = None
    problem: str = ""
    request_id: str = ""


class TemplateRenderer:
    """Renders templates of extensions in threads of their own: one that does not end blocks no page.

    Such a template is not rendered again for `PAUSE_SECONDS`, nor while its thread runs, so it does not occupy more
    and more threads. The threads do not delay the end of the process.
    """

    def __init__(self, registry: ExtensionRegistry) -> None:
        self._registry = registry
        self._paused_until: dict[str, float] = {}
        self._slow_threads: dict[str, list[threading.Thread]] = {}

    async def render(self, template: str, render: Callable[[], str], seconds: float | None = None) -> str:
        """Return the text that ``render`` makes of a template of an extension."""
        if self._is_paused(template):
            raise EngineError(
                f"the template {template} did not end in time, and is not rendered for a while",
                code="extension.template.endless",
            )
        thread, running = _run_in_thread(render)
        try:
            async with self._registry.limit_time(seconds):
                text = await running
        except EngineError as error:
            if error.code == "extension.timeout" and thread.is_alive():  # else an error of the template
                self._paused_until[template] = monotonic_seconds() + PAUSE_SECONDS
                self._slow_threads.setdefault(template, []).append(thread)
            raise
        if len(text) > MAX_HTML_LENGTH:
            raise EngineError(
                f"the template {template} renders {len(text):,} characters; the limit is {MAX_HTML_LENGTH:,}",
                code="extension.template.too_long",
                remedy="show fewer records on a page",
            )
        return text

    def _is_paused(self, template: str) -> bool:
        running = [each for each in self._slow_threads.pop(template, ()) if each.is_alive()]
        if running:
            self._slow_threads[template] = running
        return bool(running) or monotonic_seconds() < self._paused_until.get(template, 0.0)


def _run_in_thread(render: Callable[[], str]) -> tuple[threading.Thread, asyncio.Future[str]]:
    """Start a function in a daemon thread, which cannot keep the process alive."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[str] = loop.create_future()

    def run() -> None:
        try:
            finish = partial(_set, result, render())
        except _ERRORS as error:
            finish = partial(_set, result, None, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish)

    thread = threading.Thread(target=run, name="tenuto-extension-template", daemon=True)
    thread.start()
    return thread, result


def _set(result: asyncio.Future[str], text: str | None, error: BaseException | None = None) -> None:
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(text or "")


class ExtensionPanels:
    """The panels of all extensions."""

    def __init__(self, registry: ExtensionRegistry, environment: Environment, renderer: TemplateRenderer) -> None:
        self._registry = registry
        self._environment = environment
        self._renderer = renderer
        self._panels = registry.panels()
        self._paused_until: dict[str, float] = {}

    def has(self, place: str) -> bool:
        """Return whether an extension has a panel for a place."""
        return any(each.value.place == place for each in self._panels)

    async def load(self, view: PageView, place: str, subject: Any, context: Mapping[str, Any]) -> LoadedPanels:
        """Load and render the panels of a place that the viewer may see; all at the same time."""
        found = [
            (number, each)
            for number, each in enumerate(self._panels)
            if each.value.place == place and _may_see(view, each.value)
        ]
        if not found:
            return LoadedPanels(None, ())
        cards = await asyncio.gather(*(self._load_one(view, number, each, subject, context) for number, each in found))
        topics = sorted({topic for _, each in found for topic in each.value.topics})
        return LoadedPanels(" ".join(topics), tuple(card for card in cards if card is not None))

    async def _load_one(
        self, view: PageView, number: int, contribution: Contribution[Panel], subject: Any, context: Mapping[str, Any]
    ) -> Card | None:
        extension, panel = contribution.extension, contribution.value
        key, part = f"{extension.name}-{number}", f"panel {panel.title!r}"
        make_card = partial(Card, key, panel.title, extension.name)
        request_id = str(view.request.scope.get("tenuto_request_id", ""))
        if monotonic_seconds() < self._paused_until.get(key, 0.0):
            return make_card(problem="it did not answer in time, and is not asked for a while", request_id=request_id)
        try:
            async with self._registry.limit_time(PANEL_SECONDS):  # guard: extension.panel_time
                load = _resolve(panel.load)
                model = await load(_make_request(view, extension, context["now"], subject=subject))
            if model is None:
                return None
            template = self._environment.get_template(f"{extension.name}/{panel.template}")
            values = _add_kit(self._environment, {**context, "x": model})
            html = await self._renderer.render(str(template.name), partial(template.render, values), PANEL_SECONDS)
            self._registry.clear_failure(extension.name, part)
            return make_card(html=Markup(html))
        except _ERRORS as error:
            if _is_database_error(error):
                raise
            if getattr(error, "code", "") == "extension.timeout":
                self._paused_until[key] = monotonic_seconds() + PAUSE_SECONDS
            self._registry.report_failure(extension.name, part, error, request_id=request_id)
            return make_card(problem=_describe(error, view.viewer.role), request_id=request_id)


class ExtensionPages:
    """The pages of all extensions, as routes and as entries of the sidebar."""

    def __init__(
        self,
        registry: ExtensionRegistry,
        renderer: TemplateRenderer,
        core_paths: set[str],
    ) -> None:
        self._registry = registry
        self._renderer = renderer
        self.router = APIRouter(route_class=PageRoute, include_in_schema=False)
        taken = {path.split("/")[1] for path in core_paths if path.count("/")}
        groups: dict[str, list[Entry]] = {}
        for contribution in registry.pages():
            with registry.isolate(contribution.extension, f"page {contribution.value.path!r}"):
                _check_name_is_free(contribution.extension, taken)
                self._add(contribution.extension, contribution.value)
                if contribution.value.navigation:
                    entry = Entry(contribution.value.title, _address(contribution.extension, contribution.value.path))
                    groups.setdefault(contribution.value.navigation, []).append(entry)
        self.groups = tuple(Group(title, tuple(entries)) for title, entries in groups.items())

    def _add(self, extension: Extension, page: Page) -> None:
        with self._registry.isolate(extension, f"page {page.path!r}"):
            _resolve(page.load)  # a page that cannot be loaded says so when it is opened
        required: Any = page_role(page.role or Role.VIEWER, "page.read")

        async def show(request: Request, call: ApiCall = required) -> Response:
            return await self._show(extension, page, PageView(request, call))

        path = _PARAMETER.sub(r"{\1:name}", _address(extension, page.path))
        self.router.add_api_route(path, show, methods=["GET"], name=f"{extension.name} {page.path}")

    async def _show(self, extension: Extension, page: Page, view: PageView) -> Response:
        parameters = {name: str(value) for name, value in view.request.path_params.items()}
        title = _PARAMETER.sub(lambda found: parameters.get(found[1], ""), page.title)
        current = _address(extension, page.path if page.parent is None else page.parent)
        part = f"page {page.path!r}"
        query = {name: view.request.query_params[name] for name in page.query if name in view.request.query_params}
        try:
            now = (await view.app.open()).clock.now()
            async with self._registry.limit_time():
                model = await _resolve(page.load)(
                    _make_request(view, extension, now, parameters=parameters, query=query)
                )
            template = f"{extension.name}/{page.template}"
            response = await view.render(
                template,
                model,
                title=title,
                current=current,
                topics=" ".join(page.topics),
                render_text=partial(self._renderer.render, template),
            )
            self._registry.clear_failure(extension.name, part)
            return response
        except _ERRORS as error:
            if isinstance(error, UserError) or _is_database_error(error):
                raise
            request_id = str(view.request.scope.get("tenuto_request_id", ""))
            self._registry.report_failure(extension.name, part, error, request_id=request_id)
            problem = _describe(error, view.viewer.role)
            card = Card("error", title, extension.name, problem=problem, request_id=request_id)
            return await view.render("pages/extension_error.html", card, title=title, current=current, status=500)


def _may_see(view: PageView, panel: Panel) -> bool:
    return view.viewer.role >= (panel.role or Role.VIEWER)  # guard: extension.panel_role


def _make_request(
    view: PageView,
    extension: Extension,
    now: Any,
    *,
    subject: Any = None,
    parameters: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> PageRequest:
    operations = None
    if type(extension).operations is not Extension.operations:
        operations = getattr(view.app.extensions, extension.name)
    return PageRequest(operations, view.viewer.role, now, view.viewer.zone_name, parameters or {}, query or {}, subject)


def _add_kit(environment: Environment, context: dict[str, Any]) -> dict[str, Any]:
    return {**context, "kit": Kit(environment, context)}


def _resolve(target: str) -> Callable[[PageRequest], Awaitable[Any]]:
    function = resolve_target(target)
    if not asyncio.iscoroutinefunction(function):
        raise EngineError(
            f"{target} is not an async function",
            code="extension.page.load",
            remedy="define it with async def: a function that blocks would stop the web service",
        )
    load: Callable[[PageRequest], Awaitable[Any]] = function
    return load


def _check_name_is_free(extension: Extension, taken: set[str]) -> None:
    if extension.name in taken:
        raise Invalid(
            f"the path /{extension.name} belongs to Tenuto",
            code="extension.page.path_taken",
            remedy="rename the extension",
        )


def _address(extension: Extension, path: str) -> str:
    return f"/{extension.name}/{path}" if path else f"/{extension.name}"


def _is_database_error(error: BaseException) -> bool:
    """Return whether the database does not answer, for which no extension is to blame."""
    slow = ("database.statement_timeout", "database.lock_timeout", "schema.tables.locked")
    return isinstance(error, Unavailable) and error.code not in slow


def _describe(error: BaseException, role: Role) -> str:
    """Return the error for a viewer. The text of an unexpected error may contain data that only admins may see."""
    is_for_everyone = isinstance(error, UserError) or getattr(error, "code", "") in _OWN_CODES
    if isinstance(error, TenutoError) and (is_for_everyone or role >= Role.ADMIN):
        return error.message
    name = type(error).__name__
    return f"{name}: {error}" if role >= Role.ADMIN else f"{name}. The log and admins see its text"


def merge_groups(core: Sequence[Group], more: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups of the sidebar; entries of extensions may join groups of Tenuto."""
    added = {group.title: group for group in more}
    merged = [
        Group(group.title, (*group.entries, *(added.pop(group.title).entries if group.title in added else ())))
        for group in core
    ]
    return (*merged, *added.values())
