"""The fourth write: `finish`. Tasks end, are repeated or put aside, and executions move with them.

One transaction, always in this order: the executions concerned are locked by id, the tasks are written, and for each
group that became empty `model.executions.advance` decides what that means. Tasks outside executions need no lock and
take one statement. Whoever else touches tasks of executions takes the same locks in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.model.actors import Actor
from tenuto.model.tasks import Again, Settlement, Status, stopped_instead
from tenuto.postgres.database import Connection, Database, Row
from tenuto.store import batches, dead_letters, executions, manifests
from tenuto.store.bulk_copy import columns_of
from tenuto.store.executions import Taking
from tenuto.store.tasks import SQL

FEW = 10
"""So many steps at most end their group in one statement."""


async def finish(database: Database, settlements: Sequence[Settlement], taking: Taking | None = None) -> set[UUID]:
    """Write outcomes; the ids of the tasks for which it was still true that we held them.

    All of them must have been held by the same worker, or by nobody. ``taking`` is what that worker would take of the
    next groups of executions.
    """
    if all(_just_ends(settlement) for settlement in settlements):
        # The common case: one statement, one round trip.
        values = (*_outcomes(settlements), None, _heirs(settlements))
        return _ended(settlements, await database.one(SQL.end_tasks, *values))

    if (execution := _goes_well(settlements)) is not None:
        holder, *outcomes = _outcomes(settlements)
        if await executions.end_group(database, holder, execution, outcomes, taking):
            return {settlement.task.id for settlement in settlements}

    async def write(connection: Connection) -> set[UUID]:
        if taking is not None:
            taking.taken = []  # should this be the second try
        held = sorted(concerned(settlements))
        if all(_ends_a_step(settlement) for settlement in settlements):
            done = await _end(connection, settlements, held)
            await _move_executions(connection, settlements, done, taking)
            return done
        await executions.lock(connection, held)
        return await finish_within(connection, settlements, taking)

    return await database.transaction(write)


def _just_ends(settlement: Settlement) -> bool:
    task, outcome = settlement.task, settlement.outcome
    if settlement.again is not None or outcome.aside is not None or task.execution_id is not None:
        return False
    return task.manifest_id is None or (task.batch_id is not None and outcome.status is not Status.FAILED)


def _goes_well(settlements: Sequence[Settlement]) -> UUID | None:
    """The one execution of which these few steps end well, so that its group may end with them; there is no telling
    what else happens while many end at once, so then nobody tries."""
    execution = settlements[0].task.execution_id
    if execution is None or settlements[0].task.worker_id is None or len(settlements) > FEW:
        return None
    well = all(
        settlement.task.execution_id == execution
        and settlement.outcome.status in (Status.COMPLETED, Status.COMPLETED_WITH_WARNING)
        and _ends_a_step(settlement)
        and settlement.outcome.ended_at is not None
        for settlement in settlements
    )
    return execution if well else None


def _ends_a_step(settlement: Settlement) -> bool:
    """Whether nobody but its execution, if it has one, needs to be held before it ends."""
    return settlement.again is None and settlement.outcome.aside is None and settlement.task.manifest_id is None


def concerned(settlements: Sequence[Settlement]) -> set[UUID]:
    """The executions that must be locked before any of these is written."""
    found = {settlement.task.execution_id for settlement in settlements}
    found |= {settlement.outcome.aside.execution for settlement in settlements if settlement.outcome.aside is not None}
    return {execution for execution in found if execution is not None}


async def finish_within(
    connection: Connection, settlements: Sequence[Settlement], taking: Taking | None = None
) -> set[UUID]:
    """As `finish`, in a transaction that is already open and holds the executions concerned."""
    paused = await batches.share(connection, {s.task.batch_id for s in settlements if s.task.batch_id is not None})
    await manifests.hold(connection, _moved(settlements))
    ended = [s for s in settlements if s.again is None and s.outcome.aside is None]
    again = [s for s in settlements if s.again is not None]
    aside = [s for s in settlements if s.outcome.aside is not None]
    done = await _end(connection, ended) if ended else set()
    await _hand_on(connection, again + aside)
    if again:
        done |= await _repeat(connection, again)
    if aside:
        done |= await _put_aside(connection, aside)
    if again or aside:
        done |= await _stop_instead(connection, [s for s in (*again, *aside) if s.task.id not in done])
        if held := concerned([s for s in again + aside if s.task.execution_id is not None]):
            await executions.hold_back(connection, held)
        if paused:
            await batches.hold_these(connection, [s.task.id for s in again + aside], paused)
    await _of_manifests(connection, [s for s in ended if s.task.manifest_id is not None and s.task.id in done])
    await _move_executions(connection, settlements, done, taking)
    return done


async def _move_executions(
    connection: Connection, settlements: Sequence[Settlement], done: set[UUID], taking: Taking | None
) -> None:
    of_executions = [s for s in settlements if s.task.execution_id is not None and s.task.id in done]
    if of_executions:
        instants = [s.outcome.ended_at for s in of_executions if s.outcome.ended_at is not None]
        await advance(connection, concerned(of_executions), max(instants, default=None), taking)


def _moved(settlements: Sequence[Settlement]) -> set[UUID]:
    """The manifests that are moved by these ends, or get a letter: held before their tasks, as by who starts a run."""
    return {
        s.task.manifest_id
        for s in settlements
        if s.task.manifest_id is not None
        and s.again is None
        and s.outcome.aside is None
        and (s.task.batch_id is None or s.outcome.status is Status.FAILED)
    }


async def _of_manifests(connection: Connection, ended: Sequence[Settlement]) -> None:
    """A run that failed for good leaves a dead letter; one that succeeded moves its manifest."""
    failed = [s for s in ended if s.outcome.status is Status.FAILED]
    await dead_letters.write(connection, [(s.task.activity_id, s.outcome.error) for s in failed])
    done = [s for s in ended if s.outcome.status in (Status.COMPLETED, Status.COMPLETED_WITH_WARNING)]
    runs = {s.task.manifest_id for s in done if s.task.manifest_id is not None and s.task.batch_id is None}
    instants = [s.outcome.ended_at for s in done if s.outcome.ended_at is not None]
    if runs and instants:
        await manifests.succeeded(connection, runs, max(instants))


async def advance(
    connection: Connection, ids: Iterable[UUID], now: datetime | None, taking: Taking | None = None
) -> int:
    """Move on every one of these executions whose current group has come to its end; how many did.

    Under their lock, after the tasks have been written. The steps a failed execution will not come to are ended here.
    """
    moved, cut = await executions.advance(connection, sorted(ids), now, taking)
    if cut:
        await _end(connection, cut)
    return moved


async def _end(
    connection: Connection, settlements: Sequence[Settlement], hold: Sequence[UUID] | None = None
) -> set[UUID]:
    """End tasks; ``hold`` are the executions to be held first, unless they are."""
    values = (*_outcomes(settlements), hold, _heirs(settlements))
    return _ended(settlements, await connection.fetchrow(SQL.end_tasks, *values))


def _ended(settlements: Sequence[Settlement], answer: Row | None) -> set[UUID]:
    assert answer is not None
    if answer["seated"] is not None:
        _only_those_are_heirs(settlements, answer["seated"])
    only_these = answer["only_these"]
    return {settlement.task.id for settlement in settlements} if only_these is None else set(only_these)


async def _hand_on(connection: Connection, settlements: Sequence[Settlement]) -> None:
    """The seats of what leaves without ending: it will be tried again, or called again later."""
    leaving = [(s.task.id, s.task.fence, s.heir) for s in settlements if s.heir is not None]
    if leaving:
        seated = await connection.fetch(SQL.hand_on, settlements[0].task.worker_id, *columns_of(leaving))
        _only_those_are_heirs(settlements, [row["id"] for row in seated])


def _heirs(settlements: Sequence[Settlement]) -> list[UUID | None] | None:
    return _said([settlement.heir for settlement in settlements])


def _only_those_are_heirs(settlements: Sequence[Settlement], seated: Iterable[UUID]) -> None:
    have = set(seated)
    for settlement in settlements:
        if settlement.heir not in have:
            settlement.heir = None


async def end_within(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    """End tasks without asking what that means for their executions: the caller knows."""
    return await _end(connection, settlements) if settlements else set()


async def _repeat(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    values = _outcomes(settlements) + _agains([s.again for s in settlements if s.again is not None])
    return {row["task_id"] for row in await connection.fetch(SQL.repeat_tasks, *values)}


async def _put_aside(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    rows = [
        (
            s.task.id,
            s.task.fence,
            s.outcome.aside.until,
            s.outcome.aside.execution,
            s.outcome.progress,
            s.outcome.started_at,
        )
        for s in settlements
        if s.outcome.aside is not None
    ]
    answer = await connection.fetch(SQL.put_aside, settlements[0].task.worker_id, *columns_of(rows))
    return {row["id"] for row in answer}


async def _stop_instead(connection: Connection, settlements: Sequence[Settlement]) -> set[UUID]:
    """Of tasks that were to go on and did not, end those that somebody has asked to stop; the others are held no
    longer."""
    if not settlements:
        return set()
    holder, ids = settlements[0].task.worker_id, [settlement.task.id for settlement in settlements]
    asked = {
        row["id"]: Actor(row["cancel_type"], row["cancel_id"], row["cancel_name"])
        for row in await connection.fetch(SQL.asked_to_stop, holder, ids)
    }
    ended = [
        stopped_instead(settlement, asked[settlement.task.id])
        for settlement in settlements
        if settlement.task.id in asked
    ]
    return await end_within(connection, ended)


def _outcomes(settlements: Sequence[Settlement]) -> list[Any]:
    holder = settlements[0].task.worker_id
    assert all(settlement.task.worker_id == holder for settlement in settlements)
    outcomes = [settlement.outcome for settlement in settlements]
    # Most attempts just complete: a column in which nobody has anything to say is not sent element by element.
    return [
        holder,
        [settlement.task.id for settlement in settlements],
        _numbers([settlement.task.fence for settlement in settlements]),
        _said([None if outcome.status is Status.COMPLETED else outcome.status for outcome in outcomes]),
        _instants([outcome.ended_at for outcome in outcomes]),
        _said([outcome.reason for outcome in outcomes]),
        _instants([outcome.started_at for outcome in outcomes]),
        _said([outcome.output for outcome in outcomes]),
        _said([outcome.error for outcome in outcomes]),
        _said([outcome.log for outcome in outcomes]),
        _said([outcome.progress for outcome in outcomes]),
    ]


def _instants(column: Iterable[datetime | None]) -> str:
    """In microseconds, as numbers."""
    return _numbers(["NULL" if each is None else round(each.timestamp() * 1_000_000) for each in column])


def _numbers(column: Iterable[int | str]) -> str:
    """An array as PostgreSQL writes it."""
    return "{" + ",".join(map(str, column)) + "}"


def _said(column: list[Any]) -> list[Any] | None:
    return None if column.count(None) == len(column) else column


def _agains(agains: Sequence[Again]) -> list[Any]:
    return columns_of(
        (again.run_at, again.activity_id, again.failures, again.losses, again.last_chance) for again in agains
    )
