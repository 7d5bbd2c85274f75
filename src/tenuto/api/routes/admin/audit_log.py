"""``/api/v1/audit``: list, verify and export the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import (
    CappedCount,
    FilterText,
    Window,
    describe_count,
    describe_filtered_page,
    parse_query,
)
from tenuto.api.list_pages import After, Limit, Page, decode_cursor, decode_key, encode_cursor, make_page
from tenuto.api.openapi import describe
from tenuto.api.parameters import Id, TextFilter
from tenuto.api.security.authentication import ApiCall, is_still_authorized, requires
from tenuto.api.streaming import AbortableStream, StreamAborted
from tenuto.audit.verifier import Fault, VerifierCursor
from tenuto.clock import monotonic_seconds
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import AUDIT_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.presentation.admin_views import AUDIT_ENTRIES
from tenuto.store.access.audit_log import AuditEntryRecord

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], route_class=ApiRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "at": "2031-05-04T02:00:00Z",
    "actor_type": "api_key",
    "actor_name": "ci",
    "source": "10.1.2.3",
    "action": "schedule.change",
    "target": "Nightly HR Sync",
    "reason": "an hour later",
}
_AUTHORIZATION_CHECK_SECONDS = 0.1


class AuditVerification(BaseModel):
    """Result of a verification, or of a part of it."""

    is_sound: bool = Field(description="Whether no fault was found.")
    checked_link_count: int
    end_position: int = Field(description="Last position of the chain.")
    is_keyed: bool = Field(description="Whether the last link is sealed with a key.")
    checkpoint_position: int = Field(description="Position of the latest checkpoint.")
    faults: list[Fault]
    has_more_faults: bool = Field(description="Whether there are faults beyond the reported ones.")
    next: str | None = Field(description="Cursor for `after`; null at the end of the log.")


Admin = Annotated[ApiCall, requires(Role.ADMIN, "audit.read")]


@router.get(
    "",
    operation_id="audit_list",
    responses=describe_filtered_page(EXAMPLE, invalid=("value.*", "database.value.out_of_range")),
)
@listed_as(AUDIT_ENTRIES)
async def list_audit(
    call: Admin,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    actor: TextFilter = None,
    action: Annotated[
        str | None, Query(max_length=200, description="Filter by resource (`schedule`) or action (`schedule.change`).")
    ] = None,
    target: TextFilter = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[AuditEntryRecord]:
    """List audit entries, newest first."""
    filter = await parse_query(call, AUDIT_KEYS, q, window)
    found = await call.app.audit.list(
        filter,
        below=decode_key(after, UUID),
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        limit=limit,
    )
    return make_page(found, limit, lambda each: (each.id,), filter)


@router.get("/count", operation_id="audit_count", responses=describe_count())
async def count_audit(call: Admin, q: FilterText = None, window: Window = DEFAULT_WINDOW) -> CappedCount:
    """Count audit entries. The number is exact up to 10,000."""
    return await call.app.audit.count(await parse_query(call, AUDIT_KEYS, q, window))


@router.get(
    "/verification",
    operation_id="audit_verify",
    responses=describe(
        {"is_sound": True, "checked_link_count": 1204, "faults": [], "next": None}, invalid="request.cursor.invalid"
    ),
)
async def verify_audit(
    call: Admin,
    newest: Annotated[
        int | None, Query(ge=1, le=10_000_000, description="Verify only this number of newest entries.")
    ] = None,
    after: After = None,
) -> AuditVerification:
    """Verify the audit chain. Returns changed, deleted, moved and truncated entries. One request verifies for a few
    seconds; continue with `after` until `next` is null."""
    cursor = decode_cursor(after, _parse_optional_int, _parse_optional_id, _parse_optional_int)
    result, position = await call.app.audit.verify_part(
        newest=newest, cursor=None if cursor is None else VerifierCursor(*cursor)
    )
    next_cursor = None if position is None else encode_cursor(position.link, position.entry, position.entries_left)
    return AuditVerification(
        is_sound=result.is_sound,
        checked_link_count=result.checked_link_count,
        end_position=result.end_position,
        is_keyed=result.is_keyed,
        checkpoint_position=result.checkpoint_position,
        faults=result.faults,
        has_more_faults=result.has_more_faults,
        next=next_cursor,
    )


def _parse_optional_int(given: Any) -> int | None:
    if given is not None and (not isinstance(given, int) or not 0 <= given < 2**62):
        raise ValueError
    return given


def _parse_optional_id(given: Any) -> UUID | None:
    return None if given is None else UUID(given)


@router.get("/export", operation_id="audit_export", response_class=StreamingResponse)
async def export_audit(call: Admin, request: Request) -> StreamingResponse:
    """Export the audit log as JSON lines, oldest first, with the seals. If the caller's key is revoked or the database
    fails, the connection closes without the end of the response."""
    return AbortableStream(_export_lines(call, request), media_type="application/x-ndjson")


async def _export_lines(call: ApiCall, request: Request) -> AsyncIterator[str]:
    checked_at = monotonic_seconds()
    async for line in call.app.audit.export_lines():
        if monotonic_seconds() - checked_at > _AUTHORIZATION_CHECK_SECONDS:
            if not await is_still_authorized(request, call):  # guard: audit.export_ends_with_key
                raise StreamAborted("the API key is no longer valid")
            checked_at = monotonic_seconds()
        yield f"{line}\n"


@router.get("/{id}", operation_id="audit_get", responses=describe(EXAMPLE, not_found="audit.entry.not_found"))
async def get_audit_entry(call: Admin, id: Id) -> AuditEntryRecord:
    """Get an audit entry with its position in the chain and its seal."""
    return await call.app.audit.get(id)
