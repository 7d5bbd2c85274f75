"""Firing of schedules: decide due occurrences and create executions. Also manual runs and queued runs.

One transaction locks the due schedules, decides every due instant (`model.work.occurrences`), writes the occurrence
ledger, creates the executions with their tasks and stores the next run. Any number of schedulers may do this
concurrently. Each due instant is decided once, because the key of the ledger is unique.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, NotFound, StoreError
from tenuto.ids import new_id
from tenuto.lifecycle.execution_control import cancel_executions_in_transaction
from tenuto.logs import Log
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.schedules import MisfirePolicy, OverlapPolicy, Plan, misfire_from_json, plan_from_fields
from tenuto.model.triggers import trigger_from_json
from tenuto.model.work.logical_time import interval_start_of
from tenuto.model.work.occurrences import (
    DecidedOccurrence,
    Decision,
    OverlapState,
    decide_due_occurrences,
    decide_overlap,
    first_undecided_instant,
)
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import next_runs
from tenuto.scheduling.next_runs import RunTimes
from tenuto.service.quarantine import (
    LOCKED_ROWS_PER_BATCH,
    UNREADABLE_ROW_ERRORS,
    LockedRows,
    Quarantine,
    isolate_errors,
    process_in_batches,
)
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import DueSchedule, LedgerEntry, QueuedRun, RunBlockers, Schedule
from tenuto.store.work import executions
from tenuto.store.work.executions import NewExecution

SCHEDULER = Actor.system("scheduler")
UNREADABLE_REQUEST_KEPT_FOR = timedelta(minutes=5)
"""Time for a scheduler of another version to start a queued request that this one cannot read."""

log = Log("tenuto.scheduler")


def new_quarantine() -> Quarantine:
    """Return an empty quarantine for schedules."""
    return Quarantine("schedule", log)


@dataclass(slots=True)
class FiringBatch:
    """Decisions of one transaction, collected before they are written; ``locked_count`` schedules were due."""

    now: datetime
    scheduler: str
    quarantine: Quarantine
    locked_count: int = 0
    entries: list[LedgerEntry] = field(default_factory=list)
    executions: list[NewExecution] = field(default_factory=list)
    run_times: list[RunTimes] = field(default_factory=list)
    fired_names: list[str] = field(default_factory=list)


async def fire_due_schedules(
    database: Database,
    now: datetime,
    scheduler: str,
    quarantine: Quarantine | None = None,
    report: Callable[[Sequence[str]], None] = lambda _names: None,
) -> int:
    """Fire every due schedule; return their number.

    A schedule that cannot be fired goes into quarantine. It stays due for a scheduler that can fire it. ``report``
    receives the names of the fired schedules, after each commit.
    """
    unfireable = new_quarantine() if quarantine is None else quarantine

    async def fire(connection: Connection, limit: int, locked: LockedRows) -> FiringBatch:
        return await _fire_batch(connection, FiringBatch(now, scheduler, unfireable), limit, locked)

    batches = process_in_batches(database, fire, unfireable, "fire")
    count = 0
    async for batch in batches:
        count += len(batch.run_times)
        report(batch.fired_names)
    return count


async def _fire_batch(connection: Connection, batch: FiringBatch, limit: int, locked: LockedRows) -> FiringBatch:
    due_schedules = await schedules.lock_due_schedules(connection, batch.now, limit, batch.quarantine.rows)
    if not due_schedules:
        return batch
    batch.locked_count = len(due_schedules)
    locked.update({(schedule.id, schedule.version): schedule.name for schedule in due_schedules})
    # After the lock on the schedules: executions that another transaction has just committed must be visible.
    blockers = await schedules.load_run_blockers(connection, [schedule.id for schedule in due_schedules])
    to_lock = [_execution_to_lock(schedule, blockers[schedule.id]) for schedule in due_schedules]
    if ids := [id for id in to_lock if id is not None]:
        # All in one statement, in the order in which every transaction locks executions.
        await executions.lock_execution_trees(connection, ids)  # guard: schedules.blocker_lock_order
    for schedule in due_schedules:
        # guard: schedules.active_execution
        await _decide_occurrences(connection, schedule, blockers[schedule.id], batch)
    await schedules.write_ledger_entries(connection, batch.entries, batch.now, batch.scheduler)
    await executions.create_executions(connection, batch.executions)
    await schedules.record_firings(connection, batch.run_times)
    return batch


def _execution_to_lock(schedule: DueSchedule, blockers: RunBlockers) -> UUID | None:
    """Return the active execution if it may be cancelled or a run may be queued behind it."""
    may_change = schedule.overlap in (OverlapPolicy.CANCEL_PREVIOUS, OverlapPolicy.QUEUE_ONE)
    # guard: schedules.blocker_lock_for_missed_runs
    return blockers.active_execution_id if may_change or _queues_missed_runs(schedule) else None


def _queues_missed_runs(schedule: DueSchedule) -> bool:
    if schedule.overlap == OverlapPolicy.ALLOW:
        return False
    try:
        return misfire_from_json(schedule.misfire_json).policy is MisfirePolicy.ALL
    except UNREADABLE_ROW_ERRORS:
        return False  # reported in `_decide_occurrences`


async def _decide_occurrences(
    connection: Connection, schedule: DueSchedule, blockers: RunBlockers, batch: FiringBatch
) -> None:
    """Decide every due instant of one schedule."""
    try:
        misfire, plan, trigger = (
            misfire_from_json(schedule.misfire_json),
            schedule.parse_plan(),
            schedule.parse_trigger(),
        )
        policy = OverlapPolicy(schedule.overlap)
        first = first_undecided_instant(trigger, schedule.next_run_at, blockers.decided_until, str(schedule.id))
        if first is None or first > batch.now:
            batch.run_times.append((schedule.id, None, first))
            return
        due = decide_due_occurrences(trigger, first, batch.now, misfire, str(schedule.id))
    except UNREADABLE_ROW_ERRORS as error:
        # Edited by hand or written by a later version. The schedule stays due for a scheduler that can read it; the
        # misfire policy decides occurrences that are too late by then.
        batch.quarantine.add((schedule.id, schedule.version), schedule.name, "read", error)
        return
    last_run_at: datetime | None = None
    catching_up = misfire.policy is MisfirePolicy.ALL and (
        sum(occurrence.decision is Decision.FIRED for occurrence in due.decided) > 1
    )
    for occurrence in due.decided:
        if occurrence.decision is not Decision.FIRED:
            batch.entries.append(
                _entry(schedule, occurrence.due_at, occurrence.decision, occurrence.reason, until=occurrence.until)
            )
            continue
        if last_run_at is None:  # an execution of this transaction is not "the previous run"
            blockers = await _cancel_previous_run(connection, schedule, blockers, batch.now)
        decision, reason, queue_reason = _apply_overlap_policy(policy, blockers, catching_up=catching_up)
        run_id = new_id() if decision is Decision.FIRED else None
        batch.entries.append(
            _entry(schedule, occurrence.due_at, decision, reason, run_id=run_id, queue_reason=queue_reason)
        )
        if run_id is not None:
            interval_start = interval_start_of(trigger, occurrence.due_at, str(schedule.id))
            batch.executions.append(_triggered_execution(run_id, schedule, plan, occurrence, interval_start, batch.now))
            last_run_at = batch.now
        if run_id is not None or decision is Decision.QUEUED:
            blockers = RunBlockers(
                run_id or blockers.active_execution_id, blockers.has_queued_run or decision is Decision.QUEUED
            )
    batch.run_times.append((schedule.id, last_run_at, due.next_run_at))
    batch.fired_names.append(schedule.name)


async def _cancel_previous_run(
    connection: Connection, schedule: DueSchedule, blockers: RunBlockers, now: datetime
) -> RunBlockers:
    """Cancel the active execution if the overlap policy says so; return the remaining blockers."""
    if schedule.overlap != OverlapPolicy.CANCEL_PREVIOUS or blockers.active_execution_id is None:
        return blockers
    active = await _cancel_active_executions(connection, schedule.id, now, SCHEDULER, "the next run is due")
    return RunBlockers(active, blockers.has_queued_run)


def _apply_overlap_policy(
    policy: OverlapPolicy, blockers: RunBlockers, *, catching_up: bool
) -> tuple[Decision, str | None, str | None]:
    """Return the decision on one due instant, its reason, and why a queued run waits."""
    if (
        catching_up
        and policy is not OverlapPolicy.ALLOW
        and (blockers.active_execution_id is not None or blockers.has_queued_run)
    ):
        return Decision.QUEUED, "missed runs are made up for one after the other", "catch_up"
    decision, reason = decide_overlap(
        policy, OverlapState(blockers.active_execution_id is not None, blockers.has_queued_run)
    )
    return decision, reason, "overlap" if decision is Decision.QUEUED else None


async def _cancel_active_executions(
    connection: Connection, schedule_id: UUID, now: datetime, by: Actor, reason: str
) -> UUID | None:
    """Cancel the active executions of a schedule; return one that is still stopping, if any."""
    active = await schedules.list_active_executions(connection, schedule_id)
    await cancel_executions_in_transaction(connection, active, now, by, reason)
    stopping = await schedules.list_active_executions(connection, schedule_id)
    return stopping[0] if stopping else None


def _entry(
    schedule: DueSchedule,
    due_at: datetime,
    decision: Decision,
    reason: str | None,
    *,
    until: datetime | None = None,
    run_id: UUID | None = None,
    queue_reason: str | None = None,
) -> LedgerEntry:
    return LedgerEntry(
        new_id(), schedule.id, schedule.name, due_at, until, "trigger", decision, queue_reason, reason, run_id
    )


def _triggered_execution(
    id: UUID, schedule: DueSchedule, plan: Plan, occurrence: DecidedOccurrence, interval_start: datetime, now: datetime
) -> NewExecution:
    exclusive = schedule.overlap != OverlapPolicy.ALLOW
    return NewExecution(
        id, schedule.id, schedule.name, schedule.version, "trigger", exclusive, plan, occurrence.due_at, now, SCHEDULER,
        interval_start=interval_start,
    )  # fmt: skip


# --- manual runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a request to run a schedule now."""

    decision: Decision
    reason: str | None
    execution_id: UUID | None


