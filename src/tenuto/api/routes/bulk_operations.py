"""``/api/v1/operations``: act on many objects at once, and track it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import FILTER_PROBLEMS
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.api.streaming import csv_download
from tenuto.model.access.actors import Role
from tenuto.model.work.bulk_operations import MAX_SELECTED_IDS, BulkKind, BulkState, ItemOutcome
from tenuto.operations.work.bulk_operations import BulkPreview
from tenuto.presentation.work_views import BULK_ITEMS, BULK_OPERATIONS
from tenuto.store.work.bulk_operations import BulkItemRecord, BulkOperationRecord

router = APIRouter(prefix="/api/v1/operations", tags=["bulk operations"], route_class=ApiRoute)

EXAMPLE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "kind": "task.cancel",
    "filter": "queue:mail state:queued",
    "description": "queue is mail, state is queued",
    "until": "2031-05-04T02:00:00Z",
    "reason": "the supplier is down",
    "state": "running",
    "item_count": 1204,
    "succeeded_count": 500,
    "failed_count": 0,
    "skipped_count": 0,
    "created_at": "2031-05-04T02:00:00Z",
    "actor_name": "ana",
}
PREVIEW = {name: EXAMPLE[name] for name in ("kind", "description", "until")} | {"count": 1204, "is_exact": True}
ITEM = {
    "item_id": EXAMPLE["id"],
    "outcome": "skipped",
    "code": "task.already_ended",
    "message": "the task has already ended",
}
INVALID = (
    *FILTER_PROBLEMS,
    "operation.kind.not_selectable",
    "operation.until.in_future",
    "value.instant.no_utc_offset",
)
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "operation.read")]


class BulkSelection(Body):
    """Kind and selection of a bulk operation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "task.cancel", "q": "queue:mail state:queued"}]})

    kind: BulkKind
    q: str = Field(default="", max_length=500, description="Filter of the objects; empty for all.")
    until: datetime | None = Field(
        default=None, description="Objects that appeared later are not selected; default: now."
    )
    zone: str = Field(default="UTC", max_length=60, description="Time zone of dates in the filter without an offset.")


class NewBulkOperation(BulkSelection):
    """A new bulk operation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "task.cancel",
                    "q": "queue:mail state:queued",
                    "until": "2031-05-04T02:00:00Z",
                    "expected": 1204,
                    "reason": "the supplier is down",
                }
            ]
        }
    )

    ids: list[UUID] | None = Field(
        default=None, min_length=1, max_length=MAX_SELECTED_IDS, description="Ids of the objects, instead of a filter."
    )
    expected: int | None = Field(
        default=None, ge=0, description="Number of objects in the preview; a difference of more than 10 % is refused."
    )
    reason: str | None = Field(default=None, max_length=4000, description="Reason, stored with the operation.")


@router.post("/preview", operation_id="operations_preview", responses=describe(PREVIEW, invalid=INVALID))
async def preview_operation(
    call: Annotated[ApiCall, requires(Role.VIEWER, "operation.read")], selection: BulkSelection
) -> BulkPreview:
    """Preview a bulk operation. Counts the objects that it would select, exactly up to 10,000, and changes nothing."""
    return await call.app.bulk_operations.preview(
        selection.kind, selection.q, until=selection.until, zone=selection.zone
    )


@router.post(
    "",
    operation_id="operations_create",
    status_code=202,
    responses=describe(
        EXAMPLE,
        202,
        conflict="operation.selection.changed",
        invalid=(
            *INVALID,
            "operation.too_many_items",
            "operation.selection.ambiguous",
            "operation.selection.size",
            "dead_letter.note.required",
            "value.too_large",
        ),
    ),
)
async def create_operation(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "operation.create", handles_repeats=True)],
    new: NewBulkOperation,
    response: Response,
) -> BulkOperationRecord:
    """Start a bulk operation. Its objects are selected now; schedulers process them in chunks."""
    created = await call.app.bulk_operations.create(
        new.kind,
        new.q,
        ids=new.ids,
        until=new.until,
        zone=new.zone,
        expected=new.expected,
        reason=new.reason or call.reason,
        request_id=call.object_id,
    )
    response.headers["Location"] = f"/api/v1/operations/{created.id}"
    return created


@router.get("", operation_id="operations_list", responses=describe_page(EXAMPLE))
@listed_as(BULK_OPERATIONS)
async def list_operations(
    call: Viewer,
    state: BulkState | None = None,
    kind: BulkKind | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[BulkOperationRecord]:
    """List bulk operations, newest first."""
    found = await call.app.bulk_operations.list(below=decode_key(after, UUID), state=state, kind=kind, limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


@router.get("/{id}", operation_id="operations_get", responses=describe(EXAMPLE, not_found="operation.not_found"))
async def get_operation(call: Viewer, id: Id) -> BulkOperationRecord:
    """Get a bulk operation with its counters."""
    return await call.app.bulk_operations.get(id)


@router.get(
    "/{id}/items.csv",
    operation_id="operations_items_csv",
    response_class=StreamingResponse,
    responses=describe(not_found="operation.not_found"),
)
async def download_operation_items(call: Viewer, id: Id) -> StreamingResponse:
    """Download the items of a bulk operation that failed or were skipped as a CSV file."""
    await call.app.bulk_operations.get(id)
    return csv_download(BULK_ITEMS, call.app.bulk_operations.all_items(id), f"operation-{id}.csv")


@router.get(
    "/{id}/items", operation_id="operations_items", responses=describe_page(ITEM, not_found="operation.not_found")
)
@listed_as(BULK_ITEMS)
async def operation_items(
    call: Viewer, id: Id, outcome: ItemOutcome | None = None, limit: Limit = 100, after: After = None
) -> Page[BulkItemRecord]:
    """List the items of a bulk operation that failed or were skipped, with the reason. The others are counted only."""
    found = await call.app.bulk_operations.items(id, outcome=outcome, above=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.item_id,))


@router.post(
    "/{id}/pause",
    operation_id="operations_pause",
    responses=describe(EXAMPLE, not_found="operation.not_found", conflict="operation.already_ended"),
)
async def pause_operation(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "operation.pause", handles_repeats=True)], id: Id
) -> BulkOperationRecord:
    """Pause a bulk operation after the chunk in progress. Running executions of a backfill go on."""
    # A request that changed nothing is not stored, so the first request of a repeated one has paused the operation.
    operations = call.app.bulk_operations
    return await (operations.get(id) if call.is_repeat else operations.pause(id))


@router.post(
    "/{id}/resume",
    operation_id="operations_resume",
    responses=describe(EXAMPLE, not_found="operation.not_found", conflict="operation.already_ended"),
)
async def resume_operation(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "operation.resume", handles_repeats=True)], id: Id
) -> BulkOperationRecord:
    """Resume a paused bulk operation."""
    # A request that changed nothing is not stored, so the first request of a repeated one has resumed the operation.
    operations = call.app.bulk_operations
    return await (operations.get(id) if call.is_repeat else operations.resume(id))


@router.post(
    "/{id}/abort",
    operation_id="operations_abort",
    responses=describe(EXAMPLE, not_found="operation.not_found", conflict="operation.already_ended"),
)
async def abort_operation(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "operation.abort", handles_repeats=True)], id: Id
) -> BulkOperationRecord:
    """Abort a bulk operation after the chunk in progress. The rest of its objects is left untouched."""
    return await call.app.bulk_operations.abort(id)
