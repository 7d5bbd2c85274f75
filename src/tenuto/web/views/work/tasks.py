"""``/tasks`` and ``/activities``: lists of open tasks and of past attempts, and the page of one task or attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.list_pages import After, cursor_instant, decode_cursor, encode_cursor
from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Reason, ReasonCode
from tenuto.errors import NotFound
from tenuto.model.definitions.steps import JOB
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import DEFAULT_WINDOW, Filter
from tenuto.presentation.statuses import status_of
from tenuto.presentation.work_views import ShownStep, progress_text, run_duration, show_steps
from tenuto.store.reports.overview import QueueObstacles
from tenuto.store.work.activities import ActivityDetails, ActivityRecord, TaskRecord
from tenuto.web.components.attempt_text import MAX_LINES
from tenuto.web.components.definition_forms import find_schema
from tenuto.web.components.filters import (
    PAGE_SIZE,
    FilterBar,
    FilteredList,
    FilterText,
    QuickFilter,
    Window,
    count_matches,
    load_filtered_list,
    read_filter,
)
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.attempt_panel import AttemptPanel, LineCount, Tab, load_panel, may_see_texts

router = APIRouter(route_class=PageRoute, include_in_schema=False)

TaskOrder = Literal["newest", "claim"]
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
    QuickFilter("Expired", "state:expired", "cancel"),
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
    wait: str = ""
    """Why it is not claimed, as far as its queue says so."""


@dataclass(frozen=True, slots=True)
class TaskList(FilteredList[TaskRow]):
    """One page of tasks."""

    @property
    def is_in_claim_order(self) -> bool:
        return self.bar.order == "claim"


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """A past attempt in the list."""

    record: ActivityRecord
    ran: Any
    waited: Any


@router.get("/tasks")
async def show_tasks(
    request: Request,
    call: Reader,
    q: FilterText = "",
    after: After = None,
    window: Window = DEFAULT_WINDOW,
    order: TaskOrder = "newest",
) -> Response:
    """Show open tasks, newest first, or queued tasks in the order in which workers claim them."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> TaskList:
        found, bar = read_filter(TASK_KEYS, "/tasks", q, (await app.open()).clock.now(), zone, TASK_QUICK, window)
        bar = replace(bar, order=order)
        if order == "claim":
            return await _load_next_tasks(app, found, bar, after)
        listed = await load_filtered_list(found, bar, after, app.tasks, app.count_tasks_of_each, describe_task)
        return TaskList(listed.bar, listed.rows, listed.next, listed.is_first, listed.count)

    async def load_with_waits(app: Tenuto) -> TaskList:
        listed = await load(app)
        return replace(listed, rows=await add_waits(app, listed.rows))

    model = await view.shared(("tasks", q, after, zone, window, order), load_with_waits)
    return await view.render_list("pages/tasks.html", model, title="Tasks", current="/tasks")


async def add_waits(app: Tenuto, rows: Sequence[TaskRow]) -> list[TaskRow]:
    """Return rows of tasks with the reason why they wait."""
    queues = {row.record.queue for row in rows if row.record.state == "queued"}
    found = await app.reports.queue_obstacles(queues) if queues else {}
    return [replace(row, wait=describe_wait(row.record, found.get(row.record.queue))) for row in rows]


def describe_wait(record: TaskRecord, queue: QueueObstacles | None) -> str:
    """Return in one line why a task is not claimed; the page of the task has all reasons."""
    if record.state == "waiting":
        return "waits for an earlier step, a pause or a child"
    if record.state != "queued" or queue is None:
        return ""
    if queue.paused_at is not None:
        reason = f": {queue.pause_reason}" if queue.pause_reason else ""
        return f"queue paused by {queue.paused_by or 'unknown'}{reason}"
    if not queue.is_served:
        return "no live worker serves the queue"
    if queue.max_running is not None and queue.running_count >= queue.max_running:
        return f"queue at its limit, {queue.running_count} of {queue.max_running} running"
    return f"shares the limit {record.limit_key}" if record.limit_key else ""


