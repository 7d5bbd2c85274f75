"""Runs: begin with fence and take-over, fenced pages, end; watermarks, holds and pending deletions.

Order of locks: the run, then its system. A page locks its run first and may hold the system; a run that begins ends
those of earlier attempts of its task before it locks the system, and reads the runs of other tasks without a lock.
Abandoned runs are ended in a transaction that does not wait for a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import asyncpg

from tenuto.errors import StaleLease
from tenuto.extension import find_open_tasks
from tenuto.model.access.actors import Actor
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, PositionalMapper, RowMapper
from tenuto_identity.store.objects import ObjectCount, encode_json
from tenuto_identity.store.transaction_settings import fetch_all

SQL = load_statements(__file__)
NO_SYSTEM_NUMBER = 0
"""System number of deletions that were made when there were no systems any more; systems are numbered from 1."""


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    WARNING = "warning"
    ERROR = "error"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LockedSystem:
    """A system at the beginning of a run."""

    number: int
    name: str
    state: str
    held: Annotated[dict[str, Any] | None, FromJson]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended."""

    id: UUID
    task_id: UUID
    fence: int
    system_number: int
    system: str
    profile: str
    kind: str
    rules_version: int
    page: int
    cursor: int | None
    counts: Annotated[dict[str, Any], FromJson]


@dataclass(frozen=True, slots=True)
class AbandonedRun:
    """A run that has not ended although its task has."""

    id: UUID
    task_id: UUID
    system: str
    profile: str


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be begun."""

    id: UUID
    """Id of the activity."""
    task_id: UUID
    fence: int
    system_number: int
    profile: str
    kind: str
    rules_version: int
    started_at: datetime
    initiator: Actor
    cursor: int | None = None
    counts: Mapping[str, Any] | None = None
    previewed: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as interfaces show it."""

    id: UUID
    task_id: UUID
    system: str
    profile: str
    kind: str
    state: str
    problem: str | None
    page: int
    counts: Annotated[dict[str, Any], FromJson]
    rules_version: int
    started_at: datetime
    ended_at: datetime | None
    initiator_name: str


_SYSTEMS = RowMapper(LockedSystem, SQL.lock_system)
_OPEN_RUNS = RowMapper(OpenRun, SQL.find_open_run, SQL.end_runs_of_earlier_attempts)
_POSSIBLY_ABANDONED_RUNS = RowMapper(AbandonedRun, SQL.list_open_runs)
_DELETIONS = PositionalMapper(ObjectCount, SQL.count_pending_deletions, SQL.count_expected_deletions)
_RUNS = RowMapper(RunRecord, SQL.list_runs, SQL.load_run)


async def lock_system(connection: Connection, name: str) -> LockedSystem | None:
    """Lock a system in share mode; None if there is no system of this name."""
    return _SYSTEMS.optional(await connection.fetchrow(SQL.lock_system, name))


async def load_rules_version(connection: Connection) -> int:
    return int(await connection.fetchval(SQL.load_rules_version))


async def find_open_run(connection: Connection, system_number: int, kind: str) -> OpenRun | None:
    """Return the open run that excludes a new one."""
    return _OPEN_RUNS.optional(await connection.fetchrow(SQL.find_open_run, system_number, kind))


async def end_runs_of_earlier_attempts(
    connection: Connection, task_id: UUID, fence: int, now: datetime
) -> list[OpenRun]:
    """End the runs that earlier attempts of a task left open; return them as their last pages left them."""
    return _OPEN_RUNS.all(await connection.fetch(SQL.end_runs_of_earlier_attempts, task_id, fence, now))


async def find_abandoned_runs(connection: Connection) -> list[AbandonedRun]:
    """Return the open runs whose task has ended: no later attempt takes them over."""
    found = _POSSIBLY_ABANDONED_RUNS.all(await connection.fetch(SQL.list_open_runs))
    open_tasks = await find_open_tasks(connection, {each.task_id for each in found})
    # guard: identity.run_of_open_task
    return [each for each in found if each.task_id not in open_tasks]


async def end_abandoned_runs(connection: Connection, now: datetime) -> list[AbandonedRun]:
    """End the open runs whose task has ended, and return them: third loss of its worker, cancellation after a loss, or
    an end that could not be recorded."""
    found = await find_abandoned_runs(connection)
    if not found:
        return []
    rows = await connection.fetch(SQL.end_abandoned_runs, [each.id for each in found], now)
    ended = {row["id"] for row in rows}
    return [each for each in found if each.id in ended]


class OtherRunBegun(Exception):
    """A run that excludes this one began at the same time. The transaction is rolled back and repeated."""


BEGIN_CONFLICTS = (OtherRunBegun, asyncpg.DeadlockDetectedError)
"""After these errors the transaction that begins a run is repeated."""


