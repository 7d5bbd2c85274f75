"""``/executions``: the list of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from tenuto.api.list_pages import After
from tenuto.app import Tenuto
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.presentation.execution_states import execution_state
from tenuto.presentation.work_views import execution_outcome
from tenuto.store.work.executions import ExecutionRecord
from tenuto.web.components.filters import FilteredList, FilterText, QuickFilter, Window, load_filtered_list, read_filter
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MAX_MARKERS = 12
_CAUSES = {"trigger": "Trigger", "manual": "Manual run", "step": "Step", "retry": "Retry", "backfill": "Backfill"}
QUICK = (
    QuickFilter("All", ""),
    QuickFilter("Running", "state:in_progress", "run"),
    QuickFilter("Failed", "state:failed", "fail"),
    QuickFilter("Cancelled", "state:cancelled", "cancel"),
    QuickFilter("Completed", "state:completed", "done"),
    QuickFilter("Last 24 h", "started:>1d"),
)


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """An execution in the list."""

    record: ExecutionRecord
    state: str
    outcome: str | None
    usual_seconds: float | None = None
    """Median of the last completed executions of the schedule."""

    @property
    def cause(self) -> str:
        """What started it, beside the name of the initiator."""
        return _CAUSES.get(self.record.origin, self.record.origin)

    @property
    def group_states(self) -> Sequence[str]:
        """States of the groups: ended ones, the current one, the others."""
        record = self.record
        if record.group_count > _MAX_MARKERS:
            return [self.state]
        if record.state == "completed":
            return ["done with warning" if record.failed_step_count else "done"] * record.group_count
        rest = "waiting" if record.ended_at is None else "not run"
        return ["done"] * record.current_group + [self.state] + [rest] * (record.group_count - record.current_group - 1)


@router.get("/executions")
async def show_executions(
    request: Request, call: Reader, q: FilterText = "", after: After = None, window: Window = DEFAULT_WINDOW
) -> Response:
    """Show executions, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name
    model = await view.shared(
        ("executions", q, after, zone, window), lambda app: load_executions(app, q, after, zone, window)
    )
    return await view.render_list("pages/executions.html", model, title="Executions", current="/executions")


async def load_executions(app: Tenuto, q: str, after: str | None, zone: str, window: int) -> FilteredList[ExecutionRow]:
    """Load one page of the list."""
    now = (await app.open()).clock.now()
    found, bar = read_filter(EXECUTION_KEYS, "/executions", q, now, zone, QUICK, window)
    listed: FilteredList[ExecutionRecord] = await load_filtered_list(
        found, bar, after, app.executions.list, app.executions.count_of_each, lambda each: each
    )
    usual = await app.executions.usual_seconds({each.schedule_id for each in listed.rows})
    rows = [
        ExecutionRow(each, execution_state(each), execution_outcome(each), usual.get(each.schedule_id))
        for each in listed.rows
    ]
    return FilteredList(listed.bar, rows, listed.next, listed.is_first, listed.count)