async def try_run_immediately(
    database: Database, schedule: Schedule, now: datetime, by: Actor, request_id: UUID
) -> RunResult | None:
    """Run a schedule as last read, in one statement; return None if `run_schedule` has to decide.

    Fast path: the statement ``create_manual_execution`` repeats the overlap decision for a schedule without an active
    or queued run. Equivalence test: tests/scheduling/test_immediate_runs.py.
    """
    try:
        created = await executions.create_manual_execution(
            database, _manual_execution(request_id, schedule, schedule.plan, now, now, by)
        )
    except StoreError:  # another run has just begun, or the reply was lost and this run may have begun
        return None
    return RunResult(Decision.FIRED, None, request_id) if created else None


async def run_schedule(
    connection: Connection,
    name: str,
    now: datetime,
    by: Actor,
    *,
    request_id: UUID,
    change: Callable[[Plan], Plan] | None = None,
    on_repeat: Callable[[], None] = lambda: None,
) -> RunResult:
    """Run a schedule now, subject to its overlap policy, and write the occurrence ledger.

    ``change`` modifies the plan for this run. The request id becomes the execution id: a repeated request starts no
    second run; ``on_repeat`` is called for it, because it changes nothing.
    """
    schedule = await schedules.lock_schedule(connection, name)
    # guard: schedules.one_decision_per_request
    blockers, earlier = await schedules.load_manual_run_state(
        connection, None if schedule is None else schedule.id, request_id
    )
    if earlier is not None:
        if schedule is not None and earlier.schedule_id != schedule.id:
            raise Conflict(
                f"request_id {request_id} was used before to run schedule {earlier.schedule_name!r}",
                code="schedule.request_id.reused",
                field="request_id",
                remedy="use a new request id",
            )
        on_repeat()
        return RunResult(Decision(earlier.decision), earlier.reason, earlier.execution_id)
    if schedule is None:
        raise NotFound(
            f"schedule {name!r} does not exist", code="schedule.not_found", remedy="see `tenuto schedule list`"
        )
    plan = schedule.plan if change is None else change(schedule.plan)
    policy = schedule.definition.overlap
    if policy is OverlapPolicy.CANCEL_PREVIOUS and blockers.active_execution_id is not None:
        active = await _cancel_active_executions(connection, schedule.id, now, by, "it was run again by hand")
        blockers = RunBlockers(active, blockers.has_queued_run)
    decision, reason = decide_overlap(
        policy, OverlapState(blockers.active_execution_id is not None, blockers.has_queued_run)
    )
    run_id = request_id if decision is Decision.FIRED else None
    queued = decision is Decision.QUEUED
    entry = LedgerEntry(
        request_id,
        schedule.id,
        name,
        now,
        None,
        "manual",
        decision,
        "overlap" if queued else None,
        reason,
        run_id,
        _queued_request(plan, by) if queued else None,
    )
    await schedules.write_ledger_entries(
        connection, [entry], now, by.name, manually_run_id=None if run_id is None else schedule.id
    )
    if run_id is not None:
        await executions.create_executions(connection, [_manual_execution(run_id, schedule, plan, now, now, by)])
    return RunResult(decision, reason, run_id)