async def insert_run(connection: Connection, run: NewRun) -> None:
    """Insert a run. The unique indexes refuse a second open run of a system, and a second open sync: `OtherRunBegun`.

    An attempt that was handed back and claimed again has the same id and a larger fence: it continues its run.
    """
    try:
        found = await connection.fetchval(SQL.insert_run, *_values_of(run))
    except asyncpg.UniqueViolationError as error:
        # Only what another transaction has committed since `find_open_run`: that one would have returned the run.
        raise OtherRunBegun(error.constraint_name) from error
    if found is None:
        raise _stale_lease(run.id)


async def insert_ended_run(connection: Connection, run: NewRun) -> None:
    """Insert a run that has completed in this transaction."""
    await connection.execute(SQL.insert_ended_run, *_values_of(run))


def _values_of(run: NewRun) -> tuple[Any, ...]:
    return (
        run.id,
        run.task_id,
        run.fence,
        run.system_number,
        run.profile,
        run.kind,
        run.rules_version,
        run.cursor,
        encode_json(run.counts or {}),
        run.started_at,
        run.initiator.type.value,
        run.initiator.id,
        run.initiator.name,
        run.previewed,
    )


async def begin_fenced_page(connection: Connection, run_id: UUID, fence: int, page: int) -> bool:
    """Begin the transaction of a page: raise `StaleLease` if another attempt owns the run.

    Returns False if the page was committed before, and only the acknowledgement was lost.
    """
    is_first = await connection.fetchval(SQL.begin_page, run_id, fence, page)
    if is_first is None:
        raise _stale_lease(run_id)
    return bool(is_first)


async def store_progress(connection: Connection, run_id: UUID, cursor: int | None, counts: Mapping[str, Any]) -> None:
    """Store counts, and the last object of a page, with the page."""
    await connection.execute(SQL.store_progress, run_id, cursor, encode_json(counts))


async def end_run(
    connection: Connection,
    run_id: UUID,
    fence: int,
    state: str,
    problem: str | None,
    counts: Mapping[str, Any],
    now: datetime,
) -> None:
    """End a run; raise `StaleLease` if another attempt owns it."""
    if await connection.fetchval(SQL.end_run, run_id, fence, state, problem, encode_json(counts), now) is None:
        raise _stale_lease(run_id)


def _stale_lease(run_id: UUID) -> StaleLease:
    return StaleLease(f"another worker has taken over the run {run_id}", code="identity.run.taken_over")


async def analyze_grown_tables(connection: Connection) -> list[str]:
    """Analyse tables that have grown tenfold: statements that read whole tables need their statistics."""
    rows = await connection.fetch(SQL.list_grown_tables)
    for row in rows:
        await connection.execute(f"ANALYZE {row['name']} ({row['columns']})")
    return [row["name"] for row in rows]


@dataclass(frozen=True, slots=True)
class EarlierDeletions:
    """Metaverse objects that other attempts of a sync have deleted, or postponed because of a guard."""

    deleted: tuple[Mapping[str, int], ...] = ()
    """By type, for each attempt."""
    postponed_count: int = 0

    def deleted_count(self, type_name: str) -> int:
        """Return how many metaverse objects of a type were deleted."""
        return sum(each.get(type_name, 0) for each in self.deleted)


async def load_earlier_deletions(connection: Connection, run: NewRun) -> EarlierDeletions:
    """Return what the earlier attempts of a run have deleted."""
    rows = await connection.fetch(SQL.load_earlier_deletions, run.system_number, run.task_id, run.id, run.profile)
    return EarlierDeletions(
        tuple(FromJson.decode(row["deleted"]) for row in rows), sum(row["postponed"] for row in rows)
    )


# --- watermarks, holds, pending deletions ---------------------------------------------------------------------------


async def load_watermark(connection: Connection, system_number: int, partition: str) -> Mapping[str, Any] | None:
    """Return the watermark of the last complete import."""
    found = await connection.fetchval(SQL.load_watermark, system_number, partition)
    return None if found is None else FromJson.decode(found)


async def store_watermark(
    connection: Connection,
    system_number: int,
    partition: str,
    value: Mapping[str, Any],
    taken_at: datetime,
    run_id: UUID,
) -> None:
    await connection.execute(SQL.store_watermark, system_number, partition, encode_json(value), taken_at, run_id)


async def hold_system(connection: Connection, system_number: int, held: Mapping[str, Any]) -> None:
    """Hold a system: syncs and exports refuse to begin until a user approves."""
    await connection.execute(SQL.hold_system, system_number, encode_json(held))


async def hold_system_if_free(connection: Connection, system_number: int, held: Mapping[str, Any]) -> None:
    """Hold a system unless an import holds it already."""
    await connection.execute(SQL.hold_system_if_free, system_number, encode_json(held))


async def clear_hold(connection: Connection, system_number: int) -> bool:
    """Release a system; return whether it was held."""
    return await connection.fetchval(SQL.clear_hold, system_number) is not None


async def clear_import_hold(connection: Connection, system_number: int) -> None:
    """Release a system from what an import held."""
    await connection.execute(SQL.clear_import_hold, system_number)


