"""Triggers from plain data and JSON. Unknown fields are rejected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.triggers.cron import cron
from tenuto.model.triggers.interval import every
from tenuto.model.triggers.times_of_day import at
from tenuto.model.triggers.trigger import ManualTrigger, Trigger

MAX_JSON_LENGTH = 64 * 1024

_LIMITS = ("zone", "start", "end", "excluded", "jitter")
# For each kind: its constructor, its required field and its optional fields.
_KINDS: dict[str, tuple[Callable[..., Trigger], str | None, tuple[str, ...]]] = {
    "cron": (cron, "cron", _LIMITS),
    "times": (at, "times", ("days", *_LIMITS)),
    "interval": (every, "every", ("between", "days", "anchor", *_LIMITS)),
    "manual": (ManualTrigger, None, ()),
}


def manual() -> ManualTrigger:
    """Run only on request."""
    return ManualTrigger()


def trigger_from_json(text: str) -> Trigger:
    """Return the trigger that a JSON text describes."""
    if len(text) > MAX_JSON_LENGTH:
        raise Invalid(
            f"the trigger is larger than {MAX_JSON_LENGTH:,} characters", code="trigger.json.too_large", field="trigger"
        )
    try:
        # The constructors reject NaN, and name the field.
        stored = json.loads(text, object_pairs_hook=validation.build_unique_object)
    except validation.DuplicateKey as error:
        field = error.name[:80]
        raise Invalid(f"the trigger contains {field!r} twice", code="trigger.field.duplicate", field=field) from None
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the trigger is not valid JSON: {error}", code="trigger.json.invalid", field="trigger") from None
    return trigger_from_fields(stored)


def trigger_from_fields(stored: object) -> Trigger:
    """Return the trigger that plain data describes: ``{"kind": "cron", "cron": "0 2 * * *"}``."""
    if not isinstance(stored, Mapping):
        raise Invalid(
            f"trigger {quoted(stored, 60)} is not a mapping",
            code="trigger.invalid",
            field="trigger",
            remedy='write {"kind": "cron", …}',
        )
    given: dict[str, Any] = {str(name): value for name, value in stored.items()}
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Invalid(
            f"unknown kind of trigger {quoted(kind)}",
            code="trigger.kind.unknown",
            field="kind",
            remedy=f"use one of {', '.join(_KINDS)}",
        )
    make, needed, allowed = _KINDS[kind]
    unknown = sorted(given.keys() - {needed, *allowed})
    if unknown:
        fields = ", ".join(filter(None, (needed, *allowed)))
        raise Invalid(
            f"a trigger of kind {kind} has no field {quoted(unknown[0])}",
            code="trigger.field.unknown",
            field=unknown[0][:80],
            remedy=f"it has {fields}" if fields else "leave it out",
        )
    if needed is None:
        return make()
    if needed not in given:
        raise Invalid(
            f"a trigger of kind {kind} needs the field {needed!r}", code="trigger.field.missing", field=needed
        )
    return make(given.pop(needed), **given)


def describe_trigger(fields: Mapping[str, Any]) -> str:
    """Describe a stored trigger in words; return its fields as JSON if this version cannot read it."""
    try:
        return trigger_from_fields(fields).describe()
    except Invalid:
        return json.dumps(fields, ensure_ascii=False)
