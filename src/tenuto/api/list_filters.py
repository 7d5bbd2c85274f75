"""The query parameters of filtered lists: ``q``, a filter, and ``window``, the number of newest records to search."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any

from fastapi import Query

from tenuto.api.openapi import Responses, describe, describe_page
from tenuto.api.security.authentication import ApiCall
from tenuto.model.filters import DEFAULT_WINDOW, MAX_WINDOW, Filter, FilterSchema, parse_filter
from tenuto.store.filter_sql import CappedCount

FilterText = Annotated[
    str | None,
    Query(
        description="Filter such as `state:failed started:>2h -tag:demo`; at most 500 characters.",
        examples=["state:failed started:>2h"],
    ),
]
Window = Annotated[
    int,
    Query(
        ge=1,
        le=MAX_WINDOW,
        description="Number of newest records in which keys without an index, and texts, are searched.",
    ),
]
FILTER_PROBLEMS = ("filter.syntax", "filter.key.unknown", "filter.value.invalid", "filter.too_long")


async def parse_query(call: ApiCall, schema: FilterSchema, q: str | None, window: int = DEFAULT_WINDOW) -> Filter:
    """Return the filter of a request; dates are in UTC."""
    now = (await call.app.open()).clock.now()
    return parse_filter(schema, q or "", now, zone=UTC, field="q", window=window)


def describe_filtered_page(
    item: Mapping[str, Any], *, not_found: str | tuple[str, ...] = (), invalid: tuple[str, ...] = ()
) -> Responses:
    """Describe a route that returns a page of a filtered list, by an example of its items."""
    return describe_page(item, not_found=not_found, invalid=(*FILTER_PROBLEMS, *invalid))


def describe_count(*, invalid: tuple[str, ...] = (), not_found: str | tuple[str, ...] = ()) -> Responses:
    """Describe a route that returns the number of records that meet a filter."""
    return describe({"count": 4312, "is_exact": True}, not_found=not_found, invalid=(*FILTER_PROBLEMS, *invalid))


__all__ = ["CappedCount", "FilterText", "Window", "describe_count", "describe_filtered_page", "parse_query"]
