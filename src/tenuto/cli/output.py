"""Showing answers: one JSON document for programs, tables for people. What came from elsewhere is made safe here."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from tenuto.cli.exit_codes import answering
from tenuto.cli.formatting import escaped, one_line, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_STATES = {
    "waiting": ("○", "dim"),
    "scheduled": ("◷", "cyan"),
    "queued": ("◌", "blue"),
    "running": ("●", "yellow"),
    "in_progress": ("●", "yellow"),
    "completed": ("✓", "green"),
    "completed_with_warning": ("▲", "yellow"),
    "completed_with_error": ("▲", "red"),
    "failed": ("✕", "red"),
    "cancelled": ("⊘", "magenta"),
    "pending": ("◷", "cyan"),
    "terminated": ("⊘", "magenta"),
    "alive": ("●", "green"),
    "draining": ("◐", "yellow"),
    "stale": ("✕", "red"),
    "ended": ("○", "dim"),
    "open": ("●", "green"),
    "paused": ("‖", "yellow"),
    "stopping": ("◐", "magenta"),
    "on": ("●", "green"),
    "off": ("○", "dim"),
    "fired": ("✓", "green"),
    "coalesced": ("≡", "cyan"),
    "skipped": ("⊘", "yellow"),
    "missed": ("✕", "red"),
    "filling": ("◔", "cyan"),
    "some_failed": ("▲", "red"),
    "awaiting_intervention": ("✉", "red"),
    "retried": ("↻", "cyan"),
    "acknowledged": ("✓", "dim"),
    "ok": ("✓", "green"),
    "note": ("i", "cyan"),
    "warning": ("▲", "yellow"),
    "problem": ("✕", "red"),
}
_AS_WIDE_AS_NEEDED = 20_000
"""For a pipe or a file: nothing is cut or wrapped there."""
_GAP = 2
_FLEXIBLE = 12
"""A flexible column is never narrower than this."""


def glyph(word: str) -> str:
    """The sign of a state."""
    return _STATES.get(word, ("?", ""))[0]


def state(word: str) -> Text:
    """A state as glyph, word and colour: each alone would do."""
    from rich.text import Text

    return Text(f"{glyph(word)} {plain(word).replace('_', ' ')}", style=colour_of(word))


def colour_of(word: str) -> str:
    return _STATES.get(word, ("", ""))[1]


def show_json(value: Any) -> None:
    """One document on stdout: instants in ISO 8601, ids as text, spans in seconds."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_jsonable)
    _write(escaped(text) + "\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def show(*parts: RenderableType) -> None:
    """Something made with Rich, on stdout."""
    console = _console(sys.stdout)
    if console.is_terminal:
        with answering():
            console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    _write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def show_text(text: str) -> None:
    """Text from elsewhere, as it is but for what a terminal would obey."""
    _write(plain(text).rstrip("\n") + "\n")


def _write(text: str) -> None:
    with answering():
        sys.stdout.write(text)
        sys.stdout.flush()  # somebody may read along, behind a pipe


def talk(text: str) -> None:
    """A word to the person, on stderr."""
    with suppress(OSError):  # nobody listens, or the disk is full: the work goes on
        sys.stderr.write(plain(text) + "\n")


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, spare: Sequence[str] = (), flexible: Sequence[str] = ()
) -> None:
    """A table, as wide as it may be."""
    show(fitted(columns, rows, spare=spare, flexible=flexible))


def fitted(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, spare: Sequence[str] = (), flexible: Sequence[str] = ()
) -> Table:
    """A table that fits the terminal.

    If it is too narrow, the ``spare`` columns are left out, the first named first; the ``flexible`` ones are shortened.
    """
    from rich import box
    from rich.table import Table

    console = _console(sys.stdout)
    cells = [[cell(value) for value in row] for row in rows]
    widths = {
        column: max(len(column), *(row[place].cell_len for row in cells)) if cells else len(column)
        for place, column in enumerate(columns)
    }
    needed = {column: min(width, _FLEXIBLE) if column in flexible else width for column, width in widths.items()}
    for column in spare:
        if sum(needed.values()) + _GAP * (len(needed) - 1) > console.width:
            needed.pop(column)
    shown = _widened(needed, widths, console.width)
    lines = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(
        box=lines, pad_edge=False, show_edge=False, header_style="bold", padding=(0, _GAP - bool(lines), 0, 0)
    )
    for column in needed:
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=shown[column], max_width=shown[column])
    for row in cells:
        table.add_row(*(text for column, text in zip(columns, row, strict=True) if column in needed))
    return table


def _widened(needed: dict[str, int], widths: dict[str, int], most: int) -> dict[str, int]:
    """Columns at the width they need at least, with what is free shared out among those that would like more."""
    shown = dict(needed)
    free = most - sum(shown.values()) - _GAP * len(shown)
    while free > 0 and (wanting := [column for column in shown if shown[column] < widths[column]]):
        narrowest = min(wanting, key=lambda column: shown[column])
        shown[narrowest] += 1
        free -= 1
    return shown


def stacked(columns: Sequence[str], rows: Iterable[Sequence[tuple[Any, Any]]], *, flexible: str) -> Table:
    """A table of two lines a row, what matters over what explains it: for lists too wide for a terminal.

    The ``flexible`` column takes more lines if there is no room.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column != flexible, overflow="fold")
    for row in rows:
        table.add_row(*(Text.assemble(cell(over), "\n", (cell(under).plain, "dim")) for over, under in row))
    return table


def cell(value: Any) -> Text:
    """One value, as a single safe line."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else one_line(value))


def pairs(*rows: tuple[str, Any]) -> RenderableType:
    """Names and values, one below the other; what has no value is left out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            grid.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    return grid


def compact(value: Any) -> str | None:
    """Stored JSON on one line."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def for_a_person() -> bool:
    """Whether stdout is a terminal: then what is shown may be laid out for the eye."""
    return _console(sys.stdout).is_terminal


def console_for_live() -> Console | None:
    """Where something may be drawn over and over; None if stdout is a pipe, a file or too plain a terminal."""
    console = _console(sys.stdout)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _console(stream: Any) -> Console:
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _AS_WIDE_AS_NEEDED
    return console
