"""``/schedules``: the list of schedules, and the page of one schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.bodies.definition_bodies import schedule_to_fields
from tenuto.api.parameters import Name
from tenuto.app import Tenuto
from tenuto.model.definitions.schedules import (
    Plan,
    ScheduleDefinition,
    misfire_from_stored_fields,
    parse_overlap_policy,
    plan_from_fields,
)
from tenuto.model.definitions.steps import JOB, Step
from tenuto.model.filters import quote_value
from tenuto.model.triggers import describe_trigger, trigger_from_fields
from tenuto.operations.work.execution_timeline import list_step_values
from tenuto.presentation.descriptions import describe_misfire, describe_overlap
from tenuto.presentation.execution_states import execution_state
from tenuto.store.access.audit_log import HistoryEntry
from tenuto.store.definitions.definition_rows import Version
from tenuto.store.definitions.schedules import Schedule, ScheduleRecord
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work.executions import ExecutionRecord
from tenuto.web.components.definition_forms import find_schema
from tenuto.web.components.filters import count_text
from tenuto.web.components.html_elements import Outcome
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.components.version_history import (
    HISTORY_COUNT,
    VERSION_COUNT,
    DefinitionTab,
    HistoryRow,
    VersionsTab,
    make_history,
    make_versions_tab,
)
from tenuto.web.page import PageRoute, PageView, Reader
from tenuto.web.views.work.executions import ExecutionRow

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE_SIZE = 50
MAX_RUN_FORMS = 50
STRIP_LENGTH = 20


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule in the list."""

    record: ScheduleRecord
    description: str
    zone: str | None
    last_state: str | None
    step_count: int
    group_count: int
    outcomes: Sequence[Outcome]
    """The last executions, oldest first."""


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """One page of the list."""

    rows: Sequence[ScheduleRow]
    search: str
    enabled: bool | None
    next: str | None
    is_first: bool
    total: CappedCount
    strip_length: int = STRIP_LENGTH

    @property
    def filter_text(self) -> str:
        """The selection of the list as a filter of bulk operations."""
        clauses = [f"name:~{quote_value(self.search)}"] if self.search else []
        if self.enabled is not None:
            clauses.append(f"enabled:{'yes' if self.enabled else 'no'}")
        return " ".join(clauses)

    @property
    def total_text(self) -> str:
        return count_text(self.total)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    name: str
    kind: str
    target: str
    continue_on_failure: bool
    depends: str
    """What it takes from earlier steps."""


def _planned_step(step: Step) -> PlannedStep:
    parts = [f"needs {', '.join(step.needs)}"] if step.needs else []
    parts += [] if step.when is None else [f"if {step.when}"]
    parts += [f"{each.argument} from {each.source}" for each in list_step_values(step)]
    return PlannedStep(step.name, step.kind, step.target, step.continue_on_failure, "; ".join(parts))


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
    tab: DefinitionTab
    versions: VersionsTab | None
    history: Sequence[HistoryRow]
    run_forms: Sequence[ArgumentsForm]
    """Arguments of the job steps, by the name of the step."""

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
    return await view.render(
        "pages/schedules.html", model, title="Schedules", current="/schedules", modules=("select",)
    )


async def load_schedules(app: Tenuto, search: str, enabled: bool | None, after: str | None) -> ScheduleList:
    """Load one page of the list."""
    found = await app.schedules.list(after=after, enabled=enabled, search=search or None, limit=PAGE_SIZE)
    outcomes: dict[UUID, list[Outcome]] = {}
    for each in await app.executions.recent_outcomes([each.id for each in found], STRIP_LENGTH):
        outcome = Outcome(each.id, execution_state(each), each.started_at)
        outcomes.setdefault(each.schedule_id, []).append(outcome)
    rows = [_schedule_row(each, outcomes.get(each.id, ())) for each in found]
    following = found[-1].name if len(found) == PAGE_SIZE else None
    shown = ScheduleList(rows, search, enabled, following, after is None, CappedCount(len(rows), is_exact=True))
    if following is None and after is None:
        return shown
    preview = await app.bulk_operations.preview("schedule.disable", shown.filter_text)
    return replace(shown, total=CappedCount(preview.count, preview.is_exact))


