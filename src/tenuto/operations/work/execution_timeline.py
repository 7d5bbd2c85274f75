"""The timeline of an execution: every attempt at every step, group by group, with the usual duration of each step.

A group of many steps is folded: its summary counts all steps, and only the steps of a requested window are listed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.schedules import Plan, plan_from_json
from tenuto.model.definitions.step_expressions import find_references
from tenuto.model.definitions.steps import SCHEDULE, Step
from tenuto.model.work.executions import ExecutionState, StepState
from tenuto.model.work.tasks import ActivityState, OutcomeReason
from tenuto.postgres.database import Database
from tenuto.store.reports import timeline as store
from tenuto.store.reports.timeline import GroupState, StepDurations, StepRange, TimelineAttempt
from tenuto.store.work.executions import StoredExecution

FOLDED_STEP_COUNT = 50
"""A group with more steps lists only the steps of a requested window."""
WINDOW_STEP_COUNT = 100
MAX_WINDOWS = 20
USUAL_RUN_COUNT = 20
"""The usual duration is the median of so many runs."""
_MAX_RECENT_EXECUTIONS = 40
"""Searched for runs of a step: some failed before they reached it."""
_MAX_RECENT_STEPS = 20_000

_WINDOW = re.compile(r"(\d{1,4})(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class GroupWindow:
    """Up to 100 steps of a group, from a step counted from 0 within the group."""

    group: int
    first_step: int = 0


@dataclass(frozen=True, slots=True)
class AttemptBar:
    """One attempt at a step: waited from `due_at` to `started_at`, ran until `ended_at`."""

    activity_id: UUID
    attempt: int
    state: ActivityState
    reason: OutcomeReason | None
    due_at: datetime
    """From here the attempt could start."""
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    wait_seconds: float | None
    """From the due instant to the start, or until now. None while the step waits for an earlier group."""
    duration_seconds: float | None
    """From the start to the end, or until now."""
    progress: Any
    worker: str | None
    """Name of the worker that made the attempt."""
    message: str | None
    """Error message."""


@dataclass(frozen=True, slots=True)
class StepValue:
    """A value that a step takes from an earlier one."""

    argument: str
    """The argument, or the part of it, that receives the value."""
    source: str
    """The value: ``steps.extract.output.rows``."""


def list_step_values(step: Step) -> list[StepValue]:
    """Return the values that a step takes from earlier ones."""
    try:
        found = [StepValue(place.argument, place.output.expression) for place in find_references(step.arguments)]
    except Invalid:  # stored before references existed, or by a later version
        return []
    return sorted(found, key=lambda each: each.argument)


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A step with all its attempts."""

    number: int
    """Position in the plan, counted from 0."""
    name: str
    kind: str
    target: str
    continue_on_failure: bool
    state: StepState
    max_attempts: int
    """The step fails finally at this attempt; attempts whose worker was lost are not counted."""
    usual_seconds: float | None
    """Median duration of the last 20 successful runs of the step; None if there was none."""
    task_id: UUID | None
    child_execution_id: UUID | None
    """The latest execution that the step has started."""
    attempts: Sequence[AttemptBar]
    needs: Sequence[str] = ()
    """Names of the steps after which it may start, although others of their groups still run."""
    when: str | None = None
    """The condition under which it runs; otherwise it is skipped."""
    values: Sequence[StepValue] = ()
    """The values that it takes from earlier steps."""


@dataclass(frozen=True, slots=True)
class StateCount:
    """The number of steps in a state."""

    state: StepState
    count: int


@dataclass(frozen=True, slots=True)
class TimelineGroup:
    """A group with its summary, and its steps or those of the requested windows."""

    index: int
    step_count: int
    states: Sequence[StateCount]
    first_started_at: datetime | None
    last_ended_at: datetime | None
    """End of the step that ended last so far."""
    shortest_seconds: float | None
    """Shortest duration of a step that has ended."""
    longest_seconds: float | None
    is_folded: bool
    """Whether only the steps of requested windows are listed, because the group has many."""
    steps: Sequence[TimelineStep]


@dataclass(frozen=True, slots=True)
class ExecutionTimeline:
    """All attempts at the steps of an execution."""

    execution_id: UUID
    schedule_name: str
    state: ExecutionState
    due_at: datetime
    started_at: datetime
    ended_at: datetime | None
    current_group: int
    first_group: int
    usual_seconds: float | None
    """Median duration of the last 20 completed executions of the schedule; None if there was none."""
    read_at: datetime
    """Open attempts are measured until here."""
    groups: Sequence[TimelineGroup]


