"""Time-ordered ids (UUID version 7).

The program that creates a row makes its id, so a statement repeated after a lost reply addresses the same row. The
order by time lets an id alone identify the monthly partition that holds the row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import uuid_utils
from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """Return a new id, greater than all ids made before it in this process."""
    return uuid7()


def new_ids(count: int) -> list[Any]:
    """Return many new ids, as a lighter type that the database driver accepts too."""
    return [uuid_utils.uuid7() for _ in range(count)]


def smallest_id_at(instant: datetime) -> UUID:
    """Return the smallest possible id of this instant, where a partition begins."""
    milliseconds = int(instant.timestamp() * 1000)
    return UUID(int=milliseconds << 80)
