"""Quarantine for rows that this process cannot handle, and isolation of their errors from other rows.

A failing row is logged once and skipped until its version changes or the quarantine is released; other rows are
processed. The quarantine is not stored, because another process, perhaps of another version, may be able to handle the
row. Connection errors are not the fault of a row and are raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from tenuto.errors import StoreError, TenutoError
from tenuto.logs import Log
from tenuto.postgres.database import Connection, Database, DatabaseError

LOCKED_ROWS_PER_BATCH = 100
UNREADABLE_ROW_ERRORS = (TenutoError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors of parsing a row that was edited by hand or written by a later version."""

RowVersion = tuple[UUID, int]
"""Id and version of a row."""
LockedRows = dict[RowVersion, str]
"""The rows that a transaction has locked, with their names."""


@dataclass(slots=True)
class Quarantine:
    """Rows that this process skips for now."""

    noun: str
    """Kind of the rows in log events: schedule, manifest."""
    log: Log
    rows: set[RowVersion] = field(default_factory=set)
    """Skipped row versions. A row that has been changed since is not skipped."""
    _logged_errors: dict[UUID, str] = field(default_factory=dict)

    def add(self, row: RowVersion, name: str, action: str, error: Exception) -> None:
        """Skip a row version because an operation on it failed. Log each error of a row once."""
        self.rows.add(row)
        id, _ = row
        if self._logged_errors.get(id) != str(error):
            self._logged_errors[id] = str(error)
            log_error(self.log, f"{self.noun} quarantined", **{self.noun: name}, operation=action)(error)

    def release_all(self) -> None:
        """Empty the quarantine. An error that was logged before is not logged again."""
        self._logged_errors = {id: self._logged_errors[id] for id, _ in self.rows if id in self._logged_errors}
        self.rows.clear()


@contextmanager
def isolate_errors(on_error: Callable[[Exception], None]) -> Iterator[None]:
    """Pass errors of the block to ``on_error`` and continue after it; raise connection errors."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error, DatabaseError):
            raise
        on_error(error)
    except Exception as error:  # noqa: BLE001 — an error of one row must not affect other rows
        on_error(error)


def log_error(log: Log, event: str, **fields: str) -> Callable[[Exception], None]:
    """Return a function that logs an error, with a stack trace if it is unexpected."""

    def write(error: Exception) -> None:
        write_event = log.error if isinstance(error, TenutoError) else log.exception
        write_event(event, **fields, error=str(error))

    return write


class BatchResult(Protocol):
    """Result of one transaction; ``locked_count`` is the number of rows that it locked, processed or skipped."""

    locked_count: int


@dataclass(slots=True)
class RowCounts:
    """A batch result without further data."""

    locked_count: int
    processed_count: int


T = TypeVar("T", bound=BatchResult)
ProcessRows = Callable[[Connection, int, LockedRows], Awaitable[T]]
"""Takes a connection, a maximum number of rows and a dictionary. Processes rows that are not in quarantine, and adds
those that it locks to the dictionary."""
OnFailedRow = Callable[[str, Exception], None]
"""Receives the name of a row that was put into quarantine, and the error."""


async def process_in_batches(
    database: Database,
    process_rows: ProcessRows[T],
    quarantine: Quarantine,
    action: str,
    on_failed_row: OnFailedRow = lambda name, error: None,
) -> AsyncIterator[T]:
    """Process all rows, many per transaction; yield the result of each transaction.

    If a transaction fails, its rows are processed one by one, and failing rows are put into quarantine.
    """
    locked_count = LOCKED_ROWS_PER_BATCH
    while locked_count == LOCKED_ROWS_PER_BATCH:
        results: list[T] = []
        with isolate_errors(lambda error: None):  # the rows are processed one by one below, to find the failing one
            results.append(
                await database.transaction(lambda connection: process_rows(connection, LOCKED_ROWS_PER_BATCH, {}))
            )
        if results:
            yield results[0]
            locked_count = results[0].locked_count
            continue
        locked_count = 0
        async for result in _process_one_by_one(database, process_rows, quarantine, action, on_failed_row):
            locked_count += 1
            if result is not None:
                yield result


async def _process_one_by_one(
    database: Database, process_rows: ProcessRows[T], quarantine: Quarantine, action: str, on_failed_row: OnFailedRow
) -> AsyncIterator[T | None]:
    """Process a batch of rows; yield None for each row that was put into quarantine."""
    locked: LockedRows = {}

    async def process_one(connection: Connection) -> T:
        locked.clear()  # rows of an earlier try of this transaction
        return await process_rows(connection, 1, locked)

    def quarantine_locked(error: Exception) -> None:
        if not locked:  # not the fault of a row
            raise error
        for row, name in locked.items():
            quarantine.add(row, name, action, error)
            on_failed_row(name, error)

    for _ in range(LOCKED_ROWS_PER_BATCH):
        results: list[T] = []
        locked.clear()
        with isolate_errors(quarantine_locked):
            results.append(await database.transaction(process_one))
        if results and not results[0].locked_count:
            return
        yield results[0] if results else None
