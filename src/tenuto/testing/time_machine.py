"""A manual clock for tests of an app: a week of schedules in seconds, on a real database, without services.

    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        await time.advance(days=7)

Schedules, manifests and tasks that become due run at their instants, in order, before the clock moves on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

from tenuto.app import Tenuto
from tenuto.clock import DatabaseClock, ManualClock
from tenuto.errors import Conflict, Invalid
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import parse_duration_seconds, parse_instant
from tenuto.postgres.database import Database
from tenuto.scheduling import firing, manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store.reports import manual_clock
from tenuto.testing.inline_worker import InlineWorker

MAX_SIMULATED_ATTEMPTS = 100_000
_SCHEDULER_NAME = "time machine"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Numbers of runs and attempts while the clock moved."""

    fired_count: int = 0
    """Number of schedule runs started and manifest runs enqueued."""
    ended_count: int = 0
    """Number of attempts that ended."""

    def __add__(self, other: RunSummary) -> RunSummary:
        return RunSummary(self.fired_count + other.fired_count, self.ended_count + other.ended_count)


async def run_until_idle(app: Tenuto, *, slots: int = 20, max_attempts: int = MAX_SIMULATED_ATTEMPTS) -> RunSummary:
    """Fire due schedules and run due tasks, and the tasks they enqueue, until nothing is due at the present time.

    Later work, such as a delayed retry, stays queued. More than ``max_attempts`` attempts are an error.
    """
    database = await app.open()
    await app.manifests.deploy()
    await app.schedules.deploy()
    worker = InlineWorker(database, app.jobs, slots=slots, durations={}, max_attempts=max_attempts)
    await worker.start()
    try:
        return await _Instant(database, worker).run_until_idle()
    finally:
        await worker.stop()


class TimeMachine:
    """Controls the clock of an app in tests."""

    def __init__(
        self,
        app: Tenuto,
        *,
        start: datetime | str,
        durations: Mapping[str, float | str | timedelta] | None = None,
        slots: int = 100,
        max_attempts: int = MAX_SIMULATED_ATTEMPTS,
    ) -> None:
        """``durations`` are the run times of tasks by name on this clock: ``{"import_people": "20m"}``.

        All other tasks end at the instant at which they start.
        """
        self.app = app
        self._clock = ManualClock(_parse_instant(start))
        self._durations = {
            name: parse_duration_seconds(value, field="durations") or 0.0 for name, value in (durations or {}).items()
        }
        self._slots = slots
        self._max_attempts = max_attempts
        self._instant: _Instant | None = None

    @property
    def now(self) -> datetime:
        """The present instant of the manual clock."""
        return self._clock.now()

    async def __aenter__(self) -> TimeMachine:
        self._closes_app = not self.app.is_open
        database = await self.app.open()
        self._original_clock = database.clock
        database.clock = _ManualDatabaseClock(self._clock)
        try:
            await self.app.manifests.deploy()
            await self.app.schedules.deploy()
            worker = InlineWorker(
                database, self.app.jobs, slots=self._slots, durations=self._durations, max_attempts=self._max_attempts
            )
            await worker.start()
        except BaseException:
            database.clock = self._original_clock
            raise
        self._instant = _Instant(database, worker)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        instant, self._instant = self._instant, None
        try:
            if instant is not None:
                await instant.worker.stop()
                instant.database.clock = self._original_clock
        finally:
            if self._closes_app:
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
    ) -> RunSummary:
        """Advance the clock and run everything that becomes due: ``advance("36h")``, ``advance(days=7)``."""
        duration = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        return await self.advance_to(self.now + duration + _parse_duration(by))

    async def advance_to(self, until: datetime | str) -> RunSummary:
        """Advance the clock to an instant and run everything due up to and including it."""
        target = _parse_instant(until)
        if target < self.now:
            raise Invalid(
                f"cannot move the clock back to {target.isoformat()}",
                code="testing.clock.backwards",
                field="until",
                remedy="begin with an earlier start",
            )
        instant = self._require_open()
        summary = await instant.run_until_idle()
        while (next_due_at := instant.next_due_at) is not None and next_due_at <= target:
            self._move_clock(next_due_at)
            summary += await instant.run_until_idle()
        self._move_clock(target)
        return summary

    async def send_event(self, name: str, payload: Any = None, *, key: str = "") -> RunSummary:
        """Send an event to the tasks that wait for it, and run everything that is due then."""
        self._require_open()
        await self.app.events.send(name, payload, key=key)
        return await self.run_until_idle()

    async def approve(self, step: str, *, by: str, reason: str | None = None) -> RunSummary:
        """Approve what the step of this name waits for, as a person, and run everything that is due then."""
        id = await self._find_approval(step)
        await self.app.acting_as(Actor.user(by)).approvals.approve(id, reason)
        return await self.run_until_idle()

    async def reject(self, step: str, *, by: str, reason: str | None = None) -> RunSummary:
        """Reject what the step of this name waits for, as a person, and run everything that is due then."""
        id = await self._find_approval(step)
        await self.app.acting_as(Actor.user(by)).approvals.reject(id, reason)
        return await self.run_until_idle()

    async def _find_approval(self, step: str) -> UUID:
        self._require_open()
        pending = await self.app.approvals.pending()
        found = [each.id for each in pending if each.step == step]
        if len(found) != 1:
            waiting = ", ".join(each.step for each in pending) or "none"
            raise Conflict(
                f"{len(found)} steps named {step!r} wait for an approval; waiting: {waiting}",
                code="testing.approval.not_found",
                remedy="advance the clock until the step waits",
            )
        return found[0]

    async def run_until_idle(self) -> RunSummary:
        """Run everything that is due at the present instant, without moving the clock."""
        return await self._require_open().run_until_idle()

    def _require_open(self) -> _Instant:
        if self._instant is None:
            raise Conflict(
                "the time machine is not open",
                code="testing.time_machine.closed",
                remedy="use it in an `async with` block",
            )
        return self._instant

    def _move_clock(self, instant: datetime) -> None:
        self._clock.advance(max(instant - self.now, timedelta()))


