"""Mapping of rows to records: frozen dataclasses with one field per column.

A mapper is created beside the statements whose rows it maps, and knows them. A test prepares the statements of all
mappers on the database and compares their columns with the fields of the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import asyncpg

R = TypeVar("R")
Decode = Callable[[Any], Any]
Row = asyncpg.Record | Mapping[str, Any]

_registered: list[AnyMapper] = []


@dataclass(frozen=True, slots=True)
class FromColumn:
    """Annotation of a field whose value is decoded from the value of its column; NULL stays None."""

    decode: Decode


FromJson = FromColumn(json.loads)
"""For a field that holds the parsed text of a JSON column: ``Annotated[Any, FromJson]``."""
FromInterval = FromColumn(timedelta.total_seconds)
"""For a duration in seconds from an interval column: ``Annotated[float, FromInterval]``."""


class RowMapper(Generic[R]):
    """Maps the rows of statements to records of one type, by the names of the columns.

    Columns of fields with a `FromColumn` annotation are decoded, text becomes the enum that the field names. The caller
    gives the values of ``computed`` fields, which have no column. Columns named in ``unmapped`` have no field.
    """

    def __init__(
        self,
        record_type: type[R],
        *statements: str,
        computed: Collection[str] = (),
        unmapped: Collection[str] = (),
    ) -> None:
        self.record_type = record_type
        self.statements = statements
        self._computed = frozenset(computed)
        self._unmapped = frozenset(unmapped)
        _registered.append(self)

    def one(self, row: Row, **computed: Any) -> R:
        """Return the record of a row."""
        return self.from_values(self._reading[0](row), **computed)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have a field, in the order of the fields."""
        return tuple(self._decoders)

    def from_values(self, row: Iterable[Any], **computed: Any) -> R:
        """Return the record of the values of `columns`."""
        _, decoders, by_position = self._reading
        values = list(row)
        for position, decode in decoders:
            if values[position] is not None:
                values[position] = decode(values[position])
        if by_position:
            return self.record_type(*values)
        return self.record_type(**dict(zip(self._decoders, values, strict=True)), **computed)

    def optional(self, row: Row | None, **computed: Any) -> R | None:
        """Return the record of a row, or None if there is no row."""
        return None if row is None else self.one(row, **computed)

    def all(self, rows: Iterable[Row], **computed: Any) -> list[R]:
        """Return the records of rows."""
        return [self.one(row, **computed) for row in rows]

    def describe_mismatch(self, columns: Collection[str]) -> str | None:
        """Return how the columns of a statement differ from the fields; None if they do not."""
        expected = set(self._decoders) | self._unmapped
        missing, surplus = sorted(expected - set(columns)), sorted(set(columns) - expected)
        repeated = sorted({name for name in columns if list(columns).count(name) > 1})
        problems = {"without column": missing, "without field": surplus, "twice": repeated}
        return "; ".join(f"{text}: {', '.join(names)}" for text, names in problems.items() if names) or None

    @cached_property
    def _decoders(self) -> dict[str, Decode | None]:
        """The decoder of each field that has a column. Made at the first use, because resolving types takes time."""
        hints = get_type_hints(self.record_type, include_extras=True)
        names = [field.name for field in fields(self.record_type) if field.init]  # type: ignore[arg-type]
        return {name: _find_decoder(hints[name]) for name in names if name not in self._computed}

    @cached_property
    def _reading(self) -> tuple[Callable[[Row], Iterable[Any]], list[tuple[int, Decode]], bool]:
        """How rows are read: a function that returns the values of the columns, the decoders of some of them, and
        whether they are all arguments of the record, in order. Lists map a thousand rows (benchmark `dashboard`)."""
        names = list(self._decoders)
        read: Callable[[Row], Iterable[Any]] = itemgetter(*names) if len(names) > 1 else (lambda row: [row[names[0]]])
        decoders = [(at, decode) for at, decode in enumerate(self._decoders.values()) if decode is not None]
        arguments = [each.name for each in fields(self.record_type) if each.init and not each.kw_only]  # type: ignore[arg-type]
        return read, decoders, arguments == names


