"""Columns of a resource: one description from which tables, documents and CSV rows are made."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from io import StringIO
from typing import Any, Literal

from tenuto.presentation.state_symbols import state_colour, state_label
from tenuto.presentation.text_formats import (
    compact_json,
    error_summary,
    format_duration,
    format_local_time,
    format_relative,
    one_line,
    safe_text,
)

Format = Literal[
    "text", "id", "state", "switch", "flag", "instant", "age", "duration", "count", "number", "list", "json", "error"
]
"""`switch` is a boolean shown as on or off, `age` an instant shown relative to now, `number` has no separators."""
_RIGHT_ALIGNED = ("count", "number", "duration")
_FORMULA_PREFIXES = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Text that begins so is a formula to a spreadsheet; the last four are full-width forms of the first four."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A formatted value."""

    text: str
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a record.

    ``value`` is the name of a field or a function of the record; it gives the value for programs, and ``format`` its
    form for people. ``text`` replaces that form where it depends on more than the value.
    """

    name: str
    value: str | Callable[[Any], Any]
    format: Format = "text"
    _: dataclasses.KW_ONLY
    text: Callable[[Any, datetime], Any] | None = None
    since: Callable[[Any], datetime | None] | None = None
    """Instant from which a duration of the record is counting; a page keeps it current."""
    under: str = ""
    """Column below which the value is shown where one line per record is too wide."""
    label: str = "{}"
    """Form of the value below another column: ``by {}``."""
    drop: int = 0
    """Where the table is still too wide, columns with the highest number are omitted first; 0 is never omitted."""
    flexible: bool = False
    """Whether the value may be truncated."""

    @property
    def key(self) -> str:
        """Name of the column in CSV and for programs."""
        return self.name.replace(" ", "_")

    @property
    def is_right_aligned(self) -> bool:
        return self.format in _RIGHT_ALIGNED

    def read(self, record: Any) -> Any:
        """Return the value for programs."""
        return self.value(record) if callable(self.value) else getattr(record, self.value)

    def cell(self, record: Any, now: datetime) -> Cell:
        """Return the value for people, as one safe line."""
        value = self.read(record)
        text = None if self.text is None else self.text(record, now)
        if self.format == "state" and value is not None:
            name = None if text is None else text[:1].lower() + text[1:]  # the dashboard writes it as a title
            return Cell(one_line(state_label(str(value), name)), state_colour(str(value)))
        if self.format == "switch":
            state = "on" if value else "off"
            return Cell(state_label(state), state_colour(state))
        shown = _format(value, self.format, now) if self.text is None else text
        return Cell("" if shown is None else one_line(shown), "red" if self.format == "error" else "")


def _format(value: Any, format: Format, now: datetime) -> object:
    if value is None:
        return ""
    match format:
        case "instant":
            return format_local_time(value)
        case "age":
            return format_relative(value, now)
        case "duration":
            return format_duration(value)
        case "count":
            return f"{value:,}"
        case "flag":
            return "yes" if value else "no"
        case "list":
            return ", ".join(value)
        case "json":
            return compact_json(value)
        case "error":
            return value if isinstance(value, str) else error_summary(value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class ResourceView:
    """Columns, noun and paging of the list of a resource."""

    noun: str
    """Plural, for messages."""
    columns: tuple[Column, ...]
    hint: str = ""
    """What to do if there are no records at all."""
    next_page: Mapping[str, str] = field(default_factory=lambda: {"below": "id"})
    """Parameters of the next page, and the fields of the last record that are their values."""

    def document(self, record: Any) -> dict[str, Any]:
        """Return a record as a JSON document: its fields, as in lists of the HTTP API."""
        return _fields(record)

    def csv_header(self) -> list[str]:
        return [column.key for column in self.columns]

    def csv_row(self, record: Any, *, raw: bool = False) -> list[str]:
        """Return the cells of a CSV row: instants in ISO 8601, durations in seconds, lists and objects as JSON.

        Unless ``raw``, an apostrophe precedes text that a spreadsheet would run as a formula.
        """
        return [_csv_cell(column.read(record), raw=raw) for column in self.columns]


def csv_line(cells: Sequence[str]) -> str:
    """Return a line of a CSV document."""
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _csv_cell(value: Any, *, raw: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=json_value)
    text = safe_text(text if isinstance(value, str | Mapping | list | tuple) else text.strip('"'))
    return f"'{text}" if text.startswith(_FORMULA_PREFIXES) and isinstance(value, str) and not raw else text


def json_value(value: Any) -> Any:
    """Return a value that JSON lacks: instants in ISO 8601, ids as text, durations in seconds, records as objects."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def _fields(record: Any) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
