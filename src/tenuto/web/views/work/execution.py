"""``/executions/{id}``: one execution with its groups, its steps as a table that is also a timeline, an inspector."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.parameters import Id
from tenuto.app import Tenuto
from tenuto.diagnostics.reasons import Reason, ReasonCode
from tenuto.extension import StepSubject
from tenuto.model.definitions.steps import APPROVAL
from tenuto.operations.work.execution_timeline import (
    WINDOW_STEP_COUNT,
    AttemptBar,
    ExecutionTimeline,
    TimelineGroup,
    TimelineStep,
    parse_group_windows,
)
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.presentation.execution_states import display_step_state, execution_state, group_state
from tenuto.presentation.statuses import status_of
from tenuto.presentation.text_formats import format_duration, one_line
from tenuto.web.components.attempt_text import MAX_LINES
from tenuto.web.components.svg_geometry import SMALL_PERCENT, Scale, Wedge, draw_wedges
from tenuto.web.components.version_history import HISTORY_COUNT, HistoryRow, make_history
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.attempt_panel import AttemptPanel, LineCount, Tab, load_panel, may_see_texts, read_progress

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_SEARCHED_RETRIES = 50
_OPEN = ("running", "retrying", "queued", "waiting")
_TITLE_ICONS = {"running": "◐", "failed": "✕", "completed": "●", "cancelled": "⊘", "paused": "‖", "stopping": "◐"}
_ORIGINS = {
    "trigger": "schedule",
    "manual": "manual run",
    "retry": "retry",
    "backfill": "backfill",
    "step": "step of another execution",
}


# --- model ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of an attempt: ``lead`` while it waits, ``run``, or ``off`` between two attempts."""

    kind: str
    x: float
    width: float
    tone: str
    title: str
    attempt: int
    grows: bool = False

    @property
    def is_small(self) -> bool:
        return self.width < SMALL_PERCENT


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of the step table."""

    step: TimelineStep
    number: int
    """Position in the plan, counted from 1."""
    state: str
    label: str
    waited_seconds: float | None
    ran_seconds: float | None
    waits_since: datetime | None
    runs_since: datetime | None
    retries_at: datetime | None
    bars: Sequence[Bar]
    typical: tuple[float, float] | None
    is_selected: bool


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the rail and in the table."""

    number: int
    title: str
    note: str
    state: str
    label: str
    wedges: Sequence[Wedge]
    is_passed: bool
    is_folded: bool
    group: TimelineGroup
    rows: Sequence[StepRow]
    first_number: int
    """Number of its first step in the plan."""

    @property
    def window_first(self) -> int:
        """Position of the first listed step within the group."""
        return self.rows[0].number - self.first_number if self.rows else 0

    @property
    def next_window(self) -> int | None:
        """Position of the first step after the listed ones of a folded group."""
        after = self.rows[-1].number - self.first_number + 1 if self.rows else 0
        return after if self.is_folded and self.rows and after < self.group.step_count else None

    @property
    def previous_window(self) -> int | None:
        """Position of the window before the listed steps of a folded group."""
        return max(self.window_first - WINDOW_STEP_COUNT, 0) if self.is_folded and self.window_first else None


@dataclass(frozen=True, slots=True)
class ChildRail:
    """The execution that a step has started, unfolded below the step."""

    record: ExecutionDetails
    state: str
    groups: Sequence[GroupRow]


@dataclass(frozen=True, slots=True)
class Inspector:
    """The selected step and attempt."""

    row: StepRow
    attempt: AttemptBar | None
    panel: AttemptPanel | None
    tab: Tab
    reasons: Sequence[Reason]
    texts_allowed: bool


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """Everything that the page of an execution shows."""

    record: ExecutionDetails
    timeline: ExecutionTimeline
    state: str
    headline: str
    origin: str
    groups: Sequence[GroupRow]
    scale: Scale
    now_x: float | None
    wait_before: timedelta
    shows_wait: bool
    reasons: Sequence[Reason]
    inspector: Inspector | None
    removable_count: int
    running_count: int
    find: str
    child: ChildRail | None
    """The execution of the unfolded step."""
    unfolded: int | None
    retried_by: UUID | None
    """The latest execution that retries this one."""
    history: Sequence[HistoryRow]
    """What people and programs did with it, newest first."""

    @property
    def is_over(self) -> bool:
        return self.record.ended_at is not None

    @property
    def can_retry(self) -> bool:
        return self.state in ("failed", "cancelled")


