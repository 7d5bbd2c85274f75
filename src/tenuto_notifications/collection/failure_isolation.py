"""Isolation of failures: an error about one rule, group or event is recorded and does not stop the others.

Work that may fail runs in a savepoint of the transaction of the cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from tenuto.errors import Unavailable
from tenuto.logs import Log
from tenuto.model.validation import truncate_text
from tenuto.postgres.database import DRIVER_ERRORS, Connection, StatementTimeout, translate_driver_error
from tenuto_notifications.store import messages
from tenuto_notifications.store.messages import NewEvent

_MAX_REASON_CHARACTERS = 500
_MAX_TITLE_CHARACTERS = 300

log = Log("tenuto.notifications")


@dataclass(slots=True)
class FailureLog:
    """Logs the failures of rules, each kind of failure of a rule once."""

    _reported: set[tuple[str, str]] = field(default_factory=set)

    def report(self, rule_name: str, error: Exception) -> str:
        """Log the first error of its kind for the rule, and return the reason to record.

        An error that the next cycle may not meet, such as a lost connection, is raised again.
        """
        problem = translate_driver_error(error) if isinstance(error, DRIVER_ERRORS) else error
        if isinstance(problem, Unavailable) and not isinstance(problem, StatementTimeout):
            raise error
        reason = truncate_text(f"{type(error).__name__}: {error}", _MAX_REASON_CHARACTERS)
        kind = (rule_name, type(error).__name__)
        if kind not in self._reported:
            self._reported.add(kind)
            log.error("notification failed", rule=rule_name, error=reason)
        return reason


async def record_events(connection: Connection, events: Sequence[NewEvent], now: datetime, failures: FailureLog) -> int:
    """Insert the events of one rule, and return the number of new ones.

    If the insert fails, each half is inserted separately, until the events at fault are found; these are dropped.
    """
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
