"""``/api/v1/schedules``: definitions, their versions, their ledger, runs by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Query, Response

from tenuto.api.auth import Needs, Visit
from tenuto.api.definition_bodies import (
    OF_SCHEDULES,
    IfMatch,
    refuse_to_switch,
    schedule_as_written,
    switched_on,
    version_of,
    without,
    written,
)
from tenuto.api.paging import After, Limit, Page, instant, number, page, place
from tenuto.api.path_names import Name, part
from tenuto.api.response_docs import Search, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, plain, told
from tenuto.definitions.schedule_files import schedules_of
from tenuto.model.actors import Role
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition
from tenuto.store.schedules import Schedule

router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=StrictRoute)

EXAMPLE = {
    "name": "Nightly HR Sync",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "import", "job": "hr_import", "input": {"full": True}, "timeout": "30m"},
        [{"name": "export to AD", "job": "ad_export"}, {"name": "export to LDAP", "job": "ldap_export"}],
    ],
    "overlap": "skip",
}

TOLD = {**EXAMPLE, "enabled": True, "version": 3, "next_run_at": "2031-05-05T01:00:00Z"}
LISTED = {"name": EXAMPLE["name"], "enabled": True, "total_steps": 3, "last_state": "Completed"}
VERSION = {"version": 3, "change": "edited", "at": "2031-05-03T09:00:00Z", "reason": "an hour later"}
ENTRY = {"schedule_name": EXAMPLE["name"], "due_at": "2031-05-04T01:00:00Z", "decision": "Fired", "reason": None}

Written = Annotated[dict[str, Any], Body(examples=[EXAMPLE], description="A definition, as in a definition file.")]
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "schedule.read"))]


@router.get("/schedules", responses=a_page(LISTED))
async def list_schedules(
    visit: Look, enabled: bool | None = None, search: Search = None, limit: Limit = 100, after: After = None
) -> Page:
    """Schedules by name, each with its last run."""
    at = place(after, str)
    found = await visit.app.schedules.list(after=at[0] if at else None, enabled=enabled, search=search, limit=limit)
    return page([_in_a_list(each) for each in found], limit, lambda each: (each["name"],))


@router.post("/schedules", status_code=201, responses=answers(TOLD, 201))
async def create_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.create"))], definition: Written, response: Response
) -> dict[str, Any]:
    """Make a schedule."""
    enabled = switched_on(definition)
    made = await visit.app.schedules.create(
        _read(definition), enabled=enabled, reason=visit.reason, request_id=visit.id
    )
    response.headers["Location"] = f"/api/v1/schedules/{part(made.name)}"
    return _show(made, response)


@router.get("/schedules/{name:name}", responses=answers(TOLD))
async def get_schedule(visit: Look, name: Name, response: Response) -> dict[str, Any]:
    """One schedule."""
    return _show(await visit.app.schedules.get(name), response)


@router.put("/schedules/{name:name}", responses=answers(TOLD))
async def change_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.change"))],
    name: Name,
    definition: Written,
    response: Response,
    if_match: IfMatch = None,
) -> dict[str, Any]:
    """Change a schedule."""
    version = version_of(if_match)
    present = await visit.app.schedules.get(name)
    refuse_to_switch(definition, enabled=present.enabled)
    given = {"name": name, **without(definition, OF_SCHEDULES)}
    new = _read(given)
    if given["steps"] == schedule_as_written(present.definition)["steps"]:
        new = replace(new, plan=present.definition.plan)
    return _show(await visit.app.schedules.edit(name, new, reason=visit.reason, version=version), response)


@router.delete("/schedules/{name:name}", status_code=204)
async def delete_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.delete"))], name: Name, if_match: IfMatch = None
) -> None:
    """Delete a schedule that is not running; what it did stays on record."""
    await visit.app.schedules.delete(name, reason=visit.reason, version=version_of(if_match))


@router.post("/schedules/{name:name}/enable")
async def enable_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.enable"))], name: Name
) -> dict[str, bool]:
    """Switch it on, from now on."""
    # Sent again, it has changed it before: only what changed anything is remembered.
    return {"changed": visit.again or await visit.app.schedules.enable(name, reason=visit.reason)}


@router.post("/schedules/{name:name}/disable")
async def disable_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.disable"))], name: Name
) -> dict[str, bool]:
    """Switch it off; it can still be run by hand."""
    # Sent again, it has changed it before: only what changed anything is remembered.
    return {"changed": visit.again or await visit.app.schedules.disable(name, reason=visit.reason)}


@router.post("/schedules/{name:name}/run", status_code=202)
async def run_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.run"))],
    name: Name,
    response: Response,
    arguments: Annotated[
        dict[str, dict[str, Any]] | None,
        Body(
            embed=True,
            description="For steps by name, for this run only. For steps that are no jobs an editor's role is needed.",
            examples=[{"import": {"full": True}}],
        ),
    ] = None,
) -> dict[str, Any]:
    """Run it now; if it is active, its rule for runs that meet decides."""
    started = await visit.app.schedules.run(
        name, arguments=arguments, of_jobs_only=not visit.caller.may(Role.EDITOR), request_id=visit.id
    )
    if started.execution_id is not None:
        response.headers["Location"] = f"/api/v1/executions/{started.execution_id}"
    return told({"decision": str(started.decision), "reason": started.reason, "execution_id": started.execution_id})


@router.get("/schedules/{name:name}/preview")
async def preview_schedule(
    visit: Look, name: Name, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> dict[str, list[datetime]]:
    """When it runs next."""
    return {"runs": list(await visit.app.schedules.next(name, count))}


@router.get("/schedules/{name:name}/versions", responses=a_page(VERSION))
async def schedule_versions(visit: Look, name: Name, limit: Limit = 50, after: After = None) -> Page:
    """Its changes, the newest first: who, when, why, before and after."""
    at = place(after, instant, number)
    found = await visit.app.schedules.versions(name, before=(at[0], at[1]) if at else None, limit=limit)
    told_of = [plain(each, definition_id="schedule_id", key="name") for each in found]
    return page(told_of, limit, lambda each: (each["at"].isoformat(), each["version"]))


@router.get("/ledger", responses=a_page(ENTRY))
async def ledger(
    visit: Look,
    schedule: Text = None,
    decision: Text = None,
    limit: Limit = 100,
    after: After = None,
) -> Page:
    """What became of every due instant, the newest first."""
    at = place(after, instant, UUID)
    found = await visit.app.schedules.ledger(
        schedule,
        before=at[0] if at else None,
        below=at[1] if at else None,
        decision=inward(decision, Decision, field="decision"),
        limit=limit,
    )
    return page([told(each) for each in found], limit, lambda each: (each["due_at"].isoformat(), each["id"]))


# --- in and out -------------------------------------------------------------------------------------------------------


def _read(definition: dict[str, Any]) -> Definition:
    return written("schedules", definition, schedules_of).definition


def _in_a_list(schedule: dict[str, Any]) -> dict[str, Any]:
    """A schedule in a list: how many steps it has, and not each of them."""
    shown = told({name: value for name, value in schedule.items() if name != "plan"})
    return {**shown, "total_steps": sum(len(group) for group in schedule["plan"])}


def _show(schedule: Schedule, response: Response) -> dict[str, Any]:
    response.headers["ETag"] = f'"v{schedule.version}"'
    return {
        "id": schedule.id,
        **schedule_as_written(schedule.definition),
        "enabled": schedule.enabled,
        "version": schedule.version,
        "origin": schedule.origin,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "last_run_at": schedule.last_run_at,
        "next_run_at": schedule.next_run_at,
    }
