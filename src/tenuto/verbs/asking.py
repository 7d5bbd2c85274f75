"""What the verbs have in common: how they reach the database, and how much they list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tenuto.errors import Invalid
from tenuto.store.database import Database

Open = Callable[[], Awaitable[Database]]
Record = dict[str, Any]

MAX_LISTED = 500


def listed(limit: int) -> int:
    """How many to list, or a refusal."""
    if not 1 <= limit <= MAX_LISTED:
        raise Invalid(f"must be from 1 to {MAX_LISTED}", field="limit")
    return limit
