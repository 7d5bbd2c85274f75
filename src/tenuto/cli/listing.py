"""Output shared by list and show commands.

One declaration of the columns of a list serves the JSON document, the terminal and the pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from rich.text import Text

from tenuto.cli.command import Session
from tenuto.cli.formatting import format_local_time, format_relative, safe_text
from tenuto.cli.output import is_terminal, print_json, print_rich, print_table, styled_state, two_line_table

Record = dict[str, Any]
Column = str | Callable[[Record, datetime], Any]
"""The name of a field, or a function of the row and the current time."""
TwoLineColumn = Callable[[Record, datetime], tuple[Any, Any]]


async def current_time(session: Session) -> datetime:
    """Return the time by the clock of the app."""
    return (await session.app.open()).clock.now()


def format_with_age(instant: datetime | None, now: datetime, by: str | None = None) -> str | None:
    """Return the local time, the distance from the current time, and the actor if given."""
    if instant is None:
        return None
    return f"{format_local_time(instant)} ({format_relative(instant, now)}){'' if by is None else f' by {by}'}"


def record_heading(state: str, name: str, id: object, detail: str = "") -> Text:
    """Return the first line of a show command: state, name and id."""
    return Text.assemble(styled_state(state), "  ", (safe_text(name), "bold"), detail, "  ", (str(id), "dim"))


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
    now = await current_time(session)
    if two_line_columns is not None and is_terminal():
        cells = [[column(row, now) for column in two_line_columns.values()] for row in rows]
        print_rich(two_line_table(list(two_line_columns), cells, flexible=flexible[0]))
    else:
        print_table(list(columns), table_rows(rows, columns, now), optional=optional, flexible=flexible)
    if len(rows) == filters.get("limit"):
        session.print_message(f"there may be more: add {next_page} {quote(str(rows[-1][cursor]))}")


def table_rows(rows: Sequence[Record], columns: Mapping[str, Column], now: datetime) -> list[list[Any]]:
    """Return the cells of each row."""
    return [
        [row[column] if isinstance(column, str) else column(row, now) for column in columns.values()] for row in rows
    ]
