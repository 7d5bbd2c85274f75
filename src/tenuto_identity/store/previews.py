"""Previews: the scratch copy of the tables that a preview changes, and the results that are kept for a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, FromJson, RowMapper
from tenuto_identity.model.json_integers import ChangesAsText, LongId
from tenuto_identity.store.objects import encode_json
from tenuto_identity.store.transaction_settings import LIVE_SCHEMA, fetch_all

SQL = load_statements(__file__)
SHARED_SCHEMA = "tenuto_identity_preview_shared"
NOT_COPIED = frozenset({"previews", "preview_items", "preview_requests", "template_runs", "recalls"})
"""Tables that no processor of a run uses."""
_COPIED_EMPTY = frozenset({"items", "changes", "definition_versions"})
_ROWS = {
    # A run that is open in the live tables is not one of the preview; those that hold deletions are needed.
    "runs": "SELECT * FROM {live}.runs WHERE state <> 'running' AND id IN (SELECT run_id FROM {live}.pending_deletions)"
}


@dataclass(frozen=True, slots=True)
class PreviewRecord:
    """A preview with the results of its steps."""

    id: UUID
    subject: str
    """The run profile or schedule that was previewed."""
    state: str
    steps: Annotated[list[dict[str, Any]], FromJson]
    """For each run: system, profile, status, counts, warnings, and the messages of guards that would hold."""
    problem: str | None
    requested_by: str
    requested_at: datetime
    ended_at: datetime | None
    expires_at: datetime
    has_definitions: bool
    """The preview used other definitions than the stored ones."""
    sensitive_attributes: list[str] | None
    """Attributes that were sensitive when it ran, by the stored definitions or by its own; None before."""


@dataclass(frozen=True, slots=True)
class PreviewItem:
    """What a run would do to one object, or its error."""

    number: LongId
    step: int
    """Position of the run in the preview, from 1."""
    object_id: LongId | None
    metaverse_id: LongId | None
    type: str | None
    anchor: str | None
    display: str | None
    change: str | None
    error: str | None
    message: str | None
    detail: Annotated[dict[str, Any] | None, FromColumn(from_json)]


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """A request that would be sent to a system."""

    number: LongId
    step: int
    system: str
    kind: str
    """create, update or delete."""
    type: str
    anchor: str | None
    address: str | None
    changes: Annotated[list[dict[str, Any]], FromColumn(from_json), ChangesAsText]


@dataclass(frozen=True, slots=True)
class RequestCount:
    """How many requests of a kind would be sent to a system."""

    system: str
    kind: str
    request_count: int


_REQUEST_COUNTS = RowMapper(RequestCount, SQL.count_requests)
_PREVIEWS = RowMapper(PreviewRecord, SQL.list_previews, SQL.load_preview)
_ITEMS = RowMapper(PreviewItem, SQL.list_items)
_REQUESTS = RowMapper(PreviewRequest, SQL.list_requests)


def scratch_schema(preview_id: UUID) -> str:
    """Return the name of the schema that a preview copies the tables into."""
    return f"tenuto_identity_preview_{preview_id.hex}"


# --- the scratch copy -----------------------------------------------------------------------------------------------


async def may_create_schemas(connection: Connection) -> bool:
    """Return whether the login may create a schema for the preview."""
    return bool(await connection.fetchval(SQL.may_create_schemas))


async def try_shared_schema(connection: Connection) -> bool:
    """Take the schema that all previews share, until the connection ends; False if another preview has it."""
    # guard: identity.preview_shared
    return bool(await connection.fetchval(SQL.try_shared_schema))


async def create_scratch_copy(connection: Connection, schema: str) -> None:
    """Copy the tables into a schema in the current transaction, which sees one state of them (repeatable read).

    The tables are not logged, and their indexes are built after the rows. A copy that a lost attempt left is replaced.
    """
    await drop_scratch_copy(connection, schema)
    if schema != SHARED_SCHEMA:
        await connection.execute(f"CREATE SCHEMA {schema}")
    tables = [row["name"] for row in await connection.fetch(SQL.list_copied_tables) if row["name"] not in NOT_COPIED]
    for table in tables:
        await connection.execute(
            f"CREATE UNLOGGED TABLE {schema}.{table}"
            f" (LIKE {LIVE_SCHEMA}.{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY)"
        )
        if table not in _COPIED_EMPTY:
            rows = _ROWS.get(table, f"TABLE {LIVE_SCHEMA}.{table}").format(live=LIVE_SCHEMA)
            await connection.execute(f"INSERT INTO {schema}.{table} OVERRIDING SYSTEM VALUE {rows}")
    await _copy_sequences(connection, schema, tables)
    for row in await connection.fetch(SQL.list_indexes):
        if row["table_name"] in tables:
            definition: str = row["definition"].replace(f" ON ONLY {LIVE_SCHEMA}.", f" ON {LIVE_SCHEMA}.", 1)
            await connection.execute(definition.replace(f" ON {LIVE_SCHEMA}.", f" ON {schema}.", 1))
    for table in tables:
        await connection.execute(f"ANALYZE {schema}.{table}")


async def _copy_sequences(connection: Connection, schema: str, tables: Sequence[str]) -> None:
    """Let new ids begin after those of the live tables, without drawing from their sequences."""
    await connection.execute(f"CREATE SEQUENCE {schema}.sync_mark_stamps")
    for row in await connection.fetch(SQL.list_sequences):
        name = row["sequence_name"]
        if name == "sync_mark_stamps" or row["table_name"] in tables:
            await connection.execute(SQL.set_sequence, f"{schema}.{name}", f"{LIVE_SCHEMA}.{name}")
    await connection.execute(
        f"ALTER TABLE {schema}.sync_marks ALTER COLUMN stamp SET DEFAULT nextval('{schema}.sync_mark_stamps')"
    )


async def drop_scratch_copy(connection: Connection, schema: str) -> None:
    """Drop the copy. The shared schema itself stays."""
    if schema != SHARED_SCHEMA:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        return
    for row in await connection.fetch(SQL.list_scratch_tables, schema):
        await connection.execute(f"DROP TABLE {schema}.{row['name']} CASCADE")
    await connection.execute(f"DROP SEQUENCE IF EXISTS {schema}.sync_mark_stamps")


async def release_shared_schema(connection: Connection) -> None:
    await connection.execute(SQL.release_shared_schema)


async def drop_expired(connection: Connection, now: datetime) -> list[str]:
    """Delete previews that are past their time, end those whose task has ended, and drop copies that killed workers
    left; return their names."""
    await connection.execute(SQL.fail_lost_previews, now)
    await connection.execute(SQL.delete_expired, now)
    names = await list_abandoned(connection)
    for name in names:
        await drop_scratch_copy(connection, name)
    return names


async def list_abandoned(connection: Connection) -> list[str]:
    """Return the copies that no running preview uses. If the shared schema has one, no preview takes that schema until
    the transaction ends."""
    names = [row["name"] for row in await connection.fetch(SQL.list_abandoned_schemas)]
    if await connection.fetchval(SQL.has_shared_copy):
        is_free = await connection.fetchval(SQL.is_shared_schema_free)  # guard: identity.preview_shared_in_use
        if is_free:
            names.append(SHARED_SCHEMA)
    return names


async def is_anything_expired(database: Database, now: datetime) -> bool:
    """Return whether `drop_expired` has anything to do."""
    return bool((await fetch_all(database, SQL.has_abandoned_schemas, now))[0][0])


async def delete_begun(connection: Connection) -> int:
    """Delete all previews that have results or are just collecting them; return their number.

    The worker of a running one cannot store results any more, and its next attempt finds no preview.
    """
    return int((await connection.execute(SQL.delete_begun)).split()[-1])


async def has_item_of(connection: Connection, metaverse_id: int) -> bool:
    """Return whether a preview has a result about an identity."""
    return bool(await connection.fetchval(SQL.has_item_of, metaverse_id))


# --- results --------------------------------------------------------------------------------------------------------


async def insert_preview(
    connection: Connection,
    id: UUID,
    subject: str,
    requested_by: str,
    now: datetime,
    expires_at: datetime,
    *,
    has_definitions: bool,
) -> bool:
    """Insert a preview that waits for a worker; False if it exists."""
    values = id, subject, has_definitions, requested_by, now, expires_at
    return await connection.fetchval(SQL.insert_preview, *values) is not None


async def begin_preview(connection: Connection, id: UUID) -> bool:
    """Begin a preview, or begin it again after a lost attempt; False if it does not exist any more."""
    if await connection.fetchval(SQL.begin_preview, id) is None:
        return False
    await connection.execute(SQL.delete_results, id)
    return True


async def store_sensitive(connection: Connection, id: UUID, attributes: Sequence[str]) -> None:
    """Store which attributes are sensitive, before any result."""
    await connection.execute(SQL.store_sensitive, id, list(attributes))


async def store_steps(connection: Connection, id: UUID, steps: Sequence[Mapping[str, Any]]) -> None:
    await connection.execute(SQL.store_steps, id, encode_json(list(steps)))


async def end_preview(connection: Connection, id: UUID, state: str, problem: str | None, now: datetime) -> None:
    await connection.execute(SQL.end_preview, id, state, problem, now)


async def keep_items(connection: Connection, id: UUID, step: int, run_id: UUID, after_number: int) -> int:
    """Copy the items of a run from the scratch copy to the results of the preview; return the number of the last one.

    The connection uses the scratch copy.
    """
    return int(await connection.fetchval(SQL.keep_items, id, step, run_id, after_number))


async def write_requests(
    connection: Connection, id: UUID, step: int, system: str, after_number: int, requests: Sequence[Mapping[str, Any]]
) -> int:
    """Store the requests of an export; return the number of the last one."""
    await connection.copy_records_to_table(
        "preview_requests",
        schema_name=LIVE_SCHEMA,
        columns=["preview_id", "number", "step", "system", "kind", "type", "anchor", "address", "changes"],
        records=[
            (
                id,
                number,
                step,
                system,
                each["kind"],
                each["type"],
                each["anchor"],
                each["address"],
                encode_json(each["changes"]),
            )
            for number, each in enumerate(requests, after_number + 1)
        ],
    )
    return after_number + len(requests)


async def list_previews(database: Database, before: UUID | None, limit: int) -> list[PreviewRecord]:
    """Return previews, the newest first."""
    return _PREVIEWS.all(await fetch_all(database, SQL.list_previews, before, limit))


async def load_preview(database: Database, id: UUID) -> PreviewRecord | None:
    rows = await fetch_all(database, SQL.load_preview, id)
    return _PREVIEWS.one(rows[0]) if rows else None


async def list_items(
    database: Database, id: UUID, after: int, limit: int, *, errors_only: bool = False
) -> list[PreviewItem]:
    """Return what the runs of a preview would do, in order; page with ``after``."""
    return _ITEMS.all(await fetch_all(database, SQL.list_items, id, after, errors_only, limit))


async def list_requests(
    database: Database, id: UUID, system: str | None, kind: str | None, after: int, limit: int
) -> list[PreviewRequest]:
    """Return the requests that would be sent, in order; page with ``after``."""
    return _REQUESTS.all(await fetch_all(database, SQL.list_requests, id, after, system, limit, kind))


async def count_requests(database: Database, id: UUID) -> list[RequestCount]:
    """Count the requests of a preview by system and kind."""
    return _REQUEST_COUNTS.all(await fetch_all(database, SQL.count_requests, id))
