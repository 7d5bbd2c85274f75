"""Rows of executions: create them with their tasks, advance, cancel, pause, repair and read them.

Decisions are made in `model.work.executions` and `model.work.occurrences`. Two statements are fast paths that also
contain a decision: `finish_group` (see `lifecycle.advancement`) and `create_manual_execution`; tests check that they
are equivalent. Lock order: schedules, executions by id, then tasks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from tenuto.ids import new_ids
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.definitions.run_references import resolve_run_references
from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.step_expressions import add_references_to_policy, has_references
from tenuto.model.definitions.steps import Step
from tenuto.model.filters import Filter
from tenuto.model.work.executions import ExecutionState
from tenuto.model.work.known_handlers import KnownHandlers, claim_parameters
from tenuto.model.work.logical_time import Occurrence
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import CLAIM_DEFAULTS, ActivityState, NewTask, OutcomeReason, Task
from tenuto.postgres import read_transactions
from tenuto.postgres.bulk_copy import to_columns
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.filter_sql import EXECUTIONS, CappedCount, count_rows, count_rows_of_each
from tenuto.store.row_mapping import FromJson, PositionalMapper, RowMapper
from tenuto.store.work.task_creation import task_columns
from tenuto.tracing import record_enqueue_span

SQL = load_statements(__file__)

MAX_LISTED_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """An execution in a strip of outcomes."""

    id: UUID
    schedule_id: UUID
    state: ExecutionState
    failed_step_count: int
    started_at: datetime
    ended_at: datetime | None
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution, as in lists."""

    id: UUID
    schedule_id: UUID
    schedule_name: str
    version: int
    """Version of the schedule."""
    origin: str
    state: ExecutionState
    current_group: int
    first_group: int
    group_count: int
    step_count: int
    failed_step_count: int
    error: str | None
    due_at: datetime
    started_at: datetime
    ended_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    initiator_type: ActorType
    initiator_id: str | None
    initiator_name: str
    parent_task_id: UUID | None
    """Task of the step that started the execution."""
    retry_of: UUID | None
    """The execution that this one retries."""
    cancelled_at: datetime | None
    cancel_name: str | None


@dataclass(frozen=True, slots=True)
class StoredExecution(ExecutionRecord):
    """An execution with its plan."""

    alone: bool
    """Whether no other execution of the schedule may run at the same time."""
    cancel_type: ActorType | None
    cancel_id: str | None
    cancel_reason: str | None
    plan_json: str
    interval_start: datetime | None
    """Of a run of a trigger or of a backfill: the due instant of the trigger before ``due_at``."""


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """An attempt at a step of an execution, ended or open."""

    step_index: int
    group_index: int
    id: UUID
    task_id: UUID
    attempt: int
    state: ActivityState
    reason: OutcomeReason | None
    final: bool
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    error: Annotated[Any, FromJson]
    progress: Annotated[Any, FromJson]
    worker_id: UUID | None
    worker: str | None
    failure_count: int
    loss_count: int


@dataclass(frozen=True, slots=True)
class OpenExecution:
    """An execution that has not ended."""

    id: UUID
    schedule_name: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class WaitCycleStep:
    """A step whose execution cannot end because the step waits, through other executions, for that end."""

    id: UUID
    execution_id: UUID
    waits_for: UUID
    schedule_name: str
    """Schedule of the execution that the step waits for."""
    started_it: bool
    """Whether the step started the execution that it waits for."""


@dataclass(frozen=True, slots=True)
class NewExecution:
    """An execution that is to be created."""

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
    interval_start: datetime | None = None
    """The due instant of the trigger before ``due_at``."""
    kept_results: str | None = None
    """Of a retry whose steps depend on earlier ones: the results of the steps that it does not repeat, as JSON. Then no
    step is queued; the caller advances the execution."""


