"""Schedules: a trigger, a plan of ordered step groups, an overlap policy and a misfire policy.

A definition is an immutable value that is validated when it is made, converts to plain data and back, and can be
compared with an earlier version. An execution follows the snapshot of the plan it started with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from tenuto.errors import Forbidden, Invalid, quoted
from tenuto.model import validation
from tenuto.model.definitions.steps import JOB, SCHEDULE, Step, step_from_fields
from tenuto.model.triggers import Trigger

MAX_GROUPS = 1000
MAX_STEPS = 10_000
MAX_CATCH_UP_RUNS = 1000
MAX_PLAN_BYTES = 4 * 1024 * 1024
ON_TIME_SECONDS = 60
"""A run decided within this time counts as on time under every misfire policy."""


class StepDependencies(StrEnum):
    """What the steps of a plan take from earlier ones, as far as it decides when they start."""

    BY_GROUP = "by_group"
    """Values and conditions: decided when a group starts."""
    BY_STEP = "by_step"
    """Also edges: decided whenever a step ends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered step groups; the steps of a group run in parallel."""

    groups: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise Invalid(
                "the plan has a group without steps" if self.groups else "the plan has no steps",
                code="schedule.steps.empty",
                field="steps",
            )
        if len(self.groups) > MAX_GROUPS:
            raise Invalid(
                f"the plan has {len(self.groups):,} groups",
                code="schedule.steps.too_many_groups",
                field="steps",
                remedy=f"use at most {MAX_GROUPS:,}",
            )
        if self.step_count > MAX_STEPS:
            raise Invalid(
                f"the plan has {self.step_count:,} steps",
                code="schedule.steps.too_many",
                field="steps",
                remedy=f"use at most {MAX_STEPS:,}",
            )

    @classmethod
    def from_steps(cls, steps: Iterable[Step | Iterable[Step]]) -> Plan:
        """Make a plan of sequential steps; a list within the list is a parallel group."""
        if isinstance(steps, Step):
            raise Invalid(
                f"the steps are one step, {steps.name!r}, instead of a list",
                code="schedule.steps.not_a_list",
                field="steps",
                remedy="write it in brackets: [Step.job(...)]",
            )
        return cls(tuple((each,) if isinstance(each, Step) else _make_group(each) for each in steps))

    @property
    def step_count(self) -> int:
        return sum(len(group) for group in self.groups)

    def enumerate_steps(self) -> Iterator[tuple[int, int, Step]]:
        """Yield (group, position in the plan, step) in order."""
        position = 0
        for index, group in enumerate(self.groups):
            for step in group:
                yield index, position, step
                position += 1

    def step_at(self, position: int) -> Step:
        for group in self.groups:
            if position < len(group):
                return group[position]
            position -= len(group)
        raise IndexError("the plan has no step at that position")

    @property
    def step_dependencies(self) -> StepDependencies | None:
        """What its steps take from earlier ones; None if only their groups order them."""
        found: StepDependencies | None = None
        for group in self.groups:
            for step in group:
                if step.needs:
                    return StepDependencies.BY_STEP
                if found is None and step.depends_on_steps:
                    found = StepDependencies.BY_GROUP
        return found

    def targets_of_kind(self, kind: str) -> set[str]:
        """Return the targets of all steps of a kind."""
        return {step.target for _, _, step in self.enumerate_steps() if step.kind == kind}

    def map_steps(self, change: Callable[[Step], Step]) -> Plan:
        """Return the plan with each step replaced by ``change(step)``."""
        return Plan(tuple(tuple(change(step) for step in group) for group in self.groups))

    def to_fields(self) -> list[list[dict[str, Any]]]:
        return [[step.to_fields() for step in group] for group in self.groups]

    def to_json(self) -> str:
        return validation.dump_json(self.to_fields(), field="steps", limit=MAX_PLAN_BYTES)


def _make_group(steps: Any) -> tuple[Step, ...]:
    group = tuple(steps) if isinstance(steps, Iterable) and not isinstance(steps, str) else (steps,)
    for step in group:
        if not isinstance(step, Step):
            raise Invalid(
                f"{quoted(step, 60)} is not a step",
                code="schedule.steps.invalid",
                field="steps",
                remedy="make one with Step.job(...)",
            )
    return group


def plan_from_fields(stored: object) -> Plan:
    """Return the plan that `Plan.to_fields` wrote."""
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        raise Invalid("steps is not a list of groups", code="schedule.steps.invalid", field="steps")
    groups = []
    for index, group in enumerate(stored):
        if not isinstance(group, Sequence) or isinstance(group, str):
            field = f"steps.{index}"
            raise Invalid(f"{field} is not a list of steps", code="schedule.steps.invalid", field=field)
        groups.append(tuple(step_from_fields(step) for step in group))
    return Plan(tuple(groups))


@lru_cache(maxsize=256)
def plan_from_json(text: str) -> Plan:
    """Return a stored plan. Cached: many executions follow the same plan."""
    return plan_from_fields(json.loads(text))


class OverlapPolicy(StrEnum):
    """Treatment of a run that is due while another run of the schedule is active."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class MisfirePolicy(StrEnum):
    """Treatment of due instants that were missed while no scheduler ran."""

    ONCE = "once"
    ALL = "all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Misfire:
    """A misfire policy with its parameter: ``max_runs`` for ``all``, ``grace_seconds`` for ``skip``."""

    policy: MisfirePolicy = MisfirePolicy.ONCE
    max_runs: int = 100
    grace_seconds: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _parse_misfire_policy(self.policy))
        if (
            isinstance(self.max_runs, bool)
            or not isinstance(self.max_runs, int)
            or not 1 <= self.max_runs <= MAX_CATCH_UP_RUNS
        ):
            raise Invalid(
                f"misfire max_runs {quoted(self.max_runs, 60)} is not a whole number from 1 to {MAX_CATCH_UP_RUNS:,}",
                code="schedule.misfire.max_runs.out_of_range",
                field="misfire.max_runs",
            )
        if (
            not isinstance(self.grace_seconds, int | float)
            or not ON_TIME_SECONDS <= self.grace_seconds <= _MAX_GRACE_SECONDS
        ):
            raise Invalid(
                f"misfire grace_seconds {quoted(self.grace_seconds, 60)} is not from {ON_TIME_SECONDS} s to a year; "
                "a run that is less than a minute late counts as on time",
                code="schedule.misfire.grace_seconds.out_of_range",
                field="misfire.grace_seconds",
            )
        for name, policy in _POLICY_OF_PARAMETER.items():
            if self.policy is not policy and getattr(self, name) != _PARAMETER_DEFAULTS[name]:
                raise _parameter_not_applicable(self.policy, name)

    def to_fields(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"policy": str(self.policy)}
        if self.policy is MisfirePolicy.ALL:
            stored["max_runs"] = self.max_runs
        if self.policy is MisfirePolicy.SKIP:
            stored["grace_seconds"] = self.grace_seconds
        return stored


