"""Ids: time-ordered uuids (version 7), made by whoever creates a thing.

Made by the caller, not by the database, so that a request repeated after a lost reply names the same row and changes
nothing. Ordered by time, so that an id alone tells which month's partition holds the record.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import uuid_utils
from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """A fresh id, greater than the ones made before it."""
    return uuid7()


def fresh_ids(count: int) -> list[Any]:
    """Many fresh ids at once, in a lighter form that the database driver takes as well."""
    return [uuid_utils.uuid7() for _ in range(count)]


def first_id_at(instant: datetime) -> UUID:
    """The smallest id that can carry this instant: where a partition begins."""
    milliseconds = int(instant.timestamp() * 1000)
    return UUID(int=milliseconds << 80)
