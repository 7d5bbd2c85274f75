"""``/api/v1/schedules`` and ``/api/v1/ledger``: schedules, their versions, manual runs and the occurrence ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Query, Response

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.definition_bodies import (
    SCHEDULE_READ_ONLY_FIELDS,
    IfMatch,
    drop_fields,
    parse_definition,
    parse_etag,
    pop_enabled,
    refuse_enabled_change,
    schedule_to_fields,
    version_to_wire,
)
from tenuto.api.openapi import describe, describe_page
from tenuto.api.paging import After, Limit, Page, cursor_instant, cursor_int, decode_cursor, make_page
from tenuto.api.parameters import Name, NameFilter, TextFilter, quote_path_part
from tenuto.definitions.definition_files import parse_schedules
from tenuto.model.actors import Role
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import ScheduleDefinition
from tenuto.store.schedules import Schedule

router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=ApiRoute)

EXAMPLE = {
    "name": "Nightly HR Sync",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "import", "job": "hr_import", "input": {"full": True}, "timeout": "30m"},
        [{"name": "export to AD", "job": "ad_export"}, {"name": "export to LDAP", "job": "ldap_export"}],
    ],
    "overlap": "skip",
}

RESPONSE = {**EXAMPLE, "enabled": True, "version": 3, "next_run_at": "2031-05-05T01:00:00Z"}
LISTED = {"name": EXAMPLE["name"], "enabled": True, "total_steps": 3, "last_state": "completed"}
VERSION = {"version": 3, "change": "edited", "at": "2031-05-03T09:00:00Z", "reason": "an hour later"}
ENTRY = {"schedule_name": EXAMPLE["name"], "due_at": "2031-05-04T01:00:00Z", "decision": "fired", "reason": None}

DefinitionBody = Annotated[dict[str, Any], Body(examples=[EXAMPLE], description="A schedule as in a definition file.")]
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "schedule.read")]


@router.get("/schedules", operation_id="schedules_list", responses=describe_page(LISTED))
async def list_schedules(
    call: Viewer, enabled: bool | None = None, search: NameFilter = None, limit: Limit = 100, after: After = None
) -> Page[Any]:
    """List schedules by name, each with its last run."""
    cursor = decode_cursor(after, str)
    found = await call.app.schedules.list(
        after=cursor[0] if cursor else None, enabled=enabled, search=search, limit=limit
    )
    return make_page([_list_item_to_wire(each) for each in found], limit, lambda each: (each["name"],))


@router.post("/schedules", operation_id="schedules_create", status_code=201, responses=describe(RESPONSE, 201))
async def create_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.create")], definition: DefinitionBody, response: Response
) -> dict[str, Any]:
    """Create a schedule."""
    enabled = pop_enabled(definition)
    schedule = await call.app.schedules.create(
        _parse(definition), enabled=enabled, reason=call.reason, request_id=call.object_id
    )
    response.headers["Location"] = f"/api/v1/schedules/{quote_path_part(schedule.name)}"
    return _schedule_to_wire(schedule, response)


@router.get("/schedules/{name:name}", operation_id="schedules_get", responses=describe(RESPONSE))
async def get_schedule(call: Viewer, name: Name, response: Response) -> dict[str, Any]:
    """Get a schedule. The response may be sent back with PUT."""
    return _schedule_to_wire(await call.app.schedules.get(name), response)


@router.put("/schedules/{name:name}", operation_id="schedules_replace", responses=describe(RESPONSE))
async def change_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.change")],
    name: Name,
    definition: DefinitionBody,
    response: Response,
    if_match: IfMatch = None,
) -> dict[str, Any]:
    """Replace the definition of a schedule."""
    version = parse_etag(if_match)
    current = await call.app.schedules.get(name)
    refuse_enabled_change(definition, enabled=current.enabled)
    fields = {"name": name, **drop_fields(definition, SCHEDULE_READ_ONLY_FIELDS)}
    new = _parse(fields)
    if fields["steps"] == schedule_to_fields(current.definition)["steps"]:
        new = replace(new, plan=current.definition.plan)
    return _schedule_to_wire(await call.app.schedules.edit(name, new, reason=call.reason, version=version), response)


@router.delete("/schedules/{name:name}", operation_id="schedules_delete", status_code=204)
async def delete_schedule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "schedule.delete")], name: Name, if_match: IfMatch = None
) -> None:
    """Delete a schedule that has no active execution. Its history stays."""
    await call.app.schedules.delete(name, reason=call.reason, version=parse_etag(if_match))


@router.post("/schedules/{name:name}/enable", operation_id="schedules_enable")
async def enable_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.enable")], name: Name
) -> dict[str, bool]:
    """Enable a schedule from now on."""
    # The idempotency key is stored only with a change, so a repeated request changed the schedule the first time.
    return {"changed": call.is_repeat or await call.app.schedules.enable(name, reason=call.reason)}


@router.post("/schedules/{name:name}/disable", operation_id="schedules_disable")
async def disable_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.disable")], name: Name
) -> dict[str, bool]:
    """Disable a schedule. Manual runs remain possible."""
    # Only a request that changed something is stored, so a repetition has changed it before.
    return {"changed": call.is_repeat or await call.app.schedules.disable(name, reason=call.reason)}


@router.post("/schedules/{name:name}/run", operation_id="schedules_run", status_code=202)
async def run_schedule(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "schedule.run")],
    name: Name,
    response: Response,
    arguments: Annotated[
        dict[str, dict[str, Any]] | None,
        Body(
            embed=True,
            description="Arguments by step name, for this run only. Steps other than jobs require the role editor.",
            examples=[{"import": {"full": True}}],
        ),
    ] = None,
) -> dict[str, Any]:
    """Run a schedule now. The overlap policy decides if an execution is active."""
    started = await call.app.schedules.run(
        name, arguments=arguments, jobs_only=not call.caller.has_role(Role.EDITOR), request_id=call.object_id
    )
    if started.execution_id is not None:
        response.headers["Location"] = f"/api/v1/executions/{started.execution_id}"
    return {"decision": str(started.decision), "reason": started.reason, "execution_id": started.execution_id}


@router.get("/schedules/{name:name}/preview", operation_id="schedules_preview")
async def preview_schedule(
    call: Viewer, name: Name, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> dict[str, list[datetime]]:
    """List the next runs of a schedule."""
    return {"runs": list(await call.app.schedules.next(name, count))}


@router.get("/schedules/{name:name}/versions", operation_id="schedules_versions", responses=describe_page(VERSION))
async def schedule_versions(call: Viewer, name: Name, limit: Limit = 50, after: After = None) -> Page[Any]:
    """List the versions of a schedule, newest first: actor, time, reason, definition before and after."""
    cursor = decode_cursor(after, cursor_instant, cursor_int)
    found = await call.app.schedules.versions(name, before=(cursor[0], cursor[1]) if cursor else None, limit=limit)
    items = [version_to_wire(each, id_field="schedule_id", key_field="name") for each in found]
    return make_page(items, limit, lambda each: (each["at"].isoformat(), each["version"]))


@router.get("/ledger", operation_id="ledger_list", responses=describe_page(ENTRY))
async def list_ledger(
    call: Viewer, schedule: TextFilter = None, decision: Decision | None = None, limit: Limit = 100, after: After = None
) -> Page[Any]:
    """List the occurrence ledger: every due instant and its decision, newest first."""
    cursor = decode_cursor(after, cursor_instant, UUID)
    found = await call.app.schedules.ledger(
        schedule,
        before=cursor[0] if cursor else None,
        below=cursor[1] if cursor else None,
        decision=decision,
        limit=limit,
    )
    return make_page([dict(each) for each in found], limit, lambda each: (each["due_at"].isoformat(), each["id"]))


# --- conversion -------------------------------------------------------------------------------------------------------


def _parse(definition: dict[str, Any]) -> ScheduleDefinition:
    return parse_definition("schedules", definition, parse_schedules).definition


def _list_item_to_wire(schedule: dict[str, Any]) -> dict[str, Any]:
    """Return a schedule with the number of its steps instead of its plan."""
    item = {name: value for name, value in schedule.items() if name != "plan"}
    return {**item, "total_steps": sum(len(group) for group in schedule["plan"])}


def _schedule_to_wire(schedule: Schedule, response: Response) -> dict[str, Any]:
    response.headers["ETag"] = f'"v{schedule.version}"'
    return {
        "id": schedule.id,
        **schedule_to_fields(schedule.definition),
        "enabled": schedule.enabled,
        "version": schedule.version,
        "origin": schedule.origin,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "last_run_at": schedule.last_run_at,
        "next_run_at": schedule.next_run_at,
    }
