"""``/api/v1/schedules``: definitions, their versions, their ledger, runs by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Query, Response

from tenuto.api.definitions import version_of, written
from tenuto.api.door import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.reading import StrictRoute
from tenuto.api.words import inward, told
from tenuto.errors import Conflict, Invalid
from tenuto.model.access import Role
from tenuto.model.definitionfiles import schedules_of
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition
from tenuto.store.schedules import Schedule

router = APIRouter(prefix="/api/v1", tags=["schedules"], route_class=StrictRoute)

EXAMPLE = {
    "name": "Nightly HR Sync",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "import", "kind": "job", "target": "hr_import"},
        [
            {"name": "export to AD", "kind": "job", "target": "ad_export"},
            {"name": "export to LDAP", "kind": "job", "target": "ldap_export"},
        ],
    ],
    "overlap": "skip",
}

Written = Annotated[dict[str, Any], Body(examples=[EXAMPLE], description="A definition, as in a definition file.")]
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "schedule.read"))]
IfMatch = Annotated[
    str | None, Header(description="The ETag it had when you looked: refused if it has been changed since.")
]


@router.get("/schedules")
async def list_schedules(
    visit: Look, enabled: bool | None = None, search: str | None = None, limit: Limit = 100, after: After = None
) -> Page:
    """Schedules by name, each with its last run."""
    at = place(after, str)
    found = await visit.app.schedules.list(after=at[0] if at else None, enabled=enabled, search=search, limit=limit)
    return page([told(each) for each in found], limit, lambda each: (each["name"],))


@router.post("/schedules", status_code=201)
async def create_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.create"))], definition: Written, response: Response
) -> dict[str, Any]:
    """Make a schedule."""
    enabled = _enabled(definition)
    made = await visit.app.schedules.create(_read(definition), enabled=enabled)
    response.headers["Location"] = f"/api/v1/schedules/{made.id}"
    return _show(made, response)


@router.get("/schedules/{name}")
async def get_schedule(visit: Look, name: str, response: Response) -> dict[str, Any]:
    """One schedule."""
    return _show(await visit.app.schedules.get(name), response)


@router.put("/schedules/{name}")
async def change_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.change"))],
    name: str,
    definition: Written,
    response: Response,
    if_match: IfMatch = None,
) -> dict[str, Any]:
    """Change a schedule."""
    definition.pop("enabled", None)
    changed = await visit.app.schedules.edit(name, _read({"name": name, **definition}), version=version_of(if_match))
    return _show(changed, response)


@router.delete("/schedules/{name}", status_code=204)
async def delete_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "schedule.delete"))], name: str, if_match: IfMatch = None
) -> None:
    """Delete a schedule that is not running; what it did stays on record."""
    wanted = version_of(if_match)
    if wanted is not None and (await visit.app.schedules.get(name)).version != wanted:
        raise Conflict(f"schedule {name!r} has been changed since", field="If-Match", remedy="look at it again")
    await visit.app.schedules.delete(name)


@router.post("/schedules/{name}/enable")
async def enable_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.enable"))], name: str
) -> dict[str, bool]:
    """Switch it on, from now on."""
    return {"changed": await visit.app.schedules.enable(name)}


@router.post("/schedules/{name}/disable")
async def disable_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.disable"))], name: str
) -> dict[str, bool]:
    """Switch it off; it can still be run by hand."""
    return {"changed": await visit.app.schedules.disable(name)}


@router.post("/schedules/{name}/run", status_code=202)
async def run_schedule(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "schedule.run"))],
    name: str,
    response: Response,
    arguments: Annotated[
        dict[str, dict[str, Any]] | None,
        Body(embed=True, description="For steps by name, for this run only.", examples=[{"import": {"full": True}}]),
    ] = None,
) -> dict[str, Any]:
    """Run it now; if it is active, its rule for runs that meet decides."""
    started = await visit.app.schedules.run(name, arguments=arguments, request_id=visit.id)
    if started.execution_id is not None:
        response.headers["Location"] = f"/api/v1/executions/{started.execution_id}"
    return told({"decision": str(started.decision), "reason": started.reason, "execution_id": started.execution_id})


@router.get("/schedules/{name}/preview")
async def preview_schedule(
    visit: Look, name: str, count: Annotated[int, Query(ge=1, le=100)] = 10
) -> dict[str, list[datetime]]:
    """When it runs next."""
    return {"runs": list(await visit.app.schedules.next(name, count))}


@router.get("/schedules/{name}/versions")
async def schedule_versions(visit: Look, name: str, limit: Limit = 50) -> dict[str, Any]:
    """Its changes, the newest first: who, when, why, before and after."""
    return {"items": [_plain(version) for version in await visit.app.schedules.versions(name, limit=limit)]}


@router.get("/ledger")
async def ledger(
    visit: Look,
    schedule: str | None = None,
    decision: str | None = None,
    limit: Limit = 100,
    after: After = None,
) -> Page:
    """What became of every due instant, the newest first."""
    at = place(after, datetime.fromisoformat, UUID)
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


def _enabled(definition: dict[str, Any]) -> bool:
    enabled = definition.pop("enabled", True)
    if not isinstance(enabled, bool):
        raise Invalid("must be true or false", field="enabled")
    return enabled


def _show(schedule: Schedule, response: Response) -> dict[str, Any]:
    response.headers["ETag"] = f'"v{schedule.version}"'
    return {
        "id": schedule.id,
        **schedule.definition.to_fields(),
        "enabled": schedule.enabled,
        "version": schedule.version,
        "origin": schedule.origin,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "last_run_at": schedule.last_run_at,
        "next_run_at": schedule.next_run_at,
    }


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
