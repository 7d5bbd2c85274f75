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
"""So many missed instants of one schedule, the newest, get a row each; those before them share one."""


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


def first_undecided(trigger: Trigger, planned: datetime, decided_until: datetime | None, seed: str) -> datetime | None:
    """The first due instant on which the ledger has no word yet, when ``planned`` is the next run as it stands.

    It was planned by somebody whose clock was a little behind, perhaps: what is decided is not decided again.
    """
    if decided_until is not None and planned <= decided_until:
        return trigger.next_after(decided_until, seed)
    return planned


def due(trigger: Trigger, first: datetime, now: datetime, misfire: Misfire, seed: str) -> Due:
    """Decide on every instant from ``first`` (which is due) up to ``now``."""
    instants, following = _list(trigger, first, now, seed)
    if following is None or following > now:
        return Due(_by_rule(instants, now, misfire), following)
    # Far too many: a schedule of seconds that nobody served for days. The newest are decided one by one.
    last_of_gap, *newest = _newest(trigger, instants, following, now, seed)
    gap = Decided(first, Decision.MISSED, "too many were missed to list each", until=last_of_gap)
    return Due([gap, *_by_rule(newest, now, misfire)], trigger.next_after(newest[-1], seed))


def _list(trigger: Trigger, first: datetime | None, end: datetime, seed: str) -> tuple[list[datetime], datetime | None]:
    """The instants from ``first`` up to ``end``, as many as get a row and one more, and the one that follows them."""
    instants: list[datetime] = []
    instant = first
    while instant is not None and instant <= end and len(instants) <= MAX_LISTED:
        instants.append(instant)
        instant = trigger.next_after(instant, seed)
    return instants, instant


def _newest(trigger: Trigger, oldest: list[datetime], following: datetime, now: datetime, seed: str) -> list[datetime]:
    """The last instants up to ``now``: as many as are listed, and the one before them.

    A trigger can only be asked what comes next, so the search jumps back from what is known and lists forwards. Over a
    silence (a night, a weekend) the jumps grow twofold. One into a crowd too large to list brings the lower end closer:
    what lies between the ends is halved each time, so a year of seconds costs at most some lists more than an hour.
    """
    # All later than `high` are found. Those up to `low` are more than enough, and `before` are the last of them.
    before, low, found, high = oldest, oldest[-1], list[datetime](), now
    width = following - oldest[0]  # just enough if the times at the end lie as close as those at the start
    while low < high and len(found) <= MAX_LISTED:
        start = max(low, high - width)
        listed, after_them = _list(trigger, trigger.next_after(start, seed), high, seed)
        if after_them is not None and after_them <= high:
            before, low = listed, listed[-1]
            width = (high - low) / 2
        else:
            found, high = listed + found, start
            width *= 2
    return [*before, *found][-MAX_LISTED - 1 :]


def _by_rule(instants: list[datetime], now: datetime, misfire: Misfire) -> list[Decided]:
    if misfire.policy is Late.ALL:
        kept = len(instants) - misfire.max_runs
        return [
            Decided(instant, Decision.MISSED, f"only the last {misfire.max_runs} missed runs are made up for")
            if position < kept
            else Decided(instant, Decision.FIRED)
            for position, instant in enumerate(instants)
        ]
    grace = timedelta(seconds=misfire.grace_seconds) if misfire.policy is Late.SKIP else None
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
