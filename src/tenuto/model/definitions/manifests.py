"""Manifests: job definitions with default input, policy, queue, priority and cap on active runs.

A manifest has one reason to run: a clock, the success of another manifest, on-demand items, or a manual request. It is
an immutable value that is validated when it is made. Activities record its runs; a run that fails for good becomes a
dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.definitions.policies import TaskPolicy, policy_from_json
from tenuto.model.triggers import ManualTrigger, Trigger, trigger_from_fields
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import MAX_PRIORITY, check_rate_key, parse_expires_in, priority_error

MAX_ACTIVE = 100_000


class ScheduleType(StrEnum):
    NONE = "none"
    """Only on a manual request."""
    CRON = "cron"
    """On a clock: a cron line or times of day."""
    INTERVAL = "interval"
    ON_DEMAND = "on_demand"
    """For bulk work: runs the batch items it is given."""
    DEPENDENT = "dependent"
    """After another manifest has succeeded."""


class OnDeadLetter(StrEnum):
    """Whether a manifest runs on its own while a run of it is a dead letter."""

    BLOCK = "block"
    """Not before the dead letter is resolved."""
    CONTINUE = "continue"
    """At the next due time. The dead letter stays open; a further final failure updates it."""


_SCHEDULE_TYPE_BY_TRIGGER = {
    "cron": ScheduleType.CRON,
    "times": ScheduleType.CRON,
    "interval": ScheduleType.INTERVAL,
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A job definition as declared. ``properties`` are the default arguments of every run."""

    external_id: str
    job: str
    name: str = ""
    description: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    property_type: str = ""
    trigger: Trigger = field(default_factory=ManualTrigger)
    on_demand: bool = False
    depends_on: str | None = None
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    queue: str = "default"
    priority: int = 0
    group: str | None = None
    max_active: int | None = None
    on_dead_letter: OnDeadLetter = OnDeadLetter.BLOCK
    expires_seconds: float | None = None
    """Time after the due instant at which a run that has not started ends as expired."""
    rate_key: str | None = None
    """Of the job: its tasks and the runs share the rate limit."""
    rate_limit: str | None = None

    def __post_init__(self) -> None:
        validation.check_name(self.external_id, field="external_id")
        validation.check_name(self.job, field="job")
        object.__setattr__(self, "name", self.name or self.external_id)
        validation.check_label(self.name, field="name")
        validation.check_text(self.description, field="description", limit=4000)
        validation.check_name(self.queue, field="queue", limit=64)
        if self.group is not None:
            validation.check_name(self.group, field="group", limit=64)
        if not isinstance(self.trigger, Trigger):
            raise Invalid(
                f"trigger {quoted(self.trigger, 60)} is not a trigger",
                code="manifest.trigger.invalid",
                field="trigger",
                remedy="make one with cron(...)",
            )
        object.__setattr__(self, "on_dead_letter", parse_on_dead_letter(self.on_dead_letter))
        if not _is_whole_number(self.priority, -MAX_PRIORITY, MAX_PRIORITY):
            raise priority_error(self.priority)
        if self.max_active is not None and not _is_whole_number(self.max_active, 1, MAX_ACTIVE):
            raise max_active_error(self.max_active)
        parse_expires_in(self.expires_seconds)
        check_rate_key(self.rate_key, parse_rate_limit(self.rate_limit))
        reasons_to_run = [not isinstance(self.trigger, ManualTrigger), self.on_demand, self.depends_on is not None]
        if sum(reasons_to_run) > 1:
            raise Invalid(
                f"manifest {self.external_id!r} has more than one reason to run",
                code="manifest.trigger.conflict",
                field="trigger",
                remedy="give only one of a trigger, after and on_demand",
            )
        if self.depends_on == self.external_id:
            raise self.cycle_error(f"{self.external_id} → {self.external_id}")

    @property
    def key(self) -> str:
        """The unique key: the external id."""
        return self.external_id

    def describe_trigger(self) -> str:
        """Describe the reason to run."""
        if self.on_demand:
            return "On demand, for submitted input"
        if self.depends_on is not None:
            return f"After each success of {self.depends_on}"
        return self.trigger.describe()

    @property
    def references(self) -> set[str]:
        """The manifest after whose success it runs, if any."""
        return set() if self.depends_on is None else {self.depends_on}

    @staticmethod
    def cycle_error(cycle: str) -> Invalid:
        return Invalid(
            f"a manifest would run after itself: {cycle}", code="manifest.depends_on.cycle", field="depends_on"
        )

    @property
    def schedule_type(self) -> ScheduleType:
        if self.on_demand:
            return ScheduleType.ON_DEMAND
        if self.depends_on is not None:
            return ScheduleType.DEPENDENT
        return _SCHEDULE_TYPE_BY_TRIGGER.get(self.trigger.kind, ScheduleType.NONE)

    @property
    def limit_key(self) -> str:
        """The limit key that all its runs share, so that many runs cannot block other manifests."""
        return f"manifest:{self.external_id}"

    def to_fields(self) -> dict[str, Any]:
        """Return plain data; optional fields that are not set are left out."""
        stored: dict[str, Any] = {"external_id": self.external_id, "name": self.name, "job": self.job}
        if self.description:
            stored["description"] = self.description
        if self.properties:
            stored["properties"] = dict(self.properties)
        stored["property_type"] = self.property_type
        stored["schedule_type"] = str(self.schedule_type)
        if not isinstance(self.trigger, ManualTrigger):
            stored["trigger"] = self.trigger.to_fields()
        if self.depends_on is not None:
            stored["depends_on"] = self.depends_on
        stored["policy"] = json.loads(self.policy.to_json())
        for name in ("queue", "priority", "group", "max_active"):
            if getattr(self, name) is not None:
                stored[name] = getattr(self, name)
        if self.on_dead_letter is not OnDeadLetter.BLOCK:
            stored["on_dead_letter"] = str(self.on_dead_letter)
        if self.expires_seconds is not None:
            stored["expires_seconds"] = self.expires_seconds
        if self.rate_key is not None:
            stored |= {"rate_key": self.rate_key, "rate_limit": self.rate_limit}
        return stored