_OUTCOMES = PositionalMapper(ExecutionOutcome, SQL.list_recent_outcomes, decodes=True)
_EXECUTIONS = RowMapper(ExecutionRecord, SQL.list_executions)
_STORED_EXECUTIONS = RowMapper(StoredExecution, SQL.load_execution, SQL.load_last_child_of_step)
_STEP_ATTEMPTS = RowMapper(StepAttempt, SQL.list_step_attempts)
_OPEN_EXECUTIONS = RowMapper(OpenExecution, SQL.load_oldest_open_execution)
_WAIT_CYCLE_STEPS = RowMapper(WaitCycleStep, SQL.find_wait_cycles)
# By position: a measured optimisation (benchmark executions); test_records.py checks the columns.
_TASKS = PositionalMapper(Task, SQL.lock_unclaimed_steps, defaults=CLAIM_DEFAULTS)
_STARTED_TASKS = PositionalMapper(Task, SQL.start_groups, skip=2, defaults=CLAIM_DEFAULTS)
_FAST_STARTED_TASKS = PositionalMapper(Task, SQL.finish_group, skip=3, defaults=CLAIM_DEFAULTS)


# --- creating -------------------------------------------------------------------------------------------------------


async def create_executions(connection: Connection, new: Sequence[NewExecution]) -> None:
    """Create executions with all their tasks; the first group is queued, the others wait."""
    if not new:
        return
    rows = [
        (
            each.id, each.schedule_id, each.schedule_name, each.version, each.origin, each.alone, each.plan.to_json(),
            each.first_group, len(each.plan.groups), each.plan.step_count, each.due_at, each.started_at,
            each.initiator.type, each.initiator.id, each.initiator.name, each.parent_task_id, each.retry_of,
            each.interval_start, each.plan.step_dependencies, each.kept_results,
        )
        for each in new
    ]  # fmt: skip
    steps = [step for each in new for step in _new_steps(each)]
    await connection.execute(SQL.create_executions, *to_columns(rows), *task_columns(steps))


async def create_manual_execution(database: Database, new: NewExecution) -> bool:
    """Create a manual run of a known schedule version with its ledger entry, in one statement without retries.

    Return False if the schedule has changed or a run is active or queued.
    """
    return bool(await database.write_once(SQL.create_manual_execution, *_manual_execution_values(new)))


def _manual_execution_values(new: NewExecution) -> Iterable[Any]:
    actor = new.initiator
    return (
        new.id, new.schedule_id, new.schedule_name, new.version, new.alone, new.plan.to_json(),
        len(new.plan.groups), new.plan.step_count, new.started_at, actor.type, actor.id, actor.name,
        new.plan.step_dependencies, *task_columns(_new_steps(new)),
    )  # fmt: skip


def _new_steps(execution: NewExecution) -> list[NewTask]:
    """Return the tasks of an execution: those of its first group are queued, the others wait."""
    ids, trace = new_ids(execution.plan.step_count), record_enqueue_span(execution.schedule_name)
    occurrence = Occurrence(execution.due_at, execution.interval_start)
    steps = [
        NewTask(
            id,
            step.target,
            json.dumps(dict(resolve_run_references(step.kind, step.arguments, occurrence)), ensure_ascii=False),
            execution.started_at,
            execution.initiator,
            kind=step.kind,
            queue=step.queue or "default",
            priority=step.priority or 0,
            policy=_step_policy(step, occurrence),
            limit_key=step.limit_key,
            limit_max=step.limit_max,
            rate_key=step.rate_key,
            rate_limit=None if step.rate_limit is None else parse_rate_limit(step.rate_limit),
            # The statements that start a later group move it by the time that the group waited.
            expires_at=(
                None if step.expires_seconds is None else execution.started_at + timedelta(seconds=step.expires_seconds)
            ),
            correlation_id=str(execution.id),
            is_held=group != execution.first_group or execution.kept_results is not None,
            execution_id=execution.id,
            group_index=group,
            step_index=number,
        )
        for id, (group, number, step) in zip(ids, execution.plan.enumerate_steps(), strict=True)
        if group >= execution.first_group
    ]
    for step in steps:
        step.join_trace(trace)
    return steps