async def _load_next_tasks(app: Tenuto, found: Filter | None, bar: FilterBar, after: str | None) -> TaskList:
    """Load queued tasks by queue, in the order of claims."""
    if found is None:
        return TaskList(bar, (), None, True, None)
    cursor = decode_cursor(after, str, int, cursor_instant, UUID)
    position = None if cursor is None else (cursor[0], cursor[1], cursor[2], cursor[3])
    records, (bar, _) = await asyncio.gather(
        app.tasks.next_to_claim(found, after=position, limit=PAGE_SIZE),
        count_matches(found, bar, app.count_tasks_of_each),
    )
    total = (await app.count_tasks_of_each([found.where(state="queued")]))[0]
    following = None
    if len(records) == PAGE_SIZE:
        last = records[-1]
        following = encode_cursor(last.queue, last.priority, last.run_at, last.id)
    return TaskList(bar, [describe_task(each) for each in records], following, after is None, total)


@router.get("/activities")
async def show_activities(
    request: Request, call: Reader, q: FilterText = "", after: After = None, window: Window = DEFAULT_WINDOW
) -> Response:
    """Show ended attempts, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> FilteredList[ActivityRow]:
        found, bar = read_filter(
            ACTIVITY_KEYS, "/activities", q, (await app.open()).clock.now(), zone, ACTIVITY_QUICK, window
        )
        return await load_filtered_list(
            found, bar, after, app.activities, app.count_activities_of_each, _describe_activity
        )

    model = await view.shared(("activities", q, after, zone, window), load)
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
    chain_steps: Sequence[ShownStep]
    children: Sequence[ActivityRecord]
    texts_allowed: bool
    run_form: ArgumentsForm | None
    """Its input, to run its job again; None while it is open, or if this service does not know the job."""


@router.get("/tasks/{id}")
async def show_task(
    request: Request,
    call: Reader,
    id: Id,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    tab: Tab | None = None,
    step: Annotated[str | None, Query(max_length=20)] = None,
    lines: LineCount = MAX_LINES,
) -> Response:
    """Show a task with its attempts."""
    return await _show(PageView(request, call), id, attempt, tab, lines, current="/tasks")


@router.get("/activities/{id}")
async def show_activity(
    request: Request, call: Reader, id: Id, tab: Tab | None = None, lines: LineCount = MAX_LINES
) -> Response:
    """Show the task of an attempt, with this attempt selected."""
    view = PageView(request, call)
    activity = await view.shared(("activity", id), lambda app: app.activity(id))
    return await _show(view, activity.task_id, activity.attempt, tab, lines, current="/activities")


async def _show(
    view: PageView, task_id: UUID, attempt: int | None, tab: Tab | None, lines: int, *, current: str
) -> Response:
    allowed = may_see_texts(view.viewer.role, hidden=view.app.settings.web_hide_inputs)
    model = await view.shared(
        ("task", task_id, attempt, tab, lines, allowed),
        lambda app: load_task(app, task_id, attempt, tab, lines, allowed),
    )
    label = status_of(model.state).label.lower()
    return await view.render(
        "pages/task.html",
        model,
        title=f"{model.selected.name}, {label}",
        current=current,
        modules=("log", "forms"),
        place="task",
        subject=model.selected,
    )


async def load_task(
    app: Tenuto, task_id: UUID, number: int | None, tab: Tab | None, lines: int, texts_allowed: bool
) -> TaskPage:
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
    panel = await load_panel(
        app, selected, tab or ("input" if reasons and selected.started_at is None else None), lines
    )
    return TaskPage(
        task_id=task_id,
        attempts=[_attempt_row(each) for each in attempts],
        selected=selected,
        state=state,
        panel=panel,
        is_open=is_open,
        is_stopping=any(each.code is ReasonCode.STOPPING for each in reasons),
        reasons=reasons,
        chain_steps=show_steps(await app.chain_steps(task_id)),
        children=await app.children(selected.id, limit=20) if not is_open else (),
        texts_allowed=texts_allowed,
        run_form=None if is_open or not texts_allowed else _make_run_form(app, last),
    )


def _make_run_form(app: Tenuto, last: ActivityDetails) -> ArgumentsForm | None:
    if last.kind != JOB or not isinstance(last.input, dict):
        return None
    schema, _ = find_schema(app, JOB, last.name)
    return None if schema is None else make_arguments_form("input", schema, last.input)


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
