"""Export to tables: one transaction for each batch; a request that the database refuses is undone alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenuto_identity.connectors.contract import (
    ConnectorError,
    ImportedObject,
    WriteChange,
    WriteRequest,
    WriteResult,
    missing,
    refused,
)
from tenuto_identity.connectors.sql import statements
from tenuto_identity.connectors.sql.session import Column, ConnectionLost, RefusalKind, Row, Session, StatementRefused
from tenuto_identity.connectors.sql.settings import TableName
from tenuto_identity.connectors.sql.statements import Statement
from tenuto_identity.connectors.sql.table_reader import (
    KEYS_PER_STATEMENT,
    TableReader,
    key_parameter,
    marked_as_deleted,
)
from tenuto_identity.connectors.sql.tables import ListColumns, TypeTable
from tenuto_identity.model.decoding import Decoding, canonical_anchor, decode_object
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import BadValue, Value

MAX_TIMEOUTS = 2
"""How many requests of a batch may take longer than the timeout before the batch is given up."""
_BUSY = (RefusalKind.TIMEOUT, RefusalKind.BUSY)
_ListChanges = dict[str, list[WriteChange]]
"""Multi-valued attribute → changes, in their order."""


class _Refusal(Exception):
    """A request cannot be executed; its part of the transaction is undone."""

    def __init__(self, result: WriteResult) -> None:
        super().__init__(result.text)
        self.result = result


def _refuse(error: str, text: str, *, anchor: str | None = None) -> _Refusal:
    return _Refusal(refused(error, text, anchor=anchor))


class TableWriter:
    """Writes requests into tables."""

    def __init__(self, session: Session, tables: Mapping[str, TypeTable], *, page_size: int) -> None:
        self._session = session
        self._tables = tables
        self._reader = TableReader(session, list(tables.values()), page_size=page_size)

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        """Send a batch. After a lost connection it is sent again once: the first attempt may have taken effect."""
        try:
            return self._write_batch(requests)
        except ConnectionLost:
            pass
        try:
            return self._write_batch([_as_uncertain(each) for each in requests])
        except ConnectionLost as error:
            raise ConnectorError("unreachable", str(error), remedy="the export is repeated by the next run") from error

    def _write_batch(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        """Execute a batch in one transaction; if a request is refused, again with a savepoint for each request.

        Without savepoints, which refusals alone need, a request takes half the round trips."""
        try:
            with self._session.transaction():
                return [self._write_one(request) for request in requests]
        except _Refusal:
            return self._write_with_savepoints(requests)
        except StatementRefused as error:
            return self._write_with_savepoints(requests, is_busy=error.kind in _BUSY)

    def _write_with_savepoints(self, requests: Sequence[WriteRequest], *, is_busy: bool = False) -> list[WriteResult]:
        """Execute a batch with a savepoint for each request. ``is_busy``: a statement has waited too long already, so
        that the others wait for locks only for a moment."""
        late: dict[int, WriteResult] = {}
        """Requests whose statements took too long, by position."""
        while len(late) < MAX_TIMEOUTS:
            results: list[WriteResult] = []
            has_begun = False
            try:
                with self._session.transaction():
                    has_begun = True
                    if is_busy:
                        self._session.limit_lock_waits()
                    for position, request in enumerate(requests):
                        results.append(late.get(position) or self._write_separately(request))
                return results
            except StatementRefused as error:
                if not has_begun and error.kind in _BUSY:
                    raise ConnectorError("busy", f"the database is busy: {error.text}") from error
                if error.kind not in _BUSY:
                    if len(requests) == 1:
                        return [_result_of(error, requests[0], self._tables.get(requests[0].type))]
                    break
                if len(results) == len(requests):  # the commit failed
                    return [missing("busy", error.text)] * len(requests)
                if is_busy:
                    late[len(results)] = missing("busy", error.text)
                is_busy = True
        else:
            # Each further request could take as long.
            return [missing("busy", "other requests of the batch took too long")] * len(requests)
        # The database refused the commit, for example by a deferred constraint: find the requests that cause it.
        return [result for each in requests for result in self._write_with_savepoints([each])]

    def _write_separately(self, request: WriteRequest) -> WriteResult:
        """Execute a request; if it is refused, the other requests of the batch stay."""
        try:
            with self._session.savepoint():  # guard: identity.sql_request_savepoint
                return self._write_one(request)
        except _Refusal as refusal:
            return refusal.result
        except StatementRefused as error:
            if error.kind is RefusalKind.TIMEOUT:
                raise
            return _result_of(error, request, self._tables.get(request.type))

    def _write_one(self, request: WriteRequest) -> WriteResult:
        table = self._tables.get(request.type)
        if table is None:
            raise _refuse("refused", f"the type {request.type} is not selected")
        if table.table is None:
            raise _refuse("refused", f"the type {request.type} is read by a query, which cannot be written")
        try:
            match request.kind:
                case ExportKind.CREATE:
                    return self._create(table, request)
                case ExportKind.UPDATE:
                    return self._update(table, request)
                case ExportKind.DELETE:
                    return self._delete(table, request)
        except BadValue as error:
            raise _refuse("refused", str(error)) from None

    # --- create -----------------------------------------------------------------------------------------------------

    def _create(self, table: TypeTable, request: WriteRequest) -> WriteResult:
        anchor = request.anchor or _new_anchor(table, request)
        values, lists = self._split(table, request)
        if anchor is None:
            found = self._find_without_key(table, request, values)
        else:
            key = key_parameter(self._session, table, anchor)
            found = self._reader.find_rows(table, [(table.key, key)], includes_deleted=True)
            values = {table.key: key, **values}
        if not found:
            return self._insert(table, values, lists)
        active = self._reader.find_rows(table, [(table.key, key_parameter(self._session, table, found[0].anchor))])
        if not active:
            return self._restore(table, found[0], values, lists)
        if not _has_values(table, active[0], request.changes):  # guard: identity.sql_foreign_row
            other = active[0].anchor
            raise _refuse("exists", f"there is a row {other!r} with other values already", anchor=other)
        return WriteResult(anchor=active[0].anchor, address=active[0].address)

    def _insert(self, table: TypeTable, values: dict[Column, Any], lists: _ListChanges) -> WriteResult:
        marker = table.settings.deletion_marker
        if marker is not None and table.marker is not None and marker.active is not None:
            values[table.marker] = self._session.marker(marker.active)
        returned = [table.key, _address_column(table)]
        inserted = statements.insert(self._session.dialect, _name(table), list(values.items()), returned)
        ((key, address),) = self._session.fetch(inserted.text, inserted.parameters)
        self._write_lists(table, key, lists)
        return self._result(table, key, address)

    def _find_without_key(
        self, table: TypeTable, request: WriteRequest, values: Mapping[Column, Any]
    ) -> list[ImportedObject]:
        """Return the row of a create whose key the database gives: by its address, or by all values that were sent."""
        address = table.columns.get(table.object_type.address or "")
        if address is not None and values.get(address) is not None:
            return self._reader.find_rows(table, [(address, values[address])])
        known = [(column, value) for column, value in values.items() if value is not None]
        if not request.uncertain or not known:
            return []
        found = self._reader.find_rows(table, known)
        if len(found) > 1:
            raise _refuse("exists", "an earlier attempt may have inserted the row, and several rows have its values")
        return found

    def _restore(
        self, table: TypeTable, found: ImportedObject, values: dict[Column, Any], lists: _ListChanges
    ) -> WriteResult:
        """Use a row again that is marked as deleted."""
        marker = table.settings.deletion_marker
        assert marker is not None
        assert table.marker is not None
        values[table.marker] = self._session.marker(marker.active)
        values.pop(table.key, None)
        key = key_parameter(self._session, table, found.anchor)
        ((_, address),) = self._change_rows(table, key, values, includes_deleted=True)
        self._write_lists(table, key, lists)
        return self._result(table, key, address)

    # --- update and delete ------------------------------------------------------------------------------------------

    def _update(self, table: TypeTable, request: WriteRequest) -> WriteResult:
        if not request.anchor:
            raise _refuse("refused", f"the object {request.address!r} has no {table.object_type.anchor}")
        key = key_parameter(self._session, table, request.anchor)
        values, lists = self._split(table, request)
        if values.pop(table.key, key) != key:
            raise _refuse("refused", f"the key {table.key.name} of a row cannot be changed")
        self._keep_other_values(table, request, values)
        rows = self._change_rows(table, key, values or {table.key: key})
        if not rows:
            raise _refuse("refused", f"there is no row {request.anchor!r}")
        if len(rows) > 1:  # guard: identity.sql_unique_key
            raise _refuse("refused", f"there are {len(rows)} rows {request.anchor!r}; the key must be unique")
        self._write_lists(table, key, lists)
        return self._result(table, *rows[0])

    def _keep_other_values(self, table: TypeTable, request: WriteRequest, values: dict[Column, Any]) -> None:
        """Keep the value of a column from which another value is to be removed."""
        removals = [each for each in request.changes if each.op is ChangeOp.REMOVE and each.attribute in table.columns]
        if not removals:
            return
        found = self._reader.find_rows(table, [(table.key, key_parameter(self._session, table, request.anchor or ""))])
        for each in removals:
            if found and not _has_values(table, found[0], [WriteChange(each.attribute, ChangeOp.SET, each.values)]):
                values.pop(table.columns[each.attribute], None)

    def _change_rows(
        self, table: TypeTable, key: Any, values: Mapping[Column, Any], *, includes_deleted: bool = False
    ) -> Sequence[Row]:
        """Change the row with a key; return key and address of each changed row."""
        statement = Statement(self._session.dialect)
        conditions = [statements.equals(statement, table.key, key)]
        if not includes_deleted:
            conditions.append(marked_as_deleted(self._session, statement, table, negated=True))
        returned = [table.key, _address_column(table)]
        statements.update(statement, _name(table), list(values.items()), conditions, returned)
        return self._session.fetch(statement.text, statement.parameters)

    def _delete(self, table: TypeTable, request: WriteRequest) -> WriteResult:
        result = WriteResult(anchor=request.anchor, address=request.address)
        if not request.anchor:
            return result
        key = key_parameter(self._session, table, request.anchor)
        marker = table.settings.deletion_marker
        if marker is not None and table.marker is not None:
            value = self._session.current_time() if marker.deleted is None else self._session.marker(marker.deleted)
            rows = len(self._change_rows(table, key, {table.marker: value}))
        else:
            for columns in table.lists.values():
                emptied = statements.delete(self._session.dialect, columns.table, columns.key, key)
                self._session.execute(emptied.text, emptied.parameters)
            deleted = statements.delete(self._session.dialect, _name(table), table.key, key)
            rows = self._session.execute(deleted.text, deleted.parameters)
        if rows > 1:
            raise _refuse("refused", f"there are {rows} rows {request.anchor!r}; the key must be unique")
        return result

    # --- values -----------------------------------------------------------------------------------------------------

    def _split(self, table: TypeTable, request: WriteRequest) -> tuple[dict[Column, Any], _ListChanges]:
        """Return the new values of columns, and the changes of multi-valued attributes."""
        values: dict[Column, Any] = {}
        lists: _ListChanges = {}
        for change in request.changes:
            name = change.attribute
            if change.op is ChangeOp.RENAME:
                name = table.object_type.address or ""
                if name not in table.columns:
                    continue  # the address is the key, which stays
            if name in table.lists:
                lists.setdefault(name, []).append(change)
                continue
            column = table.columns.get(name)
            if column is None:
                raise _refuse("refused", f"there is no column {name}")
            if not column.is_writable:
                raise _refuse("refused", f"the database computes the column {column.name}")
            values[column] = self._parameter(table.object_type.attributes[name], column, change)
        return values, lists

    def _parameter(self, attribute: Attribute, column: Column, change: WriteChange) -> Any:
        if change.op in (ChangeOp.CLEAR, ChangeOp.REMOVE) or not change.values:
            return None
        if len(change.values) > 1:
            raise BadValue(f"the column {column.name} takes one value, not {len(change.values)}")
        return self._session.parameter(change.values[0], attribute, column)

    def _write_lists(self, table: TypeTable, key: Any, lists: _ListChanges) -> None:
        """Change the rows of multi-valued attributes; several changes of one attribute build on each other."""
        for name, change in ((name, change) for name, changes in lists.items() for change in changes):
            columns, attribute = table.lists[name], table.object_type.attributes[name]
            sent = [self._session.parameter(value, attribute, columns.value) for value in change.values]
            sent = list(dict.fromkeys(sent))
            match change.op:
                case ChangeOp.ADD:
                    known = self._list_values(columns, key, sent)
                    self._insert_values(columns, key, [each for each in sent if str(each) not in known])
                case ChangeOp.REMOVE:
                    self._delete_values(columns, key, sent)
                case ChangeOp.SET | ChangeOp.CLEAR | ChangeOp.RENAME:
                    known = self._list_values(columns, key, None)
                    kept = {str(each) for each in sent}
                    self._delete_values(columns, key, [value for text, value in known.items() if text not in kept])
                    self._insert_values(columns, key, [each for each in sent if str(each) not in known])

    def _list_values(self, columns: ListColumns, key: Any, chosen: Sequence[Any] | None) -> dict[str, Any]:
        """Return the values that an object has, by their text: all, or those among the chosen ones."""
        found: dict[str, Any] = {}
        size = KEYS_PER_STATEMENT
        parts = [None] if chosen is None else [chosen[start : start + size] for start in range(0, len(chosen), size)]
        for part in parts:
            source = statements.source_of(columns.table, None)
            statement = statements.select(Statement(self._session.dialect), source, [columns.value])
            conditions = [statements.equals(statement, columns.key, key)]
            if part is not None:
                conditions.append(statements.is_one_of(statement, columns.value, part))
            statements.where(statement, conditions)
            rows = self._session.fetch(statement.text, statement.parameters)
            found.update((str(row[0]), row[0]) for row in rows if row[0] is not None)
        return found

    def _insert_values(self, columns: ListColumns, key: Any, values: Iterable[Any]) -> None:
        for value in values:
            row = [(columns.key, key), (columns.value, value)]
            inserted = statements.insert(self._session.dialect, columns.table, row, [columns.key])
            self._session.fetch(inserted.text, inserted.parameters)

    def _delete_values(self, columns: ListColumns, key: Any, values: Sequence[Any]) -> None:
        for start in range(0, len(values), KEYS_PER_STATEMENT):
            chosen = values[start : start + KEYS_PER_STATEMENT]
            deleted = statements.delete_values(
                self._session.dialect, columns.table, columns.key, key, columns.value, chosen
            )
            self._session.execute(deleted.text, deleted.parameters)

    # --- results ----------------------------------------------------------------------------------------------------

    def _result(self, table: TypeTable, key: Any, address: Any) -> WriteResult:
        """Return the result of a row as an import reads it: triggers may have changed it."""
        attributes = table.object_type.attributes
        anchor = self._session.cell(key, table.key_attribute)
        found = self._session.cell(address, attributes.get(table.object_type.address or "", table.key_attribute))
        return WriteResult(anchor=_text(anchor), address=_text(found).strip())


def _name(table: TypeTable) -> TableName:
    assert table.table is not None  # `_write_one` refuses queries
    return table.table


def _address_column(table: TypeTable) -> Column:
    return table.columns.get(table.object_type.address or "", table.key)


def _new_anchor(table: TypeTable, request: WriteRequest) -> str | None:
    """Return the anchor among the values of a create; None if the database gives the key."""
    for change in request.changes:
        if change.attribute == table.object_type.anchor and change.op is ChangeOp.SET and change.values:
            return canonical_anchor(str(change.values[0]), table.object_type)
    return None


def _has_values(table: TypeTable, found: ImportedObject, changes: Iterable[WriteChange]) -> bool:
    """Return whether a row has the values of all changes."""
    decoded = decode_object(table.object_type, found.cells, Decoding())
    for change in changes:
        name = table.object_type.address if change.op is ChangeOp.RENAME else change.attribute
        attribute = table.object_type.attributes.get(name or "")
        if attribute is None:
            continue
        current: Sequence[Value] = decoded.attributes.get(attribute.name) or decoded.references.get(attribute.name, ())
        if not attribute.equality.are_equal(current, change.values):
            return False
    return True


def _result_of(error: StatementRefused, request: WriteRequest, table: TypeTable | None) -> WriteResult:
    """Return the result of a request that the database refused, with the column if a value does not fit."""
    match error.kind:
        case RefusalKind.UNIQUE:
            return refused("exists", error.text)
        case RefusalKind.FOREIGN_KEY if request.kind is not ExportKind.DELETE:
            return missing("missing_reference", error.text)
        case RefusalKind.BUSY | RefusalKind.TIMEOUT:  # guard: identity.sql_busy
            return missing("busy", error.text)
        case RefusalKind.VALUE if table is not None:
            return refused("refused", _name_column(error.text, request, table))
        case _:
            return refused("refused", error.text)


def _name_column(text: str, request: WriteRequest, table: TypeTable) -> str:
    """Add the columns that a message can mean: their type is in it, and their value if it has one."""
    named = []
    for change in request.changes:
        column = table.columns.get(change.attribute)
        if column is None or column.type_name not in text or column.name in text:
            continue
        if f'"{change.values[0]}"' in text if change.values and '"' in text else True:
            named.append(f"{column.name} ({column.type_name})")
    return f"column {', '.join(named)}: {text}" if named else text


def _as_uncertain(request: WriteRequest) -> WriteRequest:
    """Return a request that says that it may have taken effect already."""
    return WriteRequest(request.kind, request.type, request.anchor, request.address, request.changes, uncertain=True)


def _text(cell: str | bytes | None) -> str:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell or ""