def _step_policy(step: Step, occurrence: Occurrence) -> str:
    policy = "{}" if step.policy is None else step.policy.to_json()
    if has_references(step.arguments):
        policy = add_references_to_policy(policy, step.arguments)
    return occurrence.add_to_policy(policy)


# --- advancing ------------------------------------------------------------------------------------------------------


async def lock_executions(connection: Connection, ids: Iterable[UUID]) -> None:
    """Lock executions until the transaction ends."""
    if wanted := sorted(ids):
        await connection.fetch(SQL.lock_executions, wanted)


async def lock_if_in_progress(connection: Connection, id: UUID) -> bool:
    """Lock an execution until the transaction ends; return whether it is in progress."""
    rows = await connection.fetch(SQL.lock_executions, [id])
    return any(row["state"] == "in_progress" for row in rows)


@dataclass(slots=True)
class NextGroupClaim:
    """A worker's claim on the groups that follow those it has just finished."""

    worker_id: UUID
    lease: timedelta
    queues: Sequence[str]
    limit: int
    known: KnownHandlers | None = None
    """The jobs and step kinds of which tasks are claimed; None: all."""
    claimed: list[Task] = field(default_factory=list)


@dataclass(slots=True)  # not frozen: that makes construction four times as slow (benchmark `executions`)
class FinishedGroup:
    """The current step group of an open execution, once none of its tasks is left."""

    execution_id: UUID
    execution_state: str
    plan_json: str
    group_index: int
    failed_before: int
    """Number of steps that failed in earlier groups."""
    has_dependencies: bool
    """Whether its steps depend on earlier ones; then its group may not have ended."""
    failures_json: str | None
    """Step number, status, reason and message of each step of this group that did not succeed; None if all did."""

    def parse_failures(self) -> list[tuple[int, str, str | None, str | None]]:
        return [] if self.failures_json is None else json.loads(self.failures_json)


_finished_groups = PositionalMapper(FinishedGroup, SQL.list_finished_groups)


async def list_finished_groups(connection: Connection, ids: Sequence[UUID]) -> list[FinishedGroup]:
    """Return the finished current groups of these executions, whose locks the caller holds."""
    return _finished_groups.all(await connection.fetch(SQL.list_finished_groups, ids))


@dataclass(frozen=True, slots=True)
class DependentExecution:
    """An open execution whose steps depend on earlier ones."""

    plan_json: str
    state: ExecutionState
    current_group: int
    first_group: int
    failed_step_count: int
    is_paused: bool
    kept_json: str | None
    """Of a retry: status and output of the steps that it does not repeat, by position."""
    due_at: datetime
    interval_start: datetime | None


@dataclass(frozen=True, slots=True)
class StepState:
    """The state of a step: waiting, open, or the status of its last attempt."""

    step_index: int
    state: str
    reason: str | None
    message: str | None


_DEPENDENT_EXECUTIONS = RowMapper(DependentExecution, SQL.load_step_dependencies)
_STEP_STATES = RowMapper(StepState, SQL.list_step_progress)
_WAITING_STEPS = PositionalMapper(Task, SQL.lock_waiting_steps, defaults=CLAIM_DEFAULTS)


async def load_step_dependencies(connection: Connection, id: UUID) -> DependentExecution | None:
    """Return an open execution whose steps depend on earlier ones; None for any other."""
    return _DEPENDENT_EXECUTIONS.optional(await connection.fetchrow(SQL.load_step_dependencies, id))


async def load_kept_results(connection: Connection, id: UUID) -> str | None:
    """Return the results of the steps that a retry did not repeat, as JSON; None if there are none."""
    found: str | None = await connection.fetchval(SQL.load_kept_results, id)
    return found


