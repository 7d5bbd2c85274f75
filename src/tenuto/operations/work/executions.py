"""Execution operations (``app.executions``): describe, list, cancel, pause, resume, retry and wait for executions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from tenuto.diagnostics.reasons import Diagnosis
from tenuto.diagnostics.task_diagnosis import diagnose_execution
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import execution_control
from tenuto.model.access.actors import ActorType
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.definitions.schedules import plan_from_json
from tenuto.model.definitions.steps import Step
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work.executions import StepState
from tenuto.model.work.tasks import OutcomeReason, parse_duration_seconds
from tenuto.operations.argument_checks import build_filter, check_limit, require_single_match
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.operations.definitions.schedules import find_schedule_id
from tenuto.operations.work.completion_waiter import EndNotifications, PollIntervals, wait_until_ended
from tenuto.operations.work.execution_timeline import (
    USUAL_RUN_COUNT,
    ExecutionTimeline,
    GroupWindow,
    StepValue,
    list_step_values,
    load_timeline,
)
from tenuto.postgres.database import Database
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work import activities, executions
from tenuto.store.work.executions import ExecutionOutcome, ExecutionRecord, StepAttempt, StoredExecution

POLL_INTERVALS = PollIntervals(first_seconds=0.002, growth=1.2)
"""Intervals between polls for the end of an execution, while no notifications can be received."""


@dataclass(frozen=True, slots=True)
class StepError:
    """The error of an attempt at a step."""

    attempt: int
    activity_id: UUID
    message: str


@dataclass(frozen=True, slots=True)
class StepDetails:
    """A step of an execution with its last attempt."""

    group: int
    number: int
    """Position in the plan, counted from 0."""
    name: str
    kind: str
    target: str
    continue_on_failure: bool
    state: StepState
    reason: OutcomeReason | None = None
    attempt: int = 0
    """Number of the last attempt; 0 if there was none."""
    task_id: UUID | None = None
    activity_id: UUID | None = None
    """The last attempt."""
    activity_ids: Sequence[UUID] = ()
    run_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    wait_seconds: float | None = None
    """From the due instant to the start of the last attempt."""
    duration_seconds: float | None = None
    """Duration of the last attempt until now."""
    progress: Any = None
    worker: str | None = None
    error: str | None = None
    """Error message of the last attempt."""
    last_error: StepError | None = None
    """While the step is being retried, the error of the latest failed attempt."""
    needs: Sequence[str] = ()
    """Names of the steps after which it may start, although others of their groups still run."""
    when: str | None = None
    """The condition under which it runs; otherwise it is skipped."""
    values: Sequence[StepValue] = ()
    """The values that it takes from earlier steps."""


@dataclass(frozen=True, slots=True)
class ExecutionDetails(ExecutionRecord):
    """An execution with its steps, in the order of the plan."""

    alone: bool
    cancel_type: ActorType | None
    cancel_id: str | None
    cancel_reason: str | None
    interval_start: datetime | None
    """Of a scheduled or backfilled run: the due instant before its own."""
    duration_seconds: float
    """Duration until now."""
    steps: Sequence[StepDetails]


def describe_execution(execution: StoredExecution, attempts: Sequence[StepAttempt], now: datetime) -> ExecutionDetails:
    """Return the execution with its steps, in the order of the plan."""
    by_step: dict[int, list[StepAttempt]] = {}
    for attempt in attempts:
        by_step.setdefault(attempt.step_index, []).append(attempt)
    steps = [
        _describe_step(step, group, number, by_step.get(number, []), execution, now)
        for group, number, step in plan_from_json(execution.plan_json).enumerate_steps()
    ]
    shown = {field.name: getattr(execution, field.name) for field in fields(execution) if field.name != "plan_json"}
    duration_seconds = _seconds_between(execution.started_at, execution.ended_at or now)
    return ExecutionDetails(**shown, duration_seconds=duration_seconds, steps=steps)


def _describe_step(
    step: Step, group: int, number: int, attempts: Sequence[StepAttempt], execution: StoredExecution, now: datetime
) -> StepDetails:
    if not attempts:
        return StepDetails(
            group=group,
            number=number,
            name=step.name,
            kind=step.kind,
            target=step.target,
            continue_on_failure=step.continue_on_failure,
            state=StepState.DONE_BEFORE if group < execution.first_group else StepState.NOT_RUN,
            needs=step.needs,
            when=step.when,
            values=list_step_values(step),
        )
    last = attempts[-1]
    wait_seconds = duration_seconds = None
    if last.started_at is not None:
        wait_seconds = _seconds_between(last.run_at, last.started_at)
        duration_seconds = _seconds_between(last.started_at, last.ended_at or now)
    return StepDetails(
        group=group,
        number=number,
        name=step.name,
        kind=step.kind,
        target=step.target,
        continue_on_failure=step.continue_on_failure,
        state=StepState(last.state),
        reason=last.reason,
        attempt=last.attempt,
        task_id=last.task_id,
        activity_id=last.id,
        activity_ids=[attempt.id for attempt in attempts],
        run_at=last.run_at,
        started_at=last.started_at,
        ended_at=last.ended_at,
        wait_seconds=wait_seconds,
        duration_seconds=duration_seconds,
        progress=last.progress,
        worker=last.worker,
        error=_error_message(last),
        last_error=_last_error(attempts),
        needs=step.needs,
        when=step.when,
        values=list_step_values(step),
    )


def _last_error(attempts: Sequence[StepAttempt]) -> StepError | None:
    """Return the error of a step's last attempt; while the step is being retried, of the latest failed attempt."""
    has_ended = bool(attempts) and attempts[-1].ended_at is not None
    for attempt in attempts[-1:] if has_ended else reversed(attempts):
        if message := _error_message(attempt):
            return StepError(attempt.attempt, attempt.id, message)
    return None


