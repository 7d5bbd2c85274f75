"""Filter bar of a list: the text, its clauses as removable chips, the error of a wrong one, and the number of matches.

The grammar is that of `tenuto.model.filters`. A wrong filter shows no records: never those without the wrong clause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from tenuto.api.paging import decode_cursor, encode_cursor
from tenuto.errors import Invalid
from tenuto.model.filters import Filter, FilterSchema, parse_filter
from tenuto.store.filter_sql import CappedCount

T = TypeVar("T")

PAGE_SIZE = 50


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

    @property
    def keys(self) -> list[dict[str, Any]]:
        """The keys and their values, for the suggestions of the browser."""
        return [{"name": key.name, "values": list(key.choices), "help": key.help} for key in self.schema.keys]


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
        if self.count is None:
            return ""
        return f"{self.count.count:,}" if self.count.is_exact else f"{self.count.count:,}+"


def read_filter(
    schema: FilterSchema, path: str, text: str, now: datetime, zone: str, quick: Sequence[QuickFilter] = ()
) -> tuple[Filter | None, FilterBar]:
    """Return the filter, None if it is wrong, and its bar."""
    text = " ".join(text.split())
    try:
        found = parse_filter(schema, text, now, zone=ZoneInfo(zone))
    except Invalid as error:
        return None, FilterBar(path, schema, text, (), quick, "", None, error)
    texts = [clause.text for clause in found.clauses]
    chips = [Chip(each, " ".join(texts[:index] + texts[index + 1 :])) for index, each in enumerate(texts)]
    return found, FilterBar(path, schema, text, chips, quick, found.describe(), found.searched_count)


async def load_filtered_list(
    found: Filter | None,
    bar: FilterBar,
    after: str | None,
    load: Callable[..., Awaitable[Sequence[Any]]],
    count: Callable[[Filter], Awaitable[CappedCount]] | None,
    describe: Callable[[Any], T],
) -> FilteredList[T]:
    """Load one page of a list that is ordered by id."""
    if found is None:
        return FilteredList(bar, (), None, True, None)
    cursor = decode_cursor(after, UUID)
    records = await load(found, below=cursor[0] if cursor else None, limit=PAGE_SIZE)
    following = encode_cursor(records[-1].id) if len(records) == PAGE_SIZE else None
    total = await count(found) if count is not None else None
    return FilteredList(bar, [describe(each) for each in records], following, after is None, total)
