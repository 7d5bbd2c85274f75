"""``/api/v1/audit``: what people and keys have changed, and whether somebody has been at the record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from tenuto.api.answers import Id, Text, a_page, answers
from tenuto.api.door import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.reading import StrictRoute
from tenuto.model.access import Role

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], route_class=StrictRoute)

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
Look = Annotated[Visit, Depends(Needs(Role.ADMIN, "audit.read"))]


@router.get("", responses=a_page(EXAMPLE))
async def list_audit(
    visit: Look,
    actor: Text = None,
    action: Annotated[str | None, Query(max_length=200, description="`schedule`, or `schedule.change`.")] = None,
    target: Text = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """Entries of the audit trail, the newest first."""
    at = place(after, UUID)
    found = await visit.app.audit.list(
        below=at[0] if at else None,
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        limit=limit,
    )
    return page([dict(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/verification", responses=answers({"sound": True, "links": 1204, "position": 1204, "faults": []}))
async def verify_audit(
    visit: Look, newest: Annotated[int | None, Query(ge=1, le=10_000_000, description="Only so many.")] = None
) -> dict[str, Any]:
    """Whether the trail is as it was written: changed, deleted, moved or cut entries are named."""
    found = await visit.app.audit.verify(newest=newest)
    return {"sound": found.sound, **asdict(found)}


@router.get("/export", response_class=StreamingResponse)
async def export_audit(visit: Look) -> StreamingResponse:
    """The whole trail as lines of JSON, the oldest first, with the seals."""

    async def lines() -> AsyncIterator[str]:
        async for line in visit.app.audit.lines():
            yield f"{line}\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/{id}", responses=answers(EXAMPLE))
async def get_audit_entry(visit: Look, id: Id) -> dict[str, Any]:
    """One entry, with its place in the chain and its seal."""
    return dict(await visit.app.audit.get(id))
