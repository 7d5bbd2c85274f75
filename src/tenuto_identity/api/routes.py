"""Routes ``/api/v1/identity/…``: systems, run profiles, runs, objects, identities, pending exports, holds.

Values of sensitive attributes are shown to administrators only.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.definition_bodies import IfMatch, parse_etag
from tenuto.api.bodies.request_bodies import Body, ReasonBody
from tenuto.api.bodies.responses import Changed, RetriedCount, StartedTask
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, decode_cursor, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id, Name, TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto_identity.api.shared_parameters import (
    MAX_ID,
    NO_SYSTEM,
    RUN_ID,
    IdentityId,
    Reader,
    SystemFilter,
    SystemName,
    TypeFilter,
    after_id,
    cursor_id,
    operations,
    reason,
    reveals,
)
from tenuto_identity.list_views import (
    ATTRIBUTE_FLOWS,
    HISTORY,
    IDENTITIES,
    ITEMS,
    OBJECTS,
    PENDING_EXPORTS,
    RUNS,
    SYSTEMS,
)
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.rules.attribute_flow import AttributeFlow
from tenuto_identity.model.sync.explanation import DeletedExplanation, IdentityExplanation, ObjectExplanation
from tenuto_identity.model.sync.pending_exports import ExportState
from tenuto_identity.operations.identity_operations import DefinitionRecord, Hold, SystemDetails
from tenuto_identity.store.definitions import DefinitionKind, SystemRecord, WatermarkRecord
from tenuto_identity.store.exports import ExportRecord
from tenuto_identity.store.list_queries import HistoryEntry, IdentityRecord, ObjectRecord
from tenuto_identity.store.run_items import Item
from tenuto_identity.store.runs import RunRecord, RunState

router = APIRouter(route_class=ApiRoute)

SYSTEM = {"number": 1, "name": "HR", "connector": "csv", "state": "active", "object_count": 1200, "export_count": 0}
RUN = {"id": RUN_ID, "system": "HR", "profile": "Full Import", "kind": "full_import", "state": "completed"}
RULE = {"name": "HR people in", "version": 1, "origin": "file", "definition": {"name": "HR people in", "project": True}}
ATTRIBUTE_FLOW = {
    "type": "person",
    "attribute": "title",
    "data_type": "text",
    "contributions": [
        {
            "rule": "HR people in",
            "system": "HR",
            "object_type": "person",
            "attribute": "title",
            "origin": "title",
            "is_expression": False,
            "priority": 100,
            "notes": [],
        }
    ],
    "targets": [],
}
TEMPLATE = {"name": "staff", "version": 1, "origin": "file", "definition": {"name": "staff"}}
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
SCHEMA = {
    "types": [
        {
            "name": "person",
            "anchor": "employee_id",
            "attributes": [{"name": "mail", "type": "text", "multi": False, "to": None, "writable": "yes"}],
        }
    ],
    "partitions": [],
    "containers": [],
}
WATERMARK = {
    "partition": "",
    "value": {"sequence": 17},
    "taken_at": "2026-05-03T02:00:00Z",
    "run_id": RUN_ID,
}
EXPLANATION = {
    "id": "8",
    "type": "person",
    "sources": [{"system": "HR", "object_id": "17", "anchor": "1003", "join_kind": "projected", "state": "normal"}],
    "attributes": [{"name": "display", "values": ["Alan Turing"], "contributions": []}],
    "targets": [],
}


class DiscoveredAttribute(BaseModel):
    """An attribute that a system has."""

    name: str
    type: str
    multi: bool = Field(description="Whether it may have several values.")
    to: str | None = Field(description="For references: the object type referred to.")
    writable: str = Field(description="yes, on_create or no.")


class DiscoveredType(BaseModel):
    """An object type that a system has."""

    name: str
    anchor: str = Field(description="Attribute that identifies an object for ever.")
    attributes: list[DiscoveredAttribute]


class DiscoveredContainer(BaseModel):
    """A container of a system, such as an organisational unit."""

    address: str
    name: str
    parent: str | None


class DiscoveredSchema(BaseModel):
    """What a connector found in a system."""

    types: list[DiscoveredType]
    partitions: list[str]
    containers: list[DiscoveredContainer]


class StartedTaskOfHold(BaseModel):
    """The task that applies what was approved."""

    task_id: UUID | None = Field(description="Null if nothing has to be applied by a task.")


class ApprovalBody(ReasonBody):
    """Approval of what a guard holds."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the branch was closed", "run_id": RUN_ID}]})

    run_id: UUID | None = Field(
        default=None, description="Run of the hold that was examined; refused if another run holds the system by now."
    )