_MAX_GRACE_SECONDS = 366 * 86_400
_POLICY_OF_PARAMETER = {"max_runs": MisfirePolicy.ALL, "grace_seconds": MisfirePolicy.SKIP}
_PARAMETER_DEFAULTS = {each.name: each.default for each in fields(Misfire)}


def _parameter_not_applicable(policy: MisfirePolicy, name: str) -> Invalid:
    needed = _POLICY_OF_PARAMETER[name]
    return Invalid(
        f"misfire {name} applies to the policy {needed} only, and the policy is {policy}",
        code="schedule.misfire.parameter_not_applicable",
        field=f"misfire.{name}",
        remedy=f"use the policy {needed}, or leave {name} out",
    )


def misfire_from_fields(stored: object) -> Misfire:
    """Return a misfire policy from its fields or its name. A parameter of another policy is rejected."""
    if isinstance(stored, Misfire):
        return stored
    if isinstance(stored, str):
        return Misfire(_parse_misfire_policy(stored))
    if not isinstance(stored, Mapping):
        raise _unknown_misfire_policy(stored)
    unknown = sorted(str(name) for name in stored.keys() - {each.name for each in fields(Misfire)})
    if unknown:
        raise Invalid(
            f"a misfire policy has no field {quoted(unknown[0], 60)}",
            code="schedule.misfire.field.unknown",
            field=f"misfire.{unknown[0]}",
        )
    misfire = Misfire(**stored)
    for name, policy in _POLICY_OF_PARAMETER.items():
        if name in stored and misfire.policy is not policy:
            raise _parameter_not_applicable(misfire.policy, name)
    return misfire


def misfire_from_stored_fields(stored: object) -> Misfire:
    """Return a misfire policy from a row: parameters that today's validation rejects are dropped or raised."""
    if not isinstance(stored, Mapping):
        return misfire_from_fields(stored)
    policy = stored.get("policy", MisfirePolicy.ONCE)
    applicable = {name: value for name, value in stored.items() if _POLICY_OF_PARAMETER.get(name, policy) == policy}
    grace = applicable.get("grace_seconds")
    if isinstance(grace, int | float) and 0 < grace < ON_TIME_SECONDS:
        applicable["grace_seconds"] = ON_TIME_SECONDS
    return misfire_from_fields(applicable)


@lru_cache(maxsize=256)
def misfire_from_json(text: str) -> Misfire:
    return misfire_from_stored_fields(json.loads(text))


