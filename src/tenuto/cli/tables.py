"""Tables and other structured output for people.

A table has one line per record where it fits. On a narrower terminal, values move below other columns, columns are
omitted, errors wrapped and texts truncated, as the columns say. On a terminal that is too narrow for that, each value
has its own line. In a pipe or a file, nothing is omitted, truncated or wrapped.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenuto.cli.output import reporting_write_errors, write
from tenuto.presentation.columns import Cell, Column, ResourceView
from tenuto.presentation.descriptions import format_in_zone
from tenuto.presentation.state_symbols import state_colour, state_label
from tenuto.presentation.text_formats import format_relative, safe_text

_UNLIMITED_WIDTH = 20_000
_COLUMN_GAP = 2
_MIN_FLEXIBLE_WIDTH = 12
_MAX_ERROR_LINES = 3
_COMFORTABLE_WIDTH = 40
"""Width of a flexible column below which values move below other columns."""


def render_table(
    columns: Sequence[Column] | ResourceView,
    records: Sequence[Any],
    now: datetime,
    drawings: Mapping[str, Sequence[Text]] = MappingProxyType({}),
) -> RenderableType:
    """Return records as a table that fits the terminal; ``drawings`` replace the cells of the named columns."""
    columns = columns.columns if isinstance(columns, ResourceView) else columns
    width = _console().width
    single_line = {
        column: list(drawings.get(column.name, ())) or [_text(column.cell(record, now)) for record in records]
        for column in columns
    }
    cells, widths = single_line, _natural_widths(single_line)
    comfortable = {each: min(widths[each], _COMFORTABLE_WIDTH) if each.flexible else widths[each] for each in cells}
    if _total(comfortable) > width:
        cells = _stack(single_line, records, now)
        widths = _natural_widths(cells)
    least = dict.fromkeys(cells, _MIN_FLEXIBLE_WIDTH)
    for column, texts in single_line.items():
        if column.under and column.format == "id" and column not in cells:  # an id is never truncated
            host = next(each for each in cells if each.name == column.under)
            least[host] = max([least[host], *(text.cell_len for text in texts)])
    needed = {each: min(widths[each], least[each]) if each.flexible else widths[each] for each in cells}
    for column in sorted(cells, key=lambda each: -each.drop):
        if column.drop and _total(needed) > width:
            needed.pop(column)
    if _total(needed) > width:
        return _value_lines(single_line)
    shown = _distribute_width(needed, widths, width)
    cells = {
        column: _wrap_errors(texts, shown[column]) if column.format == "error" and column in needed else texts
        for column, texts in cells.items()
    }
    lines = box.SIMPLE_HEAD if is_terminal() else None
    table = _table(lines)
    for column in needed:
        align: Any = "right" if column.is_right_aligned and lines else "left"
        width = shown[column]
        table.add_column(
            column.name, no_wrap=True, overflow="ellipsis", min_width=width, max_width=width, justify=align
        )
    for row in zip(*(cells[column] for column in needed), strict=True):
        table.add_row(*row)
    return table


def _wrap_errors(texts: Sequence[Text], width: int) -> list[Text]:
    """Return error texts in up to three lines; a longer one ends with an ellipsis."""
    wrapped = []
    for text in texts:
        lines = textwrap.wrap(text.plain, width)
        if len(lines) > _MAX_ERROR_LINES:
            lines = [*lines[: _MAX_ERROR_LINES - 1], f"{lines[_MAX_ERROR_LINES - 1][: width - 1]}…"]
        wrapped.append(Text("\n".join(lines), style=text.style) if text.cell_len > width else text)
    return wrapped


def _value_lines(cells: dict[Column, list[Text]]) -> RenderableType:
    """Return every record as its id and, indented below it, a line for each value with the name of the column."""
    id_column = next((column for column in cells if column.format == "id"), None)
    parts: list[RenderableType] = []
    for number in range(len(next(iter(cells.values())))):
        facts = [(column.name, texts[number]) for column, texts in cells.items() if column is not id_column]
        heading = [] if id_column is None else [cells[id_column][number]]
        parts += [*([""] if parts else []), *heading, Padding(name_value_table(*facts), (0, 0, 0, len(heading) * 2))]
    return Group(*parts)


def _stack(cells: dict[Column, list[Text]], records: Sequence[Any], now: datetime) -> dict[Column, list[Text]]:
    """Move the values of columns with ``under`` to a second line below that column, with their labels."""
    by_name = {column.name: column for column in cells}
    below: dict[Column, list[list[str]]] = {}
    for column, texts in cells.items():
        if column.under:
            lines = below.setdefault(by_name[column.under], [[] for _ in records])
            for line, text, record in zip(lines, texts, records, strict=True):
                if text.plain and column.read(record) not in (0, False):
                    line.append(column.label.format(text.plain))
    stacked = {column: texts for column, texts in cells.items() if not column.under}
    for column, lines in below.items():
        stacked[column] = [
            Text.assemble(text, "\n", (", ".join(line), "dim"))
            for text, line in zip(stacked[column], lines, strict=True)
        ]
    if below:
        for column in stacked.keys() - below.keys():  # so that every row has two lines
            stacked[column] = [Text.assemble(text, "\n") for text in stacked[column]]
    return stacked


def _natural_widths(cells: dict[Column, list[Text]]) -> dict[Column, int]:
    return {
        column: max(len(column.name), *(line.cell_len for text in texts for line in text.split("\n"))) if texts else 0
        for column, texts in cells.items()
    }


def _total(widths: dict[Column, int]) -> int:
    return sum(widths.values()) + _COLUMN_GAP * (len(widths) - 1)


def _distribute_width(needed: dict[Column, int], widths: dict[Column, int], available: int) -> dict[Column, int]:
    """Return the column widths: at least the needed ones; the free width goes to the narrowest truncated columns."""
    shown = dict(needed)
    free = available - _total(shown)
    while free > 0 and (truncated := [column for column in shown if shown[column] < widths[column]]):
        narrowest = min(truncated, key=lambda column: shown[column])
        shown[narrowest] += 1
        free -= 1
    return shown


def _table(lines: box.Box | None) -> Table:
    gap = _COLUMN_GAP - bool(lines)
    return Table(box=lines, pad_edge=False, show_edge=False, header_style="bold", padding=(0, gap, 0, 0))


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=cell.colour)


def name_value_table(*rows: tuple[str, Any]) -> RenderableType:
    """Return names and values as two columns; empty values are omitted."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        text = value if isinstance(value, Text) else Text("" if value is None else safe_text(value))
        if text:
            grid.add_row(name, text)
    return grid


