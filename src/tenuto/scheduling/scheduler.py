"""The scheduler: fires what is due, and looks after what stands still.

A round, always in this order: fire what is due, start what has waited for its turn, work out missing next runs, repair
executions that stand still, take back stale tasks. Firing comes before working out, so that a due instant is never
moved on before it fired. A part that fails keeps none of the others from its turn. Between rounds it sleeps until the
next due instant; a change of any schedule wakes it. Any number of them may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tenuto.clock import steady
from tenuto.lifecycle import execution_control
from tenuto.logs import Log
from tenuto.maintenance.recovery import sweep
from tenuto.observability.process_metrics import counters
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.service.polling_loop import Rounds
from tenuto.service.quarantine import alone, telling
from tenuto.store import schedules

_AT_ONCE = 0.0005
"""What is due within this is waited for no longer."""
_HELD_BY_ANOTHER = 0.05
"""What was due and yet not ours to fire, because somebody else holds it, is looked at again so soon."""

log = Log("tenuto.scheduler")


class Scheduler:
    """One scheduler, from start to stop."""

    def __init__(self, database: Database, name: str, poll_seconds: float, beat: Callable[[], None]) -> None:
        self._database = database
        self._name = name
        self._poll_seconds = poll_seconds
        self._beat = beat
        self._rounds = Rounds("tenuto-scheduler", database, self.round, {"schedules"}, log)
        self._looked_after_at: float | None = None
        self._left_out = firing.none_left_out()
        self._waits_on = firing.none_left_out()
        """What cannot be run in its turn, which need not be the fault of its schedule."""
        self.fired = 0
        """Schedules fired since the start."""

    def start(self) -> None:
        self._rounds.start()

    async def stop(self) -> None:
        await self._rounds.stop()

    async def round(self) -> float:
        """Do whatever there is to do now; how long until the next time."""
        self._beat()
        database = self._database
        if self._is_time_to_look_after():
            self._left_out.try_again()
            self._waits_on.try_again()
        now, failed = database.clock.now(), list[Exception]()
        with _part("firing what is due", failed):
            await self._fire(now)
        with _part("starting what has waited for its turn", failed):
            await firing.take_turns(database, now, self._name, self._waits_on)
        with _part("working out missing next runs", failed):
            await firing.plan_missing(database, now, self._left_out)
        if self._is_time_to_look_after():
            with _part("repairing executions that stand still", failed):
                await execution_control.repair(database, now)
            with _part("taking back stale tasks", failed):
                await sweep(database, now)
            self._looked_after_at = steady()
        if failed:
            raise failed[0]  # what is due is due still: the next round comes soon, but not at once
        return await self._until_next_due(now)

    async def _fire(self, now: datetime) -> None:
        fired = await firing.fire_due(self._database, now, self._name, self._left_out)
        if fired:
            self.fired += fired
            counters.fire(fired)
            log.debug("schedules fired", schedules=fired)

    def _is_time_to_look_after(self) -> bool:
        return self._looked_after_at is None or steady() - self._looked_after_at >= self._poll_seconds

    async def _until_next_due(self, looked_at: datetime) -> float:
        next_due = await schedules.next_due(self._database, self._left_out.ids)
        if next_due is None:
            return self._poll_seconds
        if next_due <= looked_at:
            return min(_HELD_BY_ANOTHER, self._poll_seconds)
        wait = (next_due - self._database.clock.now()).total_seconds()
        return min(max(wait, _AT_ONCE), self._poll_seconds)


@contextmanager
def _part(doing: str, failed: list[Exception]) -> Iterator[None]:
    """Each part of a round fails for itself."""

    def note(error: Exception) -> None:
        telling(log, "part of a round failed", part=doing)(error)
        failed.append(error)

    with alone(note):
        yield
