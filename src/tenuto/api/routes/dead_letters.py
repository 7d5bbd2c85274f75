"""``/api/v1/dead-letters``: list and resolve dead letters.

Many dead letters are resolved in two requests: the first returns the ids that match a filter, the second
resolves these ids.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field

from tenuto.api.auth import ApiCall, requires
from tenuto.api.paging import After, Limit, Page, decode_cursor, make_page
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import (
    Body,
    Id,
    NoteBody,
    TextFilter,
    example,
    example_page,
    parse_wire_state,
    to_wire,
    to_wire_state,
)
from tenuto.model.actors import Role
from tenuto.model.dead_letters import DeadLetterState

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=StrictRoute)

EXAMPLE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "external_id": "invoices",
    "item": "17",
    "state": "AwaitingIntervention",
    "dead_lettered_at": "2031-05-04T02:00:00Z",
    "reason": "ConnectionError: the server does not respond",
    "fingerprint": "5f2c8d31a9b04e77",
    "attempt_count": 3,
}
GROUP = {
    "external_id": "invoices",
    "fingerprint": "5f2c8d31a9b04e77",
    "reason": EXAMPLE["reason"],
    "dead_letter_count": 41,
    "first_at": "2031-05-04T01:58:00Z",
    "last_at": "2031-05-04T02:00:00Z",
}
MAX_SELECTED = 10_000
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "dead_letter.read")]
_AWAITING_INTERVENTION = to_wire_state(DeadLetterState.AWAITING_INTERVENTION)


class RetryBody(NoteBody):
    """Note, and a new input if the failed one was wrong."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"note": "typo in the address", "input": {"to": "x@y.org"}}]}
    )

    input: dict[str, Any] | None = None


class DeadLetterFilter(Body):
    """Filter of open dead letters; omitted fields match all."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"manifest": "invoices", "fingerprint": "5f2c8d31a9b04e77"}]}
    )

    manifest: str | None = Field(default=None, max_length=200)
    fingerprint: str | None = Field(default=None, max_length=200)
    batch: UUID | None = None
    until: datetime | None = Field(default=None, description="Filter by dead letters written up to this instant.")


class Selection(NoteBody):
    """Selected dead letters."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": [EXAMPLE["id"]], "note": "the server is available"}]}
    )

    ids: list[UUID] = Field(min_length=1, max_length=MAX_SELECTED)


@router.get("", responses=example_page(EXAMPLE))
async def list_dead_letters(
    call: Viewer,
    status: Annotated[
        str | None, Query(description="Filter by status; `Any` for all.", max_length=200)
    ] = _AWAITING_INTERVENTION,
    manifest: TextFilter = None,
    fingerprint: TextFilter = None,
    batch: UUID | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """List dead letters, newest first. By default only those that await intervention."""
    cursor = decode_cursor(after, UUID)
    found = await call.app.dead_letters.list(
        below=cursor[0] if cursor else None,
        state=None if status == "Any" else parse_wire_state(status, DeadLetterState, field="status"),
        manifest=manifest,
        fingerprint=fingerprint,
        batch=batch,
        limit=limit,
    )
    return make_page([to_wire(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/groups", responses=example({"items": [GROUP]}))
async def dead_letter_groups(
    call: Viewer, manifest: TextFilter = None, batch: UUID | None = None, limit: Limit = 100
) -> dict[str, Any]:
    """List open dead letters grouped by failure, the most frequent first."""
    found = await call.app.dead_letters.groups(manifest=manifest, batch=batch, limit=limit)
    return {"items": [to_wire(each) for each in found]}


@router.post("/selections", responses=example({"total": 1, "ids": [EXAMPLE["id"]], "about": [GROUP]}))
async def select_dead_letters(call: Viewer, filter: DeadLetterFilter) -> dict[str, Any]:
    """Select dead letters by a filter. Returns their ids and a summary for a later retry or acknowledgement."""
    ids = await call.app.dead_letters.select(
        manifest=filter.manifest, fingerprint=filter.fingerprint, batch=filter.batch, until=filter.until
    )
    about = await call.app.dead_letters.summary(ids)
    return {"total": len(ids), "ids": list(ids[:MAX_SELECTED]), "about": [to_wire(each) for each in about]}


@router.post("/retry", status_code=202, responses=example({"retried": 41}, 202))
async def retry_dead_letters(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.retry")], selection: Selection
) -> dict[str, int]:
    """Retry selected dead letters. Those resolved in the meantime are skipped."""
    note = selection.note or call.reason
    return {"retried": await call.app.dead_letters.retry_selected(selection.ids, note=note, request_id=call.object_id)}


@router.post("/acknowledge", responses=example({"acknowledged": 41}))
async def acknowledge_dead_letters(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.acknowledge")], selection: Selection
) -> dict[str, int]:
    """Acknowledge selected dead letters. Those resolved in the meantime are skipped."""
    note = selection.note or call.reason
    return {
        "acknowledged": await call.app.dead_letters.acknowledge_selected(
            selection.ids, note=note, request_id=call.object_id
        )
    }


@router.get("/{id}", responses=example({**EXAMPLE, "attempts": []}))
async def get_dead_letter(call: Viewer, id: Id) -> dict[str, Any]:
    """Get a dead letter with its attempts, oldest first."""
    return to_wire(await call.app.dead_letters.get(id))


@router.post("/{id}/retry", status_code=202, responses=example({"task_id": EXAMPLE["id"]}, 202))
async def retry_dead_letter(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.retry")],
    id: Id,
    response: Response,
    body: RetryBody | None = None,
) -> dict[str, UUID]:
    """Retry a dead letter, optionally with a new input."""
    body = body or RetryBody()
    task_id = await call.app.dead_letters.retry(
        id, input=body.input, note=body.note or call.reason, request_id=call.object_id
    )
    response.headers["Location"] = f"/api/v1/tasks/{task_id}"
    return {"task_id": task_id}


@router.post("/{id}/acknowledge", status_code=204)
async def acknowledge_dead_letter(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.acknowledge")], id: Id, note: NoteBody | None = None
) -> None:
    """Acknowledge a dead letter without a retry."""
    await call.app.dead_letters.acknowledge(id, note=(note and note.note) or call.reason, request_id=call.object_id)
