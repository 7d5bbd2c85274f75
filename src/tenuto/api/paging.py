"""Pages by key: what comes after the last one seen, never the n-th page of something that moves."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from tenuto.errors import Invalid

MOST = 500

Limit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]
After = Annotated[
    str | None, Query(max_length=500, description="`next` of the page before; without it, the first page.")
]


class Page(BaseModel):
    """A page of a list."""

    items: list[dict[str, Any]]
    next: str | None = Field(default=None, description="Ask for `after` this to see what follows; null at the end.")


def mark(*parts: Any) -> str:
    """A place in a list, as a text nobody needs to understand."""
    return base64.urlsafe_b64encode(json.dumps(parts, default=str).encode()).rstrip(b"=").decode()


def place(after: str | None, *kinds: Callable[[Any], Any]) -> list[Any] | None:
    """The place a text stands for."""
    if after is None:
        return None
    try:
        parts = json.loads(base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True))
        if not isinstance(parts, list) or len(parts) != len(kinds):
            raise ValueError
        return [kind(part) for kind, part in zip(kinds, parts, strict=True)]
    except (ValueError, TypeError, RecursionError, AttributeError, OverflowError):
        raise Invalid(
            "is no place in this list", field="after", remedy="give `next` of the page before, unchanged"
        ) from None


def instant(text: str) -> datetime:
    """An instant as part of a place: never without its offset."""
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        raise ValueError
    return read


def number(given: Any) -> int:
    """A small whole number as part of a place."""
    if type(given) is not int or not 0 <= given < 2**31:
        raise ValueError
    return given


def page(found: Sequence[dict[str, Any]], limit: int, key: Callable[[dict[str, Any]], tuple[Any, ...]]) -> Page:
    """The page, and where the next one begins if this one is full."""
    items = list(found)
    return Page(items=items, next=mark(*key(items[-1])) if len(items) == limit else None)
