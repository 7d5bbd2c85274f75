"""Repair executions that no worker and no scheduler would advance any more.

The end of a task and the start of the next step group are one transaction. Only manual changes of tables lead here, and
schedules that were edited during their runs so that two runs wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from uuid import UUID

from tenuto.errors import Conflict, NotFound
from tenuto.lifecycle import completion
from tenuto.lifecycle.advancement import advance_executions
from tenuto.lifecycle.execution_control import cancel_executions_in_transaction
from tenuto.lifecycle.step_dependencies import advance_dependent_execution
from tenuto.lifecycle.task_cancellation import cancel_task
from tenuto.logs import Log
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, Settlement, error_json
from tenuto.postgres.database import Connection, Database
from tenuto.service.quarantine import isolate_errors, log_error
from tenuto.store.events import external_events
from tenuto.store.work import executions, workers

REPAIR_STUCK_EXECUTION = "execution_stuck"
REPAIR_ORPHANED_STEP = "step_waiting_for_nothing"
REPAIR_ABANDONED_EXECUTION = "execution_abandoned"
REPAIR_WAIT_CYCLE = "steps_waiting_in_a_circle"
_BATCH_SIZE = 100
_SCHEDULER = Actor.system("scheduler")

log = Log("tenuto.executions")


async def repair_stuck_executions(database: Database, now: datetime) -> int:
    """Repair stuck executions; return the number of repairs. One that cannot be repaired does not block others."""
    count = 0
    with isolate_errors(log_error(log, "repair of stuck executions failed")):
        count += await _advance_stuck(database, now)
    with isolate_errors(log_error(log, "release of orphaned waiting steps failed")):
        count += await _release_orphaned_steps(database)
    with isolate_errors(log_error(log, "repair of wait cycles failed")):
        count += await _break_wait_cycles(database, now)
    with isolate_errors(log_error(log, "search for abandoned executions failed")):
        count += await _cancel_abandoned(database, now)
    with isolate_errors(log_error(log, "search for abandoned child tasks failed")):
        count += await _cancel_abandoned_children(database)
    return count


async def _cancel_abandoned_children(database: Database) -> int:
    """Cancel child tasks of workflows that have ended without them: failed for good, or cancelled with many others."""
    children = await external_events.list_abandoned_children(database, _BATCH_SIZE)
    for child in children:
        with suppress(Conflict, NotFound):  # it has just ended
            await cancel_task(database, child, _SCHEDULER)
    if children:
        log.info("child tasks of ended workflows cancelled", tasks=len(children))
    return len(children)


async def _advance_stuck(database: Database, now: datetime) -> int:
    """Advance stuck executions, all in one transaction, or one by one if that fails."""
    ids, advanced_count, errors = await executions.find_stuck_executions(database, _BATCH_SIZE), 0, list[Exception]()
    if ids:
        with isolate_errors(errors.append):
            advanced_count = await database.transaction(partial(_advance_locked, ids=ids, now=now))
    for id in ids if errors else ():
        with isolate_errors(log_error(log, "repair of stuck execution failed", execution_id=str(id))):
            advanced_count += await database.transaction(partial(_advance_locked, ids=[id], now=now))
    if advanced_count:
        log.warning("stuck executions advanced", executions=advanced_count)
    return advanced_count


async def _advance_locked(connection: Connection, ids: Sequence[UUID], now: datetime) -> int:
    locked = await executions.lock_stuck_executions(connection, ids)
    if not locked:
        return 0
    released = await executions.release_waiting_steps(connection, locked)
    rest = [id for id in locked if id not in released]
    decided = [id for id in rest if await advance_dependent_execution(connection, id, now)]
    advanced_count = len(decided) + await advance_executions(connection, [id for id in rest if id not in decided], now)
    if count := len(released) + advanced_count:
        await workers.count_repair(connection, REPAIR_STUCK_EXECUTION, count)
    return count


async def _release_orphaned_steps(database: Database) -> int:
    """Release steps that wait for an execution which has ended."""
    count = await executions.release_orphaned_waits(database)
    if count:
        log.warning("orphaned waiting steps released", steps=count)
        await database.transaction(lambda connection: workers.count_repair(connection, REPAIR_ORPHANED_STEP, count))
    return count


async def _break_wait_cycles(database: Database, now: datetime) -> int:
    count = 0
    while count < _BATCH_SIZE and await database.transaction(partial(_break_wait_cycle, now=now)):
        count += 1
    return count


async def _break_wait_cycle(connection: Connection, now: datetime) -> bool:
    """Fail the youngest step of a cycle that waits for a run it has not started; return False if there is none.

    A step checks for a cycle before it waits, but two steps may do so at the same time.
    """
    steps = await executions.find_wait_cycles(connection, _BATCH_SIZE)
    ids = sorted({step.execution_id for step in steps})
    if not ids or await executions.lock_stuck_executions(connection, ids) != ids:
        return False
    # Repeat the query under the lock: one of the executions may just have been cancelled.
    for step in await executions.find_wait_cycles(connection, _BATCH_SIZE):  # guard: executions.cycles_read_under_lock
        # guard: executions.cycle_breaks_at_foreign_step
        if not step.started_it and {step.execution_id, step.waits_for} <= set(ids):
            await _fail_waiting_step(connection, step, now)
            return True
    return False


async def _fail_waiting_step(connection: Connection, step: executions.WaitCycleStep, now: datetime) -> None:
    unclaimed = await executions.lock_unclaimed_steps(connection, [step.execution_id])
    (task,) = [task for task in unclaimed if task.id == step.id]
    message = f"execution {step.waits_for} of {step.schedule_name!r} waits for this execution"
    error = error_json("tenuto.PermanentFailure", message, step=task.name)
    failure = Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, ended_at=now, error=error, may_retry=False)
    await completion.finish_in_transaction(connection, [Settlement(task, failure)])
    await workers.count_repair(connection, REPAIR_WAIT_CYCLE, 1)
    log.warning("wait cycle broken", execution_id=str(step.execution_id), task_id=str(task.id), step=task.name)


async def _cancel_abandoned(database: Database, now: datetime) -> int:
    """Cancel executions whose parent step no longer exists."""
    count = 0
    for id in await executions.find_abandoned_executions(database, _BATCH_SIZE):
        with isolate_errors(log_error(log, "cancellation of abandoned execution failed", execution_id=str(id))):
            await database.transaction(partial(_cancel_abandoned_execution, id=id, now=now))
            count += 1
    return count


async def _cancel_abandoned_execution(connection: Connection, id: UUID, now: datetime) -> None:
    reason = "the step that started it is gone"
    if await cancel_executions_in_transaction(connection, [id], now, _SCHEDULER, reason):
        log.warning("abandoned execution cancelled", execution_id=str(id))
        await workers.count_repair(connection, REPAIR_ABANDONED_EXECUTION, 1)
