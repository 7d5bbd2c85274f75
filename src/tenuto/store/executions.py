"""Executions: made with all their tasks, moved on under their lock, cancelled, paused, read.

No decision is made here: `model.executions.advance` says what the end of a group means, and `model.occurrences` whether
a run may begin. Two statements, `end_group` and `begin_at_once`, do the whole of it where there is nothing to decide,
and nothing where there is. Lock order: schedules, executions by id, then tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.ids import fresh_ids
from tenuto.model.actors import Actor
from tenuto.model.executions import Advance, Complete, Fail, FailedStep, GoOn, failure_words
from tenuto.model.executions import advance as decide
from tenuto.model.schedules import Plan, plan_from_json
from tenuto.model.tasks import Settlement, Task, not_run
from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import beside
from tenuto.store.bulk_copy import columns_of
from tenuto.tracing import asked, carrying

SQL = beside(__file__)

MAX_SHOWN = 20_000

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NewExecution:
    """A run that is to begin."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    version: int
    origin: str
    alone: bool
    plan: Plan
    due_at: datetime
    started_at: datetime
    initiator: Actor
    first_group: int = 0
    parent_task_id: UUID | None = None
    retry_of: UUID | None = None


# --- beginning ------------------------------------------------------------------------------------------------------


async def begin(connection: Connection, new: Sequence[NewExecution]) -> None:
    """Create executions with all their tasks: the first group free to be taken, the others waiting for their turn."""
    if not new:
        return
    rows = [
        (
            each.id, each.schedule_id, each.schedule_name, each.version, each.origin, each.alone, each.plan.to_json(),
            each.first_group, len(each.plan.groups), each.plan.total_steps, each.due_at, each.started_at,
            each.initiator.type, each.initiator.id, each.initiator.name, each.parent_task_id, each.retry_of,
        )
        for each in new
    ]  # fmt: skip
    steps = [row for each in new for row in _step_rows(each)]
    await connection.execute(SQL.begin, *columns_of(rows), *columns_of(steps))


async def begin_at_once(database: Database, new: NewExecution) -> bool:
    """A run by hand of a schedule as it was last seen, in one statement, with its row in the ledger; False if the
    schedule is another by now, or something stands in the way. Sent once."""
    return bool(await database.once(SQL.begin_at_once, *_at_once(new)))


def _at_once(new: NewExecution) -> Iterable[Any]:
    actor = new.initiator
    ids, _, queues, ranks, kinds, names, inputs, policies, _, keys, most, *_, groups, numbers = columns_of(
        list(_step_rows(new))
    )
    return (
        new.id, new.schedule_id, new.schedule_name, new.version, new.alone, new.plan.to_json(),
        len(new.plan.groups), new.plan.total_steps, new.started_at, actor.type, actor.id, actor.name, ids, queues,
        ranks, kinds, names, inputs, policies, keys, most, groups, numbers,
    )  # fmt: skip


def _step_rows(execution: NewExecution) -> Iterable[tuple[Any, ...]]:
    actor, ids = execution.initiator, iter(fresh_ids(execution.plan.total_steps))
    trace = asked(execution.schedule_name)
    for group, number, step in execution.plan.numbered():
        if group < execution.first_group:
            continue
        yield (
            next(ids), group == execution.first_group, step.queue or "default", -(step.priority or 0), step.kind,
            step.target, json.dumps(dict(step.arguments), ensure_ascii=False),
            carrying("{}" if step.policy is None else step.policy.to_json(), trace), execution.started_at,
            step.limit_key, step.limit_max, actor.type, actor.id, actor.name, str(execution.id), execution.id, group,
            number,
        )  # fmt: skip


# --- moving on ------------------------------------------------------------------------------------------------------


async def lock(connection: Connection, ids: Iterable[UUID]) -> None:
    """Hold executions until the transaction ends."""
    if wanted := sorted(ids):
        await connection.fetch(SQL.lock, wanted)


async def lock_in_progress(connection: Connection, id: UUID) -> bool:
    """Hold an execution until the transaction ends; False if it has been cancelled, or has ended."""
    rows = await connection.fetch(SQL.lock, [id])
    return any(row["state"] == "in_progress" for row in rows)


@dataclass(slots=True)
class Taking:
    """What a worker with free slots takes of the groups that follow those it has just ended."""

    worker_id: UUID
    lease: timedelta
    queues: Sequence[str]
    limit: int
    taken: list[Task] = field(default_factory=list)


