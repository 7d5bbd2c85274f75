"""Manifests, their versions, their groups, their runs as tasks, and what the manager did.

Rows come and go as told. Lock order: batches, then manifests, then tasks, then dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.ids import first_id_at
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest, manifest_from_fields
from tenuto.model.tasks import Task, TaskState
from tenuto.model.triggers import Trigger
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import Excluded, array_literal, columns_of, ids_and_versions
from tenuto.store.definition_rows import Kept, as_json, from_json
from tenuto.tracing import asked, carrying

SQL = beside(__file__)

ALL = "*"
"""The group that stands for all manifests together."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as stored."""

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
        """The definition in force as plain data, to be compared with what was ``declared``."""
        return self.manifest.to_fields()


def _stored(row: Row) -> StoredManifest:
    return StoredManifest(
        row["id"],
        manifest_from_fields(json.loads(row["definition"])),
        row["enabled"],
        row["version"],
        row["origin"],
        from_json(row["declared"]),
        row["created_at"],
        row["updated_at"],
        row["last_successful_run"],
        row["last_run_at"],
        row["next_run_at"],
    )


# --- definitions ----------------------------------------------------------------------------------------------------


def _columns(new: Manifest) -> tuple[Any, ...]:
    return (
        new.external_id, new.name, as_json(new.to_fields()), new.job, new.schedule_type, new.depends_on, new.group,
        new.max_active,
    )  # fmt: skip


ROWS = Kept[Manifest, StoredManifest](SQL, _stored, _columns)
named, locked, named_any, locked_any = ROWS.named, ROWS.locked, ROWS.named_any, ROWS.locked_any
other_from_files, versions = ROWS.other_from_files, ROWS.versions


async def keep(connection: Connection, id: UUID) -> bool:
    """Keep a manifest from being deleted until the transaction ends; False if it is gone."""
    return await connection.fetchrow(SQL.keep, id) is not None


async def keep_named(connection: Connection, external_id: str) -> bool:
    """As `keep`, by its external id."""
    return await connection.fetchrow(SQL.keep_named, external_id) is not None


async def hold(connection: Connection, ids: Iterable[UUID]) -> None:
    """Hold manifests of which a run ends, and those that run after them, before their tasks are touched."""
    if wanted := sorted(set(ids)):
        await connection.fetch(SQL.hold, wanted)


async def one_change_of_order(connection: Connection) -> None:
    """Who runs after whom is changed by one at a time. To be asked for before any manifest is held."""
    await connection.execute(SQL.one_change_of_order)


async def list_manifests(
    database: Database, *, after: str | None, enabled: bool | None, group: str | None, search: str | None, limit: int
) -> list[Record]:
    """Manifests by external id, each with what is open of it."""
    rows = await database.all(SQL.list_manifests, after, enabled, group, search, limit)
    return [{key: json.loads(value) if key == "definition" else value for key, value in row.items()} for row in rows]


async def parents(connection: Connection) -> dict[str, str | None]:
    """Who runs after whom."""
    return {row["external_id"]: row["depends_on"] for row in await connection.fetch(SQL.parents)}


async def dependents(connection: Connection, external_id: str) -> list[str]:
    """The manifests that run after one."""
    return [row["external_id"] for row in await connection.fetch(SQL.dependents, external_id)]


async def has_open_tasks(connection: Connection, id: UUID) -> bool:
    """Whether anything of a manifest is pending or running."""
    return bool(await connection.fetchval(SQL.has_open_tasks, id))


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class NewRun:
    """A run of a manifest, or one item of a batch, to be created as a task."""

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
    held_back: bool = False

    @property
    def state(self) -> TaskState:
        if self.held_back:
            return TaskState.WAITING
        later = self.run_at is not None and self.run_at > self.created_at
        return TaskState.SCHEDULED if later else TaskState.QUEUED


async def start_runs(connection: Connection, runs: Sequence[NewRun]) -> set[UUID]:
    """Create runs; the ids of those that were not there: an item whose key has an open task is left alone."""
    if not runs:
        return set()
    rows = [
        (
            run.id, run.state, run.queue, -run.priority, run.run_at or run.created_at, run.job, run.input,
            carrying(run.policy, asked(run.job)), run.created_at, run.limit_key, run.limit_max, run.initiator.type,
            run.initiator.id, run.initiator.name,
            run.correlation_id, None if run.tags is None else array_literal(run.tags), run.manifest_id, run.batch_id,
            run.item_key, run.limit_group,
        )
        for run in runs
    ]  # fmt: skip
    return {row["id"] for row in await connection.fetch(SQL.insert_runs, *columns_of(rows))}


@dataclass(frozen=True, slots=True)
class DueManifest:
    """A due manifest as stored; read by who enqueues it, so that one nobody can read harms only itself."""

    id: UUID
    version: int
    external_id: str
    definition_json: str
    group: str | None
    next_run_at: datetime
    group_disabled: bool
    group_priority: int

    def manifest(self) -> Manifest:
        return manifest_from_fields(json.loads(self.definition_json))


