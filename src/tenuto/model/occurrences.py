"""Occurrences: what becomes of each due instant of a schedule.

Every due instant leaves one row in the ledger: fired, queued (to be fired when there is room), coalesced (another run
stands for it), skipped (the overlap rule) or missed (too late, or the schedule changed). Pure: given the trigger, the
first instant not yet decided and the present, the same decisions come out wherever they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tenuto.model.schedules import Late, Misfire, Overlap
from tenuto.model.triggers import Trigger

MAX_LISTED = 1000
"""So many missed instants of one schedule get a row each; what lies between the oldest and the newest shares a row."""
ON_TIME = timedelta(seconds=60)
"""What is decided within this is on time, whatever the rule for missed ones says."""


class Decision(StrEnum):
    FIRED = "fired"
    QUEUED = "queued"
    COALESCED = "coalesced"
    SKIPPED = "skipped"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Decided:
    """What becomes of one due instant, or of all of them up to ``until``."""

    due_at: datetime
    decision: Decision
    reason: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """All due instants up to the present, and the next one after it."""

    decided: list[Decided]
    """The oldest first. Those called fired are to be run, if the overlap rule allows it."""
    next_run: datetime | None


def due(trigger: Trigger, first: datetime, now: datetime, misfire: Misfire, seed: str) -> Due:
    """Decide on every instant from ``first`` (which is due) up to ``now``."""
    instants, instant = _list(trigger, first, now, seed)
    gap: list[Decided] = []
    if instant is not None and instant <= now:
        # Far too many: a schedule of seconds that nobody served for days. The newest are decided one by one, by a jump
        # back from the present as wide as the same number took at the start.
        until = max(instants[-1], now - (instants[-1] - first))
        gap.append(Decided(first, Decision.MISSED, "too many were missed to list each", until=until))
        newest = trigger.next_after(until, seed)
        instants, instant = _list(trigger, newest, now, seed) if newest is not None else ([], None)
    return Due(gap + (_by_rule(instants, now, misfire) if instants else []), instant)


def _list(trigger: Trigger, first: datetime, now: datetime, seed: str) -> tuple[list[datetime], datetime | None]:
    instants: list[datetime] = []
    instant: datetime | None = first
    while instant is not None and instant <= now and len(instants) < MAX_LISTED:
        instants.append(instant)
        instant = trigger.next_after(instant, seed)
    return instants, instant


def _by_rule(instants: list[datetime], now: datetime, misfire: Misfire) -> list[Decided]:
    if misfire.policy is Late.ALL:
        kept = len(instants) - misfire.max_runs
        return [
            Decided(instant, Decision.MISSED, f"only the last {misfire.max_runs} missed runs are made up for")
            if position < kept
            else Decided(instant, Decision.FIRED)
            for position, instant in enumerate(instants)
        ]
    grace = max(timedelta(seconds=misfire.grace_seconds), ON_TIME) if misfire.policy is Late.SKIP else None
    last = instants[-1]

    def decide(instant: datetime) -> Decided:
        if grace is not None and now - instant > grace:
            late = f"{_span(now - instant)} late, more than the grace of {_span(grace)}"
            return Decided(instant, Decision.MISSED, late)
        if instant == last:
            return Decided(instant, Decision.FIRED)
        return Decided(instant, Decision.COALESCED, f"the run due at {last:%Y-%m-%d %H:%M:%S} UTC stands for it")

    return [decide(instant) for instant in instants]


def _span(span: timedelta) -> str:
    return str(timedelta(seconds=round(span.total_seconds())))


@dataclass(frozen=True, slots=True)
class Meeting:
    """What is already there when a run is due."""

    active: bool
    queued: bool


def when_meeting(overlap: Overlap, meeting: Meeting) -> tuple[Decision, str | None]:
    """What the overlap rule says: run now (fired), wait (queued), or not (coalesced, skipped)."""
    if overlap is Overlap.ALLOW or not (meeting.active or meeting.queued):
        return Decision.FIRED, None
    if overlap is Overlap.SKIP:
        return Decision.SKIPPED, "the previous run is still active"
    if meeting.queued:
        return Decision.COALESCED, "a run is waiting already"
    if overlap is Overlap.CANCEL_PREVIOUS:
        return Decision.QUEUED, "waits until the previous run, which is being cancelled, has stopped"
    return Decision.QUEUED, "waits until the previous run has ended"
