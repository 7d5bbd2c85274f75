"""Rows of new tasks: every producer builds a `NewTask`. Its columns are listed once, in ``postgres/fragments.sql``; all
statements that create tasks, also those of executions, and COPY take them from there.

Concurrent callers share a statement and its commit. The caller generates the id, so that a repeated request creates one
task, even if the first reply was lost and the task has ended since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, StoreError, Unavailable
from tenuto.ids import new_ids
from tenuto.model.work.tasks import NewTask, TaskState
from tenuto.postgres.bulk_copy import array_literals, column_arrays, copy_tasks, to_columns
from tenuto.postgres.database import CombinedWrite, Connection, Database, Request, Result, Row, StatementTimeout
from tenuto.postgres.sql_loader import load_columns, load_statements
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry, duplicate_request_error, entry_row
from tenuto.store.service_notifications import notify_services
from tenuto.tracing import record_enqueue_span

SQL = load_statements(__file__)

_COLUMNS = load_columns("new_task")
_ATTRIBUTES = {
    "run_at": "due_at",
    "limit_key": "stored_limit_key",
    "limit_max": "stored_limit_max",
    "rate_limit": "stored_rate_limit",
    "initiator_type": "initiator.type",
    "initiator_id": "initiator.id",
    "initiator_name": "initiator.name",
}
"""The attributes of `NewTask` that do not have the name of their column."""
_ARRAY_INDEXES = [index for index, column in enumerate(_COLUMNS) if column.type.endswith("[]")]

task_row: Callable[[NewTask], tuple[Any, ...]] = attrgetter(
    *(_ATTRIBUTES.get(column.name, column.name) for column in _COLUMNS)
)
"""Return a task as the parameters ``{new_task.scalars}``."""


def task_columns(tasks: Sequence[NewTask]) -> list[list[Any] | None]:
    """Return tasks as the parameters ``{new_task.arrays}``; a column without values is sent as NULL."""
    columns = column_arrays(map(task_row, tasks))
    for index in _ARRAY_INDEXES:
        column = columns[index]
        if column is not None:
            columns[index] = array_literals(column)
    return columns


async def enqueue_or_find(database: Database, task: NewTask, *, may_exist: bool = False) -> UUID:
    """Create a task with a new id; return its id, or that of the open task with its unique key.

    ``may_exist``: the id may have been used before, and the task may even have ended. Such a task is written alone: it
    may have to wait for the transaction of another caller with this id, and a second statement of its transaction
    checks for an activity that was committed after the first took its snapshot.
    """
    created = bool(await enqueue_tasks(database, [task])) if may_exist else await enqueue_new(database, task)
    while not created:
        existing: UUID | None = await database.fetch_value(SQL.find_existing_task, task.id, task.unique_key)
        if existing is not None:
            return existing
        # guard: enqueue.freed_key
        created = bool(await enqueue_tasks(database, [task]))  # the unique key has become free meanwhile
    return task.id


async def enqueue_new(database: Database, task: NewTask) -> bool:
    """Create a task with a new id; return False if a unique key is in use, or if a reply was lost and the task exists.

    Concurrent calls share a statement and its commit. A task with a unique key is written alone: it may have to wait
    for the transaction of another caller.
    """
    record_span(task)
    # guard: enqueue.unique_key_is_written_alone
    shared = task.unique_key is None
    if not isinstance(database, AuditedDatabase):
        created = await _write(database, insert_tasks, task, len(task.input), shared=shared)
        _notify_if_needed(database, task)
        return created
    entry = database.unwritten_entry
    if entry is None:  # the operation has written its entry with an earlier change
        created = await _write(database, insert_tasks, task, len(task.input), shared=False)
    else:
        result = await _write(database.shared, insert_audited_tasks, (task, entry), len(task.input), shared=shared)
        if result is None:
            raise duplicate_request_error()
        created = result
    _notify_if_needed(database.shared, task)
    return created


def _notify_if_needed(database: Database, task: NewTask) -> None:
    """Notify the workers of a committed task, together with other callers, if its statement did not.

    The caller does not wait: the notification may have to wait for the commit of another process. It writes no rows, so
    that its own commit does not wait for the disk.
    """
    if task.needs_notification:  # guard: enqueue.notification_after_commit
        database.write_in_background(_send_notifications, _queue_notification(task))


async def _send_notifications(database: Database, notifications: Sequence[str]) -> list[None]:
    await notify_services(database, dict.fromkeys(notifications))
    return [None] * len(notifications)


async def _write(
    database: Database, write: CombinedWrite[Request, Result], request: Request, character_count: int, *, shared: bool
) -> Result:
    if shared:
        return await database.write_coalesced(write, request, character_count)
    (result,) = await write(database, [request])
    if isinstance(result, Exception):
        raise result
    return result


async def enqueue_tasks(database: Database, tasks: Sequence[NewTask]) -> set[UUID]:
    """Create tasks that may already exist or have ended, notify workers, and return the ids of the new ones.

    Can be repeated: an existing id or a unique key in use changes nothing.
    """

    async def insert(connection: Connection) -> set[UUID]:
        created = await enqueue_tasks_within(connection, tasks)
        if created:
            # guard: enqueue.ended_meanwhile
            created.difference_update(
                row["id"] for row in await connection.fetch(SQL.delete_reinserted_tasks, list(created))
            )
        return created

    return await database.transaction(insert)


async def enqueue_tasks_within(connection: Connection, tasks: Sequence[NewTask]) -> set[UUID]:
    """Create tasks in the transaction of the caller, notify workers, and return the ids of the new ones."""
    if not tasks:
        return set()
    for task in tasks:
        record_span(task)
    return {row["id"] for row in await connection.fetch(SQL.enqueue_tasks, False, *task_columns(tasks))}


async def insert_tasks(database: Database, tasks: Sequence[NewTask]) -> list[bool]:
    """Create tasks with new ids, and return for each whether it was created. Set which of them need a notification.

    Only after a lost reply may a task have ended already, so that activities must be checked as well.
    """
    try:
        if len(tasks) == 1:  # a simpler statement: measured in the benchmark enqueue, one by one
            # guard: enqueue.no_blind_retry
            rows = await database.write_once(SQL.enqueue_task, *task_row(tasks[0]))
        else:
            rows = await database.write_once(SQL.enqueue_tasks, True, *task_columns(tasks))
    except Unavailable as error:
        _raise_if_statement_timeout(error)
        created = await enqueue_tasks(database, tasks)
    else:
        created = {row["id"] for row in rows}
        for task in tasks:
            task.needs_notification = task.id in created and not rows[0]["notified"]
    return [task.id in created for task in tasks]


async def insert_audited_tasks(
    database: Database, requests: Sequence[tuple[NewTask, AuditEntry]]
) -> list[bool | Exception | None]:
    """Create tasks with their audit entries in one statement; return for each whether it was created, or None if its
    idempotency key was used for another request.

    After a lost reply they are created one by one, and each has its own result or error.
    """
    created: list[bool | Exception | None]
    try:
        created = [*await _insert_with_entries(database.write_once, requests, may_notify_later=True)]
    except Unavailable as error:
        _raise_if_statement_timeout(error)
        created = [await _insert_audited_unless_ended(database, request) for request in requests]
    for (_, entry), was_created in zip(requests, created, strict=True):
        entry.is_written = was_created is True
        if was_created is True and entry.context.idempotency_key is not None:
            entry.context.idempotency_key.is_stored = True
    return created


async def enqueue_audited_tasks_within(
    connection: Connection, requests: Sequence[tuple[NewTask, AuditEntry]]
) -> list[bool | None]:
    """Like `insert_audited_tasks` in the transaction of the caller, who then marks the entries as written."""
    for task, _ in requests:
        record_span(task)
    return await _insert_with_entries(connection.fetch, requests, may_notify_later=False)


async def find_existing_tasks(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Return those of the ids that are the ids of tasks, open or ended."""
    return {row["id"] for row in await connection.fetch(SQL.find_existing_tasks, list(ids))}


