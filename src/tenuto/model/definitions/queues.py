"""Queues declared in definition files: what a declaration changes, and what remains when it is gone.

A declaration sets only the options that it contains: the limit, the rate limit, the pause. Each takes effect only if it
differs from the previous declaration, so that a change by an operator remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MAX_QUEUE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Limits and pause of a queue; the defaults are those of a queue without settings."""

    max_running: int | None = None
    rate_limit: str | None = None
    paused: bool | str = False
    """The reason of the pause, or True for a pause without a reason."""


_DEFAULTS = QueueSettings()


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The effect of a declaration."""

    after: QueueSettings
    changed: tuple[str, ...] = ()
    """Options that the declaration changes."""
    kept: tuple[str, ...] = ()
    """Options that an operator changed after the same declaration: they remain."""
    replaced: tuple[str, ...] = ()
    """Changed options that an operator had changed since the previous declaration."""


def apply_declaration(
    current: QueueSettings, previous: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> QueueDecision:
    """Return what declaring these options changes, after an earlier declaration."""
    declared = previous or {}
    changed, kept, replaced = [], [], []
    for option, value in options.items():
        if _is_set(current, option, value):
            continue
        if option in declared and declared[option] == value:
            kept.append(option)
            continue
        changed.append(option)
        if option in declared and not _is_set(current, option, declared[option]):
            replaced.append(option)
    after = replace(current, **{option: options[option] for option in changed})
    return QueueDecision(after, tuple(changed), tuple(kept), tuple(replaced))


def withdraw_declaration(current: QueueSettings, previous: Mapping[str, Any]) -> QueueDecision:
    """Return what changes when no file declares the queue any more: options with their declared values get the default;
    those that an operator has changed since remain."""
    declared = {option: value for option, value in previous.items() if _is_set(current, option, value)}
    changed = tuple(option for option in declared if getattr(current, option) != getattr(_DEFAULTS, option))
    after = replace(current, **{option: getattr(_DEFAULTS, option) for option in changed})
    return QueueDecision(after, changed, kept=tuple(option for option in previous if option not in declared))


def _is_set(current: QueueSettings, option: str, value: Any) -> bool:
    """Return whether an option has this value; a pause that is declared without a reason may have one."""
    stored = getattr(current, option)
    if option == "paused" and value is True:
        return stored is not False
    return bool(stored == value)
