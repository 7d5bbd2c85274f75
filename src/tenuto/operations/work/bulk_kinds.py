"""The kinds of bulk operations: how each selects its objects, and how it acts on a chunk of them.

An action runs in the transaction of the chunk (`TransactionScope`). Where a set-based function exists, it takes the
locks of the whole chunk in the usual order; else each item is a savepoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import Conflict, NotFound, TenutoError, UserError
from tenuto.lifecycle import completion, execution_control, task_cancellation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationContext
from tenuto.model.definitions.steps import SCHEDULE
from tenuto.model.work.bulk_operations import SUCCEEDED, BulkKind, ItemOutcome, ItemResult
from tenuto.model.work.tasks import Settlement, cancelled_outcome
from tenuto.operations.work.dead_letters import acknowledge_dead_letters, retry_dead_letters
from tenuto.postgres.database import Connection
from tenuto.postgres.transaction_scope import TransactionScope
from tenuto.service.quarantine import isolate_errors
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.definitions import schedules
from tenuto.store.service_notifications import notify_services
from tenuto.store.work import bulk_operations, dead_letters, executions, tasks
from tenuto.store.work.bulk_operations import Selection

_MAX_MESSAGE_LENGTH = 1000

Results = dict[UUID, ItemResult]


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """The transaction of a chunk, and on whose behalf it acts."""

    scope: TransactionScope
    connection: Connection
    operation_id: UUID
    actor: Actor
    reason: str | None
    now: datetime


Act = Callable[[ChunkContext, Sequence[UUID]], Awaitable[Mapping[UUID, ItemResult]]]
ActOnOne = Callable[[ChunkContext, UUID], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class KindRules:
    """Selection and action of a kind of bulk operation."""

    selection: Selection
    act: Act
    needs_note: bool = False
    """Whether the reason is the note of a resolution, which a setting may require."""


def describe_refusal(error: Exception) -> ItemResult:
    """Return the result of an item whose action raised an error."""
    outcome = ItemOutcome.SKIPPED if isinstance(error, UserError) else ItemOutcome.FAILED
    code = error.code if isinstance(error, TenutoError) else "internal.error"
    return ItemResult(outcome, code, str(error)[:_MAX_MESSAGE_LENGTH])


async def act_on_each(context: ChunkContext, ids: Iterable[UUID], act: ActOnOne) -> Results:
    """Act on items one by one, each in a savepoint, so that an error affects one item only."""
    results: Results = {}

    for id in ids:

        def refuse(error: Exception, id: UUID = id) -> None:
            results[id] = describe_refusal(error)

        with isolate_errors(refuse):
            await context.scope.transaction(lambda _, id=id: act(context, id))  # type: ignore[misc]
            results[id] = SUCCEEDED
    return results


async def act_on_all(
    context: ChunkContext, act: Callable[[Connection], Awaitable[Collection[UUID]]]
) -> Collection[UUID]:
    """Act on a chunk by a set-based function; return the ids that it changed, none if it raised an error."""
    changed: list[Collection[UUID]] = []
    with isolate_errors(lambda _: None):  # the items are then processed one by one, to find the one at fault
        changed.append(await context.scope.transaction(act))
    return set(changed[0]) if changed else ()


async def act_on_rest(context: ChunkContext, ids: Sequence[UUID], changed: Collection[UUID], act: ActOnOne) -> Results:
    """Return the results of a chunk. Items that `act_on_all` did not change are tried one by one, to learn why."""
    rest = [id for id in ids if id not in changed]
    return {**dict.fromkeys(changed, SUCCEEDED), **await act_on_each(context, rest, act)}


# --- executions -------------------------------------------------------------------------------------------------------


async def _cancel_executions(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    cancelled = await act_on_all(
        context,
        lambda connection: execution_control.cancel_executions_in_transaction(
            connection, ids, context.now, context.actor, context.reason
        ),
    )
    return await act_on_rest(context, ids, cancelled, _cancel_execution)


async def _cancel_execution(context: ChunkContext, id: UUID) -> None:
    await execution_control.cancel_execution(context.scope, id, context.now, context.actor, context.reason)


async def _pause_executions(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    await executions.lock_executions(context.connection, ids)
    return await act_on_each(context, ids, _pause_execution)


async def _pause_execution(context: ChunkContext, id: UUID) -> None:
    await execution_control.pause_execution(context.scope, id, context.now, context.actor)


async def _resume_executions(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    await executions.lock_executions(context.connection, ids)
    return await act_on_each(context, ids, _resume_execution)


async def _resume_execution(context: ChunkContext, id: UUID) -> None:
    await execution_control.resume_execution(context.scope, id, context.now)


async def _retry_executions(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    return await act_on_each(context, ids, _retry_execution)


async def _retry_execution(context: ChunkContext, id: UUID) -> None:
    await execution_control.retry_execution(context.scope, id, context.now, context.actor)


# --- tasks and one-shots ----------------------------------------------------------------------------------------------


async def _cancel_tasks(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    """End the tasks that no worker holds by one statement; ask the workers of the others to stop them."""
    found = await tasks.load_tasks_to_cancel(context.scope, ids)
    settlements = [
        Settlement(task, cancelled_outcome(task, context.now, context.actor))
        for task in found
        if task.worker_id is None and task.kind != SCHEDULE  # a deferred schedule step has started an execution
    ]
    ended = await act_on_all(context, lambda _: completion.finish(context.scope, settlements)) if settlements else set()
    return await act_on_rest(context, ids, ended, _cancel_task)


async def _cancel_task(context: ChunkContext, id: UUID) -> None:
    await task_cancellation.cancel_task(context.scope, id, context.actor)


# --- schedules --------------------------------------------------------------------------------------------------------


async def _set_enabled(enabled: bool, context: ChunkContext, ids: Sequence[UUID]) -> Results:
    results = await act_on_each(context, ids, partial(_set_one_enabled, enabled))
    await notify_services(context.scope, ["schedules"])
    return results


async def _set_one_enabled(enabled: bool, context: ChunkContext, id: UUID) -> None:
    stored = await schedules.lock_schedule_by_id(context.connection, id)
    if stored is None:
        raise NotFound(f"schedule {id} does not exist", code="schedule.not_found", remedy="see `tenuto schedule list`")
    name = stored.definition.name
    action = "schedule.enable" if enabled else "schedule.disable"
    entry = AuditEntry(OperationContext(context.actor, action, reason=context.reason))
    change = ChangeContext(context.actor, context.now, context.reason, "hand", entry)
    if not await SCHEDULES.set_enabled(context.scope, name, change, enabled=enabled):
        if enabled:
            raise Conflict(f"schedule {name!r} is already enabled", code="schedule.already_enabled")
        raise Conflict(f"schedule {name!r} is already disabled", code="schedule.already_disabled")


# --- dead letters -----------------------------------------------------------------------------------------------------


async def _retry_dead_letters(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    retried = await act_on_all(
        context,
        lambda _: retry_dead_letters(
            context.scope, ids, context.now, context.actor, note=context.reason, request_id=context.operation_id
        ),
    )
    return await act_on_rest(context, ids, retried, _retry_dead_letter)


async def _retry_dead_letter(context: ChunkContext, id: UUID) -> None:
    retried = await retry_dead_letters(
        context.scope,
        [id],
        context.now,
        context.actor,
        note=context.reason,
        strict=True,
        request_id=context.operation_id,
    )
    if id not in retried:
        raise await _resolution_refusal(context, id)


async def _acknowledge_dead_letters(context: ChunkContext, ids: Sequence[UUID]) -> Results:
    resolved = await act_on_all(
        context,
        lambda _: acknowledge_dead_letters(
            context.scope, ids, context.now, context.actor, note=context.reason, request_id=context.operation_id
        ),
    )
    return await act_on_rest(context, ids, resolved, _acknowledge_dead_letter)


async def _acknowledge_dead_letter(context: ChunkContext, id: UUID) -> None:
    if not await acknowledge_dead_letters(
        context.scope, [id], context.now, context.actor, note=context.reason, request_id=context.operation_id
    ):
        raise await _resolution_refusal(context, id)


async def _resolution_refusal(context: ChunkContext, id: UUID) -> UserError:
    found = await dead_letters.load_dead_letter(context.scope, id)
    if found is None:
        return NotFound(f"there is no dead letter {id}", code="dead_letter.not_found")
    problem = f"dead letter {id} was already {found.state} by {found.resolved_by}"
    return Conflict(problem, code="dead_letter.already_resolved")


KINDS: Mapping[BulkKind, KindRules] = {
    BulkKind.EXECUTION_CANCEL: KindRules(bulk_operations.EXECUTION_SELECTION, _cancel_executions),
    BulkKind.EXECUTION_PAUSE: KindRules(bulk_operations.EXECUTION_SELECTION, _pause_executions),
    BulkKind.EXECUTION_RESUME: KindRules(bulk_operations.EXECUTION_SELECTION, _resume_executions),
    BulkKind.EXECUTION_RETRY: KindRules(bulk_operations.EXECUTION_SELECTION, _retry_executions),
    BulkKind.TASK_CANCEL: KindRules(bulk_operations.TASK_SELECTION, _cancel_tasks),
    BulkKind.SCHEDULE_ENABLE: KindRules(bulk_operations.SCHEDULE_SELECTION, partial(_set_enabled, True)),
    BulkKind.SCHEDULE_DISABLE: KindRules(bulk_operations.SCHEDULE_SELECTION, partial(_set_enabled, False)),
    BulkKind.DEAD_LETTER_RETRY: KindRules(bulk_operations.DEAD_LETTER_SELECTION, _retry_dead_letters, needs_note=True),
    BulkKind.DEAD_LETTER_ACKNOWLEDGE: KindRules(
        bulk_operations.DEAD_LETTER_SELECTION, _acknowledge_dead_letters, needs_note=True
    ),
    BulkKind.ONE_SHOT_CANCEL: KindRules(bulk_operations.ONE_SHOT_SELECTION, _cancel_tasks),
}
