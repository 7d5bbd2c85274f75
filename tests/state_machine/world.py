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
TRIES = 2
LOSSES = 3
LAST_CHANCE = "tenuto:last-chance"


@dataclass
class Work:
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
    holder: UUID | None = None
    lives: bool = False
    """The lease has not expired."""
    to_stop: bool = False
    unique_key: str | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    run: UUID | None = None
    group: int | None = None
    batch: UUID | None = None

    @property
    def place(self) -> tuple[int, datetime, UUID]:
        return self.rank, self.run_at, self.id

    @property
    def is_on_its_last_chance(self) -> bool:
        return self.losses >= LOSSES - 1


@dataclass(frozen=True, order=True)
class Record:

    task: UUID
    attempt: int
    status: str
    reason: str
    final: bool
    fence: int
    failures: int
    losses: int


@dataclass
class Run:

    id: UUID
    schedule: str
    groups: int
    state: str = "in_progress"
    current: int = 0
    ended: bool = False
    paused: bool = False
    failed: Counter[int] = field(default_factory=Counter)
    """Number of steps of each group that did not complete."""


@dataclass
class Lot:

    id: UUID
    paused: bool = False
    cancelled: bool = False


@dataclass(frozen=True)
class Held:
    """A claim that a process remembers; only the database knows whether it is still valid."""

    task: UUID
    fence: int
    worker: UUID