async def due(connection: Connection, now: datetime, limit: int, excluded: Excluded = ()) -> list[DueManifest]:
    """Manifests that are due and that nobody else is looking at, held until the transaction ends."""
    rows = await connection.fetch(SQL.due, now, limit, *ids_and_versions(excluded))
    return [DueManifest(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in the way of a new run."""

    dead_lettered: bool
    open_task: UUID | None


async def standing(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """To be asked while the manifests are held."""
    rows = await connection.fetch(SQL.standing, ids)
    return {row["id"]: Standing(row["dead_lettered"], row["open_task"]) for row in rows}


async def ran(connection: Connection, rows: Sequence[tuple[UUID, datetime | None, datetime | None]]) -> None:
    """(manifest, last run or None if it stays, next run)."""
    if rows:
        await connection.execute(SQL.ran, *columns_of(rows))


async def to_plan(connection: Connection, limit: int, excluded: Excluded = ()) -> list[tuple[UUID, int, str, str]]:
    """(id, version, external id, definition as JSON) of manifests whose next run nobody has worked out yet."""
    rows = await connection.fetch(SQL.to_plan, limit, *ids_and_versions(excluded))
    return [(row["id"], row["version"], row["external_id"], row["definition"]) for row in rows]


async def next_due(database: Database, excluded: Excluded = ()) -> datetime | None:
    """When the next manifest is due."""
    found: datetime | None = await database.value(SQL.next_due, *ids_and_versions(excluded))
    return found


async def succeeded(connection: Connection, ids: Iterable[UUID], at: datetime) -> None:
    """Manifests have succeeded; those that run after one of them are due."""
    await connection.execute(SQL.succeeded, sorted(set(ids)), at)


async def touch(database: Database, ids: Iterable[UUID], at: datetime) -> None:
    """Items of batches have succeeded lately."""
    await database.all(SQL.touch, sorted(set(ids)), at)


async def ran_over(database: Database, limit: int) -> list[Task]:
    """Runs that went on far over their time limit until they were nobody's any more."""
    return [Task(*row) for row in await database.all(SQL.ran_over, limit)]


async def details(database: Database, manifest: StoredManifest, limit: int) -> Record:
    """What goes on with a manifest."""
    group, all_together = None, None
    for each in await list_groups(database, [manifest.manifest.group or ALL, ALL]):
        group = each if each["name"] == manifest.manifest.group else group
        all_together = each if each["name"] == ALL else all_together
    return {
        "open": {row["state"]: row["number"] for row in await database.all(SQL.open_counts, manifest.id)},
        "runs": [_with_json(row) for row in await database.all(SQL.open_runs, manifest.id, limit)],
        "last_runs": [_with_json(row) for row in await database.all(SQL.last_runs, manifest.id, limit)],
        "group": group,
        "all_together": all_together,
        "dependents": [row["external_id"] for row in await database.all(SQL.dependents, manifest.external_id)],
        "dead_letters": int(await database.value(SQL.letters_of, manifest.id)),
    }


def _with_json(row: Row) -> Record:
    stored = ("policy", "progress", "error")
    return {key: json.loads(value) if key in stored and value is not None else value for key, value in row.items()}


async def tell_of(connection: Connection, run: NewRun) -> None:
    """Wake whoever may take runs like this one."""
    await connection.execute(SQL.wake_limited, run.queue, -run.priority)


# --- groups and polls -----------------------------------------------------------------------------------------------


async def list_groups(
    database: Database, names: Sequence[str] | None = None, *, after: str | None = None, limit: int = 1000
) -> list[Record]:
    """The groups of manifests, or those named, with what is active of each."""
    return [dict(row) for row in await database.all(SQL.list_groups, names, after, limit)]


async def group(connection: Connection, name: str) -> Record | None:
    row = await connection.fetchrow(SQL.group, name)
    return None if row is None else dict(row)


async def set_group(
    connection: Connection, name: str, max_active: int | None, priority: int, enabled: bool, at: datetime, by: str
) -> None:
    """What holds for a group from now on."""
    await connection.execute(SQL.set_group, name, max_active, priority, enabled, at, by)


async def record_poll(database: Database, *values: Any) -> None:
    """(id, at, by, seconds, enqueued, dead-lettered, timed out, skipped as JSON, error)."""
    await database.all(SQL.record_poll, *values)


async def polls(database: Database, *, below: UUID | None, busy: bool, limit: int) -> list[Record]:
    """What the manager did, the newest first."""
    rows = await database.all(SQL.polls, below, busy, limit)
    return [{key: json.loads(value) if key == "skipped" else value for key, value in row.items()} for row in rows]


async def forget_polls(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of the polls before the cut-off; how many."""
    return len(await database.all(SQL.forget_polls, first_id_at(cutoff), limit))