async def list_step_progress(connection: Connection, id: UUID) -> list[StepState]:
    """Return the state of every step of an execution that has a task or a final attempt."""
    return _STEP_STATES.all(await connection.fetch(SQL.list_step_progress, id, MAX_LISTED_STEPS))


async def list_step_outputs(connection: Connection, id: UUID, positions: Collection[int]) -> dict[int, Any]:
    """Return the outputs of ended steps, by position; None for a step without output."""
    rows = await connection.fetch(SQL.list_step_outputs, id, sorted(positions), MAX_LISTED_STEPS)
    return {row["step_index"]: None if row["output_json"] is None else json.loads(row["output_json"]) for row in rows}


async def start_steps(connection: Connection, id: UUID, inputs: Mapping[int, str | None], now: datetime | None) -> None:
    """Queue waiting steps of an execution, given as position and input; None keeps the input."""
    await connection.execute(SQL.start_steps, id, list(inputs), list(inputs.values()), now)


async def move_execution(connection: Connection, id: UUID, group: int, failed_step_count: int) -> None:
    """Set the current group of an execution and the number of its failed steps."""
    await connection.execute(SQL.move_execution, id, group, failed_step_count)


async def lock_waiting_steps(connection: Connection, id: UUID, positions: Collection[int]) -> list[Task]:
    """Return and lock waiting steps of an execution, in the order of their positions."""
    return _WAITING_STEPS.all(await connection.fetch(SQL.lock_waiting_steps, id, sorted(positions)))


async def start_groups(
    connection: Connection,
    starts: Sequence[tuple[UUID, int, int]],
    now: datetime | None,
    next_claim: NextGroupClaim | None = None,
) -> list[UUID]:
    """Start the next step group of executions, given as (execution id, group, failed steps so far).

    Return the executions whose next group has no task, because all its steps were cancelled beforehand.
    """
    claim: tuple[Any, ...] = (None, None, [], 0, None, None)
    if next_claim is not None:
        known = claim_parameters(next_claim.known)
        claim = (next_claim.worker_id, next_claim.lease, next_claim.queues, next_claim.limit, *known)
    rows = await connection.fetch(SQL.start_groups, *to_columns(starts), now, *claim)
    if next_claim is not None:
        next_claim.claimed = _STARTED_TASKS.all(row for row in rows if row["id"] is not None)
    return list(rows[0]["empty_executions"])


async def end_executions(
    connection: Connection, ends: Sequence[tuple[UUID, str, int, str | None]], now: datetime | None
) -> None:
    """End executions, given as (execution id, state, failed steps, error), and release the steps that wait for them."""
    row = await connection.fetchrow(SQL.end_executions, *to_columns(ends), now)
    if row is not None and row["parent_ids"]:  # guard: executions.awaiting_step_waits_while_paused
        await hold_steps_of_paused(connection, row["parent_ids"])


async def finish_group(
    database: Database, worker_id: UUID, execution_id: UUID, outcomes: Sequence[Any], next_claim: NextGroupClaim | None
) -> bool:
    """Fast path: end the successful last steps of a group and start the next group or end the execution.

    Return False, and change nothing, in any other case. A statement with a claim is sent without retries.
    """
    ids, fences, statuses, ended, *rest = outcomes
    lease, queues, limit = (
        (timedelta(0), [], 0) if next_claim is None else (next_claim.lease, next_claim.queues, next_claim.limit)
    )
    known = claim_parameters(None if next_claim is None else next_claim.known)
    values = (worker_id, ids, fences, statuses, ended, execution_id, lease, queues, limit, *rest, *known)
    if next_claim is None:
        return bool(await database.write_all(SQL.finish_group, *values))
    rows = await database.write_once(SQL.finish_group, *values)
    next_claim.claimed = _FAST_STARTED_TASKS.all(row for row in rows if row["id"] is not None)
    return bool(rows)


async def hold_steps_of_paused(connection: Connection, ids: Iterable[UUID]) -> None:
    """Set queued and scheduled steps of paused executions to waiting."""
    await connection.execute(SQL.hold_steps_of_paused, list(ids))