async def release_hold(connection: Connection, system_number: int, run_id: UUID) -> bool:
    """Release a system if this run holds it; return whether it does."""
    # guard: identity.approved_hold
    return await connection.fetchval(SQL.release_hold, system_number, str(run_id)) is not None


async def adopt_held_deletions(connection: Connection, system_number: int, run_id: UUID) -> None:
    """Copy what the held run of a system found deleted, and no user has approved, to another run."""
    await connection.execute(SQL.adopt_held_deletions, system_number, run_id)


async def drop_adopted_deletions(connection: Connection, system_number: int, run_id: UUID) -> None:
    """Forget the set of the held run, which another run has adopted."""
    await connection.execute(SQL.drop_adopted_deletions, system_number, run_id)


async def insert_pending_deletions(connection: Connection, run_id: UUID, object_ids: Sequence[int]) -> None:
    if object_ids:
        await connection.execute(SQL.replace_pending_deletions, run_id, object_ids)


async def list_pending_deletions(connection: Connection, run_id: UUID, after_id: int, limit: int) -> list[int]:
    """Return the next objects that a run found deleted, in order of id."""
    return [row["object_id"] for row in await connection.fetch(SQL.list_pending_deletions, run_id, after_id, limit)]


async def delete_pending_deletions(connection: Connection, run_id: UUID, object_ids: Sequence[int]) -> None:
    if object_ids:
        await connection.execute(SQL.delete_pending_deletions, run_id, object_ids)


async def count_pending_deletions(connection: Connection, run_id: UUID) -> list[ObjectCount]:
    """Count the objects that a run found deleted, by type and container."""
    return _DELETIONS.all(await connection.fetch(SQL.count_pending_deletions, run_id))


async def count_expected_deletions(connection: Connection, run_id: UUID) -> list[ObjectCount]:
    """Count those of them that an export has deleted."""
    return _DELETIONS.all(await connection.fetch(SQL.count_expected_deletions, run_id))


async def delete_pending_deletions_of_seen(
    connection: Connection, system_number: int, object_ids: Sequence[int]
) -> None:
    """Take objects that are back out of the sets that earlier runs of the system found deleted."""
    if object_ids:
        await connection.execute(SQL.delete_pending_deletions_of_seen, system_number, object_ids)


async def drop_pending_deletions_of_system(connection: Connection, system_number: int, except_run: UUID) -> None:
    """Forget what earlier runs of a system found deleted."""
    await connection.execute(SQL.drop_pending_deletions_of_system, system_number, except_run)


@dataclass(frozen=True, slots=True)
class PendingClearing:
    """How many objects of a type lost the value of an attribute."""

    type_number: int
    attribute: str
    object_count: int


_CLEARINGS = PositionalMapper(PendingClearing, SQL.count_pending_clearings)


async def has_pending_clearings(connection: Connection, system_number: int) -> bool:
    """Return whether earlier imports of a system left cleared values that nothing has let pass."""
    return bool(await connection.fetchval(SQL.has_pending_clearings, system_number))


async def insert_pending_clearings(
    connection: Connection, system_number: int, cleared: Sequence[tuple[int, str, int]]
) -> None:
    """Record values that were cleared, as (object, attribute, type number)."""
    if cleared:
        await connection.execute(SQL.insert_pending_clearings, system_number, *map(list, zip(*cleared, strict=True)))


async def delete_returned_clearings(connection: Connection, returned: Sequence[tuple[int, str]]) -> None:
    """Forget values that are back, as (object, attribute)."""
    if returned:
        await connection.execute(SQL.delete_returned_clearings, *map(list, zip(*returned, strict=True)))


async def delete_clearings_of_objects(connection: Connection, object_ids: Sequence[int]) -> None:
    """Forget the cleared values of objects whose values were restored."""
    if object_ids:
        await connection.execute(SQL.delete_clearings_of_objects, object_ids)


async def count_pending_clearings(connection: Connection, system_number: int) -> list[PendingClearing]:
    """Count cleared values by type and attribute."""
    return _CLEARINGS.all(await connection.fetch(SQL.count_pending_clearings, system_number))


async def drop_pending_clearings(connection: Connection, system_number: int) -> None:
    """Let the cleared values of a system pass."""
    await connection.execute(SQL.drop_pending_clearings, system_number)


# --- lists ----------------------------------------------------------------------------------------------------------


async def list_runs(
    database: Database, system: str | None, state: str | None, before: UUID | None, limit: int
) -> list[RunRecord]:
    """Return runs, the newest first."""
    return _RUNS.all(await fetch_all(database, SQL.list_runs, system, before, limit, state))


async def load_run(database: Database, run_id: UUID) -> RunRecord | None:
    rows = await fetch_all(database, SQL.load_run, run_id)
    return _RUNS.one(rows[0]) if rows else None


async def delete_ended_runs(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete up to so many ended runs from before the cut-off, and return their number."""
    return len(await fetch_all(database, SQL.delete_ended_runs, cutoff, limit))
