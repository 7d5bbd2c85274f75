"""The metaverse: objects with their values and provenance, references between them, and the keys of matching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, PositionalMapper, RowMapper
from tenuto_identity.model.objects import Origin
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Document
from tenuto_identity.store.objects import encode_json
from tenuto_identity.store.transaction_settings import fetch_all

SQL = load_statements(__file__)
_FromJson = FromColumn(from_json)


@value_class
class IdentityRow:
    """A metaverse object."""

    id: int
    type_number: int
    attributes: Annotated[Document, _FromJson]
    provenance: Annotated[dict[str, list[int]], _FromJson]
    display: str | None
    origin: Origin
    deletion_scheduled_at: datetime | None
    delete_after: datetime | None
    deletion_initiator: Annotated[dict[str, Any] | None, _FromJson]
    reevaluate_at: datetime | None
    version: int


@value_class
class IdentityWrite:
    """A metaverse object to be inserted or updated."""

    id: int
    type_number: int
    attributes: Document
    provenance: Mapping[str, Sequence[int]]
    display: str | None
    origin: Origin
    deletion_scheduled_at: datetime | None
    delete_after: datetime | None
    deletion_initiator: Mapping[str, Any] | None
    reevaluate_at: datetime | None
    encoded_attributes: str | None = None
    """The attributes as JSON, if that is known."""


@value_class
class MetaverseReference:
    """A reference of a metaverse object to another one, and the rule that it came by."""

    object_id: int
    attribute_number: int
    target_id: int
    rule_number: int


@value_class
class KeyHit:
    """A metaverse object that has a key."""

    position: int
    """Position of the key in the lookup, from 1."""
    object_id: int
    attributes: Annotated[Document, _FromJson]
    joined_object_id: int | None


@dataclass(frozen=True, slots=True)
class DueDeletion:
    """A metaverse object whose grace period has ended."""

    id: int
    deletion_initiator: Annotated[dict[str, Any] | None, _FromJson]
    system: str | None
    """The system whose run deletes it; None if there are no systems any more."""


_IDENTITIES = PositionalMapper(IdentityRow, SQL.load_identities, decodes=True)
_REFERENCES = PositionalMapper(MetaverseReference, SQL.load_references)
_HITS = RowMapper(KeyHit, SQL.find_by_keys)
_DUE = RowMapper(DueDeletion, SQL.find_due_deletions)

MatchKey = tuple[int, int, str]
"""(metaverse type number, attribute number, folded key)"""


async def load_identities(connection: Connection, ids: Sequence[int]) -> list[IdentityRow]:
    return _IDENTITIES.all(await connection.fetch(SQL.load_identities, ids)) if ids else []


async def lock_identities(connection: Connection, ids: Iterable[int]) -> dict[int, int]:
    """Lock metaverse objects in order of id; return their versions."""
    ordered = sorted(ids)
    return (
        {row["id"]: row["version"] for row in await connection.fetch(SQL.lock_identities, ordered)} if ordered else {}
    )


async def load_references(connection: Connection, ids: Sequence[int]) -> list[MetaverseReference]:
    return _REFERENCES.all(await connection.fetch(SQL.load_references, ids)) if ids else []


async def find_by_keys(
    connection: Connection, keys: Sequence[MatchKey], system_number: int
) -> dict[MatchKey, list[KeyHit]]:
    """Return the metaverse objects that have these keys, each with its object of a system."""
    found: dict[MatchKey, list[KeyHit]] = {}
    if keys:
        rows = await connection.fetch(SQL.find_by_keys, *_columns(keys), system_number)
        for hit in _HITS.all(rows):
            found.setdefault(keys[hit.position - 1], []).append(hit)
    return found


async def find_key_owners(connection: Connection, keys: Sequence[MatchKey]) -> dict[MatchKey, set[int]]:
    """Return the metaverse objects that have these keys, by key; keys that are free are missing."""
    found: dict[MatchKey, set[int]] = {}
    if keys:
        for row in await connection.fetch(SQL.taken_keys, *_columns(keys)):
            found.setdefault(keys[row["position"] - 1], set()).add(row["object_id"])
    return found


async def draw_ids(connection: Connection, count: int) -> list[int]:
    """Return ids for new metaverse objects."""
    return [row[0] for row in await connection.fetch(SQL.draw_ids, count)] if count else []


async def insert_identities(connection: Connection, new: Sequence[IdentityWrite], now: datetime) -> None:
    """Insert metaverse objects with ids drawn before."""
    if new:
        await connection.copy_records_to_table(
            "metaverse_objects",
            columns=[
                "id", "type_number", "attributes", "provenance", "display", "origin", "deletion_scheduled_at",
                "delete_after", "deletion_initiator", "reevaluate_at", "changed_at",
            ],
            records=(
                (
                    each.id, each.type_number, each.encoded_attributes or encode_json(each.attributes),
                    encode_json(each.provenance), each.display,
                    each.origin, each.deletion_scheduled_at, each.delete_after,
                    _encode_optional(each.deletion_initiator), each.reevaluate_at, now,
                )
                for each in new
            ),
        )  # fmt: skip


async def update_identities(connection: Connection, changed: Sequence[IdentityWrite], now: datetime) -> None:
    if changed:
        await connection.execute(
            SQL.update_identities,
            [each.id for each in changed],
            [encode_json(each.attributes) for each in changed],
            [encode_json(each.provenance) for each in changed],
            [each.display for each in changed],
            [each.deletion_scheduled_at for each in changed],
            [each.delete_after for each in changed],
            [_encode_optional(each.deletion_initiator) for each in changed],
            [each.reevaluate_at for each in changed],
            now,
        )


async def delete_identities(connection: Connection, ids: Sequence[int], now: datetime) -> list[int]:
    """Delete metaverse objects with their keys and references; disconnect their objects. Return the metaverse objects
    that referred to them."""
    if not ids:
        return []
    await connection.execute(SQL.delete_keys_of, ids)
    await connection.execute(SQL.delete_references_of, ids)
    referring = await connection.fetch(SQL.delete_references_to, ids)
    await connection.execute(SQL.disconnect_objects_of, ids, now)
    await connection.execute(SQL.delete_identities, ids)
    return sorted({row["object_id"] for row in referring} - set(ids))


async def write_references(
    connection: Connection, removed: Sequence[MetaverseReference], added: Sequence[MetaverseReference]
) -> None:
    """Delete and insert references between metaverse objects."""
    if removed:
        await connection.execute(
            SQL.delete_references,
            [each.object_id for each in removed],
            [each.attribute_number for each in removed],
            [each.target_id for each in removed],
        )
    if added:
        await connection.copy_records_to_table(
            "metaverse_references",
            columns=["object_id", "attribute_number", "target_id", "rule_number"],
            records=((each.object_id, each.attribute_number, each.target_id, each.rule_number) for each in added),
        )


async def replace_keys(
    connection: Connection, keys: Mapping[int, Iterable[tuple[int, int, str]]], *, are_new: bool = False
) -> None:
    """Replace the keys of metaverse objects, given as (type, attribute, key) by object."""
    if not keys:
        return
    if not are_new:
        await connection.execute(SQL.delete_keys_of, sorted(keys))
    records = [(*key, id) for id, found in keys.items() for key in found]
    if records:
        await connection.copy_records_to_table(
            "match_keys", columns=["type_number", "attribute_number", "key", "object_id"], records=records
        )


async def find_due_deletions(connection: Connection, now: datetime, limit: int) -> list[DueDeletion]:
    """Return the oldest scheduled deletions that are due, shared equally among systems.

    Those of systems on hold wait until a user approves."""
    return _DUE.all(await connection.fetch(SQL.find_due_deletions, now, limit))


async def take_due_reevaluations(connection: Connection, now: datetime, limit: int) -> list[int]:
    """Return metaverse objects whose rules may have another result now, and clear their instants."""
    ids = [row["id"] for row in await connection.fetch(SQL.find_due_reevaluations, now, limit)]
    await connection.execute(SQL.clear_reevaluations, ids)
    return ids


async def take_due_object_reevaluations(connection: Connection, now: datetime, limit: int) -> list[tuple[int, int]]:
    """Like `take_due_reevaluations`, for connector space objects as (id, system number)."""
    rows = await connection.fetch(SQL.find_due_object_reevaluations, now, limit)
    await connection.execute(SQL.clear_object_reevaluations, [row["id"] for row in rows])
    return [(row["id"], row["system_number"]) for row in rows]


async def list_joined(connection: Connection, system_number: int, after_id: int, limit: int) -> list[tuple[int, int]]:
    """Return the next joined objects of a system, as (object, metaverse object)."""
    rows = await connection.fetch(SQL.find_orphans_of_system, system_number, after_id, limit)
    return [(row["object_id"], row["metaverse_id"]) for row in rows]


async def reset_interrupted_deletions(connection: Connection) -> list[str]:
    """Make systems active again whose deletion was interrupted; return their names."""
    return [row["name"] for row in await connection.fetch(SQL.reset_interrupted_deletions)]


async def count_identities(connection: Connection) -> dict[int, int]:
    """Count metaverse objects by type number."""
    return {row["type_number"]: row["identity_count"] for row in await connection.fetch(SQL.count_identities)}


async def load_template_run(connection: Connection, task_id: UUID) -> int | None:
    """Return how many objects a task has generated; None if it has not."""
    found: int | None = await connection.fetchval(SQL.load_template_run, task_id)
    return found


async def insert_template_run(
    connection: Connection, task_id: UUID, template: str, seed: str, object_count: int, now: datetime
) -> None:
    """Record, in the transaction of the task, that it has generated the objects of a template."""
    await connection.execute(SQL.insert_template_run, task_id, template, seed, object_count, now)


async def is_anything_due(database: Database, now: datetime) -> bool:
    """Return whether housekeeping can do anything now."""
    return bool((await fetch_all(database, SQL.is_anything_due, now))[0][0])


def _columns(keys: Sequence[MatchKey]) -> list[list[Any]]:
    return [list(column) for column in zip(*keys, strict=True)]


def _encode_optional(value: Any) -> str | None:
    return None if value is None else encode_json(value)
