"""Schedules, their versions, and the ledger of their due instants.

Rows come and go as told; when a schedule is due, what that means, and who may change it was decided elsewhere. Lock
order: schedules, then executions, then tasks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.errors import TenutoError
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition, Overlap, Plan, misfire_from_json, plan_from_json
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers import Trigger, trigger_from_json
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import Excluded, columns_of, ids_and_versions
from tenuto.store.definition_rows import Kept, from_json

SQL = beside(__file__)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored."""

    id: UUID
    definition: Definition
    enabled: bool
    version: int
    origin: str
    declared: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    last_run_at: datetime | None
    next_run_at: datetime | None

    @property
    def key(self) -> str:
        return self.definition.name

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def plan(self) -> Plan:
        return self.definition.plan

    @property
    def trigger(self) -> Trigger:
        return self.definition.trigger

    @property
    def fields(self) -> dict[str, Any]:
        """The definition in force as plain data, to be compared with what was ``declared``."""
        return self.definition.to_fields()

    def next_after(self, instant: datetime) -> datetime | None:
        return self.definition.trigger.next_after(instant, str(self.id))


def _schedule(row: Row) -> Schedule:
    definition = Definition(
        row["name"],
        trigger_from_json(row["trigger"]),
        plan_from_json(row["plan"]),
        row["description"],
        Overlap(row["overlap"]),
        misfire_from_json(row["misfire"]),
    )
    return Schedule(
        row["id"],
        definition,
        row["enabled"],
        row["version"],
        row["origin"],
        from_json(row["declared"]),
        row["created_at"],
        row["updated_at"],
        row["last_run_at"],
        row["next_run_at"],
    )


# --- definitions ----------------------------------------------------------------------------------------------------


def _columns(new: Definition) -> tuple[Any, ...]:
    misfire = json.dumps(new.misfire.to_fields())
    return new.name, new.description, new.trigger.to_json(), new.plan.to_json(), new.overlap, misfire


ROWS = Kept[Definition, Schedule](SQL, _schedule, _columns)
named, locked, named_any, locked_any = ROWS.named, ROWS.locked, ROWS.named_any, ROWS.locked_any
other_from_files, versions = ROWS.other_from_files, ROWS.versions


async def locked_by_id(connection: Connection, id: UUID) -> Schedule | None:
    """The schedule with that id, held until the transaction ends."""
    row = await connection.fetchrow(SQL.lock_schedule, id)
    return None if row is None else _schedule(row)


async def list_schedules(
    database: Database, *, after: str | None, enabled: bool | None, search: str | None, limit: int
) -> list[Record]:
    """Schedules by name, each with its last execution."""
    rows = await database.all(SQL.list_schedules, after, enabled, search, limit)
    return [
        {key: json.loads(value) if key in ("trigger", "plan", "misfire") else value for key, value in row.items()}
        for row in rows
    ]


async def lock_circles(connection: Connection, definition: Definition) -> None:
    """Schedules that run others come to be and change one at a time: two at once could close a circle unseen."""
    if definition.plan.targets(SCHEDULE):
        await connection.execute(SQL.lock_circles)


async def plans_with_schedules(connection: Connection) -> dict[str, Plan]:
    """The plans that run other schedules, by name; not those that nobody can read, for they run nothing."""
    plans: dict[str, Plan] = {}
    for row in await connection.fetch(SQL.plans):
        with contextlib.suppress(TenutoError, ValueError, KeyError, TypeError):
            plans[row["name"]] = plan_from_json(row["plan"])
    return plans


async def known(connection: Connection, names: Collection[str]) -> set[str]:
    """Which of these names are names of schedules."""
    return {row["name"] for row in await connection.fetch(SQL.known, list(names))}


async def users_of(connection: Connection, name: str) -> list[str]:
    """The schedules of which this one is a step."""
    return [row["name"] for row in await connection.fetch(SQL.users_of, name)]


async def off_since(connection: Connection, id: UUID) -> tuple[datetime | None, str | None]:
    """Since when a schedule that is off has been so with its present trigger, and who switched it off."""
    row = await connection.fetchrow(SQL.off_since, id)
    assert row is not None
    return row["since"], row["by"]


async def last_named(database: Database, name: str) -> UUID | None:
    """The schedule that has this name, or had it last."""
    id: UUID | None = await database.value(SQL.last_named, name)
    return id


# --- firing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A due schedule as stored; its parts are read by who fires it, so that one nobody can read harms only itself."""

    id: UUID
    name: str
    trigger_json: str
    plan_json: str
    overlap: str
    misfire_json: str
    version: int
    next_run_at: datetime

    def trigger(self) -> Trigger:
        return trigger_from_json(self.trigger_json)

    def plan(self) -> Plan:
        return plan_from_json(self.plan_json)


