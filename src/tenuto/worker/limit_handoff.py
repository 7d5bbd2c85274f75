"""Limit hand-off: passes a limit slot from an ended task to its successor without a query in between.

Where tasks end within milliseconds, a limit of 50 would allow 50 tasks per round trip. Therefore a worker claims a few
standby tasks that share all limits with tasks it runs. When the code of a running task ends, a standby task starts in
its limit slot, and both changes are written in one transaction. Never more tasks run than the limit allows, and the
database never counts more.

Other workers wait for the same slots: several times a second the hand-off pauses, and free slots go to the next claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import inf

from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.model.work.tasks import Outcome, Settlement, Task
from tenuto.store.work.tasks import QueuePosition
from tenuto.worker.fetcher import PrefetchEstimator

EXCLUSIVE_SECONDS, OPEN_SECONDS = 0.25, 0.01
"""A cycle of the hand-off: how long slots are handed on within this worker, then open to all workers."""

_STANDBY_SECONDS = 0.05
"""Each limit slot gets as many standby tasks as end one after the other in this time."""
_MAX_STANDBY_PER_SLOT = 16
_MAX_LIMIT_SLOTS = 20
"""Maximum number of limit slots for which standby tasks are claimed."""


class LimitHandoff:
    """Standby tasks of one worker."""

    def __init__(self) -> None:
        self._standby: dict[str, deque[Attempt]] = {}
        self._last_claimed: dict[str, QueuePosition] = {}
        """Limit slots, with the queue position of the last task claimed for each."""
        self._cycle_started_at = monotonic_seconds()
        self._pause_until = 0.0
        self._invalidated = False
        self.standby_count = 0
        self.handed_on_count = 0
        """Number of hand-offs so far."""

    def record_claimed(self, tasks: Iterable[Task]) -> None:
        """Record tasks claimed in competition with other workers."""
        last = {
            task.limit_slot: (-task.priority, task.run_at, task.id) for task in tasks if task.limit_slot is not None
        }
        if last:
            self._last_claimed = dict(islice(last.items(), _MAX_LIMIT_SLOTS))

    def standby_demand(
        self, held: Iterable[Attempt], estimator: PrefetchEstimator, max_count: int
    ) -> tuple[Mapping[str, QueuePosition], int]:
        """Return the limit slots that need standby tasks, and how many for each."""
        # guard: standby.changed_limits
        if not self._last_claimed or self._invalidated or monotonic_seconds() < self._pause_until:
            return {}, 0
        slot_count = sum(attempt.task.limit_slot is not None and not attempt.is_standby for attempt in held)
        wanted = min(
            int(slot_count * estimator.sequential_task_count(_STANDBY_SECONDS, _MAX_STANDBY_PER_SLOT)), max_count
        )
        if not wanted or self.standby_count > wanted // 2:
            return {}, 0
        return self._last_claimed, max((wanted - self.standby_count) // len(self._last_claimed), 1)

    def record_no_candidates(self) -> None:
        """Record that no further standby candidates exist; the next claim may find some."""
        self._last_claimed = {}

    def invalidate(self) -> None:
        """Stop handing on slots because limits may have changed; standby tasks, also those of a claim in flight, must
        return to the queue first."""
        self._last_claimed = {}
        self._invalidated = True  # guard: handoff.claim_during_limit_change

    def add_standby(self, attempts: Iterable[Attempt]) -> None:
        """Add tasks that were claimed ahead of a free slot."""
        for attempt in attempts:
            assert attempt.task.limit_slot is not None
            attempt.is_standby = True
            self._standby.setdefault(attempt.task.limit_slot, deque()).append(attempt)
            self.standby_count += 1
            if attempt.task.limit_slot in self._last_claimed:
                task = attempt.task
                self._last_claimed[attempt.task.limit_slot] = (-task.priority, task.run_at, task.id)

    def hand_slot_to_successor(self, attempt: Attempt) -> Attempt | None:
        """Return the standby attempt that takes over the limit slot of an ended attempt.

        None if no attempt may: a stopped attempt may have lost its slot.
        """
        slot = attempt.task.limit_slot or ""
        waiting = self._standby.get(slot)
        if not waiting or self._invalidated or attempt.stop_reason is not None or self._is_open_to_others():
            return None
        self.standby_count -= 1
        self.handed_on_count += 1
        attempt.successor = waiting.popleft()
        if not waiting:
            # guard: handoff.no_leftover_slots
            del self._standby[slot]  # each batch has its own slots: empty ones would accumulate
        return attempt.successor

    def _is_open_to_others(self) -> bool:
        elapsed_seconds = monotonic_seconds() - self._cycle_started_at
        if elapsed_seconds > EXCLUSIVE_SECONDS + OPEN_SECONDS:
            self._cycle_started_at, elapsed_seconds = monotonic_seconds(), 0.0
        return elapsed_seconds > EXCLUSIVE_SECONDS

    def oldest_standby_at(self) -> float:
        """Return when the oldest standby task was claimed: infinity without one, minus infinity if all must return."""
        if self._invalidated:
            return -inf
        return min((waiting[0].claimed_at for waiting in self._standby.values()), default=inf)

    def take_all_standby(self, pause: float = 0.0) -> list[Attempt]:
        """Remove and return all standby tasks; claim none for ``pause`` seconds."""
        standby = [attempt for waiting in self._standby.values() for attempt in waiting]
        self._standby.clear()
        self.standby_count = 0
        if standby or not self._invalidated:  # without standby tasks a change of limits is no reason to pause
            self._pause_until = monotonic_seconds() + pause
        self._invalidated = False
        return standby


def final_successors(batch: Sequence[tuple[Attempt, Outcome]]) -> list[Attempt | None]:
    """For each ended attempt, return the attempt that now occupies its limit slot: the first successor in the hand-off
    chain that is not itself ended in this batch. None for a standby attempt: its predecessor hands on the slot."""
    ending = {attempt for attempt, _ in batch}
    successors: list[Attempt | None] = []
    for attempt, _ in batch:
        successor = None if attempt.is_standby else attempt.successor
        while successor is not None and successor in ending:
            successor = successor.successor
        successors.append(successor)
    return successors


def confirm_successors(batch: Sequence[tuple[Attempt, Outcome]], settlements: Sequence[Settlement]) -> None:
    """After the outcomes are written: successors that got the slot count against the limit, the others stop."""
    confirmed = {settlement.successor for settlement in settlements if settlement.successor is not None}
    ending = {attempt for attempt, _ in batch}
    for attempt, _ in batch:
        successor = attempt.successor
        if successor is None or successor in ending:
            continue
        if successor.task.id in confirmed:
            successor.is_standby = False
        else:
            successor.stop(StopReason.HANDED_BACK)
