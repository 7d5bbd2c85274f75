"""Claim policy of a worker: what it does next about the queues. A state object without input or output.

Notifications arrive while a statement is in flight. Therefore each ``begin_…`` method clears its request before the
statement is sent, and a notification that arrives meanwhile sets the request again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum, auto

from tenuto.clock import monotonic_seconds
from tenuto.model.work.tasks import Task
from tenuto.store.work.tasks import ClaimCursor, LimitKeyCursor, PromotionResult


class ClaimState(Enum):
    """Next action of the worker on its queues, in order of precedence."""

    REFRESH = auto()
    """Promote due tasks and read the next due time and the limits."""
    RESCAN = auto()
    """Claim from the head of the queues."""
    CLAIM = auto()
    """Queued tasks may exist: claim from the cursor."""
    IDLE = auto()
    """No claimable task is known: wait for a notification, the next due time or the next poll."""


class ClaimPolicy:
    """Current claim state of one worker, and where its next claim starts."""

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self._pending = {ClaimState.REFRESH, ClaimState.CLAIM}
        self._limits_announced = True
        self.is_limited = True
        """Whether queued tasks have concurrency limits, so that claims must respect them."""
        self.next_due_at: datetime | None = None
        self.refreshed_at = monotonic_seconds()
        self.slots_in_flight = 0
        """Slots that the claim in flight may fill."""
        self.cursor = ClaimCursor()
        self.limit_cursor = LimitKeyCursor()

    @property
    def state(self) -> ClaimState:
        """The most urgent pending state."""
        return next((state for state in ClaimState if state in self._pending), ClaimState.IDLE)

    @property
    def may_have_tasks(self) -> bool:
        """Whether queued tasks may exist: one was announced, or the last claim was filled completely."""
        return ClaimState.CLAIM in self._pending

    @property
    def wants_claim(self) -> bool:
        return self.may_have_tasks or self.is_rescan_pending

    @property
    def is_rescan_pending(self) -> bool:
        return ClaimState.RESCAN in self._pending

    # --- announcements ------------------------------------------------------------------------------------------------

    def announce_tasks(self, queue: str, rank: int | None = None, *, limited: bool = False) -> None:
        """Record that tasks were queued, or became claimable again, with this rank or any rank."""
        self.cursor.note_arrival(queue, *([] if rank is None else [rank]))
        if limited:
            self.is_limited = self._limits_announced = True
        self._pending.add(ClaimState.CLAIM)

    def announce_free_limit_slot(self) -> None:
        """Record that a limit slot became free and has no successor."""
        self._pending.add(ClaimState.CLAIM)

    def request_refresh(self) -> None:
        self._pending.add(ClaimState.REFRESH)

    # --- refresh ------------------------------------------------------------------------------------------------------

    def is_refresh_due(self, now: datetime) -> bool:
        """Polling goes by the clock: under load the worker never waits long enough for a timeout."""
        is_task_due = self.next_due_at is not None and self.next_due_at <= now
        requested = ClaimState.REFRESH in self._pending
        is_poll_due = monotonic_seconds() >= self.refreshed_at + self.poll_seconds  # guard: claim.poll_under_load
        return requested or is_task_due or is_poll_due

    def begin_refresh(self) -> None:
        self._pending.discard(ClaimState.REFRESH)
        self._limits_announced = False
        self.refreshed_at = monotonic_seconds()
        self._pending.add(ClaimState.CLAIM)

    def finish_refresh(self, result: PromotionResult) -> None:
        self.next_due_at = result.next_due_at
        self.is_limited = result.has_limits or self._limits_announced
        self.cursor = ClaimCursor()
        if result.promoted_count:
            self._pending.add(ClaimState.REFRESH)  # one statement promotes a bounded number of tasks

    def fail_refresh(self) -> None:
        self._pending.add(ClaimState.REFRESH)

    # --- claim --------------------------------------------------------------------------------------------------------

    def begin_claim(self, limit: int) -> None:
        self._pending.discard(ClaimState.CLAIM)
        self.slots_in_flight = limit

    def start_position(self) -> ClaimCursor:
        """Return where an unlimited claim starts: the head of the queues for a rescan, the cursor otherwise."""
        start = ClaimCursor() if ClaimState.RESCAN in self._pending else self.cursor
        self.cursor.begin_claim()
        return start

    def finish_claim(self, claimed: Sequence[Task], limit: int, start: ClaimCursor) -> None:
        """Move the cursor past the claimed tasks and decide whether a rescan is needed."""
        self._pending.discard(ClaimState.RESCAN)
        if len(claimed) < limit and start.positions:
            self._pending.add(ClaimState.RESCAN)  # the cursor is exhausted: tasks before it have not been seen
        elif len(claimed) == limit and start is not self.cursor:
            self.cursor.positions.clear()  # more tasks may exist between the last claimed one and the old cursor
        self.cursor.advance_past(claimed)
        self._finish(claimed, limit)

    def finish_limited_claim(self, claimed: Sequence[Task], limit: int) -> None:
        """Limited claims always start at the head of each key, so they count as a rescan."""
        self._pending.discard(ClaimState.RESCAN)  # guard: worker.limited_claim_position
        if self.limit_cursor.has_unseen_keys:
            self._pending.add(ClaimState.CLAIM)
        token_at = self.limit_cursor.next_token_at
        if token_at is not None and (self.next_due_at is None or token_at < self.next_due_at):
            self.next_due_at = token_at  # the refresh then releases parked tasks
        self._finish(claimed, limit)

    def _finish(self, claimed: Sequence[Task], limit: int) -> None:
        self.slots_in_flight = 0
        if len(claimed) == limit:
            self._pending.add(ClaimState.CLAIM)

    def fail_claim(self) -> None:
        self.slots_in_flight = 0
        self._pending.add(ClaimState.CLAIM)

    # --- rescan -------------------------------------------------------------------------------------------------------

    def request_rescan(self) -> None:
        self._pending.add(ClaimState.RESCAN)

    def postpone_rescan(self) -> None:
        """Ignore wake-ups until the rescan is requested again."""
        self._pending.discard(ClaimState.RESCAN)
