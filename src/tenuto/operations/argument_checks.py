"""Shared parts of the operations: access to the database, page sizes, and ids given by a prefix."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.model.filters import DEFAULT_WINDOW, Filter, FilterSchema, parse_filter
from tenuto.postgres.database import Database

OpenDatabase = Callable[[], Awaitable[Database]]

MAX_LIMIT = 500


def check_limit(limit: int, max_limit: int = MAX_LIMIT) -> int:
    """Return the page size, or raise an error if it is out of range."""
    if not 1 <= limit <= max_limit:
        raise Invalid(
            f"limit must be from 1 to {max_limit:,}, not {limit}", code="list.limit.out_of_range", field="limit"
        )
    return limit


def build_filter(
    schema: FilterSchema, where: str | Filter | None, now: datetime, *, window: int | None = None
) -> Filter:
    """Return the filter of a list: a text of the filter grammar, with dates in UTC, or a parsed filter."""
    if isinstance(where, Filter):
        return where
    return parse_filter(schema, where or "", now, zone=UTC, field="where", window=window or DEFAULT_WINDOW)


def check_instant(instant: datetime | None, *, field: str) -> None:
    """Raise an error if an instant has no UTC offset."""
    if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
        raise Invalid(
            f"{field} {quoted(str(instant))} has no UTC offset",
            code="value.instant.no_utc_offset",
            field=field,
            remedy="write it with an offset, such as 2031-12-25T00:00:00Z",
        )


def check_id(given: object, *, noun: str) -> UUID:
    """Return an id, given as a UUID or its text, or raise an error that names the mistake."""
    if isinstance(given, UUID):
        return given
    if isinstance(given, str):
        with suppress(ValueError):
            return UUID(given)
    remedy = f"give the UUID of the {noun}"
    if inspect.iscoroutine(given):
        given.close()  # it would never be awaited
        remedy = "did you forget await?"
    problem = "a coroutine" if inspect.iscoroutine(given) else quoted(given, 60)
    raise Invalid(f"{problem} is not the id of a {noun}", code="id.invalid", field="id", remedy=remedy)


def require_single_match(found: Sequence[UUID], prefix: str, *, noun: str, list_command: str) -> UUID:
    """Return the only id that begins with a prefix; ``noun`` names the resource, ``list_command`` lists its ids."""
    if not found:
        raise NotFound(
            f"no {noun} id begins with {quoted(prefix)}",
            code="id.prefix.not_found",
            remedy=f"copy an id from {list_command}",
        )
    if len(found) > 1:
        raise Conflict(
            f"several {noun} ids begin with {quoted(prefix)}",
            code="id.prefix.ambiguous",
            field="id",
            remedy="give more characters",
        )
    return found[0]
