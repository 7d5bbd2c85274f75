"""Geometry of SVG drawings: bars of a timeline, wedges of a group, strips and stacked bars.

All values are attributes of SVG elements, because the content security policy forbids style attributes. Horizontal
positions are percentages of the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenuto.presentation.statuses import status_of
from tenuto.presentation.text_formats import format_duration

MAX_WEDGES = 8
_MIN_SPAN_SECONDS = 1.0
_TICK_STEPS = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800, 2_592_000,
)  # fmt: skip
_MAX_TICKS, _MAX_TICK_CHARACTERS = 5, 36
SMALL_PERCENT = 2.0
"""A bar below this width is also drawn with a fixed width, so that it can be seen."""


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A span of time, mapped to 0–100 %."""

    start: datetime
    span_seconds: float
    ticks: Sequence[Tick]

    @classmethod
    def covering(cls, start: datetime, end: datetime, *, is_growing: bool) -> Scale:
        """Return a scale from start to end. One that still grows ends later, and grows in steps of a quarter."""
        span = max((end - start).total_seconds(), _MIN_SPAN_SECONDS)
        if is_growing:
            span = 4.0 * 1.25 ** max(0, math.ceil(math.log(max(span, 0.001) * 1.02 / 4.0, 1.25)))
        step = next((each for each in _TICK_STEPS if _ticks_fit(span, each)), _TICK_STEPS[-1])
        count = int(span / step)
        ticks = tuple(
            Tick(round(index * step / span * 100, 3), f"+{_tick_label(index * step)}" if index else "0")
            for index in range(count + 1)
            if index * step / span < 0.97
        )
        return cls(start, span, ticks)

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.span_seconds)

    def x(self, instant: datetime) -> float:
        """Return the position of an instant, within the scale."""
        share = (instant - self.start).total_seconds() / self.span_seconds * 100
        return round(min(max(share, 0.0), 100.0), 3)

    def width(self, start: datetime, end: datetime) -> float:
        return round(max(self.x(end) - self.x(start), 0.0), 3)


def _ticks_fit(span: float, step: float) -> bool:
    """Return whether the labels of a scale have space beside each other in the narrowest column that shows it."""
    labels = [_tick_label(index * step) for index in range(1, int(min(span / step, _MAX_TICKS)) + 1)]
    longest = max(map(len, labels), default=0) + 2  # a sign before it, and a gap
    return span / step <= _MAX_TICKS and span / step * longest <= _MAX_TICK_CHARACTERS


def _tick_label(seconds: float) -> str:
    return format_duration(seconds).replace(".0 s", " s") if seconds >= 1 else f"{seconds:g} s"


@dataclass(frozen=True, slots=True)
class Wedge:
    """A part of a marker: the path and the state that colours it."""

    path: str
    state: str
    is_filled: bool

    @property
    def tone(self) -> str:
        return status_of(self.state).tone


_EMPTY_STATES = ("waiting", "queued", "scheduled", "not run", "not_run", "skipped", "retrying")


def draw_wedges(states: Sequence[str]) -> list[Wedge]:
    """Draw one wedge per step of a group; a larger group is a ring whose filled share has ended."""
    if len(states) > MAX_WEDGES:
        open_states = [state for state in states if state in (*_EMPTY_STATES, "running")]
        share = 1 - len(open_states) / len(states)
        main = min(states, key=lambda state: status_of(state).rank)
        filled = [Wedge(_arc(0, share), main, True)] if share else []
        return [Wedge(_arc(0, 1), main, False), *filled]
    if len(states) == 1:
        return [Wedge(_arc(0, 1), states[0], states[0] not in _EMPTY_STATES)]
    count = len(states)
    return [
        Wedge(_arc(index / count, (index + 1) / count), state, state not in _EMPTY_STATES)
        for index, state in enumerate(states)
    ]


def _arc(start: float, end: float, radius: float = 9.5, centre: float = 12.0) -> str:
    """Return the path of a sector between two shares of a circle, clockwise from the top."""
    if end - start >= 0.9999:
        return f"M{centre} {centre - radius}a{radius} {radius} 0 1 1 -0.01 0z"
    first, second = (
        (centre + radius * math.sin(share * math.tau), centre - radius * math.cos(share * math.tau))
        for share in (start, end)
    )
    large = 1 if end - start > 0.5 else 0
    return (
        f"M{centre} {centre}L{first[0]:.2f} {first[1]:.2f}"
        f"A{radius} {radius} 0 {large} 1 {second[0]:.2f} {second[1]:.2f}z"
    )


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a horizontal bar."""

    x: float
    width: float
    tone: str
    title: str


def stack_shares(parts: Iterable[tuple[str, int, str]], total: int) -> list[Share]:
    """Return the parts of a bar, given as (tone, count, title)."""
    position, shares = 0.0, []
    for tone, count, title in parts:
        width = count / total * 100 if total else 0.0
        if width:
            shares.append(Share(round(position, 3), round(width, 3), tone, title))
        position += width
    return shares
