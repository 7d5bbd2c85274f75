"""Rows of manifests, their versions, groups and runs, and the polls of the manifest manager.

Lock order: batches, then manifests, then tasks, then dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.ids import smallest_id_at
from tenuto.model.definitions.blocking_reasons import Obstacle
from tenuto.model.definitions.manifests import Manifest, ScheduleType, manifest_from_fields
from tenuto.model.work.tasks import NewTask, OutcomeStatus, Task, TaskState
from tenuto.postgres.bulk_copy import ExcludedVersions, split_ids_and_versions, to_columns
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.definitions.definition_rows import DefinitionTable, StoredDefinition, to_json_text
from tenuto.store.reports import blocking_reasons
from tenuto.store.row_mapping import FromColumn, FromJson, PositionalMapper, RowMapper

SQL = load_statements(__file__)

ALL_MANIFESTS = "*"
"""Name of the group that contains all manifests."""


@dataclass(frozen=True, slots=True)
class StoredManifest(StoredDefinition[Manifest]):
    """A stored manifest."""

    last_successful_run_at: datetime | None

    @property
    def manifest(self) -> Manifest:
        return self.definition

    @property
    def external_id(self) -> str:
        return self.definition.external_id


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A manifest in a list."""

    id: UUID
    external_id: str
    name: str
    enabled: bool
    definition: Annotated[dict[str, Any], FromJson]
    job: str
    schedule_type: ScheduleType
    depends_on: str | None
    group: str | None
    max_active: int | None
    version: int
    origin: str
    created_at: datetime
    updated_at: datetime
    last_successful_run_at: datetime | None
    last_run_at: datetime | None
    next_run_at: datetime | None
    open_task_count: int
    """The number of its open tasks, counted up to 10,001."""
    has_dead_letters: bool
    when: str = ""
    """The reason to run, in words."""
    obstacles: Sequence[Obstacle] = ()
    """Why it does not run on its own although it is enabled."""


_MANIFESTS = RowMapper(ManifestRecord, SQL.list_manifests, computed=("when", "obstacles"))


# --- definitions ----------------------------------------------------------------------------------------------------


def _parse_definition(row: Row) -> Manifest:
    return manifest_from_fields(json.loads(row["definition"]))


def _columns(new: Manifest) -> tuple[Any, ...]:
    return (
        new.external_id, new.name, to_json_text(new.to_fields()), new.job, new.schedule_type, new.depends_on, new.group,
        new.max_active,
    )  # fmt: skip


TABLE = DefinitionTable[Manifest, StoredManifest](
    StoredManifest, SQL, _parse_definition, _columns, definition_columns=("definition",)
)
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


def _describe_trigger(row: Row) -> str:
    """Describe the reason to run; return the definition as it is if this version cannot read it."""
    try:
        return _parse_definition(row).describe_trigger()
    except Invalid:
        return str(row["definition"])


async def list_manifests(
    database: Database, *, after: str | None, enabled: bool | None, group: str | None, search: str | None, limit: int
) -> list[ManifestRecord]:
    """Return manifests by external id, each with the number of its open tasks."""
    rows = await database.fetch_all(SQL.list_manifests, after, enabled, group, search, limit)
    found = await blocking_reasons.find_obstacles(database, "manifest", [row["external_id"] for row in rows])
    return [
        _MANIFESTS.one(row, when=_describe_trigger(row), obstacles=found.get(row["external_id"], ())) for row in rows
    ]


async def find_manifest(connection: Connection, external_id: str) -> StoredManifest | None:
    row = await connection.fetchrow(SQL.load_definition, external_id)
    return None if row is None else TABLE.to_stored(row)


async def find_similar_external_ids(connection: Connection, external_id: str) -> list[str]:
    """Return the external ids that are most similar to an unknown one, the most similar first."""
    known = [row["external_id"] for row in await connection.fetch(SQL.list_external_ids)]
    return get_close_matches(external_id, known, 3, cutoff=0.6)


async def load_dependencies(connection: Connection) -> dict[str, str | None]:
    """Return the dependency of each manifest."""
    return {row["external_id"]: row["depends_on"] for row in await connection.fetch(SQL.list_dependencies)}


async def list_dependents(connection: Connection | Database, external_id: str) -> list[str]:
    """Return the manifests that depend on one."""
    fetch = connection.fetch_all if isinstance(connection, Database) else connection.fetch
    return [row["external_id"] for row in await fetch(SQL.list_dependents, external_id)]


