"""Queries for lists: connector space objects, identities, the history of an identity, and what a guard holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, RowMapper
from tenuto_identity.model.json_integers import IntegersAsText, LongId
from tenuto_identity.model.objects import JoinKind, ObjectState, Origin
from tenuto_identity.model.values import Document

SQL = load_statements(__file__)
_FromJson = FromColumn(from_json)


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """A connector space object as interfaces show it."""

    id: LongId
    system: str
    type: str
    anchor: str | None
    address: str | None
    container: str | None
    state: ObjectState
    attributes: Annotated[Document, _FromJson, IntegersAsText]
    reference_values: Annotated[dict[str, list[str]], _FromJson]
    """References by attribute, as the system writes them."""
    metaverse_id: LongId | None
    join_kind: JoinKind | None
    pinned: bool
    imported_at: datetime | None
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """A metaverse object as interfaces show it."""

    id: LongId
    type: str
    display: str | None
    origin: Origin
    attributes: Annotated[Document, _FromJson, IntegersAsText]
    reference_ids: Annotated[dict[str, list[str]], _FromJson]
    """Ids of metaverse objects by attribute."""
    systems: list[str]
    """Systems with an object that is joined to it."""
    deletion_scheduled_at: datetime | None
    delete_after: datetime | None
    version: int
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A change of an identity or of an object that is joined to it; the run may be past its retention."""

    run_id: UUID
    item_number: LongId
    subject: str
    """``identity`` or ``object``."""
    subject_id: LongId
    system: str | None
    profile: str | None
    started_at: datetime | None
    change: str | None
    anchor: str | None
    diff: Annotated[dict[str, Any], _FromJson, IntegersAsText]
    """``{attribute: [before, after]}``"""


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object whose deletion a guard holds."""

    id: LongId
    type: str
    anchor: str | None
    address: str | None
    display: str | None


_OBJECTS = RowMapper(ObjectRecord, SQL.list_objects)
_IDENTITIES = RowMapper(IdentityRecord, SQL.list_identities)
_HISTORY = RowMapper(HistoryEntry, SQL.list_changes, SQL.list_item_changes)
_HELD = RowMapper(HeldObject, SQL.list_held_objects, SQL.list_held_deletes)


async def list_objects(
    connection: Connection,
    *,
    system: str | None,
    type: str | None,
    state: str | None,
    joined: bool | None,
    text: str | None,
    metaverse_id: int | None,
    after: int,
    limit: int,
) -> list[ObjectRecord]:
    """Return connector space objects in order of id."""
    rows = await connection.fetch(SQL.list_objects, system, type, state, joined, text, metaverse_id, after, limit)
    return _OBJECTS.all(rows)


async def load_object(connection: Connection, system: str, anchor: str) -> ObjectRecord | None:
    """Return the object of a system with this anchor."""
    after = 0
    while True:  # the filter compares beginnings and ignores case
        found = await list_objects(
            connection,
            system=system,
            type=None,
            state=None,
            joined=None,
            text=anchor,
            metaverse_id=None,
            after=after,
            limit=500,
        )
        for each in found:
            if each.anchor == anchor:
                return each
        if len(found) < 500:
            return None
        after = found[-1].id


async def list_identities(
    connection: Connection,
    *,
    type: str | None,
    text: str | None,
    deletion_scheduled: bool | None,
    ids: Sequence[int] | None,
    after: int,
    limit: int,
) -> list[IdentityRecord]:
    """Return metaverse objects in order of id."""
    return _IDENTITIES.all(
        await connection.fetch(SQL.list_identities, type, text, deletion_scheduled, ids, after, limit)
    )


async def list_changes(
    connection: Connection, metaverse_id: int, before: tuple[UUID, int, str] | None, limit: int
) -> list[HistoryEntry]:
    """Return the history of an identity, the newest change first."""
    return _HISTORY.all(await connection.fetch(SQL.list_changes, metaverse_id, *(before or (None, None, None)), limit))


async def list_item_changes(connection: Connection, run_id: UUID, numbers: Sequence[int]) -> list[HistoryEntry]:
    """Return the changes behind items of a run, in order of item."""
    return _HISTORY.all(await connection.fetch(SQL.list_item_changes, run_id, numbers))


async def find_deleted_identity(connection: Connection, system_number: int, anchor: str) -> int | None:
    """Return the metaverse object that an object with this anchor was joined to last, from the items of runs."""
    found: int | None = await connection.fetchval(SQL.find_deleted_identity, system_number, anchor)
    return found


async def load_last_item(connection: Connection, metaverse_id: int) -> tuple[str | None, str | None] | None:
    """Return object type and name in the newest item of a metaverse object; None without an item."""
    row = await connection.fetchrow(SQL.load_last_item, metaverse_id)
    return None if row is None else (row["type"], row["display"])


async def list_held_objects(connection: Connection, run_id: UUID, after: int, limit: int) -> list[HeldObject]:
    """Return objects that a run found deleted and that wait for approval, in order of id."""
    return _HELD.all(await connection.fetch(SQL.list_held_objects, run_id, after, limit))


async def list_held_deletes(connection: Connection, system_number: int, after: int, limit: int) -> list[HeldObject]:
    """Return objects whose delete waits for approval, in order of id."""
    return _HELD.all(await connection.fetch(SQL.list_held_deletes, system_number, after, limit))
