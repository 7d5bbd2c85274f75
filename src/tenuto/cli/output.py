"""Output of the commands: JSON for programs, text, tables and lists for people.

Control characters in data are removed or escaped. Rich is imported inside functions: help, health checks and JSON
output do without it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any

from tenuto.cli.formatting import escape_control_characters, one_line, safe_text
from tenuto.errors import TenutoError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from tenuto.cli.command import Session

Record = Any
Column = str | Callable[[Record, datetime], Any]
"""The name of a field, or a function of the row and the current time."""
TwoLineColumn = Callable[[Record, datetime], tuple[Any, Any]]

_STATE_STYLES = {
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
_UNLIMITED_WIDTH = 20_000
"""Width in a pipe or a file, where nothing is truncated or wrapped."""
_COLUMN_GAP = 2
_MIN_FLEXIBLE_WIDTH = 12
"""Minimum width of a flexible column."""


def state_symbol(state: str) -> str:
    return _STATE_STYLES.get(state, ("?", ""))[0]


def styled_state(state: str) -> Text:
    """Return a state with symbol, name and colour."""
    from rich.text import Text

    return Text(f"{state_symbol(state)} {safe_text(state).replace('_', ' ')}", style=state_colour(state))


def state_colour(state: str) -> str:
    return _STATE_STYLES.get(state, ("", ""))[1]


# --- writing ----------------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one JSON document: instants in ISO 8601, ids as text, durations in seconds."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_json_default)
    _write(escape_control_characters(text) + "\n")


def _json_default(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def print_rich(*parts: RenderableType) -> None:
    console = _console(sys.stdout)
    if console.is_terminal:
        with reporting_write_errors():
            console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    _write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def print_text(text: str) -> None:
    """Print untrusted text without control characters."""
    _write(safe_text(text).rstrip("\n") + "\n")


@contextmanager
def reporting_write_errors() -> Iterator[None]:
    """Turn a failed write to stdout (full disk, closed stream) into an error with a remedy; a closed pipe is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise TenutoError(
            f"the output cannot be written to stdout: {error.strerror or error}",
            code="cli.stdout.not_writable",
            remedy="redirect stdout or free disk space; changes that the command made remain in effect",
        ) from error


def discard_stdout() -> None:
    """Send buffered output to the null device, so that the interpreter does not fail on it at exit."""
    with suppress(OSError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)


def _write(text: str) -> None:
    with reporting_write_errors():
        sys.stdout.write(text)
        sys.stdout.flush()  # a pipe may have a reader that waits for lines


def print_message(text: str) -> None:
    with suppress(OSError):  # a closed stderr or a full disk must not stop the command
        sys.stderr.write(safe_text(text) + "\n")


# --- tables -----------------------------------------------------------------------------------------------------------


def fitted_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, optional: Sequence[str] = (), flexible: Sequence[str] = ()
) -> Table:
    """Return a table that fits the terminal.

    On a narrow terminal the ``optional`` columns are omitted, in the given order, and the ``flexible`` ones truncated.
    """
    from rich import box
    from rich.table import Table

    console = _console(sys.stdout)
    cells = [[table_cell(value) for value in row] for row in rows]
    widths = {
        column: max(len(column), *(row[place].cell_len for row in cells)) if cells else len(column)
        for place, column in enumerate(columns)
    }
    needed = {
        column: min(width, _MIN_FLEXIBLE_WIDTH) if column in flexible else width for column, width in widths.items()
    }
    for column in optional:
        if sum(needed.values()) + _COLUMN_GAP * (len(needed) - 1) > console.width:
            needed.pop(column)
    shown = _distribute_width(needed, widths, console.width)
    lines = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(
        box=lines, pad_edge=False, show_edge=False, header_style="bold", padding=(0, _COLUMN_GAP - bool(lines), 0, 0)
    )
    for column in needed:
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=shown[column], max_width=shown[column])
    for row in cells:
        table.add_row(*(text for column, text in zip(columns, row, strict=True) if column in needed))
    return table


