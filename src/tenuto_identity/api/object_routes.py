"""Routes that act on single objects and identities: sync now, join, disconnect, return to the rules, forget."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body, ReasonBody
from tenuto.api.bodies.responses import StartedTask
from tenuto.api.openapi import describe
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto_identity.api.shared_parameters import NO_SYSTEM, RUN_ID, IdentityId, operations, reason
from tenuto_identity.operations.joins import Erasure, ManualJoin

router = APIRouter(route_class=ApiRoute)

JOINED = {"object_id": "21", "system": "AD", "anchor": "5f0c9a2e", "metaverse_id": "8", "pinned": True}
NOT_FOUND = (NO_SYSTEM, "identity.object.not_found")
OBJECT_EXAMPLE: dict[str, Any] = {"system": "AD", "anchor": "5f0c9a2e", "reason": "found by the help desk"}


class ObjectBody(Body):
    """An object of a connected system."""

    model_config = ConfigDict(json_schema_extra={"examples": [OBJECT_EXAMPLE]})

    system: str = Field(max_length=200, description="Name of the connected system.")
    anchor: str = Field(max_length=2000, description="Anchor of the object in the system.")
    reason: str | None = Field(default=None, max_length=1000, description="Reason, stored with the change.")


class JoinBody(ObjectBody):
    """An object and the identity to join it to."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**OBJECT_EXAMPLE, "identity": "8"}]})

    identity: str = Field(pattern="^[0-9]{1,18}$", description="Id of the metaverse object.")


class SyncOneBody(Body):
    """An object to be synchronised."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"system": "HR", "anchor": "1003", "export": True}]})

    system: str = Field(max_length=200, description="Name of the connected system.")
    anchor: str = Field(max_length=2000, description="Anchor of the object in the system.")
    export: bool = Field(default=False, description="Send what follows to the targets, and confirm it.")


@router.post(
    "/objects/sync",
    operation_id="identity_objects_sync",
    responses=describe({"task_id": RUN_ID}, not_found=NO_SYSTEM),
)
async def sync_one(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.object.sync", handles_repeats=True)], body: SyncOneBody
) -> StartedTask:
    """Import and sync one object now, as a task."""
    task_id = await operations(call).sync_one(body.system, body.anchor, export=body.export, request_id=call.object_id)
    return StartedTask(task_id=task_id)


@router.post(
    "/objects/join",
    operation_id="identity_objects_join",
    responses=describe(
        JOINED,
        not_found=(*NOT_FOUND, "identity.identity.not_found"),
        conflict=("identity.object.joined", "identity.identity.joined"),
        invalid="identity.object.type_mismatch",
    ),
)
async def join_object(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.object.join")], body: JoinBody
) -> ManualJoin:
    """Join an object to an identity. The rules leave the join as it is until the object is returned to them."""
    return await operations(call).join(body.system, body.anchor, int(body.identity), reason=body.reason or call.reason)


@router.post(
    "/objects/unjoin",
    operation_id="identity_objects_unjoin",
    responses=describe(
        {**JOINED, "metaverse_id": None},
        not_found=NOT_FOUND,
        conflict=("identity.object.not_normal", "identity.object.exporting"),
    ),
)
async def unjoin_object(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.object.unjoin")], body: ObjectBody
) -> ManualJoin:
    """Disconnect an object from its identity. The rules do not join it again until it is returned to them."""
    return await operations(call).unjoin(body.system, body.anchor, reason=body.reason or call.reason)


@router.post(
    "/objects/unpin",
    operation_id="identity_objects_unpin",
    responses=describe({**JOINED, "pinned": False}, not_found=NOT_FOUND),
)
async def unpin_object(
    call: Annotated[ApiCall, requires(Role.EDITOR, "identity.object.unpin")], body: ObjectBody
) -> ManualJoin:
    """Return an object to the rules: the next sync may join or disconnect it."""
    return await operations(call).unpin(body.system, body.anchor, reason=body.reason or call.reason)


@router.post(
    "/identities/{id}/forget",
    operation_id="identity_identities_forget",
    responses=describe(
        {"change_count": 12, "item_count": 9},
        not_found="identity.identity.not_found",
        invalid="identity.forget.reason_missing",
    ),
)
async def forget_identity(
    call: Annotated[ApiCall, requires(Role.ADMIN, "identity.identity.forget")],
    id: IdentityId,
    body: ReasonBody | None = None,
) -> Erasure:
    """Erase the history of an identity, which may be deleted already. Current values stay. The reason is required."""
    return await operations(call).forget(id, reason=reason(call, body) or "")
