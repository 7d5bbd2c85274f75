"""Queries of doctor checks, metrics and events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import PositionalMapper
from tenuto_identity.store.transaction_settings import fetch_all, schema_of_identity

SQL = load_statements(__file__)
_INCONSISTENCIES = (
    SQL.find_orphaned_joins,
    SQL.find_orphaned_marks,
    SQL.find_orphaned_exports,
    SQL.find_abandoned_exports,
    SQL.find_orphaned_keys,
    SQL.find_orphaned_references,
    SQL.find_orphaned_provenance,
)


@dataclass(frozen=True, slots=True)
class HeldSystem:
    """A system that a guard holds."""

    name: str
    message: str | None


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run that began or ended."""

    id: UUID
    at: datetime
    system: str
    profile: str
    kind: str
    state: str


@dataclass(frozen=True, slots=True)
class ContainerCount:
    """How many objects of a type are in a container."""

    system_number: int
    type_number: int
    container: str
    object_count: int


_CONTAINERS = PositionalMapper(ContainerCount, SQL.count_by_container)
_HELD = PositionalMapper(HeldSystem, SQL.list_held)
_RUNS = PositionalMapper(RunChange, SQL.list_runs_since)


async def find_inconsistencies(database: Database) -> list[str]:
    """Return descriptions of rows that contradict each other; a few of each kind."""
    return [row[0] for statement in _INCONSISTENCIES for row in await fetch_all(database, statement)]


async def count_by_container(connection: Connection) -> list[ContainerCount]:
    """Count the objects of all systems by type and container."""
    return _CONTAINERS.all(await connection.fetch(SQL.count_by_container))


async def list_held(database: Database) -> list[HeldSystem]:
    """Return the systems that guards hold."""
    return _HELD.all(await fetch_all(database, SQL.list_held))


async def list_runs_since(database: Database, since: datetime) -> list[RunChange]:
    """Return runs that began or ended since an instant."""
    return _RUNS.all(await fetch_all(database, SQL.list_runs_since, since))


async def load_metrics(connection: Connection) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Return the values of all metrics, with their labels."""
    async with schema_of_identity(connection):
        objects = await connection.fetch(SQL.count_objects)
        identities = await connection.fetch(SQL.count_identities)
        exports = await connection.fetch(SQL.count_exports)
        held = await connection.fetch(SQL.list_held)
        ages = await connection.fetch(SQL.watermark_ages)
        export_ages = await connection.fetch(SQL.export_ages)
        runs = await connection.fetch(SQL.count_runs)
        items = await connection.fetch(SQL.count_items)
        speeds = await connection.fetch(SQL.run_speeds)
    return {
        "tenuto_identity_objects": [((row[0], row[1]), float(row[2])) for row in objects],
        "tenuto_identity_metaverse_objects": [((row[0],), float(row[1])) for row in identities],
        "tenuto_identity_pending_exports": [((row[0], row[1]), float(row[2])) for row in exports],
        "tenuto_identity_held_systems": [((), float(len(held)))],
        "tenuto_identity_watermark_age_seconds": [((row[0],), float(row[1])) for row in ages],
        "tenuto_identity_pending_export_age_seconds": [((row[0],), float(row[1])) for row in export_ages],
        "tenuto_identity_runs": [((row[0], row[1], row[2]), float(row[3])) for row in runs],
        "tenuto_identity_items": [((row[0], row[1], row[2]), float(row[3])) for row in items],
        "tenuto_identity_seconds_per_1000_objects": [((row[0], row[1]), float(row[2])) for row in speeds],
    }