def _schedule_row(record: ScheduleRecord, outcomes: Sequence[Outcome]) -> ScheduleRow:
    state = None if record.last_state is None else str(record.last_state)
    return ScheduleRow(
        record,
        record.when,
        record.trigger.get("zone"),
        "running" if state == "in_progress" else state,
        record.step_count,
        record.group_count,
        outcomes,
    )


@router.get("/schedules/{name:name}")
async def show_schedule(
    request: Request,
    call: Reader,
    name: Name,
    tab: DefinitionTab = "overview",
    a: Annotated[int | None, Query(ge=1)] = None,
    b: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Show a schedule: overview, versions with the difference of a and b, or history."""
    view = PageView(request, call)
    model = await view.shared(("schedule", name, tab, a, b), lambda app: load_schedule(app, name, tab, a, b))
    return await view.render(
        "pages/schedule.html",
        model,
        title=name,
        current="/schedules",
        modules=("forms",),
        place="schedule",
        subject=model.record,
    )


async def load_schedule(
    app: Tenuto, name: str, tab: DefinitionTab = "overview", a: int | None = None, b: int | None = None
) -> SchedulePage:
    """Load the model of the page."""
    record = await app.schedules.get(name)
    next_runs: Sequence[datetime] = ()
    executions: Sequence[ExecutionRecord] = ()
    ledger: Sequence[Any] = ()
    usual: Mapping[Any, float] = {}
    versions: Sequence[Version] = ()
    history: Sequence[HistoryEntry] = ()
    if tab == "overview":
        next_runs, executions, ledger, usual = await asyncio.gather(
            app.schedules.next(name, 5),
            app.executions.list(schedule=name, limit=STRIP_LENGTH),
            app.schedules.ledger(name, limit=15),
            app.executions.usual_seconds([record.id]),
        )
    else:
        versions = await app.schedules.versions(record.id, limit=VERSION_COUNT)
    if tab == "history":
        history = await app.audit.history(f"schedule:{name}", limit=HISTORY_COUNT)
    fields = record.definition.to_fields()
    trigger = fields["trigger"]
    return SchedulePage(
        record=record,
        description=describe_trigger(trigger),
        zone=trigger.get("zone"),
        overlap=describe_overlap(str(fields.get("overlap", "skip"))),
        misfire=describe_misfire(fields.get("misfire") or {}),
        groups=[[_planned_step(step) for step in group] for group in record.plan.groups],
        next_runs=next_runs,
        executions=[_execution_row(each, usual.get(record.id)) for each in executions],
        ledger=ledger,
        tab=tab,
        versions=None
        if tab != "versions"
        else make_versions_tab(versions, record.version, a, b, lambda stored: _to_body(stored, name)),
        history=make_history(history, versions),
        run_forms=make_run_forms(app, record.plan),
    )


def make_run_forms(app: Tenuto, plan: Plan) -> list[ArgumentsForm]:
    """Return the arguments of the job steps of a plan; not for very large plans."""
    steps = [step for _, _, step in plan.enumerate_steps() if step.kind == JOB]
    if len(steps) > MAX_RUN_FORMS:
        return []
    return [make_arguments_form(step.name, find_schema(app, JOB, step.target)[0], step.arguments) for step in steps]


def _to_body(stored: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a stored version as the body of a request, under the present name."""
    definition = ScheduleDefinition(
        name,
        trigger_from_fields(stored["trigger"]),
        plan_from_fields(stored["steps"]),
        stored.get("description", ""),
        parse_overlap_policy(stored.get("overlap", "skip")),
        misfire_from_stored_fields(stored.get("misfire") or {}),
    )
    return schedule_to_fields(definition)


def _execution_row(each: ExecutionRecord, usual_seconds: float | None) -> ExecutionRow:
    return ExecutionRow(each, execution_state(each), each.error, usual_seconds)
