"""``/api/log``: named logs to which steps and one-shots append."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.openapi import describe_page
from tenuto.api.paging import After, Limit, Page, decode_cursor, make_page
from tenuto.api.parameters import Name
from tenuto.model.actors import Role
from tenuto.store.named_logs import LogEntryRecord, NamedLogRecord

router = APIRouter(prefix="/api/log", tags=["logs"], route_class=ApiRoute)

ENTRY = {"id": 17, "log": "default", "at": "2031-05-04T02:00:00Z", "message": "import finished", "fields": None}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "log.read")]


@router.get(
    "",
    operation_id="logs_list",
    responses=describe_page({"log": "default", "last_entry_id": 17, "last_message": ENTRY["message"]}),
)
async def list_logs(call: Viewer, limit: Limit = 100, after: After = None) -> Page[NamedLogRecord]:
    """List logs by name, each with its newest entry."""
    cursor = decode_cursor(after, str)
    found = await call.app.logs.names(after=cursor[0] if cursor else "", limit=limit)
    return make_page(found, limit, lambda each: (each.log,))


@router.get(
    "/{name:name}",
    operation_id="logs_read",
    responses=describe_page(ENTRY, invalid=("value.name.invalid", "log.entry_id.invalid")),
)
async def read_log(
    call: Viewer, name: Name, order: Literal["newest", "oldest"] = "newest", limit: Limit = 100, after: After = None
) -> Page[LogEntryRecord]:
    """List the entries of a log. An unknown log is empty."""
    cursor = decode_cursor(after, int)
    bound = cursor[0] if cursor else None
    oldest = order == "oldest"
    found = await call.app.logs.read(
        name, below=None if oldest else bound, above=bound if oldest else None, oldest_first=oldest, limit=limit
    )
    return make_page(found, limit, lambda each: (each.id,))
