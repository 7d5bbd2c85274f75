"""A running attempt: the claimed task, its context, and the function that stops its code.

The first stop reason is final. How code is stopped depends on where it runs (event loop, thread or child process); the
runner sets the halt function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto

from tenuto.clock import monotonic_seconds
from tenuto.jobs.context import Context
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import Task

_stop_lock = threading.Lock()


class StopReason(Enum):
    """Why the worker stops an attempt."""

    CANCELLED = auto()
    TIMED_OUT = auto()
    HANDED_BACK = auto()
    """The worker is shutting down."""
    LEASE_LOST = auto()
    """Another worker may hold the task: the attempt stops and reports nothing."""


class Attempt:
    """One attempt between claim and finish. Floats ending in ``_at`` are monotonic seconds."""

    __slots__ = (
        "_halt", "claimed_at", "context", "deadline", "has_ended", "has_renewal_ended", "is_standby",
        "lease_expires_at", "renewed_at", "saved_progress", "started_at", "stop_actor", "stop_reason",
        "stop_requested_at", "successor", "task",
    )  # fmt: skip

    def __init__(self, task: Task, context: Context, lease_expires_at: float, claimed_at: float) -> None:
        self.task = task
        self.context = context
        self.lease_expires_at = lease_expires_at
        """From this time on another worker may hold the task."""
        self.claimed_at = claimed_at
        """When the claim was requested."""
        self.renewed_at = claimed_at
        """When the last renewal was requested."""
        self.saved_progress: str | None = None
        self.started_at: datetime | None = None
        self.deadline: float | None = None
        """Monotonic second at which the time limit of the started code is over."""
        self.has_ended = False
        """The code has ended; only its record has to be written."""
        self.has_renewal_ended = False
        """The lease is no longer renewed, and the task is marked as overrun in the database."""
        self.is_standby = False
        """Under a limit: the database does not count the task yet. It waits for a limit slot or has just taken one."""
        self.successor: Attempt | None = None
        """The attempt that takes over the limit slot."""
        self.stop_reason: StopReason | None = None
        self.stop_actor: Actor | None = None
        self.stop_requested_at = 0.0
        self._halt: Callable[[], object] | None = None

    def stop(self, reason: StopReason, actor: Actor | None = None) -> None:
        """Stop the code. Further calls halt it again but keep the first reason."""
        if self.has_ended:
            return
        with _stop_lock:
            if self.stop_reason is None:
                self.stop_actor, self.stop_requested_at = actor, monotonic_seconds()
                self.stop_reason = reason
        self.context.request_stop(lease_lost=reason is StopReason.LEASE_LOST)
        # Here the reason is set before `_halt` is read; in `set_halt` it is the other way round. One of the two threads
        # therefore sees the value of the other, and no stop is missed.
        halt = self._halt
        if halt is not None:
            halt()

    def mark_started(self, now: datetime) -> None:
        """Record the start of the code and start its time limit.

        An expired lease stops the attempt here: a process that was frozen may get here before its watchdog runs.
        """
        self.started_at = now
        now_seconds = monotonic_seconds()
        if now_seconds > self.lease_expires_at:  # guard: attempts.expired_lease
            self.stop(StopReason.LEASE_LOST)
        limit = self.task.policy.timeout_seconds
        if limit is not None:
            self.deadline = now_seconds + limit

    def set_halt(self, halt: Callable[[], object]) -> None:
        """Set the function that stops the code, and call it if a stop was requested before."""
        self._halt = halt
        if self.stop_reason is not None:
            halt()

    def mark_ended(self) -> None:
        """Record that the code has ended: from now on there is nothing to stop."""
        self.has_ended = True
        self._halt = None