# --- loading ----------------------------------------------------------------------------------------------------------


@router.get("/executions/{id}")
async def show_execution(
    request: Request,
    call: Reader,
    id: Id,
    step: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    tab: Tab | None = None,
    wait: bool = False,
    groups: Annotated[str | None, Query(max_length=200)] = None,
    find: Annotated[str, Query(max_length=200)] = "",
    lines: LineCount = MAX_LINES,
    unfold: Annotated[int | None, Query(ge=1, le=100_000)] = None,
) -> Response:
    """Show an execution."""
    view = PageView(request, call)
    allowed = may_see_texts(view.viewer.role, hidden=view.app.settings.web_hide_inputs)
    model = await view.shared(
        ("execution", id, step, attempt, tab, wait, groups, find, lines, unfold, allowed),
        lambda app: load_execution(
            app, id, step, attempt, tab, wait, groups, find, lines, unfold, texts_allowed=allowed
        ),
    )
    return await view.render(
        "pages/execution.html",
        model,
        title=f"{model.record.schedule_name}, {status_of(model.state).label.lower()}",
        icon=_TITLE_ICONS.get(model.state, ""),
        current="/executions",
        modules=("gantt", "log"),
        place="execution",
        subject=model.record,
        step_subject=_step_subject(model),
    )


def _step_subject(model: ExecutionPage) -> StepSubject | None:
    """Return the selected step, for panels of extensions."""
    if model.inspector is None:
        return None
    step, attempt = model.inspector.row.step, model.inspector.attempt
    return StepSubject(
        model.record.id,
        step.name,
        step.kind,
        step.task_id,
        None if attempt is None else attempt.activity_id,
        is_running=attempt is not None and attempt.started_at is not None and attempt.ended_at is None,
    )


async def load_execution(
    app: Tenuto,
    id: UUID,
    step: int | None,
    attempt: int | None,
    tab: Tab | None,
    wait: bool,
    groups: str | None,
    find: str,
    lines: int,
    unfold: int | None,
    *,
    texts_allowed: bool,
) -> ExecutionPage:
    """Load the model of the page."""
    record, timeline = await asyncio.gather(
        app.executions.get(id),
        app.executions.timeline(id, windows=parse_group_windows(groups), find=find or None),
    )
    scale, wait_before = _scale_of(timeline, wait)
    now = timeline.read_at
    chosen = _choose_step(timeline, record, step)
    rows = _group_rows(timeline, record, scale, now, chosen)
    states = [row.state for group in rows for row in group.rows]
    is_over = record.ended_at is not None
    reasons = () if is_over else await _reasons_for_waiting(app, record)
    selected = next((row for group in rows for row in group.rows if row.is_selected), None)
    state = execution_state(record)
    unfolded = next((row for group in rows for row in group.rows if row.number == unfold), None)
    child = unfolded.step.child_execution_id if unfolded is not None else None
    return ExecutionPage(
        record=record,
        timeline=timeline,
        state=state,
        headline=_headline(record, state, rows),
        origin=_ORIGINS.get(record.origin, record.origin.replace("_", " ")),
        groups=rows,
        scale=scale,
        now_x=None if is_over else scale.x(now),
        wait_before=wait_before,
        shows_wait=wait,
        reasons=reasons,
        inspector=None
        if selected is None
        else await _inspect(app, selected, attempt, tab, lines, reasons, texts_allowed=texts_allowed),
        removable_count=sum(state in ("waiting", "queued", "retrying") for state in states),
        running_count=states.count("running"),
        find=find,
        child=None if child is None else await _load_child(app, child),
        unfolded=unfold if child is not None else None,
        retried_by=await _find_retry(app, record) if state in ("failed", "cancelled") else None,
        history=make_history(await app.audit.history(f"execution:{id}", limit=HISTORY_COUNT), ()),
    )


