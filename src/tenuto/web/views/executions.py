"""``/executions``: the list of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.paging import After, decode_cursor, encode_cursor
from tenuto.app import Tenuto
from tenuto.model.executions import ExecutionState
from tenuto.presentation.execution_states import execution_state
from tenuto.presentation.work_views import execution_outcome
from tenuto.store.executions import ExecutionRecord
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    record: ExecutionRecord
    state: str
    outcome: str | None

    @property
    def rail(self) -> Sequence[str]:
        """States of the groups: ended ones, the current one, the others."""
        record = self.record
        ended = "done" if record.state != "completed" or not record.failed_step_count else "done with warning"
        if record.state == "completed":
            return [ended] * min(record.group_count, 12)
        rest = "waiting" if record.ended_at is None else "not run"
        states = (
            ["done"] * record.current_group + [self.state] + [rest] * (record.group_count - record.current_group - 1)
        )
        return states if len(states) <= 12 else [self.state]


@dataclass(frozen=True, slots=True)
class ExecutionList:
    rows: Sequence[ExecutionRow]
    state: str | None
    schedule: str
    next: str | None
    is_first: bool


@router.get("/executions")
async def show_executions(
    request: Request,
    call: Reader,
    state: ExecutionState | None = None,
    schedule: Annotated[str, Query(max_length=300)] = "",
    after: After = None,
) -> Response:
    """Show executions, newest first."""
    view = PageView(request, call)
    model = await view.shared(
        ("executions", state, schedule, after), lambda app: load_executions(app, state, schedule, after)
    )
    return await view.render("pages/executions.html", model, title="Executions", current="/executions")


async def load_executions(app: Tenuto, state: ExecutionState | None, schedule: str, after: str | None) -> ExecutionList:
    """Load one page of the list."""
    cursor = decode_cursor(after, UUID)
    found = await app.executions.list(
        below=cursor[0] if cursor else None, state=state, schedule=schedule or None, limit=PAGE_SIZE
    )
    rows = [ExecutionRow(each, execution_state(each), execution_outcome(each)) for each in found]
    following = encode_cursor(found[-1].id) if len(found) == PAGE_SIZE else None
    return ExecutionList(rows, state, schedule, following, after is None)
