"""Pure model of tasks, workers, executions, batches and dead letters.

It knows nothing of SQL, connections or unknown ids. Actions are methods; the expected state is in the fields, which
`comparison` compares with the tables. `now` is set by the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

RETRY_AFTER = timedelta(seconds=60)
MAX_ATTEMPTS = 2
MAX_LOSSES = 3
LAST_CHANCE_LOSSES = "tenuto:last-chance"


@dataclass
class TaskModel:
    """An open task."""

    id: UUID
    queue: str
    run_at: datetime
    state: str = "queued"
    rank: int = 0
    attempt: int = 1
    failures: int = 0
    losses: int = 0
    fence: int = 0
    worker: UUID | None = None
    has_live_lease: bool = False
    """The lease has not expired."""
    cancel_requested: bool = False
    unique_key: str | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    execution: UUID | None = None
    group: int | None = None
    batch: UUID | None = None

    @property
    def claim_order(self) -> tuple[int, datetime, UUID]:
        return self.rank, self.run_at, self.id

    @property
    def is_on_last_chance(self) -> bool:
        return self.losses >= MAX_LOSSES - 1


@dataclass(frozen=True, order=True)
class ActivityModel:
    task: UUID
    attempt: int
    status: str
    reason: str
    final: bool
    fence: int
    failures: int
    losses: int


@dataclass
class ExecutionModel:
    id: UUID
    schedule: str
    groups: int
    state: str = "in_progress"
    current_group: int = 0
    has_ended: bool = False
    is_paused: bool = False
    failed_counts: Counter[int] = field(default_factory=Counter)
    """Number of steps of each group that did not complete."""


@dataclass
class BatchModel:
    id: UUID
    is_paused: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim that a process remembers; only the database knows whether it is still valid."""

    task: UUID
    fence: int
    worker: UUID


