"""Facts about a database that is backed up or restored into; it may have no tables of Tenuto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tenuto.postgres.database import Connection, Database, DatabaseError
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_LIVE_WITHIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Server and content of a database."""

    server_version: int
    schemas: Sequence[str]
    task_count: int = 0
    activity_count: int = 0
    """Estimated by the server."""
    secret_count: int = 0


async def load_facts(database: Database) -> DatabaseFacts:
    """Return the version of the server, the schemas of Tenuto, and the number of rows in them."""
    (row,) = await database.fetch_all(SQL.load_server_facts)
    if not row["has_tables"]:
        return DatabaseFacts(row["server_version"], row["schemas"])
    (counts,) = await database.fetch_all(SQL.count_rows)
    return DatabaseFacts(
        row["server_version"], row["schemas"], counts["task_count"], counts["activity_count"], counts["secret_count"]
    )


async def mark_as_change(connection: Connection) -> None:
    """Make the transaction count as a change, so that its audit entry is written."""
    await connection.fetchval(SQL.assign_transaction_id)


async def list_live_processes(database: Database) -> list[str]:
    """Return the services that are running on the database."""
    try:
        return [row["process"] for row in await database.fetch_all(SQL.list_live_processes, _LIVE_WITHIN)]
    except DatabaseError as error:
        if error.sqlstate not in ("42P01", "3F000"):  # the schema has no such table
            raise
        return []
