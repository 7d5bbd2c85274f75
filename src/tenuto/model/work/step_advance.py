"""The decision how an execution continues whose steps depend on earlier ones by values, conditions or edges.

`decide_steps` extends `model.work.executions.decide_advance`: the groups and their rules are the same, and in addition
it decides which waiting steps start, are skipped or cannot start. A step starts when its group does. A step with edges
(``needs``) starts as soon as all steps that it names have ended, although its group has not started. The decision
depends on nothing but the plan and the results so far, so it can be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tenuto.errors import Invalid
from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.step_expressions import StepResult, StepStatus, has_references, resolve_arguments
from tenuto.model.definitions.steps import Step
from tenuto.model.work.executions import CompleteExecution, FailedStep, FailExecution, StartNextGroup, decide_advance


class Progress(Enum):
    """How far a step is."""

    WAITING = auto()
    """It has not started, or is held because the execution is paused."""
    OPEN = auto()
    """It was queued and has not ended."""
    SUCCEEDED = auto()
    FAILED = auto()
    SKIPPED = auto()
    NOT_RUN = auto()
    """The execution failed before it reached this step."""


_STATUSES = {
    Progress.SUCCEEDED: StepStatus.SUCCEEDED,
    Progress.FAILED: StepStatus.FAILED,
    Progress.SKIPPED: StepStatus.SKIPPED,
}
_OPEN = (Progress.WAITING, Progress.OPEN)


@dataclass(frozen=True, slots=True)
class StepProgress:
    progress: Progress
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class ExecutionProgress:
    """An execution as far as the decision needs it."""

    plan: Plan
    first_group: int
    group: int
    """The current group."""
    is_in_progress: bool
    """False if it was cancelled and its last steps are stopping."""
    steps: Mapping[int, StepProgress]
    """By position in the plan."""
    outputs: Mapping[int, Any] = field(default_factory=dict)
    """The outputs known so far, by position; None for a step without output."""


@dataclass(frozen=True, slots=True)
class MissingOutputs:
    """The decision needs these outputs too."""

    positions: Collection[int]


@dataclass(slots=True)
class StepDecision:
    """How an execution continues."""

    group: int
    """The current group from now on."""
    starts: dict[int, str | None] = field(default_factory=dict)
    """The steps that start, by position, with their input if it contains values of earlier steps."""
    skips: dict[int, str] = field(default_factory=dict)
    """The steps that are skipped, with the reason."""
    refusals: dict[int, Invalid] = field(default_factory=dict)
    """The steps that fail because a value or condition cannot be used, with the error."""
    failed_step_count: int = 0
    end: CompleteExecution | FailExecution | None = None
    """Set if the execution ends. While steps of later groups still run, it ends as failed with the last of them."""
    is_failing: bool = False
    """A step failed that does not allow the execution to continue: no further step starts."""
    error: str | None = None

    @property
    def writes_steps(self) -> bool:
        return bool(self.starts or self.skips or self.refusals)


def decide_steps(given: ExecutionProgress) -> StepDecision | MissingOutputs:
    """Decide how an execution continues, or name the outputs that the decision needs."""
    return _Decider(given).decide()


class _Decider:
    def __init__(self, given: ExecutionProgress) -> None:
        self._plan = given.plan
        self._is_in_progress = given.is_in_progress
        self._outputs = given.outputs
        self._steps = dict(given.steps)
        self._was_open = {position for position, each in given.steps.items() if each.progress is Progress.OPEN}
        self._decision = StepDecision(given.group)
        self._first_group = given.first_group
        self._places = {step.name: position for _, position, step in given.plan.enumerate_steps()}
        self._waiting = [
            (group, position, step)
            for group, position, step in given.plan.enumerate_steps()
            if group >= given.first_group and self._progress(position) is Progress.WAITING
        ]
        self._missing: set[int] = set()

    def decide(self) -> StepDecision | MissingOutputs:
        decision = self._decision
        if not self._is_in_progress:  # cancelled: it ends with its last running step
            decision.failed_step_count = self._count_failed()
            if not self._has_open_steps():
                decision.end = CompleteExecution(decision.failed_step_count)
            return decision
        while True:
            self._decide_waiting_steps()
            if self._missing:
                return MissingOutputs(self._missing)
            if not self._finish_group():
                break
        decision.failed_step_count = self._count_failed()
        return decision

    def _decide_waiting_steps(self) -> None:
        """Decide all steps that may start now. Skipping one of them may let others start."""
        changed = True
        while changed and not self._missing:
            changed = False
            for entry in list(self._waiting):
                group, position, step = entry
                if group > self._decision.group and not self._may_start_early(step):
                    continue
                if self._decide_step(position, step):
                    self._waiting.remove(entry)
                    changed = True

    def _may_start_early(self, step: Step) -> bool:
        """Return whether all steps have ended that a step of a later group names."""
        if not step.needs:
            return False
        for name in step.predecessors:
            position = self._places.get(name)
            if position is None:
                continue
            progress = self._progress(position)
            # The execution is about to fail, when the group of the failed step has ended.
            is_fatal = progress is Progress.FAILED and not self._plan.step_at(position).continue_on_failure
            if progress in _OPEN or progress is Progress.NOT_RUN or is_fatal:
                return False
        return True

    def _decide_step(self, position: int, step: Step) -> bool:
        """Start, skip or refuse a step; return False if outputs are missing for that."""
        decision = self._decision
        try:
            condition = step.condition
            sources = step.sources if has_references(step.arguments) else set()
            needed = sources | (set() if condition is None else condition.steps_with_output)
            if not self._has_outputs(needed):
                return False
            results = self._results(needed | (set() if condition is None else condition.steps))
            if condition is not None and not condition.is_met(results):
                return self._skip(position, f"its condition {condition} is not met")
            skipped = sorted(name for name in sources if (found := results.get(name)) and _is_skipped(found))
            if skipped:
                return self._skip(position, f"it takes a value from step {skipped[0]!r}, which was skipped")
            has_values = has_references(step.arguments)
            decision.starts[position] = resolve_arguments(step.kind, step.arguments, results) if has_values else None
            self._steps[position] = StepProgress(Progress.OPEN)
        except Invalid as error:
            decision.refusals[position] = error
            self._steps[position] = StepProgress(Progress.FAILED, f"failed: {error}")
        return True

    def _skip(self, position: int, reason: str) -> bool:
        self._decision.skips[position] = reason
        self._steps[position] = StepProgress(Progress.SKIPPED)
        return True

    def _has_outputs(self, names: Collection[str]) -> bool:
        positions = {self._places[name] for name in names if name in self._places}
        missing = {
            position
            for position in positions - self._outputs.keys()
            if self._progress(position) in (Progress.SUCCEEDED, Progress.FAILED)
        }
        self._missing |= missing
        return not missing

    def _results(self, names: Collection[str]) -> dict[str, StepResult]:
        results = {}
        for name in names:
            position = self._places.get(name)
            status = None if position is None else _STATUSES.get(self._progress(position))
            if position is not None and status is not None:
                results[name] = StepResult(status, self._outputs.get(position))
        return results

    def _finish_group(self) -> bool:
        """Decide the current group if it has ended; return whether the next one has started."""
        decision, group = self._decision, self._decision.group
        failures = []
        for position in self._positions(group):
            progress = self._steps.get(position, _ENDED_WITHOUT_RECORD)
            if progress.progress in _OPEN:
                return False
            if progress.progress is Progress.FAILED:
                failures.append(FailedStep(position, progress.reason))
        match decide_advance(self._plan, group, failures, 0):
            case StartNextGroup(next_group, _):
                decision.group = next_group
                return True
            case CompleteExecution():
                decision.end = CompleteExecution(self._count_failed())
            case FailExecution(_, error):
                decision.is_failing, decision.error = True, error
                decision.starts.clear()
                if not self._runs_beyond(group):
                    decision.end = FailExecution(self._count_failed(), error)
        return False

    def _runs_beyond(self, group: int) -> bool:
        """Return whether steps of later groups, which started early, may still run."""
        return any(position >= self._positions(group).stop for position in self._was_open)

    def _positions(self, group: int) -> range:
        first = sum(len(steps) for steps in self._plan.groups[:group])
        return range(first, first + len(self._plan.groups[group]))

    def _progress(self, position: int) -> Progress:
        return self._steps.get(position, _ENDED_WITHOUT_RECORD).progress

    def _has_open_steps(self) -> bool:
        return any(each.progress in _OPEN for each in self._steps.values())

    def _count_failed(self) -> int:
        first = sum(len(steps) for steps in self._plan.groups[: self._first_group])
        return sum(
            each.progress is Progress.FAILED for position, each in self._steps.items() if position >= first
        )  # fmt: skip


_ENDED_WITHOUT_RECORD = StepProgress(Progress.NOT_RUN)
"""Of a step of an earlier execution whose record is gone."""


def _is_skipped(result: StepResult) -> bool:
    return result.status is StepStatus.SKIPPED