class RetryBody(Body):
    """The pending exports to send again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"system": "AD"}]})

    system: str = Field(description="Name of the connected system.")
    object_id: str | None = Field(default=None, pattern="^[0-9]{1,18}$", description="Only the export of this object.")
    reason: str | None = Field(default=None, max_length=1000, description="Reason, stored with the change.")


# --- systems --------------------------------------------------------------------------------------------------------


@router.get("/systems", operation_id="identity_systems_list", responses=describe_page(SYSTEM))
@listed_as(SYSTEMS)
async def list_systems(call: Reader, limit: Limit = 100, after: After = None) -> Page[SystemRecord]:
    """List connected systems by name."""
    found = await operations(call).systems(after=decode_key(after, str) or "", limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.get(
    "/systems/{name:name}",
    operation_id="identity_systems_get",
    responses=describe(
        {"system": SYSTEM, "definition": {"name": "HR"}, "run_profiles": ["Full Import"]}, not_found=NO_SYSTEM
    ),
)
async def get_system(call: Reader, name: SystemName, response: Response) -> SystemDetails:
    """Get a connected system with its definition."""
    found = await operations(call).system(name)
    response.headers["ETag"] = f'"v{found.system.version}"'
    return found


@router.get(
    "/systems/{name:name}/held",
    operation_id="identity_systems_held",
    responses=describe(HOLD, not_found=(NO_SYSTEM, "identity.hold.missing")),
)
async def get_hold(call: Reader, name: SystemName) -> Hold:
    """Get what a guard holds in a system, with the first 20 objects."""
    return await operations(call).hold(name)


@router.post(
    "/systems/{name:name}/check",
    operation_id="identity_systems_check",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM),
)
async def check_system(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.system.check")], name: SystemName
) -> StartedTask:
    """Check the settings of a system and whether it can be reached, as a task. Its output says what was found."""
    return StartedTask(task_id=await operations(call).check(name))


@router.post(
    "/systems/{name:name}/discover",
    operation_id="identity_systems_discover",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM),
)
async def discover_schema(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.system.discover")], name: SystemName
) -> StartedTask:
    """Read the schema of a system and compare it with what is selected, as a task."""
    return StartedTask(task_id=await operations(call).discover(name))


@router.get(
    "/systems/{name:name}/schema",
    operation_id="identity_systems_schema",
    responses=describe(SCHEMA, not_found=(NO_SYSTEM, "identity.schema.missing")),
)
async def get_schema(call: Reader, name: SystemName) -> DiscoveredSchema:
    """Get the schema of a system as it was discovered last."""
    return DiscoveredSchema.model_validate(await operations(call).schema(name))


@router.get(
    "/systems/{name:name}/watermarks",
    operation_id="identity_systems_watermarks",
    responses=describe_page(WATERMARK, not_found=NO_SYSTEM),
)
async def list_watermarks(call: Reader, name: SystemName) -> Page[WatermarkRecord]:
    """List the positions of the last complete imports in the changes of a system, one for each partition."""
    found = await operations(call).watermarks(name)
    return make_page(found, max(len(found), 1) + 1, lambda each: (each.partition,))


@router.post(
    "/systems/{name:name}/approve",
    operation_id="identity_systems_approve",
    responses=describe(
        {"task_id": RUN_ID},
        not_found=NO_SYSTEM,
        conflict=("identity.hold.missing", "identity.hold.changed"),
        invalid="identity.hold.reason_missing",
    ),
)
async def approve_hold(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.hold.approve")],
    name: SystemName,
    body: ApprovalBody | None = None,
) -> StartedTaskOfHold:
    """Approve exactly what a guard holds, minus what has come back. The reason is required."""
    task_id = await operations(call).approve(
        name, reason=reason(call, body) or "", run_id=body.run_id if body is not None else None
    )
    return StartedTaskOfHold(task_id=task_id)


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
    return Changed(changed=await operations(call).set_enabled(name, enabled=True, reason=reason(call, body)))


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
    return Changed(changed=await operations(call).set_enabled(name, enabled=False, reason=reason(call, body)))


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
    return StartedTask(task_id=await operations(call).clear(name, reason=reason(call, body)))


@router.delete(
    "/systems/{name:name}",
    operation_id="identity_systems_delete",
    responses=describe(
        {"task_id": RUN_ID},
        not_found=NO_SYSTEM,
        conflict=("identity.system.run_open", "definition.version_conflict"),
        invalid="request.if_match.invalid",
    ),
)
async def delete_system(
    call: Annotated[ApiCall, requires(Role.ADMIN, "identity.system.delete")],
    name: SystemName,
    if_match: IfMatch = None,
) -> StartedTask:
    """Delete a system with its objects and rules, as a task."""
    version = parse_etag(if_match)
    return StartedTask(task_id=await operations(call).delete_system(name, reason=call.reason, version=version))


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
    return StartedTask(task_id=await operations(call).run(system, profile, request_id=call.object_id))


@router.get("/rules", operation_id="identity_rules_list", responses=describe_page(RULE))
async def list_rules(call: Reader, limit: Limit = 100, after: After = None) -> Page[DefinitionRecord]:
    """List sync rules by name, with their definitions."""
    return await _list_definitions(call, DefinitionKind.SYNC_RULE, limit, after)


@router.get("/attribute-flows", operation_id="identity_attribute_flows_list", responses=describe_page(ATTRIBUTE_FLOW))
@listed_as(ATTRIBUTE_FLOWS)
async def list_attribute_flows(
    call: Reader, system: SystemFilter = None, type: TypeFilter = None, limit: Limit = 100, after: After = None
) -> Page[AttributeFlow]:
    """List attributes with the rules that set them, in the order in which they win, and those that send them."""
    cursor = decode_cursor(after, str, str)
    found = await operations(call).attribute_flows(type=type, system=system)
    rest = [each for each in found if not cursor or (each.type, each.attribute) > tuple(cursor)]
    return make_page(rest[:limit], limit, lambda each: (each.type, each.attribute))


@router.get("/templates", operation_id="identity_templates_list", responses=describe_page(TEMPLATE))
async def list_templates(call: Reader, limit: Limit = 100, after: After = None) -> Page[DefinitionRecord]:
    """List templates of example data by name, with their definitions."""
    return await _list_definitions(call, DefinitionKind.TEMPLATE, limit, after)


async def _list_definitions(
    call: ApiCall, kind: DefinitionKind, limit: int, after: str | None
) -> Page[DefinitionRecord]:
    found = await operations(call).definitions(kind, after=decode_key(after, str) or "", limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.get("/runs", operation_id="identity_runs_list", responses=describe_page(RUN))
@listed_as(RUNS)
async def list_runs(
    call: Reader,
    system: SystemFilter = None,
    state: Annotated[RunState | None, Query(description="Filter by state.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[RunRecord]:
    """List runs, the newest first."""
    before = decode_key(after, UUID)
    found = await operations(call).runs(system=system, state=state, before=before, limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


@router.get("/runs/{id}", operation_id="identity_runs_get", responses=describe(RUN, not_found="identity.run.not_found"))
async def get_run(call: Reader, id: Id) -> RunRecord:
    """Get a run with its counts."""
    return await operations(call).run_record(id)


@router.get(
    "/runs/{id}/items",
    operation_id="identity_runs_items",
    responses=describe_page(ITEM, not_found="identity.run.not_found"),
)
@listed_as(ITEMS)
async def list_items(
    call: Reader,
    id: Id,
    errors: Annotated[bool, Query(description="List only objects in error.")] = False,
    change: Annotated[str | None, Query(max_length=100, description="Filter by change, such as Updated.")] = None,
    error: Annotated[str | None, Query(max_length=100, description="Filter by error.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Item]:
    """List the results of a run, object by object."""
    await operations(call).run_record(id)
    found = await operations(call).items(
        id,
        errors_only=errors,
        change=change,
        error=error,
        after=after_id(after),
        limit=limit,
        reveals=reveals(call),
    )
    return make_page(found, limit, lambda each: (each.number,))


@router.get(
    "/runs/{id}/items/{number}/changes",
    operation_id="identity_runs_item_changes",
    responses=describe_page(CHANGE, not_found="identity.run.not_found"),
)
@listed_as(HISTORY)
async def list_item_changes(
    call: Reader, id: Id, number: Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the item.")]
) -> Page[HistoryEntry]:
    """List the values before and after of one item of a run."""
    await operations(call).run_record(id)
    found = await operations(call).item_changes(id, [number], reveals=reveals(call))
    return make_page(found, len(found) + 1, lambda each: (each.item_number,))


# --- objects and identities -----------------------------------------------------------------------------------------


@router.get("/objects", operation_id="identity_objects_list", responses=describe_page(OBJECT))
@listed_as(OBJECTS)
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
    found = await operations(call).objects(
        system=system,
        type=type,
        state=state,
        joined=joined,
        text=text,
        identity=identity,
        after=after_id(after),
        limit=limit,
        reveals=reveals(call),
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
) -> IdentityExplanation | ObjectExplanation | DeletedExplanation:
    """Explain the identity of an object, or why the object is not joined; from the history, if it was deleted."""
    return await operations(call).explain(system, anchor, reveals=reveals(call))


@router.get("/identities", operation_id="identity_identities_list", responses=describe_page(IDENTITY))
@listed_as(IDENTITIES)
async def list_identities(
    call: Reader,
    type: TypeFilter = None,
    text: TextFilter = None,
    deletion_scheduled: Annotated[
        bool | None, Query(description="Filter by whether the deletion is scheduled.")
    ] = None,
    id: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_ID)]] | None,
        Query(max_length=500, description="Filter by id; repeatable."),
    ] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[IdentityRecord]:
    """List metaverse objects. `text` is a part of the display name."""
    found = await operations(call).identities(
        type=type,
        text=text,
        deletion_scheduled=deletion_scheduled,
        ids=id,
        after=after_id(after),
        limit=limit,
        reveals=reveals(call),
    )
    return make_page(found, limit, lambda each: (each.id,))


@router.get(
    "/identities/{id}",
    operation_id="identity_identities_get",
    responses=describe(IDENTITY, not_found="identity.identity.not_found"),
)
async def get_identity(call: Reader, id: IdentityId) -> IdentityRecord:
    """Get a metaverse object."""
    return await operations(call).identity(id, reveals=reveals(call))


@router.get(
    "/identities/{id}/explain",
    operation_id="identity_identities_explain",
    responses=describe(EXPLANATION, not_found="identity.identity.not_found"),
)
async def explain_identity(call: Reader, id: IdentityId) -> IdentityExplanation | DeletedExplanation:
    """Explain a metaverse object: contributions and winners, expressions, scopes, and what each target gets. A deleted
    one is explained from its history."""
    return await operations(call).explain_identity(id, reveals=reveals(call))


@router.get(
    "/identities/{id}/history",
    operation_id="identity_identities_history",
    responses=describe_page(CHANGE, not_found="identity.identity.not_found"),
)
@listed_as(HISTORY)
async def list_history(call: Reader, id: IdentityId, limit: Limit = 100, after: After = None) -> Page[HistoryEntry]:
    """List the changes of a metaverse object and of the objects joined to it, the newest first."""
    cursor = decode_cursor(after, UUID, cursor_id, str)
    before = None if cursor is None else (cursor[0], cursor[1], cursor[2])
    found = await operations(call).history(id, before=before, limit=limit, reveals=reveals(call))
    return make_page(found, limit, lambda each: (each.run_id, each.item_number, each.subject))


# --- pending exports ------------------------------------------------------------------------------------------------


@router.get("/pending-exports", operation_id="identity_pending_exports_list", responses=describe_page(EXPORT))
@listed_as(PENDING_EXPORTS)
async def list_pending_exports(
    call: Reader,
    system: SystemFilter = None,
    state: ExportState | None = None,
    errors: Annotated[bool, Query(description="List only exports with an error.")] = False,
    limit: Limit = 100,
    after: After = None,
) -> Page[ExportRecord]:
    """List pending exports with the changes to send."""
    found = await operations(call).pending_exports(
        system=system, state=state, errors_only=errors, after=after_id(after), limit=limit, reveals=reveals(call)
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
    count = await operations(call).retry(body.system, object_id=object_id, reason=body.reason or call.reason)
    return RetriedCount(retried=count)
