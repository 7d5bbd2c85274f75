"""Full and delta import of tables.

A read is one transaction that sees one state of the database. It streams the rows in the order of the key by a cursor:
the memory does not grow with the table, and rows with a repeated or missing key are read, too, so that the import can
refuse them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any

from tenuto_identity.connectors.contract import (
    ConnectorError,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadWarning,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.sql import statements
from tenuto_identity.connectors.sql.session import Column, ConnectionLost, Row, Session, StatementRefused
from tenuto_identity.connectors.sql.statements import Statement
from tenuto_identity.connectors.sql.tables import TypeTable
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.values import BadValue, DataType, Value, canonical_value

KEYS_PER_STATEMENT = 500


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Raise `ConnectorError` for everything that makes a read incomplete."""
    try:
        yield
    except ConnectionLost as error:
        raise ConnectorError("unreachable", f"{what}: {error}") from error
    except StatementRefused as error:
        raise ConnectorError("incomplete", f"{what}: {error.text}") from error


class TableReader:
    """Reads the tables of a scope."""

    def __init__(
        self, session: Session, tables: Sequence[TypeTable], *, database: str = "", page_size: int, overlap: float = 0
    ) -> None:
        """``database`` identifies the database in watermarks."""
        self._session = session
        self._database = database
        self._tables = tables
        self._page_size = page_size
        self._overlap = overlap

    # --- watermark --------------------------------------------------------------------------------------------------

    def newest_changes(self) -> dict[str, Any] | None:
        """Return the newest change of each table; None if a table of changes is empty and proves nothing."""
        found: dict[str, Any] = {}
        with reported("the watermark cannot be read"), self._session.snapshot():
            for table in self._tables:
                newest, _ = self._newest_and_oldest(*_change_source(table))
                if newest is None and table.change_table is not None:
                    return None
                found[table.object_type.name] = {
                    "from": _change_name(table),
                    "source": self._source_digest(table),
                    "value": newest,
                }
        return found

    def _source_digest(self, table: TypeTable) -> str:
        """Return a digest of the settings that say which rows and columns are read."""
        settings = table.settings.model_dump(mode="json")
        source = json.dumps([self._database, {**settings, "table": table.table}], sort_keys=True)
        return blake2b(source.encode(), digest_size=16).hexdigest()

    def _newest_and_oldest(self, source: str, column: Column) -> Row:
        statement = statements.newest_value(self._session.dialect, source, column)
        return self._session.fetch(statement.text, statement.parameters)[0]

    # --- reads ------------------------------------------------------------------------------------------------------

    def read_all(self) -> Iterator[ReadEvent]:
        """Yield all objects."""
        count = 0
        with reported("the import is not complete"), self._session.snapshot():
            for table in self._tables:
                for event in self._read_rows(table, self._active_rows(table)):
                    count += 1
                    yield event
        yield self._complete(count)

    def read_anchors(self, anchors: Sequence[str]) -> Iterator[ReadEvent]:
        """Yield the objects with these anchors."""
        count = 0
        with reported("the objects cannot be read"), self._session.snapshot():
            for table in self._tables:
                for start in range(0, len(anchors), KEYS_PER_STATEMENT):
                    chosen = anchors[start : start + KEYS_PER_STATEMENT]
                    keys = self._possible_keys(table, chosen)
                    if not keys:
                        continue
                    for event in self._read_rows(table, self._active_rows(table, keys)):
                        count += 1
                        yield event
        yield self._complete(count)

    def _possible_keys(self, table: TypeTable, anchors: Sequence[str]) -> list[Any]:
        """Return the anchors that can be keys of a table; the anchors of other types may be among them."""
        keys: list[Any] = []
        for each in anchors:
            with suppress(BadValue):
                keys.append(key_parameter(self._session, table, each))
        return keys

    def read_changes(self, since: Watermark) -> Iterator[ReadEvent]:
        """Yield what has changed since a watermark."""
        blind = [each.object_type.name for each in self._tables if each.change_column is not None and not each.marker]
        if blind:
            yield ReadWarning(
                "no_deletions",
                f"a delta of {', '.join(blind)} by change_column without deletion_marker does not find deletions;"
                " run a full import",
            )
        count = 0
        with reported("the delta import is not complete"), self._session.snapshot():
            for table in self._tables:
                position = self._position(table, since)
                rows = self._logged_rows if table.change_table is not None else self._changed_rows
                for event in rows(table, position):
                    count += 1
                    yield event
        yield self._complete(count, is_delta=True)

    def _complete(self, count: int, *, is_delta: bool = False) -> ReadComplete:
        names = tuple(each.object_type.name for each in self._tables)
        return ReadComplete(types=names, is_delta=is_delta, object_count=count)

    # --- queries ----------------------------------------------------------------------------------------------------

    def _active_rows(self, table: TypeTable, keys: Sequence[Any] | None = None) -> Statement:
        """Return the query of all rows that are not marked as deleted, or of those with these keys."""
        statement = statements.select(Statement(self._session.dialect), table.source, [*table.columns.values()])
        conditions = [marked_as_deleted(self._session, statement, table, negated=True)]
        if keys is not None:
            conditions.append(statements.is_one_of(statement, table.key, keys))
        return statements.order_by(statements.where(statement, conditions), table.key)

    def find_rows(
        self, table: TypeTable, values: Sequence[tuple[Column, Any]], *, includes_deleted: bool = False
    ) -> list[ImportedObject]:
        """Return the rows that have these values, within the transaction of the caller."""
        statement = statements.select(Statement(self._session.dialect), table.source, [*table.columns.values()])
        conditions = [statements.equals(statement, column, value) for column, value in values]
        if not includes_deleted:
            conditions.append(marked_as_deleted(self._session, statement, table, negated=True))
        statements.where(statement, conditions)
        return list(self._imported(table, self._session.fetch(statement.text, statement.parameters)))

    def _changed_rows(self, table: TypeTable, position: Any) -> Iterator[ReadEvent]:
        """Yield the rows whose change column is not smaller than the position, and those without a value in it."""
        column = table.change_column
        assert column is not None
        statement = Statement(self._session.dialect)
        flag = f"({marked_as_deleted(self._session, statement, table, negated=False)})"
        statements.select(statement, table.source, [table.key, *table.columns.values()], flag)
        if position is not None:
            statements.where(statement, [statements.is_at_or_after(statement, column, position, self._overlap)])
        yield from self._read_changes(table, statements.order_by(statement, column, table.key))

    def _logged_rows(self, table: TypeTable, position: Any) -> Iterator[ReadEvent]:
        """Yield the current state of the keys in the table of changes; a key without an active row is deleted."""
        log = table.change_table
        assert log is not None
        statement = Statement(self._session.dialect)
        marked = marked_as_deleted(self._session, statement, table, negated=False)
        flag = f"(source.{statements.quote(table.key.name)} IS NULL OR {marked})"
        columns = [*table.columns.values()]
        statements.select_changed(
            statement, table.source, columns, flag, table.key, log.table, log.key, log.sequence, position
        )
        yield from self._read_changes(table, statement)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _read_changes(self, table: TypeTable, statement: Statement) -> Iterator[ReadEvent]:
        """Yield rows that begin with their key and end with whether they are deleted."""
        for page in self._session.stream(statement.text, statement.parameters, self._page_size):
            active = self._active_keys(table, [row[0] for row in page if row[-1] and row[0] is not None])
            for row in page:
                if row[-1] and row[0] is not None and str(row[0]) not in active:
                    yield DeletedObject(table.object_type.name, _text(self._session.cell(row[0], table.key_attribute)))
            yield from self._imported(table, [row[1:-1] for row in page if not row[-1]])

    def _active_keys(self, table: TypeTable, keys: Sequence[Any]) -> set[str]:
        """Return those keys of rows marked as deleted that an active row has, too. It may be older than the delta."""
        found: set[str] = set()
        if table.marker is None or table.change_table is not None:  # by a table of changes, all rows of a key are read
            return found
        for start in range(0, len(keys), KEYS_PER_STATEMENT):
            statement = statements.select(Statement(self._session.dialect), table.source, [table.key])
            conditions = [
                marked_as_deleted(self._session, statement, table, negated=True),
                statements.is_one_of(statement, table.key, keys[start : start + KEYS_PER_STATEMENT]),
            ]
            statements.where(statement, conditions)
            found.update(str(row[0]) for row in self._session.fetch(statement.text, statement.parameters))
        return found

    def _read_rows(self, table: TypeTable, statement: Statement) -> Iterator[ReadEvent]:
        for page in self._session.stream(statement.text, statement.parameters, self._page_size):
            yield from self._imported(table, page)

    def _imported(self, table: TypeTable, rows: Sequence[Row]) -> Iterator[ImportedObject]:
        lists = self._read_lists(table, rows)
        attributes = table.object_type.attributes
        positions = {name: index for index, name in enumerate(table.columns)}
        key_index = positions[table.object_type.anchor]
        address_index = positions.get(table.object_type.address or "", key_index)
        for row in rows:
            cells: dict[str, tuple[str | bytes, ...]] = {}
            for name, attribute in attributes.items():
                if name in positions:
                    cell = self._session.cell(row[positions[name]], attribute)
                    if cell is not None:
                        cells[name] = (cell,)
                elif found := lists[name].get(str(row[key_index])):
                    cells[name] = tuple(found)
            anchor = _text(self._session.cell(row[key_index], table.key_attribute))
            address_attribute = attributes.get(table.object_type.address or "", table.key_attribute)
            address = _text(self._session.cell(row[address_index], address_attribute)).strip()
            yield ImportedObject(table.object_type.name, anchor, address, "", cells)

    def _read_lists(self, table: TypeTable, rows: Sequence[Row]) -> dict[str, dict[str, list[str | bytes]]]:
        """Return the values of the multi-valued attributes of these rows, by attribute and key."""
        if not table.lists:
            return {}
        key_index = list(table.columns).index(table.object_type.anchor)
        keys = [row[key_index] for row in rows if row[key_index] is not None]
        return {name: self._read_list(table, name, keys) for name in table.lists}

    def _read_list(self, table: TypeTable, name: str, keys: Sequence[Any]) -> dict[str, list[str | bytes]]:
        found: dict[
            str, list[str | bytes]
        ] = {}  # by the text of the key: SQLite may store it as a number here or there
        attribute: Attribute = table.object_type.attributes[name]
        columns = table.lists[name]
        for start in range(0, len(keys), KEYS_PER_STATEMENT):
            source = statements.source_of(columns.table, None)
            statement = statements.select(Statement(self._session.dialect), source, [columns.key, columns.value])
            chosen = keys[start : start + KEYS_PER_STATEMENT]
            statements.where(statement, [statements.is_one_of(statement, columns.key, chosen)])
            for key, value in self._session.fetch(statement.text, statement.parameters):
                cell = self._session.cell(value, attribute)
                if cell is not None:
                    found.setdefault(str(key), []).append(cell)
        for values in found.values():
            values.sort(key=repr)  # equal sets must have equal fingerprints
        return found

    # --- position ---------------------------------------------------------------------------------------------------

    def _position(self, table: TypeTable, since: Watermark) -> Any:
        """Return the value after which changes are read; raise `WatermarkLost` if changes may be missing."""
        known = since.get("types", {}).get(table.object_type.name)
        if known is None or known.get("from") != _change_name(table):
            raise WatermarkLost(f"the watermark does not cover {_change_name(table)} of {table.object_type.name}")
        if known.get("source") != self._source_digest(table):  # guard: identity.sql_changed_source
            raise WatermarkLost(f"the watermark is of another database, table or query of {table.object_type.name}")
        position = known.get("value")
        if table.change_table is None:
            return position
        newest, oldest = self._newest_and_oldest(*_change_source(table))
        # guard: identity.sql_purged_changes
        if newest is None or int(oldest) > int(position) or int(newest) < int(position):
            name = ".".join(table.change_table.table)
            raise WatermarkLost(
                f"the table {name} has no change {position} any more, so later ones may be missing, too"
            )
        return position


