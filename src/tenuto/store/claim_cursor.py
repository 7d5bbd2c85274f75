"""What a worker remembers from one claim to the next, so that a claim costs the same however much lies in the queues.

Both values only say where the next claim begins to look; what may be taken the claim itself decides. Losing them costs
time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from tenuto.model.tasks import Task

Place: TypeAlias = tuple[int, datetime, UUID]
NOTHING_BEFORE: Place = (-32768, datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
_MOST_URGENT = -32769


@dataclass(slots=True)
class Bounds:
    """Where the last claim of each queue ended.

    Rows before it are mostly dead by now, and walking over them costs more with every job while somebody keeps an old
    snapshot open. The bound is only a shortcut: it is dropped whenever something may have been put in before it, when
    it finds too little, and every few seconds anyway.
    """

    after: dict[str, Place] = field(default_factory=dict)
    _heard: dict[str, int] = field(default_factory=dict)
    """The most urgent rank told of each queue since the claim under way was asked: it may not have seen that."""

    def asked(self) -> None:
        """A claim begins: whatever was told before, it sees."""
        self._heard.clear()

    def more_urgent(self, queue: str, rank: int = _MOST_URGENT) -> None:
        """Something has come in: if it goes before where we are, look from the beginning again."""
        self._heard[queue] = min(rank, self._heard.get(queue, rank))
        place = self.after.get(queue)
        if place is not None and rank < place[0]:
            del self.after[queue]

    def moved_past(self, tasks: Iterable[Task]) -> None:
        """The claim has taken these, most urgent first, unless something was told meanwhile that goes before them."""
        last_of = {task.queue: task for task in tasks}
        for task in last_of.values():
            place = (-task.priority, task.run_at, task.id)
            heard = self._heard.get(task.queue)
            if heard is not None and heard < place[0]:
                self.after.pop(task.queue, None)
            elif place > self.after.get(task.queue, NOTHING_BEFORE):
                self.after[task.queue] = place


@dataclass(slots=True)
class Lap:
    """How far the claims under limits have come along the limited keys of each queue.

    A claim looks at some hundred keys and the next one goes on from there, round and round: so a claim stays short
    however many keys there are, and every key has its turn.
    """

    after: dict[str, str] = field(default_factory=dict)
    _unseen: set[str] = field(default_factory=set)
    _from_the_first: set[str] = field(default_factory=set)

    @property
    def left_out(self) -> bool:
        """Whether there are keys the last claim has not looked at."""
        return bool(self._unseen)

    def asked(self, queues: Iterable[str]) -> None:
        """A claim begins."""
        self._unseen = set(queues)
        self._from_the_first = set()

    def starts(self, queues: Iterable[str]) -> list[str]:
        """After which key of each queue to begin."""
        return [self.after.get(queue, "") for queue in queues]

    def reached(self, queues: Sequence[str], ends: Sequence[str | None]) -> None:
        """Take over where the claim ended: none at the last key, the start itself if the queue had no room."""
        for queue, start, end in zip(queues, self.starts(queues), ends, strict=True):
            if not start:
                self._from_the_first.add(queue)
            if end is None:
                self.after.pop(queue, None)
                if queue in self._from_the_first:
                    self._unseen.discard(queue)
            elif end == start:
                self._unseen.discard(queue)
            else:
                self.after[queue] = end
