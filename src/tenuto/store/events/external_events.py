"""Events from outside and the waits of tasks for them.

An event is delivered once: to all waits for its name and key that are open when it is sent, or, if there are none, to
the first wait that begins before the event expires. Transactions that send or await the same name and key take an
advisory lock, so that an event and a wait that are stored at the same moment never miss each other.

A worker locks a wait before the task gives up its slot: see `lock_open_waits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.errors import StaleLease
from tenuto.model.access.actors import Actor
from tenuto.model.events.event_names import EventWait, WaitOutcome
from tenuto.model.work.tasks import Task, WaitKey
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromJson, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event from outside."""

    id: UUID
    name: str
    key: str
    """Correlation key; empty without one."""
    payload: Annotated[Any, FromJson]
    sent_at: datetime
    expires_at: datetime
    """Until then the event is kept for a wait, and a repeated request with its id is recognised."""
    delivered_at: datetime | None
    """When waits received it; None while it is kept."""
    delivery_count: int
    """Number of waits that received it."""
    sender_type: str
    sender_id: str | None
    sender_name: str


@dataclass(frozen=True, slots=True)
class SentEvent:
    """What the event feed says about an event."""

    id: UUID
    name: str
    key: str
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class WaitRecord:
    """The n-th wait of a step of a task, and what it received."""

    task_id: UUID
    step: str
    number: int
    name: str
    key: str
    registered_at: datetime
    expires_at: datetime
    outcome: WaitOutcome | None
    ended_at: datetime | None
    event_id: UUID | None
    payload: Annotated[Any, FromJson]


@dataclass(frozen=True, slots=True)
class OpenWaitRecord:
    """A task that waits for an event."""

    task_id: UUID
    step: str
    number: int
    name: str
    key: str
    registered_at: datetime
    expires_at: datetime
    job: str
    kind: str
    queue: str
    execution_id: UUID | None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be sent. The caller chooses the id."""

    id: UUID
    name: str
    key: str
    payload: str
    sent_at: datetime
    expires_at: datetime
    sender: Actor


_EVENTS = RowMapper(EventRecord, SQL.load_event, SQL.list_events)
_SENT = RowMapper(SentEvent, SQL.list_events_since)
_WAITS = RowMapper(WaitRecord, SQL.insert_wait, SQL.end_wait, SQL.list_waits_of_task)
_OPEN_WAITS = RowMapper(OpenWaitRecord, SQL.list_open_waits)


# --- events ---------------------------------------------------------------------------------------------------------


async def send_event(connection: Connection, event: NewEvent) -> bool:
    """Store an event and deliver it to the open waits; return False if its id is known."""
    await connection.execute(SQL.lock_events, event.name, event.key)  # guard: events.send_takes_turns
    sender = event.sender
    is_new = await connection.fetchval(
        SQL.insert_event, event.id, event.name, event.key, event.payload, event.sent_at, event.expires_at, sender.type,
        sender.id, sender.name,
    )  # fmt: skip
    if is_new is None:
        return False
    rows = await connection.fetch(
        SQL.deliver_to_open_waits, event.name, event.key, event.id, event.payload, event.sent_at
    )
    if rows:
        await connection.execute(SQL.mark_delivered, event.id, event.sent_at, len(rows))
        await wake_tasks(connection, {row["task_id"] for row in rows}, event.sent_at)
    return True


async def wake_tasks(connection: Connection, task_ids: set[UUID], now: datetime) -> None:
    """Queue tasks that gave up their slots and now have what they waited for."""
    await connection.fetch(SQL.wake_tasks, sorted(task_ids), now)


async def load_event(connection: Connection, id: UUID) -> EventRecord | None:
    """Return one event."""
    return _EVENTS.optional(await connection.fetchrow(SQL.load_event, id))


async def find_event(database: Database, id: UUID) -> EventRecord | None:
    """Return one event."""
    return _EVENTS.optional(await database.fetch_one(SQL.load_event, id))


async def list_events(
    database: Database,
    *,
    name: str | None,
    key: str | None,
    delivered: bool | None,
    below: tuple[datetime, UUID] | None,
    limit: int,
) -> list[EventRecord]:
    """Return events, newest first."""
    instant, id = below or (None, None)
    return _EVENTS.all(await database.fetch_all(SQL.list_events, name, key, delivered, instant, id, limit))


async def list_events_since(database: Database, since: datetime, limit: int) -> list[SentEvent]:
    """Return the events that were sent after an instant, the first one first."""
    return _SENT.all(await database.fetch_all(SQL.list_events_since, since, limit))


# --- waits ----------------------------------------------------------------------------------------------------------


async def register_wait(
    database: Database, task: Task, wait: EventWait, now: datetime, log: str | None = None
) -> WaitRecord:
    """Begin a wait, or return the stored one. An event that was kept ends it at once, as does its deadline.

    Raise StaleLease if the worker no longer holds the task.
    """

    async def register(connection: Connection) -> WaitRecord:
        await connection.execute(SQL.lock_events, wait.name, wait.key)  # guard: events.wait_takes_turns
        stored = await insert_wait(connection, task, wait, now, log)
        if stored.outcome is not None or (stored.name, stored.key) != (wait.name, wait.key):
            return stored
        end = (task.id, wait.step, wait.number)
        kept = await connection.fetchrow(SQL.take_kept_event, wait.name, wait.key, now, stored.expires_at)
        if kept is not None:
            ended = await connection.fetchrow(SQL.end_wait, *end, "received", now, kept["id"], kept["payload"])
        elif stored.expires_at <= now:
            ended = await connection.fetchrow(SQL.end_wait, *end, "timed_out", now, None, None)
        else:
            return stored
        return stored if ended is None else _WAITS.one(ended)

    return await database.transaction(register)


async def insert_wait(
    connection: Connection,
    task: Task,
    wait: EventWait,
    now: datetime,
    log: str | None = None,
    *,
    unless_cancelled: bool = False,
) -> WaitRecord:
    """Store a wait, unless it is stored, and return the stored one; raise StaleLease if the task is no longer held."""
    row = await connection.fetchrow(
        SQL.insert_wait, task.id, task.fence, task.worker_id, wait.step, wait.number, wait.name, wait.key, now,
        wait.expires_at, log, unless_cancelled,
    )  # fmt: skip
    if row is None:
        raise StaleLease(f"the worker no longer holds task {task.id}", code="task.lease.lost")
    return _WAITS.one(row)


async def end_waits_of_task(connection: Connection, task_id: UUID, name: str, now: datetime) -> None:
    """End the waits of a task for an event of Tenuto itself, and queue the task."""
    await connection.fetch(SQL.end_waits_of_task, task_id, name, now)
    await wake_tasks(connection, {task_id}, now)


async def end_child_waits(connection: Connection, ended: Sequence[tuple[UUID, str, str, str]], now: datetime) -> None:
    """End the waits of workflows for child tasks, given as (workflow, step, child, how it ended), and queue these."""
    rows = await connection.fetch(SQL.end_child_waits, *to_columns(ended), now)
    if rows:
        await wake_tasks(connection, {row["task_id"] for row in rows}, now)


async def list_open_children(database: Database, task_id: UUID) -> list[UUID]:
    """Return the open child tasks that a workflow waits for."""
    return [row["id"] for row in await database.fetch_all(SQL.list_open_children, task_id)]


async def list_abandoned_children(database: Database, limit: int) -> list[UUID]:
    """Return open child tasks whose workflow has ended."""
    return [row["id"] for row in await database.fetch_all(SQL.list_abandoned_children, limit)]


async def list_waits_of_task(database: Database, task_id: UUID) -> list[WaitRecord]:
    """Return the waits of a task, in the order in which they began."""
    return _WAITS.all(await database.fetch_all(SQL.list_waits_of_task, task_id))


async def load_deferred_log(database: Database, task: Task) -> str | None:
    """Return the log of this attempt before it last gave up its slot."""
    found: str | None = await database.fetch_value(SQL.load_deferred_log, task.id, task.attempt)
    return found


async def lock_open_waits(connection: Connection, waits: Iterable[tuple[UUID, WaitKey]]) -> set[tuple[UUID, WaitKey]]:
    """Return which of the waits are still open, and lock these against senders until the transaction ends.

    Senders lock waits before tasks, like the caller. Without the lock, a sender could end a wait between the decision
    to give up the slot and its commit, and would leave the task parked until its deadline.
    """
    keys = [(task, wait.step, wait.number) for task, wait in waits]
    rows = await connection.fetch(SQL.lock_open_waits, *to_columns(keys))
    return {(row["task_id"], WaitKey(row["step"], row["number"])) for row in rows}


async def copy_received_waits(connection: Connection, tasks: Sequence[tuple[UUID, UUID]]) -> None:
    """Copy the received events of old tasks to new ones, given as pairs of old and new id."""
    await connection.fetch(SQL.copy_received_waits, [old for old, _ in tasks], [new for _, new in tasks])


async def list_open_waits(
    database: Database,
    *,
    name: str | None,
    key: str | None,
    above: tuple[datetime, UUID] | None,
    limit: int,
) -> list[OpenWaitRecord]:
    """Return the tasks that wait for events, the first deadline first."""
    instant, task_id = above or (None, None)
    return _OPEN_WAITS.all(await database.fetch_all(SQL.list_open_waits, name, key, instant, task_id, limit))


# --- reports --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event that no task has received."""

    id: UUID
    name: str
    key: str
    sent_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class OverdueWait:
    """A wait whose deadline has passed, and whose task has not continued."""

    task_id: UUID
    name: str
    key: str
    expires_at: datetime
    state: str