def manifest_from_fields(stored: Mapping[str, Any]) -> Manifest:
    """Return the manifest that `Manifest.to_fields` wrote."""
    given = dict(stored)
    kind = given.pop("schedule_type", None)
    if "trigger" in given:
        given["trigger"] = trigger_from_fields(given["trigger"])
    if "policy" in given:
        given["policy"] = policy_from_json(json.dumps(given["policy"]))
    unknown = sorted(given.keys() - set(Manifest.__dataclass_fields__))
    if unknown:
        field = str(unknown[0])[:80]
        raise Invalid(f"a manifest has no field {field!r}", code="manifest.field.unknown", field=field)
    return Manifest(**given, on_demand=kind == ScheduleType.ON_DEMAND)


def parse_on_dead_letter(value: object) -> OnDeadLetter:
    """Return the choice that a text names."""
    if value not in list(OnDeadLetter):
        raise Invalid(
            f"on_dead_letter {quoted(value, 60)} is neither block nor continue",
            code="manifest.on_dead_letter.invalid",
            field="on_dead_letter",
            remedy="write block or continue",
        )
    return OnDeadLetter(str(value))


def check_manifest_name(new: Manifest, before: Manifest | None = None) -> None:
    """Raise `Invalid` for a name with invisible characters, unless it is the name ``before``."""
    if before is None or new.name != before.name:
        validation.check_title(new.name, field="name")


def max_active_error(value: object) -> Invalid:
    """The error for a cap on active runs that is not a whole number in range."""
    return Invalid(
        f"max_active {quoted(value, 60)} is not a whole number from 1 to {MAX_ACTIVE:,}",
        code="manifest.max_active.out_of_range",
        field="max_active",
    )


def _is_whole_number(value: object, low: int, high: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, int) and low <= value <= high
