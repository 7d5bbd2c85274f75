"""The connector space: objects, their references, and the keys by which export rules find unjoined objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json, to_json

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, PositionalMapper, RowMapper
from tenuto_identity.model.objects import JoinKind, ObjectState
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Document, Value

SQL = load_statements(__file__)
_SEPARATOR = "\x1f"
"""Separates the names in an array within an array, which the driver cannot send."""

FromDocument = FromColumn(from_json)
"""For a field that holds a parsed document; faster than the parser of the core."""


@value_class
class ObjectRow:
    """A connector space object."""

    id: int
    system_number: int
    type_number: int
    anchor: str | None
    address: str | None
    container: str | None
    state: ObjectState
    attributes: Annotated[Document, FromDocument]
    metaverse_id: int | None
    join_kind: JoinKind | None
    pinned: bool
    drift_reported: list[str]
    version: int
    reevaluate_at: datetime | None


@value_class
class ClassifiedObject:
    """A stored object that an import found again."""

    position: int
    """Position in the page, from 1."""
    id: int
    state: ObjectState
    is_same: bool
    """Whether the fingerprints are equal."""
    metaverse_id: int | None
    attributes: Annotated[Document | None, FromDocument]
    """None for an object that is the same and in state normal."""
    address: str | None
    container: str | None


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """An object in the detection of deletions."""

    id: int
    type_number: int
    container: str | None


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """How many normal objects of a type there are in a container."""

    type_number: int
    container: str | None
    object_count: int


@value_class
class LockedObject:
    """What a concurrent transaction may have changed in an object."""

    id: int
    version: int
    metaverse_id: int | None
    state: str


@value_class
class ReferenceRow:
    """A reference of an object; the target and its metaverse object as far as they are known."""

    object_id: int
    attribute_number: int
    raw_key: str
    raw: str
    target_id: int | None
    metaverse_id: int | None


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """An object with its anchor and the container that it is in."""

    id: int
    anchor: str
    container: str


@dataclass(frozen=True, slots=True)
class RemovedObject:
    """What history keeps of an object that was deleted in its system."""

    id: int
    type_number: int
    anchor: str | None
    attributes: Annotated[Document, FromDocument]


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """Where a system has the object of a metaverse object."""

    metaverse_id: int
    id: int
    address: str | None
    anchor: str | None
    state: ObjectState
    pending_kind: str | None
    """Kind of the export that is still to be sent."""
    is_renamed: bool
    """The export that is still to be sent changes the address, and was not refused before."""


_OBJECTS = PositionalMapper(ObjectRow, SQL.load_objects_page, SQL.load_objects, SQL.load_joined_objects, decodes=True)
_CLASSIFIED = PositionalMapper(ClassifiedObject, SQL.classify_objects, SQL.find_provisioning, decodes=True)
_PLACES = PositionalMapper(ObjectPlace, SQL.load_places)
_PLACED = PositionalMapper(PlacedObject, SQL.sample_containers, SQL.list_objects_in)
_COUNTS = PositionalMapper(ObjectCount, SQL.count_objects)
_LOCKED = PositionalMapper(LockedObject, SQL.lock_objects)
_REFERENCES = PositionalMapper(ReferenceRow, SQL.load_references)
_REMOVED = RowMapper(RemovedObject, SQL.mark_obsolete, SQL.delete_objects)
_ADDRESSES = RowMapper(TargetAddress, SQL.load_addresses)


# --- reading --------------------------------------------------------------------------------------------------------


async def classify_objects(
    connection: Connection,
    system_number: int,
    type_numbers: Sequence[int],
    anchors: Sequence[str],
    fingerprints: Sequence[bytes],
) -> list[ClassifiedObject]:
    """Return the stored objects of a page of imported ones, by one statement."""
    rows = await connection.fetch(SQL.classify_objects, system_number, type_numbers, anchors, fingerprints)
    return _CLASSIFIED.all(rows)


async def find_provisioning(
    connection: Connection,
    system_number: int,
    type_numbers: Sequence[int],
    address_keys: Sequence[str],
    anchors: Sequence[str],
) -> list[ClassifiedObject]:
    """Return objects that wait for their first import, by address. The anchors are those of the imported objects."""
    rows = await connection.fetch(SQL.find_provisioning, system_number, type_numbers, address_keys, anchors)
    return _CLASSIFIED.all(rows)


async def load_objects_page(connection: Connection, system_number: int, after_id: int, limit: int) -> list[ObjectRow]:
    """Return the next objects of a system in order of id."""
    return _OBJECTS.all(await connection.fetch(SQL.load_objects_page, system_number, after_id, limit))


async def load_objects(connection: Connection, ids: Sequence[int]) -> list[ObjectRow]:
    return _OBJECTS.all(await connection.fetch(SQL.load_objects, ids))


async def find_anchored(
    connection: Connection, system_number: int, keys: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], int]:
    """Return the objects that have these keys (type, anchor), by key."""
    if not keys:
        return {}
    types, anchors = [each for each, _ in keys], [each for _, each in keys]
    rows = await connection.fetch(SQL.find_anchored, system_number, types, anchors)
    return {keys[row["position"] - 1]: row["id"] for row in rows}


async def load_joined_objects(connection: Connection, metaverse_ids: Sequence[int]) -> list[ObjectRow]:
    """Return all objects that are joined to these metaverse objects."""
    return _OBJECTS.all(await connection.fetch(SQL.load_joined_objects, metaverse_ids))


async def find_by_anchor(connection: Connection, system_number: int, anchor: str) -> list[int]:
    """Return the ids of the objects with this anchor; one for each object type that has it."""
    return [row["id"] for row in await connection.fetch(SQL.find_by_anchor, system_number, anchor)]


async def list_normal_ids(connection: Connection, system_number: int, after_id: int, limit: int) -> list[int]:
    """Return the next normal objects of a system in order of id."""
    return await connection.fetchval(SQL.list_normal_ids, system_number, after_id, limit) or []


async def load_fingerprints(
    connection: Connection, system_number: int, after_id: int, limit: int
) -> tuple[list[int], list[bytes]]:
    """Return ids and fingerprints of the next normal objects of a system, in order of id."""
    row = await connection.fetchrow(SQL.load_fingerprints, system_number, after_id, limit)
    return (row["ids"], row["fingerprints"]) if row is not None and row["ids"] else ([], [])


async def load_places(connection: Connection, ids: Sequence[int]) -> list[ObjectPlace]:
    """Return types and containers of objects."""
    return _PLACES.all(await connection.fetch(SQL.load_places, ids)) if ids else []


async def list_ids(connection: Connection, system_number: int, after_id: int, limit: int) -> list[int]:
    """Return the next objects of a system in any state."""
    return [row["id"] for row in await connection.fetch(SQL.list_ids, system_number, after_id, limit)]


async def delete_watermarks(connection: Connection, system_number: int) -> None:
    """Forget up to where a system was read: the next delta import reads everything."""
    await connection.execute(SQL.delete_watermarks, system_number)


async def sample_containers(connection: Connection, system_number: int, run_id: UUID) -> list[PlacedObject]:
    """Return one object of each container of a system, except for those that the run found deleted."""
    return _PLACED.all(await connection.fetch(SQL.sample_containers, system_number, run_id))


async def list_objects_in(
    connection: Connection, system_number: int, run_id: UUID, containers: Sequence[str], after_id: int, limit: int
) -> list[PlacedObject]:
    """Return the next normal objects of containers in order of id, except for those that the run found deleted."""
    return _PLACED.all(await connection.fetch(SQL.list_objects_in, system_number, run_id, containers, after_id, limit))


async def count_objects(connection: Connection, system_number: int) -> list[ObjectCount]:
    """Count the normal objects of a system by type and container."""
    return _COUNTS.all(await connection.fetch(SQL.count_objects, system_number))


async def has_provisioning(connection: Connection, system_number: int) -> bool:
    """Return whether a sync created objects of the system that may not have been imported yet."""
    return bool(await connection.fetchval(SQL.has_provisioning, system_number))


async def count_with_value(connection: Connection, system_number: int, type_number: int, attribute: str) -> int:
    """Count the objects of a type that have a value of an attribute."""
    return int(await connection.fetchval(SQL.count_with_value, system_number, type_number, attribute))


async def load_references(connection: Connection, object_ids: Sequence[int]) -> list[ReferenceRow]:
    """Return the references of objects, in order of object and attribute."""
    return _REFERENCES.all(await connection.fetch(SQL.load_references, object_ids))


async def find_reference_targets(
    connection: Connection,
    system_number: int,
    raw_keys: Sequence[str],
    anchors: Sequence[str],
    type_numbers: Sequence[int],
) -> dict[int, int]:
    """Return the objects that raw references name, by position from 0. The type is that of objects found by anchor."""
    rows = await connection.fetch(SQL.find_reference_targets, system_number, raw_keys, anchors, type_numbers)
    return {row["position"] - 1: row["id"] for row in rows}


async def find_unjoined_by_keys(
    connection: Connection, keys: Sequence[tuple[int, int, str]]
) -> dict[tuple[int, int, str], list[tuple[int, Value]]]:
    """Return unjoined objects by (system, attribute, key), each with the value that has the key."""
    columns = [list(column) for column in zip(*keys, strict=True)] if keys else [[], [], []]
    found: dict[tuple[int, int, str], list[tuple[int, Value]]] = {}
    for row in await connection.fetch(SQL.find_unjoined_by_keys, *columns):
        found.setdefault(keys[row["position"] - 1], []).append((row["object_id"], from_json(row["value"])))
    return found


async def load_addresses(
    connection: Connection, system_number: int, metaverse_ids: Sequence[int]
) -> dict[int, TargetAddress]:
    """Return where a system has the objects of metaverse objects, by metaverse id."""
    rows = await connection.fetch(SQL.load_addresses, system_number, metaverse_ids)
    return {each.metaverse_id: each for each in _ADDRESSES.all(rows)}


# --- writing --------------------------------------------------------------------------------------------------------


@value_class
class NewObject:
    """An object to be inserted."""

    id: int
    system_number: int
    type_number: int
    anchor: str | None
    address: str | None
    address_key: str | None
    container: str | None
    state: ObjectState
    attributes: Document
    fingerprint: bytes | None = None
    metaverse_id: int | None = None
    join_kind: JoinKind | None = None
    encoded_attributes: str | None = None
    """The attributes as JSON, if that is known."""


@value_class
class ChangedObject:
    """An object that an import found changed."""

    id: int
    anchor: str | None
    address: str | None
    address_key: str | None
    container: str | None
    attributes: Document
    fingerprint: bytes | None


@value_class
class JoinWrite:
    """What a sync decided about an object."""

    id: int
    metaverse_id: int | None
    join_kind: JoinKind | None
    drift_reported: Sequence[str]
    reevaluate_at: datetime | None


@value_class
class WrittenObject:
    """What a system answered to an export of an object. None leaves a column as it is."""

    id: int
    anchor: str | None
    address: str | None
    address_key: str | None
    attributes: Document | None
    """The values that the system confirmed at once."""


async def draw_object_ids(connection: Connection, count: int) -> list[int]:
    """Return ids for new objects."""
    return [row[0] for row in await connection.fetch(SQL.draw_object_ids, count)] if count else []


async def insert_objects(connection: Connection, new: Sequence[NewObject], now: datetime) -> None:
    """Insert objects with ids drawn before."""
    if not new:
        return
    await connection.copy_records_to_table(
        "connector_objects",
        columns=[
            "id", "system_number", "type_number", "anchor", "address", "address_key", "container", "state",
            "attributes", "fingerprint", "metaverse_id", "join_kind", "imported_at", "changed_at",
        ],
        records=(
            (
                each.id, each.system_number, each.type_number, each.anchor, each.address, each.address_key,
                each.container, each.state, each.encoded_attributes or encode_json(each.attributes), each.fingerprint,
                each.metaverse_id,
                each.join_kind,
                None if each.state is ObjectState.PROVISIONING else now, now,
            )
            for each in new
        ),
    )  # fmt: skip


async def update_objects(connection: Connection, changed: Sequence[ChangedObject], now: datetime) -> None:
    """Write objects that an import found changed; they are in state normal afterwards."""
    if changed:
        await connection.execute(
            SQL.update_imported,
            [each.id for each in changed],
            [each.anchor for each in changed],
            [each.address for each in changed],
            [each.address_key for each in changed],
            [each.container for each in changed],
            [encode_json(each.attributes) for each in changed],
            [each.fingerprint for each in changed],
            now,
        )


async def update_fingerprints(connection: Connection, fingerprints: Mapping[int, bytes]) -> None:
    """Store fingerprints of objects whose values have not changed."""
    if fingerprints:
        await connection.execute(SQL.update_fingerprints, list(fingerprints), list(fingerprints.values()))


async def restore_attributes(connection: Connection, attributes: Mapping[int, Document]) -> None:
    """Set the values of objects back; the next import decodes them again."""
    if attributes:
        await connection.execute(
            SQL.restore_attributes, list(attributes), [encode_json(each) for each in attributes.values()]
        )


async def lock_objects(connection: Connection, ids: Sequence[int]) -> dict[int, LockedObject]:
    """Lock objects in order of id; objects that no longer exist are missing in the result."""
    rows = _LOCKED.all(await connection.fetch(SQL.lock_objects, sorted(ids)))
    return {each.id: each for each in rows}


async def write_joins(connection: Connection, writes: Sequence[JoinWrite], now: datetime) -> None:
    """Join or disconnect objects; a disconnection ends the evaluation of the object."""
    if disconnected := [each.id for each in writes if each.metaverse_id is None]:
        await connection.execute(SQL.delete_evaluations, disconnected)
    if writes:
        await connection.execute(
            SQL.write_joins,
            [each.id for each in writes],
            [each.metaverse_id for each in writes],
            [None if each.join_kind is None else each.join_kind.value for each in writes],
            [_SEPARATOR.join(each.drift_reported) for each in writes],
            [each.reevaluate_at for each in writes],
            now,
        )


async def mark_obsolete(connection: Connection, ids: Sequence[int], now: datetime) -> list[RemovedObject]:
    """Mark objects that were deleted in their system; return what history keeps."""
    return _REMOVED.all(await connection.fetch(SQL.mark_obsolete, ids, now)) if ids else []


async def delete_objects(connection: Connection, ids: Sequence[int]) -> list[RemovedObject]:
    """Delete objects with their references, keys and evaluations; return what history keeps."""
    if not ids:
        return []
    await connection.execute(SQL.delete_references_of, ids)
    await connection.execute(SQL.unresolve_references_to, ids)
    await connection.execute(SQL.delete_object_keys, ids)
    await connection.execute(SQL.delete_evaluations, ids)
    return _REMOVED.all(await connection.fetch(SQL.delete_objects, ids))


async def insert_references(connection: Connection, system_number: int, rows: Sequence[ReferenceRow]) -> None:
    """Insert references; they must not exist."""
    if rows:
        await connection.copy_records_to_table(
            "connector_references",
            columns=["object_id", "system_number", "attribute_number", "raw_key", "raw", "target_id"],
            records=(
                (each.object_id, system_number, each.attribute_number, each.raw_key, each.raw, each.target_id)
                for each in rows
            ),
        )


async def delete_references(connection: Connection, rows: Sequence[ReferenceRow]) -> None:
    if rows:
        await connection.execute(
            SQL.delete_references,
            [each.object_id for each in rows],
            [each.attribute_number for each in rows],
            [each.raw_key for each in rows],
        )


async def replace_references_of_attributes(
    connection: Connection, system_number: int, attributes: Sequence[tuple[int, int]], rows: Sequence[ReferenceRow]
) -> None:
    """Replace all references of (object, attribute) pairs."""
    if attributes:
        ids, numbers = [id for id, _ in attributes], [number for _, number in attributes]
        await connection.execute(SQL.delete_references_of_attributes, ids, numbers)
        await insert_references(connection, system_number, rows)


async def resolve_waiting_references(
    connection: Connection, system_number: int, targets: Sequence[tuple[str, int]]
) -> list[int]:
    """Resolve references that waited for new objects, given as (key, id); return the objects that refer to them."""
    if not targets or not await connection.fetchval(SQL.has_waiting_references, system_number):
        return []
    keys, ids = [key for key, _ in targets], [id for _, id in targets]
    rows = await connection.fetch(SQL.resolve_waiting_references, system_number, keys, ids)
    return sorted({row["object_id"] for row in rows})


async def record_written(connection: Connection, written: Sequence[WrittenObject], now: datetime) -> None:
    """Write what a system answered to exports."""
    if written:
        await connection.execute(
            SQL.record_written,
            [each.id for each in written],
            [each.anchor for each in written],
            [each.address for each in written],
            [each.address_key for each in written],
            [None if each.attributes is None else encode_json(each.attributes) for each in written],
            now,
        )


async def replace_object_keys(
    connection: Connection, system_number: int, keys: Mapping[int, Sequence[tuple[int, str, Value]]]
) -> None:
    """Replace the keys of objects, given as (attribute, key, value) by object id."""
    if not keys:
        return
    await connection.execute(SQL.delete_object_keys, list(keys))
    records = {
        (system_number, attribute, key, id): encode_json(value)
        for id, found in keys.items()
        for attribute, key, value in found
    }
    if records:
        await connection.copy_records_to_table(
            "object_keys",
            columns=["system_number", "attribute_number", "key", "object_id", "value"],
            records=((*key, value) for key, value in records.items()),
        )


async def clear_object_keys(connection: Connection, system_number: int) -> None:
    await connection.execute(SQL.clear_object_keys, system_number)


async def store_keyed_by(connection: Connection, system_number: int, keyed_by: str) -> None:
    """Record the match rules by which the keys of a system were made."""
    await connection.execute(SQL.store_keyed_by, system_number, keyed_by)


def encode_json(value: Any) -> str:
    """Return a value as JSON text."""
    return to_json(value).decode()


async def set_manual_join(
    connection: Connection, id: int, metaverse_id: int | None, join_kind: JoinKind | None, pinned: bool, now: datetime
) -> None:
    """Join an object to a metaverse object, or disconnect it, because a user says so."""
    if metaverse_id is None:
        await connection.execute(SQL.delete_evaluations, [id])
    await connection.execute(SQL.set_manual_join, id, metaverse_id, join_kind, pinned, now)


@dataclass(frozen=True, slots=True)
class ReferringObject:
    """An object that refers to another one."""

    id: int
    anchor: str


_REFERRING = RowMapper(ReferringObject, SQL.find_referring)


async def find_referring(connection: Connection, target_ids: Sequence[int], limit: int) -> list[ReferringObject]:
    """Return the objects that refer to one of these."""
    return _REFERRING.all(await connection.fetch(SQL.find_referring, target_ids, limit))
