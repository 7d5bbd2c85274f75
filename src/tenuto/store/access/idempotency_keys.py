"""Rows of idempotency keys: a repeated request has no second effect and gets the same response.

`audit_recorder` stores the key in the transaction of the request; the response is added afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """An earlier request with the same key."""

    fingerprint: bytes
    subject: UUID
    response: Annotated[dict[str, Any] | None, FromJson]


_REQUESTS = RowMapper(StoredRequest, SQL.find_request)


async def find_request(database: Database, actor: str, key: str) -> StoredRequest | None:
    """Return the request that an actor made with this key."""
    return _REQUESTS.optional(await database.fetch_one(SQL.find_request, actor, key))


async def store_response(database: Database, actor: str, key: str, response: str) -> None:
    """Store the response of a request that changed something."""
    await database.write_all(SQL.store_response, actor, key, response)


async def delete_old_requests(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of requests made before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_requests, cutoff, limit))
