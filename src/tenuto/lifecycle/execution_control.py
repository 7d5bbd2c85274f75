"""What people do to executions: cancel, pause, resume, run again from where it failed; and the net beneath them.

Everything happens in one transaction under the execution's lock, in the same order as `finish` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Literal
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import completion
from tenuto.logs import Log
from tenuto.model.actors import Actor
from tenuto.model.schedules import Overlap, plan_from_json
from tenuto.model.tasks import Outcome, Reason, Settlement, Status, cancelled, error_json
from tenuto.postgres.database import Connection, Database
from tenuto.service.quarantine import alone, telling
from tenuto.store import executions, schedules, workers
from tenuto.store.access import audit_recorder
from tenuto.store.executions import NewExecution

NET_STUCK = "execution_stuck"
NET_ORPHANED_STEP = "step_waiting_for_nothing"
NET_ABANDONED = "execution_abandoned"
NET_CIRCLE = "steps_waiting_in_a_circle"
SYSTEM = Actor.system("scheduler")
_BATCH = 100

log = Log("tenuto.executions")


async def cancel(
    database: Database, id: UUID, now: datetime, by: Actor, why: str | None = None
) -> Literal["cancelled", "stopping"]:
    """Cancel an execution: what has not begun is removed at once, what runs is told to stop."""

    async def act(connection: Connection) -> Literal["cancelled", "stopping"]:
        if id not in await cancel_within(connection, [id], now, by, why):
            raise _TooLate
        return "cancelled" if await executions.is_over(connection, id) else "stopping"

    try:
        return await database.transaction(act)
    except _TooLate:
        found = await executions.execution(database, id)
        if found is None or found["cancelled_at"] != now:
            raise _ended_or_unknown(id, found) from None
        return "stopping" if found["ended_at"] is None else "cancelled"  # by ourselves: only the reply was lost


async def cancel_within(
    connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor, why: str | None
) -> list[UUID]:
    """Cancel executions and what their steps have started; those for which it was not too late."""
    family = await executions.lock_family(connection, ids)
    done = await executions.cancel(connection, family, now, by, why)
    if done:
        waiting = await executions.not_begun(connection, done)
        await completion.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in waiting])
        await executions.ask_to_stop(connection, done, by)
        await completion.advance(connection, done, now)
    return done


async def pause(database: Database, id: UUID, now: datetime, by: Actor) -> None:
    """Let nothing more of an execution begin."""

    async def act(connection: Connection) -> None:
        await executions.lock(connection, [id])
        if not await executions.pause(connection, id, now, by):
            raise _TooLate

    try:
        await database.transaction(act)
    except _TooLate:
        found = await executions.execution(database, id)
        if found is None or found["paused_at"] != now:  # else by ourselves: only the reply was lost
            raise _ended_or_unknown(id, found, otherwise="is paused already") from None


async def resume(database: Database, id: UUID, now: datetime) -> None:
    """Let a paused execution go on."""
    resumed = False

    async def act(connection: Connection) -> None:
        nonlocal resumed
        await executions.lock(connection, [id])
        if await executions.resume(connection, id, now):
            resumed = True
        elif not resumed:  # else by ourselves: only the reply was lost
            raise _TooLate

    try:
        await database.transaction(act)
    except _TooLate:
        raise _ended_or_unknown(id, await executions.execution(database, id), otherwise="is not paused") from None


async def retry(database: Database, id: UUID, now: datetime, by: Actor, request: UUID | None = None) -> UUID:
    """Run an execution that failed or was cancelled again, from the group it came to; the id of the new one.

    It follows the same snapshot. The old one stays as it ended. The same request, made again, begins one.
    """
    found = await executions.execution(database, id)
    if found is None:
        raise NotFound(f"there is no execution {id}")
    if found["state"] not in ("failed", "cancelled") or found["ended_at"] is None:
        raise Conflict(
            f"execution {id} is {found['state'].replace('_', ' ')}",
            remedy="only a failed or cancelled execution that has ended can be retried;"
            " `tenuto schedule run NAME` starts a new one",
        )
    request = request or new_id()

    async def act(connection: Connection) -> UUID:
        schedule = await schedules.locked_by_id(connection, found["schedule_id"])
        alone = schedule is None or schedule.definition.overlap is not Overlap.ALLOW
        active = await schedules.active(connection, found["schedule_id"])
        if request in active or await executions.is_over(connection, request):
            audit_recorder.changed_nothing()
            return request  # only the reply was lost
        if alone and active:
            raise Conflict(f"{found['schedule_name']!r} is running", remedy=f"wait for execution {active[0]}")
        new = NewExecution(
            request, found["schedule_id"], found["schedule_name"], found["version"], "retry", alone,
            plan_from_json(found["plan"]), found["due_at"], now, by, found["current_group"], None, id,
        )  # fmt: skip
        await executions.begin(connection, [new])
        return request

    return await database.transaction(act)


class _TooLate(Exception):
    """Nothing was done. Why is asked afterwards: whoever holds a connection and waits for another may wait for ever."""


def _ended_or_unknown(id: UUID, found: executions.Record | None, otherwise: str = "") -> Conflict | NotFound:
    if found is None:
        return NotFound(f"there is no execution {id}", remedy="see `tenuto execution list`")
    if found["state"] != "in_progress":
        return Conflict(f"execution {id} is {found['state']} already")
    return Conflict(f"execution {id} {otherwise}")


async def repair(database: Database, now: datetime) -> int:
    """Move on whatever nothing moves any more; how many. In normal operation there is nothing.

    The end of a task and the step to the next group are one transaction, so only damage from outside leads here, or
    runs of plans that were edited meanwhile so that each came to wait for the other. What is damaged so that it cannot
    be repaired does not keep the rest from it.
    """
    repaired = 0
    with alone(telling(log, "executions that stand still cannot be moved on")):
        repaired += await _move_on(database, now)
    with alone(telling(log, "steps that wait for nothing cannot be let go")):
        repaired += await _let_go(database)
    with alone(telling(log, "steps that wait for each other cannot be let go")):
        repaired += await _break_circles(database, now)
    with alone(telling(log, "executions without the step that started them cannot be looked for")):
        repaired += await _cancel_all_abandoned(database, now)
    return repaired


async def _move_on(database: Database, now: datetime) -> int:
    """What stands still: all at once, or if one of them spoils that, one by one."""
    stuck, moved, spoilt = await executions.stuck(database, _BATCH), 0, list[Exception]()
    if stuck:
        with alone(spoilt.append):
            moved = await database.transaction(lambda connection: _repair(connection, stuck, now))
    for id in stuck if spoilt else ():
        with alone(telling(log, "an execution that stands still cannot be moved on", execution=str(id))):
            moved += await database.transaction(partial(_repair, ids=[id], now=now))
    if moved:
        log.warning("executions that stood still were moved on", executions=moved)
    return moved


async def _let_go(database: Database) -> int:
    orphans = await executions.release_orphans(database)
    if orphans:
        log.warning("steps that waited for nothing were let go", steps=orphans)
        await database.transaction(lambda connection: workers.count_repair(connection, NET_ORPHANED_STEP, orphans))
    return orphans


async def _break_circles(database: Database, now: datetime) -> int:
    broken = 0
    while broken < _BATCH and await database.transaction(partial(_break_circle, now=now)):
        broken += 1
    return broken


async def _break_circle(connection: Connection, now: datetime) -> bool:
    """Fail the youngest step of a circle that waits for a run it has not started; False if there is none.

    A step looks whether what it is about to wait for waits for it, but that may be about to do the same.
    """
    found = await executions.circles(connection, _BATCH)
    concerned = sorted({step["execution_id"] for step in found})
    if not concerned or await executions.lock_stuck(connection, concerned) != concerned:
        return False
    # Asked again under the lock: somebody may just have cancelled one of them.
    for step in await executions.circles(connection, _BATCH):
        if not step["started_it"] and {step["execution_id"], step["waits_for"]} <= set(concerned):
            await _fail(connection, step, now)
            return True
    return False


async def _fail(connection: Connection, step: executions.Record, now: datetime) -> None:
    waiting = await executions.not_begun(connection, [step["execution_id"]])
    (task,) = [task for task in waiting if task.id == step["id"]]
    message = f"execution {step['waits_for']} of {step['schedule_name']!r} waits for this one"
    error = error_json("tenuto.PermanentFailure", message, step=task.name)
    failure = Outcome(Status.FAILED, Reason.ERROR, ended_at=now, error=error, may_retry=False)
    await completion.finish_within(connection, [Settlement(task, failure)])
    await workers.count_repair(connection, NET_CIRCLE, 1)
    log.warning("a step that waited in a circle was failed", execution=str(step["execution_id"]), task=str(task.id))


async def _cancel_all_abandoned(database: Database, now: datetime) -> int:
    ended, event = 0, "an execution without the step that started it cannot be cancelled"
    for id in await executions.abandoned(database, _BATCH):
        with alone(telling(log, event, execution=str(id))):
            await database.transaction(partial(_cancel_abandoned, id=id, now=now))
            ended += 1
    return ended


async def _cancel_abandoned(connection: Connection, id: UUID, now: datetime) -> None:
    if await cancel_within(connection, [id], now, SYSTEM, "the step that started it is gone"):
        log.warning("an execution without the step that started it was cancelled", execution=str(id))
        await workers.count_repair(connection, NET_ABANDONED, 1)


async def _repair(connection: Connection, ids: Sequence[UUID], now: datetime) -> int:
    mine = await executions.lock_stuck(connection, ids)
    if not mine:
        return 0
    released = await executions.release_current(connection, mine)
    moved = await completion.advance(connection, [id for id in mine if id not in released], now)
    if count := len(released) + moved:
        await workers.count_repair(connection, NET_STUCK, count)
    return count
