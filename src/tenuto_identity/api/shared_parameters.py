"""What the routes of identity synchronisation share: parameters, examples, and the caller's operations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from tenuto.api.bodies.request_bodies import ReasonBody
from tenuto.api.list_pages import decode_key
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto_identity.operations.identity_operations import IdentityOperations

MAX_ID = 2**63 - 1
RUN_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
NO_SYSTEM = "identity.system.not_found"

Reader = Annotated[ApiCall, requires(Role.VIEWER, "identity.read")]
SystemName = Annotated[str, Path(description="Name of the connected system; write a slash in it as `%2F`.")]
SystemFilter = Annotated[str | None, Query(max_length=200, description="Filter by connected system.")]
TypeFilter = Annotated[str | None, Query(max_length=200, description="Filter by type.")]
IdentityId = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the metaverse object.")]


def operations(call: ApiCall) -> IdentityOperations:
    found: IdentityOperations = call.app.extensions.identity
    return found


def reveals(call: ApiCall) -> bool:
    return call.caller.has_role(Role.ADMIN)


def cursor_id(value: Any) -> int:
    """Parse a 64-bit id of a cursor."""
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError
    return value


def after_id(after: str | None) -> int:
    return decode_key(after, cursor_id) or 0


def reason(call: ApiCall, body: ReasonBody | None) -> str | None:
    return body.reason if body is not None and body.reason is not None else call.reason
