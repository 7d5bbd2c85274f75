"""The base classes of triggers, the search for the next run within calendar limits, and jitter.

A trigger answers one question: the next run after an instant. The search is bounded: a trigger without a run within
eight years counts as never firing.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

from tenuto.errors import Invalid
from tenuto.model.triggers import field_parser, zones
from tenuto.model.triggers.calendar_limits import CalendarLimits
from tenuto.model.triggers.descriptions import describe_limits
from tenuto.model.triggers.zones import DAY, MICROSECOND

SEARCH_HORIZON = DAY * 366 * 8
"""How far ahead a search goes. The rarest valid date, 29 February around 2100, recurs within eight years."""
MAX_PREVIEW = 1000

_EARLIEST = datetime(zones.FIRST_YEAR, 1, 1, tzinfo=UTC)
_ARBITRARY_DAY = datetime(2001, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_JITTER_BITS = 64
_CLOCK_CHANGE_MARGIN = DAY * 2
"""A clock change this close to a period may affect the wall times in it."""
TriggerT = TypeVar("TriggerT", bound="Trigger")
DueAfter = Callable[[datetime], datetime | None]


class Trigger(ABC):
    """When a schedule or manifest runs."""

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        """Return the first run later than an instant, in UTC; None if there is none within eight years.

        The seed, such as the id of the schedule, selects a fixed offset within the jitter. Without a seed there is no
        jitter.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return a description in plain English."""

    @abstractmethod
    def to_fields(self) -> dict[str, Any]:
        """Return plain data for a file or the database."""

    def to_json(self) -> str:
        return json.dumps(self.to_fields())

    def runs_between(self, after: datetime, until: datetime, seed: str = "") -> Iterator[datetime]:
        """Yield the runs later than ``after`` up to and including ``until``, as `next_after` returns them."""
        run = self.next_after(after, seed)
        while run is not None and run <= until:
            yield run
            run = self.next_after(run, seed)

    def preview(self, after: datetime, n: int, seed: str = "") -> list[datetime]:
        """Return the next n runs, or fewer if the trigger ends before."""
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MAX_PREVIEW:
            raise Invalid(
                f"the number of runs to preview is not a whole number from 0 to {MAX_PREVIEW:,}",
                code="trigger.preview.out_of_range",
                field="n",
            )
        runs: list[datetime] = []
        while len(runs) < n and (run := self.next_after(runs[-1] if runs else after, seed)) is not None:
            runs.append(run)
        return runs


@dataclass(frozen=True, slots=True)
class ManualTrigger(Trigger):
    """Runs only on request."""

    kind: ClassVar[str] = "manual"

    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        field_parser.parse_instant(instant, field="after")
        return None

    def describe(self) -> str:
        return "Only when started by hand"

    def to_fields(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True, slots=True)
class ClockTrigger(Trigger):
    """A trigger with a clock: subclasses define the times, the limits define the dates."""

    limits: CalendarLimits
    time_field: ClassVar[str]
    """The field that defines the times, named in the error if the trigger never fires."""

    @abstractmethod
    def _time_after(self, instant: datetime) -> datetime | None:
        """Return the first time later than an instant within the search horizon, on any date."""

    @abstractmethod
    def _describe_times(self) -> str:
        """Return the description without the limits."""

    @abstractmethod
    def _time_fields(self) -> dict[str, Any]:
        """Return the plain data without kind and limits."""

    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        after = field_parser.parse_instant(instant, field="after")
        if self.limits.jitter and seed:
            return next_jittered_run(self._due_after, self._end_of_day, after, self.limits.jitter, seed)
        return self._due_after(after)

    def runs_between(self, after: datetime, until: datetime, seed: str = "") -> Iterator[datetime]:
        limits = self.limits
        if limits.is_unrestricted and not (limits.jitter and seed):
            start, end = (field_parser.parse_instant(instant, field="after") for instant in (after, until))
            change = zones.next_offset_change(
                limits.zone_info, start - _CLOCK_CHANGE_MARGIN, end + _CLOCK_CHANGE_MARGIN
            )
            if change is None:
                return self._times_between(start, end)
        # Two-argument super: a dataclass with slots is a new class, and the short form refers to the old one.
        return super(ClockTrigger, self).runs_between(after, until, seed)

    def _times_between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the times on any date between two instants without a clock change.

        Subclasses compute many of them faster than one by one; `test_runs_between_equal_single_searches` compares both.
        """
        found = self._time_after(after)
        while found is not None and found <= until:
            yield found
            found = self._time_after(found)

    def describe(self) -> str:
        return f"{self._describe_times()}, {describe_limits(self.limits)}"

    def to_fields(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._time_fields(), **self.limits.to_fields()}

    def _end_of_day(self, due: datetime) -> datetime:
        zone = self.limits.zone_info
        return zones.start_of_day(zone, zones.latest_wall_time(zone, due).date() + DAY)

    def _due_after(self, instant: datetime) -> datetime | None:
        limits = self.limits
        if limits.is_unrestricted:
            return self._time_after(instant)
        search_from = instant if limits.starts_at is None else max(instant, limits.starts_at - MICROSECOND)
        horizon = search_from + SEARCH_HORIZON
        while (found := self._time_after(search_from)) is not None and found <= horizon:
            day = zones.latest_wall_time(limits.zone_info, found).date()
            allowed = limits.next_allowed_day(day)
            if allowed == day:
                return found
            if allowed is None:
                return None
            search_from = zones.start_of_day(limits.zone_info, allowed) - MICROSECOND
        return None


