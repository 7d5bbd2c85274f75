"""``/timeline``: one lane per schedule with its past executions, its coming runs, conflicts and clock changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request, Response

from tenuto.app import Tenuto
from tenuto.errors import Invalid
from tenuto.operations.reports import UpcomingRuns, UpcomingSchedule
from tenuto.presentation.descriptions import describe_misfire, describe_overlap
from tenuto.presentation.execution_states import execution_state
from tenuto.presentation.statuses import status_of
from tenuto.presentation.text_formats import format_duration
from tenuto.simulation.clock_changes import ClockChangeEffect
from tenuto.simulation.simulator import Clash, SimulatedRun
from tenuto.store.definitions.schedules import ScheduleRecord
from tenuto.store.work.executions import ExecutionRecord
from tenuto.web.components.svg_geometry import SMALL_PERCENT, Scale, Tick
from tenuto.web.components.times import Times
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.view_cache import ViewCache

router = APIRouter(route_class=PageRoute, include_in_schema=False)

WINDOWS = {"6h": 6, "12h": 12, "24h": 24, "3d": 72, "7d": 168}
"""Hours by name."""
_TICK_HOURS = {"6h": 1, "12h": 2, "24h": 3, "3d": 12, "7d": 24}
_STEPS_PER_WINDOW = 48
MAX_LANES, MAX_EXECUTIONS, _PAGE_SIZE = 100, 3000, 500
MAX_MARKS = 60
"""A lane with more executions or more coming runs shows their number per column instead."""
_COLUMNS = 60
MAX_CONFLICTS = 50
_COMMAND_HINT = re.compile(r" \([^()]*--[^()]*\)")
"""The part of a note that names options of the command line."""
_TONE_ORDER = ("fail", "stop", "retry", "run", "done", "wait")
Window = Literal["6h", "12h", "24h", "3d", "7d"]
Order = Literal["next", "name"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A drawing in a lane; positions in percent."""

    kind: Literal["run", "plan", "skip", "past-count", "plan-count"]
    x: float
    width: float
    tone: str
    title: str
    execution_id: UUID | None = None
    is_small: bool = False
    grows: bool = False
    height: float = 14.0


@dataclass(frozen=True, slots=True)
class Lane:
    """One schedule."""

    record: ScheduleRecord
    past: Sequence[Mark]
    coming: Sequence[Mark]
    conflicts: Sequence[Mark]
    past_text: str
    coming_text: str
    expected: Sequence[str]
    """What will happen: when it runs, for how long, and when runs overlap or were missed."""


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: Sequence[Lane]
    scale: Scale
    now_x: float | None
    window: str
    at: str
    earlier: str
    later: str
    search: str
    order: str
    conflicts: Sequence[Clash]
    clock_changes: Sequence[ClockChangeEffect]
    notes: Sequence[str]
    next: str | None
    """Name of the last schedule, if others follow."""
    is_first: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """The coming runs of a window, and their drawings: they change with neither the viewer nor the time."""

    upcoming: UpcomingRuns | None
    notes: Sequence[str]
    marks: dict[tuple[str, str], Sequence[tuple[datetime, Mark]]]
    """By zone and schedule: the due instant and the drawing of each run."""

    def draw(self, coming: UpcomingSchedule, scale: Scale, times: Times) -> Sequence[tuple[datetime, Mark]]:
        """Return the drawings of the runs of a schedule, made once."""
        key = times.zone_name, coming.name
        if key not in self.marks:
            usual = format_duration(coming.usual_seconds)
            self.marks[key] = [(run.due_at, _draw_plan(run, usual, scale, times)) for run in coming.runs]
        return self.marks[key]