def marked_as_deleted(session: Session, statement: Statement, table: TypeTable, *, negated: bool) -> str:
    """Return the condition that a row is marked as deleted, or that it is not."""
    marker = table.settings.deletion_marker
    if marker is None or table.marker is None:
        return "1 = 1" if negated else "1 = 0"
    return statements.is_deleted(statement, marker, table.marker, session.marker(marker.deleted), negated=negated)


def key_parameter(session: Session, table: TypeTable, anchor: str) -> Any:
    """Return an anchor as a parameter of the key column; raise `BadValue` if it cannot be a key."""
    value: Value = anchor
    if table.key_attribute.type is DataType.INTEGER:
        value = canonical_value(anchor, DataType.INTEGER)
    elif table.key.data_type in (DataType.INTEGER, DataType.GUID):
        canonical_value(anchor, table.key.data_type)
    return session.parameter(value, table.key_attribute, table.key)


def unsettled_warning() -> ReadWarning:
    """Return the warning that the watermark of an earlier import is kept."""
    return ReadWarning(
        "watermark_unsettled",
        "transactions that were open when the import began have not ended; the earlier watermark is kept,"
        " and the next delta import reads more changes again",
    )


def _change_source(table: TypeTable) -> tuple[str, Column]:
    if table.change_table is not None:
        return statements.source_of(table.change_table.table, None), table.change_table.sequence
    assert table.change_column is not None
    return table.source, table.change_column


def _change_name(table: TypeTable) -> str:
    if table.change_table is not None:
        return f"the table {'.'.join(table.change_table.table)}"
    return f"the column {table.change_column.name if table.change_column is not None else ''}"


def _text(cell: str | bytes | None) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return cell or ""
