"""Isolation of rules: an error about one rule, group or event is recorded and does not stop the others.

Work that may fail runs in a savepoint of the transaction of the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenuto.errors import Unavailable
from tenuto.logs import Log
from tenuto.model.validation import truncate_text
from tenuto.postgres.database import DRIVER_ERRORS, StatementTimeout, translate_driver_error

_MAX_REASON_CHARACTERS = 500

log = Log("tenuto.notifications")


@dataclass(slots=True)
class FailureLog:
    """Logs the failures of rules, each kind of failure of a rule once."""

    _reported: set[tuple[str, str]] = field(default_factory=set)

    def report(self, rule_name: str, error: Exception) -> str:
        """Log an error, unless the rule has had one of its kind, and return the reason to record. An error that a
        repetition of the whole cycle may avoid is raised again."""
        problem = translate_driver_error(error) if isinstance(error, DRIVER_ERRORS) else error
        if isinstance(problem, Unavailable) and not isinstance(problem, StatementTimeout):
            raise error
        reason = truncate_text(f"{type(error).__name__}: {error}", _MAX_REASON_CHARACTERS)
        kind = (rule_name, type(error).__name__)
        if kind not in self._reported:
            self._reported.add(kind)
            log.error("notification failed", rule=rule_name, error=reason)
        return reason
