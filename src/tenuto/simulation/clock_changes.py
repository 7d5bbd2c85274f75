"""The effects of clock changes (daylight saving time, a country that changes its zone) on a trigger, in plain English.

Wall times are found by evaluating the same trigger in UTC, which has no clock changes, and compared with its real runs
around the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from tenuto.model.triggers import CronTrigger, IntervalTrigger, Trigger
from tenuto.model.triggers.descriptions import join_words
from tenuto.model.triggers.trigger import ClockTrigger
from tenuto.model.triggers.zones import (
    DAY,
    MICROSECOND,
    OffsetChange,
    latest_wall_time,
    next_offset_change,
    start_of_day,
)

_MAX_LISTED_TIMES = 4
_MAX_COUNTED_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class ClockChangeEffect:
    """The effect of one clock change on one schedule."""

    schedule: str
    at: datetime
    message: str


def clock_change_effects(name: str, trigger: Trigger, start: datetime, end: datetime) -> Iterator[ClockChangeEffect]:
    """Yield the clock changes between two instants that affect the runs of a trigger."""
    if not isinstance(trigger, ClockTrigger):
        return
    zone = trigger.limits.zone_info
    at = start
    while (change := next_offset_change(zone, at, end)) is not None:
        at = change.at
        message = (
            _describe_interval_effect(trigger, change)
            if isinstance(trigger, IntervalTrigger)
            else _describe_wall_time_effect(trigger, change)
        )
        if message is not None:
            yield ClockChangeEffect(name, change.at, f"{_describe_change(trigger, change)}: {message}")


def _describe_wall_time_effect(trigger: ClockTrigger, change: OffsetChange) -> str | None:
    """Describe the effect on a trigger with fixed wall times."""
    before, after = _wall_time(change.at, change.offset_before), _wall_time(change.at, change.offset_after)
    affected = list(islice(_iterate_runs(_in_utc(trigger), min(before, after), max(before, after)), _MAX_COUNTED_RUNS))
    if not affected:
        return None
    times = _list_times(affected)
    one = len(affected) == 1
    follows_real_time = isinstance(trigger, CronTrigger) and trigger.calendar.follows_real_time
    if after > before and follows_real_time:
        return f"{times} {'does' if one else 'do'} not exist and {'is' if one else 'are'} skipped"
    if after > before:
        return f"{times} {'does' if one else 'do'} not exist; it runs once, at {after:%H:%M}"
    if follows_real_time:
        return f"{times} {'happens' if one else 'happen'} twice, and it runs both times"
    return f"{times} {'happens' if one else 'happen'} twice; it runs once, the first time"


def _describe_interval_effect(trigger: IntervalTrigger, change: OffsetChange) -> str | None:
    """Describe the effect on a trigger with an interval of real time."""
    zone = trigger.limits.zone_info
    day = latest_wall_time(zone, change.at).date()
    begins, ends = start_of_day(zone, day), start_of_day(zone, day + DAY)
    actual_count = sum(1 for _ in islice(_iterate_runs(trigger, begins, ends), _MAX_COUNTED_RUNS))
    usual_start = datetime.combine(day, datetime.min.time(), tzinfo=UTC)
    usual_count = sum(
        1 for _ in islice(_iterate_runs(_in_utc(trigger), usual_start, usual_start + DAY), _MAX_COUNTED_RUNS)
    )
    if actual_count != usual_count:
        return f"the interval follows real time and runs {actual_count:,} times that day instead of {usual_count:,}"
    shift = abs(change.offset_after - change.offset_before)
    if trigger.window is None and shift % timedelta(seconds=trigger.seconds):
        return f"the interval follows real time: the wall times of its runs shift by {_format_shift(shift)}"
    return None


def _describe_change(trigger: ClockTrigger, change: OffsetChange) -> str:
    before, after = _wall_time(change.at, change.offset_before), _wall_time(change.at, change.offset_after)
    verb = "is set forward" if after > before else "is set back"
    return f"on {before:%Y-%m-%d} the clock of {trigger.limits.zone} {verb} from {before:%H:%M} to {after:%H:%M}"


def _in_utc(trigger: ClockTrigger) -> ClockTrigger:
    return replace(trigger, limits=replace(trigger.limits, zone="UTC"))


def _iterate_runs(trigger: ClockTrigger, start: datetime, end: datetime) -> Iterator[datetime]:
    instant = trigger.next_after(start - MICROSECOND)
    while instant is not None and instant < end:
        yield instant
        instant = trigger.next_after(instant)


def _wall_time(instant: datetime, offset: timedelta) -> datetime:
    """Return the wall time with the time zone UTC."""
    return instant + offset


def _list_times(affected: list[datetime]) -> str:
    named = [f"{time:%H:%M}" for time in affected[:_MAX_LISTED_TIMES]]
    return join_words(
        [*named, f"{len(affected) - _MAX_LISTED_TIMES:,} more"] if len(affected) > _MAX_LISTED_TIMES else named
    )


def _format_shift(span: timedelta) -> str:
    minutes = round(span.total_seconds() / 60)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