def _manual_execution(
    id: UUID, schedule: Schedule, plan: Plan, due_at: datetime, now: datetime, by: Actor
) -> NewExecution:
    exclusive = schedule.definition.overlap is not OverlapPolicy.ALLOW
    return NewExecution(id, schedule.id, schedule.name, schedule.version, "manual", exclusive, plan, due_at, now, by)


# --- queued runs ----------------------------------------------------------------------------------------------------


async def start_queued_runs(
    database: Database, now: datetime, scheduler: str, quarantine: Quarantine | None = None
) -> int:
    """Start runs that were queued behind an execution which has ended; return their number.

    A queued request that no scheduler can read is dropped after a while, because it blocks its schedule.
    """
    quarantine = new_quarantine() if quarantine is None else quarantine
    started_count = 0
    for id, version, name in await schedules.find_schedules_with_startable_run(
        database, LOCKED_ROWS_PER_BATCH, quarantine.rows
    ):
        with isolate_errors(partial(quarantine.add, (id, version), name, "start queued run")):
            start = partial(_start_queued_run, schedule_id=id, now=now, scheduler=scheduler)
            started_count += await database.transaction(start)
    return started_count


async def _start_queued_run(connection: Connection, schedule_id: UUID, now: datetime, scheduler: str) -> int:
    schedule = await schedules.lock_schedule_by_id(connection, schedule_id)
    if schedule is None:
        await schedules.drop_queued_runs(
            connection, schedule_id, "the schedule was deleted", now, scheduler, including_manual=True
        )
        return 0
    blockers = (await schedules.load_run_blockers(connection, [schedule_id]))[schedule_id]
    queued = await schedules.load_first_queued_run(connection, schedule_id)
    if queued is None or blockers.active_execution_id is not None:
        return 0
    run_id = new_id()
    if queued.request is None:
        new = NewExecution(
            run_id, schedule.id, schedule.name, schedule.version, "trigger",
            schedule.definition.overlap is not OverlapPolicy.ALLOW, schedule.plan, queued.due_at, now, SCHEDULER,
            interval_start=interval_start_of(schedule.definition.trigger, queued.due_at, str(schedule.id)),
        )  # fmt: skip
    else:
        try:
            plan, requested_by = parse_queued_request(queued.request)
        except UNREADABLE_ROW_ERRORS as error:
            await _drop_request_or_raise(connection, schedule, queued, error, now, scheduler)
            return await _start_queued_run(connection, schedule_id, now, scheduler)
        new = _manual_execution(run_id, schedule, plan, queued.due_at, now, requested_by)
    await schedules.mark_queued_run_started(connection, queued.id, run_id, now, scheduler)
    await executions.create_executions(connection, [new])
    await schedules.record_manual_run(connection, schedule.id, now)
    return 1