class World:
    """All expected state."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.tasks: dict[UUID, TaskModel] = {}
        self.activities: set[ActivityModel] = set()
        self.executions: dict[UUID, ExecutionModel] = {}
        self.batches: dict[UUID, BatchModel] = {}
        self.paused_queues: set[str] = set()
        self.queue_limits: dict[str, int] = {}
        self.ended_workers: set[UUID] = set()
        self.dead_letters = 0

    # --- tasks ------------------------------------------------------------------------------------------------------

    def add(self, work: TaskModel) -> None:
        work.state = "scheduled" if work.run_at > self.now else "queued"
        self.tasks[work.id] = work

    def has_open_key(self, key: str) -> UUID | None:
        return next((work.id for work in self.tasks.values() if work.unique_key == key), None)

    def promote(self) -> None:
        for work in self.tasks.values():
            if work.state == "scheduled" and work.run_at <= self.now:
                work.state = "queued"

    def next_to_claim(self, worker: UUID, queues: Iterable[str], most: int) -> list[UUID]:
        """Return the ids that a plain claim must take, most urgent first."""
        if worker in self.ended_workers:
            return []
        free = [
            work
            for work in self.tasks.values()
            if work.state == "queued"
            and work.limit_key is None
            and work.queue in queues
            and work.queue not in self.paused_queues
            and work.queue not in self.queue_limits
        ]
        return [work.id for work in sorted(free, key=lambda work: work.claim_order)[:most]]

    def limited_claim_error(self, worker: UUID, taken: list[UUID], most: int) -> str | None:
        """Return why a limited claim must not have taken these, or must have taken more; None if it was right."""
        if worker in self.ended_workers:
            return "an ended worker claims nothing" if taken else None
        for id in taken:
            work = self.tasks[id]
            if work.state != "queued" or work.queue in self.paused_queues or self._is_batch_closed(work):
                return f"{id} was not claimable"
        before = {id: self.tasks[id].state for id in taken}
        for id in taken:
            self.tasks[id].state = "running"
        try:
            for id in taken:
                work = self.tasks[id]
                if self._capacity(work, taken) < 0:
                    return f"{id} exceeds a limit"
            left = [w.id for w in self.tasks.values() if self._is_claimable(w, taken)]
            # A task on its last chance that was not claimed may have kept capacity free, which is used the next time.
            in_turn = any(w.is_on_last_chance and w.state == "queued" for w in self.tasks.values())
            if len(taken) < most and left and not in_turn:
                return f"{left} were not claimed"
            return None
        finally:
            for id, state in before.items():
                self.tasks[id].state = state

    def _is_claimable(self, work: TaskModel, taken: list[UUID]) -> bool:
        shut = work.queue in self.paused_queues or self._is_batch_closed(work)
        return work.state == "queued" and not shut and self._capacity(work, taken) > 0

    def _is_batch_closed(self, work: TaskModel) -> bool:
        lot = None if work.batch is None else self.batches[work.batch]
        return lot is not None and (lot.is_paused or lot.is_cancelled)

    def _capacity(self, work: TaskModel, taken: list[UUID]) -> int:
        """Return how many more may run beside the unexpired leases; negative: too many run."""
        alive = [each for each in self.tasks.values() if each.has_live_lease or each.id in taken]
        capacities = [1_000_000]
        if work.queue in self.queue_limits:
            capacities.append(self.queue_limits[work.queue] - sum(each.queue == work.queue for each in alive))
        if work.limit_key is not None and work.limit_max is not None:
            capacities.append(work.limit_max - sum(each.limit_key == work.limit_key for each in alive))
        if work.is_on_last_chance:
            capacities.append(1 - sum(each.is_on_last_chance for each in alive))
        return min(capacities)

    def claim(self, worker: UUID, ids: Iterable[UUID]) -> list[Claim]:
        held = []
        for id in ids:
            work = self.tasks[id]
            work.state, work.worker, work.has_live_lease = "running", worker, True
            work.fence += 1
            held.append(Claim(id, work.fence, worker))
        return held

    def holds(self, held: Claim) -> bool:
        work = self.tasks.get(held.task)
        return work is not None and work.worker == held.worker and work.fence == held.fence

    def renewable(self, held: Iterable[Claim]) -> set[UUID]:
        return {each.task for each in held if self.holds(each) and self.tasks[each.task].has_live_lease}

    def stall(self, worker: UUID) -> None:
        for work in self.tasks.values():
            if work.worker == worker:
                work.has_live_lease = False

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def finish(self, id: UUID, status: str, reason: str = "") -> None:
        """End a task for good."""
        work = self.tasks.pop(id)
        failed = status == "failed" and reason != "lost"
        self._record(work, status, reason, final=True, failed=failed, lost=reason == "lost")
        if work.execution is None and status == "failed":
            self.dead_letters += 1
        if work.execution is not None and work.group is not None:
            if status not in ("completed", "completed_with_warning"):
                self.executions[work.execution].failed_counts[work.group] += 1
            self._advance(work.execution)

    def retry(self, id: UUID, run_at: datetime, status: str, reason: str) -> None:
        """End an attempt that is to be retried, unless a cancel request exists."""
        work = self.tasks[id]
        if work.cancel_requested:
            self.finish(id, "cancelled", "requested")
            return
        failed, lost = status == "failed" and reason != "lost", reason == "lost"
        self._record(work, status, reason, final=False, failed=failed, lost=lost)
        work.attempt += 1
        work.failures += failed
        work.losses += lost
        if work.is_on_last_chance and work.limit_key is None:
            work.limit_key, work.limit_max = LAST_CHANCE_LOSSES, 1
        work.run_at = run_at
        self._release(work)

    def defer(self, id: UUID, until: datetime) -> None:
        """Continue an attempt later."""
        work = self.tasks[id]
        if work.cancel_requested:
            self.finish(id, "cancelled", "requested")
            return
        work.run_at = until
        self._release(work)

    def fail(self, id: UUID, reason: str) -> None:
        work = self.tasks[id]
        if work.failures + 1 >= MAX_ATTEMPTS:
            self.finish(id, "failed", reason)
        else:
            self.retry(id, self.now + RETRY_AFTER, "failed", reason)

    def lose(self, id: UUID) -> None:
        work = self.tasks[id]
        if work.cancel_requested:
            self.finish(id, "cancelled", "requested")
        elif work.losses + 1 >= MAX_LOSSES:
            self.finish(id, "failed", "lost")
        else:
            self.retry(id, self.now + timedelta(seconds=5 * work.losses), "failed", "lost")

    def return_to_queue(self, id: UUID) -> bool:
        work = self.tasks[id]
        if work.cancel_requested:
            return False
        work.state, work.worker, work.has_live_lease = "waiting" if self._is_held_back(work) else "queued", None, False
        return True

    def sweep(self) -> None:
        for work in list(self.tasks.values()):
            if work.state == "running" and (not work.has_live_lease or work.worker in self.ended_workers):
                self.lose(work.id)

    def cancel_task(self, id: UUID) -> None:
        work = self.tasks[id]
        if work.state == "running":
            work.cancel_requested = True
        else:
            self.finish(id, "cancelled", "requested")

    def _release(self, work: TaskModel) -> None:
        work.worker, work.has_live_lease = None, False
        work.state = "scheduled" if work.run_at > self.now else "queued"
        if self._is_held_back(work):
            work.state = "waiting"

    def _is_held_back(self, work: TaskModel) -> bool:
        if work.execution is not None and self.executions[work.execution].is_paused:
            return True
        return work.batch is not None and self.batches[work.batch].is_paused

    def _record(self, work: TaskModel, status: str, reason: str, *, final: bool, failed: bool, lost: bool) -> None:
        self.activities.add(
            ActivityModel(
                work.id, work.attempt, status, reason, final, work.fence, work.failures + failed, work.losses + lost
            )
        )

    # --- executions -------------------------------------------------------------------------------------------------

    def tasks_of(self, run: UUID, group: int | None = None) -> list[TaskModel]:
        return [work for work in self.tasks.values() if work.execution == run and group in (None, work.group)]

    def start_execution(self, run: ExecutionModel, steps: Iterable[TaskModel]) -> None:
        self.executions[run.id] = run
        for step in steps:
            step.state = "queued" if step.group == 0 else "waiting"
            self.tasks[step.id] = step

    def has_active(self, schedule: str) -> Iterator[ExecutionModel]:
        return (run for run in self.executions.values() if run.schedule == schedule and not run.has_ended)

    def _advance(self, id: UUID) -> None:
        run = self.executions[id]
        while not run.has_ended and not self.tasks_of(id, run.current_group):
            if run.state == "cancelled":
                run.has_ended = True
            elif run.failed_counts[run.current_group]:
                run.state, run.has_ended, run.is_paused = "failed", True, False
                for work in self.tasks_of(id):
                    self.tasks.pop(work.id)
                    self._record(work, "cancelled", "not_run", final=True, failed=False, lost=False)
            elif run.current_group + 1 == run.groups:
                run.state, run.has_ended, run.is_paused = "completed", True, False
            else:
                run.current_group += 1
                for work in self.tasks_of(id, run.current_group):
                    work.run_at = self.now
                    work.state = "waiting" if run.is_paused else "queued"

    def cancel_execution(self, id: UUID) -> None:
        run = self.executions[id]
        run.state, run.is_paused = "cancelled", False
        for work in self.tasks_of(id):
            if work.state == "running":
                work.cancel_requested = True
            else:
                self.tasks.pop(work.id)
                self._record(work, "cancelled", "requested", final=True, failed=False, lost=False)
        run.has_ended = not self.tasks_of(id)

    def pause_execution(self, id: UUID) -> None:
        self.executions[id].is_paused = True
        for work in self.tasks_of(id):
            if work.state in ("queued", "scheduled"):
                work.state = "waiting"

    def resume_execution(self, id: UUID) -> None:
        run = self.executions[id]
        run.is_paused = False
        for work in self.tasks_of(id, run.current_group):
            if work.state == "waiting":
                work.state = "scheduled" if work.run_at > self.now else "queued"

    # --- batches ----------------------------------------------------------------------------------------------------

    def items_of(self, id: UUID) -> list[TaskModel]:
        return [work for work in self.tasks.values() if work.batch == id]

    def pause_batch(self, id: UUID) -> None:
        self.batches[id].is_paused = True
        for work in self.items_of(id):
            if work.state in ("queued", "scheduled"):
                work.state = "waiting"

    def resume_batch(self, id: UUID) -> None:
        self.batches[id].is_paused = False
        for work in self.items_of(id):
            if work.state == "waiting":
                work.state = "scheduled" if work.run_at > self.now else "queued"

    def cancel_batch(self, id: UUID) -> None:
        lot = self.batches[id]
        lot.is_cancelled, lot.is_paused = True, False
        for work in self.items_of(id):
            if work.state == "running":
                work.cancel_requested = True
            else:
                self.finish(work.id, "cancelled", "requested")