async def due(connection: Connection, now: datetime, limit: int, excluded: Excluded = ()) -> list[DueSchedule]:
    """Schedules that are due and that nobody else is firing, held until the transaction ends."""
    rows = await connection.fetch(SQL.due, now, limit, *ids_and_versions(excluded))
    return [DueSchedule(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in the way of a new run."""

    active: UUID | None
    queued: bool
    decided_until: datetime | None = None
    """The last due instant on which the ledger has a word."""


async def standing(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """To be asked while the schedules are held."""
    rows = await connection.fetch(SQL.standing, ids)
    return {row["id"]: Standing(row["active"], row["queued"], row["decided_until"]) for row in rows}


async def active(connection: Connection, schedule_id: UUID) -> list[UUID]:
    """The executions of a schedule that have not ended."""
    return [row["id"] for row in await connection.fetch(SQL.active, schedule_id)]


async def fired(connection: Connection, rows: Sequence[tuple[UUID, datetime | None, datetime | None]]) -> None:
    """(schedule, last run or None if it stays, next run)."""
    if rows:
        await connection.execute(SQL.fired, *columns_of(rows))


async def ran(connection: Connection, schedule_id: UUID, at: datetime) -> None:
    await connection.execute(SQL.ran, schedule_id, at)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger."""

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


async def write_ledger(
    connection: Connection, entries: Sequence[Entry], now: datetime, by: str, ran: UUID | None = None
) -> None:
    """One row for each due instant; a second decision on the same instant fails. ``ran`` is a schedule run by hand."""
    if not entries:
        return
    rows = [
        (
            e.id, e.schedule_id, e.schedule_name, e.due_at, e.until, e.origin, e.decision, e.turn, e.reason,
            e.execution_id, e.request,
        )
        for e in entries
    ]  # fmt: skip
    *columns, requests = columns_of(rows)
    await connection.execute(SQL.write_ledger, *columns, now, by, requests, ran)
    if queued := [entry.schedule_id for entry in entries if entry.decision is Decision.QUEUED]:
        await connection.execute(SQL.queued_behind, queued)


async def before_a_run(connection: Connection, id: UUID | None, request: UUID) -> tuple[Standing, Row | None]:
    """To be asked while the schedule is held: what stands in the way of a run of it by hand, and what was decided on
    the request, which may be made for the second time because the first reply was lost."""
    row = await connection.fetchrow(SQL.before_a_run, id, request)
    assert row is not None
    return Standing(row["active"], row["queued"]), None if row["id"] is None else row


async def to_plan(connection: Connection, limit: int, excluded: Excluded = ()) -> list[tuple[UUID, int, str, str]]:
    """(id, version, name, trigger as JSON) of schedules whose next run nobody has worked out yet."""
    rows = await connection.fetch(SQL.to_plan, limit, *ids_and_versions(excluded))
    return [(row["id"], row["version"], row["name"], row["trigger"]) for row in rows]


async def next_due(database: Database, excluded: Excluded = ()) -> datetime | None:
    """When the next schedule is due."""
    found: datetime | None = await database.value(SQL.next_due, *ids_and_versions(excluded))
    return found


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that waits for its turn."""

    id: UUID
    due_at: datetime
    request: dict[str, Any] | None


async def whose_turn_it_is(database: Database, limit: int, excluded: Excluded = ()) -> list[tuple[UUID, int, str]]:
    """(id, version, name) of schedules with a queued run of which nothing is active any more."""
    rows = await database.all(SQL.queued, limit, *ids_and_versions(excluded))
    return [(row["schedule_id"], row["version"], row["schedule_name"]) for row in rows]


async def first_queued(connection: Connection, schedule_id: UUID) -> Queued | None:
    """The run of a schedule that has waited longest."""
    row = await connection.fetchrow(SQL.first_queued, schedule_id)
    return None if row is None else Queued(row["id"], row["due_at"], from_json(row["request"]))


async def take_turn(connection: Connection, queued_id: UUID, execution_id: UUID, now: datetime, by: str) -> None:
    await connection.execute(SQL.take_turn, queued_id, execution_id, now, by)


async def give_up_queued(
    connection: Connection, schedule_id: UUID, reason: str, now: datetime, by: str, *, manual_too: bool
) -> int:
    """What waited will not run; how many that were."""
    return len(await connection.fetch(SQL.give_up_queued, schedule_id, reason, now, by, manual_too))


async def give_up_unread(
    connection: Connection, queued_id: UUID, reason: str, now: datetime, by: str, *, since: datetime
) -> bool:
    """A request that cannot be read will not run; False if its turn came later than ``since``, and it waits on."""
    return await connection.fetchrow(SQL.give_up_unread, queued_id, reason, now, by, since) is not None


async def ledger(
    database: Database,
    *,
    schedule_id: UUID | None,
    before: datetime | None,
    decision: str | None,
    limit: int,
    below: UUID | None = None,
) -> list[Record]:
    """What became of due instants, the newest first; of those at ``before`` itself, the ones below an id."""
    return [dict(row) for row in await database.all(SQL.ledger, schedule_id, before, decision, limit, below)]


async def forget_ledger(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of the ledger's oldest rows; how many."""
    return len(await database.all(SQL.forget_ledger, cutoff, limit))


async def typical_durations(database: Database, since: datetime) -> dict[str, float]:
    """How many seconds a run of each schedule takes, going by the last ones."""
    rows = await database.all(SQL.typical_durations, since)
    return {row["schedule_name"]: float(row["seconds"]) for row in rows}
