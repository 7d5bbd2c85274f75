"""``/tasks`` and ``/activities``: lists of open tasks and of past attempts, and the page of one task or attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.paging import After
from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Reason, ReasonCode
from tenuto.errors import NotFound
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.presentation.statuses import status_of
from tenuto.presentation.work_views import progress_text, run_duration
from tenuto.store.activities import ActivityDetails, ActivityRecord, TaskRecord
from tenuto.store.step_checkpoints import ChainStepRecord
from tenuto.web.filters import FilteredList, QuickFilter, load_filtered_list, read_filter
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.attempt_panel import AttemptPanel, Tab, load_panel, may_see_texts

router = APIRouter(route_class=PageRoute, include_in_schema=False)

TASK_QUICK = (
    QuickFilter("All", ""),
    QuickFilter("Running", "state:running", "run"),
    QuickFilter("Queued", "state:queued", "queued"),
    QuickFilter("Scheduled", "state:scheduled", "scheduled"),
    QuickFilter("Waiting", "state:waiting", "wait"),
)
ACTIVITY_QUICK = (
    QuickFilter("All", ""),
    QuickFilter("Failed", "state:failed", "fail"),
    QuickFilter("Warnings", "state:completed_with_warning", "warning"),
    QuickFilter("Cancelled", "state:cancelled", "cancel"),
    QuickFilter("Completed", "state:completed", "done"),
    QuickFilter("Longer than 30 s", "ran:>30s"),
)


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An open task in the list."""

    record: TaskRecord
    state: str
    progress: str | None


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """A past attempt in the list."""

    record: ActivityRecord
    ran: Any
    waited: Any


@router.get("/tasks")
async def show_tasks(
    request: Request, call: Reader, q: Annotated[str, Query(max_length=500)] = "", after: After = None
) -> Response:
    """Show open tasks, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> FilteredList[TaskRow]:
        found, bar = read_filter(TASK_KEYS, "/tasks", q, (await app.open()).clock.now(), zone, TASK_QUICK)
        return await load_filtered_list(found, bar, after, app.tasks, app.count_tasks, describe_task)

    model = await view.shared(("tasks", q, after, zone), load)
    return await view.render_list("pages/tasks.html", model, title="Tasks", current="/tasks")


@router.get("/activities")
async def show_activities(
    request: Request, call: Reader, q: Annotated[str, Query(max_length=500)] = "", after: After = None
) -> Response:
    """Show ended attempts, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> FilteredList[ActivityRow]:
        found, bar = read_filter(ACTIVITY_KEYS, "/activities", q, (await app.open()).clock.now(), zone, ACTIVITY_QUICK)
        return await load_filtered_list(found, bar, after, app.activities, app.count_activities, _describe_activity)

    model = await view.shared(("activities", q, after, zone), load)
    return await view.render_list("pages/activities.html", model, title="Activities", current="/activities")


def describe_task(record: TaskRecord) -> TaskRow:
    """Return the row of an open task."""
    state = str(record.state)
    if record.cancel_at is not None:
        state = "stopping"
    elif state in ("queued", "scheduled") and record.attempt > 1:
        state = "retrying"
    return TaskRow(record, state, progress_text(record.progress))


def _describe_activity(record: ActivityRecord) -> ActivityRow:
    waited = record.started_at - record.run_at if record.started_at and record.started_at > record.run_at else None
    return ActivityRow(record, run_duration(record), waited)


# --- one task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt in the tab of all attempts; the fields of `AttemptBar` that the tab shows."""

    attempt: int
    state: str
    started_at: Any
    ended_at: Any
    wait_seconds: float | None
    duration_seconds: float | None
    worker: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task with the selected attempt."""

    task_id: UUID
    attempts: Sequence[AttemptRow]
    selected: ActivityDetails
    state: str
    panel: AttemptPanel
    is_open: bool
    is_stopping: bool
    reasons: Sequence[Reason]
    chain_steps: Sequence[ChainStepRecord]
    children: Sequence[ActivityRecord]
    texts_allowed: bool


@router.get("/tasks/{id}")
async def show_task(
    request: Request,
    call: Reader,
    id: Id,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    tab: Tab | None = None,
    step: Annotated[str | None, Query(max_length=20)] = None,
) -> Response:
    """Show a task with its attempts."""
    return await _show(PageView(request, call), id, attempt, tab, current="/tasks")


@router.get("/activities/{id}")
async def show_activity(request: Request, call: Reader, id: Id, tab: Tab | None = None) -> Response:
    """Show the task of an attempt, with this attempt selected."""
    view = PageView(request, call)
    activity = await view.shared(("activity", id), lambda app: app.activity(id))
    return await _show(view, activity.task_id, activity.attempt, tab, current="/activities")


async def _show(view: PageView, task_id: UUID, attempt: int | None, tab: Tab | None, *, current: str) -> Response:
    allowed = may_see_texts(view.viewer.role, hidden=view.app.settings.web_hide_inputs)
    model = await view.shared(
        ("task", task_id, attempt, tab, allowed), lambda app: load_task(app, task_id, attempt, tab, allowed)
    )
    label = status_of(model.state).label.lower()
    return await view.render(
        "pages/task.html", model, title=f"{model.selected.name}, {label}", current=current, modules=("log",)
    )


async def load_task(app: Tenuto, task_id: UUID, number: int | None, tab: Tab | None, texts_allowed: bool) -> TaskPage:
    """Load the model of the page."""
    attempts = await app.attempts(task_id)
    if not attempts:
        raise NotFound(f"there is no task {task_id}", code="task.not_found", remedy="see `tenuto task list`")
    selected = next((each for each in attempts if each.attempt == number), attempts[-1])
    last = attempts[-1]
    is_open = last.ended_at is None
    reasons: Sequence[Reason] = ()
    if is_open:
        diagnosis = await app.why(task_id)
        reasons = tuple(each for each in diagnosis.reasons if each.code is not ReasonCode.RUNNING)
    state = str(last.state)
    if is_open and state in ("queued", "scheduled") and last.attempt > 1:
        state = "retrying"
    panel = await load_panel(app, selected, tab or ("why" if reasons and selected.started_at is None else None))
    return TaskPage(
        task_id=task_id,
        attempts=[_attempt_row(each) for each in attempts],
        selected=selected,
        state=state,
        panel=panel,
        is_open=is_open,
        is_stopping=any(each.code is ReasonCode.STOPPING for each in reasons),
        reasons=reasons,
        chain_steps=await app.chain_steps(task_id),
        children=await app.children(selected.id, limit=20) if not is_open else (),
        texts_allowed=texts_allowed,
    )


def _attempt_row(each: ActivityDetails) -> AttemptRow:
    started, ended = each.started_at, each.ended_at
    error = each.error if isinstance(each.error, dict) else {}
    return AttemptRow(
        each.attempt,
        str(each.state),
        started,
        ended,
        max((started - each.run_at).total_seconds(), 0.0) if started else None,
        (ended - started).total_seconds() if started and ended else None,
        each.worker,
        error.get("message"),
    )