async def lock_unclaimed_steps(connection: Connection, ids: Iterable[UUID]) -> list[Task]:
    """Return and lock the unclaimed tasks of executions."""
    return _TASKS.all(await connection.fetch(SQL.lock_unclaimed_steps, list(ids)))


# --- cancelling and pausing -----------------------------------------------------------------------------------------


async def lock_execution_trees(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Lock executions and their open descendants, parents first, and return their ids."""
    tree: list[UUID] = []
    # Repeated under the lock: a step may have started another execution (it locks its own execution to do so).
    while (found := [row["id"] for row in await connection.fetch(SQL.list_execution_trees, list(ids))]) != tree:
        tree = found  # guard: executions.children_read_under_lock
        await lock_executions(connection, tree)  # guard: executions.children_read_under_lock
    return tree


async def mark_cancelled(
    connection: Connection, ids: Sequence[UUID], now: datetime, by: Actor, reason: str | None
) -> list[UUID]:
    """Mark executions as cancelled and return those that were in progress; the caller cancels their tasks."""
    rows = await connection.fetch(SQL.mark_cancelled, ids, now, by.type, by.id, by.name, reason)
    return [row["id"] for row in rows]


async def request_cancellation(connection: Connection, ids: Sequence[UUID], by: Actor) -> None:
    """Request cancellation of running steps. Call it after the unclaimed steps were ended, so that no task claimed in
    between is missed."""
    await connection.execute(SQL.request_cancellation, ids, by.type, by.id, by.name)


async def is_finished(connection: Connection, id: UUID) -> bool:
    """Return whether an execution has ended."""
    return bool(await connection.fetchval(SQL.is_finished, id))


async def has_ended(database: Database, id: UUID) -> bool | None:
    """Return whether an execution has ended; None if it does not exist."""
    ended: bool | None = await database.fetch_value(SQL.is_finished, id)
    return ended


async def waits_for(connection: Connection, id: UUID, other: UUID) -> bool:
    """Return whether an execution waits, through its steps, for another one."""
    return bool(await connection.fetchval(SQL.waits_for, id, other))


async def load_last_child_of_step(database: Database, task_id: UUID, activity_id: UUID) -> StoredExecution | None:
    """Return the execution that this attempt at a step started, otherwise the last one of an earlier attempt."""
    return _STORED_EXECUTIONS.optional(await database.fetch_one(SQL.load_last_child_of_step, task_id, activity_id))


async def lock_step(connection: Connection, task: Task) -> bool:
    """Lock a step until the transaction ends; return False if its cancellation was requested or its worker lost it."""
    return await connection.fetchrow(SQL.lock_step, task.id, task.fence, task.worker_id) is not None


async def list_open_children(database: Database, task_id: UUID) -> list[UUID]:
    """Return the open executions that a step has started."""
    return [row["id"] for row in await database.fetch_all(SQL.list_open_children, task_id)]


async def pause_execution(connection: Connection, id: UUID, now: datetime, by: Actor) -> bool:
    """Pause an execution; return False if it is paused or has ended."""
    return await connection.fetchrow(SQL.pause_execution, id, now, by.name) is not None


async def resume_execution(connection: Connection, id: UUID, now: datetime) -> bool | None:
    """Resume an execution; return whether its steps depend on earlier ones, or None if it is not paused."""
    row = await connection.fetchrow(SQL.resume_execution, id, now)
    return None if row is None else bool(row["has_dependencies"])


# --- repairing ------------------------------------------------------------------------------------------------------


async def find_stuck_executions(database: Database, limit: int) -> list[UUID]:
    """Return executions without progress."""
    return [row["id"] for row in await database.fetch_all(SQL.find_stuck_executions, limit)]


async def lock_stuck_executions(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Lock and return those of these executions that no other transaction has locked."""
    return [row["id"] for row in await connection.fetch(SQL.lock_stuck_executions, ids)]


async def release_waiting_steps(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Queue steps of current groups that wait without a reason; return their executions."""
    return {row["execution_id"] for row in await connection.fetch(SQL.release_waiting_steps, ids)}


async def release_orphaned_waits(database: Database) -> int:
    """Queue the steps that wait for an ended execution; return their number."""
    return len(await database.write_all(SQL.release_orphaned_waits))


async def find_abandoned_executions(database: Database, limit: int) -> list[UUID]:
    """Return executions whose parent step no longer exists."""
    return [row["id"] for row in await database.fetch_all(SQL.find_abandoned_executions, limit)]


async def find_wait_cycles(connection: Connection, limit: int) -> list[WaitCycleStep]:
    """Return steps that wait, through other executions, for the end of their own; youngest first."""
    return _WAIT_CYCLE_STEPS.all(await connection.fetch(SQL.find_wait_cycles, limit))


async def load_oldest_open_execution(database: Database) -> OpenExecution | None:
    """Return the oldest open execution."""
    return _OPEN_EXECUTIONS.optional(await database.fetch_one(SQL.load_oldest_open_execution))


async def delete_old_executions(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of executions that ended before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_executions, cutoff, limit))


# --- reading --------------------------------------------------------------------------------------------------------


async def load_execution(database: Database, id: UUID) -> StoredExecution | None:
    """Return one execution."""
    return _STORED_EXECUTIONS.optional(await database.fetch_one(SQL.load_execution, id))


async def load_execution_with_attempts(
    database: Database, id: UUID
) -> tuple[StoredExecution | None, list[StepAttempt]]:
    """Return one execution and all attempts at its steps, as they were at the same instant."""

    async def load(connection: Connection) -> tuple[StoredExecution | None, list[StepAttempt]]:
        found = await connection.fetchrow(SQL.load_execution, id)
        attempts = await connection.fetch(SQL.list_step_attempts, id, MAX_LISTED_STEPS)
        return _STORED_EXECUTIONS.optional(found), _STEP_ATTEMPTS.all(attempts)

    return await read_transactions.read_snapshot(database, load)


async def list_step_attempts(database: Database, id: UUID) -> list[StepAttempt]:
    """Return all attempts at the steps of an execution, also open ones, in plan order."""
    return _STEP_ATTEMPTS.all(await database.fetch_all(SQL.list_step_attempts, id, MAX_LISTED_STEPS))


async def list_executions(
    database: Database, filter: Filter, *, below: UUID | None = None, limit: int
) -> list[ExecutionRecord]:
    """Return executions, newest first."""
    return _EXECUTIONS.all(await database.fetch_all(*EXECUTIONS.add_filter(SQL.list_executions, filter, below, limit)))


async def count_executions(database: Database, filter: Filter) -> CappedCount:
    """Count executions."""
    return await count_rows(database, EXECUTIONS, SQL.count_executions, filter)


async def count_executions_of_each(database: Database, filters: Sequence[Filter]) -> list[CappedCount]:
    """Count executions that meet each of the filters."""
    return await count_rows_of_each(database, EXECUTIONS, SQL.count_executions, filters)


async def list_usual_seconds(database: Database, schedule_ids: Collection[UUID], run_count: int) -> dict[UUID, float]:
    """Return the median duration of the last completed executions of each schedule that has one."""
    rows = await database.fetch_all(SQL.list_usual_seconds, list(schedule_ids), run_count)
    return {row["schedule_id"]: row["seconds"] for row in rows}


async def list_recent_outcomes(
    database: Database, schedule_ids: Collection[UUID], count: int
) -> list[ExecutionOutcome]:
    """Return the last executions of each schedule, oldest first."""
    return _OUTCOMES.all(await database.fetch_all(SQL.list_recent_outcomes, list(schedule_ids), count))


async def find_executions(database: Database, low: UUID, high: UUID) -> list[UUID]:
    """Return up to three ids of executions in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_executions, low, high)]
