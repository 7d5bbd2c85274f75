"""Submission of a batch while its rows are read: progress on the terminal, errors with line and continuation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tenuto.app import Tenuto
from tenuto.cli.command import Session
from tenuto.cli.output import ProgressLine
from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid
from tenuto.operations.work.batch_files import SOURCE_FIELD, STDIN, RowReader
from tenuto.operations.work.batch_inputs import CHUNK_SIZE
from tenuto.operations.work.batches import Batch

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
    source = STDIN if rows.name == "stdin" else rows.name
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
        if not rows.line or error.field in (SOURCE_FIELD, "batch_key", "name"):
            raise
        line = rows.line if error.item is None else counter.line_of(error.item)
        error.message = f"{rows.name}, line {line}: {error.message}"
        if started and not atomic:
            id = await app.batches.find(batch_key)
            total = (await app.batches.get(id)).item_count
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
        problem, remedy = f"{rows.name} contains no rows", "check the content of the file"
        raise Invalid(problem, code="batch.source.empty", field=SOURCE_FIELD, remedy=remedy) from None
    app.manifests.item_serializer(await app.manifests.get(manifest))(first)
    return chain([first], items)


class _RowCounter:
    """Count the rows read, show the count on a terminal, and remember the lines of the latest rows."""

    def __init__(self, session: Session, rows: RowReader) -> None:
        self._line = ProgressLine(quiet=session.quiet)
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
            if number % 500 == 0 and monotonic_seconds() - shown_at > _COUNTER_REFRESH_SECONDS:
                shown_at = monotonic_seconds()
                self._line.show(f"  {number:,} rows read …")
            yield item

    def clear(self) -> None:
        """Erase the count from the terminal."""
        if self._count >= 500:
            self._line.clear()
