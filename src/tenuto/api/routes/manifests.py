"""``/api/v1/manifests``: job definitions, their versions and runs; their groups, and what their manager did."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from fastapi import Body as InBody
from pydantic import ConfigDict, Field

from tenuto.api.auth import Needs, Visit
from tenuto.api.definition_bodies import (
    OF_MANIFESTS,
    IfMatch,
    manifest_as_written,
    refuse_to_switch,
    switched_on,
    version_of,
    within_body,
    without,
    written,
)
from tenuto.api.paging import After, Limit, Page, instant, number, page, place
from tenuto.api.path_names import ExternalId, Name, part
from tenuto.api.response_docs import Body, Search, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import plain, told
from tenuto.definitions.manifest_files import manifests_of
from tenuto.errors import Invalid
from tenuto.model.actors import Role
from tenuto.model.manifests import Manifest
from tenuto.store.manifests import StoredManifest

router = APIRouter(prefix="/api/v1", tags=["manifests"], route_class=StrictRoute)

EXAMPLE: dict[str, Any] = {
    "external_id": "invoices",
    "job": "make_invoice",
    "properties": {"currency": "EUR"},
    "trigger": {"kind": "cron", "cron": "0 6 1 * *", "zone": "Europe/Paris"},
    "retry": {"max_retries": 5, "base_seconds": 30},
    "group": "billing",
}
TOLD: dict[str, Any] = {**EXAMPLE, "enabled": True, "version": 3, "next_run_at": "2031-06-01T04:00:00Z"}
GROUP = {"name": "billing", "max_active": 10, "priority": 0, "enabled": True, "manifests": 4, "active": 2}
VERSION = {"version": 3, "change": "edited", "at": "2031-05-03T09:00:00Z", "reason": "five tries"}
POLL = {"at": "2031-05-04T02:00:00Z", "by": "scheduler-1", "enqueued": 2, "dead_lettered": 0, "skipped": {}}

Written = Annotated[dict[str, Any], InBody(examples=[EXAMPLE], description="A manifest, as in a definition file.")]
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "manifest.read"))]


@router.get("/manifests", responses=a_page(TOLD))
async def list_manifests(
    visit: Look,
    enabled: bool | None = None,
    group: Text = None,
    search: Search = None,
    limit: Limit = 100,
    after: After = None,
) -> Page:
    """Manifests by external id, each with what is open of it."""
    at = place(after, str)
    found = await visit.app.manifests.list(
        after=at[0] if at else None, enabled=enabled, group=group, search=search, limit=limit
    )
    return page([told(each) for each in found], limit, lambda each: (each["external_id"],))


@router.post("/manifests", status_code=201, responses=answers(TOLD, 201))
async def create_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "manifest.create"))], definition: Written, response: Response
) -> dict[str, Any]:
    """Make a manifest."""
    enabled = switched_on(definition)
    made = await visit.app.manifests.create(
        _read(visit, definition), enabled=enabled, reason=visit.reason, request_id=visit.id
    )
    response.headers["Location"] = f"/api/v1/manifests/{part(made.external_id)}"
    return _show(made, response)


@router.get("/manifests/{external_id:name}", responses=answers(TOLD))
async def get_manifest(visit: Look, external_id: ExternalId, response: Response) -> dict[str, Any]:
    """One manifest; what is told here may be sent back with PUT."""
    return _show(await visit.app.manifests.get(external_id), response)


@router.put("/manifests/{external_id:name}", responses=answers(TOLD))
async def change_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "manifest.change"))],
    external_id: ExternalId,
    definition: Written,
    response: Response,
    if_match: IfMatch = None,
) -> dict[str, Any]:
    """Change a manifest."""
    version = version_of(if_match)
    present = await visit.app.manifests.get(external_id)
    refuse_to_switch(definition, enabled=present.enabled)
    given = {"external_id": external_id, **without(definition, OF_MANIFESTS)}
    as_it_is = given == manifest_as_written(present.manifest)
    new = present.manifest if as_it_is else _read(visit, given)
    changed = await visit.app.manifests.edit(external_id, new, reason=visit.reason, version=version)
    return _show(changed, response)


@router.delete("/manifests/{external_id:name}", status_code=204)
async def delete_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "manifest.delete"))],
    external_id: ExternalId,
    if_match: IfMatch = None,
) -> None:
    """Delete a manifest of which nothing is open; what it did stays on record."""
    await visit.app.manifests.delete(external_id, reason=visit.reason, version=version_of(if_match))


@router.post("/manifests/{external_id:name}/enable", responses=answers({"changed": True}))
async def enable_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "manifest.enable"))], external_id: ExternalId
) -> dict[str, bool]:
    """Switch it on, from now on."""
    # Sent again, it has changed it before: only what changed anything is remembered.
    return {"changed": visit.again or await visit.app.manifests.enable(external_id, reason=visit.reason)}


@router.post("/manifests/{external_id:name}/disable", responses=answers({"changed": True}))
async def disable_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "manifest.disable"))], external_id: ExternalId
) -> dict[str, bool]:
    """Switch it off: it does not run by itself."""
    # Sent again, it has changed it before: only what changed anything is remembered.
    return {"changed": visit.again or await visit.app.manifests.disable(external_id, reason=visit.reason)}


class Run(Body):
    """What to run it with; nothing said, with its properties."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"arguments": {"customer": 17}}, {"item": {"customer": 17}, "key": "17"}]}
    )

    arguments: dict[str, Any] | None = Field(default=None, description="Arguments beside its properties.")
    item: Any = Field(default=None, description="Instead of arguments: one item, which may run beside others.")
    key: str | None = Field(default=None, max_length=200, description="Of the item: refused while one with it is open.")


