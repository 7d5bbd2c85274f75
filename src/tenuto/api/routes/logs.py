"""``/api/log``: the named logs that steps and one-shots append to."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.path_names import Name
from tenuto.api.response_docs import a_page
from tenuto.api.strict_route import StrictRoute
from tenuto.model.actors import Role

router = APIRouter(prefix="/api/log", tags=["logs"], route_class=StrictRoute)

ENTRY = {"id": 17, "log": "default", "at": "2031-05-04T02:00:00Z", "message": "the import is through", "fields": None}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "log.read"))]


@router.get("", responses=a_page({"log": "default", "last_entry": 17, "last_message": ENTRY["message"]}))
async def list_logs(visit: Look, limit: Limit = 100, after: After = None) -> Page:
    """The logs there are, by name, each with its newest entry."""
    at = place(after, str)
    found = await visit.app.logs.names(after=at[0] if at else "", limit=limit)
    return page([dict(each) for each in found], limit, lambda each: (each["log"],))


@router.get("/{name:name}", responses=a_page(ENTRY))
async def read_log(
    visit: Look, name: Name, order: Literal["newest", "oldest"] = "newest", limit: Limit = 100, after: After = None
) -> Page:
    """Entries of a log. One that nobody has appended to is empty."""
    at = place(after, int)
    bound = at[0] if at else None
    oldest = order == "oldest"
    found = await visit.app.logs.read(
        name,
        below=None if oldest else bound,
        above=bound if oldest else None,
        oldest_first=oldest,
        limit=limit,
    )
    return page([dict(each) for each in found], limit, lambda each: (each["id"],))
