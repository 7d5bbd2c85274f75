"""Rows of manifests, their versions, groups and runs, and the polls of the manifest manager.

Lock order: batches, then manifests, then tasks, then dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.ids import smallest_id_at
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest, manifest_from_fields
from tenuto.model.tasks import Task, TaskState
from tenuto.model.triggers import Trigger
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.bulk_copy import ExcludedVersions, array_literal, split_ids_and_versions, to_columns
from tenuto.store.definition_rows import DefinitionTable, from_json_text, to_json_text
from tenuto.tracing import add_traceparent, record_enqueue_span

SQL = load_statements(__file__)

ALL_MANIFESTS = "*"
"""Name of the group that contains all manifests."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A stored manifest."""

    id: UUID
    manifest: Manifest
    enabled: bool
    version: int
    origin: str
    declared: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    last_successful_run: datetime | None
    last_run_at: datetime | None
    next_run_at: datetime | None

    @property
    def definition(self) -> Manifest:
        return self.manifest

    @property
    def key(self) -> str:
        return self.manifest.external_id

    @property
    def external_id(self) -> str:
        return self.manifest.external_id

    @property
    def trigger(self) -> Trigger:
        return self.manifest.trigger

    @property
    def fields(self) -> dict[str, Any]:
        """The current definition as plain data, comparable with ``declared``."""
        return self.manifest.to_fields()


def _to_stored_manifest(row: Row) -> StoredManifest:
    return StoredManifest(
        row["id"],
        manifest_from_fields(json.loads(row["definition"])),
        row["enabled"],
        row["version"],
        row["origin"],
        from_json_text(row["declared"]),
        row["created_at"],
        row["updated_at"],
        row["last_successful_run"],
        row["last_run_at"],
        row["next_run_at"],
    )


# --- definitions ----------------------------------------------------------------------------------------------------


def _columns(new: Manifest) -> tuple[Any, ...]:
    return (
        new.external_id, new.name, to_json_text(new.to_fields()), new.job, new.schedule_type, new.depends_on, new.group,
        new.max_active,
    )  # fmt: skip


TABLE = DefinitionTable[Manifest, StoredManifest](SQL, _to_stored_manifest, _columns)
load_manifest, lock_manifest, load_manifests, lock_manifests = TABLE.load, TABLE.lock, TABLE.load_many, TABLE.lock_many
list_others_from_files, list_versions = TABLE.list_others_from_files, TABLE.list_versions


async def prevent_deletion(connection: Connection, id: UUID) -> bool:
    """Prevent the deletion of a manifest until the transaction ends; return False if it does not exist."""
    return await connection.fetchrow(SQL.prevent_deletion, id) is not None


async def prevent_deletion_by_external_id(connection: Connection, external_id: str) -> bool:
    """Like `prevent_deletion`, by external id."""
    return await connection.fetchrow(SQL.prevent_deletion_by_external_id, external_id) is not None


async def lock_manifests_and_dependents(connection: Connection, ids: Iterable[UUID]) -> None:
    """Lock manifests whose runs end, and their dependents, before their tasks."""
    if wanted := sorted(set(ids)):
        await connection.fetch(SQL.lock_manifests_and_dependents, wanted)


async def lock_dependency_changes(connection: Connection) -> None:
    """Serialise changes of dependencies. Call it before any manifest is locked."""
    await connection.execute(SQL.lock_dependency_changes)


async def list_manifests(
    database: Database, *, after: str | None, enabled: bool | None, group: str | None, search: str | None, limit: int
) -> list[Record]:
    """Return manifests by external id, each with the number of its open tasks."""
    rows = await database.fetch_all(SQL.list_manifests, after, enabled, group, search, limit)
    return [{key: json.loads(value) if key == "definition" else value for key, value in row.items()} for row in rows]


async def load_dependencies(connection: Connection) -> dict[str, str | None]:
    """Return the dependency of each manifest."""
    return {row["external_id"]: row["depends_on"] for row in await connection.fetch(SQL.list_dependencies)}