async def _insert_with_entries(
    write: Callable[..., Awaitable[list[Row]]],
    requests: Sequence[tuple[NewTask, AuditEntry]],
    *,
    may_notify_later: bool,
) -> list[bool | None]:
    entries = to_columns((*entry_row(entry), *_idempotency_key_values(entry)) for _, entry in requests)
    tasks = [task for task, _ in requests]
    rows = await write(SQL.enqueue_audited_tasks, may_notify_later, *entries, *task_columns(tasks))
    for task, row in zip(tasks, rows, strict=True):
        task.needs_notification = may_notify_later and row["created"] and not row["notified"]
    return [bool(row["created"]) if row["allowed"] else None for row in rows]


class _AlreadyEnded(Exception):
    """A task that was just re-created had already ended; the transaction must be rolled back."""


async def _insert_audited_unless_ended(
    database: Database, request: tuple[NewTask, AuditEntry]
) -> bool | Exception | None:
    """Create a task that may exist; return an error, so that others are created nevertheless.

    A transaction that is just ending it has committed by the time the id can be inserted again, so its activity is
    visible to a second statement: then the creation is rolled back.
    """

    async def insert(connection: Connection) -> bool | None:
        (created,) = await _insert_with_entries(connection.fetch, [request], may_notify_later=False)
        if await connection.fetchval(SQL.has_first_activity, request[0].id):  # guard: one_shots.ended_meanwhile
            raise _AlreadyEnded
        return created

    try:
        return await database.transaction(insert)
    except _AlreadyEnded:
        return False
    except (StoreError, Invalid) as error:
        return error


