"""Occurrences: the decision for each due instant of a schedule.

Each due instant gets one row in the occurrence ledger: fired, queued (fires when the previous run has ended),
coalesced (covered by a later run), skipped (by the overlap policy) or missed (too late, or the schedule changed).
The functions are pure, so that the scheduler and a simulation decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy
from tenuto.model.triggers import Trigger

MAX_LISTED_OCCURRENCES = 1000
"""How many missed instants of one schedule, the newest, get a row each; earlier ones share one row."""
ALREADY_QUEUED = "a run is waiting already"


class Decision(StrEnum):
    FIRED = "fired"
    QUEUED = "queued"
    COALESCED = "coalesced"
    SKIPPED = "skipped"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class DecidedOccurrence:
    """The decision for one due instant, or for all of them up to ``until``."""

    due_at: datetime
    decision: Decision
    reason: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class DueOccurrences:
    """All due instants up to now, and the next one after now."""

    decided: list[DecidedOccurrence]
    """Oldest first. Those with the decision fired are subject to the overlap policy."""
    next_run_at: datetime | None


def first_undecided_instant(
    trigger: Trigger, planned: datetime, decided_until: datetime | None, seed: str
) -> datetime | None:
    """Return the first due instant without a row in the ledger, given the stored next run ``planned``.

    The process that stored ``planned`` may have had a slower clock; a decided instant is not decided twice.
    """
    if decided_until is not None and planned <= decided_until:  # guard: schedules.decided_instant
        return trigger.next_after(decided_until, seed)
    return planned


def decide_due_occurrences(
    trigger: Trigger,
    first: datetime,
    now: datetime,
    misfire: Misfire,
    seed: str,
    *,
    max_listed: int = MAX_LISTED_OCCURRENCES,
) -> DueOccurrences:
    """Decide each instant from ``first`` (which is due) up to ``now``."""
    if first == now:  # on time: it fires under every misfire policy. A simulation decides thousands of these.
        return DueOccurrences([DecidedOccurrence(first, Decision.FIRED)], trigger.next_after(first, seed))
    instants, following = _list_instants(trigger, first, now, seed, max_listed)
    if following is None or following > now:
        return DueOccurrences(_apply_misfire_policy(instants, now, misfire), following)
    # Too many to list, such as a schedule of seconds after days of downtime: only the newest are decided one by one.
    last_of_gap, *newest = _find_newest_instants(trigger, instants, following, now, seed, max_listed)
    gap = DecidedOccurrence(first, Decision.MISSED, "too many were missed to list each", until=last_of_gap)
    return DueOccurrences([gap, *_apply_misfire_policy(newest, now, misfire)], trigger.next_after(newest[-1], seed))


def _list_instants(
    trigger: Trigger, first: datetime | None, end: datetime, seed: str, max_listed: int
) -> tuple[list[datetime], datetime | None]:
    """Return the instants from ``first`` up to ``end``, at most one more than get a row, and the one that follows."""
    instants: list[datetime] = []
    instant = first
    while instant is not None and instant <= end and len(instants) <= max_listed:
        instants.append(instant)
        instant = trigger.next_after(instant, seed)
    return instants, instant


def _find_newest_instants(
    trigger: Trigger, oldest: list[datetime], following: datetime, now: datetime, seed: str, max_listed: int
) -> list[datetime]:
    """Return the last instants up to ``now``: as many as are listed, and the one before them.

    A trigger only computes the next instant, so the search jumps back from a known end and lists forwards. Over an idle
    period (a night, a weekend) the jumps double. A jump that lands before too many instants to list raises the lower
    end: the distance between both ends is halved each time, so a year of seconds costs a few lists more than an hour.
    """
    # All instants later than `high` are found. `before` are the last known ones up to `low`, more than enough.
    before, low, found, high = oldest, oldest[-1], list[datetime](), now
    width = following - oldest[0]  # just enough if the last instants are as dense as the first
    while low < high and len(found) <= max_listed:
        start = max(low, high - width)
        listed, after_them = _list_instants(trigger, trigger.next_after(start, seed), high, seed, max_listed)
        if after_them is not None and after_them <= high:
            before, low = listed, listed[-1]
            width = (high - low) / 2
        else:
            found, high = listed + found, start
            width *= 2
    return [*before, *found][-max_listed - 1 :]


def _apply_misfire_policy(instants: list[datetime], now: datetime, misfire: Misfire) -> list[DecidedOccurrence]:
    if misfire.policy is MisfirePolicy.ALL:
        missed_count = len(instants) - misfire.max_runs
        return [
            DecidedOccurrence(instant, Decision.MISSED, f"only the last {misfire.max_runs} missed runs are made up for")
            if position < missed_count
            else DecidedOccurrence(instant, Decision.FIRED)
            for position, instant in enumerate(instants)
        ]
    grace = timedelta(seconds=misfire.grace_seconds) if misfire.policy is MisfirePolicy.SKIP else None
    last = instants[-1]

    def decide(instant: datetime) -> DecidedOccurrence:
        if grace is not None and now - instant > grace:
            late = f"{_format_delay(now - instant)} late, more than the grace of {_format_delay(grace)}"
            return DecidedOccurrence(instant, Decision.MISSED, late)
        if instant == last:
            return DecidedOccurrence(instant, Decision.FIRED)
        covered = f"covered by the run due at {last:%Y-%m-%d %H:%M:%S} UTC"
        return DecidedOccurrence(instant, Decision.COALESCED, covered)

    return [decide(instant) for instant in instants]


def _format_delay(delay: timedelta) -> str:
    return str(timedelta(seconds=round(delay.total_seconds())))


@dataclass(frozen=True, slots=True)
class OverlapState:
    """Which earlier runs of the schedule exist when a run is due."""

    has_active: bool
    has_queued: bool


def decide_overlap(overlap: OverlapPolicy, state: OverlapState) -> tuple[Decision, str | None]:
    """Apply the overlap policy: run now (fired), wait (queued) or not run (coalesced, skipped)."""
    if overlap is OverlapPolicy.ALLOW or not (state.has_active or state.has_queued):
        return Decision.FIRED, None
    if overlap is OverlapPolicy.SKIP:
        return Decision.SKIPPED, "the previous run is still active"
    if state.has_queued:
        return Decision.COALESCED, ALREADY_QUEUED
    if overlap is OverlapPolicy.CANCEL_PREVIOUS:
        return Decision.QUEUED, "waits until the previous run, which is being cancelled, has stopped"
    return Decision.QUEUED, "waits until the previous run has ended"
