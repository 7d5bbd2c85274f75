"""Manifests: job definitions with their own input, rules and place in line.

A manifest says which job can run, with what input by default, when (on a clock, after another manifest, on demand, or
only by hand), how often a failure is tried again, and how many of it may be active at once. It is a value: checked when
made, compared by its fields. What came of its runs is told by activities; when a run fails for good, by a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenuto.errors import Invalid
from tenuto.model import dependency_order, stored_values
from tenuto.model.policies import Policy, policy_from_json
from tenuto.model.tasks import MAX_PRIORITY
from tenuto.model.triggers import Manual, Trigger, trigger_from_fields

MAX_ACTIVE = 100_000


class ScheduleType(StrEnum):
    NONE = "none"
    """Only by hand."""
    CRON = "cron"
    """On a clock: a cron line or times of day."""
    INTERVAL = "interval"
    ON_DEMAND = "on_demand"
    """For bulk work: runs what it is given."""
    DEPENDENT = "dependent"
    """After another manifest has succeeded."""


_BY_TRIGGER = {"cron": ScheduleType.CRON, "times": ScheduleType.CRON, "interval": ScheduleType.INTERVAL}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A job definition as somebody wrote it down. ``properties`` are the arguments every run starts from."""

    external_id: str
    job: str
    name: str = ""
    description: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    property_type: str = ""
    trigger: Trigger = field(default_factory=Manual)
    on_demand: bool = False
    depends_on: str | None = None
    policy: Policy = field(default_factory=Policy)
    queue: str = "default"
    priority: int = 0
    group: str | None = None
    max_active: int | None = None

    def __post_init__(self) -> None:
        stored_values.name(self.external_id, field="external_id")
        stored_values.name(self.job, field="job")
        object.__setattr__(self, "name", self.name or self.external_id)
        stored_values.label(self.name, field="name")
        stored_values.storable_text(self.description, field="description", limit=4000)
        stored_values.name(self.queue, field="queue", limit=64)
        if self.group is not None:
            stored_values.name(self.group, field="group", limit=64)
        if not isinstance(self.trigger, Trigger):
            raise Invalid(f"{self.trigger!r:.60} is not a trigger", field="trigger", remedy="make one with cron(...)")
        _whole("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.max_active is not None:
            _whole("max_active", self.max_active, 1, MAX_ACTIVE)
        ways = [not isinstance(self.trigger, Manual), self.on_demand, self.depends_on is not None]
        if sum(ways) > 1:
            raise Invalid(
                "has more than one reason to run", field="trigger", remedy="give a clock, after, or on_demand"
            )
        if self.depends_on == self.external_id:
            raise Invalid("depends on itself", field="depends_on")

    @property
    def key(self) -> str:
        """What it is found by."""
        return self.external_id

    @property
    def schedule_type(self) -> ScheduleType:
        if self.on_demand:
            return ScheduleType.ON_DEMAND
        if self.depends_on is not None:
            return ScheduleType.DEPENDENT
        return _BY_TRIGGER.get(self.trigger.kind, ScheduleType.NONE)

    @property
    def limit_key(self) -> str:
        """All its runs share one place in line, so that no flood of them shuts out the others."""
        return f"manifest:{self.external_id}"

    def to_fields(self) -> dict[str, Any]:
        """As plain data; what was not said is left out."""
        stored: dict[str, Any] = {"external_id": self.external_id, "name": self.name, "job": self.job}
        if self.description:
            stored["description"] = self.description
        if self.properties:
            stored["properties"] = dict(self.properties)
        stored["property_type"] = self.property_type
        stored["schedule_type"] = str(self.schedule_type)
        if not isinstance(self.trigger, Manual):
            stored["trigger"] = self.trigger.fields()
        if self.depends_on is not None:
            stored["depends_on"] = self.depends_on
        stored["policy"] = json.loads(self.policy.to_json())
        for name in ("queue", "priority", "group", "max_active"):
            if getattr(self, name) is not None:
                stored[name] = getattr(self, name)
        return stored


def manifest_from_fields(stored: Mapping[str, Any]) -> Manifest:
    """A manifest as `Manifest.to_fields` gives it."""
    given = dict(stored)
    kind = given.pop("schedule_type", None)
    if "trigger" in given:
        given["trigger"] = trigger_from_fields(given["trigger"])
    if "policy" in given:
        given["policy"] = policy_from_json(json.dumps(given["policy"]))
    unknown = sorted(given.keys() - set(Manifest.__dataclass_fields__))
    if unknown:
        raise Invalid("a manifest has no such field", field=str(unknown[0])[:80])
    return Manifest(**given, on_demand=kind == ScheduleType.ON_DEMAND)


def check_name(new: Manifest, before: Manifest | None = None) -> None:
    """Refuse a name nobody could type, unless it has been the name ``before``."""
    if before is None or new.name != before.name:
        stored_values.title(new.name, field="name")


def refuse_circles(external_id: str, depends_on: str | None, parents: Mapping[str, str | None]) -> None:
    """Refuse a manifest that would, by way of others, run after itself."""

    def needed(each: str) -> Sequence[str]:
        parent = depends_on if each == external_id else parents.get(each)
        return () if parent is None else (parent,)

    way = dependency_order.way_back(external_id, needed)
    if way is not None:
        raise _runs_after_itself(dependency_order.in_words(way))


def those_needed_first(wanted: Iterable[Manifest]) -> Sequence[Manifest]:
    """In an order in which each comes after the one it runs after."""
    by_id = {each.external_id: each for each in wanted}

    def needed(external_id: str) -> Sequence[str]:
        parent = by_id[external_id].depends_on
        return () if parent is None else (parent,)

    return [by_id[external_id] for external_id in dependency_order.in_order(by_id, needed, _runs_after_itself)]


def _runs_after_itself(way: str) -> Invalid:
    return Invalid(f"would run after itself: {way}", field="depends_on")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(f"must be a whole number from {low:,} to {high:,}", field=name)