def parse_group_windows(text: str | None) -> list[GroupWindow]:
    """Parse a list of windows: ``2`` is the first 100 steps of group 2, ``2:100`` its steps from number 100."""
    windows: list[GroupWindow] = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        found = _WINDOW.fullmatch(part.strip())
        if found is None or len(windows) == MAX_WINDOWS:
            problem = f"is not a group or GROUP:STEP: {quoted(part, 40)}" if found is None else "has too many windows"
            raise Invalid(
                f"groups {problem}",
                code="execution.groups.invalid",
                field="groups",
                remedy=f"write up to {MAX_WINDOWS} such as 2 or 2:100, separated by commas; both count from 0",
            )
        windows.append(GroupWindow(int(found[1]), int(found[2] or 0)))
    return windows


async def load_timeline(
    database: Database, execution: StoredExecution, windows: Sequence[GroupWindow], find: str | None
) -> ExecutionTimeline:
    """Load the timeline of an execution."""
    plan = plan_from_json(execution.plan_json)
    listed = list_steps(plan, windows, find)
    recent_count = max(1, min(_MAX_RECENT_EXECUTIONS, _MAX_RECENT_STEPS // plan.step_count))
    groups, attempts, recent = await asyncio.gather(
        store.list_timeline_groups(database, execution.id),
        store.list_timeline_attempts(database, execution.id, _to_ranges(listed)),
        store.list_recent_executions(database, execution.schedule_id, execution.id, recent_count),
    )
    kinds = sorted({(each.step.kind, each.step.target) for each in listed})
    starting = {each.number for each in listed if each.step.kind == SCHEDULE}
    durations, children = await asyncio.gather(
        store.list_step_durations(database, [each.id for each in recent], kinds, USUAL_RUN_COUNT),
        store.list_children_of_steps(
            database, sorted({each.task_id for each in attempts if each.step_index in starting})
        ),
    )
    described = _StepDescriber(execution, attempts, durations, children, database.clock.now())
    by_group: dict[int, list[TimelineStep]] = {}
    for each in listed:
        by_group.setdefault(each.group, []).append(described.describe(each))
    return ExecutionTimeline(
        execution_id=execution.id,
        schedule_name=execution.schedule_name,
        state=execution.state,
        due_at=execution.due_at,
        started_at=execution.started_at,
        ended_at=execution.ended_at,
        current_group=execution.current_group,
        first_group=execution.first_group,
        usual_seconds=median_seconds(
            [each.seconds for each in recent if each.state is ExecutionState.COMPLETED][:USUAL_RUN_COUNT]
        ),
        read_at=described.now,
        groups=[
            _summarize_group(
                index,
                len(group),
                [each for each in groups if each.group_index == index],
                by_group.get(index, []),
                _state_without_attempt(index, execution),
            )
            for index, group in enumerate(plan.groups)
        ],
    )


@dataclass(frozen=True, slots=True)
class ListedStep:
    """A step of the plan that the timeline lists."""

    group: int
    number: int
    """Position in the plan, counted from 0."""
    step: Step


def list_steps(plan: Plan, windows: Sequence[GroupWindow], find: str | None) -> list[ListedStep]:
    """Return the steps to list: all of a small group; of a group with many steps those in a window, or the first 100
    whose name contains a text."""
    wanted = {(each.group, each.first_step + offset) for each in windows for offset in range(WINDOW_STEP_COUNT)}
    found_counts: dict[int, int] = {}
    listed = []
    first = 0
    for group, steps in enumerate(plan.groups):
        for place, step in enumerate(steps):
            is_listed = len(steps) <= FOLDED_STEP_COUNT or (group, place) in wanted
            if not is_listed and find and find.casefold() in step.name.casefold():
                found_counts[group] = found_counts.get(group, 0) + 1
                is_listed = found_counts[group] <= WINDOW_STEP_COUNT
            if is_listed:
                listed.append(ListedStep(group, first + place, step))
        first += len(steps)
    return listed


def _to_ranges(listed: Sequence[ListedStep]) -> list[StepRange]:
    """Return the steps as ranges of consecutive positions."""
    ranges: list[StepRange] = []
    for each in listed:
        last = ranges[-1] if ranges else None
        if last is not None and last.group == each.group and last.high + 1 == each.number:
            ranges[-1] = StepRange(last.group, last.low, each.number)
        else:
            ranges.append(StepRange(each.group, each.number, each.number))
    return ranges


def median_seconds(seconds: Sequence[float]) -> float | None:
    """Return the median of durations; None if there is none."""
    return median(seconds) if seconds else None


class _StepDescriber:
    """Describes the steps of an execution from what was loaded for all of them."""

    def __init__(
        self,
        execution: StoredExecution,
        attempts: Sequence[TimelineAttempt],
        durations: Sequence[StepDurations],
        children: Mapping[UUID, UUID],
        now: datetime,
    ) -> None:
        self.now = now
        self._execution = execution
        self._children = children
        self._attempts: dict[int, list[TimelineAttempt]] = {}
        for attempt in attempts:
            self._attempts.setdefault(attempt.step_index, []).append(attempt)
        self._at_position = {(each.step_index, each.kind, each.target): each.seconds for each in durations}
        self._anywhere: dict[tuple[str, str], list[float]] = {}
        for each in durations:
            self._anywhere.setdefault((each.kind, each.target), []).extend(each.seconds)

    def describe(self, listed: ListedStep) -> TimelineStep:
        step, attempts = listed.step, self._attempts.get(listed.number, [])
        task_id = attempts[-1].task_id if attempts else None
        return TimelineStep(
            number=listed.number,
            name=step.name,
            kind=step.kind,
            target=step.target,
            continue_on_failure=step.continue_on_failure,
            state=StepState(attempts[-1].state) if attempts else _state_without_attempt(listed.group, self._execution),
            max_attempts=(step.policy or TaskPolicy()).retry.max_attempts,
            usual_seconds=self._usual_seconds(listed),
            task_id=task_id,
            child_execution_id=None if task_id is None else self._children.get(task_id),
            attempts=[self._describe_attempt(each) for each in attempts],
            needs=step.needs,
            when=step.when,
            values=list_step_values(step),
        )

    def _usual_seconds(self, listed: ListedStep) -> float | None:
        """The median at the same position. If the plan has changed since, that of steps with the same target."""
        kind, target = listed.step.kind, listed.step.target
        here = self._at_position.get((listed.number, kind, target))
        return median_seconds(here or self._anywhere.get((kind, target), [])[:USUAL_RUN_COUNT])

    def _describe_attempt(self, attempt: TimelineAttempt) -> AttemptBar:
        wait_seconds = duration_seconds = None
        if attempt.started_at is not None:
            wait_seconds = _seconds_between(attempt.due_at, attempt.started_at)
            duration_seconds = _seconds_between(attempt.started_at, attempt.ended_at or self.now)
        elif attempt.state is not ActivityState.WAITING:
            wait_seconds = _seconds_between(attempt.due_at, attempt.ended_at or self.now)
        return AttemptBar(
            activity_id=attempt.activity_id,
            attempt=attempt.attempt,
            state=attempt.state,
            reason=attempt.reason,
            due_at=attempt.due_at,
            claimed_at=attempt.claimed_at,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            wait_seconds=wait_seconds,
            duration_seconds=duration_seconds,
            progress=attempt.progress,
            worker=attempt.worker,
            message=attempt.message,
        )


def _summarize_group(
    index: int, step_count: int, states: Sequence[GroupState], steps: Sequence[TimelineStep], without_attempt: StepState
) -> TimelineGroup:
    counts = [StateCount(each.state, each.step_count) for each in states]
    if rest := step_count - sum(each.count for each in counts):
        counts.append(StateCount(without_attempt, rest))
    return TimelineGroup(
        index=index,
        step_count=step_count,
        states=counts,
        first_started_at=min((each.first_started_at for each in states if each.first_started_at), default=None),
        last_ended_at=max((each.last_ended_at for each in states if each.last_ended_at), default=None),
        shortest_seconds=min(
            (each.shortest_seconds for each in states if each.shortest_seconds is not None), default=None
        ),
        longest_seconds=max(
            (each.longest_seconds for each in states if each.longest_seconds is not None), default=None
        ),
        is_folded=step_count > FOLDED_STEP_COUNT,
        steps=steps,
    )


def _state_without_attempt(group: int, execution: StoredExecution) -> StepState:
    return StepState.DONE_BEFORE if group < execution.first_group else StepState.NOT_RUN


def _seconds_between(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
