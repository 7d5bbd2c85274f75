"""Routes ``/api/v1/identity/…``: systems, run profiles, runs, objects, identities, pending exports, holds.

Values of sensitive attributes are shown to administrators only.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.openapi import describe, describe_page
from tenuto.api.paging import After, Limit, Page, decode_cursor, make_page
from tenuto.api.parameters import Id, Name, TextFilter
from tenuto.api.request_bodies import Body, ReasonBody
from tenuto.api.responses import Changed, RetriedCount, StartedTask
from tenuto.model.actors import Role
from tenuto_identity.model.explanation import IdentityExplanation, ObjectExplanation
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.pending import ExportState
from tenuto_identity.operations.identity import Hold, IdentityOperations, SystemDetails
from tenuto_identity.store.definitions import SystemRecord
from tenuto_identity.store.exports import ExportRecord
from tenuto_identity.store.items import Item
from tenuto_identity.store.listing import HistoryEntry, IdentityRecord, ObjectRecord
from tenuto_identity.store.runs import RunRecord

router = APIRouter(route_class=ApiRoute)

MAX_ID = 2**63 - 1
RUN_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
SYSTEM = {"number": 1, "name": "HR", "connector": "csv", "state": "active", "object_count": 1200, "export_count": 0}
RUN = {"id": RUN_ID, "system": "HR", "profile": "Full Import", "kind": "full_import", "state": "completed"}
ITEM = {"number": "1", "type": "person", "anchor": "1003", "display": "Alan Turing", "change": "Updated"}
OBJECT = {
    "id": "17",
    "system": "HR",
    "type": "person",
    "anchor": "1003",
    "state": "normal",
    "attributes": {"first": ["Alan"], "last": ["Turing"]},
    "reference_values": {"manager": ["1001"]},
    "metaverse_id": "8",
}
IDENTITY = {
    "id": "8",
    "type": "person",
    "display": "Alan Turing",
    "attributes": {"login": ["alan.turing"]},
    "reference_ids": {"manager": ["6"]},
    "systems": ["AD", "HR"],
}
EXPORT = {
    "object_id": "21",
    "system": "AD",
    "kind": "update",
    "state": "pending",
    "changes": [{"attribute": "title", "op": "set", "values": ["Fellow"]}],
}
CHANGE = {
    "run_id": RUN_ID,
    "item_number": "1",
    "subject": "identity",
    "subject_id": "8",
    "diff": {"title": [[], ["Fellow"]]},
}
HOLD = {
    "system": "HR",
    "message": "50 of 100 objects of the type person would be deleted",
    "run_id": RUN_ID,
    "guards": [{"kind": "deletions", "subject": "person", "affected": 50, "total": 100}],
    "objects": [{"id": "17", "type": "person", "anchor": "1003", "display": "Alan Turing"}],
}
EXPLANATION = {
    "id": "8",
    "type": "person",
    "sources": [{"system": "HR", "object_id": "17", "anchor": "1003", "join_kind": "projected", "state": "normal"}],
    "attributes": [{"name": "display", "values": ["Alan Turing"], "contributions": []}],
    "targets": [],
}
NO_SYSTEM = "identity.system.not_found"

Reader = Annotated[ApiCall, requires(Role.VIEWER, "identity.read")]
SystemName = Annotated[str, Path(description="Name of the connected system; write a slash in it as `%2F`.")]
SystemFilter = Annotated[str | None, Query(max_length=200, description="Filter by connected system.")]
TypeFilter = Annotated[str | None, Query(max_length=200, description="Filter by type.")]
IdentityId = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the metaverse object.")]


class StartedTaskOfHold(BaseModel):
    """The task that applies what was approved."""

    task_id: UUID | None = Field(description="Null if nothing has to be applied by a task.")


class Approval(Body):
    """The approval of what a guard holds."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the branch was closed"}]})

    reason: str = Field(max_length=1000, description="Why the held changes are right.")


