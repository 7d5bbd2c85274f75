"""``/api/v1/schedules`` and ``/api/v1/ledger``: schedules, their versions, manual runs and the occurrence ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.definition_bodies import (
    SCHEDULE_READ_ONLY_FIELDS,
    IfMatch,
    drop_fields,
    locating_steps,
    parse_etag,
    pop_enabled,
    refuse_enabled_change,
    schedule_to_fields,
    stored_fields,
)
from tenuto.api.bodies.definition_errors import (
    ChangedField,
    FieldError,
    collect_errors,
    describe_error,
    find_trigger,
    parse_schedule,
    parse_trigger,
)
from tenuto.api.bodies.definition_models import (
    DescribedBy,
    MisfireFields,
    NewSchedule,
    ScheduleReplacement,
    ScheduleResource,
    Trigger,
)
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.bodies.responses import Changed
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import FilterText, describe_filtered_page, parse_query
from tenuto.api.list_pages import After, Limit, Page, cursor_instant, cursor_int, decode_cursor, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Name, NameFilter, TextFilter, quote_path_part
from tenuto.api.problems import Refused
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.errors import Invalid
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import LEDGER_KEYS
from tenuto.model.work.occurrences import Decision
from tenuto.operations.definitions.backfills import MAX_PARALLEL, BackfillPreview
from tenuto.operations.definitions.schedule_checks import TriggerExplanation
from tenuto.presentation.definition_views import LEDGER, SCHEDULES
from tenuto.presentation.descriptions import describe_changes
from tenuto.scheduling.firing import RunResult
from tenuto.simulation.simulator import Clash
from tenuto.store.definitions.definition_rows import Version
from tenuto.store.definitions.schedules import LedgerRecord, Schedule, ScheduleRecord
from tenuto.store.work.bulk_operations import BulkOperationRecord

router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=ApiRoute)

EXAMPLE = {
    "name": "Nightly HR Sync",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "import", "job": "hr_import", "input": {"full": True}, "timeout": 1800.0},
        [{"name": "export to AD", "job": "ad_export"}, {"name": "export to LDAP", "job": "ldap_export"}],
    ],
    "overlap": "skip",
}

RESPONSE = {**EXAMPLE, "enabled": True, "version": 3, "next_run_at": "2031-05-05T01:00:00Z"}
LISTED = {
    "name": EXAMPLE["name"],
    "trigger": EXAMPLE["trigger"],
    "misfire": {"policy": "once"},
    "enabled": True,
    "step_count": 3,
    "last_state": "completed",
}
EXECUTION_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
VERSION = {"version": 3, "change": "edited", "at": "2031-05-03T09:00:00Z", "reason": "an hour later"}
ENTRY = {"schedule_name": EXAMPLE["name"], "due_at": "2031-05-04T01:00:00Z", "decision": "fired", "reason": None}

EXPLANATION = {
    "trigger": {"kind": "cron", "cron": "30 1 * * *", "zone": "Europe/London"},
    "description": "Every day at 01:30, Europe/London",
    "zone": "Europe/London",
    "next_runs": ["2031-05-05T00:30:00Z"],
    "clock_changes": [
        {
            "schedule": "",
            "at": "2032-03-28T01:00:00Z",
            "message": "on 2032-03-28 the clock of Europe/London is set forward from 01:00 to 02:00: "
            "01:30 does not exist; it runs once, at 02:00",
        }
    ],
}
CHECK = {
    "is_valid": True,
    "errors": [],
    "explanation": EXPLANATION,
    "changes": [
        {"title": "when", "lines": ["- Every day at 02:00, Europe/London", "+ Every day at 01:30, Europe/London"]}
    ],
    "usual_seconds": 190.0,
    "conflicts": [],
    "conflicts_until": "2031-05-11T02:00:00Z",
    "notes": [],
}

INVALID_DEFINITION = (
    "definition.*",
    "schedule.*",
    "step.*",
    "trigger.*",
    "retry.*",
    "task.*",
    "value.*",
    "job.unknown",
    "job.input.invalid",
    "secret.*",
)
"""Families of the codes of the parser; see the reference of error codes."""
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "schedule.read")]


class BackfillPeriod(Body):
    """A past period of a schedule."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"start": "2031-05-04", "end": "2031-05-31"}]})

    start: str = Field(
        max_length=60, description="First due time: an instant with an offset, or a date in the schedule's zone."
    )
    end: str = Field(
        max_length=60, description="Last due time: an instant with an offset, or a date, whose whole day counts."
    )


