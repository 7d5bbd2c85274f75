"""Rows of a batch in a file or on stdin: JSON lines, or CSV with a header.

The reader knows the line of each row, so that errors name it. It holds one row in memory.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from tenuto.errors import Invalid
from tenuto.model import validation
from tenuto.operations.work.batch_inputs import add_row_key

RowFormat = Literal["jsonl", "csv"]
STDIN = "-"
SOURCE_FIELD = "--from"
"""Field of errors about the file as a whole."""
_MAX_CELL_LENGTH = 16 * 1024 * 1024
_MAX_LINE_LENGTH = 32 * 1024 * 1024


class RowReader:
    """Iterate over the rows of a file."""

    def __init__(self, source: str, format: RowFormat | None, key: str | None, *, drop_key: bool) -> None:
        self._source = source
        self._format: RowFormat = format or ("csv" if source.lower().endswith(".csv") else "jsonl")
        self._key = key
        self._drop_key = drop_key
        self.name = "stdin" if source == STDIN else source
        self.line = 0
        """First line of the latest row."""

    def __iter__(self) -> Iterator[Any]:
        with self._open() as file:
            read: Callable[[TextIO], Iterator[Any]] = self._read_csv if self._format == "csv" else self._read_json_lines
            try:
                for row in read(file):
                    yield add_row_key(
                        row, self._key, drop_field=self._drop_key, remedy="give every row a key, or omit --key"
                    )
            except UnicodeDecodeError as error:
                self.line += 1
                raise Invalid(
                    f"text is not UTF-8: {error.reason}", code="batch.row.not_utf8", remedy="save the file as UTF-8"
                ) from None
            except OSError as error:
                raise self._unreadable(error) from None

    @contextmanager
    def _open(self) -> Iterator[TextIO]:
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
        return Invalid(
            f"cannot read {self._source}: {error.strerror}",
            code="batch.source.not_readable",
            field=SOURCE_FIELD,
            remedy="check the path and its permissions",
        )

    def _read_lines(self, file: TextIO) -> Iterator[str]:
        """Yield lines of bounded length: a file without line ends, or an endless device, must not fill the memory."""
        for line in iter(lambda: file.readline(_MAX_LINE_LENGTH + 1), ""):
            if len(line) > _MAX_LINE_LENGTH:
                self.line += 1
                raise Invalid(
                    f"row is longer than {_MAX_LINE_LENGTH:,} characters",
                    code="batch.row.too_long",
                    remedy="write shorter rows",
                )
            yield line

    def _read_json_lines(self, file: TextIO) -> Iterator[Any]:
        for number, text in enumerate(self._read_lines(file), 1):
            self.line = number
            if not text.strip():
                continue
            try:
                yield validation.parse_strict_json(text)
            except (ValueError, RecursionError) as error:
                reason = str(error).partition(": line ")[0]
                remedy = "write one JSON value per line; `jq -c '.[]'` converts a list"
                raise Invalid(f"row is not JSON: {reason}", code="batch.row.not_json", remedy=remedy) from None

    def _read_csv(self, file: TextIO) -> Iterator[Any]:
        csv.field_size_limit(_MAX_CELL_LENGTH)
        lines = csv.reader(self._read_lines(file), strict=True)
        try:
            names = next(lines, [])
            self.line = 1
            if len(set(names)) < len(names) or not all(names):
                raise Invalid(
                    "CSV header has empty or duplicate column names",
                    code="batch.csv.header_invalid",
                    remedy="begin the file with a line of distinct column names",
                )
            next_line = lines.line_num + 1
            for cells in lines:
                self.line, next_line = next_line, lines.line_num + 1
                if not cells:
                    continue
                if len(cells) > len(names):
                    raise Invalid(
                        f"row has {len(cells)} cells, but the header has {len(names)} columns",
                        code="batch.csv.too_many_cells",
                        remedy="put cells that contain commas in quotes",
                    )
                # An empty cell means: use the job's default.
                yield {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
        except csv.Error as error:
            self.line = max(lines.line_num, 1)
            remedy = "put cells that contain quotes or line breaks in quotes"
            raise Invalid(f"row is not CSV: {error}", code="batch.csv.invalid", remedy=remedy) from None
