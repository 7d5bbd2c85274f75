"""What the connector needs of a database session. `postgresql` and `sqlite` implement it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tenuto_identity.connectors.sql.settings import TableName
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.values import DataType, Value

Row = Sequence[Any]
"""Values of a row in the order of the selected columns."""


class RefusalKind(StrEnum):
    """Why a database refused a statement."""

    UNIQUE = "unique"
    FOREIGN_KEY = "foreign_key"
    TIMEOUT = "timeout"
    """The statement took too long, waiting for locks included."""
    BUSY = "busy"
    """Another transaction has a lock or caused a conflict; the same statement may succeed later."""
    VALUE = "value"
    """A value does not fit its column."""
    OTHER = "other"


class StatementRefused(Exception):
    """The database refused a statement; the session can be used further."""

    def __init__(self, kind: RefusalKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class ConnectionLost(Exception):
    """The connection ended; the transaction was rolled back, or its commit may have taken effect."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, a view or a query."""

    name: str
    type_name: str
    """As the database writes it."""
    data_type: DataType | None = None
    """Type of attribute that fits best; None if the database does not say."""
    is_writable: bool = True
    """False for columns that the database computes."""
    holds_booleans: bool = False
    """A column of numbers that may hold booleans as 0 and 1."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How statements of one kind of database are written."""

    parameter: str
    """Placeholder of a parameter, with its number."""
    typed_parameter: str
    """Placeholder of a parameter that is compared with or stored into a column, with number and type of the column."""
    text_column: str
    """A column as it is read, with its quoted name."""
    binary_column: str
    differs: str
    """Operator that is true for different values, also if one of them is NULL."""
    newest_time: str
    """The largest time of a column, with its type. A time in the future must not hide later changes."""
    earlier_time: str
    """The time ``{value}`` less ``{overlap}`` seconds."""
    earlier_number: str


class Session(Protocol):
    """A connection that is opened when it is needed first."""

    dialect: Dialect

    def describe(self, source: str, table: TableName | None) -> list[Column]:
        """Return the columns of a source, as it is written in FROM; ``table`` is its name if it is a table or view."""
        ...

    def list_tables(self) -> list[tuple[TableName, str | None]]:
        """Return tables and views with their key column: the only column of the primary key, or None."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Begin a read-only transaction in which every statement sees the same state."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction that writes."""
        ...

    def limit_lock_waits(self) -> None:
        """Let the other statements of this transaction wait for locks only for a moment."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Begin a savepoint: if the block fails, only its statements are rolled back."""
        ...

    def stream(self, statement: str, parameters: Sequence[Any], page_size: int) -> Iterator[list[Row]]:
        """Yield the rows of a query in pages, within a snapshot."""
        ...

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a statement."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Execute a statement and return the number of rows that it changed."""
        ...

    def cell(self, value: Any, attribute: Attribute) -> str | bytes | None:
        """Convert a database value to the text or bytes of a cell of an import row."""
        ...

    def parameter(self, value: Value, attribute: Attribute, column: Column) -> Any:
        """Convert a value of an attribute to a parameter of a statement."""
        ...

    def marker(self, value: bool | int | str | None) -> Any:
        """Return the value of a deletion marker as a parameter."""
        ...

    def current_time(self) -> Any:
        """Return the time of the database as a parameter of a column with times."""
        ...

    def wait_for_writers(self, seconds: float) -> bool:
        """Wait until all transactions that are open now have ended; return False if some have not."""
        ...

    def check_login(self) -> None:
        """Raise `ConnectorError` if the login has more rights than a connector may have."""
        ...

    def close(self) -> None:
        """Close the connection. It is opened again if it is needed."""
        ...
