"""Sessions on SQLite files.

SQLite calls block. The runs call a connector in a thread, so the event loop of the worker is never blocked.
"""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote as quote_url

from tenuto.clock import SystemClock, monotonic_seconds
from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.sql.session import Column, ConnectionLost, Dialect, RefusalKind, Row, StatementRefused
from tenuto_identity.connectors.sql.settings import TableName
from tenuto_identity.connectors.sql.statements import all_columns, quote
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.values import BadValue, DataType, Value, canonical_value

DIALECT = Dialect(
    parameter="?{number}",
    typed_parameter="?{number}",
    text_column="{column}",
    binary_column="{column}",
    differs="IS NOT",
    newest_time="max({column})",
    # A value that is not a time as SQLite knows it has everything read again.
    earlier_time="coalesce(datetime({value}, '-' || {overlap} || ' seconds'), '')",
    earlier_number="({value} - {overlap})",
)
_VM_STEPS_PER_CHECK = 10_000
_UNUSABLE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
_LOST = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})


class SqliteSession:
    """A connection to a SQLite file."""

    dialect = DIALECT

    def __init__(self, path: Path, *, read_only: bool, timeout_seconds: float) -> None:
        self._path = path
        self._read_only = read_only
        self._timeout_seconds = timeout_seconds
        self._opened: sqlite3.Connection | None = None
        self._deadline = 0.0

    # --- structure --------------------------------------------------------------------------------------------------

    def describe(self, source: str, table: TableName | None) -> list[Column]:
        if table is not None:
            schema = f"{quote(table[0])}." if len(table) == 2 else ""
            found = self.fetch(f"PRAGMA {schema}table_xinfo({quote(table[-1])})")
            # hidden: 1 is a column of a virtual table, 2 and 3 are generated columns
            return [
                _column(str(name), str(declared), is_writable=not hidden) for _, name, declared, *_, hidden in found
            ]
        with self._translated():
            cursor = self._start(all_columns(source), ())
            return [Column(str(each[0]), "any") for each in cursor.description]

    def list_tables(self) -> list[tuple[TableName, str | None]]:
        names = self.fetch(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            " ORDER BY name"
        )
        tables: list[tuple[TableName, str | None]] = []
        for (name,) in names:
            keys = [row[1] for row in self.fetch(f"PRAGMA table_info({quote(str(name))})") if row[5]]
            tables.append(((str(name),), str(keys[0]) if len(keys) == 1 else None))
        return tables

    # --- transactions -----------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._between("BEGIN", "COMMIT", "ROLLBACK"):
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        # Immediately: a transaction that begins to write later fails if another one has written meanwhile.
        with self._between("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"):
            yield

    def limit_lock_waits(self) -> None:
        """A transaction that writes has the only lock from its begin."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with self._between("SAVEPOINT request", "RELEASE request", "ROLLBACK TO request; RELEASE request"):
            yield

    @contextmanager
    def _between(self, begin: str, end: str, undo: str) -> Iterator[None]:
        self.execute(begin)
        try:
            yield
            self.execute(end)
        except BaseException:
            if self._opened is not None and self._opened.in_transaction:
                for each in undo.split(";"):
                    self._opened.execute(each)
            raise

    # --- statements -------------------------------------------------------------------------------------------------

    def stream(self, statement: str, parameters: Sequence[Any], page_size: int) -> Iterator[list[Row]]:
        with self._translated():
            cursor = self._start(statement, parameters)
        try:
            while True:
                with self._translated():
                    self._deadline = monotonic_seconds() + self._timeout_seconds
                    page: list[Row] = cursor.fetchmany(page_size)
                if not page:
                    return
                yield page
        finally:
            cursor.close()

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            return self._start(statement, parameters).fetchall()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with self._translated():
            return self._start(statement, parameters).rowcount

    def _start(self, statement: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        self._deadline = monotonic_seconds() + self._timeout_seconds
        return self._connection.execute(statement, tuple(parameters))

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            if not self._path.is_file():
                raise ConnectorError("unreachable", f"there is no file {self._path}", remedy="create it first")
            mode = "ro" if self._read_only else "rw"  # guard: identity.sql_read_only_file
            connection = sqlite3.connect(
                f"file:{quote_url(str(self._path))}?mode={mode}",
                uri=True,
                timeout=self._timeout_seconds,
                isolation_level=None,
                check_same_thread=False,  # a connector is called by different threads, one at a time
            )
            # Text that is not UTF-8 becomes an error of its value, not of the whole import.
            connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
            connection.set_progress_handler(self._is_late, _VM_STEPS_PER_CHECK)
            connection.execute("PRAGMA foreign_keys = ON")
            self._opened = connection
        return self._opened

    def _is_late(self) -> int:
        return int(monotonic_seconds() >= self._deadline)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the driver."""
        try:
            yield
        except OverflowError:
            raise StatementRefused(RefusalKind.VALUE, "a number is larger than SQLite can store") from None
        except UnicodeEncodeError:
            raise StatementRefused(RefusalKind.VALUE, "a text contains a lone surrogate") from None
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> Exception:
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        text = str(error)
        if code in _UNUSABLE:
            return ConnectorError("unreachable", f"cannot open or read the SQLite file {self._path}: {text}")
        if code in _LOST:
            return ConnectionLost(f"{self._path} cannot be accessed: {text}")
        if code in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            late = f"the statement took longer than {self._timeout_seconds:g} s"
            return StatementRefused(RefusalKind.TIMEOUT, late if code == sqlite3.SQLITE_INTERRUPT else text)
        if extended in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            return StatementRefused(RefusalKind.UNIQUE, text)
        if extended == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            return StatementRefused(RefusalKind.FOREIGN_KEY, text)
        if code in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG):
            return StatementRefused(RefusalKind.VALUE, text)
        return StatementRefused(RefusalKind.OTHER, text)

    # --- values -----------------------------------------------------------------------------------------------------

    def cell(self, value: Any, attribute: Attribute) -> str | bytes | None:
        if value is None or isinstance(value, str | bytes):
            return value
        if isinstance(value, float) and value.is_integer() and attribute.type is not DataType.TEXT:
            return str(int(value))
        return str(value)

    def parameter(self, value: Value, attribute: Attribute, column: Column) -> Any:
        if isinstance(value, bool):
            return ("true" if value else "false") if column.data_type is DataType.TEXT else int(value)
        if isinstance(value, str) and column.data_type in (DataType.INTEGER, DataType.DECIMAL):
            # SQLite would store any text in a column of numbers.
            try:
                canonical_value(value, column.data_type)
            except BadValue as error:
                raise BadValue(f"column {column.name} ({column.type_name}): {error}") from None
        return base64.b64decode(str(value)) if attribute.type is DataType.BINARY else value

    def marker(self, value: bool | int | str | None) -> Any:
        return int(value) if isinstance(value, bool) else value

    def current_time(self) -> Any:
        return SystemClock().now().strftime("%Y-%m-%d %H:%M:%S")

    def wait_for_writers(self, seconds: float) -> bool:
        return True  # one transaction writes at a time, so changes are committed in their order

    def check_login(self) -> None:
        """A file has no login."""

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _column(name: str, declared: str, *, is_writable: bool) -> Column:
    found = _data_type(declared)
    return Column(name, declared or "any", found, is_writable=is_writable, holds_booleans=found is DataType.INTEGER)


def _data_type(declared: str) -> DataType | None:
    """Return the data type of a declared type, by the rules of type affinity and a few usual names."""
    name = declared.upper()
    if "BOOL" in name:
        return DataType.BOOLEAN
    if "DATETIME" in name or "TIMESTAMP" in name:
        return DataType.DATETIME
    if name.startswith("DATE"):
        return DataType.DATE
    if "INT" in name:
        return DataType.INTEGER
    if "CHAR" in name or "CLOB" in name or "TEXT" in name:
        return DataType.TEXT
    if "BLOB" in name:
        return DataType.BINARY
    if any(part in name for part in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return DataType.DECIMAL
    return None
