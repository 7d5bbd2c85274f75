"""Rows for a batch, read one by one as they are asked for: JSON lines or CSV, from a file or stdin.

Knows at which line it is, so that whoever refuses a row can say which. Holds no more than one row.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from tenuto.errors import Invalid
from tenuto.model import strictjson
from tenuto.verbs.keyedrows import keyed

Format = Literal["jsonl", "csv"]
FIELD = "--from"
STDIN = "-"
_LONGEST_CELL = 16 * 1024 * 1024
_LONGEST_LINE = 32 * 1024 * 1024


class Rows:
    """The rows of a file, in its order."""

    def __init__(self, source: str, format: Format | None, key: str | None, *, drop_key: bool) -> None:
        self._source = source
        self._format: Format = format or ("csv" if source.lower().endswith(".csv") else "jsonl")
        self._key = key
        self._drop_key = drop_key
        self.name = "stdin" if source == STDIN else source
        self.line = 0
        """Where the last row began that was given out."""

    @property
    def place(self) -> str:
        return self.place_at(self.line)

    def place_at(self, line: int) -> str:
        return f"{self.name}, line {line}"

    def __iter__(self) -> Iterator[Any]:
        with self._opened() as file:
            read: Callable[[TextIO], Iterator[Any]] = self._csv if self._format == "csv" else self._json_lines
            try:
                yield from map(self._keyed, read(file))
            except UnicodeDecodeError as error:
                self.line += 1
                raise Invalid(f"is not UTF-8: {error.reason}", field=FIELD, remedy="save it as UTF-8") from None
            except OSError as error:  # it was there, and what is in it cannot be had
                raise self._unreadable(error) from None

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        if self._source == STDIN:
            yield sys.stdin
            return
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(self._source).open(encoding="utf-8-sig", newline=""))
            except OSError as error:
                raise self._unreadable(error) from None
            yield file

    def _unreadable(self, error: OSError) -> Invalid:
        return Invalid(f"{self._source} cannot be read: {error.strerror}", field=FIELD, remedy="look at the path")

    def _lines(self, file: TextIO) -> Iterator[str]:
        """Line by line; a file without line ends, or a device without an end, is not held in memory."""
        for line in iter(lambda: file.readline(_LONGEST_LINE + 1), ""):
            if len(line) > _LONGEST_LINE:
                self.line += 1
                raise Invalid(f"is longer than {_LONGEST_LINE:,} characters", field=FIELD, remedy="write shorter rows")
            yield line

    def _json_lines(self, file: TextIO) -> Iterator[Any]:
        for number, text in enumerate(self._lines(file), 1):
            self.line = number
            if not text.strip():
                continue
            try:
                yield strictjson.loads(text)
            except (ValueError, RecursionError) as error:
                why = str(error).partition(": line ")[0]
                remedy = "write one JSON value a line; of a list, `jq -c '.[]'` makes such lines"
                raise Invalid(f"is not JSON: {why}", remedy=remedy) from None

    def _csv(self, file: TextIO) -> Iterator[Any]:
        csv.field_size_limit(_LONGEST_CELL)
        lines = csv.reader(self._lines(file), strict=True)
        try:
            names = next(lines, [])
            self.line = 1
            if len(set(names)) < len(names) or not all(names):
                raise Invalid(
                    "is not a row of different names", remedy="begin a CSV file with the names of its columns"
                )
            begins = lines.line_num + 1
            for cells in lines:
                self.line, begins = begins, lines.line_num + 1
                if not cells:
                    continue
                if len(cells) > len(names):
                    raise Invalid(
                        f"has {len(cells)} cells, and there are {len(names)} columns",
                        remedy="put cells with commas in quotes",
                    )
                # An empty cell says nothing: the job's default holds.
                yield {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
        except csv.Error as error:
            self.line = max(lines.line_num, 1)
            raise Invalid(f"is not CSV: {error}", remedy="put cells with quotes or line ends in quotes") from None

    def _keyed(self, value: Any) -> Any:
        return keyed(value, self._key, drop=self._drop_key, remedy="give every row one, or leave --key out")