class NewBackfill(BackfillPeriod):
    """A new backfill."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"start": "2031-05-04", "end": "2031-05-31", "parallel": 4}]}
    )

    parallel: int = Field(default=1, ge=1, le=MAX_PARALLEL, description="Number of executions that may run at a time.")
    reason: str | None = Field(default=None, max_length=4000, description="Reason, stored with the backfill.")


@dataclass(frozen=True, slots=True)
class ListedSchedule(ScheduleRecord):
    """A schedule in a list, with its last run."""

    trigger: Annotated[dict[str, Any], DescribedBy(Trigger)]
    misfire: Annotated[dict[str, Any], DescribedBy(MisfireFields)]


class RunArguments(Body):
    """Arguments of a manual run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"arguments": {"import": {"full": True}}}]})

    arguments: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Arguments by step name, for this run only. Steps other than jobs require the role editor.",
    )


class Preview(BaseModel):
    """Next runs."""

    runs: Sequence[datetime]


@router.get("/schedules", operation_id="schedules_list", responses=describe_page(LISTED))
@listed_as(SCHEDULES)
async def list_schedules(
    call: Viewer, enabled: bool | None = None, search: NameFilter = None, limit: Limit = 100, after: After = None
) -> Page[ListedSchedule]:
    """List schedules by name, each with its last run."""
    found = await call.app.schedules.list(after=decode_key(after, str), enabled=enabled, search=search, limit=limit)
    return make_page([_list_item(each) for each in found], limit, lambda each: (each.name,))


@router.post(
    "/schedules",
    operation_id="schedules_create",
    status_code=201,
    responses=describe(RESPONSE, 201, conflict="schedule.already_exists", invalid=INVALID_DEFINITION),
)
async def create_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.create", handles_repeats=True)],
    definition: Annotated[dict[str, Any], DescribedBy(NewSchedule)],
    response: Response,
) -> ScheduleResource:
    """Create a schedule."""
    enabled = pop_enabled(definition)
    new = parse_schedule(definition)
    with locating_steps(new):
        schedule = await call.app.schedules.create(
            new.definition, enabled=enabled, reason=call.reason, request_id=call.object_id
        )
    response.headers["Location"] = f"/api/v1/schedules/{quote_path_part(schedule.name)}"
    return _schedule_resource(schedule, response)


