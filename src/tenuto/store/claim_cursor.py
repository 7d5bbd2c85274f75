"""Cursors that a worker keeps between claims, so that the cost of a claim does not depend on the backlog.

A cursor only says where the next claim starts to read; a lost cursor costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from tenuto.model.tasks import Task

QueuePosition: TypeAlias = tuple[int, datetime, UUID]
QUEUE_START: QueuePosition = (-32768, datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
_LOWEST_RANK = -32769


@dataclass(slots=True)
class ClaimCursor:
    """Position of the last claimed task of each queue.

    Rows before it are mostly dead, and scanning them costs more with every task while an old snapshot is open. The
    position is dropped when a more urgent task arrives, when a claim finds too little, and every few seconds.
    """

    positions: dict[str, QueuePosition] = field(default_factory=dict)
    _announced_ranks: dict[str, int] = field(default_factory=dict)
    """Most urgent rank announced for each queue since the current claim started, which may have missed it."""

    def begin_claim(self) -> None:
        """Start a claim, which sees everything that was announced before."""
        self._announced_ranks.clear()

    def note_arrival(self, queue: str, rank: int = _LOWEST_RANK) -> None:
        """Note an announced task; drop the position of its queue if the task precedes it."""
        self._announced_ranks[queue] = min(rank, self._announced_ranks.get(queue, rank))
        place = self.positions.get(queue)
        if place is not None and rank < place[0]:
            del self.positions[queue]

    def advance_past(self, tasks: Iterable[Task]) -> None:
        """Move past the claimed tasks, most urgent first, unless a more urgent task was announced meanwhile."""
        last_of = {task.queue: task for task in tasks}
        for task in last_of.values():
            place = (-task.priority, task.run_at, task.id)
            heard = self._announced_ranks.get(task.queue)
            if heard is not None and heard < place[0]:
                self.positions.pop(task.queue, None)
            elif place > self.positions.get(task.queue, QUEUE_START):
                self.positions[task.queue] = place


@dataclass(slots=True)
class LimitKeyCursor:
    """Last limit key of each queue that claims under limits have read.

    A claim reads a few hundred keys and the next one continues, in a cycle: so a claim stays short, and every key has
    its turn.
    """

    last_keys: dict[str, str] = field(default_factory=dict)
    _unfinished_queues: set[str] = field(default_factory=set)
    _scanned_from_start: set[str] = field(default_factory=set)

    @property
    def has_unseen_keys(self) -> bool:
        """Return whether the last claim has not read all keys."""
        return bool(self._unfinished_queues)

    def begin_claim(self, queues: Iterable[str]) -> None:
        """Start a claim."""
        self._unfinished_queues = set(queues)
        self._scanned_from_start = set()

    def start_keys(self, queues: Iterable[str]) -> list[str]:
        """Return the key after which the scan of each queue starts."""
        return [self.last_keys.get(queue, "") for queue in queues]

    def record_end_keys(self, queues: Sequence[str], end_keys: Sequence[str | None]) -> None:
        """Store the last key read: None at the last key, the start key if the queue has no capacity."""
        for queue, start, end in zip(queues, self.start_keys(queues), end_keys, strict=True):
            if not start:
                self._scanned_from_start.add(queue)
            if end is None:
                self.last_keys.pop(queue, None)
                if queue in self._scanned_from_start:
                    self._unfinished_queues.discard(queue)
            elif end == start:
                self._unfinished_queues.discard(queue)
            else:
                self.last_keys[queue] = end