@router.get("/timeline")
async def show_timeline(
    request: Request,
    call: Reader,
    window: Window = "24h",
    at: datetime | None = None,
    search: Annotated[str, Query(max_length=200)] = "",
    order: Order = "next",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show past executions and coming runs of all schedules."""
    view = PageView(request, call)
    zone = view.viewer.zone_name
    model = await view.shared(
        ("timeline", window, at, search, order, zone, after),
        lambda app: load_timeline(app, view.dashboard.simulations, window, at, search, order, zone, after),
    )
    return await view.render("pages/timeline.html", model, title="Timeline", current="/timeline", modules=("gantt",))


async def load_timeline(
    app: Tenuto,
    simulations: ViewCache,
    window: Window,
    at: datetime | None,
    search: str,
    order: Order,
    zone: str,
    after: str = "",
) -> Timeline:
    """Load the model of the page. The window begins at a multiple of its step, so that it rarely moves."""
    now = (await app.open()).clock.now()
    span = timedelta(hours=WINDOWS[window])
    centre = now if at is None else at if at.tzinfo else at.replace(tzinfo=UTC)
    start = _floor(centre - span / 2, span / _STEPS_PER_WINDOW)
    end = start + span
    scale = Scale(start, span.total_seconds(), draw_ticks(start, end, ZoneInfo(zone), _TICK_HOURS[window]))
    times = Times(now, zone)
    found = await app.schedules.list(after=after or None, search=search or None, limit=MAX_LANES)
    executions, is_complete = await _load_executions(app, start, min(end, now))
    changed_at = max((each.updated_at for each in found), default=now)
    key = start, end, changed_at, sum(each.enabled for each in found), search, after
    forecast = await simulations.get(key, lambda: _load_forecast(app, max(start, now), end))
    upcoming, notes = forecast.upcoming, forecast.notes
    if not is_complete:
        notes = [*notes, f"Only the newest {len(executions):,} executions of this window are shown."]
    past: dict[str, list[ExecutionRecord]] = {}
    for each in executions:
        past.setdefault(each.schedule_name, []).append(each)
    coming = {each.name: each for each in (upcoming.schedules if upcoming else ())}
    conflicts = upcoming.conflicts if upcoming else ()
    lanes = [
        draw_lane(record, past.get(record.name, ()), coming.get(record.name), conflicts, scale, times, forecast)
        for record in found
    ]
    if order == "next":
        if after or len(found) == MAX_LANES:
            notes = [
                *notes,
                f"Each page has {MAX_LANES} schedules by name; the order by next run is that of this page only.",
            ]
        lanes.sort(key=lambda lane: (lane.record.next_run_at is None, lane.record.next_run_at or now, lane.record.name))
    shown = {lane.record.name for lane in lanes}
    return Timeline(
        lanes=lanes,
        scale=scale,
        now_x=round(scale.x(now), 1) if start <= now <= end else None,
        window=window,
        at="" if at is None else _address(centre),
        earlier=_address(start),
        later=_address(end),
        search=search,
        order=order,
        conflicts=[each for each in conflicts if shown.intersection(each.schedules)][:MAX_CONFLICTS],
        clock_changes=[each for each in (upcoming.clock_changes if upcoming else ()) if each.schedule in shown],
        notes=notes,
        next=found[-1].name if len(found) == MAX_LANES else None,
        is_first=not after,
    )


def _floor(instant: datetime, step: timedelta) -> datetime:
    return datetime.fromtimestamp(instant.timestamp() // step.total_seconds() * step.total_seconds(), UTC)


def _address(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _load_executions(app: Tenuto, start: datetime, end: datetime) -> tuple[list[ExecutionRecord], bool]:
    """Return the executions that started in a period, newest first, and whether these are all."""
    found: list[ExecutionRecord] = []
    if end <= start:
        return found, True
    where = f"started:{_address(start)}..{_address(end + timedelta(seconds=1))}"
    while len(found) < MAX_EXECUTIONS:
        page = await app.executions.list(where, below=found[-1].id if found else None, limit=_PAGE_SIZE)
        found += page
        if len(page) < _PAGE_SIZE:
            return found, True
    return found, False


async def _load_forecast(app: Tenuto, start: datetime, end: datetime) -> Forecast:
    """Return the coming runs, or the reason why they cannot be computed."""
    if end <= start:
        return Forecast(None, (), {})
    try:
        found = await app.reports.upcoming(start, end)
    except Invalid as error:
        return Forecast(None, (f"Coming runs cannot be shown: {error.message}. Choose a shorter window.",), {})
    return Forecast(found, [_COMMAND_HINT.sub("", note) for note in found.notes], {})


def draw_ticks(start: datetime, end: datetime, zone: ZoneInfo, hours: int) -> list[Tick]:
    """Return marks at full hours of the zone; midnight is marked by the day."""
    local = start.astimezone(zone).replace(minute=0, second=0, microsecond=0, tzinfo=None)
    local = local.replace(hour=local.hour // hours * hours) if hours < 24 else local.replace(hour=0)
    ticks = []
    while (instant := local.replace(tzinfo=zone).astimezone(UTC)) < end:
        share = (instant - start) / (end - start) * 100
        if 1.5 < share < 98.5:
            ticks.append(Tick(round(share, 3), f"{local:%a} {local.day}" if local.hour == 0 else f"{local:%H:%M}"))
        local += timedelta(hours=hours)
    return ticks


def draw_lane(
    record: ScheduleRecord,
    executions: Sequence[ExecutionRecord],
    coming: UpcomingSchedule | None,
    conflicts: Sequence[Clash],
    scale: Scale,
    times: Times,
    forecast: Forecast,
) -> Lane:
    """Return the lane of a schedule."""
    states = [execution_state(each) for each in executions]
    past = (
        [_draw_execution(each, state, scale, times) for each, state in zip(executions, states, strict=True)]
        if len(executions) <= MAX_MARKS
        else _count_past(executions, states, scale, times)
    )
    planned, run_count = _draw_coming(coming, scale, times, forecast) if coming else ([], 0)
    return Lane(
        record,
        past,
        planned,
        [_draw_conflict(each, scale) for each in conflicts if record.name in each.schedules][:MAX_MARKS],
        ", ".join(f"{count:,} {status_of(state).label.lower()}" for state, count in Counter(states).most_common()),
        f"{run_count:,} upcoming" if run_count else "",
        _describe_expected(record, coming),
    )


def _describe_expected(record: ScheduleRecord, coming: UpcomingSchedule | None) -> Sequence[str]:
    """Say in sentences what the coming runs of a schedule do."""
    found = [f"{record.when}." if record.enabled else "It is disabled: it runs only when it is started."]
    if coming is not None and coming.run_count:
        history = "as its last runs" if coming.duration_source == "history" else "assumed: it has no history"
        found.append(f"A run takes {format_duration(coming.usual_seconds)}, {history}.")
    overlap = describe_overlap(record.overlap).partition(": ")[2]
    missed = describe_misfire(record.misfire).partition(": ")[2]
    return [*found, f"Overlap: {overlap}.", f"Missed runs: {missed}."]


def _draw_coming(
    coming: UpcomingSchedule, scale: Scale, times: Times, forecast: Forecast
) -> tuple[Sequence[Mark], int]:
    """Return the drawings of the runs that are still to come, and their number."""
    runs = [run for run in coming.runs if run.due_at >= times.now]
    run_count = coming.run_count - (len(coming.runs) - len(runs))
    if run_count > MAX_MARKS:
        return [_count_coming(run_count, runs, scale, times)], run_count
    return [mark for due_at, mark in forecast.draw(coming, scale, times) if due_at >= times.now], run_count


def _draw_execution(each: ExecutionRecord, state: str, scale: Scale, times: Times) -> Mark:
    end = each.ended_at or times.now
    width = scale.width(each.started_at, end)
    duration = format_duration((end - each.started_at).total_seconds())
    title = f"{status_of(state).label}, started {times.title(each.started_at)}"
    return Mark(
        "run",
        scale.x(each.started_at),
        round(width, 2 if each.ended_at else 1),
        status_of(state).tone,
        f"{title}, ran {duration}" if each.ended_at else title,
        each.id,
        is_small=width < SMALL_PERCENT,
        grows=each.ended_at is None,
    )


def _draw_plan(run: SimulatedRun, usual: str, scale: Scale, times: Times) -> Mark:
    due = f"due {times.title(run.due_at)}"
    if run.starts_at is None:
        return Mark("skip", scale.x(run.due_at), 0, "wait", f"{run.decision.capitalize()}, {due}: {run.reason or ''}")
    width = scale.width(run.starts_at, run.ends_at or run.starts_at)
    waits = "" if run.starts_at == run.due_at else f", starts {times.title(run.starts_at)}"
    ending = "; cancelled by the next run" if run.cut else ""
    title = f"D{due[1:]}{waits}, usually {usual}{ending}"
    return Mark("plan", scale.x(run.starts_at), width, "wait", title, is_small=width < SMALL_PERCENT)


def _draw_conflict(clash: Clash, scale: Scale) -> Mark:
    width = scale.width(clash.at, clash.until or clash.at)
    return Mark("plan", scale.x(clash.at), width, "retry", clash.message, is_small=width < SMALL_PERCENT)


def _count_past(executions: Sequence[ExecutionRecord], states: Sequence[str], scale: Scale, times: Times) -> list[Mark]:
    """Return one column per part of the window; its colour is the worst outcome."""
    columns: dict[int, list[str]] = {}
    for each, state in zip(executions, states, strict=True):
        columns.setdefault(min(int(scale.x(each.started_at) / 100 * _COLUMNS), _COLUMNS - 1), []).append(state)
    largest = max(map(len, columns.values()))
    width = 100 / _COLUMNS
    marks = []
    for column, found in sorted(columns.items()):
        at = scale.start + timedelta(seconds=scale.span_seconds * column / _COLUMNS)
        tones = {status_of(state).tone for state in found}
        tone = next((each for each in _TONE_ORDER if each in tones), "wait")
        title = f"{len(found)} executions from {times.title(at)}, {found.count('completed')} completed"
        height = round(4 + 14 * len(found) / largest, 1)
        marks.append(Mark("past-count", round(column * width, 3), round(width, 3), tone, title, height=height))
    return marks


def _count_coming(count: int, runs: Sequence[SimulatedRun], scale: Scale, times: Times) -> Mark:
    """Return one band for many coming runs."""
    first = runs[0].due_at if runs else scale.start
    title = f"{count:,} runs from {times.title(first)}"
    return Mark("plan-count", scale.x(first), scale.width(first, scale.end), "wait", title)
