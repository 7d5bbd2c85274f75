"""Seats under limits, handed on from one task to the next without asking the database in between.

Where tasks end within milliseconds, a limit of fifty would mean fifty tasks for each round trip. So a worker takes a
few more that share all their limits with what it runs, and these stand by: one begins when the code of another in such
a seat has ended, and the database hears of both in the transaction that writes the end. Really running are never more
than the limit allows, and the database never counts more.

Others wait for the same seats: several times a second nothing is handed on for a moment, and what becomes free is
claimed by whose turn it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import inf

from tenuto.clock import steady
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.model.tasks import Outcome, Settlement, Task
from tenuto.store.claim_cursor import Place
from tenuto.worker.prefetch import Pace

KEPT_FOR, OPEN_FOR = 0.25, 0.01
"""How long seats are handed on before everybody has a chance of them, and for how long they have it."""

_AHEAD = 0.05
_MOST_TURNS = 16
"""For as many turns as come in this time, and no more than these, tasks stand by."""
_MOST_KINDS = 20


class Seats:
    """What stands by here."""

    def __init__(self) -> None:
        self._standing_by: dict[str, deque[Attempt]] = {}
        self._kinds: dict[str, Place] = {}
        """The seats there are, and where the last task taken for each was in line."""
        self._opened = steady()
        self._pause_until = 0.0
        self._distrusted = False
        self.count = 0
        self.handed_on = 0
        """How often, in all."""

    def claimed(self, tasks: Iterable[Task]) -> None:
        """Seats were taken in competition with everybody."""
        last = {task.seat: (-task.priority, task.run_at, task.id) for task in tasks if task.seat is not None}
        if last:
            self._kinds = dict(islice(last.items(), _MOST_KINDS))

    def short_of(self, held: Iterable[Attempt], pace: Pace, most: int) -> tuple[Mapping[str, Place], int]:
        """For which seats more should stand by, and how many for each."""
        if not self._kinds or self._distrusted or steady() < self._pause_until:
            return {}, 0
        seated = sum(attempt.task.seat is not None and not attempt.standby for attempt in held)
        enough = min(int(seated * pace.turns(_AHEAD, _MOST_TURNS)), most)
        if not enough or self.count > enough // 2:
            return {}, 0
        return self._kinds, max((enough - self.count) // len(self._kinds), 1)

    def none_is_left(self) -> None:
        """Nobody is left who could stand by; the next claim may find others."""
        self._kinds = {}

    def distrust(self) -> None:
        """Limits have changed, or may have: what stands by, or is just being taken for it, goes back, and until then
        nothing is handed on."""
        self._kinds = {}
        self._distrusted = True

    def stand_by(self, attempts: Iterable[Attempt]) -> None:
        """These were taken ahead."""
        for attempt in attempts:
            assert attempt.task.seat is not None
            attempt.standby = True
            self._standing_by.setdefault(attempt.task.seat, deque()).append(attempt)
            self.count += 1
            if attempt.task.seat in self._kinds:
                task = attempt.task
                self._kinds[attempt.task.seat] = (-task.priority, task.run_at, task.id)

    def hand_on(self, attempt: Attempt) -> Attempt | None:
        """Its code has ended: what begins in its seat at once. One that had to be stopped may have lost it."""
        seat = attempt.task.seat or ""
        waiting = self._standing_by.get(seat)
        if not waiting or self._distrusted or attempt.stop_reason is not None or self._are_open():
            return None
        self.count -= 1
        self.handed_on += 1
        attempt.heir = waiting.popleft()
        if not waiting:
            del self._standing_by[seat]  # every batch has seats of its own: those of the past would only add up
        return attempt.heir

    def _are_open(self) -> bool:
        since = steady() - self._opened
        if since > KEPT_FOR + OPEN_FOR:
            self._opened, since = steady(), 0.0
        return since > KEPT_FOR

    def oldest(self) -> float:
        """Since when something has stood by, on the steady timer; nothing does: never; it must go back: for ever."""
        if self._distrusted:
            return -inf
        return min((waiting[0].taken_at for waiting in self._standing_by.values()), default=inf)

    def give_back(self, pause: float = 0.0) -> list[Attempt]:
        """All that stands by, to be returned; for a while nothing more is taken."""
        given = [attempt for waiting in self._standing_by.values() for attempt in waiting]
        self._standing_by.clear()
        self.count = 0
        if given or not self._distrusted:  # what was not taken under other limits is nothing to wait for
            self._pause_until = steady() + pause
        self._distrusted = False
        return given


def heirs(batch: Sequence[tuple[Attempt, Outcome]]) -> list[Attempt | None]:
    """For each of the attempts that end together, what has its seat now: of a row of heirs the first that is not among
    them. None for one the database has never seen in a seat: that seat is its forerunner's to hand on."""
    ending = {attempt for attempt, _ in batch}
    found: list[Attempt | None] = []
    for attempt, _ in batch:
        heir = None if attempt.standby else attempt.heir
        while heir is not None and heir in ending:
            heir = heir.heir
        found.append(heir)
    return found


def seated(batch: Sequence[tuple[Attempt, Outcome]], settlements: Sequence[Settlement]) -> None:
    """The ends are written. Heirs that got their seat are counted from now on; those that got none stop."""
    have = {settlement.heir for settlement in settlements if settlement.heir is not None}
    ending = {attempt for attempt, _ in batch}
    for attempt, _ in batch:
        heir = attempt.heir
        if heir is None or heir in ending:
            continue
        if heir.task.id in have:
            heir.standby = False
        else:
            heir.stop(Stop.HANDED_BACK)
