"""The tables of object types: columns of attributes, checks of the selection, and discovery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.sql.session import Column, Session, StatementRefused
from tenuto_identity.connectors.sql.settings import SqlSettings, TableName, TypeSettings
from tenuto_identity.connectors.sql.statements import source_of
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.schema import Attribute, ObjectType, Schema, Writable, is_credential
from tenuto_identity.model.values import DataType

_NUMBERS = frozenset({DataType.INTEGER, DataType.DECIMAL})
_TIMES = frozenset({DataType.DATE, DataType.DATETIME})
_FITTING: Mapping[DataType, frozenset[DataType]] = {
    DataType.TEXT: frozenset(DataType),
    DataType.INTEGER: _NUMBERS | {DataType.TEXT, DataType.REFERENCE},
    DataType.DECIMAL: _NUMBERS | {DataType.TEXT, DataType.REFERENCE},
    DataType.BOOLEAN: frozenset({DataType.BOOLEAN, DataType.TEXT}),
    DataType.DATETIME: _TIMES | {DataType.TEXT},
    DataType.DATE: _TIMES | {DataType.TEXT},
    DataType.BINARY: frozenset({DataType.BINARY}),
    DataType.GUID: frozenset({DataType.GUID, DataType.TEXT, DataType.REFERENCE}),
}
"""Type of column → types of attributes that it may have."""
_LIST_TYPES = frozenset(DataType) - {DataType.DECIMAL, DataType.DATETIME, DataType.BINARY}
"""Types whose values have one text in the database and in Tenuto, so that an export finds the rows of a list."""


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The table with the values of a multi-valued attribute."""

    table: TableName
    key: Column
    value: Column


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """The table of changes of a type."""

    table: TableName
    key: Column
    sequence: Column


@dataclass(frozen=True, slots=True)
class TypeTable:
    """Where the objects of a type are, with the columns that the database has."""

    object_type: ObjectType
    settings: TypeSettings
    source: str
    """The table or query as it is written in FROM."""
    table: TableName | None
    """None for a query, which cannot be written."""
    columns: Mapping[str, Column]
    """Attribute → column. Attributes in ``lists`` are not among them."""
    lists: Mapping[str, ListColumns]
    change_column: Column | None
    change_table: ChangeColumns | None
    marker: Column | None

    @property
    def key(self) -> Column:
        """The column of the anchor."""
        return self.columns[self.object_type.anchor]

    @property
    def key_attribute(self) -> Attribute:
        return self.object_type.attributes[self.object_type.anchor]


def load_table(session: Session, settings: SqlSettings, object_type: ObjectType) -> TypeTable:
    """Return the table of a type; raise `ConnectorError` if a table or column is missing or has another type."""
    found = settings.type_settings(object_type.name)
    table = None if found.query is not None else found.table or (object_type.name,)
    what = "the query" if table is None else f"the table {'.'.join(table)}"
    source = source_of(table, found.query)
    known = _describe(session, source, table, f"{what} of the type {object_type.name}")
    columns: dict[str, Column] = {}
    for name, attribute in object_type.attributes.items():
        if name in found.lists:
            if not attribute.multi:
                raise ConnectorError(
                    "settings", f"the attribute {name} has a list and takes one value", remedy="declare it as multi"
                )
            continue
        column = _find(known, found.columns.get(name, name), what)
        if attribute.multi:
            raise ConnectorError(
                "settings",
                f"the attribute {name} is multi-valued, and the column {column.name} of {what} has one value",
                remedy=f"name the table of its values: lists: {{{name}: {{table: …, key: …, value: …}}}}",
            )
        _check_type(attribute, column, what)
        columns[name] = column
    if object_type.anchor not in columns:
        raise ConnectorError("settings", f"the anchor {object_type.anchor} of {object_type.name} is not a column")
    change_table = None
    if found.change_table is not None:
        change_table = ChangeColumns(
            found.change_table.table,
            *_find_both(session, found.change_table.table, found.change_table.key, found.change_table.sequence),
        )
    return TypeTable(
        object_type,
        found,
        source,
        table,
        columns,
        _load_lists(session, found, object_type),
        _find(known, found.change_column, what) if found.change_column is not None else None,
        change_table,
        _find(known, found.deletion_marker.column, what) if found.deletion_marker is not None else None,
    )