async def list_dependents(connection: Connection, external_id: str) -> list[str]:
    """Return the manifests that depend on one."""
    return [row["external_id"] for row in await connection.fetch(SQL.list_dependents, external_id)]


async def has_open_tasks(connection: Connection, id: UUID) -> bool:
    """Return whether a manifest has open tasks."""
    return bool(await connection.fetchval(SQL.has_open_tasks, id))


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class NewRun:
    """A run of a manifest or one item of a batch, to be created as a task."""

    id: UUID
    manifest_id: UUID
    job: str
    input: str
    policy: str
    queue: str
    priority: int
    created_at: datetime
    initiator: Actor
    run_at: datetime | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    limit_group: str | None = None
    batch_id: UUID | None = None
    item_key: str | None = None
    correlation_id: str | None = None
    tags: list[str] | None = None
    is_held: bool = False

    @property
    def state(self) -> TaskState:
        if self.is_held:
            return TaskState.WAITING
        later = self.run_at is not None and self.run_at > self.created_at
        return TaskState.SCHEDULED if later else TaskState.QUEUED


async def enqueue_runs(connection: Connection, runs: Sequence[NewRun]) -> set[UUID]:
    """Create runs and return the ids of the new ones; an item whose key has an open task is skipped."""
    if not runs:
        return set()
    rows = [
        (
            run.id, run.state, run.queue, -run.priority, run.run_at or run.created_at, run.job, run.input,
            add_traceparent(run.policy, record_enqueue_span(run.job)), run.created_at,
            run.limit_key, run.limit_max, run.initiator.type,
            run.initiator.id, run.initiator.name,
            run.correlation_id, None if run.tags is None else array_literal(run.tags), run.manifest_id, run.batch_id,
            run.item_key, run.limit_group,
        )
        for run in runs
    ]  # fmt: skip
    return {row["id"] for row in await connection.fetch(SQL.enqueue_runs, *to_columns(rows))}


@dataclass(frozen=True, slots=True)
class DueManifest:
    """A due manifest with an unparsed definition, so that an unreadable one affects only itself."""

    id: UUID
    version: int
    external_id: str
    definition_json: str
    group: str | None
    next_run_at: datetime
    group_disabled: bool
    group_priority: int

    def parse_manifest(self) -> Manifest:
        return manifest_from_fields(json.loads(self.definition_json))


