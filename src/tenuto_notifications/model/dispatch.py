"""The decision when the collected events of a rule become a message."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tenuto_notifications.model.rules import Rule

_MAX_GROUP_KEY_BYTES = 500
"""Group keys are indexed, and PostgreSQL limits the size of an index entry."""


class Decision(StrEnum):
    """What happens to the collected events of a group."""

    SEND = "send"
    WAIT = "wait"
    SILENCE = "silenced"
    DROP = "dropped"


@dataclass(frozen=True, slots=True)
class Group:
    """Collected events of a rule that one message combines."""

    rule_name: str
    group_key: str
    event_count: int
    last_message_at: datetime | None
    """Latest message about events of the same group."""


def decide(rule: Rule | None, group: Group, silenced_rules: Sequence[str | None], now: datetime) -> Decision:
    """Decide about the collected events of a group. ``silenced_rules`` contains None if all rules are silenced.

    The statement ``list_due_groups`` makes the same decision about windows: it leaves out groups that have to wait.
    """
    decision = decide_rule(rule, silenced_rules, now)
    if decision is not Decision.SEND or rule is None or group.last_message_at is None:
        return decision
    return Decision.SEND if group.last_message_at + window_of(rule) <= now else Decision.WAIT


def decide_rule(rule: Rule | None, silenced_rules: Sequence[str | None], now: datetime) -> Decision:
    """Decide about all collected events of a rule, without regard to their groups."""
    if rule is None or not rule.enabled:
        return Decision.DROP
    if None in silenced_rules or rule.name in silenced_rules:  # guard: notifications.silenced
        return Decision.SILENCE
    if rule.quiet is not None and rule.quiet.contains(now):
        return Decision.DROP if rule.quiet.then == "drop" else Decision.WAIT
    return Decision.SEND


def window_of(rule: Rule) -> timedelta:
    """Return the time after a message in which events of the same group are combined."""
    return timedelta(seconds=0 if rule.has_approver_links else rule.group.window)


def group_key(rule: Rule, event_key: str, fields: dict[str, object]) -> str:
    """Return the key of the group of an event; a long key is replaced by its hash."""
    if rule.has_approver_links or not rule.group.window:
        return event_key
    key = "\x1f".join(f"{name}={fields.get(name, '')}" for name in rule.group.by)
    encoded = key.encode("utf-8", "backslashreplace")
    return key if len(encoded) <= _MAX_GROUP_KEY_BYTES else f"sha256:{hashlib.sha256(encoded).hexdigest()}"
