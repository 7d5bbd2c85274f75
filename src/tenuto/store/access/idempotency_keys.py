"""Requests by their keys: so that one that is sent twice is done once, and answered alike.

The row is written in the transaction that does what was asked (`store.access.audit_recorder`); the answer is added afterwards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)


@dataclass(frozen=True, slots=True)
class Earlier:
    """A request that came before."""

    fingerprint: bytes
    subject: UUID
    answer: dict[str, Any] | None


async def find(database: Database, actor: str, key: str) -> Earlier | None:
    """The request somebody made with this key."""
    row = await database.one(SQL.find_request, actor, key)
    if row is None:
        return None
    return Earlier(row["fingerprint"], row["subject"], None if row["answer"] is None else json.loads(row["answer"]))


async def answered(database: Database, actor: str, key: str, answer: str) -> None:
    """What was answered, if it has done anything."""
    await database.all(SQL.answer_request, actor, key, answer)


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of requests made before the cut-off; how many."""
    return len(await database.all(SQL.forget_requests, cutoff, limit))
