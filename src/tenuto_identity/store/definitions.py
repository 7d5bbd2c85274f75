"""Definitions: systems, metaverse types, sync rules and templates with their versions, and the numbers of names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, FromJson, RowMapper
from tenuto_identity.store.objects import encode_json
from tenuto_identity.store.transaction_settings import fetch_all

SQL = load_statements(__file__)


class DefinitionKind(StrEnum):
    """The kinds of definitions, in the order in which they are applied."""

    SYSTEM = "system"
    METAVERSE_TYPE = "metaverse_type"
    SYNC_RULE = "sync_rule"
    TEMPLATE = "template"


_INSERTS = {
    DefinitionKind.SYSTEM: SQL.insert_system,
    DefinitionKind.METAVERSE_TYPE: SQL.insert_metaverse_type,
    DefinitionKind.SYNC_RULE: SQL.insert_sync_rule,
    DefinitionKind.TEMPLATE: SQL.insert_template,
}
_UPDATES = {
    DefinitionKind.SYSTEM: SQL.update_system,
    DefinitionKind.METAVERSE_TYPE: SQL.update_metaverse_type,
    DefinitionKind.SYNC_RULE: SQL.update_sync_rule,
    DefinitionKind.TEMPLATE: SQL.update_template,
}
_DELETES = {
    DefinitionKind.SYSTEM: SQL.delete_system,
    DefinitionKind.METAVERSE_TYPE: SQL.delete_metaverse_type,
    DefinitionKind.SYNC_RULE: SQL.delete_sync_rule,
    DefinitionKind.TEMPLATE: SQL.delete_template,
}


@dataclass(frozen=True, slots=True)
class DefinitionRow:
    """A stored definition."""

    kind: DefinitionKind
    number: int
    id: UUID
    name: str
    definition: Annotated[dict[str, Any], FromJson]
    declared: Annotated[dict[str, Any] | None, FromJson]
    """The definition that a file declared last; an operator may have changed it since."""
    origin: str
    version: int


@dataclass(frozen=True, slots=True)
class SystemRow:
    """The state of a connected system beside its definition."""

    number: int
    name: str
    connector: str
    state: str
    held: Annotated[dict[str, Any] | None, FromJson]
    keyed_by: str | None
    decode_key: bytes | None
    discovered: Annotated[dict[str, Any] | None, FromJson]


@dataclass(frozen=True, slots=True)
class DefinitionVersion:
    """One version of a definition; ``definition`` is None if this version deleted it."""

    kind: DefinitionKind
    number: int
    version: int
    name: str
    definition: Annotated[dict[str, Any] | None, FromJson]
    rules_version: int
    author: str
    reason: str | None
    origin: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredDefinitions:
    """All definitions, and the numbers that stand for names in other tables."""

    rows: Sequence[DefinitionRow]
    systems: Sequence[SystemRow]
    type_numbers: Mapping[tuple[int, str], int]
    """(system number, type name) → type number."""
    attribute_numbers: Mapping[str, int]
    rules_version: int

    def of_kind(self, kind: DefinitionKind) -> list[DefinitionRow]:
        return [row for row in self.rows if row.kind is kind]


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """Author, instant, reason and origin of a change."""

    author: str
    at: datetime
    reason: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class RecentRun:
    """One of the last runs of a system."""

    id: UUID
    profile: str
    kind: str
    state: str
    started_at: datetime
    ended_at: datetime | None


def _decode_recent_runs(text: str) -> list[RecentRun]:
    return [
        RecentRun(
            UUID(each["id"]),
            each["profile"],
            each["kind"],
            each["state"],
            datetime.fromisoformat(each["started_at"]),
            datetime.fromisoformat(each["ended_at"]) if each["ended_at"] else None,
        )
        for each in json.loads(text)
    ]


@dataclass(frozen=True, slots=True)
class SystemRecord:
    """A connected system as interfaces show it."""

    number: int
    id: UUID
    name: str
    connector: str
    state: str
    held: Annotated[dict[str, Any] | None, FromJson]
    """Why a guard holds the system: message, guards, run and instant."""
    version: int
    origin: str
    updated_at: datetime
    object_count: int
    export_count: int
    """Pending exports in all states."""
    last_run_id: UUID | None
    recent_runs: Annotated[list[RecentRun], FromColumn(_decode_recent_runs)]
    """The last ten runs, the newest first."""


_RECORDS = RowMapper(SystemRecord, SQL.list_systems)
_ROWS = RowMapper(DefinitionRow, SQL.load_definitions)
_SYSTEMS = RowMapper(SystemRow, SQL.load_systems, SQL.lock_system_row)
_VERSIONS = RowMapper(DefinitionVersion, SQL.list_versions)


async def load_definitions(connection: Connection) -> StoredDefinitions:
    """Return all definitions as one consistent set; call it in a transaction that has locked or snapshotted them."""
    rules_version = await connection.fetchval(SQL.load_rules_version)
    return StoredDefinitions(
        rows=_ROWS.all(await connection.fetch(SQL.load_definitions)),
        systems=_SYSTEMS.all(await connection.fetch(SQL.load_systems)),
        type_numbers={
            (row["system_number"], row["name"]): row["number"] for row in await connection.fetch(SQL.load_object_types)
        },
        attribute_numbers={row["name"]: row["number"] for row in await connection.fetch(SQL.load_attributes)},
        rules_version=rules_version,
    )


async def lock_definitions(connection: Connection) -> int:
    """Lock all definitions against other changes; return the version of the rules."""
    return int(await connection.fetchval(SQL.lock_definitions))


async def increment_rules_version(connection: Connection) -> int:
    """Increment the version of the rules and return it. Runs in progress keep their version."""
    return int(await connection.fetchval(SQL.increment_rules_version))


async def add_names(connection: Connection, attributes: Iterable[str]) -> None:
    """Number attribute names that have no number."""
    await connection.execute(SQL.add_attributes, sorted(set(attributes)))


async def add_object_types(connection: Connection, system_number: int, names: Sequence[str]) -> None:
    """Number object types of a system that have no number."""
    await connection.execute(SQL.add_object_types, system_number, list(names))


async def insert_definition(
    connection: Connection,
    kind: DefinitionKind,
    name: str,
    definition: Mapping[str, Any],
    rules_version: int,
    change: DefinitionChange,
    *,
    declared: Mapping[str, Any] | None,
) -> int:
    """Insert a definition with its first version; return its number."""
    stored = None if declared is None else encode_json(declared)
    number = int(
        await connection.fetchval(
            _INSERTS[kind], new_id(), name, encode_json(definition), stored, change.origin, change.at
        )
    )
    await _insert_version(connection, kind, number, 1, name, definition, rules_version, change)
    return number


async def update_definition(
    connection: Connection,
    row: DefinitionRow,
    definition: Mapping[str, Any],
    rules_version: int,
    change: DefinitionChange,
    *,
    declared: Mapping[str, Any] | None,
) -> None:
    """Replace a definition; its history gets another version, unless only its declaration changes."""
    stored = None if declared is None else encode_json(declared)
    version = row.version if row.definition == definition else row.version + 1
    await connection.execute(
        _UPDATES[row.kind], row.number, encode_json(definition), stored, change.origin, change.at, version
    )
    if version != row.version:
        await _insert_version(connection, row.kind, row.number, version, row.name, definition, rules_version, change)


async def delete_definition(
    connection: Connection, row: DefinitionRow, rules_version: int, change: DefinitionChange
) -> None:
    """Delete a definition; its history remains."""
    await connection.execute(_DELETES[row.kind], row.number)
    await _insert_version(connection, row.kind, row.number, row.version + 1, row.name, None, rules_version, change)


async def _insert_version(
    connection: Connection,
    kind: DefinitionKind,
    number: int,
    version: int,
    name: str,
    definition: Mapping[str, Any] | None,
    rules_version: int,
    change: DefinitionChange,
) -> None:
    await connection.execute(
        SQL.insert_version,
        kind.value,
        number,
        version,
        name,
        None if definition is None else encode_json(definition),
        rules_version,
        change.author,
        change.reason,
        change.origin,
        change.at,
    )


async def has_objects(connection: Connection, system_number: int) -> bool:
    """Return whether a system has objects in its connector space."""
    return bool(await connection.fetchval(SQL.has_objects, system_number))


async def has_identities(connection: Connection, type_number: int) -> bool:
    """Return whether there are metaverse objects of a type."""
    return bool(await connection.fetchval(SQL.has_identities, type_number))


async def set_system_state(connection: Connection, name: str, state: str) -> int | None:
    """Set the state of a system; return its number, or None if there is no system of this name."""
    found = await connection.fetchval(SQL.set_system_state, name, state)
    return None if found is None else int(found)


async def store_decode_key(connection: Connection, system_number: int, decode_key: bytes) -> None:
    await connection.execute(SQL.store_decode_key, system_number, decode_key)


async def store_discovered(connection: Connection, system_number: int, schema: Mapping[str, Any]) -> None:
    await connection.execute(SQL.store_discovered, system_number, encode_json(schema))


async def lock_system(connection: Connection, name: str) -> SystemRow | None:
    """Lock a system against runs that begin, and return it; None if there is no system of this name."""
    return _SYSTEMS.optional(await connection.fetchrow(SQL.lock_system_row, name))


async def find_open_run(connection: Connection, system_number: int) -> UUID | None:
    """Return the open run of a system."""
    found: UUID | None = await connection.fetchval(SQL.has_open_run, system_number)
    return found


async def list_systems(database: Database, after: str, limit: int) -> list[SystemRecord]:
    """Return connected systems by name; page with ``after``."""
    return _RECORDS.all(await fetch_all(database, SQL.list_systems, after, limit, None))


async def load_system(database: Database, name: str) -> SystemRecord | None:
    """Return one connected system; None if there is no system of this name."""
    found = _RECORDS.all(await fetch_all(database, SQL.list_systems, "", 1, name))
    return found[0] if found else None


async def list_versions(database: Database, kind: DefinitionKind, name: str, limit: int) -> list[DefinitionVersion]:
    """Return the versions of a definition, the newest first."""
    return _VERSIONS.all(await fetch_all(database, SQL.list_versions, kind.value, name, limit))


# --- recalls of deleted rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recall:
    """A deleted rule whose contributions a task has to withdraw, and the user who deleted it."""

    rule_number: int
    rule: str
    system: str
    type_number: int
    initiator_type: str
    initiator_id: str | None
    initiator_name: str


_RECALLS = RowMapper(Recall, SQL.list_recalls)


async def insert_recall(
    connection: Connection, row: DefinitionRow, system_number: int, type_number: int, actor: Actor, now: datetime
) -> None:
    """Remember that the contributions of a deleted rule have to be withdrawn."""
    await connection.execute(
        SQL.insert_recall,
        row.number,
        row.name,
        system_number,
        type_number,
        actor.type.value,
        actor.id,
        actor.name,
        now,
    )


async def list_recalls(connection: Connection) -> list[Recall]:
    """Return the deleted rules whose contributions can be withdrawn now."""
    return _RECALLS.all(await connection.fetch(SQL.list_recalls))


async def has_recalls(database: Database) -> bool:
    """Return whether `list_recalls` returns anything."""
    return bool((await fetch_all(database, SQL.has_recalls))[0][0])


async def delete_recall(connection: Connection, rule_number: int) -> None:
    await connection.execute(SQL.delete_recall, rule_number)


async def delete_recalls_of_system(connection: Connection, system_number: int) -> None:
    await connection.execute(SQL.delete_recalls_of_system, system_number)


# --- watermarks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WatermarkRecord:
    """The position of the last complete import in the changes of a system."""

    partition: str
    value: Annotated[dict[str, Any], FromJson]
    """Plain data that only the connector understands."""
    taken_at: datetime
    run_id: UUID


_WATERMARKS = RowMapper(WatermarkRecord, SQL.load_watermarks)


async def list_watermarks(database: Database, system: str) -> list[WatermarkRecord]:
    """Return the watermarks of a system, one for each partition."""
    return _WATERMARKS.all(await fetch_all(database, SQL.load_watermarks, system))
