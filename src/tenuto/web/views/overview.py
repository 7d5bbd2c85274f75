"""``/``: what needs attention, what is running, what is next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request, Response

from tenuto.app import Tenuto
from tenuto.diagnostics.attention import Attention
from tenuto.operations.overview import Overview
from tenuto.store.reports.overview import OpenFailure, UnresolvedExecution
from tenuto.web.components.charts import AttemptChart, draw_attempts
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Window = Literal["15m", "1h", "6h", "1d", "7d"]
WINDOWS: tuple[tuple[Window, str], ...] = (
    ("15m", "15 min"),
    ("1h", "1 h"),
    ("6h", "6 h"),
    ("1d", "24 h"),
    ("7d", "7 d"),
)


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The overview with its chart."""

    overview: Overview
    window: Window
    windows: tuple[tuple[Window, str], ...]
    chart: AttemptChart | None

    @property
    def details(self) -> dict[str, OpenFailure | UnresolvedExecution]:
        """Dead letters and executions that need attention, by the id of their entry."""
        found = self.overview
        by_id: dict[str, OpenFailure | UnresolvedExecution] = {each.fingerprint: each for each in found.failures}
        by_id.update((str(each.id), each) for each in found.unresolved_executions)
        return by_id

    @property
    def attention(self) -> Sequence[Attention]:
        """What needs attention, without approvals: they have a card of their own, in which a person decides."""
        return [each for each in self.overview.attention if each.code != "approval_pending"]

    @property
    def is_new(self) -> bool:
        steps = self.overview.first_steps
        return not (steps.has_worker and steps.has_definition and steps.has_run)


@router.get("/")
async def show_overview(request: Request, call: Reader, window: Window = "1h") -> Response:
    """Show the overview."""
    view = PageView(request, call)
    model = await view.shared(("overview", window), lambda app: load_overview(app, window))
    return await view.render("pages/overview.html", model, title="Overview", current="/", place="overview")


async def load_overview(app: Tenuto, window: Window) -> OverviewPage:
    """Load the model of the page."""
    overview, report = await asyncio.gather(app.reports.overview(), app.reports.series(window))
    return OverviewPage(overview, window, WINDOWS, draw_attempts(report))