def _distribute_width(needed: dict[str, int], widths: dict[str, int], available: int) -> dict[str, int]:
    """Return the column widths: at least the needed ones; the free width goes to the narrowest truncated columns."""
    shown = dict(needed)
    free = available - sum(shown.values()) - _COLUMN_GAP * len(shown)
    while free > 0 and (truncated := [column for column in shown if shown[column] < widths[column]]):
        narrowest = min(truncated, key=lambda column: shown[column])
        shown[narrowest] += 1
        free -= 1
    return shown


def two_line_table(columns: Sequence[str], rows: Iterable[Sequence[tuple[Any, Any]]], *, flexible: str) -> Table:
    """Return a table with two lines per row, value above explanation, for lists too wide for a terminal.

    The ``flexible`` column wraps if the terminal is narrow.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column != flexible, overflow="fold")
    for row in rows:
        table.add_row(*(Text.assemble(table_cell(over), "\n", (table_cell(under).plain, "dim")) for over, under in row))
    return table


def table_cell(value: Any) -> Text:
    """Return a value as one safe line."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else one_line(value))


def name_value_table(*rows: tuple[str, Any]) -> RenderableType:
    """Return names and values as two columns; empty values are omitted."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            grid.add_row(name, value if isinstance(value, Text) else Text(safe_text(value)))
    return grid


def compact_json(value: Any) -> str | None:
    """Return a stored value as JSON on one line."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def is_terminal() -> bool:
    return _console(sys.stdout).is_terminal


def live_console() -> Console | None:
    """Return a console for live views; None if stdout is a pipe, a file or a dumb terminal."""
    console = _console(sys.stdout)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _console(stream: Any) -> Console:
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED_WIDTH
    return console


# --- lists ------------------------------------------------------------------------------------------------------------


def record_heading(state: str, name: str, id: object, detail: str = "") -> Text:
    """Return the first line of a show command: state, name and id."""
    from rich.text import Text

    return Text.assemble(styled_state(state), "  ", (safe_text(name), "bold"), detail, "  ", (str(id), "dim"))


def record_table(
    rows: Sequence[Record],
    columns: Mapping[str, Column],
    now: datetime,
    *,
    optional: Sequence[str] = (),
    flexible: Sequence[str] = (),
) -> Table:
    """Return records as a table that fits the terminal; see `fitted_table`."""
    cells = [
        [row[column] if isinstance(column, str) else column(row, now) for column in columns.values()] for row in rows
    ]
    return fitted_table(list(columns), cells, optional=optional, flexible=flexible)


async def print_list(
    session: Session,
    rows: Sequence[Record],
    columns: Mapping[str, Column],
    *,
    noun: str,
    hint: str = "",
    filters: Mapping[str, Any] | None = None,
    two_line_columns: Mapping[str, TwoLineColumn] | None = None,
    optional: Sequence[str] = (),
    flexible: Sequence[str] = (),
    next_page: str = "--below",
    cursor: str = "id",
) -> None:
    """Print rows as JSON or as a table, and how to get the next page if the page is full.

    On a terminal, ``two_line_columns`` replace ``columns``. ``hint`` says what to do if there are no rows at all.
    """
    filters = filters or {}
    if session.as_json:
        print_json(rows)
        return
    if not rows:
        filtered = any(value not in (None, "", []) for name, value in filters.items() if name != "limit")
        session.print_message(f"no matching {noun}" if filtered else f"no {noun}{f'; {hint}' if hint else ''}")
        return
    now = await session.now()
    if two_line_columns is not None and is_terminal():
        cells = [[column(row, now) for column in two_line_columns.values()] for row in rows]
        print_rich(two_line_table(list(two_line_columns), cells, flexible=flexible[0]))
    else:
        print_rich(record_table(rows, columns, now, optional=optional, flexible=flexible))
    if len(rows) == filters.get("limit"):
        session.print_message(f"there may be more: add {next_page} {quote(str(rows[-1][cursor]))}")