def check_has_run_after(trigger: TriggerT, after: datetime) -> TriggerT:
    """Return the trigger, or raise `Invalid` if it has a clock and never fires after an instant."""
    if not isinstance(trigger, ClockTrigger) or trigger.next_after(after) is not None:
        return trigger
    limits = trigger.limits
    if limits.excluded and _fires(trigger, replace(limits, excluded=()), after):
        raise Invalid(
            "the trigger never fires: every date on which it could run is excluded",
            code="schedule.trigger.never_fires",
            field="excluded",
            remedy="exclude fewer dates, or change the end",
        )
    if limits.end is not None and _fires(trigger, replace(limits, end=None), after):
        raise Invalid(
            f"the trigger never fires: it has no run up to its end {limits.end}",
            code="schedule.trigger.never_fires",
            field="end",
            remedy="give a later end, or none",
        )
    raise Invalid(
        "the trigger never fires: it has no run within eight years",
        code="schedule.trigger.never_fires",
        field=trigger.time_field,
        remedy="choose more times or dates, or use a manual trigger",
    )


def check_has_runs(trigger: TriggerT) -> TriggerT:
    """Like `check_has_run_after`, from the start date or, without one, from before the end date."""
    if not isinstance(trigger, ClockTrigger):
        return trigger
    limits = trigger.limits
    if limits.starts_at is not None:
        return check_has_run_after(trigger, max(limits.starts_at - MICROSECOND, _EARLIEST))
    if limits.end is not None:
        end_at = zones.start_of_day(limits.zone_info, limits.end)
        return check_has_run_after(trigger, max(end_at - SEARCH_HORIZON, _EARLIEST))
    return check_has_run_after(trigger, _ARBITRARY_DAY)


def _fires(trigger: ClockTrigger, limits: CalendarLimits, after: datetime) -> bool:
    return replace(trigger, limits=limits).next_after(after) is not None


# --- jitter ---------------------------------------------------------------------------------------------------------


def next_jittered_run(
    due_after: DueAfter, end_of_day: Callable[[datetime], datetime], instant: datetime, jitter: int, seed: str
) -> datetime | None:
    """Return the first run later than an instant, with each time of ``due_after`` delayed by the seed's jitter.

    The delay is derived from the seed, so that a repeated question gives the same answer. A run is only moved later and
    stays before the next time of the trigger and within its day, so that runs keep their order and their dates.
    """
    fraction = int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest()[: _JITTER_BITS // 8], "big")
    # The previous time may have passed while its delayed run has not.
    for due in (_last_due_within_jitter(due_after, instant, jitter), due_after(instant)):
        if due is not None:
            following = due_after(due)
            choices = jitter + 1 if following is None else min(jitter + 1, (following - due) // _SECOND)
            choices = min(choices, (end_of_day(due) - due) // _SECOND)
            run = due + _SECOND * (fraction * choices >> _JITTER_BITS)
            if run > instant:
                return run
    return None


def _last_due_within_jitter(due_after: DueAfter, instant: datetime, jitter: int) -> datetime | None:
    """Return the last time not later than an instant, if it is at most ``jitter`` seconds earlier, by bisection."""

    def due_within(seconds: int) -> datetime | None:
        due = due_after(instant - _SECOND * seconds)
        return due if due is not None and due <= instant else None

    if due_within(jitter) is None:
        return None
    low, high = 0, jitter
    while high - low > 1:
        middle = (low + high) // 2
        if due_within(middle) is None:
            low = middle
        else:
            high = middle
    return due_within(high)
