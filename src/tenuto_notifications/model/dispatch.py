"""When the collected events of a rule become a message: a pure decision."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tenuto_notifications.model.rules import Rule

_MAX_GROUP_KEY_BYTES = 500
"""Indexes contain the keys of groups, and the entry of an index is limited."""


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
    """Decide about the collected events of a group. ``silenced_rules`` has None if all rules are silenced."""
    if rule is None or not rule.enabled:
        return Decision.DROP
    if None in silenced_rules or rule.name in silenced_rules:
        return Decision.SILENCE
    if rule.quiet is not None and rule.quiet.contains(now):
        return Decision.DROP if rule.quiet.then == "drop" else Decision.WAIT
    window = timedelta(seconds=rule.group.window)
    if group.last_message_at is not None and now < group.last_message_at + window:
        return Decision.WAIT
    return Decision.SEND


def group_key(rule: Rule, event_key: str, fields: dict[str, object]) -> str:
    """Return the key of the group that an event belongs to; a hash stands for a long one."""
    if not rule.group.window:
        return event_key
    key = "\x1f".join(f"{name}={fields.get(name, '')}" for name in rule.group.by)
    encoded = key.encode("utf-8", "backslashreplace")
    return key if len(encoded) <= _MAX_GROUP_KEY_BYTES else f"sha256:{hashlib.sha256(encoded).hexdigest()}"