def upcoming_runs_table(instants: Sequence[datetime], zone: str, now: datetime) -> RenderableType:
    """Return a table of runs: in the schedule's time zone, in local time if different, and relative to now."""
    columns = [
        Column(zone, lambda instant: instant, text=lambda instant, _: format_in_zone(instant, zone)),
        Column("local time", lambda instant: instant, text=lambda instant, _: format_in_zone(instant)),
        Column("from now", lambda instant: instant, text=format_relative),
    ]
    if all(format_in_zone(instant, zone) == format_in_zone(instant) for instant in instants):
        del columns[1]
    return render_table(columns, instants, now)


def styled_state(state: str, name: str | None = None) -> Text:
    """Return a state with symbol, name and colour."""
    return Text(safe_text(state_label(state, name)), style=state_colour(state))


def record_heading(state: str, name: str, id: object, detail: str = "") -> Text:
    """Return the first line of a show command: state, name and id."""
    return Text.assemble(styled_state(state), "  ", (safe_text(name), "bold"), detail, "  ", (str(id), "dim"))


def section_title(title: str) -> list[RenderableType]:
    return [Text(""), Text(title, style="bold")]


def titled_diff(title: str, lines: Sequence[str], *, indent: int = 0, style: str = "") -> list[RenderableType]:
    """Return a title and, indented below it, diff lines in colours."""
    diff = Text("\n").join(Text(safe_text(line), {"-": "red", "+": "green"}.get(line[:1], "dim")) for line in lines)
    return [Text(f"{'':{indent}}{title}", style=style), Padding(diff, (0, 0, 0, indent + 2))]


def print_rich(*parts: RenderableType) -> None:
    console = _console()
    if console.is_terminal:
        with reporting_write_errors():
            console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def is_terminal() -> bool:
    return _console().is_terminal


def live_console() -> Console | None:
    """Return a console for live views; None if stdout is a pipe, a file or a dumb terminal."""
    console = _console()
    return console if console.is_terminal and not console.is_dumb_terminal else None


def terminal_width() -> int:
    """Return the width for drawings: that of the terminal, or 80 in a pipe."""
    console = live_console()
    return 80 if console is None else console.width


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED_WIDTH
    return console
