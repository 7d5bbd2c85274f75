"""The only place that writes SQL statements: it quotes identifiers and passes values as parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenuto_identity.connectors.sql.session import Column, Dialect
from tenuto_identity.connectors.sql.settings import DeletionMarker, TableName
from tenuto_identity.model.values import DataType


def quote(name: str) -> str:
    """Return a quoted identifier. A NUL character, which ends a statement in some drivers, is refused."""
    if "\x00" in name or not name:
        raise ValueError(f"{name!r:.60} is not the name of a table or column")
    return '"' + name.replace('"', '""') + '"'  # guard: identity.sql_quoted_identifiers


def quote_table(table: TableName) -> str:
    """Return the quoted name of a table."""
    return ".".join(quote(part) for part in table)


def source_of(table: TableName | None, query: str | None) -> str:
    """Return a table or query as it is written in FROM."""
    if query is not None:
        return f"(\n{query}\n)"  # a comment at the end of the query must not include the parenthesis
    assert table is not None
    return quote_table(table)


def all_columns(source: str) -> str:
    """Return a query that has the columns of a source and no rows."""
    return f"SELECT * FROM {source} AS source LIMIT 0"


@dataclass
class Statement:
    """A statement and its parameters. Parts are appended as text; values become parameters."""

    dialect: Dialect
    text: str = ""
    parameters: list[Any] = field(default_factory=list)

    def add(self, text: str) -> Statement:
        """Append text that this module has written."""
        self.text += text
        return self

    def value(self, value: Any, column: Column | None = None) -> str:
        """Add a parameter and return its placeholder, with the type of its column."""
        self.parameters.append(value)
        form = self.dialect.parameter if column is None else self.dialect.typed_parameter
        return form.format(number=len(self.parameters), type=column.type_name if column else "")

    def values(self, values: Iterable[Any], column: Column) -> str:
        return ", ".join(self.value(each, column) for each in values)


def read_column(dialect: Dialect, column: Column, alias: str = "source") -> str:
    """Return a column as it is selected."""
    form = dialect.binary_column if column.data_type is DataType.BINARY else dialect.text_column
    return form.format(column=f"{alias}.{quote(column.name)}")


def is_deleted(statement: Statement, marker: DeletionMarker, column: Column, value: Any, *, negated: bool) -> str:
    """Return the condition that a row is marked as deleted, or that it is not."""
    name = f"source.{quote(column.name)}"
    if marker.deleted is None:
        return f"{name} IS NULL" if negated else f"{name} IS NOT NULL"
    differs = f"{name} {statement.dialect.differs} {statement.value(value, column)}"
    return differs if negated else f"NOT ({differs})"


def select(statement: Statement, source: str, columns: Sequence[Column], flag: str | None = None) -> Statement:
    """Begin a query of columns, and of a condition if it is given; conditions and order are added by the caller."""
    selected = [read_column(statement.dialect, each) for each in columns]
    return statement.add(f"SELECT {', '.join([*selected, flag] if flag else selected)} FROM {source} AS source")


def where(statement: Statement, conditions: Sequence[str]) -> Statement:
    return statement.add(" WHERE " + " AND ".join(conditions)) if conditions else statement


def order_by(statement: Statement, *columns: Column) -> Statement:
    return statement.add(" ORDER BY " + ", ".join(f"source.{quote(each.name)}" for each in columns))


def equals(statement: Statement, column: Column, value: Any) -> str:
    return f"source.{quote(column.name)} = {statement.value(value, column)}"


def is_one_of(statement: Statement, column: Column, values: Iterable[Any]) -> str:
    return f"source.{quote(column.name)} IN ({statement.values(values, column)})"


def is_at_or_after(statement: Statement, column: Column, value: Any, overlap: float) -> str:
    """Return the condition that a row was changed at a value of its change column, after it, or at an unknown time."""
    name = f"source.{quote(column.name)}"
    limit = statement.value(value, column)
    if overlap:
        is_time = column.data_type in (DataType.DATE, DataType.DATETIME) or isinstance(value, str)
        is_time = is_time and column.data_type not in (DataType.INTEGER, DataType.DECIMAL)
        form = statement.dialect.earlier_time if is_time else statement.dialect.earlier_number
        limit = form.format(value=limit, overlap=statement.value(f"{overlap:f}" if is_time else overlap))
    # Inclusive: other rows may have been changed at the same instant after the watermark was taken.
    return f"({name} >= {limit} OR {name} IS NULL)"  # guard: identity.sql_inclusive_watermark


def newest_value(dialect: Dialect, source: str, column: Column) -> Statement:
    """Query the largest and the smallest value of a column, as text or as stored."""
    name = f"source.{quote(column.name)}"
    largest = f"max({name})"
    if column.data_type in (DataType.DATE, DataType.DATETIME):
        largest = f"({dialect.newest_time.format(column=name, type=column.type_name)})"
    newest, oldest = (dialect.text_column.format(column=each) for each in (largest, f"min({name})"))
    return Statement(dialect).add(f"SELECT {newest}, {oldest} FROM {source} AS source")


def select_changed(
    statement: Statement,
    source: str,
    columns: Sequence[Column],
    flag: str,
    key: Column,
    log: TableName,
    log_key: Column,
    sequence: Column,
    since: Any,
) -> Statement:
    """Query the current rows of the keys in a table of changes; the first column is the key of the change."""
    dialect = statement.dialect
    selected = ", ".join([*(read_column(dialect, each) for each in columns), flag])
    log_name, key_name = quote(log_key.name), quote(key.name)
    return statement.add(
        f"SELECT {dialect.text_column.format(column=f'changed.{log_name}')}, {selected}"
        f" FROM (SELECT DISTINCT {log_name} FROM {quote_table(log)}"
        f" WHERE {quote(sequence.name)} > {statement.value(since, sequence)}) AS changed"
        f" LEFT JOIN {source} AS source ON source.{key_name} = changed.{log_name}"
        f" ORDER BY changed.{log_name}"
    )


def _returning(dialect: Dialect, columns: Sequence[Column]) -> str:
    return " RETURNING " + ", ".join(dialect.text_column.format(column=quote(each.name)) for each in columns)


def insert(
    dialect: Dialect, table: TableName, values: Sequence[tuple[Column, Any]], returned: Sequence[Column]
) -> Statement:
    """Insert a row and return some of its columns."""
    statement = Statement(dialect)
    returning = _returning(dialect, returned)
    if not values:
        return statement.add(f"INSERT INTO {quote_table(table)} DEFAULT VALUES{returning}")
    names = ", ".join(quote(column.name) for column, _ in values)
    places = ", ".join(statement.value(value, column) for column, value in values)
    return statement.add(f"INSERT INTO {quote_table(table)} ({names}) VALUES ({places}){returning}")


def update(
    statement: Statement,
    table: TableName,
    values: Sequence[tuple[Column, Any]],
    conditions: Sequence[str],
    returned: Sequence[Column],
) -> Statement:
    """Change columns of the rows that meet the conditions, and return some columns of each."""
    assigned = ", ".join(f"{quote(column.name)} = {statement.value(value, column)}" for column, value in values)
    statement.add(f"UPDATE {quote_table(table)} AS source SET {assigned}")
    return where(statement, conditions).add(_returning(statement.dialect, returned))


def delete(dialect: Dialect, table: TableName, column: Column, value: Any) -> Statement:
    """Delete the rows with a value in a column."""
    statement = Statement(dialect)
    return statement.add(
        f"DELETE FROM {quote_table(table)} WHERE {quote(column.name)} = {statement.value(value, column)}"
    )


def delete_values(
    dialect: Dialect, table: TableName, owner: Column, anchor: Any, column: Column, values: Sequence[Any]
) -> Statement:
    """Delete values of one object from a table of values."""
    statement = Statement(dialect)
    return statement.add(
        f"DELETE FROM {quote_table(table)} WHERE {quote(owner.name)} = {statement.value(anchor, owner)}"
        f" AND {quote(column.name)} IN ({statement.values(values, column)})"
    )
