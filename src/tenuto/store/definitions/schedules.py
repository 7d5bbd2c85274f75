"""Rows of schedules, their versions and the occurrence ledger.

Lock order: schedules, then executions, then tasks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any
from uuid import UUID

from tenuto.errors import TenutoError
from tenuto.model.definitions.blocking_reasons import Obstacle
from tenuto.model.definitions.schedules import (
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    misfire_from_json,
    plan_from_json,
)
from tenuto.model.filter_keys import LEDGER_KEYS
from tenuto.model.filters import Filter
from tenuto.model.triggers import Trigger, describe_trigger, trigger_from_json
from tenuto.model.work.executions import ExecutionState
from tenuto.model.work.occurrences import Decision
from tenuto.postgres.bulk_copy import ExcludedVersions, split_ids_and_versions, to_columns
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.definitions.definition_rows import DefinitionTable, StoredDefinition
from tenuto.store.filter_sql import LEDGER, CappedCount, count_rows_of_each
from tenuto.store.reports import blocking_reasons
from tenuto.store.row_mapping import FromJson, PositionalMapper, RowMapper

SQL = load_statements(__file__)
EVERY_LEDGER_ENTRY = Filter(LEDGER_KEYS)


@dataclass(frozen=True, slots=True)
class Schedule(StoredDefinition[ScheduleDefinition]):
    """A stored schedule."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def plan(self) -> Plan:
        return self.definition.plan

    def next_after(self, instant: datetime) -> datetime | None:
        return self.definition.trigger.next_after(instant, str(self.id))


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule with its last execution, as in lists."""

    id: UUID
    name: str
    description: str
    enabled: bool
    trigger: Annotated[dict[str, Any], FromJson]
    """The trigger as plain data, which may be unreadable for this version."""
    overlap: OverlapPolicy
    misfire: Annotated[dict[str, Any], FromJson]
    version: int
    origin: str
    created_at: datetime
    updated_at: datetime
    last_run_at: datetime | None
    next_run_at: datetime | None
    planned: bool
    """Whether the next run was computed."""
    last_execution_id: UUID | None
    last_state: ExecutionState | None
    last_started_at: datetime | None
    last_ended_at: datetime | None
    last_group: int | None
    last_group_count: int | None
    last_failed_step_count: int | None
    last_error: str | None
    group_count: int
    step_count: int
    when: str = ""
    """The trigger in words."""
    obstacles: Sequence[Obstacle] = ()
    """Why it does not run on its own although it is enabled."""


_SCHEDULES = RowMapper(ScheduleRecord, SQL.list_schedules, computed=("when", "obstacles"))


# --- definitions ----------------------------------------------------------------------------------------------------


def _parse_definition(row: Row) -> ScheduleDefinition:
    return ScheduleDefinition(
        row["name"],
        trigger_from_json(row["trigger"]),
        plan_from_json(row["plan"]),
        row["description"],
        OverlapPolicy(row["overlap"]),
        misfire_from_json(row["misfire"]),
    )


def _columns(new: ScheduleDefinition) -> tuple[Any, ...]:
    misfire = json.dumps(new.misfire.to_fields())
    return new.name, new.description, new.trigger.to_json(), new.plan.to_json(), new.overlap, misfire


TABLE = DefinitionTable[ScheduleDefinition, Schedule](
    Schedule,
    SQL,
    _parse_definition,
    _columns,
    definition_columns=("name", "description", "trigger", "plan", "overlap", "misfire"),
    further_statements=(SQL.lock_schedule_by_id,),
)
load_schedule, lock_schedule, load_schedules, lock_schedules = TABLE.load, TABLE.lock, TABLE.load_many, TABLE.lock_many
list_others_from_files, list_versions = TABLE.list_others_from_files, TABLE.list_versions


async def lock_schedule_by_id(connection: Connection, id: UUID) -> Schedule | None:
    """Return and lock the schedule with this id."""
    row = await connection.fetchrow(SQL.lock_schedule_by_id, id)
    return None if row is None else TABLE.to_stored(row)


async def list_schedules(
    database: Database, *, after: str | None, enabled: bool | None, search: str | None, limit: int
) -> list[ScheduleRecord]:
    """Return schedules by name, each with its last execution."""
    rows = await database.fetch_all(SQL.list_schedules, after, enabled, search, limit)
    found = await blocking_reasons.find_obstacles(database, "schedule", [row["name"] for row in rows])
    return [
        _SCHEDULES.one(row, when=_describe_stored_trigger(row["trigger"]), obstacles=found.get(row["name"], ()))
        for row in rows
    ]


@lru_cache(maxsize=10_000)
def _describe_stored_trigger(fields_json: str) -> str:
    """Describe a trigger. To parse those of a page takes longer than to read it."""
    return describe_trigger(json.loads(fields_json))


async def lock_cycle_check(connection: Connection) -> None:
    """Serialise changes of schedules that run other schedules: two at once could close an undetected cycle."""
    await connection.execute(SQL.lock_cycle_check)


async def load_plans_with_schedule_steps(connection: Connection) -> dict[str, Plan]:
    """Return the plans that run other schedules, by name, except unreadable ones, which cannot run."""
    plans: dict[str, Plan] = {}
    for row in await connection.fetch(SQL.list_plans_with_schedule_steps):
        with contextlib.suppress(TenutoError, ValueError, KeyError, TypeError):
            plans[row["name"]] = plan_from_json(row["plan"])
    return plans


async def find_existing_names(connection: Connection, names: Collection[str]) -> set[str]:
    """Return which of these names are names of schedules."""
    return {row["name"] for row in await connection.fetch(SQL.find_existing_names, list(names))}


async def list_schedules_using(connection: Connection, name: str) -> list[str]:
    """Return the schedules that run this one as a step."""
    return [row["name"] for row in await connection.fetch(SQL.list_schedules_using, name)]


async def list_schedules_running_manifest(connection: Connection, external_id: str) -> list[str]:
    """Return the schedules that run this manifest as a step."""
    return [row["name"] for row in await connection.fetch(SQL.list_schedules_running_manifest, external_id)]


async def load_disabled_since(connection: Connection, id: UUID) -> tuple[datetime | None, str | None]:
    """Return since when a schedule is disabled with its present trigger, and the actor that disabled it."""
    row = await connection.fetchrow(SQL.load_disabled_since, id)
    assert row is not None
    return row["since"], row["by"]


async def find_last_id_by_name(database: Database, name: str) -> UUID | None:
    """Return the schedule that has this name, or had it last."""
    id: UUID | None = await database.fetch_value(SQL.find_last_id_by_name, name)
    return id


# --- firing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A due schedule with unparsed parts, so that an unreadable one affects only itself."""

    id: UUID
    name: str
    trigger_json: str
    plan_json: str
    overlap: str
    misfire_json: str
    version: int
    next_run_at: datetime

    def parse_trigger(self) -> Trigger:
        return trigger_from_json(self.trigger_json)

    def parse_plan(self) -> Plan:
        return plan_from_json(self.plan_json)