def parse_overlap_policy(given: object) -> OverlapPolicy:
    """Return an overlap policy from its name."""
    try:
        return OverlapPolicy(given)  # type: ignore[arg-type]
    except ValueError:
        raise Invalid(
            f"unknown overlap policy {quoted(given, 60)}",
            code="schedule.overlap.unknown",
            field="overlap",
            remedy=f"use one of {', '.join(OverlapPolicy)}",
        ) from None


def _parse_misfire_policy(given: object) -> MisfirePolicy:
    try:
        return MisfirePolicy(given)  # type: ignore[arg-type]
    except ValueError:
        raise _unknown_misfire_policy(given) from None


def _unknown_misfire_policy(given: object) -> Invalid:
    return Invalid(
        f"unknown misfire policy {quoted(given, 60)}",
        code="schedule.misfire.unknown",
        field="misfire",
        remedy=f"use one of {', '.join(MisfirePolicy)}",
    )


@dataclass(frozen=True, slots=True)
class ScheduleDefinition:
    """A schedule as declared."""

    name: str
    trigger: Trigger
    plan: Plan
    description: str = ""
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    misfire: Misfire = Misfire()

    def __post_init__(self) -> None:
        validation.check_label(self.name, field="name")
        if self.name != self.name.strip() or "\n" in self.name:
            raise Invalid(
                f"name {quoted(self.name, 60)} begins or ends with a blank, or has several lines",
                code="schedule.name.invalid",
                field="name",
            )
        if not isinstance(self.trigger, Trigger):
            raise Invalid(
                f"trigger {quoted(self.trigger, 60)} is not a trigger",
                code="schedule.trigger.invalid",
                field="trigger",
                remedy="make one with cron(...)",
            )
        validation.check_text(self.description, field="description", limit=4000)
        object.__setattr__(self, "overlap", parse_overlap_policy(self.overlap))

    @property
    def key(self) -> str:
        """The unique key: the name."""
        return self.name

    def describe_trigger(self) -> str:
        """Return the trigger in plain English."""
        return self.trigger.describe()

    @property
    def references(self) -> set[str]:
        """Names of the schedules that it runs as steps."""
        return self.plan.targets_of_kind(SCHEDULE)

    @staticmethod
    def cycle_error(cycle: str) -> Invalid:
        return Invalid(
            f"a schedule would run itself: {cycle}",
            code="schedule.steps.cycle",
            field="steps",
            remedy="remove one of these steps",
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the plain data that is stored as a version and compared between versions."""
        return {
            "name": self.name,
            "description": self.description,
            "trigger": self.trigger.to_fields(),
            "steps": self.plan.to_fields(),
            "overlap": str(self.overlap),
            "misfire": self.misfire.to_fields(),
        }


def check_schedule_names(new: ScheduleDefinition, before: ScheduleDefinition | None = None) -> None:
    """Raise `Invalid` for names with invisible characters, except for names that ``before`` has already."""
    known = set() if before is None else {before.name, *(step.name for _, _, step in before.plan.enumerate_steps())}
    if new.name not in known:
        validation.check_title(new.name, field="name")
    for _, _, step in new.plan.enumerate_steps():
        if step.name not in known:
            validation.check_title(step.name, field="steps")


def changed_fields(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, as (before, after)."""
    before, after = before or {}, after or {}
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def override_arguments(plan: Plan, overrides: Mapping[str, Mapping[str, Any]], *, jobs_only: bool = False) -> Plan:
    """Return the plan with other arguments for the named steps, for one run. ``jobs_only`` is for callers that may not
    choose the program, script or address of a step."""
    names = {step.name for _, _, step in plan.enumerate_steps()}
    unknown = sorted(overrides.keys() - names)
    if unknown:
        raise Invalid(
            f"the schedule has no step {quoted(unknown[0], 60)}",
            code="schedule.step.not_found",
            field=unknown[0],
            remedy=f"use one of {', '.join(sorted(names))}",
        )

    for name, given in overrides.items():
        if not isinstance(given, Mapping):
            raise Invalid(
                f"the arguments of step {quoted(name, 60)} are not a mapping",
                code="step.arguments.invalid",
                field=name,
                remedy="give a mapping of names to values",
            )

    def override(step: Step) -> Step:
        if step.name not in overrides:
            return step
        if jobs_only and step.kind != JOB:  # guard: access.step_override
            raise Forbidden(
                f"the role editor is required to change the arguments of {step.kind} step {quoted(step.name, 60)}",
                code="step.arguments.forbidden",
                field=step.name,
                remedy="override arguments of jobs only, or ask a caller with the role editor",
            )
        return replace(step, arguments={**step.arguments, **overrides[step.name]})

    return plan.map_steps(override)
