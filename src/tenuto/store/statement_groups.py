"""Statement groups: many small queries of one report, sent as one statement with one round trip and one snapshot.

Each query becomes an array of rows. It may only read, and PostgreSQL plans it as it would plan the query alone. Its
columns may be texts, numbers, instants, ids, JSON and arrays of texts; the driver decodes no other arrays within rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from tenuto.postgres.database import Connection, Database
from tenuto.store.row_mapping import RowMapper

R = TypeVar("R")

_PARAMETER = re.compile(r"\$(\d+)")


class Rows(Generic[R]):
    """The records of one query of a group, once the group was fetched."""

    def __init__(self, mapper: RowMapper[R]) -> None:
        self.mapper = mapper
        self._records: list[R] | None = None

    @property
    def all(self) -> list[R]:
        """All records."""
        if self._records is None:
            raise RuntimeError("the group of statements was not fetched")
        return self._records

    @property
    def first(self) -> R | None:
        """The first record; None if there is none."""
        return self.all[0] if self.all else None

    def read(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take the rows, with the columns of the mapper in its order."""
        self._records = [self.mapper.from_values(row) for row in rows]


class StatementGroup:
    """Collects queries and sends them as one statement."""

    def __init__(self) -> None:
        self._statements: list[tuple[str, tuple[str, ...], int]] = []
        self._values: list[Any] = []
        self._rows: list[Rows[Any]] = []

    def add(self, mapper: RowMapper[R], statement: str, *values: Any) -> Rows[R]:
        """Add a query; its records can be read after `fetch`."""
        self._statements.append((statement, mapper.columns, len(self._values)))
        self._values += values
        rows = Rows(mapper)
        self._rows.append(rows)
        return rows

    async def fetch(self, connection: Connection | Database) -> None:
        """Send all queries."""
        fetch = connection.fetch_all if isinstance(connection, Database) else connection.fetch
        [found] = await fetch(_combine(tuple(self._statements)), *self._values)
        for rows, answer in zip(self._rows, found, strict=True):
            rows.read(answer)


@lru_cache(maxsize=100)
def _combine(statements: tuple[tuple[str, tuple[str, ...], int], ...]) -> str:
    """Return one statement for several, each with its columns and the number of parameters before its own."""
    parts = []
    for statement, columns, before in statements:
        query = _PARAMETER.sub(lambda found: f"${int(found[1]) + before}", statement.rstrip().rstrip(";"))  # noqa: B023
        selected = ", ".join(f'part."{name}"' for name in columns)
        parts.append(f"ARRAY(SELECT ROW({selected}) FROM (\n{query}\n) AS part)")  # noqa: S608
    return "SELECT " + ",\n".join(parts)
