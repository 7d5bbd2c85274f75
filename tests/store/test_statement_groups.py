"""Groups of statements: the same records as one by one, with the parameters of each statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

import pytest

from tenuto.postgres.database import Database
from tenuto.store.row_mapping import FromInterval, RowMapper
from tenuto.store.statement_groups import StatementGroup

NUMBERS = "SELECT n AS number, $2::text || n AS text FROM generate_series(1, $1::integer) AS n ORDER BY n DESC;"
KINDS = """
-- A comment, and a word that is a column of another query: number
SELECT now() AS at, gen_random_uuid() AS id, ARRAY['a', NULL] AS texts, interval '90 s' AS seconds, NULL::text AS none
"""


@dataclass(frozen=True, slots=True)
class Number:
    text: str
    number: int


@dataclass(frozen=True, slots=True)
class Kinds:
    at: datetime
    id: UUID
    texts: list[str | None]
    seconds: Annotated[float, FromInterval]
    none: str | None


@pytest.fixture
def mappers() -> tuple[RowMapper[Number], RowMapper[Kinds]]:
    return RowMapper(Number), RowMapper(Kinds)


async def test_group_returns_the_records_of_each_statement(
    db: Database, mappers: tuple[RowMapper[Number], RowMapper[Kinds]]
) -> None:
    numbers, kinds = mappers
    group = StatementGroup()
    first = group.add(numbers, NUMBERS, 3, "a")
    kind = group.add(kinds, KINDS)
    second = group.add(numbers, NUMBERS, 1, "b")
    empty = group.add(numbers, NUMBERS, 0, "c")
    with pytest.raises(RuntimeError, match="was not fetched"):
        _ = first.all
    await group.fetch(db)
    assert first.all == [Number("a3", 3), Number("a2", 2), Number("a1", 1)]
    assert first.all == numbers.all(await db.fetch_all(NUMBERS, 3, "a"))
    assert (second.first, empty.first, empty.all) == (Number("b1", 1), None, [])
    [found] = kind.all
    assert (found.texts, found.seconds, found.none) == (["a", None], 90.0, None)
    assert isinstance(found.id, UUID)
    assert found.at.tzinfo is not None
