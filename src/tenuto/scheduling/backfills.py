"""Backfills: run a schedule for past due instants that have no run.

A backfill is a bulk operation (`operations.work.bulk_processor` calls `advance_backfill` for each chunk). Its items are
due instants. At most ``max_running`` of its executions are open at a time, in the order of the instants. The overlap
policy does not apply: ordinary runs of the schedule and runs of a backfill do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.model.access.actors import Actor
from tenuto.model.work.bulk_operations import SUCCEEDED, ItemOutcome, ItemResult
from tenuto.model.work.logical_time import interval_start_of
from tenuto.model.work.occurrences import Decision
from tenuto.postgres.database import Connection
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerEntry, Schedule
from tenuto.store.work import bulk_operations, executions
from tenuto.store.work.bulk_operations import BackfillRun
from tenuto.store.work.executions import NewExecution

_MICROSECOND = timedelta(microseconds=1)


async def list_missing_instants(
    connection: Connection, schedule: Schedule, start: datetime, end: datetime, max_count: int
) -> tuple[list[datetime], int]:
    """Return the due instants from ``start`` to ``end`` without a run, and the number of those with one.

    At most ``max_count`` instants are read. The caller has locked the schedule or only wants a preview.
    """
    trigger, seed = schedule.definition.trigger, str(schedule.id)
    instants: list[datetime] = []
    for instant in trigger.runs_between(start - _MICROSECOND, end, seed):
        instants.append(instant)
        if len(instants) >= max_count:
            break
    existing = await schedules.list_instants_with_run(connection, schedule.id, instants)
    return [instant for instant in instants if instant not in existing], len(existing)


async def advance_backfill(
    connection: Connection, id: UUID, schedule_id: UUID | None, actor: Actor, now: datetime, chunk_size: int
) -> bool:
    """Count the executions of a backfill that have ended and start the next; return whether all have ended."""
    ended = await bulk_operations.list_ended_runs(connection, id)
    if ended:
        await bulk_operations.store_results(connection, id, {run.item_id: _describe_end(run) for run in ended})
    if items := await bulk_operations.list_startable_items(connection, id, chunk_size):
        schedule = None if schedule_id is None else await schedules.lock_schedule_by_id(connection, schedule_id)
        if schedule is None:
            gone = ItemResult(ItemOutcome.SKIPPED, "schedule.not_found", "the schedule was deleted")
            await bulk_operations.store_results(connection, id, dict.fromkeys(items, gone))
        else:
            # Under the lock of the schedule, which every decision on its due instants takes
            # guard: backfills.existing_run
            existing = await schedules.list_instants_with_run(connection, schedule.id, list(items.values()))
            missing = {item: due_at for item, due_at in items.items() if due_at not in existing}
            await _start_runs(connection, schedule, missing.items(), actor, now)
            await bulk_operations.mark_started(connection, id, list(missing), now)
            await bulk_operations.store_results(
                connection,
                id,
                {
                    item: ItemResult(
                        ItemOutcome.SKIPPED, "schedule.backfill.exists", f"{due_at.isoformat()} has a run already"
                    )
                    for item, due_at in items.items()
                    if due_at in existing
                },
            )
    return not await bulk_operations.has_open_items(connection, id)


async def _start_runs(
    connection: Connection, schedule: Schedule, items: Collection[tuple[UUID, datetime]], actor: Actor, now: datetime
) -> None:
    trigger, seed = schedule.definition.trigger, str(schedule.id)
    entries = [
        LedgerEntry(item, schedule.id, schedule.name, due_at, None, "backfill", Decision.FIRED, None, None, item)
        for item, due_at in items
    ]
    new = [
        NewExecution(
            item, schedule.id, schedule.name, schedule.version, "backfill", False, schedule.plan, due_at, now, actor,
            interval_start=interval_start_of(trigger, due_at, seed),
        )
        for item, due_at in items
    ]  # fmt: skip
    if entries:
        await schedules.write_ledger_entries(connection, entries, now, actor.name)
        await executions.create_executions(connection, new)


def _describe_end(run: BackfillRun) -> ItemResult:
    if run.state in ("completed", None):
        return SUCCEEDED
    message = f"the execution for {run.due_at.isoformat()} {run.state}: {run.error or 'no error was recorded'}"
    return ItemResult(ItemOutcome.FAILED, f"execution.{run.state}", message)