class RetryBody(Body):
    """The pending exports to send again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"system": "AD"}]})

    system: str = Field(description="Name of the connected system.")
    object_id: str | None = Field(default=None, pattern="^[0-9]{1,18}$", description="Only the export of this object.")
    reason: str | None = Field(default=None, max_length=1000, description="Reason, stored with the change.")


def _operations(call: ApiCall) -> IdentityOperations:
    found: IdentityOperations = call.app.extensions.identity
    return found


def _reveals(call: ApiCall) -> bool:
    return call.caller.has_role(Role.ADMIN)


def _cursor_id(value: Any) -> int:
    """Parse a 64-bit id of a cursor."""
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError
    return value


def _after_id(after: str | None) -> int:
    cursor = decode_cursor(after, _cursor_id)
    return cursor[0] if cursor else 0


# --- systems --------------------------------------------------------------------------------------------------------


@router.get("/systems", operation_id="identity_systems_list", responses=describe_page(SYSTEM))
async def list_systems(call: Reader, limit: Limit = 100, after: After = None) -> Page[SystemRecord]:
    """List connected systems by name."""
    cursor = decode_cursor(after, str)
    found = await _operations(call).systems(after=cursor[0] if cursor else "", limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.get(
    "/systems/{name:name}",
    operation_id="identity_systems_get",
    responses=describe(
        {"system": SYSTEM, "definition": {"name": "HR"}, "run_profiles": ["Full Import"]}, not_found=NO_SYSTEM
    ),
)
async def get_system(call: Reader, name: SystemName) -> SystemDetails:
    """Get a connected system with its definition."""
    return await _operations(call).system(name)


@router.get(
    "/systems/{name:name}/held",
    operation_id="identity_systems_held",
    responses=describe(HOLD, not_found=(NO_SYSTEM, "identity.hold.missing")),
)
async def get_hold(call: Reader, name: SystemName) -> Hold:
    """Get what a guard holds in a system, with the first 20 objects."""
    return await _operations(call).hold(name)


@router.post(
    "/systems/{name:name}/approve",
    operation_id="identity_systems_approve",
    responses=describe(
        {"task_id": RUN_ID},
        not_found=NO_SYSTEM,
        conflict="identity.hold.missing",
        invalid="identity.hold.reason_missing",
    ),
)
async def approve_hold(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.hold.approve")], name: SystemName, body: Approval
) -> StartedTaskOfHold:
    """Approve exactly what a guard holds, minus what has come back."""
    return StartedTaskOfHold(task_id=await _operations(call).approve(name, reason=body.reason))


@router.post(
    "/systems/{name:name}/enable",
    operation_id="identity_systems_enable",
    responses=describe({"changed": True}, not_found=NO_SYSTEM, conflict="identity.system.not_active"),
)
async def enable_system(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.system.enable")],
    name: SystemName,
    body: ReasonBody | None = None,
) -> Changed:
    """Enable a connected system."""
    return Changed(changed=await _operations(call).set_enabled(name, enabled=True, reason=_reason(call, body)))


@router.post(
    "/systems/{name:name}/disable",
    operation_id="identity_systems_disable",
    responses=describe({"changed": True}, not_found=NO_SYSTEM, conflict="identity.system.not_active"),
)
async def disable_system(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.system.disable")],
    name: SystemName,
    body: ReasonBody | None = None,
) -> Changed:
    """Disable a connected system. Its runs are refused until it is enabled."""
    return Changed(changed=await _operations(call).set_enabled(name, enabled=False, reason=_reason(call, body)))


@router.post(
    "/systems/{name:name}/clear",
    operation_id="identity_systems_clear",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM, conflict="identity.system.run_open"),
)
async def clear_system(
    call: Annotated[ApiCall, requires(Role.ADMIN, "identity.system.clear")],
    name: SystemName,
    body: ReasonBody | None = None,
) -> StartedTask:
    """Delete all objects of a system from the connector space, as a task. The metaverse is not touched."""
    return StartedTask(task_id=await _operations(call).clear(name, reason=_reason(call, body)))


@router.delete(
    "/systems/{name:name}",
    operation_id="identity_systems_delete",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM, conflict="identity.system.run_open"),
)
async def delete_system(
    call: Annotated[ApiCall, requires(Role.ADMIN, "identity.system.delete")], name: SystemName
) -> StartedTask:
    """Delete a system with its objects and rules, as a task."""
    return StartedTask(task_id=await _operations(call).delete_system(name, reason=call.reason))


def _reason(call: ApiCall, body: ReasonBody | None) -> str | None:
    return body.reason if body is not None and body.reason is not None else call.reason


# --- runs -----------------------------------------------------------------------------------------------------------


@router.post(
    "/run-profiles/{system:name}/{profile:name}/run",
    operation_id="identity_run_profiles_run",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM, invalid="identity.profile.not_found"),
)
async def run_profile(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.run.start", handles_repeats=True)],
    system: SystemName,
    profile: Name,
) -> StartedTask:
    """Start a run of a run profile, as a task."""
    # `call.object_id` is the same when the request is repeated with its Idempotency-Key: one task is enqueued.
    return StartedTask(task_id=await _operations(call).run(system, profile, request_id=call.object_id))


@router.get("/runs", operation_id="identity_runs_list", responses=describe_page(RUN))
async def list_runs(
    call: Reader, system: SystemFilter = None, limit: Limit = 50, after: After = None
) -> Page[RunRecord]:
    """List runs, the newest first."""
    cursor = decode_cursor(after, UUID)
    found = await _operations(call).runs(system=system, before=cursor[0] if cursor else None, limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


@router.get("/runs/{id}", operation_id="identity_runs_get", responses=describe(RUN, not_found="identity.run.not_found"))
async def get_run(call: Reader, id: Id) -> RunRecord:
    """Get a run with its counts."""
    return await _operations(call).run_record(id)


@router.get(
    "/runs/{id}/items",
    operation_id="identity_runs_items",
    responses=describe_page(ITEM, not_found="identity.run.not_found"),
)
async def list_items(
    call: Reader,
    id: Id,
    errors: Annotated[bool, Query(description="List only objects in error.")] = False,
    limit: Limit = 100,
    after: After = None,
) -> Page[Item]:
    """List the results of a run, object by object."""
    operations = _operations(call)
    await operations.run_record(id)
    found = await operations.items(id, errors_only=errors, after=_after_id(after), limit=limit, reveals=_reveals(call))
    return make_page(found, limit, lambda each: (each.number,))


# --- objects and identities -----------------------------------------------------------------------------------------


@router.get("/objects", operation_id="identity_objects_list", responses=describe_page(OBJECT))
async def list_objects(
    call: Reader,
    system: SystemFilter = None,
    type: TypeFilter = None,
    state: ObjectState | None = None,
    joined: Annotated[bool | None, Query(description="Filter by whether the object is joined.")] = None,
    text: Annotated[
        str | None, Query(max_length=200, description="Filter by the beginning of anchor or address.")
    ] = None,
    identity: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Filter by metaverse object.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ObjectRecord]:
    """List connector space objects."""
    found = await _operations(call).objects(
        system=system,
        type=type,
        state=state,
        joined=joined,
        text=text,
        identity=identity,
        after=_after_id(after),
        limit=limit,
        reveals=_reveals(call),
    )
    return make_page(found, limit, lambda each: (each.id,))


@router.get(
    "/explain",
    operation_id="identity_objects_explain",
    responses=describe(EXPLANATION, not_found=(NO_SYSTEM, "identity.object.not_found")),
)
async def explain_object(
    call: Reader,
    system: Annotated[str, Query(max_length=200, description="Name of the connected system.")],
    anchor: Annotated[str, Query(max_length=2000, description="Anchor of the object in the system.")],
) -> IdentityExplanation | ObjectExplanation:
    """Explain the identity of an object, or why the object is not joined."""
    return await _operations(call).explain(system, anchor, reveals=_reveals(call))


@router.get("/identities", operation_id="identity_identities_list", responses=describe_page(IDENTITY))
async def list_identities(
    call: Reader,
    type: TypeFilter = None,
    text: TextFilter = None,
    deletion_scheduled: Annotated[
        bool | None, Query(description="Filter by whether the deletion is scheduled.")
    ] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[IdentityRecord]:
    """List metaverse objects. `text` is a part of the display name."""
    found = await _operations(call).identities(
        type=type,
        text=text,
        deletion_scheduled=deletion_scheduled,
        after=_after_id(after),
        limit=limit,
        reveals=_reveals(call),
    )
    return make_page(found, limit, lambda each: (each.id,))


@router.get(
    "/identities/{id}",
    operation_id="identity_identities_get",
    responses=describe(IDENTITY, not_found="identity.identity.not_found"),
)
async def get_identity(call: Reader, id: IdentityId) -> IdentityRecord:
    """Get a metaverse object."""
    return await _operations(call).identity(id, reveals=_reveals(call))


@router.get(
    "/identities/{id}/explain",
    operation_id="identity_identities_explain",
    responses=describe(EXPLANATION, not_found="identity.identity.not_found"),
)
async def explain_identity(call: Reader, id: IdentityId) -> IdentityExplanation:
    """Explain a metaverse object: contributions and winners, expressions, scopes, and what each target gets."""
    return await _operations(call).explain_identity(id, reveals=_reveals(call))


@router.get(
    "/identities/{id}/history",
    operation_id="identity_identities_history",
    responses=describe_page(CHANGE, not_found="identity.identity.not_found"),
)
async def list_history(call: Reader, id: IdentityId, limit: Limit = 100, after: After = None) -> Page[HistoryEntry]:
    """List the changes of a metaverse object and of the objects joined to it, the newest first."""
    cursor = decode_cursor(after, UUID, _cursor_id, str)
    before = None if cursor is None else (cursor[0], cursor[1], cursor[2])
    found = await _operations(call).history(id, before=before, limit=limit, reveals=_reveals(call))
    return make_page(found, limit, lambda each: (each.run_id, each.item_number, each.subject))


# --- pending exports ------------------------------------------------------------------------------------------------


@router.get("/pending-exports", operation_id="identity_pending_exports_list", responses=describe_page(EXPORT))
async def list_pending_exports(
    call: Reader,
    system: SystemFilter = None,
    state: ExportState | None = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ExportRecord]:
    """List pending exports with the changes to send."""
    found = await _operations(call).pending_exports(
        system=system, state=state, after=_after_id(after), limit=limit, reveals=_reveals(call)
    )
    return make_page(found, limit, lambda each: (each.object_id,))


@router.post(
    "/pending-exports/retry",
    operation_id="identity_pending_exports_retry",
    responses=describe({"retried": 3}, not_found=NO_SYSTEM),
)
async def retry_exports(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.exports.retry")], body: RetryBody
) -> RetriedCount:
    """Send failed and refused exports again from the first attempt."""
    object_id = None if body.object_id is None else int(body.object_id)
    count = await _operations(call).retry(body.system, object_id=object_id, reason=body.reason or call.reason)
    return RetriedCount(retried=count)
