"""The seam between the worker and what runs the code: a task server is handed attempts and reports each once.

The worker claims (queues, priorities, every cap), renews leases, hears cancellations, enforces time limits and writes
what each attempt came to. A task server does none of that and never sees the database: it runs the code of what it is
handed, has it stopped when it is told to, and says how it ended. What it must promise is written in
docs/how-to/task-servers.md and tried by tests/worker/executors/conformance.py. The built-in one is `native`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenuto.clock import Clock
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.registry import Jobs
from tenuto.jobs.runner import Deliver


class TaskServer(Protocol):
    """What runs the code of attempts."""

    def start(self) -> None:
        """Make ready; called once, before anything is launched."""
        ...

    def launch(self, attempts: Sequence[Attempt]) -> None:
        """Start these, and return at once. Called on the worker's loop; never more are under way than there are slots.

        Each is delivered exactly once, once its code has really stopped.
        """
        ...

    def look(self) -> None:
        """A moment to see whether anything is stuck: now and then while something runs, on a thread of the worker's."""
        ...

    def close(self) -> None:
        """Let everything go; called once, when nothing runs any more."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task server is given by its worker."""

    jobs: Jobs
    """Which code there is."""
    clock: Clock
    """The database's: for when code began and ended."""
    deliver: Deliver
    """Where every attempt is reported, from any thread, alone or with others that ended at the same moment; with None
    as the outcome of one of which nothing may be said."""
    slots: int
    """How many attempts may be under way at the same time."""


MakeServer = Callable[[Terms], TaskServer]
