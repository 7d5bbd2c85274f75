"""Totals of a tour: submitted work and its outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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

    @property
    def balances(self) -> bool:
        return self.submitted == self.done + self.failed and self.open == self.lost == self.doubled == 0

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "balances": self.balances}


def build_ledger(submitted: int, counts: Mapping[str, int], **events: Any) -> Ledger:
    """Compare both counts; submitted work that is neither ended nor open is lost."""
    ended = counts["done"] + counts["failed"]
    return Ledger(
        submitted=submitted,
        done=counts["done"],
        failed=counts["failed"],
        open=counts["open"],
        lost=submitted - ended - counts["open"],
        doubled=counts["doubled"],
        attempts=counts["attempts"],
        retries=counts["attempts"] - ended,
        taken_back=counts["lost_attempts"],
        **events,
    )