def _load_lists(session: Session, settings: TypeSettings, object_type: ObjectType) -> dict[str, ListColumns]:
    lists: dict[str, ListColumns] = {}
    for name, each in settings.lists.items():
        attribute = object_type.attributes.get(name)
        if attribute is None:
            continue  # not selected
        if attribute.type not in _LIST_TYPES:
            raise ConnectorError(
                "settings", f"the attribute {name} is declared as {attribute.type.value}, which a list cannot have"
            )
        key, value = _find_both(session, each.table, each.key, each.value)
        _check_type(attribute, value, f"the table {'.'.join(each.table)}")
        lists[name] = ListColumns(each.table, key, value)
    return lists


def _find_both(session: Session, table: TableName, first: str, second: str) -> tuple[Column, Column]:
    what = f"the table {'.'.join(table)}"
    known = _describe(session, source_of(table, None), table, what)
    return _find(known, first, what), _find(known, second, what)


def _describe(session: Session, source: str, table: TableName | None, what: str) -> dict[str, Column]:
    try:
        found = {each.name: each for each in session.describe(source, table)}
    except StatementRefused as error:
        raise ConnectorError("missing_table", f"{what} cannot be read: {error.text}") from None
    if not found:
        raise ConnectorError("missing_table", f"{what} cannot be read: it does not exist")
    return found


def _find(known: Mapping[str, Column], name: str, what: str) -> Column:
    found = known.get(name)
    if found is None:
        raise ConnectorError("missing_column", f"{what} has no column {name}", remedy=suggestion(name, list(known)))
    return found


def _check_type(attribute: Attribute, column: Column, what: str) -> None:
    # guard: identity.sql_type_mismatch
    if column.data_type is not None and attribute.type not in _fitting_types(column):
        raise ConnectorError(
            "type_mismatch",
            f"the column {column.name} of {what} has the type {column.type_name},"
            f" and the attribute {attribute.name} is declared as {attribute.type.value}",
            remedy=f"declare the attribute as {column.data_type.value}",
        )


def _fitting_types(column: Column) -> frozenset[DataType]:
    assert column.data_type is not None
    found = _FITTING[column.data_type]
    return found | {DataType.BOOLEAN} if column.holds_booleans else found


def discover(session: Session, settings: SqlSettings, types: Iterable[ObjectType]) -> Schema:
    """Return the tables of the selected types with all their columns; without types, all tables of the database."""
    selected = {each.name: each for each in types}
    names = list(dict.fromkeys((*selected, *settings.types)))
    if names:
        return Schema(tuple(_discover_type(session, settings, name, selected.get(name)) for name in names))
    found = []
    for table, key in session.list_tables():
        columns = session.describe(source_of(table, None), table)
        attributes = {each.name: _attribute(each.name, each) for each in columns if not is_credential(each.name)}
        if attributes:
            found.append(ObjectType(".".join(table), key or next(iter(attributes)), attributes))
    return Schema(tuple(found))


def _discover_type(session: Session, settings: SqlSettings, name: str, selected: ObjectType | None) -> ObjectType:
    found = settings.type_settings(name)
    table = None if found.query is not None else found.table or (name,)
    known = _describe(session, source_of(table, found.query), table, f"the source of the type {name}")
    attribute_names = {column: attribute for attribute, column in found.columns.items()}
    attributes: dict[str, Attribute] = {}
    for column in known.values():
        attribute = attribute_names.get(column.name, column.name)
        if not is_credential(attribute):
            attributes[attribute] = _attribute(attribute, column)
    for attribute, each in found.lists.items():
        _, value = _find_both(session, each.table, each.key, each.value)
        attributes[attribute] = Attribute(attribute, value.data_type or DataType.TEXT, multi=True)
    anchor = selected.anchor if selected is not None else next(iter(attributes), "")
    return ObjectType(name, anchor, attributes, address=selected.address if selected is not None else None)


def _attribute(name: str, column: Column) -> Attribute:
    writable = Writable.YES if column.is_writable else Writable.NO
    return Attribute(name, column.data_type or DataType.TEXT, writable=writable)
