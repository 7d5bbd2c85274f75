"""Formatting of instants and durations for a viewer: in one zone, relative up to a day, with the full instant as title.

The browser only updates texts of elements with ``data-age``, ``data-since`` or ``data-until``, in the same format
(static/js/app.js, `formatDuration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from markupsafe import Markup

from tenuto.presentation.text_formats import format_duration
from tenuto.web.components.html_templates import HtmlPattern

_DAY = timedelta(days=1)
_TIME = HtmlPattern('<time datetime="{}" title="{}"{}>{}</time>')
_SOON = HtmlPattern('{} <span class="muted">{}</span>')
_SINCE, _UNTIL = HtmlPattern('<span data-since="{}">{}</span>'), HtmlPattern('<span data-until="{}">{}</span>')
_AGE = Markup(" data-age")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Times:
    """Formats instants as of ``now`` in the zone of a viewer."""

    now: datetime
    zone_name: str = "UTC"

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone_name)

    def local(self, instant: datetime) -> datetime:
        return instant.astimezone(self.zone)

    def title(self, instant: datetime, zone_name: str | None = None) -> str:
        """Return the full instant with its zone."""
        return format_instant_title(instant, zone_name or self.zone_name)

    def instant(self, instant: datetime | None, *, seconds: bool = False) -> Markup:
        """Return a wall clock time; with the date and without seconds if it is not today."""
        if instant is None:
            return Markup("–")
        local, today = self.local(instant), self.local(self.now)
        is_today = local.date() == today.date()
        has_seconds = seconds or (is_today and local.second)
        clock = f"{local.hour:02}:{local.minute:02}" + (f":{local.second:02}" if has_seconds else "")
        text = clock if is_today else f"{_date(local, today)} {clock}"
        return self._element(instant, text)

    def full(self, instant: datetime | None) -> Markup:
        """Return date, time and zone."""
        if instant is None:
            return Markup("–")
        local = self.local(instant)
        return self._element(instant, f"{local.day} {local:%b %Y %H:%M:%S} {local.tzname()}")

    def age(self, instant: datetime | None, none: str = "–") -> Markup:
        """Return an instant relative to now; from a day on as date and time."""
        if instant is None:
            return Markup.escape(none)
        distance = instant - self.now
        if abs(distance) >= _DAY:
            return self.instant(instant)
        return self._element(instant, format_age(distance.total_seconds()), _AGE)

    def soon(self, instant: datetime) -> Markup:
        """Return a wall clock time, with the distance from now if it is less than a day."""
        clock = self.instant(instant)
        if abs(instant - self.now) >= _DAY:
            return clock
        return _SOON.format(clock, self.age(instant))

    def since(self, instant: datetime) -> Markup:
        """Return the duration from an instant until now; the browser keeps it current."""
        text = format_ticking((self.now - instant).total_seconds())
        return _SINCE.format(_iso(instant), text)

    def until(self, instant: datetime) -> Markup:
        """Return the duration from now until an instant; the browser keeps it current."""
        text = format_ticking((instant - self.now).total_seconds())
        return _UNTIL.format(_iso(instant), text)

    def duration(self, value: timedelta | float | None) -> str:
        return "" if value is None else format_duration(value)

    def _element(self, instant: datetime, text: str, attribute: Markup | str = "") -> Markup:
        return _TIME.format(_iso(instant), self.title(instant), attribute, text)


def format_instant_title(instant: datetime, zone_name: str) -> str:
    """Return the full instant with its zone."""
    local = instant.astimezone(ZoneInfo(zone_name))
    clock = f"{local.hour:02}:{local.minute:02}:{local.second:02}"
    return f"{_day(local)} {local.year} {clock} {local.tzname()} ({zone_name})"


def format_ticking(seconds: float) -> str:
    """Return a duration in whole seconds, as the browser updates it."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def format_age(seconds: float) -> str:
    """Return a distance from now, past or future, in its largest unit."""
    distance = abs(seconds)
    if distance < 1:
        return "now"
    size, unit = next((each for each in ((86_400, "d"), (3600, "h"), (60, "min")) if distance >= each[0]), (1, "s"))
    text = f"{int(distance // size)} {unit}"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _day(local: datetime) -> str:
    return f"{_WEEKDAYS[local.weekday()]} {local.day} {_MONTHS[local.month - 1]}"


def _date(local: datetime, today: datetime) -> str:
    if 0 <= (local.date() - today.date()).days < 7:
        return _WEEKDAYS[local.weekday()]
    text = f"{local.day} {_MONTHS[local.month - 1]}"
    return text if local.year == today.year else f"{text} {local.year}"
