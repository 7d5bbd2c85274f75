"""``/api/v1/activities``: the record of every attempt."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from fastapi.responses import PlainTextResponse

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.response_docs import Id, Text, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import inward, told
from tenuto.model.actors import Role
from tenuto.model.tasks import Status

router = APIRouter(prefix="/api/v1/activities", tags=["activities"], route_class=StrictRoute)

EXAMPLE = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "task_id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "attempt": 1,
    "status": "Failed",
    "reason": "error",
    "final": False,
    "name": "send_mail",
    "started_at": "2031-05-04T02:00:00Z",
    "ended_at": "2031-05-04T02:00:04Z",
    "error": {"type": "ConnectionError", "message": "the server does not answer"},
}
STATS = {"kind": "job", "name": "send_mail", "attempts": 120, "done": 117, "failed": 3, "duration_p95": 0.8}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "activity.read"))]
_A_DAY = timedelta(days=1)


@router.get("", responses=a_page(EXAMPLE))
async def list_activities(
    visit: Look,
    status: Text = None,
    name: Text = None,
    queue: Text = None,
    tag: Text = None,
    limit: Limit = 50,
    after: After = None,
) -> Page:
    """Past attempts, the newest first."""
    at = place(after, UUID)
    found = await visit.app.activities(
        below=at[0] if at else None,
        state=inward(status, Status, field="status"),
        name=name,
        queue=queue,
        tag=tag,
        limit=limit,
    )
    return page([told(each) for each in found], limit, lambda each: (each["id"],))


@router.get("/stats", responses=answers({"since": "2031-05-03T02:00:00Z", "items": [STATS]}))
async def activity_stats(
    visit: Look,
    since: Annotated[datetime | None, Query(description="Since when; a day ago unless said.")] = None,
    name: Text = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """What has ended since, by name: how many attempts and how they ended, how many seconds they waited and took."""
    begin = since or (await visit.app.open()).clock.now() - _A_DAY
    return {"since": begin, "items": await visit.app.stats(since=begin, name=name, limit=limit)}


@router.get("/{id}", responses=answers(EXAMPLE))
async def get_activity(visit: Look, id: Id) -> dict[str, Any]:
    """One attempt, whether it lies ahead, is in progress or is past, with input, output, error and progress."""
    return told({name: value for name, value in (await visit.app.activity(id)).items() if name != "log"})


@router.get("/{id}/log", response_class=PlainTextResponse)
async def activity_log(visit: Look, id: Id) -> str:
    """What the attempt wrote to its log, as text; complete once it has ended."""
    return (await visit.app.activity(id))["log"] or ""


@router.get("/{id}/children", responses=a_page(EXAMPLE))
async def activity_children(visit: Look, id: Id, limit: Limit = 50, after: After = None) -> Page:
    """What it asked for itself while it ran: the attempts at it, the first one first."""
    at = place(after, UUID)
    found = await visit.app.children(id, above=at[0] if at else None, limit=limit)
    return page([told(each) for each in found], limit, lambda each: (each["id"],))
