"""``/api/v1/dead-letters``: list and resolve dead letters.

Many dead letters are resolved in two requests: the first returns the ids that match a filter, the second
resolves these ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body, NoteBody, RetryBody
from tenuto.api.bodies.responses import RetriedCount, StartedTask
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import (
    FILTER_PROBLEMS,
    CappedCount,
    FilterText,
    Window,
    describe_count,
    describe_filtered_page,
    parse_query,
)
from tenuto.api.list_pages import After, Items, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe
from tenuto.api.parameters import Id, TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.model.work.dead_letters import DeadLetterState
from tenuto.presentation.work_views import DEAD_LETTERS, FAILURE_GROUPS
from tenuto.store.reports.failure_groups import FailureGroup, FailureGroupDetails
from tenuto.store.work.dead_letters import DeadLetterDetails, DeadLetterRecord

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=ApiRoute)

EXAMPLE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "external_id": "invoices",
    "kind": "job",
    "name": "make_invoice",
    "item": "17",
    "state": "awaiting_intervention",
    "dead_lettered_at": "2031-05-04T02:00:00Z",
    "reason": "ConnectionError: the server does not respond",
    "fingerprint": "5f2c8d31a9b04e77",
    "attempt_count": 3,
}
GROUP = {
    "external_id": "invoices",
    "name": "make_invoice",
    "fingerprint": "5f2c8d31a9b04e77",
    "reason": EXAMPLE["reason"],
    "dead_letter_count": 41,
    "first_at": "2031-05-04T01:58:00Z",
    "last_at": "2031-05-04T02:00:00Z",
}
GROUP_DETAILS = {
    **GROUP,
    "manifests": ["invoices", "reminders"],
    "hourly_counts": [*[0] * 22, 3, 38],
    "last_resolution": {
        "fingerprint": "5f2c8d31a9b04e77",
        "id": EXAMPLE["id"],
        "state": "retried",
        "resolved_at": "2031-04-02T10:14:00Z",
        "resolved_by": "ben",
        "note": "the server was restarted",
    },
}
INVALID_FILTER = "value.instant.no_utc_offset"
MAX_SELECTED_DEAD_LETTERS = 10_000
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "dead_letter.read")]


class DeadLetterFilter(Body):
    """Filter of open dead letters; omitted fields match all."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"manifest": "invoices", "fingerprint": "5f2c8d31a9b04e77"}]}
    )

    q: str | None = Field(default=None, max_length=500, description="Filter, such as `error:~timeout created:>1d`.")
    manifest: str | None = Field(default=None, max_length=200)
    fingerprint: str | None = Field(default=None, max_length=200)
    batch: UUID | None = None
    until: datetime | None = Field(default=None, description="Filter by dead letters written up to this instant.")


