"""What a change of the clock (summer time, a country that moves) does to a trigger, told in words.

Pure. The times on the wall are found by asking the same trigger on a clock that never changes, and are held against
what it really does around the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from tenuto.model.triggers import Cron, Interval, Trigger
from tenuto.model.triggers.descriptions import listing
from tenuto.model.triggers.trigger import Timed
from tenuto.model.triggers.zones import DAY, MOMENT, Change, midnight, next_change, reached

_NAMED = 4
_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class Effect:
    """What one change of the clock does to one schedule."""

    schedule: str
    at: datetime
    words: str


def effects(name: str, trigger: Trigger, start: datetime, end: datetime) -> Iterator[Effect]:
    """The changes of the clock between two instants that this trigger feels."""
    if not isinstance(trigger, Timed):
        return
    zone = trigger.bounds.zone_info
    at = start
    while (change := next_change(zone, at, end)) is not None:
        at = change.at
        words = _interval(trigger, change) if isinstance(trigger, Interval) else _wall_times(trigger, change)
        if words is not None:
            yield Effect(name, change.at, f"{_told(trigger, change)}: {words}")


def _wall_times(trigger: Timed, change: Change) -> str | None:
    """Of a trigger that names times on the wall."""
    before, after = _wall(change.at, change.before), _wall(change.at, change.after)
    hit = list(islice(_runs(_unchanging(trigger), min(before, after), max(before, after)), _COUNTED))
    if not hit:
        return None
    times = _times(hit)
    one = len(hit) == 1
    follows_real_time = isinstance(trigger, Cron) and trigger.calendar.real_time
    if after > before and follows_real_time:
        return f"{times} {'does' if one else 'do'} not exist, and {'is' if one else 'are'} left out"
    if after > before:
        return f"{times} {'does' if one else 'do'} not exist; it runs once, at {after:%H:%M}"
    if follows_real_time:
        return f"{times} {'happens' if one else 'happen'} twice, and it runs both times"
    return f"{times} {'happens' if one else 'happen'} twice; it runs once, the first time"


def _interval(trigger: Interval, change: Change) -> str | None:
    """Of a trigger that counts real time."""
    zone = trigger.bounds.zone_info
    day = reached(zone, change.at).date()
    begins, ends = midnight(zone, day), midnight(zone, day + DAY)
    really = sum(1 for _ in islice(_runs(trigger, begins, ends), _COUNTED))
    usually_from = datetime.combine(day, datetime.min.time(), tzinfo=UTC)
    usually = sum(1 for _ in islice(_runs(_unchanging(trigger), usually_from, usually_from + DAY), _COUNTED))
    if really != usually:
        return f"it keeps to real time, and runs {really:,} times that day instead of {usually:,}"
    moved = abs(change.after - change.before)
    if trigger.window is None and moved % timedelta(seconds=trigger.seconds):
        return f"it keeps to real time: on the wall its runs move by {_span(moved)}"
    return None


def _told(trigger: Timed, change: Change) -> str:
    before, after = _wall(change.at, change.before), _wall(change.at, change.after)
    verb = "jumps ahead" if after > before else "is set back"
    return f"on {before:%Y-%m-%d} the clock of {trigger.bounds.zone} {verb} from {before:%H:%M} to {after:%H:%M}"


def _unchanging(trigger: Timed) -> Timed:
    return replace(trigger, bounds=replace(trigger.bounds, zone="UTC"))


def _runs(trigger: Timed, start: datetime, end: datetime) -> Iterator[datetime]:
    instant = trigger.next_after(start - MOMENT)
    while instant is not None and instant < end:
        yield instant
        instant = trigger.next_after(instant)


def _wall(instant: datetime, offset: timedelta) -> datetime:
    """What the wall shows, written as if it were UTC."""
    return instant + offset


def _times(hit: list[datetime]) -> str:
    named = [f"{time:%H:%M}" for time in hit[:_NAMED]]
    return listing([*named, f"{len(hit) - _NAMED:,} more"] if len(hit) > _NAMED else named)


def _span(span: timedelta) -> str:
    minutes = round(span.total_seconds() / 60)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
