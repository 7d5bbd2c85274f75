"""Tasks that come back to a worker before its own earlier attempt at them has stopped.

The lease was lost, or they were handed back, and the code still runs: a second attempt beside it in the same process
must not begin. It is told to stop, and until it has, the task is left to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tenuto.jobs.attempts import Attempt, Stop
from tenuto.model.tasks import Task


class Comebacks:
    """What must not be taken yet."""

    def __init__(self, held: Mapping[UUID, Attempt]) -> None:
        self._held = held
        self.ids: set[UUID] = set()

    def among(self, taken: Sequence[Task]) -> set[UUID]:
        """Those of the tasks just taken whose earlier attempt here is not over."""
        for task in taken:
            earlier = self._held.get(task.id)
            if earlier is not None and not earlier.over:
                earlier.stop(Stop.LEASE_LOST)
                self.ids.add(task.id)
        return self.ids

    def may_now(self, ended: Iterable[Task]) -> list[Task]:
        """Attempts at these have ended here; those that had come back meanwhile, and may be taken anew."""
        if not self.ids:
            return []
        back = [task for task in ended if task.id in self.ids]
        self.ids.difference_update([task.id for task in back])
        return back
