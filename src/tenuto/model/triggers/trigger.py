"""What every trigger can do, and the search they share.

A trigger answers one question: when next, after this instant? The same question has the same answer everywhere and
always; nothing here reads a clock or draws a number. The search is bounded: what does not run within eight years counts
as never.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from tenuto.errors import Invalid
from tenuto.model.triggers import jitter, parsing, zones
from tenuto.model.triggers.calendar_limits import Bounds
from tenuto.model.triggers.descriptions import bounds_phrase
from tenuto.model.triggers.zones import DAY, MOMENT

REACH = DAY * 366 * 8
"""How far ahead a search looks. The rarest sound date, 29 February around 2100, comes round within eight years."""
MAX_PREVIEW = 1000

_EARLIEST = datetime(zones.FIRST_YEAR, 1, 1, tzinfo=UTC)
_ANY_DAY = datetime(2001, 1, 1, tzinfo=UTC)
_SomeTrigger = TypeVar("_SomeTrigger", bound="Trigger")


class Trigger(ABC):
    """When a schedule runs."""

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        """The first run later than an instant, in UTC; None if there is none within eight years.

        The seed (the id of the schedule, say) places the run within the jitter: the same seed always at the same place,
        no seed at the very time.
        """

    @abstractmethod
    def words(self) -> str:
        """When it runs, in plain words."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """As plain data, for a file or a database."""

    def to_json(self) -> str:
        return json.dumps(self.fields())

    def preview(self, after: datetime, n: int, seed: str = "") -> list[datetime]:
        """The next n runs, or as many as there are."""
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MAX_PREVIEW:
            raise Invalid(f"must be a whole number from 0 to {MAX_PREVIEW:,}", field="n")
        runs: list[datetime] = []
        while len(runs) < n and (run := self.next_after(runs[-1] if runs else after, seed)) is not None:
            runs.append(run)
        return runs


@dataclass(frozen=True, slots=True)
class Manual(Trigger):
    """Runs only when somebody asks for it."""

    kind: ClassVar[str] = "manual"

    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        parsing.instant(instant, field="after")
        return None

    def words(self) -> str:
        return "Only when started by hand"

    def fields(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True, slots=True)
class Timed(Trigger):
    """A trigger with a clock: its kind says at what times, the bounds on which dates."""

    bounds: Bounds
    said_in: ClassVar[str]
    """The field that says at what times: the one to blame if they never come."""

    @abstractmethod
    def _after(self, instant: datetime) -> datetime | None:
        """The first time later than an instant and within reach, on whatever date."""

    @abstractmethod
    def _phrase(self) -> str:
        """The words, without the bounds."""

    @abstractmethod
    def _own_fields(self) -> dict[str, Any]:
        """The plain data, without kind and bounds."""

    def next_after(self, instant: datetime, seed: str = "") -> datetime | None:
        after = parsing.instant(instant, field="after")
        if self.bounds.jitter and seed:
            return jitter.next_after(self._due_after, self._day_ends, after, self.bounds.jitter, seed)
        return self._due_after(after)

    def words(self) -> str:
        return f"{self._phrase()}, {bounds_phrase(self.bounds)}"

    def fields(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._own_fields(), **self.bounds.fields()}

    def _day_ends(self, due: datetime) -> datetime:
        zone = self.bounds.zone_info
        return zones.midnight(zone, zones.reached(zone, due).date() + DAY)

    def _due_after(self, instant: datetime) -> datetime | None:
        bounds = self.bounds
        if bounds.plain:
            return self._after(instant)
        search = instant if bounds.starts_at is None else max(instant, bounds.starts_at - MOMENT)
        horizon = search + REACH
        while (found := self._after(search)) is not None and found <= horizon:
            day = zones.reached(bounds.zone_info, found).date()
            kept = bounds.next_kept(day)
            if kept == day:
                return found
            if kept is None:
                return None
            search = zones.midnight(bounds.zone_info, kept) - MOMENT
        return None


def check_runs(trigger: _SomeTrigger, after: datetime) -> _SomeTrigger:
    """The trigger as it is, or a refusal if it has a clock and yet never runs after that instant."""
    if not isinstance(trigger, Timed) or trigger.next_after(after) is not None:
        return trigger
    bounds = trigger.bounds
    if bounds.excluded and _runs(trigger, replace(bounds, excluded=()), after):
        raise Invalid(
            "every date on which it could run is excluded",
            field="excluded",
            remedy="exclude fewer dates, or change the end",
        )
    if bounds.end is not None and _runs(trigger, replace(bounds, end=None), after):
        raise Invalid(f"it never runs up to its end, {bounds.end}", field="end", remedy="give a later end, or none")
    raise Invalid("it never runs within eight years", field=trigger.said_in, remedy="loosen it, or start it by hand")


def check_ever_runs(trigger: _SomeTrigger) -> _SomeTrigger:
    """The same where there is no instant to start from: judged from the start or, without one, before the end."""
    if not isinstance(trigger, Timed):
        return trigger
    bounds = trigger.bounds
    if bounds.starts_at is not None:
        return check_runs(trigger, max(bounds.starts_at - MOMENT, _EARLIEST))
    if bounds.end is not None:
        return check_runs(trigger, max(zones.midnight(bounds.zone_info, bounds.end) - REACH, _EARLIEST))
    return check_runs(trigger, _ANY_DAY)


def _runs(trigger: Timed, bounds: Bounds, after: datetime) -> bool:
    return replace(trigger, bounds=bounds).next_after(after) is not None
