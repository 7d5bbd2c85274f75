"""Keyset paging: a page starts after the last item of the previous page, so inserts neither skip nor repeat items."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar, overload

from fastapi import Query
from pydantic import BaseModel, Field

from tenuto.errors import Invalid, quoted
from tenuto.model.filters import Filter

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

MAX_PAGE_SIZE = 500

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="Maximum number of items.")]
After = Annotated[
    str | None, Query(max_length=500, description="`next` of the previous page; omit it for the first page.")
]


class Page(BaseModel, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(description="Cursor of the next page for `after`; null on the last page.")
    searched: int | None = Field(
        default=None, description="Number of newest records that the filter searched; null if it searched all."
    )


class Items(BaseModel, Generic[T]):
    """A list without pages."""

    items: list[T]


def make_page(
    items: Sequence[T], limit: int, key: Callable[[T], tuple[Any, ...]], filter: Filter | None = None
) -> Page[T]:
    """Return a page with the cursor of the next one if this page is full."""
    return Page(
        items=list(items),
        next=encode_cursor(*key(items[-1])) if len(items) == limit else None,
        searched=None if filter is None else filter.searched_count,
    )


def encode_cursor(*parts: Any) -> str:
    """Encode the sort key of an item as an opaque text."""
    return base64.urlsafe_b64encode(json.dumps(parts, default=str).encode()).rstrip(b"=").decode()


def decode_key(after: str | None, parser: Callable[[Any], A]) -> A | None:
    """Decode a cursor whose sort key has one part; None for the first page."""
    parts = decode_cursor(after, parser)
    return None if parts is None else parts[0]


@overload
def decode_cursor(
    after: str | None, first: Callable[[Any], A], second: Callable[[Any], B], /
) -> tuple[A, B] | None: ...


@overload
def decode_cursor(after: str | None, *parsers: Callable[[Any], Any]) -> tuple[Any, ...] | None: ...


def decode_cursor(after: str | None, *parsers: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """Decode a cursor, with one parser for each part of the sort key; None for the first page."""
    if after is None:
        return None
    try:
        parts = json.loads(base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True))
        if not isinstance(parts, list) or len(parts) != len(parsers):
            raise ValueError
        return tuple(parse(part) for parse, part in zip(parsers, parts, strict=True))
    except (ValueError, TypeError, RecursionError, AttributeError, OverflowError):
        raise Invalid(
            f"after {quoted(after, 60)} is not a cursor of this list",
            code="request.cursor.invalid",
            field="after",
            remedy="send `next` of the previous page unchanged",
        ) from None


def cursor_instant(text: str) -> datetime:
    """Parse an instant with a UTC offset."""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError
    return instant


def cursor_int(value: Any) -> int:
    """Parse a non-negative 32-bit integer."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError
    return value