class Selection(NoteBody):
    """Selected dead letters."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": [EXAMPLE["id"]], "note": "the server is available"}]}
    )

    ids: list[UUID] = Field(min_length=1, max_length=MAX_SELECTED_DEAD_LETTERS)


class Summary(BaseModel):
    """Selected dead letters."""

    total: int = Field(description="Number of matching dead letters, which may be more than the ids.")
    ids: list[UUID]
    groups: Sequence[FailureGroup]


class AcknowledgedCount(BaseModel):
    """Number of acknowledged dead letters."""

    acknowledged: int


State = Annotated[
    DeadLetterState | Literal["any"], Query(description="Filter by state, unless `q` has one; `any` for all.")
]


@router.get("", operation_id="dead_letters_list", responses=describe_filtered_page(EXAMPLE))
@listed_as(DEAD_LETTERS)
async def list_dead_letters(
    call: Viewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    state: State = DeadLetterState.AWAITING_INTERVENTION,
    manifest: TextFilter = None,
    fingerprint: TextFilter = None,
    batch: UUID | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[DeadLetterRecord]:
    """List dead letters, newest first. By default only those that await intervention."""
    filter = await parse_query(call, DEAD_LETTER_KEYS, q, window)
    found = await call.app.dead_letters.list(
        filter,
        below=decode_key(after, UUID),
        state=None if state == "any" else state,
        manifest=manifest,
        fingerprint=fingerprint,
        batch=batch,
        limit=limit,
    )
    return make_page(found, limit, lambda each: (each.id,), filter)


@router.get("/count", operation_id="dead_letters_count", responses=describe_count())
async def count_dead_letters(
    call: Viewer,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    state: State = DeadLetterState.AWAITING_INTERVENTION,
) -> CappedCount:
    """Count dead letters. By default only those that await intervention. The number is exact up to 10,000."""
    filter = await parse_query(call, DEAD_LETTER_KEYS, q, window)
    return await call.app.dead_letters.count(filter, state=None if state == "any" else state)


@router.get("/groups", operation_id="dead_letters_groups", responses=describe({"items": [GROUP_DETAILS]}))
@listed_as(FAILURE_GROUPS)
async def dead_letter_groups(
    call: Viewer, manifest: TextFilter = None, batch: UUID | None = None, limit: Limit = 100
) -> Items[FailureGroupDetails]:
    """List open dead letters grouped by failure, the most frequent first. Each group has the affected manifests, the
    number of failures in each of the last 24 hours, and the last resolution of the same failure."""
    return Items(items=list(await call.app.dead_letters.groups(manifest=manifest, batch=batch, limit=limit)))


@router.post(
    "/selections",
    operation_id="dead_letters_select",
    responses=describe(
        {"total": 1, "ids": [EXAMPLE["id"]], "groups": [GROUP]}, invalid=(INVALID_FILTER, *FILTER_PROBLEMS)
    ),
)
async def select_dead_letters(call: Viewer, filter: DeadLetterFilter) -> Summary:
    """Select dead letters by a filter. Returns their ids and a summary for a later retry or acknowledgement."""
    ids = await call.app.dead_letters.select(
        await parse_query(call, DEAD_LETTER_KEYS, filter.q),
        manifest=filter.manifest,
        fingerprint=filter.fingerprint,
        batch=filter.batch,
        until=filter.until,
    )
    groups = await call.app.dead_letters.summary(ids)
    return Summary(total=len(ids), ids=list(ids[:MAX_SELECTED_DEAD_LETTERS]), groups=groups)


@router.post(
    "/retry", operation_id="dead_letters_retry_selected", status_code=202, responses=describe({"retried": 41}, 202)
)
async def retry_dead_letters(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.retry", handles_repeats=True)], selection: Selection
) -> RetriedCount:
    """Retry selected dead letters. Those resolved in the meantime are skipped."""
    note = selection.note or call.reason
    retried = await call.app.dead_letters.retry_selected(selection.ids, note=note, request_id=call.object_id)
    return RetriedCount(retried=retried)


@router.post("/acknowledge", operation_id="dead_letters_acknowledge_selected", responses=describe({"acknowledged": 41}))
async def acknowledge_dead_letters(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.acknowledge", handles_repeats=True)],
    selection: Selection,
) -> AcknowledgedCount:
    """Acknowledge selected dead letters. Those resolved in the meantime are skipped."""
    note = selection.note or call.reason
    acknowledged = await call.app.dead_letters.acknowledge_selected(selection.ids, note=note, request_id=call.object_id)
    return AcknowledgedCount(acknowledged=acknowledged)


@router.get(
    "/{id}",
    operation_id="dead_letters_get",
    responses=describe({**EXAMPLE, "attempts": []}, not_found="dead_letter.not_found"),
)
async def get_dead_letter(call: Viewer, id: Id) -> DeadLetterDetails:
    """Get a dead letter with its attempts, oldest first."""
    return await call.app.dead_letters.get(id)


@router.post(
    "/{id}/retry",
    operation_id="dead_letters_retry",
    status_code=202,
    responses=describe(
        {"task_id": EXAMPLE["id"]},
        202,
        forbidden="dead_letter.secret.forbidden",
        not_found=("dead_letter.not_found", "manifest.not_found"),
        conflict=(
            "dead_letter.already_resolved",
            "dead_letter.manifest.deleted",
            "dead_letter.batch.cancelled",
            "manifest.run.already_open",
            "task.key.in_use",
        ),
        invalid=("job.input.invalid", "job.unknown"),
    ),
)
async def retry_dead_letter(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.retry", handles_repeats=True)],
    id: Id,
    response: Response,
    body: RetryBody | None = None,
) -> StartedTask:
    """Retry a dead letter, optionally with a new input."""
    body = body or RetryBody()
    task_id = await call.app.dead_letters.retry(
        id,
        input=body.input,
        note=body.note or call.reason,
        may_use_secrets=call.caller.has_role(Role.EDITOR),
        request_id=call.object_id,
    )
    response.headers["Location"] = f"/api/v1/tasks/{task_id}"
    return StartedTask(task_id=task_id)


@router.post(
    "/{id}/acknowledge",
    operation_id="dead_letters_acknowledge",
    status_code=204,
    responses=describe(not_found="dead_letter.not_found", conflict="dead_letter.already_resolved"),
)
async def acknowledge_dead_letter(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "dead_letter.acknowledge", handles_repeats=True)],
    id: Id,
    note: NoteBody | None = None,
) -> None:
    """Acknowledge a dead letter without a retry."""
    await call.app.dead_letters.acknowledge(id, note=(note and note.note) or call.reason, request_id=call.object_id)
