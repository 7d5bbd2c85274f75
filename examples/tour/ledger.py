"""Totals of a tour: submitted work and its outcomes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tenuto.store.work.activities import OutcomeCounts


@dataclass(frozen=True, slots=True)
class Ledger:
    """Submitted work, counted by the tour, and outcomes, counted by the database."""

    submitted: int
    done: int
    failed: int
    open: int
    lost: int
    doubled: int
    attempts: int
    retries: int
    killed_workers: int
    taken_back: int
    database_restarts: int
    dead_letters_retried: int
    batch_items: int
    batch_items_a_second: int
    seconds: float
    directories: int = 0
    """LDAP directories that were targets; none where slapd is not installed."""

    @property
    def balances(self) -> bool:
        return self.submitted == self.done + self.failed and self.open == self.lost == self.doubled == 0

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "balances": self.balances}


def build_ledger(submitted: int, counts: OutcomeCounts, **events: Any) -> Ledger:
    """Compare both counts; submitted work that is neither ended nor open is lost."""
    ended = counts.done_count + counts.failed_count
    return Ledger(
        submitted=submitted,
        done=counts.done_count,
        failed=counts.failed_count,
        open=counts.open_count,
        lost=submitted - ended - counts.open_count,
        doubled=counts.doubled_count,
        attempts=counts.attempt_count,
        retries=counts.attempt_count - ended,
        taken_back=counts.lost_attempt_count,
        **events,
    )
