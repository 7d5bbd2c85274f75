"""The decision how an execution with dependent steps continues, for random plans, outcomes and orders of events."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.steps import Step
from tenuto.model.work.executions import (
    CompleteExecution,
    FailedStep,
    FailExecution,
    StartNextGroup,
    decide_advance,
)
from tenuto.model.work.step_advance import (
    ExecutionProgress,
    MissingOutputs,
    Progress,
    StepDecision,
    StepProgress,
    decide_steps,
)

ENDED = (Progress.SUCCEEDED, Progress.FAILED, Progress.SKIPPED, Progress.NOT_RUN)


@dataclass
class Run:
    """An execution whose decisions are applied to it as the store does."""

    plan: Plan
    failing: Mapping[int, bool]
    outputs: Mapping[int, Any]
    group: int = 0
    end: Any = None
    steps: dict[int, StepProgress] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    ends_early_steps: bool = False
    """The steps that started early are not claimed until the execution fails, so that it ends them."""

    def __post_init__(self) -> None:
        for group, position, _ in self.plan.enumerate_steps():
            self.steps[position] = StepProgress(Progress.OPEN if group == 0 else Progress.WAITING)

    def decide(self) -> StepDecision:
        known: dict[int, Any] = {}
        while True:
            decision = decide_steps(ExecutionProgress(self.plan, 0, self.group, True, self.steps, known))
            if not isinstance(decision, MissingOutputs):
                return decision
            assert decision.positions, "the decision asks for nothing"
            assert not set(decision.positions) & known.keys(), "the decision asks twice"
            known |= {position: self.output(position) for position in decision.positions}

    def output(self, position: int) -> Any:
        return self.outputs.get(position) if self.steps[position].progress is Progress.SUCCEEDED else None

    def apply(self) -> StepDecision:
        decision = self.decide()
        for position in decision.skips:
            self._move(position, Progress.WAITING, Progress.SKIPPED)
        for position, error in decision.refusals.items():
            self._move(position, Progress.WAITING, Progress.FAILED, f"failed: {error}")
        for position in decision.starts:
            self._move(position, Progress.WAITING, Progress.OPEN)
        if decision.is_failing:
            for position, each in self.steps.items():
                if each.progress is Progress.WAITING or (self.ends_early_steps and each.progress is Progress.OPEN):
                    self._move(position, each.progress, Progress.NOT_RUN)
            if decision.end is None:
                again = self.decide()
                assert not again.writes_steps
                decision.end = again.end
            assert decision.end is not None or not self.ends_early_steps
        assert decision.group >= self.group
        self.group, self.end = decision.group, decision.end
        return decision

    def _move(self, position: int, before: Progress, after: Progress, reason: str = "") -> None:
        assert self.steps[position].progress is before
        self.steps[position] = StepProgress(after, reason)
        self.events.append((after.name, position))

    def finish(self, position: int) -> None:
        if self.failing.get(position):
            self._move(position, Progress.OPEN, Progress.FAILED, "failed: it broke")
        else:
            self._move(position, Progress.OPEN, Progress.SUCCEEDED)

    @property
    def open(self) -> list[int]:
        return [position for position, each in self.steps.items() if each.progress is Progress.OPEN]

    def run_to_end(self, order: random.Random) -> None:
        while self.end is None:
            assert self.open, "no step runs and the execution has not ended"
            self.finish(order.choice(self.open))
            self.apply()
            again = self.decide()
            assert not again.writes_steps
            assert (again.group, again.end) == (self.group, self.end)


@st.composite
def plans(draw: st.DrawFn, *, fatal: bool = True, dependent: bool = True) -> Plan:
    groups: list[tuple[Step, ...]] = []
    earlier: list[Step] = []
    for number in range(draw(st.integers(1, 4))):
        group = []
        for place in range(draw(st.integers(1, 3))):
            step = Step(
                "job", "x", name=f"s{number}{place}", continue_on_failure=not fatal or draw(st.booleans())
            )  # fmt: skip
            if earlier and dependent:
                named = st.sampled_from(earlier)
                if draw(st.booleans()):
                    step = replace(
                        step, needs=tuple(each.name for each in draw(st.lists(named, min_size=1, max_size=2)))
                    )
                if draw(st.booleans()):
                    other = draw(named)
                    conditions = [other.succeeded, other.skipped, ~other.succeeded, other.output["n"] > 2]
                    step = replace(step, when=str(draw(st.sampled_from(conditions)) & ~draw(named).skipped))
                if draw(st.booleans()):
                    step = replace(step, arguments={"x": str(draw(named).output["n"])})
            group.append(step)
        groups.append(tuple(group))
        earlier += group
    return Plan(tuple(groups))


failures = st.dictionaries(st.integers(0, 11), st.booleans())
outputs = st.dictionaries(st.integers(0, 11), st.integers(0, 5).map(lambda n: {"n": n}))


@given(plans(), failures, outputs, st.randoms(use_true_random=False), st.booleans())
def test_every_execution_ends_and_every_step_ends_once(
    plan: Plan, failing: dict[int, bool], values: dict[int, Any], order: random.Random, ends_early_steps: bool
) -> None:
    run = Run(plan, failing, values, ends_early_steps=ends_early_steps)
    run.run_to_end(order)
    assert all(each.progress in ENDED for each in run.steps.values())
    ended = [position for event, position in run.events if event != "OPEN"]
    assert sorted(ended) == list(range(plan.step_count))
    failed = [position for position, each in run.steps.items() if each.progress is Progress.FAILED]
    assert run.end.failed_step_count == len(failed)
    fatal = [position for position in failed if not plan.step_at(position).continue_on_failure]
    assert isinstance(run.end, FailExecution if fatal else CompleteExecution)


@given(plans(), failures, outputs, st.randoms(use_true_random=False))
def test_step_starts_after_its_groups_or_after_the_steps_that_it_names(
    plan: Plan, failing: dict[int, bool], values: dict[int, Any], order: random.Random
) -> None:
    run = Run(plan, failing, values)
    run.run_to_end(order)
    at = {position: index for index, (event, position) in enumerate(run.events) if event != "OPEN"}
    group_of = {position: group for group, position, _ in plan.enumerate_steps()}
    place_of = {step.name: position for _, position, step in plan.enumerate_steps()}
    for index, (event, position) in enumerate(run.events):
        step = plan.step_at(position)
        if event == "OPEN":
            before = [other for other in at if group_of[other] < group_of[position]]
            named = [place_of[name] for name in step.predecessors]
            assert all(at[other] < index for other in named)
            assert step.needs or all(at[other] < index for other in before)


@given(plans(fatal=False), failures, outputs, st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_the_order_in_which_siblings_end_does_not_change_what_runs(
    plan: Plan, failing: dict[int, bool], values: dict[int, Any], one: random.Random, other: random.Random
) -> None:
    plan = plan.map_steps(lambda step: replace(step, continue_on_failure=True))
    first, second = Run(plan, failing, values), Run(plan, failing, values)
    first.run_to_end(one)
    second.run_to_end(other)
    assert first.steps == second.steps
    assert first.end == second.end


@given(plans(dependent=False), failures, st.randoms(use_true_random=False))
def test_without_dependencies_the_decision_is_that_of_plain_executions(
    plan: Plan, failing: dict[int, bool], order: random.Random
) -> None:
    run = Run(plan, failing, {})
    failed_before = 0
    while run.end is None:
        group = run.group
        first = sum(len(each) for each in plan.groups[:group])
        for position in order.sample(sorted(run.open), len(run.open)):
            assert run.group == group
            run.finish(position)
            decision = run.apply()
        members = range(first, first + len(plan.groups[group]))
        broken = [
            FailedStep(position, run.steps[position].reason)
            for position in members
            if run.steps[position].progress is Progress.FAILED
        ]
        expected = decide_advance(plan, group, broken, failed_before)
        match expected:
            case StartNextGroup(next_group, count):
                assert (decision.group, decision.end, decision.failed_step_count) == (next_group, None, count)
            case _:
                assert decision.end == expected
        failed_before += len(broken)


@pytest.mark.parametrize("in_progress", [True, False])
def test_cancelled_execution_starts_nothing_and_ends_with_its_last_step(in_progress: bool) -> None:
    plan = Plan(((Step("job", "a"), Step("job", "b")), (Step("job", "c", needs=("a",)),)))
    steps = {0: StepProgress(Progress.SUCCEEDED), 1: StepProgress(Progress.OPEN), 2: StepProgress(Progress.WAITING)}
    decision = decide_steps(ExecutionProgress(plan, 0, 0, in_progress, steps))
    assert isinstance(decision, StepDecision)
    assert (list(decision.starts), decision.end) == ([2] if in_progress else [], None)
    steps = {position: StepProgress(Progress.FAILED) for position in steps}
    decision = decide_steps(ExecutionProgress(plan, 0, 0, False, steps))
    assert isinstance(decision, StepDecision)
    assert decision.end == CompleteExecution(3)