class World:
    """All expected state."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.tasks: dict[UUID, Work] = {}
        self.records: set[Record] = set()
        self.runs: dict[UUID, Run] = {}
        self.lots: dict[UUID, Lot] = {}
        self.paused_queues: set[str] = set()
        self.limits: dict[str, int] = {}
        self.ended_workers: set[UUID] = set()
        self.letters = 0

    # --- tasks ------------------------------------------------------------------------------------------------------

    def add(self, work: Work) -> None:
        work.state = "scheduled" if work.run_at > self.now else "queued"
        self.tasks[work.id] = work

    def open_with(self, key: str) -> UUID | None:
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
            and work.queue not in self.limits
        ]
        return [work.id for work in sorted(free, key=lambda work: work.place)[:most]]

    def refused(self, worker: UUID, taken: list[UUID], most: int) -> str | None:
        """Return why a limited claim must not have taken these, or must have taken more; None if it was right."""
        if worker in self.ended_workers:
            return "an ended worker claims nothing" if taken else None
        for id in taken:
            work = self.tasks[id]
            if work.state != "queued" or work.queue in self.paused_queues or self._lot_is_shut(work):
                return f"{id} was not claimable"
        before = {id: self.tasks[id].state for id in taken}
        for id in taken:
            self.tasks[id].state = "running"
        try:
            for id in taken:
                work = self.tasks[id]
                if self._room(work, taken) < 0:
                    return f"{id} exceeds a limit"
            left = [w.id for w in self.tasks.values() if self._could_go(w, taken)]
            # A task on its last chance that was not claimed may have kept capacity free, which is used the next time.
            in_turn = any(w.is_on_its_last_chance and w.state == "queued" for w in self.tasks.values())
            if len(taken) < most and left and not in_turn:
                return f"{left} were not claimed"
            return None
        finally:
            for id, state in before.items():
                self.tasks[id].state = state

    def _could_go(self, work: Work, taken: list[UUID]) -> bool:
        shut = work.queue in self.paused_queues or self._lot_is_shut(work)
        return work.state == "queued" and not shut and self._room(work, taken) > 0

    def _lot_is_shut(self, work: Work) -> bool:
        lot = None if work.batch is None else self.lots[work.batch]
        return lot is not None and (lot.paused or lot.cancelled)

    def _room(self, work: Work, taken: list[UUID]) -> int:
        """Return how many more may run beside the unexpired leases; negative: too many run."""
        alive = [each for each in self.tasks.values() if each.lives or each.id in taken]
        rooms = [1_000_000]
        if work.queue in self.limits:
            rooms.append(self.limits[work.queue] - sum(each.queue == work.queue for each in alive))
        if work.limit_key is not None and work.limit_max is not None:
            rooms.append(work.limit_max - sum(each.limit_key == work.limit_key for each in alive))
        if work.is_on_its_last_chance:
            rooms.append(1 - sum(each.is_on_its_last_chance for each in alive))
        return min(rooms)

    def take(self, worker: UUID, ids: Iterable[UUID]) -> list[Held]:
        held = []
        for id in ids:
            work = self.tasks[id]
            work.state, work.holder, work.lives = "running", worker, True
            work.fence += 1
            held.append(Held(id, work.fence, worker))
        return held

    def holds(self, held: Held) -> bool:
        work = self.tasks.get(held.task)
        return work is not None and work.holder == held.worker and work.fence == held.fence

    def renewable(self, held: Iterable[Held]) -> set[UUID]:
        return {each.task for each in held if self.holds(each) and self.tasks[each.task].lives}

    def stall(self, worker: UUID) -> None:
        for work in self.tasks.values():
            if work.holder == worker:
                work.lives = False

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def ends(self, id: UUID, status: str, reason: str = "") -> None:
        """End a task for good."""
        work = self.tasks.pop(id)
        failed = status == "failed" and reason != "lost"
        self._record(work, status, reason, final=True, failed=failed, lost=reason == "lost")
        if work.batch is not None and status == "failed":
            self.letters += 1
        if work.run is not None and work.group is not None:
            if status not in ("completed", "completed_with_warning"):
                self.runs[work.run].failed[work.group] += 1
            self._advance(work.run)

    def again(self, id: UUID, run_at: datetime, status: str, reason: str) -> None:
        """End an attempt that is to be retried, unless a cancel request exists."""
        work = self.tasks[id]
        if work.to_stop:
            self.ends(id, "cancelled", "requested")
            return
        failed, lost = status == "failed" and reason != "lost", reason == "lost"
        self._record(work, status, reason, final=False, failed=failed, lost=lost)
        work.attempt += 1
        work.failures += failed
        work.losses += lost
        if work.is_on_its_last_chance and work.limit_key is None:
            work.limit_key, work.limit_max = LAST_CHANCE, 1
        work.run_at = run_at
        self._let_go(work)

    def aside(self, id: UUID, until: datetime) -> None:
        """Continue an attempt later."""
        work = self.tasks[id]
        if work.to_stop:
            self.ends(id, "cancelled", "requested")
            return
        work.run_at = until
        self._let_go(work)

    def fails(self, id: UUID, reason: str) -> None:
        work = self.tasks[id]
        if work.failures + 1 >= TRIES:
            self.ends(id, "failed", reason)
        else:
            self.again(id, self.now + RETRY_AFTER, "failed", reason)

    def is_lost(self, id: UUID) -> None:
        work = self.tasks[id]
        if work.to_stop:
            self.ends(id, "cancelled", "requested")
        elif work.losses + 1 >= LOSSES:
            self.ends(id, "failed", "lost")
        else:
            self.again(id, self.now + timedelta(seconds=5 * work.losses), "failed", "lost")

    def put_back(self, id: UUID) -> bool:
        work = self.tasks[id]
        if work.to_stop:
            return False
        work.state, work.holder, work.lives = "waiting" if self._is_held_back(work) else "queued", None, False
        return True

    def sweep(self) -> None:
        for work in list(self.tasks.values()):
            if work.state == "running" and (not work.lives or work.holder in self.ended_workers):
                self.is_lost(work.id)

    def cancel_task(self, id: UUID) -> None:
        work = self.tasks[id]
        if work.state == "running":
            work.to_stop = True
        else:
            self.ends(id, "cancelled", "requested")

    def _let_go(self, work: Work) -> None:
        work.holder, work.lives = None, False
        work.state = "scheduled" if work.run_at > self.now else "queued"
        if self._is_held_back(work):
            work.state = "waiting"

    def _is_held_back(self, work: Work) -> bool:
        if work.run is not None and self.runs[work.run].paused:
            return True
        return work.batch is not None and self.lots[work.batch].paused

    def _record(self, work: Work, status: str, reason: str, *, final: bool, failed: bool, lost: bool) -> None:
        self.records.add(
            Record(work.id, work.attempt, status, reason, final, work.fence, work.failures + failed, work.losses + lost)
        )

    # --- executions -------------------------------------------------------------------------------------------------

    def of_run(self, run: UUID, group: int | None = None) -> list[Work]:
        return [work for work in self.tasks.values() if work.run == run and group in (None, work.group)]

    def begins(self, run: Run, steps: Iterable[Work]) -> None:
        self.runs[run.id] = run
        for step in steps:
            step.state = "queued" if step.group == 0 else "waiting"
            self.tasks[step.id] = step

    def active(self, schedule: str) -> Iterator[Run]:
        return (run for run in self.runs.values() if run.schedule == schedule and not run.ended)

    def _advance(self, id: UUID) -> None:
        run = self.runs[id]
        while not run.ended and not self.of_run(id, run.current):
            if run.state == "cancelled":
                run.ended = True
            elif run.failed[run.current]:
                run.state, run.ended, run.paused = "failed", True, False
                for work in self.of_run(id):
                    self.tasks.pop(work.id)
                    self._record(work, "cancelled", "not_run", final=True, failed=False, lost=False)
            elif run.current + 1 == run.groups:
                run.state, run.ended, run.paused = "completed", True, False
            else:
                run.current += 1
                for work in self.of_run(id, run.current):
                    work.run_at = self.now
                    work.state = "waiting" if run.paused else "queued"

    def cancel_run(self, id: UUID) -> None:
        run = self.runs[id]
        run.state, run.paused = "cancelled", False
        for work in self.of_run(id):
            if work.state == "running":
                work.to_stop = True
            else:
                self.tasks.pop(work.id)
                self._record(work, "cancelled", "requested", final=True, failed=False, lost=False)
        run.ended = not self.of_run(id)

    def pause_run(self, id: UUID) -> None:
        self.runs[id].paused = True
        for work in self.of_run(id):
            if work.state in ("queued", "scheduled"):
                work.state = "waiting"

    def resume_run(self, id: UUID) -> None:
        run = self.runs[id]
        run.paused = False
        for work in self.of_run(id, run.current):
            if work.state == "waiting":
                work.state = "scheduled" if work.run_at > self.now else "queued"

    # --- batches ----------------------------------------------------------------------------------------------------

    def of_lot(self, id: UUID) -> list[Work]:
        return [work for work in self.tasks.values() if work.batch == id]

    def pause_lot(self, id: UUID) -> None:
        self.lots[id].paused = True
        for work in self.of_lot(id):
            if work.state in ("queued", "scheduled"):
                work.state = "waiting"

    def resume_lot(self, id: UUID) -> None:
        self.lots[id].paused = False
        for work in self.of_lot(id):
            if work.state == "waiting":
                work.state = "scheduled" if work.run_at > self.now else "queued"

    def cancel_lot(self, id: UUID) -> None:
        lot = self.lots[id]
        lot.cancelled, lot.paused = True, False
        for work in self.of_lot(id):
            if work.state == "running":
                work.to_stop = True
            else:
                self.ends(work.id, "cancelled", "requested")
