"""Triggers: when a schedule runs.

`cron`, `at` and `every` make them, `manual` makes the one without a clock. A trigger is a value: it knows its next run
after any instant, says itself in words, and goes to JSON and back. Nothing here reads a clock, draws a number or does
input or output; instants are aware, in UTC. What never runs, runs too often or cannot be read is refused when it is
made, by the name of its field.
"""

from __future__ import annotations

from tenuto.model.triggers.cron import Cron, cron
from tenuto.model.triggers.interval import Interval, every
from tenuto.model.triggers.serialization import manual, trigger_from_fields, trigger_from_json
from tenuto.model.triggers.times_of_day import Times, at
from tenuto.model.triggers.trigger import Manual, Trigger, check_runs

__all__ = [
    "Cron",
    "Interval",
    "Manual",
    "Times",
    "Trigger",
    "at",
    "check_runs",
    "cron",
    "every",
    "manual",
    "trigger_from_fields",
    "trigger_from_json",
]