async def advance(
    connection: Connection, ids: Sequence[UUID], now: datetime | None, taking: Taking | None = None
) -> tuple[int, list[Settlement]]:
    """Move on each of these executions whose current group has ended; how many did, and what was cut by it.

    Under their lock. What is cut (the steps a failed execution does not come to) the caller has to end.
    """
    moved, cut, empty = await _move_on(connection, ids, now, taking)
    while empty:  # nobody will end a step of a group that has none left
        _, more, empty = await _move_on(connection, sorted(empty), now)
        cut += more
    return moved, cut


async def _move_on(
    connection: Connection, ids: Sequence[UUID], now: datetime | None, taking: Taking | None = None
) -> tuple[int, list[Settlement], list[UUID]]:
    """One step on: how many, what was cut by it, and those whose next group has no task left."""
    decided = [(row["id"], _decide(row)) for row in await connection.fetch(SQL.groups_that_ended, ids)]
    empty: list[UUID] = []
    going = [(id, step) for id, step in decided if isinstance(step, GoOn)]
    ending = [(id, step) for id, step in decided if not isinstance(step, GoOn)]
    if going:
        empty = await _go_on(connection, going, now, taking)
    if ending:
        verdicts = [(id, *_verdict(step)) for id, step in ending]
        answer = await connection.fetchrow(SQL.end_executions, *columns_of(verdicts), now)
        if answer is not None and answer["waited"]:
            await hold_back(connection, answer["waited"])
    failed = {id: step.error for id, step in ending if isinstance(step, Fail)}
    cut = [
        Settlement(task, not_run(task, now or task.run_at, failed[task.execution_id]))
        for task in (await not_begun(connection, failed) if failed else [])
        if task.execution_id is not None
    ]
    return len(decided), cut, empty


async def _go_on(
    connection: Connection, going: Sequence[tuple[UUID, GoOn]], now: datetime | None, taking: Taking | None
) -> list[UUID]:
    columns = columns_of([(id, step.group, step.failed) for id, step in going])
    taker = (None, None, [], 0) if taking is None else (taking.worker_id, taking.lease, taking.queues, taking.limit)
    rows = await connection.fetch(SQL.go_on, *columns, now, *taker)
    if taking is not None:
        taking.taken = [Task(*row[2:]) for row in rows if row["id"] is not None]
    return list(rows[0]["empty"])


async def end_group(
    database: Database, holder: UUID, execution: UUID, outcomes: Sequence[Any], taking: Taking | None
) -> bool:
    """End the last steps of a group, all of which went well, and go on; False, and nothing is changed, unless it is as
    simple as that. ``outcomes`` as `SQL.end_group` takes them. What takes anything is sent once."""
    ids, fences, words, ended, *rest = outcomes
    lease, queues, limit = (timedelta(0), [], 0) if taking is None else (taking.lease, taking.queues, taking.limit)
    values = (holder, ids, fences, words, ended, execution, lease, queues, limit, *rest)
    if taking is None:
        return bool(await database.all(SQL.end_group, *values))
    rows = await database.once(SQL.end_group, *values)
    taking.taken = [Task(*row[3:]) for row in rows if row["id"] is not None]
    return bool(rows)


async def hold_back(connection: Connection, ids: Iterable[UUID]) -> None:
    """Of those that are paused, what was about to be taken again waits for them to be resumed."""
    await connection.execute(SQL.hold_back, list(ids))


def _decide(row: Row) -> Advance:
    failures = [
        FailedStep(number, failure_words(status, reason, message))
        for number, status, reason, message in json.loads(row["failures"] or "[]")
    ]
    if row["state"] != "in_progress":  # cancelled: the last of it has stopped
        return Complete(row["failed_steps"] + len(failures))
    return decide(plan_from_json(row["plan"]), row["current_group"], failures, row["failed_steps"])


def _verdict(step: Complete | Fail) -> tuple[str, int, str | None]:
    if isinstance(step, Fail):
        return "failed", step.failed, step.error
    return "completed", step.failed, None


async def not_begun(connection: Connection, ids: Iterable[UUID]) -> list[Task]:
    """The tasks of executions that nobody holds."""
    return [Task(*row) for row in await connection.fetch(SQL.not_begun, list(ids))]


# --- cancelling and pausing -----------------------------------------------------------------------------------------