@router.post("/manifests/{external_id:name}/enqueue", status_code=202, responses=answers({"task_id": "…"}, 202))
async def enqueue_manifest(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "manifest.enqueue"))],
    external_id: ExternalId,
    response: Response,
    run: Run | None = None,
) -> dict[str, UUID]:
    """Run it once, now: as it runs by itself, or for one item."""
    wanted = run or Run()
    if wanted.item is not None and wanted.arguments is not None:
        raise Invalid("is given beside item", field="arguments", remedy="give one of the two")
    if wanted.item is None and wanted.key is not None:
        raise Invalid("is given without an item", field="key", remedy="give the item it is the key of")
    if wanted.item is None:
        task = await visit.app.manifests.run(external_id, wanted.arguments, request_id=visit.id)
    else:
        task = await visit.app.manifests.enqueue(external_id, wanted.item, key=wanted.key, request_id=visit.id)
    response.headers["Location"] = f"/api/v1/tasks/{task}"
    return {"task_id": task}


@router.get("/manifests/{external_id:name}/details")
async def manifest_details(visit: Look, external_id: ExternalId, limit: Limit = 5) -> dict[str, Any]:
    """What goes on with it: what is open of it, its last runs, its group, who runs after it, dead letters."""
    found = await visit.app.manifests.details(external_id, limit=limit)
    return told({name: value for name, value in found.items() if name != "manifest"})


@router.get("/manifests/{external_id:name}/versions", responses=a_page(VERSION))
async def manifest_versions(visit: Look, external_id: ExternalId, limit: Limit = 50, after: After = None) -> Page:
    """Its changes, the newest first: who, when, why, before and after."""
    at = place(after, instant, number)
    found = await visit.app.manifests.versions(external_id, before=(at[0], at[1]) if at else None, limit=limit)
    told_of = [plain(each, definition_id="manifest_id", key="external_id") for each in found]
    return page(told_of, limit, lambda each: (each["at"].isoformat(), each["version"]))


# --- groups, and what the manager did ---------------------------------------------------------------------------------


class Group(Body):
    """What is to hold for a group; what is not said stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_active": 10, "priority": 5}]})

    max_active: int | None = Field(default=None, ge=1, le=100_000, description="Null lifts the bound.")
    priority: int | None = Field(default=None, ge=-100, le=100)
    enabled: bool | None = None


@router.get("/manifest-groups", responses=a_page(GROUP), tags=["manifest groups"])
async def list_manifest_groups(visit: Look, limit: Limit = 100, after: After = None) -> Page:
    """The groups of manifests by name, with what is active of each; `*` stands for all together."""
    at = place(after, str)
    found = await visit.app.manifests.groups(after=at[0] if at else None, limit=limit)
    return page([dict(each) for each in found], limit, lambda each: (each["name"],))


@router.get("/manifest-groups/{name:name}", responses=answers(GROUP), tags=["manifest groups"])
async def get_manifest_group(visit: Look, name: Name) -> dict[str, Any]:
    """One group, with what is active of it."""
    return await visit.app.manifests.group(name)


@router.put("/manifest-groups/{name:name}", responses=answers(GROUP), tags=["manifest groups"])
async def change_manifest_group(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "manifest_group.change"))], name: Name, group: Group
) -> dict[str, Any]:
    """Set how many of a group may be active, its priority, and whether anything of it may begin."""
    await visit.app.manifests.change_group(
        name,
        max_active=group.max_active if "max_active" in group.model_fields_set else "keep",
        priority=group.priority,
        enabled=group.enabled,
    )
    return await visit.app.manifests.group(name)


@router.get("/polls", responses=a_page(POLL), tags=["polls"])
async def list_polls(
    visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "poll.read"))],
    busy: bool = False,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """What the manager of manifests did, the newest first; with `busy`, only where it did something."""
    at = place(after, UUID)
    found = await visit.app.manifests.polls(below=at[0] if at else None, busy=busy, limit=limit)
    return page([dict(each) for each in found], limit, lambda each: (each["id"],))


# --- in and out -------------------------------------------------------------------------------------------------------


def _read(visit: Visit, definition: dict[str, Any]) -> Manifest:
    declared = written("manifests", definition, manifests_of)
    try:
        return visit.app.manifests.whole(declared)
    except Invalid as error:
        raise within_body("manifests", declared.refused(error)) from error


def _show(stored: StoredManifest, response: Response) -> dict[str, Any]:
    response.headers["ETag"] = f'"v{stored.version}"'
    return {
        "id": stored.id,
        **manifest_as_written(stored.manifest),
        "enabled": stored.enabled,
        "schedule_type": str(stored.manifest.schedule_type),
        "property_type": stored.manifest.property_type,
        "version": stored.version,
        "origin": stored.origin,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "last_successful_run": stored.last_successful_run,
        "last_run_at": stored.last_run_at,
        "next_run_at": stored.next_run_at,
    }
