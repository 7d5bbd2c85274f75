"""``/schedules``: the list of schedules, and the page of one schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.parameters import Name
from tenuto.app import Tenuto
from tenuto.model.schedules import ScheduleDefinition
from tenuto.presentation.descriptions import describe_misfire, describe_overlap, describe_trigger
from tenuto.presentation.execution_states import execution_state
from tenuto.store.executions import ExecutionRecord
from tenuto.store.schedules import Schedule, ScheduleRecord
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.executions import ExecutionRow

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE_SIZE = 50
STRIP_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """An execution in a strip of outcomes."""

    id: Any
    state: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule in the list."""

    record: ScheduleRecord
    description: str
    zone: str | None
    last_state: str | None
    step_count: int
    group_count: int


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """One page of the list."""

    rows: Sequence[ScheduleRow]
    search: str
    enabled: bool | None
    next: str | None
    is_first: bool


@dataclass(frozen=True, slots=True)
class PlannedStep:
    name: str
    kind: str
    target: str
    continue_on_failure: bool


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """One schedule."""

    record: Schedule
    description: str
    zone: str | None
    overlap: str
    misfire: str
    groups: Sequence[Sequence[PlannedStep]]
    next_runs: Sequence[datetime]
    executions: Sequence[ExecutionRow]
    ledger: Sequence[Any]
    versions: Sequence[Any]

    @property
    def definition(self) -> ScheduleDefinition:
        return self.record.definition


@router.get("/schedules")
async def show_schedules(
    request: Request,
    call: Reader,
    search: Annotated[str, Query(max_length=200)] = "",
    enabled: bool | None = None,
    after: Annotated[str | None, Query(max_length=300)] = None,
) -> Response:
    """Show schedules by name."""
    view = PageView(request, call)
    model = await view.shared(
        ("schedules", search, enabled, after), lambda app: load_schedules(app, search, enabled, after)
    )
    return await view.render("pages/schedules.html", model, title="Schedules", current="/schedules")


async def load_schedules(app: Tenuto, search: str, enabled: bool | None, after: str | None) -> ScheduleList:
    """Load one page of the list."""
    found = await app.schedules.list(after=after, enabled=enabled, search=search or None, limit=PAGE_SIZE)
    rows = [_schedule_row(each) for each in found]
    following = found[-1].name if len(found) == PAGE_SIZE else None
    return ScheduleList(rows, search, enabled, following, after is None)


def _schedule_row(record: ScheduleRecord) -> ScheduleRow:
    state = None if record.last_state is None else str(record.last_state)
    return ScheduleRow(
        record,
        describe_trigger(record.trigger),
        record.trigger.get("zone"),
        "running" if state == "in_progress" else state,
        sum(len(group) for group in record.plan),
        len(record.plan),
    )


@router.get("/schedules/{name:name}")
async def show_schedule(request: Request, call: Reader, name: Name) -> Response:
    """Show a schedule."""
    view = PageView(request, call)
    model = await view.shared(("schedule", name), lambda app: load_schedule(app, name))
    return await view.render("pages/schedule.html", model, title=name, current="/schedules")


async def load_schedule(app: Tenuto, name: str) -> SchedulePage:
    """Load the model of the page."""
    record = await app.schedules.get(name)
    next_runs, executions, ledger, versions = await asyncio.gather(
        app.schedules.next(name, 5),
        app.executions.list(schedule=name, limit=STRIP_LENGTH),
        app.schedules.ledger(name, limit=15),
        app.schedules.versions(name, limit=15),
    )
    fields = record.definition.to_fields()
    trigger = fields["trigger"]
    return SchedulePage(
        record=record,
        description=describe_trigger(trigger),
        zone=trigger.get("zone"),
        overlap=describe_overlap(str(fields.get("overlap", "skip"))),
        misfire=describe_misfire(fields.get("misfire") or {}),
        groups=[
            [PlannedStep(step.name, step.kind, step.target, step.continue_on_failure) for step in group]
            for group in record.plan.groups
        ],
        next_runs=next_runs,
        executions=[_execution_row(each) for each in executions],
        ledger=ledger,
        versions=versions,
    )


def _execution_row(each: ExecutionRecord) -> ExecutionRow:
    return ExecutionRow(each, execution_state(each), each.error)
