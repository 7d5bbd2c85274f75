"""Write settlements to the tables of tasks and activities: tasks end, are retried or deferred.

Every statement is fenced by task id, fence and worker. The functions return the ids of the tasks that the worker still
held. Nothing is decided here; see `lifecycle.completion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import OutcomeStatus, Settlement
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database, Row
from tenuto.store.work.tasks import SQL


async def end_tasks_directly(database: Database, settlements: Sequence[Settlement]) -> set[UUID]:
    """End tasks without a transaction, in one statement and one round trip."""
    values = (*outcome_columns(settlements), None, _successors(settlements))
    return _ended_tasks(settlements, await database.write_one(SQL.finish_tasks, *values))


async def end_tasks(
    connection: Connection, settlements: Sequence[Settlement], executions_to_lock: Sequence[UUID] | None = None
) -> set[UUID]:
    """End tasks within a transaction, after locking the given executions."""
    if not settlements:
        return set()
    values = (*outcome_columns(settlements), executions_to_lock, _successors(settlements))
    return _ended_tasks(settlements, await connection.fetchrow(SQL.finish_tasks, *values))


async def retry_tasks(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    """Record the attempts and keep the tasks for their next attempt."""
    retries = [settlement.retry for settlement in settlements if settlement.retry is not None]
    values = to_columns(
        (retry.run_at, retry.activity_id, retry.failures, retry.losses, retry.is_last_chance) for retry in retries
    )
    rows = await connection.fetch(SQL.retry_tasks, *outcome_columns(settlements), *values)
    return {row["task_id"] for row in rows}


async def defer_tasks(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    """Release the slots of deferred tasks until their time comes or the execution that they wait for ends."""
    values = [
        (
            s.task.id,
            s.task.fence,
            s.outcome.deferral.resume_at,
            s.outcome.deferral.execution_id,
            s.outcome.progress,
            s.outcome.started_at,
        )
        for s in settlements
        if s.outcome.deferral is not None
    ]
    rows = await connection.fetch(SQL.defer_tasks, settlements[0].task.worker_id, *to_columns(values))
    return {row["id"] for row in rows}


async def pass_on_limit_slots(connection: Connection, settlements: Sequence[Settlement]) -> None:
    """Give the limit slots of tasks that are about to be retried or deferred to their successors."""
    values = [(s.task.id, s.task.fence, s.successor) for s in settlements if s.successor is not None]
    if values:
        rows = await connection.fetch(SQL.pass_on_limit_slots, settlements[0].task.worker_id, *to_columns(values))
        _clear_other_successors(settlements, [row["id"] for row in rows])


async def cancellation_requests(connection: Connection, settlements: Sequence[Settlement]) -> dict[UUID, Actor]:
    """Return the actors who requested cancellation, by task id, for tasks that the worker still holds."""
    ids = [settlement.task.id for settlement in settlements]
    rows = await connection.fetch(SQL.lock_cancel_requests, settlements[0].task.worker_id, ids)
    return {row["id"]: Actor(row["cancel_type"], row["cancel_id"], row["cancel_name"]) for row in rows}


def outcome_columns(settlements: Sequence[Settlement]) -> list[Any]:
    """Return the worker that held the tasks, which must be the same for all, and the outcomes column by column."""
    worker_id = settlements[0].task.worker_id
    assert all(settlement.task.worker_id == worker_id for settlement in settlements)
    outcomes = [settlement.outcome for settlement in settlements]
    # Measured (benchmark drain): most attempts just complete; a column of NULLs is sent as one NULL, integers as text.
    return [
        worker_id,
        [settlement.task.id for settlement in settlements],
        _integer_array([settlement.task.fence for settlement in settlements]),
        _column_or_null(
            [None if outcome.status is OutcomeStatus.COMPLETED else outcome.status for outcome in outcomes]
        ),
        _microseconds_array([outcome.ended_at for outcome in outcomes]),
        _column_or_null([outcome.reason for outcome in outcomes]),
        _microseconds_array([outcome.started_at for outcome in outcomes]),
        _column_or_null([outcome.output for outcome in outcomes]),
        _column_or_null([outcome.error for outcome in outcomes]),
        _column_or_null([outcome.log for outcome in outcomes]),
        _column_or_null([outcome.progress for outcome in outcomes]),
    ]


def _ended_tasks(settlements: Sequence[Settlement], row: Row | None) -> set[UUID]:
    assert row is not None
    if row["started_successors"] is not None:
        _clear_other_successors(settlements, row["started_successors"])
    only_these = row["only_these"]
    return {settlement.task.id for settlement in settlements} if only_these is None else set(only_these)


def _successors(settlements: Sequence[Settlement]) -> list[UUID | None] | None:
    return _column_or_null([settlement.successor for settlement in settlements])


def _clear_other_successors(settlements: Sequence[Settlement], started: Iterable[UUID]) -> None:
    """Forget the successors that did not get a limit slot."""
    ids = set(started)
    for settlement in settlements:
        if settlement.successor not in ids:
            settlement.successor = None


def _microseconds_array(instants: Iterable[datetime | None]) -> str:
    return _integer_array(["NULL" if each is None else round(each.timestamp() * 1_000_000) for each in instants])


def _integer_array(values: Iterable[int | str]) -> str:
    """Return an array literal of PostgreSQL."""
    return "{" + ",".join(map(str, values)) + "}"


def _column_or_null(values: list[Any]) -> list[Any] | None:
    return None if values.count(None) == len(values) else values
