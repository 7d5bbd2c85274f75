"""The attempts that a worker holds: running in a slot, prefetched, or ended and not yet written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from uuid import UUID

from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.model.work.tasks import Task
from tenuto.worker.executors import Executor


class SlotPool:
    """Execution slots of one worker."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.running_count = 0
        self.held: dict[UUID, Attempt] = {}
        """Every attempt whose lease this worker holds, by task id."""
        self.prefetched: deque[Attempt] = deque()
        """Attempts claimed ahead of a free slot, in claim order."""

    @property
    def free_count(self) -> int:
        """Slots that neither run an attempt nor have a prefetched one waiting for them."""
        return self.slot_count - self.running_count - len(self.prefetched)

    def oldest_prefetched_at(self) -> float:
        """Return when the oldest prefetched attempt was claimed, on the monotonic timer; infinity without one."""
        return self.prefetched[0].claimed_at if self.prefetched else inf

    def hold(self, attempts: Iterable[Attempt]) -> None:
        self.held.update((attempt.task.id, attempt) for attempt in attempts)

    def start(self, attempts: Sequence[Attempt], executor: Executor) -> None:
        """Start attempts at once, each in a slot that the caller knows to be free."""
        self.running_count += len(attempts)
        executor.launch(attempts)

    def start_prefetched(self, executor: Executor) -> None:
        """Start as many prefetched attempts as there are free slots."""
        count = min(self.slot_count - self.running_count, len(self.prefetched))
        if count > 0:
            self.start([self.prefetched.popleft() for _ in range(count)], executor)

    def take_prefetched(self) -> list[Attempt]:
        """Remove and return all prefetched attempts."""
        taken = list(self.prefetched)
        self.prefetched.clear()
        return taken

    def release(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts, unless a newer attempt at the same task is held."""
        for attempt in attempts:
            if self.held.get(attempt.task.id) is attempt:
                del self.held[attempt.task.id]


class ReclaimedTasks:
    """Tasks that this worker claimed again before its own earlier attempt at them has stopped.

    The lease was lost, or the task was handed back, and the code still runs. A second attempt beside it in the same
    process must not start: the earlier attempt is stopped, and until it has ended, claims exclude the task.
    """

    def __init__(self, held: Mapping[UUID, Attempt]) -> None:
        self._held = held
        self.ids: set[UUID] = set()

    def still_running(self, claimed: Sequence[Task]) -> set[UUID]:
        """Return the ids of claimed tasks whose earlier attempt is still running here, and stop these attempts."""
        for task in claimed:
            earlier = self._held.get(task.id)
            if earlier is not None and not earlier.has_ended:
                earlier.stop(StopReason.LEASE_LOST)
                self.ids.add(task.id)
        return self.ids

    def release_ended(self, ended: Iterable[Task]) -> list[Task]:
        """Return those of the ended tasks that were excluded from claims and may be claimed again."""
        if not self.ids:
            return []
        released = [task for task in ended if task.id in self.ids]
        self.ids.difference_update([task.id for task in released])
        return released