async def lock_family(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """An execution and the open ones its steps have started, locked; each is older than those it started."""
    family: list[UUID] = []
    # Asked again under the lock: a step may just have started one more (it holds its own execution while it does).
    while (found := [row["id"] for row in await connection.fetch(SQL.family, list(ids))]) != family:
        family = found
        await lock(connection, family)
    return family


async def cancel(connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor, why: str | None) -> list[UUID]:
    """Call executions cancelled; those for which it was not too late. Their tasks are still to be dealt with."""
    rows = await connection.fetch(SQL.cancel_executions, ids, now, by.type, by.id, by.name, why)
    return [row["id"] for row in rows]


async def ask_to_stop(connection: Connection, ids: Sequence[UUID], by: Actor) -> None:
    """Ask what runs of executions to stop. After what has not begun has been ended: a task that is claimed in between
    must be seen by one of the two."""
    await connection.execute(SQL.ask_to_stop, ids, by.type, by.id, by.name)


async def is_over(connection: Connection, id: UUID) -> bool:
    """Whether nothing of an execution is left."""
    return bool(await connection.fetchval(SQL.is_over, id))


async def has_ended(database: Database, id: UUID) -> bool | None:
    """Whether an execution has ended; None if there is none."""
    ended: bool | None = await database.value(SQL.is_over, id)
    return ended


async def waits_for(connection: Connection, id: UUID, other: UUID) -> bool:
    """Whether an execution waits, by way of its steps, for another."""
    return bool(await connection.fetchval(SQL.waits_for, id, other))


async def last_of_step(database: Database, task_id: UUID, activity_id: UUID) -> Record | None:
    """The execution that this attempt at a step has started, else the last that an earlier one has."""
    row = await database.one(SQL.last_of_step, task_id, activity_id)
    return None if row is None else dict(row)


async def lock_step(connection: Connection, task: Task) -> bool:
    """Hold a step until the transaction ends; False if it was asked to stop, or is no longer its holder's."""
    return await connection.fetchrow(SQL.lock_step, task.id, task.fence, task.worker_id) is not None


async def children_of_task(database: Database, task_id: UUID) -> list[UUID]:
    """The executions a step has started that have not ended."""
    return [row["id"] for row in await database.all(SQL.children_of_task, task_id)]


async def pause(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Hold back what has not begun; False if it is paused or has ended."""
    return await connection.fetchrow(SQL.pause, id, now, by.name) is not None


async def resume(connection: Connection, id: UUID, now: datetime) -> bool:
    """Let it go on; False if it is not paused."""
    return await connection.fetchrow(SQL.resume, id, now) is not None


# --- the net --------------------------------------------------------------------------------------------------------


async def stuck(database: Database, limit: int) -> list[UUID]:
    """Executions that nothing moves any more."""
    return [row["id"] for row in await database.all(SQL.stuck, limit)]


async def lock_stuck(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Of these, those nobody else is working on, locked."""
    return [row["id"] for row in await connection.fetch(SQL.lock_stuck, ids)]


async def release_current(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Let go what waits of a current group though nothing holds it back; of which executions."""
    return {row["execution_id"] for row in await connection.fetch(SQL.release_current, ids)}


async def release_orphans(database: Database) -> int:
    """Let go the steps that wait for an execution which is over; how many."""
    return len(await database.all(SQL.waiting_for_the_ended))


async def abandoned(database: Database, limit: int) -> list[UUID]:
    """Executions whose step in another one is gone."""
    return [row["id"] for row in await database.all(SQL.abandoned, limit)]


async def circles(connection: Connection, limit: int) -> list[Record]:
    """Steps that wait, by way of others, for the end of their own execution; the youngest first."""
    return [dict(row) for row in await connection.fetch(SQL.circles, limit)]


async def oldest_open(database: Database) -> Record | None:
    """The execution that has been open for longest."""
    row = await database.one(SQL.oldest_open)
    return None if row is None else dict(row)


async def forget(database: Database, cutoff: datetime, limit: int) -> int:
    """Let go a small batch of executions that ended before the cut-off and that no open step has started; how many."""
    return len(await database.all(SQL.forget_old, cutoff, limit))


# --- reading --------------------------------------------------------------------------------------------------------


async def execution(database: Database, id: UUID) -> Record | None:
    """One execution."""
    row = await database.one(SQL.execution, id)
    return None if row is None else dict(row)


async def steps(database: Database, id: UUID) -> list[Record]:
    """Every attempt at its steps, past, present and future, in the order of the plan."""
    rows = await database.all(SQL.steps, id, MAX_SHOWN)
    return [
        {name: json.loads(value) if name in ("error", "progress") and value else value for name, value in row.items()}
        for row in rows
    ]


async def list_executions(
    database: Database, *, below: UUID | None, state: str | None, schedule_id: UUID | None, limit: int
) -> list[Record]:
    """Executions, newest first."""
    return [dict(row) for row in await database.all(SQL.list_executions, below, state, schedule_id, limit)]


async def find(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Up to three ids of executions between two."""
    return [row["id"] for row in await database.all(SQL.find_executions, low, high)]
