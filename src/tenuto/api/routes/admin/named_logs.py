"""``/api/log``: named logs to which steps and one-shots append."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter

from tenuto.api.api_route import ApiRoute
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import FilterText, Window, describe_filtered_page, parse_query
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe_page
from tenuto.api.parameters import Name, TextFilter
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import LOG_ENTRY_KEYS
from tenuto.model.filters import DEFAULT_WINDOW
from tenuto.presentation.admin_views import LOG_ENTRIES, LOGS
from tenuto.store.named_logs import LogEntryRecord, NamedLogRecord

router = APIRouter(prefix="/api/log", tags=["logs"], route_class=ApiRoute)

ENTRY = {"id": 17, "log": "default", "at": "2031-05-04T02:00:00Z", "message": "import finished", "fields": None}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "log.read")]


@router.get(
    "",
    operation_id="logs_list",
    responses=describe_page({"log": "default", "last_entry_id": 17, "last_message": ENTRY["message"]}),
)
@listed_as(LOGS)
async def list_logs(
    call: Viewer, search: TextFilter = None, limit: Limit = 100, after: After = None
) -> Page[NamedLogRecord]:
    """List logs by name, each with its newest entry."""
    found = await call.app.logs.names(search=search or "", after=decode_key(after, str) or "", limit=limit)
    return make_page(found, limit, lambda each: (each.log,))


@router.get(
    "/{name:name}",
    operation_id="logs_read",
    responses=describe_filtered_page(ENTRY, invalid=("value.name.invalid", "log.entry_id.invalid")),
)
@listed_as(LOG_ENTRIES)
async def read_log(
    call: Viewer,
    name: Name,
    q: FilterText = None,
    window: Window = DEFAULT_WINDOW,
    order: Literal["newest", "oldest"] = "newest",
    limit: Limit = 100,
    after: After = None,
) -> Page[LogEntryRecord]:
    """List the entries of a log. An unknown log is empty."""
    bound = decode_key(after, int)
    oldest = order == "oldest"
    filter = await parse_query(call, LOG_ENTRY_KEYS, q, window)
    found = await call.app.logs.read(
        name, filter, below=None if oldest else bound, above=bound if oldest else None, oldest_first=oldest, limit=limit
    )
    return make_page(found, limit, lambda each: (each.id,), filter)
