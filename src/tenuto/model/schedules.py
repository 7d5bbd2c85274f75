"""Schedules: named plans of ordered groups of steps, and the rules for when two runs would meet.

A definition is a value: it is checked when it is made, goes to plain data and back, and can be compared with what it
was before. Steps of one group run side by side, groups one after the other. What a run follows is the snapshot of the
plan it began with, never the definition as it stands by then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from tenuto.errors import Forbidden, Invalid
from tenuto.model import dependency_order, stored_values
from tenuto.model.steps import JOB, SCHEDULE, Step, step_from_fields
from tenuto.model.triggers import Trigger

MAX_GROUPS = 1000
MAX_STEPS = 10_000
MAX_CATCH_UP = 1000
MAX_PLAN = 4 * 1024 * 1024
ON_TIME_SECONDS = 60
"""What is decided within this is on time, whatever the rule for missed runs says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered groups of steps; those of one group run side by side."""

    groups: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise Invalid("has a group without steps" if self.groups else "has no steps", field="steps")
        if len(self.groups) > MAX_GROUPS:
            raise Invalid(f"has {len(self.groups)} groups", field="steps", remedy=f"keep to {MAX_GROUPS:,}")
        if self.total_steps > MAX_STEPS:
            raise Invalid(f"has {self.total_steps} steps", field="steps", remedy=f"keep to {MAX_STEPS:,}")

    @classmethod
    def of(cls, steps: Iterable[Step | Iterable[Step]]) -> Plan:
        """Steps one after the other; a list in the list is a parallel group."""
        return cls(tuple((each,) if isinstance(each, Step) else _group(each) for each in steps))

    @property
    def total_steps(self) -> int:
        return sum(len(group) for group in self.groups)

    def numbered(self) -> Iterator[tuple[int, int, Step]]:
        """(group, position in the plan, step), in order."""
        number = 0
        for index, group in enumerate(self.groups):
            for step in group:
                yield index, number, step
                number += 1

    def step(self, number: int) -> Step:
        for group in self.groups:
            if number < len(group):
                return group[number]
            number -= len(group)
        raise IndexError("the plan has no step of that number")

    def targets(self, kind: str) -> set[str]:
        """What the steps of a kind point at."""
        return {step.target for _, _, step in self.numbered() if step.kind == kind}

    def map(self, change: Any) -> Plan:
        """The plan with each step as ``change`` returns it."""
        return Plan(tuple(tuple(change(step) for step in group) for group in self.groups))

    def to_fields(self) -> list[list[dict[str, Any]]]:
        return [[step.to_fields() for step in group] for group in self.groups]

    def to_json(self) -> str:
        return stored_values.json_of(self.to_fields(), field="steps", limit=MAX_PLAN)


def _group(steps: Any) -> tuple[Step, ...]:
    group = tuple(steps) if isinstance(steps, Iterable) and not isinstance(steps, str) else (steps,)
    for step in group:
        if not isinstance(step, Step):
            raise Invalid(f"{step!r:.60} is not a step", field="steps", remedy="make one with Step.job(...)")
    return group


def plan_from_fields(stored: object) -> Plan:
    """A plan as `Plan.to_fields` gives it."""
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        raise Invalid("are not a list of groups", field="steps")
    groups = []
    for index, group in enumerate(stored):
        if not isinstance(group, Sequence) or isinstance(group, str):
            raise Invalid("is not a list of steps", field=f"steps.{index}")
        groups.append(tuple(step_from_fields(step) for step in group))
    return Plan(tuple(groups))


@lru_cache(maxsize=256)
def plan_from_json(text: str) -> Plan:
    """A plan as stored. Many runs follow the same one, so each text is read once."""
    return plan_from_fields(json.loads(text))


class Overlap(StrEnum):
    """What happens when a run is due while another of the same schedule is active."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


class Late(StrEnum):
    """What happens to due instants at which no scheduler was there."""

    ONCE = "once"
    ALL = "all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Misfire:
    """The rule for due instants that were missed: one run for all of them, each of the last N, or none too late."""

    policy: Late = Late.ONCE
    max_runs: int = 100
    grace_seconds: float = 300.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _one_of(Late, self.policy, "misfire"))
        if (
            isinstance(self.max_runs, bool)
            or not isinstance(self.max_runs, int)
            or not 1 <= self.max_runs <= MAX_CATCH_UP
        ):
            raise Invalid(f"must be a whole number from 1 to {MAX_CATCH_UP:,}", field="misfire.max_runs")
        if not isinstance(self.grace_seconds, int | float) or not ON_TIME_SECONDS <= self.grace_seconds <= _A_YEAR:
            raise Invalid(
                f"must be from {ON_TIME_SECONDS} s to a year: what is less than a minute late counts as on time",
                field="misfire.grace_seconds",
            )
        for name, policy in _GOES_WITH.items():
            if self.policy is not policy and getattr(self, name) != _SAID_OF_NONE[name]:
                raise _does_not_go_with(self.policy, name)

    def to_fields(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"policy": str(self.policy)}
        if self.policy is Late.ALL:
            stored["max_runs"] = self.max_runs
        if self.policy is Late.SKIP:
            stored["grace_seconds"] = self.grace_seconds
        return stored


_A_YEAR = 366 * 86_400
_GOES_WITH = {"max_runs": Late.ALL, "grace_seconds": Late.SKIP}
_SAID_OF_NONE = {each.name: each.default for each in fields(Misfire)}


def _does_not_go_with(policy: Late, name: str) -> Invalid:
    goes_with = _GOES_WITH[name]
    return Invalid(
        f"goes with the policy {goes_with}, and it is {policy}",
        field=f"misfire.{name}",
        remedy=f"say policy {goes_with}, or leave {name} out",
    )


