"""The status of a run, from the objects that it processed."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.model.work.tasks import OutcomeStatus


@dataclass(frozen=True, slots=True)
class RunTotals:
    """What a run counted. Objects processed include unchanged ones, which have no item."""

    processed: int = 0
    errors: int = 0
    """Objects in error, the unhandled ones included."""
    unhandled: int = 0
    warnings: int = 0
    """Warnings of the connector and of the run itself."""
    held: bool = False
    """A guard holds something."""
    failed: bool = False
    """The processor or connector raised an exception."""


def decide_status(totals: RunTotals) -> OutcomeStatus:
    """Return the status of a run; the first condition that applies decides."""
    if totals.failed:
        return OutcomeStatus.FAILED
    if totals.processed > 0 and totals.errors >= totals.processed:
        return OutcomeStatus.FAILED
    if totals.unhandled or totals.held:
        return OutcomeStatus.COMPLETED_WITH_ERROR
    if totals.errors or totals.warnings:
        return OutcomeStatus.COMPLETED_WITH_WARNING
    return OutcomeStatus.COMPLETED