async def lock_due_manifests(
    connection: Connection, now: datetime, limit: int, excluded: ExcludedVersions = ()
) -> list[DueManifest]:
    """Return and lock due manifests that no other manifest manager has locked."""
    rows = await connection.fetch(SQL.lock_due_manifests, now, limit, *split_ids_and_versions(excluded))
    return [DueManifest(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class RunBlockers:
    """What may block a new run of a manifest."""

    has_open_dead_letter: bool
    open_task_id: UUID | None


async def load_run_blockers(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, RunBlockers]:
    """Return the run blockers of manifests that the caller has locked."""
    rows = await connection.fetch(SQL.load_run_blockers, ids)
    return {row["id"]: RunBlockers(row["dead_lettered"], row["open_task"]) for row in rows}


async def record_runs(connection: Connection, rows: Sequence[tuple[UUID, datetime | None, datetime | None]]) -> None:
    """Store (manifest, last run or None if unchanged, next run)."""
    if rows:
        await connection.execute(SQL.record_runs, *to_columns(rows))


async def lock_unplanned_manifests(
    connection: Connection, limit: int, excluded: ExcludedVersions = ()
) -> list[tuple[UUID, int, str, str]]:
    """Return and lock (id, version, external id, definition as JSON) of manifests without a next run."""
    rows = await connection.fetch(SQL.lock_unplanned_manifests, limit, *split_ids_and_versions(excluded))
    return [(row["id"], row["version"], row["external_id"], row["definition"]) for row in rows]


async def load_next_due_at(database: Database, excluded: ExcludedVersions = ()) -> datetime | None:
    """Return when the next manifest is due."""
    found: datetime | None = await database.fetch_value(SQL.load_next_due_at, *split_ids_and_versions(excluded))
    return found


async def record_successes(connection: Connection, ids: Iterable[UUID], at: datetime) -> None:
    """Store the success of manifests and make their dependents due."""
    await connection.execute(SQL.record_successes, sorted(set(ids)), at)


async def record_batch_item_successes(database: Database, ids: Iterable[UUID], at: datetime) -> None:
    """Store the time of the last success of batch items."""
    await database.write_all(SQL.record_batch_item_successes, sorted(set(ids)), at)


async def find_overrun_runs(database: Database, limit: int) -> list[Task]:
    """Return runs that ran far over their time limit and whose leases have expired."""
    return [Task(*row) for row in await database.fetch_all(SQL.find_overrun_runs, limit)]


async def load_details(database: Database, manifest: StoredManifest, limit: int) -> Record:
    """Return the open runs, last runs, groups, dependents and dead letters of a manifest."""
    group, all_together = None, None
    for each in await list_groups(database, [manifest.manifest.group or ALL_MANIFESTS, ALL_MANIFESTS]):
        group = each if each["name"] == manifest.manifest.group else group
        all_together = each if each["name"] == ALL_MANIFESTS else all_together
    return {
        "open": {row["state"]: row["number"] for row in await database.fetch_all(SQL.count_open_tasks, manifest.id)},
        "runs": [_to_record(row) for row in await database.fetch_all(SQL.list_open_runs, manifest.id, limit)],
        "last_runs": [_to_record(row) for row in await database.fetch_all(SQL.list_last_runs, manifest.id, limit)],
        "group": group,
        "all_together": all_together,
        "dependents": [
            row["external_id"] for row in await database.fetch_all(SQL.list_dependents, manifest.external_id)
        ],
        "dead_letters": int(await database.fetch_value(SQL.count_open_dead_letters, manifest.id)),
    }


def _to_record(row: Row) -> Record:
    stored = ("policy", "progress", "error")
    return {key: json.loads(value) if key in stored and value is not None else value for key, value in row.items()}


async def notify_run_enqueued(connection: Connection, run: NewRun) -> None:
    """Notify workers of a new run."""
    await connection.execute(SQL.notify_run_enqueued, run.queue, -run.priority)


# --- groups and polls -----------------------------------------------------------------------------------------------


async def list_groups(
    database: Database, names: Sequence[str] | None = None, *, after: str | None = None, limit: int = 1000
) -> list[Record]:
    """Return manifest groups, or the named ones, with the number of active runs."""
    return [dict(row) for row in await database.fetch_all(SQL.list_groups, names, after, limit)]


async def load_group(connection: Connection, name: str) -> Record | None:
    row = await connection.fetchrow(SQL.load_group, name)
    return None if row is None else dict(row)


async def save_group(
    connection: Connection, name: str, max_active: int | None, priority: int, enabled: bool, at: datetime, by: str
) -> None:
    """Store the settings of a manifest group."""
    await connection.execute(SQL.save_group, name, max_active, priority, enabled, at, by)


async def record_poll(database: Database, *values: Any) -> None:
    """Store (id, at, by, seconds, enqueued, dead-lettered, timed out, skipped as JSON, error)."""
    await database.write_all(SQL.insert_poll, *values)


async def list_polls(database: Database, *, below: UUID | None, busy: bool, limit: int) -> list[Record]:
    """Return polls of the manifest manager, newest first."""
    rows = await database.fetch_all(SQL.list_polls, below, busy, limit)
    return [{key: json.loads(value) if key == "skipped" else value for key, value in row.items()} for row in rows]


async def delete_old_polls(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of polls before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_polls, smallest_id_at(cutoff), limit))
