"""Rows of a batch: read from a file or stdin, one at a time, and submitted while they are read.

The reader knows the line of each row, so that errors name it. It holds one row in memory.
"""

from __future__ import annotations

import asyncio
import csv
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from tenuto.cli.command import Session
from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid
from tenuto.model import validation
from tenuto.operations.batch_inputs import CHUNK_SIZE, add_row_key

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.operations.batches import Batch

RowFormat = Literal["jsonl", "csv"]
_STDIN = "-"
_SOURCE_OPTION = "--from"
_MAX_CELL_LENGTH = 16 * 1024 * 1024
_MAX_LINE_LENGTH = 32 * 1024 * 1024
_COUNTER_REFRESH_SECONDS = 0.2


async def submit_rows(
    session: Session,
    app: Tenuto,
    manifest: str,
    rows: RowReader,
    batch_key: str,
    *,
    name: str | None,
    atomic: bool,
    keyed: bool,
) -> Batch:
    """Submit all rows. After an invalid row or an interruption, say what was submitted and how to continue."""
    counter = _RowCounter(session, rows)
    source = _STDIN if rows.name == "stdin" else rows.name
    continuation = f"tenuto batch submit {manifest} --from {source} --batch-key {batch_key}"
    started = False
    try:
        inputs = await _check_first_row(app, manifest, rows)
        started = True
        return await app.bulk_enqueue(
            manifest,
            counter.count(inputs),
            key=(lambda row: row.key) if keyed else None,
            batch_key=batch_key,
            name=name,
            atomic=atomic,
        )
    except Invalid as error:
        counter.clear()
        if not rows.line or error.field in (_SOURCE_OPTION, "batch_key", "name"):
            raise
        line = rows.line if error.item is None else counter.line_of(error.item)
        error.message = f"{rows.name}, line {line}: {error.message}"
        if started and not atomic:
            id = await app.batches.find(batch_key)
            total = (await app.batches.get(id))["total"]
            session.print_message(f"{total:,} items before it submitted; the batch waits for the remaining rows")
            session.print_message(f"  to abandon it: tenuto batch cancel {id}")
            error.remedy = f"correct the row and continue with: {continuation}"
        raise
    except asyncio.CancelledError:
        counter.clear()
        if not atomic:
            session.print_message(f"interrupted; continue with: {continuation}")
        raise
    finally:
        counter.clear()


async def _check_first_row(app: Tenuto, manifest: str, rows: RowReader) -> Iterator[Any]:
    """Validate the first row before a batch is created, so that an unsuitable file leaves no batch behind."""
    items = iter(rows)
    try:
        first = next(items)
    except StopIteration:
        remedy = "check the content of the file"
        raise Invalid(
            f"{rows.name} contains no rows", code="batch.source.empty", field=_SOURCE_OPTION, remedy=remedy
        ) from None
    app.manifests.item_serializer(await app.manifests.get(manifest))(first)
    return chain([first], items)


class _RowCounter:
    """Count the rows read, show the count on a terminal, and remember the lines of the latest rows."""

    def __init__(self, session: Session, rows: RowReader) -> None:
        self._enabled = not session.quiet and sys.stderr.isatty()
        self._visible = False
        self._rows = rows
        self._count = 0
        self._lines: deque[int] = deque(maxlen=CHUNK_SIZE)  # a whole chunk is read before its first row is validated

    def line_of(self, item: int) -> int:
        """Return the line of one of the latest rows, by its number in the batch."""
        return self._lines[item - self._count - 1]

    def count(self, inputs: Iterator[Any]) -> Iterator[Any]:
        shown_at = monotonic_seconds()
        for number, item in enumerate(inputs, 1):
            self._count = number
            self._lines.append(self._rows.line)
            if self._enabled and number % 500 == 0 and monotonic_seconds() - shown_at > _COUNTER_REFRESH_SECONDS:
                shown_at = monotonic_seconds()
                self._write(f"\r  {number:,} rows read …")
            yield item

    def clear(self) -> None:
        """Erase the count from the terminal."""
        if self._visible:
            self._write("\r\x1b[K")
            self._visible = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self._visible = True


class RowReader:
    """Iterate over the rows of a file."""

    def __init__(self, source: str, format: RowFormat | None, key: str | None, *, drop_key: bool) -> None:
        self._source = source
        self._format: RowFormat = format or ("csv" if source.lower().endswith(".csv") else "jsonl")
        self._key = key
        self._drop_key = drop_key
        self.name = "stdin" if source == _STDIN else source
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
        if self._source == _STDIN:
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
            field=_SOURCE_OPTION,
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