async def has_open_tasks(connection: Connection, id: UUID) -> bool:
    """Return whether a manifest has open tasks."""
    return bool(await connection.fetchval(SQL.has_open_tasks, id))


# --- runs -----------------------------------------------------------------------------------------------------------


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


_DUE_MANIFESTS = RowMapper(DueManifest, SQL.lock_due_manifests)


async def lock_due_manifests(
    connection: Connection, now: datetime, limit: int, excluded: ExcludedVersions = ()
) -> list[DueManifest]:
    """Return and lock due manifests that no other manifest manager has locked."""
    rows = await connection.fetch(SQL.lock_due_manifests, now, limit, *split_ids_and_versions(excluded))
    return _DUE_MANIFESTS.all(rows)


@dataclass(frozen=True, slots=True)
class RunBlockers:
    """Conditions that may block a new run of a manifest."""

    has_open_dead_letter: bool
    open_task_id: UUID | None


_RUN_BLOCKERS = RowMapper(RunBlockers, SQL.load_run_blockers, unmapped=("id",))
_TASKS = PositionalMapper(Task, SQL.find_overrun_runs)


async def load_run_blockers(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, RunBlockers]:
    """Return the run blockers of manifests that the caller has locked."""
    rows = await connection.fetch(SQL.load_run_blockers, ids)
    return {row["id"]: _RUN_BLOCKERS.one(row) for row in rows}


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
    return _TASKS.all(await database.fetch_all(SQL.find_overrun_runs, limit))


@dataclass(frozen=True, slots=True)
class OpenRunRecord:
    """An open run or item of a manifest."""

    id: UUID
    state: TaskState
    attempt: int
    failures: int
    losses: int
    policy: Annotated[dict[str, Any], FromJson]
    run_at: datetime
    claimed_at: datetime | None
    created_at: datetime
    batch_id: UUID | None
    item_key: str | None
    progress: Annotated[dict[str, Any] | None, FromJson]
    worker: str | None


@dataclass(frozen=True, slots=True)
class RunAttemptRecord:
    """An ended attempt at a run of a manifest."""

    id: UUID
    task_id: UUID
    attempt: int
    final: bool
    state: OutcomeStatus
    reason: str | None
    started_at: datetime | None
    ended_at: datetime
    error: Annotated[dict[str, Any] | None, FromJson]
    item_key: str | None


@dataclass(frozen=True, slots=True)
class ManifestOutcome:
    """An ended run in a strip of outcomes."""

    id: UUID
    """Its last attempt."""
    manifest_id: UUID
    state: str
    started_at: datetime | None
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class ManifestDetails:
    """A manifest with its runs, limits, dependents and dead letters."""

    manifest: StoredManifest
    open_counts: dict[str, int]
    """Number of open tasks by state."""
    open_runs: list[OpenRunRecord]
    """The first open runs: running ones first, then by due time."""
    last_attempts: list[RunAttemptRecord]
    """The last attempts, newest first, without batch items."""
    group: ManifestGroupRecord | None
    all_manifests: ManifestGroupRecord | None
    """The group of all manifests."""
    dependents: list[str]
    """External ids of the manifests that depend on it."""
    open_dead_letter_count: int
    obstacles: Sequence[Obstacle]
    """Why it does not run on its own although it is enabled."""


_OPEN_RUNS = RowMapper(OpenRunRecord, SQL.list_open_runs)
_OUTCOMES = RowMapper(ManifestOutcome, SQL.list_recent_outcomes)
_RUN_ATTEMPTS = RowMapper(RunAttemptRecord, SQL.list_last_attempts)


async def list_recent_outcomes(database: Database, manifest_ids: Collection[UUID], count: int) -> list[ManifestOutcome]:
    """Return the last ended runs of each manifest, oldest first."""
    return _OUTCOMES.all(await database.fetch_all(SQL.list_recent_outcomes, list(manifest_ids), count))


