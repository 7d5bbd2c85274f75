"""Triggers from plain data and JSON: strictly, so that a misspelt field is refused and not passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tenuto.errors import Invalid
from tenuto.model import stored_values
from tenuto.model.triggers.cron import cron
from tenuto.model.triggers.interval import every
from tenuto.model.triggers.times_of_day import at
from tenuto.model.triggers.trigger import Manual, Trigger

MAX_JSON = 64 * 1024

_LIMITS = ("zone", "start", "end", "excluded", "jitter")
# Of each kind: who makes it, the field that must be there, and those that may.
_KINDS: dict[str, tuple[Callable[..., Trigger], str | None, tuple[str, ...]]] = {
    "cron": (cron, "cron", _LIMITS),
    "times": (at, "times", ("days", *_LIMITS)),
    "interval": (every, "every", ("between", "days", "anchor", *_LIMITS)),
    "manual": (Manual, None, ()),
}


def manual() -> Manual:
    """No clock: it runs when somebody asks for it."""
    return Manual()


def trigger_from_json(text: str) -> Trigger:
    """A trigger as `to_json` wrote it, or as somebody else did."""
    if len(text) > MAX_JSON:
        raise Invalid(f"is larger than {MAX_JSON:,} characters", field="trigger")
    try:
        # Whoever makes the trigger refuses NaN as well, and can say in which field.
        stored = json.loads(text, object_pairs_hook=stored_values.each_once)
    except stored_values.NameTwice as error:
        raise Invalid("is given twice", field=error.name[:80]) from None
    except (ValueError, RecursionError) as error:
        raise Invalid(f"is not JSON: {error}", field="trigger") from None
    return trigger_from_fields(stored)


def trigger_from_fields(stored: object) -> Trigger:
    """A trigger from plain data, such as `fields` gives or a file holds: ``{"kind": "cron", "cron": "0 2 * * *"}``."""
    if not isinstance(stored, Mapping):
        raise Invalid("is not a set of named fields", field="trigger", remedy='write {"kind": "cron", …}')
    given: dict[str, Any] = {str(name): value for name, value in stored.items()}
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Invalid(f"{kind!r:.80} is not a kind of trigger", field="kind", remedy=f"use one of {', '.join(_KINDS)}")
    make, needed, allowed = _KINDS[kind]
    unknown = sorted(given.keys() - {needed, *allowed})
    if unknown:
        fields = ", ".join(filter(None, (needed, *allowed)))
        raise Invalid(
            f"a trigger of kind {kind} has no such field",
            field=unknown[0][:80],
            remedy=f"it has {fields}" if fields else "leave it out",
        )
    if needed is None:
        return make()
    if needed not in given:
        raise Invalid(f"is missing; a trigger of kind {kind} needs it", field=needed)
    return make(given.pop(needed), **given)