class _Instant:
    """Runs everything that is due at one instant."""

    def __init__(self, database: Database, worker: InlineWorker) -> None:
        self.database = database
        self.worker = worker
        self._quarantined_schedules = firing.new_quarantine()
        self._quarantined_turns = firing.new_quarantine()
        self._quarantined_manifests = manifest_manager.new_quarantine()
        self._last_idle_poll: tuple[datetime, manual_clock.DueWork] | None = None
        self.next_due_at: datetime | None = None
        """Next due instant of a schedule, a manifest, a task, or the end of a held attempt."""

    async def run_until_idle(self) -> RunSummary:
        """Run everything that is due, including rows quarantined at earlier instants."""
        for quarantine in (self._quarantined_schedules, self._quarantined_turns, self._quarantined_manifests):
            quarantine.release_all()
        database, summary = self.database, RunSummary(ended_count=await self.worker.run_until_idle())
        while True:
            now, due = database.clock.now(), await self._query_due()
            fired = 0
            if due.next_schedule_at is not None and due.next_schedule_at <= now:
                fired = await firing.fire_due_schedules(database, now, _SCHEDULER_NAME, self._quarantined_schedules)
            if due.has_queued_run:
                fired += await firing.start_queued_runs(database, now, _SCHEDULER_NAME, self._quarantined_turns)
            planned = (
                await firing.compute_missing_next_runs(database, now, self._quarantined_schedules)
                if due.has_unplanned_schedule
                else 0
            )
            polled = await self._poll_manifests(now, due)
            fired += polled.enqueued if polled is not None else 0
            ended = await self.worker.run_until_idle() if fired else 0
            if not (fired or planned or ended or polled is not None):
                self.next_due_at = _first_after(
                    now, due.next_schedule_at, due.next_manifest_at, due.next_task_at, self.worker.next_end_at
                )
                return summary
            summary += RunSummary(fired, ended)

    async def _query_due(self) -> manual_clock.DueWork:
        return await manual_clock.load_due_work(
            self.database, self._quarantined_schedules.rows, self._quarantined_manifests.rows
        )

    async def _poll_manifests(self, now: datetime, due: manual_clock.DueWork) -> PollResult | None:
        """Run a cycle of the manifest manager if a manifest is due; otherwise return None.

        A cycle without effect, such as for a locked manifest, is not repeated until something has changed.
        """
        is_due = due.next_manifest_at is not None and due.next_manifest_at <= now
        if not (is_due or due.has_unplanned_manifest) or (now, due) == self._last_idle_poll:
            return None
        result = await manifest_manager.poll_manifests(self.database, now, _SCHEDULER_NAME, self._quarantined_manifests)
        self._last_idle_poll = None if result.enqueued or result.skipped else (now, due)
        return result


def _first_after(now: datetime, *instants: datetime | None) -> datetime | None:
    return min((instant for instant in instants if instant is not None and instant > now), default=None)


class _ManualDatabaseClock(DatabaseClock):
    """A database clock that is set by a manual clock only."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def synchronize(self, database_now: datetime, requested_at: float | None = None) -> None:
        """Ignore the time of the database."""


def _parse_instant(value: datetime | str) -> datetime:
    parsed = parse_instant(value, field="start") if isinstance(value, str) else value
    if parsed.tzinfo is None:
        raise Invalid(
            f"the instant {parsed.isoformat()} has no UTC offset",
            code="value.instant.no_utc_offset",
            field="start",
            remedy="give an aware datetime, such as one in UTC",
        )
    return parsed.astimezone(UTC)


def _parse_duration(by: timedelta | str | float | None) -> timedelta:
    return timedelta(seconds=parse_duration_seconds(by, field="by") or 0.0)
