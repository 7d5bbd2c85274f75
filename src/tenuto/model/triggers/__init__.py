"""Triggers: when a schedule or manifest runs.

`cron`, `at` and `every` make clock triggers, `manual` makes the trigger without a clock. A trigger is an immutable
value that computes its next run after any instant, describes itself, and converts to JSON and back. A trigger that
never runs, runs too often or cannot be parsed is rejected when it is made. The package reads no clock; instants are in
UTC.
"""

from __future__ import annotations

from tenuto.model.triggers.cron import CronTrigger, cron
from tenuto.model.triggers.interval import IntervalTrigger, every
from tenuto.model.triggers.serialization import (
    describe_trigger,
    manual,
    trigger_from_fields,
    trigger_from_json,
)
from tenuto.model.triggers.times_of_day import TimesTrigger, at
from tenuto.model.triggers.trigger import ManualTrigger, Trigger, check_has_run_after

__all__ = [
    "CronTrigger",
    "IntervalTrigger",
    "ManualTrigger",
    "TimesTrigger",
    "Trigger",
    "at",
    "check_has_run_after",
    "cron",
    "describe_trigger",
    "every",
    "manual",
    "trigger_from_fields",
    "trigger_from_json",
]