def _error_message(attempt: StepAttempt) -> str | None:
    return (attempt.error or {}).get("message")


def _seconds_between(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


class Executions(OperationGroup):
    """Operations on executions."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller) -> None:
        super().__init__(open, caller)
        self._notifications = EndNotifications()

    async def close(self) -> None:
        """Stop listening for ended executions; calls of `wait` continue by polling."""
        await self._notifications.close()

    async def get(self, id: UUID) -> ExecutionDetails:
        """Return an execution with state, activity, wait, duration and error of every step."""
        database = await self._open()
        found, steps = await executions.load_execution_with_attempts(database, id)
        if found is None:
            raise _not_found(id)
        return describe_execution(found, steps, database.clock.now())

    async def _load_ended(self, database: Database, id: UUID) -> ExecutionDetails:
        """Return an execution that has ended. It no longer changes, so it is read by two queries at the same time."""
        found, steps = await asyncio.gather(
            executions.load_execution(database, id), executions.list_step_attempts(database, id)
        )
        if found is None:
            raise _not_found(id)
        return describe_execution(found, steps, database.clock.now())

    async def timeline(
        self, id: UUID, *, windows: Sequence[GroupWindow] = (), find: str | None = None
    ) -> ExecutionTimeline:
        """Return every attempt at the steps of an execution, by group, with the usual duration of each step.

        A group of more than 50 steps lists only the steps in ``windows`` and those whose name contains ``find``.
        """
        database = await self._open()
        found = await executions.load_execution(database, id)
        if found is None:
            raise _not_found(id)
        return await load_timeline(database, found, windows, find)

    async def find(self, prefix: str) -> UUID:
        """Return the only execution id that begins with this prefix."""
        found = await executions.find_executions(await self._open(), *activities.id_range_of_prefix(prefix))
        return require_single_match(found, prefix, noun="execution", list_command="`tenuto execution list`")

    async def why(self, id: UUID) -> Diagnosis:
        """Explain why an execution does not progress: the reasons of every open step of its current group."""
        return await diagnose_execution(await self._open(), id)

    async def list(
        self,
        where: str | Filter | None = None,
        *,
        below: UUID | None = None,
        limit: int = 50,
        schedule: str | None = None,
        **values: Any,
    ) -> Sequence[ExecutionRecord]:
        """List executions, newest first; page with ``below``.

        ``where`` is a filter such as ``state:failed started:>1d``; further arguments are exact values of its keys, such
        as ``state="failed"``. The schedule must exist.
        """
        database = await self._open()
        filter = await self._build_filter(database, where, schedule, values)
        return await executions.list_executions(database, filter, below=below, limit=check_limit(limit))

    async def count(
        self, where: str | Filter | None = None, *, schedule: str | None = None, **values: Any
    ) -> CappedCount:
        """Count executions, exactly up to 10,000; the arguments are those of `list`."""
        database = await self._open()
        return await executions.count_executions(database, await self._build_filter(database, where, schedule, values))

    async def count_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the executions that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        filters = [build_filter(EXECUTION_KEYS, where, now) for where in wheres]
        return await executions.count_executions_of_each(database, filters)

    async def recent_outcomes(self, schedule_ids: Collection[UUID], count: int = 20) -> Sequence[ExecutionOutcome]:
        """List the last executions of each of some schedules, oldest first."""
        return await executions.list_recent_outcomes(await self._open(), schedule_ids, check_limit(count))

    async def usual_seconds(self, schedule_ids: Collection[UUID]) -> Mapping[UUID, float]:
        """Return the median duration of the last completed executions of schedules; those without one are missing."""
        return await executions.list_usual_seconds(await self._open(), schedule_ids, USUAL_RUN_COUNT)

    async def _build_filter(
        self, database: Database, where: str | Filter | None, schedule: str | None, values: dict[str, Any]
    ) -> Filter:
        if schedule is not None:
            await find_schedule_id(database, schedule)
        return build_filter(EXECUTION_KEYS, where, database.clock.now()).where(schedule=schedule, **values)

    async def cancel(self, id: UUID, *, reason: str | None = None) -> Literal["cancelled", "stopping"]:
        """Cancel an execution: remove steps that have not started, and ask running ones to stop."""
        operation = await self._begin("execution.cancel", target=str(id), reason=reason)
        return await execution_control.cancel_execution(operation.database, id, operation.now, operation.actor, reason)

    async def pause(self, id: UUID) -> None:
        """Pause an execution: no more steps start; running steps continue."""
        operation = await self._begin("execution.pause", target=str(id))
        await execution_control.pause_execution(operation.database, id, operation.now, operation.actor)

    async def resume(self, id: UUID) -> None:
        """Resume a paused execution."""
        operation = await self._begin("execution.resume", target=str(id))
        await execution_control.resume_execution(operation.database, id, operation.now)

    async def retry(self, id: UUID, *, request_id: UUID | None = None) -> UUID:
        """Retry a failed or cancelled execution from the group where it ended, and return the id of the new execution.

        Calls with the same ``request_id`` start one execution.
        """
        request = request_id or new_id()
        operation = await self._begin("execution.retry", target=str(id), after={"execution_id": str(request)})
        return await execution_control.retry_execution(
            operation.database, id, operation.now, operation.actor, request, operation.entry.mark_unchanged
        )

    async def wait(self, id: UUID, timeout: float | str | timedelta | None = None) -> ExecutionDetails:
        """Wait until an execution has ended and return it."""
        timeout_seconds = parse_duration_seconds(timeout, field="timeout")
        database = await self._open()

        async def load_if_ended(known_to_have_ended: bool) -> ExecutionDetails | None:
            has_ended = known_to_have_ended or await executions.has_ended(database, id)
            if has_ended is None:
                raise _not_found(id)
            return await self._load_ended(database, id) if has_ended else None

        def timeout_error() -> Conflict:
            return Conflict(
                f"execution {id} has not ended after {timeout_seconds:g} s",
                code="execution.wait.timeout",
                remedy=f"see its steps with `tenuto execution show {id}`",
            )

        with self._notifications.subscribe(database, id, POLL_INTERVALS) as signal:
            return await wait_until_ended(load_if_ended, signal, timeout_seconds, timeout_error)


def _not_found(id: UUID) -> NotFound:
    return NotFound(f"there is no execution {id}", code="execution.not_found", remedy="see `tenuto execution list`")
