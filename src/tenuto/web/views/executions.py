"""``/executions``: the list of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.paging import After
from tenuto.app import Tenuto
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.presentation.execution_states import execution_state
from tenuto.presentation.work_views import execution_outcome
from tenuto.store.executions import ExecutionRecord
from tenuto.web.filters import FilteredList, QuickFilter, load_filtered_list, read_filter
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MAX_MARKERS = 12
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

    @property
    def rail(self) -> Sequence[str]:
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
    request: Request, call: Reader, q: Annotated[str, Query(max_length=500)] = "", after: After = None
) -> Response:
    """Show executions, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name
    model = await view.shared(("executions", q, after, zone), lambda app: load_executions(app, q, after, zone))
    return await view.render_list("pages/executions.html", model, title="Executions", current="/executions")


async def load_executions(app: Tenuto, q: str, after: str | None, zone: str) -> FilteredList[ExecutionRow]:
    """Load one page of the list."""
    now = (await app.open()).clock.now()
    found, bar = read_filter(EXECUTION_KEYS, "/executions", q, now, zone, QUICK)
    return await load_filtered_list(
        found,
        bar,
        after,
        app.executions.list,
        app.executions.count,
        lambda each: ExecutionRow(each, execution_state(each), execution_outcome(each)),
    )