class PositionalMapper(Generic[R]):
    """Maps rows to records by position: the fastest way, for statements that claim and end tasks.

    The columns after the first ``skip`` must be the fields of the record, in order. The last fields, named in
    ``defaults``, have no columns and keep their defaults. Columns named in ``trailing`` come last; the caller reads
    them. Values are decoded as `RowMapper` does with ``decodes``, and not without it.
    """

    def __init__(
        self,
        record_type: type[R],
        *statements: str,
        skip: int = 0,
        trailing: Collection[str] = (),
        defaults: Collection[str] = (),
        decodes: bool = False,
    ) -> None:
        self.record_type = record_type
        self.statements = statements
        self._decodes = decodes
        self._skip = skip
        self._trailing = tuple(trailing)
        self._defaults = tuple(defaults)
        _registered.append(self)

    def one(self, row: Any) -> R:
        """Return the record of a row."""
        if self._decodes:
            return self.all([row])[0]
        return self.record_type(*row[self._skip : len(row) - len(self._trailing)])

    def optional(self, row: Any | None) -> R | None:
        """Return the record of a row, or None if there is no row."""
        return None if row is None else self.one(row)

    def all(self, rows: Iterable[Any]) -> list[R]:
        """Return the records of rows."""
        record_type = self.record_type
        if self._decodes:
            return [record_type(*self._decoded(row)) for row in rows]
        if self._trailing:
            return [self.one(row) for row in rows]
        if self._skip:
            return [record_type(*row[self._skip :]) for row in rows]
        return [record_type(*row) for row in rows]

    def _decoded(self, row: Any) -> list[Any]:
        values = list(row[self._skip : len(row) - len(self._trailing)])
        for position, decode in self._decoders:
            if values[position] is not None:
                values[position] = decode(values[position])
        return values

    @cached_property
    def _decoders(self) -> list[tuple[int, Decode]]:
        """Positions of the fields that are decoded. Enums are found by a table, which is faster than their call."""
        hints = get_type_hints(self.record_type, include_extras=True)
        names = [field.name for field in fields(self.record_type)]  # type: ignore[arg-type]
        found: list[tuple[int, Decode]] = []
        for position, name in enumerate(names):
            decode: Any = _find_decoder(hints[name])
            if isinstance(decode, type) and issubclass(decode, Enum):
                decode = {each.value: each for each in decode}.__getitem__
            if decode is not None:
                found.append((position, decode))
        return found

    def describe_mismatch(self, columns: Collection[str]) -> str | None:
        """Return how the columns of a statement differ from the fields; None if they do not."""
        end = len(columns) - len(self._trailing)
        mapped, last = list(columns)[self._skip : end], tuple(columns)[end:]
        names = [field.name for field in fields(self.record_type)]  # type: ignore[arg-type]
        column_count = len(names) - len(self._defaults)
        expected, defaulted = names[:column_count], tuple(names[column_count:])
        if defaulted != self._defaults:
            return f"the last fields are {', '.join(defaulted)}, not {', '.join(self._defaults)}"
        if last != self._trailing:
            return f"the last columns are {', '.join(last)}, not {', '.join(self._trailing)}"
        for place, (column, name) in enumerate(zip(mapped, expected, strict=False)):
            if column != name:
                return f"column {place + self._skip} is {column}, but the field there is {name}"
        missing, surplus = expected[len(mapped) :], mapped[len(expected) :]
        problems = {"without column": missing, "without field": surplus}
        return "; ".join(f"{text}: {', '.join(names)}" for text, names in problems.items() if names) or None


AnyMapper = RowMapper[Any] | PositionalMapper[Any]


def registered_mappers() -> list[AnyMapper]:
    """Return all mappers of the modules that were imported."""
    return list(_registered)


def _find_decoder(annotation: Any) -> Decode | None:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return next((item.decode for item in metadata if isinstance(item, FromColumn)), None) or _find_decoder(inner)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if get_origin(annotation) in (list, tuple, dict):
        return None
    return next((found for part in get_args(annotation) if (found := _find_decoder(part)) is not None), None)
