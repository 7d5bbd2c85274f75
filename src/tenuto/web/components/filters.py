"""Filter bar of a list: the text, its clauses as removable chips, the error of a wrong one, and the number of matches.

The grammar is that of `tenuto.model.filters`. A wrong filter shows no records: never those without the wrong clause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from fastapi import Query

from tenuto.api.list_pages import decode_cursor, encode_cursor
from tenuto.errors import Invalid
from tenuto.model.filters import DEFAULT_WINDOW, MAX_WINDOW, Filter, FilterSchema, KeyType, parse_filter
from tenuto.store.filter_sql import CappedCount

T = TypeVar("T")

CountEach = Callable[[Sequence[str | Filter]], Awaitable[Sequence[CappedCount]]]
"""Counts the records that meet each of some filters."""

PAGE_SIZE = 50
FilterText = Annotated[str, Query(max_length=500)]
"""Parameter ``q`` of a list."""
Window = Annotated[int, Query(ge=1, le=MAX_WINDOW)]
"""Parameter ``window`` of a list: how many of the newest records a clause without an index searches."""
_EXAMPLES = {
    KeyType.INSTANT: (">1h", ">1d", ">7d", "today"),
    KeyType.DURATION: (">1s", ">30s", ">5m", ">1h"),
    KeyType.NUMBER: (">=2", ">=3", ">=10"),
    KeyType.FLAG: ("yes", "no"),
}
"""Values that are offered for keys without choices."""
_ANY_INSTANT = datetime.min.replace(tzinfo=UTC) + timedelta(days=36_500)
_SOURCES = {"schedule": "schedule", "name": "job", "queue": "queue", "worker": "worker", "manifest": "manifest"}
"""Keys whose values are names of objects that the search finds, with the kind of object."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One clause, and the filter without it."""

    text: str
    without: str


@dataclass(frozen=True, slots=True)
class QuickFilter:
    """A link that sets the whole filter."""

    title: str
    text: str
    icon: str = ""
    count: CappedCount | None = None
    """Number of records that it selects; None if it is not counted."""

    @property
    def count_text(self) -> str:
        return count_text(self.count)


@dataclass(frozen=True, slots=True)
class FilterBar:
    """The filter of a list."""

    path: str
    """Path of the page."""
    schema: FilterSchema
    text: str
    chips: Sequence[Chip]
    quick: Sequence[QuickFilter]
    description: str
    searched_count: int | None
    """Number of newest records that were searched; None if all were."""
    error: Invalid | None = None
    window: int = DEFAULT_WINDOW
    zone: str = "UTC"
    order: str = ""
    """The order of the list, if there is a choice."""

    @property
    def keys(self) -> list[dict[str, Any]]:
        """The keys with their values, or the kind of object whose names are values, for suggestions in the browser."""
        return [
            {
                "name": key.name,
                "help": key.help,
                "values": list(key.choices or _EXAMPLES.get(key.type, ())),
                "source": _SOURCES.get(key.name, "") if key.type is KeyType.TEXT else "",
            }
            for key in self.schema.keys
        ]

    @property
    def wider_window(self) -> int | None:
        """The next larger number of newest records to search."""
        if self.searched_count is None or self.searched_count >= MAX_WINDOW:
            return None
        return min(self.searched_count * 10, MAX_WINDOW)

    @property
    def wrong_text(self) -> str:
        """The clause, or the key, that is wrong."""
        start = getattr(self.error, "position", None)
        return "" if start is None else self.text[start:].partition(" ")[0]

    @property
    def correction(self) -> tuple[str, str] | None:
        """The nearest key in place of an unknown one, and the filter with it."""
        if self.error is None or self.error.code != "filter.key.unknown":
            return None
        start = self.error.position or 0
        name = self.text[start:].partition(":")[0]
        near = get_close_matches(name.lower(), [key.name for key in self.schema.keys], 1, 0.5)
        return (near[0], self.text[:start] + near[0] + self.text[start + len(name) :]) if near else None


@dataclass(frozen=True, slots=True)
class FilteredList(Generic[T]):
    """One page of a filtered list."""

    bar: FilterBar
    rows: Sequence[T]
    next: str | None
    is_first: bool
    count: CappedCount | None

    @property
    def count_text(self) -> str:
        return count_text(self.count)


def count_text(count: CappedCount | None) -> str:
    """Return a number that may be capped; nothing if it was not counted."""
    return "" if count is None else f"{count.count:,}{'' if count.is_exact else '+'}"


def read_filter(
    schema: FilterSchema,
    path: str,
    text: str,
    now: datetime,
    zone: str,
    quick: Sequence[QuickFilter] = (),
    window: int = DEFAULT_WINDOW,
) -> tuple[Filter | None, FilterBar]:
    """Return the filter, None if it is wrong, and its bar."""
    text = " ".join(text.split())
    try:
        found = parse_filter(schema, text, now, zone=ZoneInfo(zone), window=window)
    except Invalid as error:
        return None, FilterBar(path, schema, text, (), quick, "", None, error, window, zone)
    texts = [clause.text for clause in found.clauses]
    chips = [Chip(each, " ".join(texts[:index] + texts[index + 1 :])) for index, each in enumerate(texts)]
    return found, FilterBar(
        path, schema, text, chips, quick, found.describe(), found.searched_count, None, window, zone
    )


async def load_filtered_list(
    found: Filter | None,
    bar: FilterBar,
    after: str | None,
    load: Callable[..., Awaitable[Sequence[Any]]],
    count: CountEach | None,
    describe: Callable[[Any], T],
) -> FilteredList[T]:
    """Load one page of a list that is ordered by id."""
    if found is None:
        return FilteredList(bar, (), None, True, None)
    cursor = decode_cursor(after, UUID)
    records, (bar, total) = await asyncio.gather(
        load(found, below=cursor[0] if cursor else None, limit=PAGE_SIZE), count_matches(found, bar, count)
    )
    following = encode_cursor(records[-1].id) if len(records) == PAGE_SIZE else None
    return FilteredList(bar, [describe(each) for each in records], following, after is None, total)


async def count_matches(found: Filter, bar: FilterBar, count: CountEach | None) -> tuple[FilterBar, CappedCount | None]:
    """Return the bar with the numbers of its quick filters, and the number of records that meet the filter.

    A quick filter that searches only the newest records, because no index supports it, is not counted.
    """
    if count is None:
        return bar, None
    counted = [each for each in bar.quick if each.text != bar.text and _is_indexed(bar.schema, each.text)]
    total, *others = await count([found, *(each.text for each in counted)])
    counts = {bar.text: total, **dict(zip((each.text for each in counted), others, strict=True))}
    return replace(bar, quick=[replace(each, count=counts.get(each.text)) for each in bar.quick]), total


def _is_indexed(schema: FilterSchema, text: str) -> bool:
    return not parse_filter(schema, text, _ANY_INSTANT, zone=UTC).is_windowed