def _raise_if_statement_timeout(error: Unavailable) -> None:
    """Raise a statement timeout, which would occur again; other errors are worth a retry."""
    if isinstance(error, StatementTimeout):
        raise error


def _idempotency_key_values(entry: AuditEntry) -> tuple[Any, ...]:
    key = entry.context.idempotency_key
    return (None, None, None, None) if key is None else (key.actor, key.key, key.fingerprint, key.subject)


async def enqueue_bulk(
    database: Database, template: NewTask, inputs: Sequence[str], on_sent: Callable[[], object] = lambda: None
) -> int:
    """Create tasks that differ only in their input, by COPY; return their number.

    Columns with default values are not sent, and the database sets the creation time; the order of claims follows the
    caller's clock, as for single tasks. Nothing can conflict: the ids are new and there is no unique key. ``on_sent``
    is called as soon as all data is sent.
    """
    assert template.unique_key is None
    ids = new_ids(len(inputs))

    async def load(connection: Connection) -> None:
        await copy_tasks_like(connection, template, ids, inputs, on_sent)

    try:
        await database.copy(load)
    except Unavailable:  # the reply may be lost, and the tasks may even have ended
        await enqueue_tasks(
            database, [replace(template, id=id, input=text) for id, text in zip(ids, inputs, strict=True)]
        )
    await notify_services(database, [_queue_notification(template)])
    return len(ids)


async def copy_tasks_like(
    connection: Connection,
    template: NewTask,
    ids: Sequence[UUID],
    inputs: Sequence[str],
    on_sent: Callable[[], object],
) -> None:
    """Create tasks that differ only in id and input, and cannot conflict, by COPY."""
    record_span(template)
    shared = dict(zip((column.name for column in _COLUMNS), task_row(template), strict=True))
    for column in ("id", "input", "created_at"):
        del shared[column]
    await copy_tasks(connection, shared, ids, inputs, on_sent)


def _queue_notification(task: NewTask) -> str:
    """Return the notification about a new task. The statements that create tasks build the same text in SQL."""
    kind = "limited" if task.stored_limit_key is not None and task.state is TaskState.QUEUED else task.state
    return f"{kind} {task.queue} {-task.priority}"


def record_span(task: NewTask) -> None:
    """Record the span of a new task once, in the context of its caller: shared statements run in that of another."""
    if task.traceparent is None:
        task.join_trace(record_enqueue_span(task.name))
