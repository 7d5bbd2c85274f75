"""A timeline in letters: one line for each schedule, one column for each stretch of time, never wider than 80."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from tenuto.cli.words import one_line

if TYPE_CHECKING:
    from tenuto.engine.simulation import Run

WIDTH = 80
NAME = 18
COLUMNS = WIDTH - NAME - 2
LINES = 60
LEGEND = "1-9 + begin  ━ run  ◌ waits  × skipped, coalesced or missed  ‼ both  · nothing"

_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 4320, 10_080, 43_200, 525_600, 5_256_000)
_A_TICK = 8
"""Columns between two labels of the scale."""


def stretch_of(start: datetime, end: datetime) -> timedelta:
    """How much time a column stands for: an hour where that fits, otherwise what comes nearest."""
    if end - start > timedelta(hours=12) and end - start <= timedelta(hours=1) * COLUMNS:
        return timedelta(hours=1)
    return next(stretch for minutes in _MINUTES if (end - start) / (stretch := timedelta(minutes=minutes)) <= COLUMNS)


def drawn(names: Sequence[str], runs: Iterable[Run], start: datetime, end: datetime, zone: tzinfo) -> list[str]:
    """The scale, and a line for each of these schedules."""
    stretch = stretch_of(start, end)
    columns = -(-(end - start) // stretch)
    by_name: dict[str, list[Run]] = {name: [] for name in names[:LINES]}
    for run in runs:
        if run.schedule in by_name:
            by_name[run.schedule].append(run)
    lines = [*_scale(start, stretch, columns, zone)]
    for name, its_runs in by_name.items():
        lines.append(f"{_in_cells(name)}  {_line(its_runs, start, stretch, columns)}")
    if len(names) > LINES:
        lines.append(f"… and {len(names) - LINES:,} more schedules")
    return lines


def _in_cells(name: str) -> str:
    """The name in as many columns of the terminal as there are for it: some letters take two, some none."""
    from rich.cells import cell_len, set_cell_size

    line = one_line(name)
    return set_cell_size(line if cell_len(line) <= NAME else f"{set_cell_size(line, NAME - 1).rstrip()}…", NAME)


def _scale(start: datetime, stretch: timedelta, columns: int, zone: tzinfo) -> list[str]:
    form = "%H:%M" if stretch < timedelta(hours=6) else "%m-%d" if stretch < timedelta(days=30) else "%Y-%m"
    labels = [" "] * columns
    for column in range(0, columns, _A_TICK):
        label = (start + stretch * column).astimezone(zone).strftime(form)
        if column + len(label) <= columns:
            labels[column : column + len(label)] = label
    each = _words(stretch)
    ticks = "".join("|" if column % _A_TICK == 0 else " " for column in range(columns))
    return [f"{f'a column is {each}':<{NAME}}  {''.join(labels)}".rstrip(), f"{'':<{NAME}}  {ticks}".rstrip()]


def _line(runs: Sequence[Run], start: datetime, stretch: timedelta, columns: int) -> str:
    begun, lost = [0] * columns, [False] * columns
    running, waiting = [False] * columns, [False] * columns
    for run in runs:
        if run.starts_at is None:
            place = (run.due_at - start) // stretch
            if 0 <= place < columns:
                (waiting if run.decision == "queued" else lost)[place] = True
            continue
        first = (run.starts_at - start) // stretch
        begun[first] += 1
        if run.ends_at is not None and run.ends_at > run.starts_at:
            last = min(-(-(run.ends_at - start) // stretch), columns)
            running[first:last] = [True] * (last - first)
    return "".join(map(_sign, begun, running, waiting, lost))


def _sign(begun: int, running: bool, waiting: bool, lost: bool) -> str:
    if lost:
        return "‼" if begun else "×"
    if begun:
        return str(begun) if begun < 10 else "+"
    return "◌" if waiting else "━" if running else "·"


def _words(stretch: timedelta) -> str:
    minutes = round(stretch.total_seconds() / 60)
    for size, unit in ((1440, "d"), (60, "h")):
        if minutes % size == 0:
            return f"{minutes // size} {unit}"
    return f"{minutes} min"
