"""Values and decisions of bulk operations: one action on many objects, selected by a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

MAX_DIFFERENCE = 0.1
"""Largest difference between the expected and the selected number of objects, as a part of the expected one."""


MAX_SELECTED_IDS = 1000
"""Largest number of objects that an operation selects by their ids."""
_ID_LIST = "id:"
_ID_LENGTH = 36


class BulkKind(StrEnum):
    """Change that a bulk operation makes to each selected object."""

    EXECUTION_CANCEL = "execution.cancel"
    EXECUTION_PAUSE = "execution.pause"
    EXECUTION_RESUME = "execution.resume"
    EXECUTION_RETRY = "execution.retry"
    TASK_CANCEL = "task.cancel"
    SCHEDULE_ENABLE = "schedule.enable"
    SCHEDULE_DISABLE = "schedule.disable"
    SCHEDULE_BACKFILL = "schedule.backfill"
    """Runs one schedule for past due instants; started by `Schedules.backfill`."""
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
    """Result of one item."""

    outcome: ItemOutcome
    code: str | None = None
    message: str | None = None


SUCCEEDED = ItemResult(ItemOutcome.SUCCEEDED)


def differs_too_much(expected: int, selected: int) -> bool:
    """Return whether the selection is not the one that the caller expected."""
    return abs(selected - expected) > MAX_DIFFERENCE * expected


def write_id_list(ids: Sequence[UUID]) -> str:
    """Return a selection by ids as the text that is stored in place of a filter."""
    return _ID_LIST + ",".join(str(id) for id in ids)


def is_id_list(text: str) -> bool:
    """Return whether a stored selection names whole ids only, so that no object can meet it later."""
    return text.startswith(_ID_LIST) and all(len(id) == _ID_LENGTH for id in text.removeprefix(_ID_LIST).split(","))
