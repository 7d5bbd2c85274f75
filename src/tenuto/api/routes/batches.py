"""``/api/v1/batches``: bulk work as one thing that can be watched, paused and cancelled."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.response_docs import Id, Note, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, told
from tenuto.model.actors import Role
from tenuto.model.tasks import Status, TaskState

router = APIRouter(prefix="/api/v1/batches", tags=["batches"], route_class=StrictRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "key": "invoices-2031-05",
    "external_id": "invoices",
    "state": "InProgress",
    "total": 20000,
    "duplicates": 12,
    "left": 15400,
    "done": 4590,
    "failed": 10,
    "rate": 412.5,
    "seconds_left": 37.3,
}
ITEM = {"task_id": EXAMPLE["id"], "item_key": "17", "status": "Completed", "attempt": 1, "output": {"pages": 2}}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "batch.read"))]
_STATUSES = (*Status, *TaskState)


@router.get("", responses=a_page(EXAMPLE))
async def list_batches(visit: Look, manifest: Text = None, limit: Limit = 50, after: After = None) -> Page:
    """Batches, the newest first."""
    at = place(after, UUID)
    found = await visit.app.batches.list(below=at[0] if at else None, manifest=manifest, limit=limit)
    return page([shown(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/{id}", responses=answers(EXAMPLE))
async def get_batch(visit: Look, id: Id) -> dict[str, Any]:
    """A batch: counts by state, rate, and when it will be done."""
    return shown(await visit.app.batches.get(id))


@router.get("/{id}/items", responses=a_page(ITEM))
async def batch_items(visit: Look, id: Id, status: Text = None, limit: Limit = 100, after: After = None) -> Page:
    """The items of a batch with what became of each, in the order they came in."""
    at = place(after, UUID)
    found = await visit.app.batches.page_of_items(
        id, above=at[0] if at else None, status=inward(status, _STATUSES, field="status"), limit=limit
    )
    return page([told(each) for each in found], limit, lambda each: (each["task_id"],))


@router.post("/{id}/pause", status_code=204)
async def pause_batch(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "batch.pause"))], id: Id) -> None:
    """Let nothing more of it begin; what runs goes on to its end."""
    await visit.app.batches.pause(id)


@router.post("/{id}/resume", status_code=204)
async def resume_batch(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "batch.resume"))], id: Id) -> None:
    """Let a paused batch go on."""
    await visit.app.batches.resume(id)


@router.post("/{id}/cancel", status_code=204)
async def cancel_batch(visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "batch.cancel"))], id: Id) -> None:
    """Cancel: what has not begun is removed, what runs is told to stop."""
    await visit.app.batches.cancel(id)


@router.post("/{id}/retry-failed", status_code=202, responses=answers({"retried": 10}, 202))
async def retry_failed_of_batch(
    visit: Annotated[Visit, Depends(Needs(Role.OPERATOR, "batch.retry"))], id: Id, note: Note | None = None
) -> dict[str, int]:
    """Run what failed for good again."""
    why = (note and note.note) or visit.reason
    return {"retried": await visit.app.batches.retry_failed(id, note=why, request_id=visit.id)}


def shown(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as told on the wire."""
    return told(batch)