@dataclass(frozen=True, slots=True)
class EventFigures:
    """Numbers of events, waits and approvals."""

    wait_count: int
    kept_count: int
    approval_count: int
    approval_age_seconds: float
    """Age of the oldest approval; 0 without one."""


_KEPT = RowMapper(KeptEvent, SQL.list_kept_events)
_OVERDUE = RowMapper(OverdueWait, SQL.list_overdue_waits)
_FIGURES = RowMapper(EventFigures, SQL.count_events)


async def list_kept_events(database: Database, before: datetime, now: datetime, limit: int) -> list[KeptEvent]:
    """Return events sent before an instant that no task has received, oldest first."""
    return _KEPT.all(await database.fetch_all(SQL.list_kept_events, before, now, limit))


async def list_overdue_waits(database: Database, before: datetime, limit: int) -> list[OverdueWait]:
    """Return waits whose deadline was before an instant, although their tasks have not continued."""
    return _OVERDUE.all(await database.fetch_all(SQL.list_overdue_waits, before, limit))


async def count_events(connection: Connection, limit: int) -> EventFigures:
    """Return the numbers of events, waits and approvals, each up to a limit."""
    row = await connection.fetchrow(SQL.count_events, limit)
    assert row is not None
    return _FIGURES.one(row)


# --- retention ------------------------------------------------------------------------------------------------------


async def delete_expired_events(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of events that expired before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_expired_events, cutoff, limit))


async def delete_orphaned_waits(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of waits whose task no longer exists; return their number."""
    return len(await database.write_all(SQL.delete_orphaned_waits, cutoff, limit))