_DUE_SCHEDULES = PositionalMapper(DueSchedule, SQL.lock_due_schedules)


async def lock_due_schedules(
    connection: Connection, now: datetime, limit: int, excluded: ExcludedVersions = ()
) -> list[DueSchedule]:
    """Return and lock due schedules that no other scheduler has locked."""
    rows = await connection.fetch(SQL.lock_due_schedules, now, limit, *split_ids_and_versions(excluded))
    return _DUE_SCHEDULES.all(rows)


@dataclass(frozen=True, slots=True)
class RunBlockers:
    """Conditions that may block a new run of a schedule."""

    active_execution_id: UUID | None
    has_queued_run: bool
    decided_until: datetime | None = None
    """Last due instant with a ledger entry."""


async def load_run_blockers(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, RunBlockers]:
    """Return the run blockers of schedules that the caller has locked."""
    rows = await connection.fetch(SQL.load_run_blockers, ids)
    return {row["id"]: RunBlockers(row["active"], row["queued"], row["decided_until"]) for row in rows}


async def list_active_executions(
    connection: Connection, schedule_id: UUID, *, with_backfills: bool = False
) -> list[UUID]:
    """Return the open executions of a schedule. The overlap policy does not apply to those of backfills."""
    return [row["id"] for row in await connection.fetch(SQL.list_active_executions, schedule_id, with_backfills)]


async def list_instants_with_run(
    connection: Connection, schedule_id: UUID, instants: Sequence[datetime]
) -> set[datetime]:
    """Return those of the due instants that fired, are queued or were started by a backfill."""
    rows = await connection.fetch(SQL.list_instants_with_run, schedule_id, list(instants))
    return {row["due_at"] for row in rows}


async def record_firings(connection: Connection, rows: Sequence[tuple[UUID, datetime | None, datetime | None]]) -> None:
    """Store (schedule, last run or None if unchanged, next run)."""
    if rows:
        await connection.execute(SQL.record_firings, *to_columns(rows))


async def record_manual_run(connection: Connection, schedule_id: UUID, at: datetime) -> None:
    await connection.execute(SQL.record_manual_run, schedule_id, at)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry of the occurrence ledger."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    due_at: datetime
    until: datetime | None
    origin: str
    decision: Decision
    turn: str | None
    reason: str | None
    execution_id: UUID | None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One decided entry of the occurrence ledger."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    due_at: datetime
    last_due_at: datetime | None
    """The last due instant of an entry that stands for several."""
    origin: str
    decision: Decision
    turn: str | None
    reason: str | None
    execution_id: UUID | None
    decided_at: datetime
    decided_by: str | None