async def _load_child(app: Tenuto, id: UUID) -> ChildRail:
    record, timeline = await asyncio.gather(app.executions.get(id), app.executions.timeline(id, windows=(), find=None))
    scale, _ = _scale_of(timeline, wait=False)
    return ChildRail(record, execution_state(record), _group_rows(timeline, record, scale, timeline.read_at, -1))


async def _find_retry(app: Tenuto, record: ExecutionDetails) -> UUID | None:
    """Return the newest execution that retries this one, among the newest retries of the schedule."""
    found = await app.executions.list("origin:retry", schedule=record.schedule_name, limit=_SEARCHED_RETRIES)
    return next((each.id for each in found if each.retry_of == record.id), None)


async def _reasons_for_waiting(app: Tenuto, record: ExecutionDetails) -> tuple[Reason, ...]:
    """Return why the execution waits; nothing if all open steps of its current group run."""
    diagnosis = await app.executions.why(record.id)
    return tuple(reason for reason in diagnosis.reasons if reason.code not in (ReasonCode.RUNNING, ReasonCode.FREE))


def _choose_step(timeline: ExecutionTimeline, record: ExecutionDetails, asked: int | None) -> int:
    """Return the number of the selected step: the asked one, else the failed, the running or the first one."""
    listed = [(step, find_step_state(step, group.index, record)) for group in timeline.groups for step in group.steps]
    if asked is not None and any(step.number == asked - 1 for step, _ in listed):
        return asked - 1
    for wanted in ("failed", "running", "retrying", "queued"):
        for step, state in listed:
            if state == wanted:
                return step.number
    suspended = (step for step, _ in listed if step.attempts and is_suspended(step.attempts[-1]))
    if (waiting := next(suspended, None)) is not None:
        return waiting.number
    return listed[0][0].number if listed else 0


async def _inspect(
    app: Tenuto,
    row: StepRow,
    number: int | None,
    tab: Tab | None,
    lines: int,
    reasons: Sequence[Reason],
    *,
    texts_allowed: bool,
) -> Inspector:
    attempts = row.step.attempts
    chosen = next((each for each in attempts if each.attempt == number), attempts[-1] if attempts else None)
    own_reasons = tuple(reason for reason in reasons if reason.task_id == row.step.task_id)
    panel = None
    if chosen is not None and (chosen.started_at is not None or chosen.ended_at is not None):
        panel = await load_panel(app, await app.activity(chosen.activity_id), tab, lines)
    shown: Tab = tab or (panel.tab if panel is not None else "why" if own_reasons else "log")
    return Inspector(row, chosen, panel, shown, own_reasons, texts_allowed)


# --- describing -------------------------------------------------------------------------------------------------------


def _scale_of(timeline: ExecutionTimeline, wait: bool) -> tuple[Scale, timedelta]:
    """Return the scale, which begins at the first start of a step, and the wait before it."""
    attempts = [attempt for group in timeline.groups for step in group.steps for attempt in step.attempts]
    starts = [each.started_at for each in attempts if each.started_at is not None]
    starts += [group.first_started_at for group in timeline.groups if group.first_started_at is not None]
    first = min(starts, default=timeline.started_at)
    begin = min(first, timeline.started_at) if wait else first
    end = timeline.ended_at or timeline.read_at
    is_over = timeline.ended_at is not None
    return Scale.covering(begin, max(end, begin), is_growing=not is_over), max(
        first - timeline.started_at, timedelta(0)
    )