def _queued_request(plan: Plan, by: Actor) -> str:
    return json.dumps({"plan": plan.to_fields(), "by": [by.type, by.id, by.name]}, ensure_ascii=False)


def parse_queued_request(request: Any) -> tuple[Plan, Actor]:
    """Return the plan and the initiator of a queued request."""
    by = type, id, name = request["by"]
    if not (isinstance(type, str) and isinstance(id, str | None) and isinstance(name, str)):
        raise TypeError("the request names no initiator")
    return plan_from_fields(request["plan"]), Actor(*by)


async def _drop_request_or_raise(
    connection: Connection, schedule: Schedule, queued: QueuedRun, error: Exception, now: datetime, scheduler: str
) -> None:
    """Drop an unreadable request; raise the error while a scheduler of another version may still start it."""
    reason = f"the request cannot be read: {error}"
    turn_before = now - UNREADABLE_REQUEST_KEPT_FOR
    if not await schedules.drop_unreadable_run(connection, queued.id, reason, now, scheduler, turn_before=turn_before):
        raise error
    log.warning("queued run dropped", schedule=schedule.name, due_at=queued.due_at.isoformat(), reason=reason)


# --- missing next runs ----------------------------------------------------------------------------------------------


async def compute_missing_next_runs(database: Database, now: datetime, quarantine: Quarantine | None = None) -> int:
    """Compute the next run of every enabled schedule that has none; return their number."""
    quarantine = new_quarantine() if quarantine is None else quarantine
    return await next_runs.compute_missing_next_runs(
        database, now, quarantine, schedules.lock_unplanned_schedules, trigger_from_json, schedules.record_firings
    )