class TriggerQuestion(Body):
    """A trigger to explain."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"trigger": {"kind": "cron", "cron": "30 1 * * *", "zone": "Europe/London"}}]}
    )

    trigger: Annotated[dict[str, Any], DescribedBy(Trigger)]
    count: int = Field(default=5, ge=1, le=100, description="Number of next runs.")


@router.post(
    "/triggers/explain",
    operation_id="triggers_explain",
    responses=describe(EXPLANATION, invalid=("definition.*", "trigger.*", "value.*", "schedule.*")),
)
async def explain_trigger(call: Viewer, question: TriggerQuestion) -> TriggerExplanation:
    """Explain a trigger in plain English, with its next runs and the effects of clock changes within a year. Nothing is
    saved."""
    return await call.app.schedules.explain(parse_trigger(question.trigger), count=question.count)


class ScheduleCheckResult(BaseModel):
    """Changes and effects of saving a definition, or its errors."""

    is_valid: bool
    errors: list[FieldError]
    explanation: TriggerExplanation | None = Field(description="Null if the trigger is not valid.")
    changes: list[ChangedField] = Field(description="Differences from the stored definition.")
    usual_seconds: float | None = Field(description="Usual duration of a run; null without history.")
    conflicts: list[Clash] = Field(description="Conflicts with other runs in which the schedule takes part.")
    conflicts_until: datetime | None
    notes: list[str]


@router.post(
    "/schedules/check",
    operation_id="schedules_check",
    responses=describe(CHECK, not_found="schedule.not_found"),
)
async def check_schedule(
    call: Viewer,
    definition: Annotated[dict[str, Any], DescribedBy(ScheduleReplacement)],
    replaces: Annotated[str | None, Query(max_length=200, description="Name of the stored schedule to change.")] = None,
    count: Annotated[int, Query(ge=1, le=100, description="Number of next runs.")] = 5,
) -> ScheduleCheckResult:
    """Check a definition without saving it. Returns the errors by field, or what saving it would change and cause: next
    runs, clock changes, conflicts with other schedules."""
    stored = None if replaces is None else await call.app.schedules.get(replaces)
    fields = drop_fields(definition, SCHEDULE_READ_ONLY_FIELDS)
    if stored is not None:
        fields = {"name": stored.name, **fields}
    stored_steps = [] if stored is None else schedule_to_fields(stored.definition)["steps"]
    call.app.jobs.load_more_kinds()  # not in the thread: it changes what other requests read
    errors = await asyncio.to_thread(collect_errors, call.app, fields, stored_steps)
    if not errors:
        declared = parse_schedule(fields)
        new = declared.definition
        if stored is not None and fields["steps"] == stored_steps:
            new = replace(new, plan=stored.definition.plan)
        try:
            with locating_steps(declared):
                found = await call.app.schedules.check(new, replaces=replaces, count=count)
        except Invalid as error:
            errors = [describe_error(error)]
        else:
            before = None if found.stored is None else found.stored.definition.to_fields()
            changes = describe_changes(before, found.definition.to_fields())
            return ScheduleCheckResult(
                is_valid=True,
                errors=[],
                explanation=found.explanation,
                changes=[ChangedField(title=title, lines=lines) for title, lines in changes],
                usual_seconds=found.usual_seconds,
                conflicts=list(found.conflicts),
                conflicts_until=found.conflicts_until,
                notes=list(found.notes),
            )
    trigger = find_trigger(fields)
    explanation = None if trigger is None else await call.app.schedules.explain(trigger, count=count)
    return ScheduleCheckResult(
        is_valid=False,
        errors=errors,
        explanation=explanation,
        changes=[],
        usual_seconds=None,
        conflicts=[],
        conflicts_until=None,
        notes=[],
    )


@router.get(
    "/schedules/{name:name}",
    operation_id="schedules_get",
    responses=describe(RESPONSE, not_found="schedule.not_found"),
)
async def get_schedule(call: Viewer, name: Name, response: Response) -> ScheduleResource:
    """Get a schedule. The response may be sent back with PUT."""
    return _schedule_resource(await call.app.schedules.get(name), response)


@router.put(
    "/schedules/{name:name}",
    operation_id="schedules_replace",
    responses=describe(
        RESPONSE,
        not_found="schedule.not_found",
        conflict=(
            "definition.version_conflict",
            "schedule.already_exists",
            "schedule.name.declared",
            "schedule.in_use",
        ),
        invalid=(*INVALID_DEFINITION, "request.if_match.invalid"),
    ),
)
async def change_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.change")],
    name: Name,
    definition: Annotated[dict[str, Any], DescribedBy(ScheduleReplacement)],
    response: Response,
    if_match: IfMatch = None,
) -> ScheduleResource:
    """Replace the definition of a schedule."""
    version = parse_etag(if_match)
    current = await call.app.schedules.get(name)
    refuse_enabled_change(definition, enabled=current.enabled)
    fields = {"name": name, **drop_fields(definition, SCHEDULE_READ_ONLY_FIELDS)}
    declared = parse_schedule(fields)
    new = declared.definition
    if fields["steps"] == schedule_to_fields(current.definition)["steps"]:
        new = replace(new, plan=current.definition.plan)
    with locating_steps(declared):
        changed = await call.app.schedules.edit(name, new, reason=call.reason, version=version)
    return _schedule_resource(changed, response)


@router.delete(
    "/schedules/{name:name}",
    operation_id="schedules_delete",
    status_code=204,
    responses=describe(
        not_found="schedule.not_found",
        conflict=("definition.version_conflict", "schedule.running", "schedule.in_use"),
        invalid="request.if_match.invalid",
    ),
)
async def delete_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.delete")], name: Name, if_match: IfMatch = None
) -> None:
    """Delete a schedule that has no active execution. Its history stays."""
    await call.app.schedules.delete(name, reason=call.reason, version=parse_etag(if_match))


@router.post(
    "/schedules/{name:name}/enable",
    operation_id="schedules_enable",
    responses=describe({"changed": True}, not_found="schedule.not_found"),
)
async def enable_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.enable", handles_repeats=True)], name: Name
) -> Changed:
    """Enable a schedule from now on."""
    # A request that changed nothing is not stored, so the first request of a repeated one made the change.
    return Changed(changed=call.is_repeat or await call.app.schedules.enable(name, reason=call.reason))


@router.post(
    "/schedules/{name:name}/disable",
    operation_id="schedules_disable",
    responses=describe({"changed": True}, not_found="schedule.not_found"),
)
async def disable_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.disable", handles_repeats=True)], name: Name
) -> Changed:
    """Disable a schedule. Manual runs remain possible."""
    # A request that changed nothing is not stored, so the first request of a repeated one made the change.
    return Changed(changed=call.is_repeat or await call.app.schedules.disable(name, reason=call.reason))


@router.post(
    "/schedules/{name:name}/run",
    operation_id="schedules_run",
    status_code=202,
    responses=describe(
        {"decision": "fired", "execution_id": EXECUTION_ID},
        202,
        forbidden="step.arguments.forbidden",
        not_found="schedule.not_found",
        conflict="schedule.run.rejected",
        invalid=("schedule.*", "step.*", "job.unknown", "job.input.invalid", "value.*"),
    ),
)
async def run_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.run", handles_repeats=True)],
    name: Name,
    response: Response,
    body: RunArguments | None = None,
) -> RunResult:
    """Run a schedule now. If an execution is active, the overlap policy decides: the run is queued (without an
    execution id) or refused with 409."""
    started = await call.app.schedules.run(
        name,
        arguments=None if body is None else body.arguments,
        jobs_only=not call.caller.has_role(Role.EDITOR),
        request_id=call.object_id,
    )
    if started.decision is Decision.SKIPPED:
        raise Refused(
            409,
            f"the run of schedule {name!r} was skipped: {started.reason}",
            code="schedule.run.rejected",
            remedy="run it when the active execution has ended, or choose another overlap policy",
        )
    if started.execution_id is not None:
        response.headers["Location"] = f"/api/v1/executions/{started.execution_id}"
    return started


BACKFILL_PROBLEMS = (
    "schedule.backfill.no_trigger",
    "schedule.backfill.period",
    "schedule.backfill.too_many",
    "value.*",
)


@router.post(
    "/schedules/{name:name}/backfill/preview",
    operation_id="schedules_preview_backfill",
    responses=describe(
        {
            "schedule": "Nightly HR Sync",
            "start": "2031-05-03T23:00:00Z",
            "end": "2031-05-05T22:59:59.999999Z",
            "instants": ["2031-05-04T01:00:00Z"],
            "existing_count": 1,
        },
        not_found="schedule.not_found",
        invalid=BACKFILL_PROBLEMS,
    ),
)
async def preview_backfill(call: Viewer, name: Name, period: BackfillPeriod) -> BackfillPreview:
    """List the due instants of a past period that have no run. Changes nothing."""
    return await call.app.schedules.preview_backfill(name, period.start, period.end)


@router.post(
    "/schedules/{name:name}/backfill",
    operation_id="schedules_backfill",
    status_code=202,
    responses=describe(
        {
            "id": EXECUTION_ID,
            "kind": "schedule.backfill",
            "description": "28 runs of Nightly HR Sync, 2031-05-03 23:00 UTC to 2031-05-31 22:59 UTC",
            "state": "running",
            "item_count": 28,
            "max_running": 4,
        },
        202,
        not_found="schedule.not_found",
        invalid=(
            *BACKFILL_PROBLEMS,
            "schedule.backfill.nothing_to_run",
            "schedule.backfill.parallel",
        ),
    ),
)
async def backfill_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.backfill", handles_repeats=True)],
    name: Name,
    new: NewBackfill,
    response: Response,
) -> BulkOperationRecord:
    """Run a schedule for past due instants that have no run, as a bulk operation. Schedulers start the executions,
    oldest first, and keep at most `parallel` of them open."""
    created = await call.app.schedules.backfill(
        name,
        new.start,
        new.end,
        parallel=new.parallel,
        reason=new.reason or call.reason,
        request_id=call.object_id,
    )
    response.headers["Location"] = f"/api/v1/operations/{created.id}"
    return created


@router.get(
    "/schedules/{name:name}/why",
    operation_id="schedules_why",
    responses=describe(
        {
            "id": EXECUTION_ID,
            "name": "Nightly HR Sync",
            "state": "disabled",
            "reasons": [
                {
                    "code": "disabled",
                    "message": "it is disabled by ana since 2031-05-04 02:00:00 UTC",
                    "fields": {"disabled_by": "ana", "disabled_at": "2031-05-04T02:00:00Z"},
                    "command": "tenuto schedule enable 'Nightly HR Sync'",
                }
            ],
        },
        not_found="schedule.not_found",
    ),
)
async def why_schedule(call: Viewer, name: Name) -> Diagnosis:
    """Explain why a schedule does not run, or when it will. Each reason has a code, a message, its instants, names and
    numbers as `fields`, and the command that helps."""
    return await call.app.schedules.why(name)


@router.get(
    "/schedules/{name:name}/preview",
    operation_id="schedules_preview",
    responses=describe({"runs": ["2031-05-05T01:00:00Z"]}, not_found="schedule.not_found"),
)
async def preview_schedule(
    call: Viewer, name: Name, count: Annotated[int, Query(ge=1, le=100, description="Number of runs, 1 to 100.")] = 10
) -> Preview:
    """List the next runs of a schedule."""
    return Preview(runs=await call.app.schedules.next(name, count))


@router.get(
    "/schedules/{name:name}/versions",
    operation_id="schedules_versions",
    responses=describe_page(VERSION, not_found="schedule.not_found"),
)
async def schedule_versions(call: Viewer, name: Name, limit: Limit = 50, after: After = None) -> Page[Version]:
    """List the versions of a schedule, newest first: actor, time, reason, definition before and after."""
    found = await call.app.schedules.versions(
        name, before=decode_cursor(after, cursor_instant, cursor_int), limit=limit
    )
    return make_page(found, limit, lambda each: (each.at.isoformat(), each.version))


@router.get(
    "/ledger", operation_id="ledger_list", responses=describe_filtered_page(ENTRY, not_found="schedule.not_found")
)
@listed_as(LEDGER)
async def list_ledger(
    call: Viewer,
    q: FilterText = None,
    schedule: TextFilter = None,
    decision: Decision | None = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[LedgerRecord]:
    """List the occurrence ledger: every due instant and its decision, newest first."""
    cursor = decode_cursor(after, cursor_instant, UUID)
    found = await call.app.schedules.ledger(
        schedule,
        where=await parse_query(call, LEDGER_KEYS, q),
        before=cursor[0] if cursor else None,
        below=cursor[1] if cursor else None,
        decision=decision,
        limit=limit,
    )
    return make_page(found, limit, lambda each: (each.due_at.isoformat(), each.id))


# --- conversion -------------------------------------------------------------------------------------------------------


def _list_item(schedule: ScheduleRecord) -> ListedSchedule:
    return ListedSchedule(**{field.name: getattr(schedule, field.name) for field in fields(schedule)})


def _schedule_resource(schedule: Schedule, response: Response) -> ScheduleResource:
    return ScheduleResource(**schedule_to_fields(schedule.definition), **stored_fields(schedule, response))