def find_step_state(step: TimelineStep, group: int, record: ExecutionDetails) -> str:
    """Return the state of a step as pages show it."""
    last = step.attempts[-1] if step.attempts else None
    if last is not None and is_suspended(last):
        return "waiting"
    return display_step_state(
        step.state,
        last.reason if last else None,
        last.attempt if last else 0,
        kind=step.kind,
        is_waiting_for_child=group == record.current_group and record.paused_at is None,
    )


def is_suspended(attempt: AttemptBar) -> bool:
    """Return whether an attempt has released its slot, to wait for an approval, an event or an instant."""
    return attempt.started_at is not None and attempt.ended_at is None and attempt.state in ("queued", "scheduled")


def _group_rows(
    timeline: ExecutionTimeline, record: ExecutionDetails, scale: Scale, now: datetime, chosen: int
) -> list[GroupRow]:
    first = 1
    rows = []
    for group in timeline.groups:
        rows.append(_group_row(group, record, scale, now, chosen, first))
        first += group.step_count
    return rows


def _group_row(
    group: TimelineGroup, record: ExecutionDetails, scale: Scale, now: datetime, chosen: int, first_number: int
) -> GroupRow:
    rows = [_step_row(step, group.index, record, scale, now, chosen) for step in group.steps]
    states = [
        state
        for each in group.states
        for state in [display_step_state(each.state, None, 1, kind="", is_waiting_for_child=False)] * each.count
    ]
    if not group.is_folded:
        states = [row.state for row in rows] or states
    state = group_state(states) if states else "waiting"
    others = f" + {group.step_count - 1:,}" if group.step_count > 1 else ""
    return GroupRow(
        number=group.index + 1,
        title=f"{rows[0].step.name}{others}" if rows else f"{group.step_count:,} steps",
        note=f"{group.step_count:,} in parallel" if others else "",
        state=state,
        label=_group_label(group, rows, states, state, record),
        wedges=draw_wedges(states[:500] or ["waiting"]),
        is_passed=group.index < record.current_group or (record.state == "completed"),
        is_folded=group.is_folded,
        group=group,
        rows=rows,
        first_number=first_number,
    )


def _group_label(
    group: TimelineGroup, rows: Sequence[StepRow], states: Sequence[str], state: str, record: ExecutionDetails
) -> str:
    done = sum(each in ("done", "done with warning", "done before") for each in states)
    match state:
        case "done" | "done with warning" | "failed" | "cancelled":
            started, ended = group.first_started_at, group.last_ended_at
            took = f", {format_duration(ended - started)}" if started and ended else ""
            failed = states.count("failed")
            if state == "failed" and len(states) > 1:
                return f"{failed} of {len(states)} failed{took}"
            return f"{status_of(state).label}{took}"
        case "running" if len(states) > 1:
            return f"{done} of {len(states)} completed"
        case "waiting" if group.index > record.current_group and record.ended_at is None:
            return f"Waiting for group {group.index}"
        case _:
            return rows[0].label if len(rows) == 1 and state == "waiting" else status_of(state).label


def _step_row(
    step: TimelineStep, group: int, record: ExecutionDetails, scale: Scale, now: datetime, chosen: int
) -> StepRow:
    state = find_step_state(step, group, record)
    last = step.attempts[-1] if step.attempts else None
    is_open = last is not None and last.ended_at is None
    is_running = is_open and last is not None and last.started_at is not None and not is_suspended(last)
    waits = is_open and not is_running and state in ("queued", "retrying") and last is not None and last.due_at <= now
    first_start = next((each.started_at for each in step.attempts if each.started_at is not None), None)
    typical = None
    if step.usual_seconds is not None and first_start is not None:
        typical = scale.x(first_start), scale.width(first_start, first_start + timedelta(seconds=step.usual_seconds))
    return StepRow(
        step=step,
        number=step.number + 1,
        state=state,
        label=_step_label(step, state, last),
        waited_seconds=last.wait_seconds if last is not None and last.started_at is not None else None,
        ran_seconds=last.duration_seconds if last is not None and not is_open else None,
        waits_since=last.due_at if waits and last is not None else None,
        runs_since=last.started_at if is_running and last is not None else None,
        retries_at=last.due_at if state == "retrying" and last is not None and last.due_at > now else None,
        bars=tuple(_bars(step, scale, now)),
        typical=typical,
        is_selected=step.number == chosen,
    )