@dataclass(frozen=True, slots=True)
class EarlierDecision:
    """The decision on a request that was made before."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    decision: Decision
    reason: str | None
    execution_id: UUID | None


_LEDGER = RowMapper(LedgerRecord, SQL.list_ledger_entries)
_EARLIER_DECISIONS = RowMapper(EarlierDecision, SQL.load_manual_run_state, unmapped=("active", "queued"))


async def write_ledger_entries(
    connection: Connection, entries: Sequence[LedgerEntry], now: datetime, by: str, manually_run_id: UUID | None = None
) -> None:
    """Write one entry for each due instant; a second decision for an instant fails.

    ``manually_run_id`` is a schedule whose last run is updated.
    """
    if not entries:
        return
    rows = [
        (
            e.id, e.schedule_id, e.schedule_name, e.due_at, e.until, e.origin, e.decision, e.turn, e.reason,
            e.execution_id, e.request,
        )
        for e in entries
    ]  # fmt: skip
    *columns, requests = to_columns(rows)
    await connection.execute(SQL.write_ledger_entries, *columns, now, by, requests, manually_run_id)
    if queued := [entry.schedule_id for entry in entries if entry.decision is Decision.QUEUED]:
        await connection.execute(SQL.mark_active_executions_awaited, queued)


async def load_manual_run_state(
    connection: Connection, id: UUID | None, request: UUID
) -> tuple[RunBlockers, EarlierDecision | None]:
    """Return the run blockers of a locked schedule and the earlier decision on this request, which may be repeated
    after a lost reply."""
    row = await connection.fetchrow(SQL.load_manual_run_state, id, request)
    assert row is not None
    return RunBlockers(row["active"], row["queued"]), None if row["id"] is None else _EARLIER_DECISIONS.one(row)


async def lock_unplanned_schedules(
    connection: Connection, limit: int, excluded: ExcludedVersions = ()
) -> list[tuple[UUID, int, str, str]]:
    """Return and lock (id, version, name, trigger as JSON) of schedules without a next run."""
    rows = await connection.fetch(SQL.lock_unplanned_schedules, limit, *split_ids_and_versions(excluded))
    return [(row["id"], row["version"], row["name"], row["trigger"]) for row in rows]


async def load_next_due_at(database: Database, excluded: ExcludedVersions = ()) -> datetime | None:
    """Return when the next schedule is due."""
    found: datetime | None = await database.fetch_value(SQL.load_next_due_at, *split_ids_and_versions(excluded))
    return found


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits for the end of the previous one."""

    id: UUID
    due_at: datetime
    request: Annotated[dict[str, Any] | None, FromJson]


_QUEUED_RUNS = RowMapper(QueuedRun, SQL.load_first_queued_run)


async def find_schedules_with_startable_run(
    database: Database, limit: int, excluded: ExcludedVersions = ()
) -> list[tuple[UUID, int, str]]:
    """Return (id, version, name) of schedules with a queued run and no active execution."""
    rows = await database.fetch_all(SQL.find_schedules_with_startable_run, limit, *split_ids_and_versions(excluded))
    return [(row["schedule_id"], row["version"], row["schedule_name"]) for row in rows]


async def load_first_queued_run(connection: Connection, schedule_id: UUID) -> QueuedRun | None:
    """Return the longest queued run of a schedule."""
    return _QUEUED_RUNS.optional(await connection.fetchrow(SQL.load_first_queued_run, schedule_id))


async def mark_queued_run_started(
    connection: Connection, queued_id: UUID, execution_id: UUID, now: datetime, by: str
) -> None:
    await connection.execute(SQL.mark_queued_run_started, queued_id, execution_id, now, by)


async def drop_queued_runs(
    connection: Connection, schedule_id: UUID, reason: str, now: datetime, by: str, *, including_manual: bool
) -> int:
    """Drop the queued runs of a schedule; return their number."""
    return len(await connection.fetch(SQL.drop_queued_runs, schedule_id, reason, now, by, including_manual))


async def drop_unreadable_run(
    connection: Connection, queued_id: UUID, reason: str, now: datetime, by: str, *, turn_before: datetime
) -> bool:
    """Drop a queued run whose request cannot be read; return False if its turn did not come before
    ``turn_before``, and the run stays queued."""
    return await connection.fetchrow(SQL.drop_unreadable_run, queued_id, reason, now, by, turn_before) is not None


async def list_ledger_entries(
    database: Database,
    *,
    schedule_id: UUID | None,
    before: datetime | None,
    decision: str | None,
    limit: int,
    below: UUID | None = None,
    filter: Filter = EVERY_LEDGER_ENTRY,
) -> list[LedgerRecord]:
    """Return ledger entries, newest first; entries at ``before`` itself only below an id."""
    values = (schedule_id, before, decision, limit, below)
    return _LEDGER.all(await database.fetch_all(*LEDGER.add_filter(SQL.list_ledger_entries, filter, *values)))


async def count_ledger_entries_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count the ledger entries that meet each of the filters."""
    return await count_rows_of_each(database, LEDGER, SQL.count_ledger_entries, filters)


async def delete_old_ledger_entries(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of the oldest ledger entries; return their number."""
    return len(await database.write_all(SQL.delete_old_ledger_entries, cutoff, limit))


async def load_typical_durations(database: Database, since: datetime) -> dict[str, float]:
    """Return the typical duration of recent runs of each schedule, in seconds."""
    rows = await database.fetch_all(SQL.load_typical_durations, since)
    return {row["schedule_name"]: float(row["seconds"]) for row in rows}
