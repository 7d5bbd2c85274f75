"""Finish tasks: write settlements, dead letters and successes of manifests, and advance executions in one transaction.

Order within the transaction: lock the executions by id, write the tasks, then advance every execution whose step group
is finished. Every other writer of tasks of executions takes the same locks in the same order. Tasks outside executions
need no lock and take one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from tenuto.lifecycle.advancement import advance_executions
from tenuto.model.work.tasks import (
    AWAITED_BY,
    Outcome,
    OutcomeStatus,
    Settlement,
    WaitKey,
    awaiting_wait,
    cancel_instead_of_retry,
)
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import manifests
from tenuto.store.events import external_events
from tenuto.store.work import batches, dead_letters, executions, task_outcomes
from tenuto.store.work.executions import NextGroupClaim

FAST_PATH_MAX_STEPS = 10
"""Largest number of steps for which `finish` tries the SQL fast path ``finish_group``; 0 turns it off."""


async def finish(
    database: Database, settlements: Sequence[Settlement], next_claim: NextGroupClaim | None = None
) -> set[UUID]:
    """Write settlements; return the ids of the tasks that their worker still held.

    All tasks must be held by the same worker, or by none. ``next_claim`` lets that worker claim tasks of the step
    groups that start as a result.
    """
    if all(_only_ends(settlement) for settlement in settlements):
        return await task_outcomes.end_tasks_directly(database, settlements)  # the common case

    # Fast path: it repeats the decision of `model.work.executions.decide_advance` in SQL. Equivalence test: all of
    # tests/lifecycle/test_advancement.py runs on both paths (fixture ``both_completion_paths``).
    if (execution_id := _fast_path_execution(settlements)) is not None:
        worker_id, *outcomes = task_outcomes.outcome_columns(settlements)
        if await executions.finish_group(database, worker_id, execution_id, outcomes, next_claim):
            return {settlement.task.id for settlement in settlements}

    async def write(connection: Connection) -> set[UUID]:
        if next_claim is not None:
            next_claim.claimed = []  # discards the result of a failed first try
        affected = sorted(affected_executions(settlements))
        if all(_ends_without_retry(settlement) for settlement in settlements):
            failed, snapshots = await _load_failed_tasks(connection, settlements)
            awaited = _awaited_ends(settlements)
            await _lock_waits(connection, (), awaited)
            finished = await task_outcomes.end_tasks(connection, settlements, executions_to_lock=affected)
            await _write_task_dead_letters(connection, failed, snapshots, finished)
            await _end_awaited_waits(connection, awaited, finished)
            await _advance(connection, settlements, finished, next_claim)
            return finished
        await executions.lock_executions(connection, affected)  # guard: executions.locked_before_finish
        return await finish_in_transaction(connection, settlements, next_claim)

    return await database.transaction(write)


async def finish_in_transaction(
    connection: Connection, settlements: Sequence[Settlement], next_claim: NextGroupClaim | None = None
) -> set[UUID]:
    """Write settlements as `finish` does, in a transaction that holds the locks of `affected_executions`."""
    paused_batches = await batches.lock_batches_shared(
        connection, {s.task.batch_id for s in settlements if s.task.batch_id is not None}
    )
    await manifests.lock_manifests_and_dependents(
        connection, _affected_manifests(settlements)
    )  # guard: manifests.locked_before_tasks
    ended = [s for s in settlements if s.retry is None and s.outcome.deferral is None]
    retried = [s for s in settlements if s.retry is not None]
    deferred = [s for s in settlements if s.outcome.deferral is not None]
    await _lock_waits(connection, deferred, _awaited_ends(settlements))
    cancelled: list[Settlement] = []
    failed, snapshots = await _load_failed_tasks(connection, ended)
    finished = await task_outcomes.end_tasks(connection, ended)
    await _write_task_dead_letters(connection, failed, snapshots, finished)
    if continued := retried + deferred:
        await task_outcomes.pass_on_limit_slots(connection, continued)
        if retried:
            finished |= await task_outcomes.retry_tasks(connection, retried)
        if deferred:
            finished |= await task_outcomes.defer_tasks(connection, deferred)
        cancelled = await _cancel_where_requested(connection, [s for s in continued if s.task.id not in finished])
        finished |= {s.task.id for s in cancelled}
        if affected := affected_executions([s for s in continued if s.task.execution_id is not None]):
            await executions.hold_steps_of_paused(connection, affected)  # guard: executions.retry_waits_while_paused
        if paused_batches:
            # guard: batches.retry_waits_while_paused
            await batches.hold_items_of_paused(connection, [s.task.id for s in continued], paused_batches)
    await _end_awaited_waits(connection, _awaited_ends([*ended, *cancelled]), finished)
    await _record_manifest_outcomes(
        connection, [s for s in ended if s.task.manifest_id is not None and s.task.id in finished]
    )
    await _advance(connection, settlements, finished, next_claim)
    return finished


def _awaited_ends(ended: Sequence[Settlement]) -> list[tuple[Settlement, UUID, WaitKey]]:
    """Return the child tasks of workflows among ended tasks, each with the workflow and its wait."""
    found = [(settlement, awaiting_wait(settlement.task.policy_json)) for settlement in ended]
    return [(settlement, *waiting) for settlement, waiting in found if waiting is not None]


async def _lock_waits(
    connection: Connection, deferred: Sequence[Settlement], awaited: Sequence[tuple[Settlement, UUID, WaitKey]]
) -> None:
    """Lock the waits of deferred tasks, and those that end with child tasks, before any task.

    Let tasks continue at once whose wait has ended while they were giving up their slots.
    """
    waiting = [(s, s.outcome.deferral) for s in deferred if s.outcome.deferral is not None and s.outcome.deferral.waits]
    keys = {(s.task.id, wait) for s, deferral in waiting for wait in deferral.waits}
    keys.update((task_id, wait) for _, task_id, wait in awaited)
    if not keys:
        return
    still_open = await external_events.lock_open_waits(connection, keys)
    for settlement, deferral in waiting:
        if any((settlement.task.id, wait) not in still_open for wait in deferral.waits):
            settlement.outcome.deferral = replace(deferral, resume_at=None)


async def _end_awaited_waits(
    connection: Connection, awaited: Sequence[tuple[Settlement, UUID, WaitKey]], finished: set[UUID]
) -> None:
    """Give workflows the results of their child tasks, in the transaction that ends these."""
    ended = [
        (task_id, wait.step, str(settlement.task.id), _end_of_child(settlement.outcome))
        for settlement, task_id, wait in awaited
        if settlement.task.id in finished
    ]
    if ended:
        instants = [s.outcome.ended_at for s, _, _ in awaited if s.outcome.ended_at is not None]
        await external_events.end_child_waits(connection, ended, max(instants))


def _end_of_child(outcome: Outcome) -> str:
    output, error = outcome.output or "null", outcome.error or "null"
    return f'{{"status": "{outcome.status}", "output": {output}, "error": {error}}}'


def affected_executions(settlements: Sequence[Settlement]) -> set[UUID]:
    """Return the executions that must be locked before these settlements are written."""
    execution_ids = {settlement.task.execution_id for settlement in settlements}
    # guard: executions.awaited_is_locked
    execution_ids |= {
        settlement.outcome.deferral.execution_id
        for settlement in settlements
        if settlement.outcome.deferral is not None
    }
    return {execution_id for execution_id in execution_ids if execution_id is not None}


def _only_ends(settlement: Settlement) -> bool:
    """Return whether nothing but the task is written: no next attempt, no execution, no manifest, no dead letter."""
    task, outcome = settlement.task, settlement.outcome
    if settlement.retry is not None or outcome.deferral is not None or task.execution_id is not None:
        return False
    if AWAITED_BY in task.policy_json:  # guard: workflows.child_end_is_reported
        return False
    if outcome.status is OutcomeStatus.FAILED and _becomes_dead_letter(settlement):
        return False
    return task.manifest_id is None or (task.batch_id is not None and outcome.status is not OutcomeStatus.FAILED)


def _becomes_dead_letter(settlement: Settlement) -> bool:
    """Return whether a task without a manifest failed for good. A failed step is retried with its execution."""
    task = settlement.task
    return (
        settlement.outcome.status is OutcomeStatus.FAILED
        and settlement.retry is None
        and task.manifest_id is None
        and task.execution_id is None
        and task.policy.dead_letter
    )


async def _load_failed_tasks(
    connection: Connection, ended: Sequence[Settlement]
) -> tuple[list[Settlement], dict[UUID, str]]:
    """Return the tasks that become dead letters, and what a retry of each needs, before they are deleted."""
    failed = [settlement for settlement in ended if _becomes_dead_letter(settlement)]
    return failed, await dead_letters.load_task_snapshots(connection, [each.task.id for each in failed])


async def _write_task_dead_letters(
    connection: Connection, failed: Sequence[Settlement], snapshots: dict[UUID, str], finished: set[UUID]
) -> None:
    # guard: dead_letters.of_task_written_with_failure
    await dead_letters.write_task_dead_letters(
        connection,
        [
            (each.task.activity_id, each.outcome.error, snapshots[each.task.id])
            for each in failed
            if each.task.id in finished and each.task.id in snapshots
        ],
    )


def _ends_without_retry(settlement: Settlement) -> bool:
    """Return whether only the execution of the task needs to be locked before the task ends."""
    return settlement.retry is None and settlement.outcome.deferral is None and settlement.task.manifest_id is None


def _fast_path_execution(settlements: Sequence[Settlement]) -> UUID | None:
    """Return the only execution of these steps if all succeed and are few enough for ``finish_group``."""
    execution_id = settlements[0].task.execution_id
    if execution_id is None or settlements[0].task.worker_id is None or len(settlements) > FAST_PATH_MAX_STEPS:
        return None
    eligible = all(
        settlement.task.execution_id == execution_id
        and settlement.outcome.status in (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED_WITH_WARNING)
        and _ends_without_retry(settlement)
        and settlement.outcome.ended_at is not None
        for settlement in settlements
    )
    return execution_id if eligible else None


def _affected_manifests(settlements: Sequence[Settlement]) -> set[UUID]:
    """Return the manifests to lock before their tasks, in the same order as a start of a run does."""
    return {
        s.task.manifest_id
        for s in settlements
        if s.task.manifest_id is not None
        and s.retry is None
        and s.outcome.deferral is None
        and (s.task.batch_id is None or s.outcome.status is OutcomeStatus.FAILED)
    }


async def _record_manifest_outcomes(connection: Connection, ended: Sequence[Settlement]) -> None:
    """Write a dead letter for every failed run, and the time of success to manifests whose run succeeded."""
    failed = [s for s in ended if s.outcome.status is OutcomeStatus.FAILED]
    # guard: dead_letters.written_with_failure
    await dead_letters.write_dead_letters(connection, [(s.task.activity_id, s.outcome.error) for s in failed])
    succeeded = [
        s for s in ended if s.outcome.status in (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED_WITH_WARNING)
    ]
    ids = {s.task.manifest_id for s in succeeded if s.task.manifest_id is not None and s.task.batch_id is None}
    instants = [s.outcome.ended_at for s in succeeded if s.outcome.ended_at is not None]
    if ids and instants:
        await manifests.record_successes(connection, ids, max(instants))


async def _advance(
    connection: Connection, settlements: Sequence[Settlement], finished: set[UUID], next_claim: NextGroupClaim | None
) -> None:
    steps = [s for s in settlements if s.task.execution_id is not None and s.task.id in finished]
    if steps:
        instants = [s.outcome.ended_at for s in steps if s.outcome.ended_at is not None]
        await advance_executions(connection, affected_executions(steps), max(instants, default=None), next_claim)


async def _cancel_where_requested(connection: Connection, settlements: Sequence[Settlement]) -> list[Settlement]:
    """End tasks that were not retried or deferred because their cancellation was requested, and return their ends.

    The other tasks are no longer held by their worker.
    """
    if not settlements:
        return []
    actors = await task_outcomes.cancellation_requests(connection, settlements)
    ended = [cancel_instead_of_retry(s, actors[s.task.id]) for s in settlements if s.task.id in actors]
    finished = await task_outcomes.end_tasks(connection, ended)
    return [s for s in ended if s.task.id in finished]