def _step_label(step: TimelineStep, state: str, last: AttemptBar | None) -> str:
    label = status_of(state).label
    if last is None:
        return label
    if last.reason == "timed_out" and state == "failed":
        label = "Timed out"
    elif last.reason == "lost" and state == "failed":
        label = "Lost with its worker"
    if is_suspended(last) and step.kind == APPROVAL:
        label = "Waiting for approval"
    elif is_suspended(last) and "waits for event" in getattr(read_progress(last.progress), "text", ""):
        label = "Waiting for an event"
    if state == "running":
        progress = read_progress(last.progress)
        if progress is not None and progress.percent is not None:
            label += f", {progress.percent:.0f} %"
    if last.attempt > 1 and state not in ("not run", "done before"):
        of = f" of {step.max_attempts}" if step.max_attempts >= last.attempt else ""
        label += f", attempt {last.attempt}{of}"
    return label


def _bars(step: TimelineStep, scale: Scale, now: datetime) -> Iterator[Bar]:
    """Draw all attempts of a step."""
    previous: AttemptBar | None = None
    for attempt in step.attempts:
        number = attempt.attempt
        if previous is not None and previous.ended_at is not None and attempt.due_at > previous.ended_at:
            until = min(attempt.due_at, now)
            text = f"back-off {format_duration(attempt.due_at - previous.ended_at)}"
            yield Bar("off", scale.x(previous.ended_at), scale.width(previous.ended_at, until), "retry", text, number)
        previous = attempt
        wait_end = attempt.started_at or attempt.ended_at or now
        if attempt.wait_seconds is not None and wait_end > attempt.due_at:
            text = f"attempt {number} waited {format_duration(attempt.wait_seconds)}"
            grows = attempt.started_at is None and attempt.ended_at is None
            yield Bar(
                "lead", scale.x(attempt.due_at), scale.width(attempt.due_at, wait_end), "wait", text, number, grows
            )
        if attempt.started_at is None:
            continue
        tone = _attempt_tone(attempt)
        title = _attempt_title(attempt)
        end = attempt.ended_at or now
        grows = attempt.ended_at is None
        yield Bar("run", scale.x(attempt.started_at), scale.width(attempt.started_at, end), tone, title, number, grows)


def _attempt_tone(attempt: AttemptBar) -> str:
    if attempt.ended_at is not None:
        return status_of(attempt.state).tone
    return "wait" if is_suspended(attempt) else "run"


def _attempt_title(attempt: AttemptBar) -> str:
    state = attempt.reason.replace("_", " ") if attempt.reason in ("lost", "timed_out") else ""
    running = "waiting" if is_suspended(attempt) else "running"
    state = state or (running if attempt.ended_at is None else status_of(attempt.state).label.lower())
    parts = [f"attempt {attempt.attempt}: {state}"]
    if attempt.duration_seconds is not None and attempt.ended_at is not None:
        parts.append(f"ran {format_duration(attempt.duration_seconds)}")
    if attempt.worker:
        parts.append(f"on {attempt.worker}")
    if attempt.message:
        parts.append(one_line(attempt.message, 120))
    return ", ".join(parts)


def _headline(record: ExecutionDetails, state: str, groups: Sequence[GroupRow]) -> str:
    label = status_of(state).label
    if state == "failed":
        label = f"Failed in group {record.current_group + 1} of {record.group_count}"
        failed = next((row for group in groups for row in group.rows if row.state == "failed"), None)
        message = failed.step.attempts[-1].message if failed is not None and failed.step.attempts else None
        if failed is not None:
            label += f": {one_line(failed.step.name, 60)}" + (f", {one_line(message, 90)}" if message else "")
    elif state == "completed" and record.failed_step_count:
        label = f"Completed, {record.failed_step_count} of {record.step_count} steps failed"
    return label
