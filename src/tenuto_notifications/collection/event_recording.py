"""Recording of the events of rules. An event that cannot be recorded is dropped and does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tenuto.model.validation import truncate_text
from tenuto.postgres.database import Connection
from tenuto_notifications.collection.isolation import FailureLog
from tenuto_notifications.store import messages
from tenuto_notifications.store.messages import NewEvent

_MAX_TITLE_CHARACTERS = 300


async def record_events(connection: Connection, events: Sequence[NewEvent], now: datetime, failures: FailureLog) -> int:
    """Insert the events of one rule; return the number of those that it did not have. If that fails, halves are
    inserted, down to the events at fault."""
    if not events:
        return 0
    try:
        async with connection.transaction():
            return await messages.insert_events(connection, events, now)
    except Exception as error:  # noqa: BLE001 — one event must not stop the others
        reason = failures.report(events[0].rule_name, error)
    if len(events) == 1:
        await _drop(connection, events[0], now, reason, failures)
        return 0
    middle = len(events) // 2
    first = await record_events(connection, events[:middle], now, failures)
    return first + await record_events(connection, events[middle:], now, failures)


async def _drop(connection: Connection, event: NewEvent, now: datetime, reason: str, failures: FailureLog) -> None:
    shown = replace(event, title=truncate_text(event.title, _MAX_TITLE_CHARACTERS))
    try:
        async with connection.transaction():
            await messages.insert_dropped_event(connection, shown, now, reason)
    except Exception as error:  # noqa: BLE001 — one event must not stop the others
        failures.report(event.rule_name, error)
