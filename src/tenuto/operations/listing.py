"""What the verbs have in common: how they reach the database, how much they list, what an abbreviated id stands for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.postgres.database import Database

Open = Callable[[], Awaitable[Database]]
Record = dict[str, Any]

MAX_LISTED = 500


def listed(limit: int) -> int:
    """How many to list, or a refusal."""
    if not 1 <= limit <= MAX_LISTED:
        raise Invalid(f"must be from 1 to {MAX_LISTED}", field="limit")
    return limit


def the_one(found: Sequence[UUID], prefix: str, *, whose: str, listed_by: str) -> UUID:
    """The one of those found whose id begins so; a refusal if there is none, or if there are several.

    ``whose`` id it is ("execution's id"), and the command that lists them.
    """
    if not found:
        raise NotFound(f"no {whose} begins with {prefix}", remedy=f"copy one from {listed_by}")
    if len(found) > 1:
        raise Conflict(f"several ids begin with {prefix}", field="id", remedy="type more of it")
    return found[0]