async def load_details(database: Database, manifest: StoredManifest, limit: int) -> ManifestDetails:
    """Return the open runs, last attempts, groups, dependents and dead letters of a manifest."""
    names = [ALL_MANIFESTS, *([] if manifest.manifest.group is None else [manifest.manifest.group])]
    groups = {group.name: group for group in await list_groups(database, names)}
    counts = await database.fetch_all(SQL.count_open_tasks, manifest.id)
    dependents = await database.fetch_all(SQL.list_dependents, manifest.external_id)
    return ManifestDetails(
        manifest,
        open_counts={row["state"]: row["number"] for row in counts},
        open_runs=_OPEN_RUNS.all(await database.fetch_all(SQL.list_open_runs, manifest.id, limit)),
        last_attempts=_RUN_ATTEMPTS.all(await database.fetch_all(SQL.list_last_attempts, manifest.id, limit)),
        group=None if manifest.manifest.group is None else groups.get(manifest.manifest.group),
        all_manifests=groups.get(ALL_MANIFESTS),
        dependents=[row["external_id"] for row in dependents],
        open_dead_letter_count=await database.fetch_value(SQL.count_open_dead_letters, manifest.id),
        obstacles=(await blocking_reasons.find_obstacles(database, "manifest", [manifest.external_id])).get(
            manifest.external_id, []
        ),
    )


async def notify_run_enqueued(connection: Connection, run: NewTask) -> None:
    """Notify workers of a new run."""
    await connection.execute(SQL.notify_run_enqueued, run.queue, -run.priority)


# --- groups and polls -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a manifest group; the defaults are those of a group without a row."""

    max_active: int | None = None
    priority: int = 0
    enabled: bool = True
    rate_limit: str | None = None


@dataclass(frozen=True, slots=True)
class ManifestGroupRecord:
    """A manifest group with the number of its manifests and active runs."""

    name: str
    max_active: int | None
    priority: int
    enabled: bool
    changed_at: datetime | None
    changed_by: str | None
    manifest_count: int
    active_count: int
    rate_limit: str | None


@dataclass(frozen=True, slots=True)
class SkippedManifests:
    """Manifests that a poll skipped for the same reason."""

    count: int
    external_ids: list[str]
    """The first of them."""


def _parse_skipped(text: str) -> dict[str, SkippedManifests]:
    return {reason: SkippedManifests(skipped["count"], skipped["some"]) for reason, skipped in json.loads(text).items()}


@dataclass(frozen=True, slots=True)
class PollRecord:
    """One poll of the manifest manager."""

    id: UUID
    at: datetime
    by: str
    duration_seconds: float
    enqueued_count: int
    dead_lettered_count: int
    timed_out_count: int
    skipped: Annotated[dict[str, SkippedManifests], FromColumn(_parse_skipped)]
    """Skipped manifests by reason."""
    error: str | None


_GROUP_SETTINGS = RowMapper(GroupSettings, SQL.load_group)
_GROUPS = RowMapper(ManifestGroupRecord, SQL.list_groups)
_POLLS = RowMapper(PollRecord, SQL.list_polls)


async def list_groups(
    database: Database, names: Sequence[str] | None = None, *, after: str | None = None, limit: int = 1000
) -> list[ManifestGroupRecord]:
    """Return manifest groups, or the named ones, with the number of active runs."""
    return _GROUPS.all(await database.fetch_all(SQL.list_groups, names, after, limit))


async def load_group(connection: Connection, name: str) -> GroupSettings | None:
    """Return the settings of a manifest group; None if it has the defaults."""
    return _GROUP_SETTINGS.optional(await connection.fetchrow(SQL.load_group, name))


async def save_group(connection: Connection, name: str, settings: GroupSettings, at: datetime, by: str) -> None:
    """Store the settings of a manifest group."""
    values = (settings.max_active, settings.priority, settings.enabled, at, by, settings.rate_limit)
    await connection.execute(SQL.save_group, name, *values)
    scope = "all manifests" if name == ALL_MANIFESTS else f"group {name}"
    await connection.execute(SQL.release_parked_runs, scope, settings.rate_limit)


async def record_poll(database: Database, *values: Any) -> None:
    """Store (id, at, by, seconds, enqueued, dead-lettered, timed out, skipped as JSON, error)."""
    await database.write_all(SQL.insert_poll, *values)


async def list_polls(database: Database, *, below: UUID | None, busy: bool, limit: int) -> list[PollRecord]:
    """Return polls of the manifest manager, newest first."""
    return _POLLS.all(await database.fetch_all(SQL.list_polls, below, busy, limit))


async def delete_old_polls(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of polls before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_polls, smallest_id_at(cutoff), limit))