def misfire_from_fields(stored: object) -> Misfire:
    """A misfire rule as somebody says it: its fields, or just the word. What the policy would pass over is refused."""
    if isinstance(stored, Misfire):
        return stored
    if isinstance(stored, str):
        return Misfire(_one_of(Late, stored, "misfire"))
    if not isinstance(stored, Mapping):
        raise Invalid("is not a rule", field="misfire", remedy=f"use one of {', '.join(Late)}")
    unknown = sorted(str(name) for name in stored.keys() - {each.name for each in fields(Misfire)})
    if unknown:
        raise Invalid("is no field of a misfire rule", field=f"misfire.{unknown[0]}")
    made = Misfire(**stored)
    for name, policy in _GOES_WITH.items():
        if name in stored and made.policy is not policy:
            raise _does_not_go_with(made.policy, name)
    return made


def misfire_as_stored(stored: object) -> Misfire:
    """A misfire rule as it stands in a row: as what holds of it, should a rule of today refuse some of what it says."""
    if not isinstance(stored, Mapping):
        return misfire_from_fields(stored)
    policy = stored.get("policy", Late.ONCE)
    kept = {name: value for name, value in stored.items() if _GOES_WITH.get(name, policy) == policy}
    grace = kept.get("grace_seconds")
    if isinstance(grace, int | float) and 0 < grace < ON_TIME_SECONDS:
        kept["grace_seconds"] = ON_TIME_SECONDS
    return misfire_from_fields(kept)


@lru_cache(maxsize=256)
def misfire_from_json(text: str) -> Misfire:
    """A misfire rule as stored."""
    return misfire_as_stored(json.loads(text))


def _one_of(words: Any, given: object, field: str) -> Any:
    try:
        return words(given)
    except ValueError:
        raise Invalid(f"{given!r:.60} is none of them", field=field, remedy=f"use one of {', '.join(words)}") from None


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule as somebody wrote it down."""

    name: str
    trigger: Trigger
    plan: Plan
    description: str = ""
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = Misfire()

    def __post_init__(self) -> None:
        stored_values.label(self.name, field="name")
        if self.name != self.name.strip() or "\n" in self.name:
            raise Invalid("begins or ends with a blank, or has several lines", field="name")
        if not isinstance(self.trigger, Trigger):
            raise Invalid(f"{self.trigger!r:.60} is not a trigger", field="trigger", remedy="make one with cron(...)")
        stored_values.storable_text(self.description, field="description", limit=4000)
        object.__setattr__(self, "overlap", _one_of(Overlap, self.overlap, "overlap"))

    @property
    def key(self) -> str:
        """What it is found by."""
        return self.name

    def to_fields(self) -> dict[str, Any]:
        """As plain data: what a version keeps and two versions are compared by."""
        return {
            "name": self.name,
            "description": self.description,
            "trigger": self.trigger.fields(),
            "steps": self.plan.to_fields(),
            "overlap": str(self.overlap),
            "misfire": self.misfire.to_fields(),
        }


def check_names(new: Definition, before: Definition | None = None) -> None:
    """Refuse names nobody could type, but for those of ``before``: what was stored once can still be changed."""
    kept = set() if before is None else {before.name, *(step.name for _, _, step in before.plan.numbered())}
    if new.name not in kept:
        stored_values.title(new.name, field="name")
    for _, _, step in new.plan.numbered():
        if step.name not in kept:
            stored_values.title(step.name, field="steps")


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Which fields differ, as (before, after)."""
    before, after = before or {}, after or {}
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def refuse_cycles(name: str, plan: Plan, plans: Mapping[str, Plan]) -> None:
    """Refuse a plan in which a schedule would, by way of others, wait for itself."""

    def needed(each: str) -> Sequence[str]:
        current = plan if each == name else plans.get(each)
        return () if current is None else sorted(current.targets(SCHEDULE))

    way = dependency_order.way_back(name, needed)
    if way is not None:
        raise _runs_itself(dependency_order.in_words(way))


def those_needed_first(wanted: Iterable[Definition]) -> Sequence[Definition]:
    """In an order in which each comes after those it runs as a step."""
    by_name = {each.name: each for each in wanted}
    ordered = dependency_order.in_order(
        by_name, lambda name: sorted(by_name[name].plan.targets(SCHEDULE)), _runs_itself
    )
    return [by_name[name] for name in ordered]


def _runs_itself(way: str) -> Invalid:
    return Invalid(f"runs itself: {way}", field="steps", remedy="break the circle")


def with_arguments(plan: Plan, overrides: Mapping[str, Mapping[str, Any]], *, of_jobs_only: bool = False) -> Plan:
    """The plan with other arguments for the steps named, for one run; ``of_jobs_only`` for those who may not say which
    program, script or address a step is about."""
    names = {step.name for _, _, step in plan.numbered()}
    unknown = sorted(overrides.keys() - names)
    if unknown:
        raise Invalid(
            "there is no step of that name", field=unknown[0], remedy=f"use one of {', '.join(sorted(names))}"
        )

    for name, given in overrides.items():
        if not isinstance(given, Mapping):
            raise Invalid("are not a set of named values", field=name, remedy="give a mapping")

    def changed(step: Step) -> Step:
        if step.name not in overrides:
            return step
        if of_jobs_only and step.kind != JOB:
            raise Forbidden(
                f"what a step of the kind {step.kind} does is for editors to say",
                field=step.name,
                remedy="give arguments to jobs only, or ask somebody who may edit the schedule",
            )
        return replace(step, arguments={**step.arguments, **overrides[step.name]})

    return plan.map(changed)
