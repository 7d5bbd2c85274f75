"""An attempt that is under way: the task held, its context, and the means to stop its code.

Whoever wants it stopped says why once; the first reason stands. How the code is stopped depends on where it runs
(loop, thread or child process) and is set by whoever started it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto

from tenuto.clock import steady
from tenuto.jobs.context import Context
from tenuto.model.actors import Actor
from tenuto.model.tasks import Task

_first_reason = threading.Lock()


class Stop(Enum):
    """Why code is stopped."""

    CANCELLED = auto()
    TIMED_OUT = auto()
    HANDED_BACK = auto()
    """The worker is leaving."""
    LEASE_LOST = auto()
    """The task belongs to nobody or to somebody else now: stop, and report nothing."""


class Attempt:
    """One attempt between claim and finish."""

    __slots__ = (
        "_halt", "context", "deadline", "heir", "lease_ends", "let_go", "over", "renewed", "sent_progress", "standby",
        "started_at", "stop_actor", "stop_reason", "stop_since", "taken_at", "task",
    )  # fmt: skip

    def __init__(self, task: Task, context: Context, lease_ends: float, taken_at: float) -> None:
        self.task = task
        self.context = context
        self.lease_ends = lease_ends
        """On the steady timer: from here on somebody else may hold the task."""
        self.taken_at = taken_at
        """On the steady timer, as is `renewed`: when it was asked for."""
        self.renewed = taken_at
        self.sent_progress: str | None = None
        self.started_at: datetime | None = None
        self.deadline: float | None = None
        """On the steady timer: the time limit of the code, once it has begun."""
        self.over = False
        """The code has come to its end; only the record is still to be written."""
        self.let_go = False
        """It is renewed no more, and the database knows."""
        self.standby = False
        """Under a limit: the database does not count it yet, it stands by for a seat or has just begun in one."""
        self.heir: Attempt | None = None
        """What goes on in its seat."""
        self.stop_reason: Stop | None = None
        self.stop_actor: Actor | None = None
        self.stop_since = 0.0
        self._halt: Callable[[], object] | None = None

    def stop(self, reason: Stop, by: Actor | None = None) -> None:
        """Have the code stopped. Asking again only presses harder."""
        if self.over:
            return
        with _first_reason:
            if self.stop_reason is None:
                self.stop_actor, self.stop_since = by, steady()
                self.stop_reason = reason
        self.context.tell_to_stop(lease_lost=reason is Stop.LEASE_LOST)
        # The reason is set before the means are read, and the means before the reason (below): one of the two sees
        # the other, so no stop is missed.
        halt = self._halt
        if halt is not None:
            halt()

    def begins(self, now: datetime) -> None:
        """The code begins; its time limit, if it has one, runs from here. Not if the lease is over: a process that was
        frozen, or got no turn for long, may come to this before its watchdog does."""
        self.started_at = now
        at = steady()
        if at > self.lease_ends:
            self.stop(Stop.LEASE_LOST)
        limit = self.task.policy.timeout_seconds
        if limit is not None:
            self.deadline = at + limit

    def can_be_halted_by(self, halt: Callable[[], object]) -> None:
        """Set the means. If somebody wanted it stopped before it began, it stops now."""
        self._halt = halt
        if self.stop_reason is not None:
            halt()

    def ended(self) -> None:
        """The code is over; from now on there is nothing to stop."""
        self.over = True
        self._halt = None
