"""Time that moves when told to: a week of schedules in seconds, on the real database, without any service.

    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        await time.advance(days=7)

Whatever falls due on the way is fired at its instant, in order, and everything it asks for is run before time goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType

from tenuto.app import Tenuto
from tenuto.clock import DatabaseClock, ManualClock
from tenuto.errors import Conflict, Invalid
from tenuto.model.tasks import instant, seconds
from tenuto.postgres.database import Database
from tenuto.scheduling import firing, manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store.reports import test_clock
from tenuto.testing.inline_worker import Hands

MOST = 100_000
_NAME = "time machine"


@dataclass(frozen=True, slots=True)
class Happened:
    """What a stretch of time came to."""

    fired: int = 0
    """Schedules that were fired or whose turn came, and manifests that were run."""
    ended: int = 0
    """Attempts at tasks that ended."""

    def __add__(self, other: Happened) -> Happened:
        return Happened(self.fired + other.fired, self.ended + other.ended)


async def run_until_idle(app: Tenuto, *, slots: int = 20, most: int = MOST) -> Happened:
    """Fire and run, here and now, whatever is due by the present clock, and whatever that asks for, until nothing is.

    What is due later (a retry that waits, a task with a delay) stays. More than ``most`` attempts are refused.
    """
    database = await app.open()
    await app.schedules.deploy()
    await app.manifests.deploy()
    hands = Hands(database, app.jobs, slots=slots, takes={}, most=most)
    await hands.start()
    try:
        return await _Present(database, hands).come_to_rest()
    finally:
        await hands.stop()


class TimeMachine:
    """The clock of an app in your hands."""

    def __init__(
        self,
        app: Tenuto,
        *,
        start: datetime | str,
        takes: Mapping[str, float | str | timedelta] | None = None,
        slots: int = 100,
        most: int = MOST,
    ) -> None:
        """``takes`` says how long tasks of a name last by this clock: ``{"import_people": "20m"}``. All others end at
        the instant at which they begin."""
        self.app = app
        self._clock = ManualClock(_aware(start))
        self._takes = {name: seconds(value, field="takes") or 0.0 for name, value in (takes or {}).items()}
        self._slots = slots
        self._most = most
        self._present: _Present | None = None

    @property
    def now(self) -> datetime:
        """Where time stands."""
        return self._clock.now()

    async def __aenter__(self) -> TimeMachine:
        self._is_ours_to_close = not self.app.is_open
        database = await self.app.open()
        self._its_own = database.clock
        database.clock = _Moved(self._clock)
        try:
            await self.app.schedules.deploy()
            await self.app.manifests.deploy()
            hands = Hands(database, self.app.jobs, slots=self._slots, takes=self._takes, most=self._most)
            await hands.start()
        except BaseException:
            database.clock = self._its_own
            raise
        self._present = _Present(database, hands)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        present, self._present = self._present, None
        try:
            if present is not None:
                await present.hands.stop()
                present.database.clock = self._its_own
        finally:
            if self._is_ours_to_close:
                await self.app.close()

    async def advance(
        self,
        by: timedelta | str | float | None = None,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> Happened:
        """Let time go by, and happen whatever falls into it: ``advance("36h")``, ``advance(days=7)``."""
        long = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        return await self.advance_to(self.now + long + _span(by))

    async def advance_to(self, until: datetime | str) -> Happened:
        """The same up to an instant, included."""
        target = _aware(until)
        if target < self.now:
            raise Invalid(
                "lies in the past", field="until", remedy="time goes one way only; begin with an earlier start"
            )
        present = self._open()
        happened = await present.come_to_rest()
        while (upcoming := present.next_instant) is not None and upcoming <= target:
            self._go_to(upcoming)
            happened += await present.come_to_rest()
        self._go_to(target)
        return happened

    async def run_until_idle(self) -> Happened:
        """Happen whatever is due at this very instant; time stands still."""
        return await self._open().come_to_rest()

    def _open(self) -> _Present:
        if self._present is None:
            raise Conflict("the time machine is not running", remedy="use it in an `async with` block")
        return self._present

    def _go_to(self, instant: datetime) -> None:
        self._clock.advance(max(instant - self.now, timedelta()))


class _Present:
    """One instant, in which everything happens that is due."""

    def __init__(self, database: Database, hands: Hands) -> None:
        self.database = database
        self.hands = hands
        self._left_out = firing.none_left_out()
        self._waits_on = firing.none_left_out()
        self._manifests_left_out = manifest_manager.none_left_out()
        self._polled_for_nothing: tuple[datetime, test_clock.Look] | None = None
        self.next_instant: datetime | None = None
        """When something is due next: a schedule, a manifest, a task, the end of one that is held."""

    async def come_to_rest(self) -> Happened:
        """Let everything happen that is due at this instant. What could not be dealt with before has another chance."""
        for left_out in (self._left_out, self._waits_on, self._manifests_left_out):
            left_out.try_again()
        database, happened = self.database, Happened(ended=await self.hands.until_idle())
        while True:
            now, look = database.clock.now(), await self._look()
            fired = 0
            if look.next_schedule is not None and look.next_schedule <= now:
                fired = await firing.fire_due(database, now, _NAME, self._left_out)
            if look.turns:
                fired += await firing.take_turns(database, now, _NAME, self._waits_on)
            planned = await firing.plan_missing(database, now, self._left_out) if look.unplanned else 0
            polled = await self._poll(now, look)
            fired += polled.enqueued if polled is not None else 0
            ended = await self.hands.until_idle() if fired else 0
            if not (fired or planned or ended or polled is not None):
                self.next_instant = _first_after(
                    now, look.next_schedule, look.next_manifest, look.next_task, self.hands.next_end
                )
                return happened
            happened += Happened(fired, ended)

    async def _look(self) -> test_clock.Look:
        return await test_clock.look(self.database, self._left_out.ids, self._manifests_left_out.ids)

    async def _poll(self, now: datetime, look: test_clock.Look) -> PollResult | None:
        """A round of the manifest manager if a manifest is due; None if there was no need of one.

        What it can do nothing about, because somebody holds it, is not asked for again before something has changed."""
        is_due = look.next_manifest is not None and look.next_manifest <= now
        if not (is_due or look.unplanned_manifests) or (now, look) == self._polled_for_nothing:
            return None
        result = await manifest_manager.poll(self.database, now, _NAME, self._manifests_left_out)
        self._polled_for_nothing = None if result.enqueued or result.skipped else (now, look)
        return result


def _first_after(now: datetime, *instants: datetime | None) -> datetime | None:
    return min((each for each in instants if each is not None and each > now), default=None)


class _Moved(DatabaseClock):
    """The clock of a database that does not ask the database."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def heard(self, instant: datetime, asked_at: float | None = None) -> None:
        """What the database says counts for nothing here."""


def _aware(value: datetime | str) -> datetime:
    found = instant(value, field="start") if isinstance(value, str) else value
    if found.tzinfo is None:
        raise Invalid("has no time zone", field="start", remedy="give an aware datetime, such as one in UTC")
    return found.astimezone(UTC)


def _span(by: timedelta | str | float | None) -> timedelta:
    return timedelta(seconds=seconds(by, field="by") or 0.0)
