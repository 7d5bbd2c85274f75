"""Values and decisions of bulk operations: one action on many objects, selected by a filter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_DIFFERENCE = 0.1
"""Largest difference between the expected and the selected number of objects, as a part of the expected one."""


class BulkKind(StrEnum):
    """What a bulk operation does to each selected object."""

    EXECUTION_CANCEL = "execution.cancel"
    EXECUTION_PAUSE = "execution.pause"
    EXECUTION_RESUME = "execution.resume"
    EXECUTION_RETRY = "execution.retry"
    TASK_CANCEL = "task.cancel"
    SCHEDULE_ENABLE = "schedule.enable"
    SCHEDULE_DISABLE = "schedule.disable"
    DEAD_LETTER_RETRY = "dead_letter.retry"
    DEAD_LETTER_ACKNOWLEDGE = "dead_letter.acknowledge"
    ONE_SHOT_CANCEL = "one_shot.cancel"


class BulkState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    """All items were processed."""
    ABORTED = "aborted"
    """The rest of the items was left untouched."""


class ItemOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The action raised an unexpected error."""
    SKIPPED = "skipped"
    """The state of the object does not allow the action, or the object no longer exists."""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of one item."""

    outcome: ItemOutcome
    code: str | None = None
    message: str | None = None


SUCCEEDED = ItemResult(ItemOutcome.SUCCEEDED)


def differs_too_much(expected: int, selected: int) -> bool:
    """Return whether the selection is not the one that the caller expected."""
    return abs(selected - expected) > MAX_DIFFERENCE * expected
