"""Mapping of rows to records, and the columns of every mapped statement."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import pytest

import tenuto.store
from tenuto.postgres.database import Database
from tenuto.store import row_mapping
from tenuto.store.row_mapping import FromInterval, FromJson, PositionalMapper, RowMapper

for module in pkgutil.walk_packages(tenuto.store.__path__, "tenuto.store."):
    importlib.import_module(module.name)
MAPPERS = [each for each in row_mapping.registered_mappers() if each.record_type.__module__.startswith("tenuto.")]


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Cake:
    name: str
    colour: Colour | None
    toppings: Annotated[Any, FromJson] = None
    baked_seconds: Annotated[float, FromInterval] | None = None
    tags: list[str] | None = None


@pytest.fixture(autouse=True)
def _forget_mappers_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_mapping, "_registered", [])


ROW = {
    "tags": ["a"],
    "baked_seconds": timedelta(minutes=2),
    "toppings": '{"cherry": 2}',
    "colour": "red",
    "name": "tart",
}


def test_row_mapper_decodes_json_intervals_and_enums() -> None:
    cake = RowMapper(Cake).one(ROW)
    assert cake == Cake("tart", Colour.RED, {"cherry": 2}, 120.0, ["a"])
    assert cake.colour is Colour.RED


def test_positional_mapper_decodes_like_a_row_mapper_if_asked() -> None:
    row = ("tart", "red", '{"cherry": 2}', timedelta(minutes=2), ["a"])
    mapper = PositionalMapper(Cake, decodes=True)
    assert mapper.one(row) == RowMapper(Cake).one(ROW)
    assert mapper.all([row, (None,) * 5])[1] == RowMapper(Cake).one(dict.fromkeys(ROW))
    assert mapper.one(row).colour is Colour.RED
    with pytest.raises(KeyError):
        mapper.one(("tart", "blue", None, None, None))


def test_row_mapper_keeps_null() -> None:
    row = dict.fromkeys(ROW)
    assert RowMapper(Cake).one(row) == Cake(None, None)  # type: ignore[arg-type]
    assert RowMapper(Cake).optional(None) is None
    assert RowMapper(Cake).optional(row) is not None


def test_row_mapper_takes_computed_fields_from_the_caller() -> None:
    mapper = RowMapper(Cake, computed=("name",))
    assert [cake.name for cake in mapper.all([ROW, ROW], name="bun")] == ["bun", "bun"]
    assert mapper.describe_mismatch(["colour", "toppings", "baked_seconds", "tags"]) is None


@pytest.mark.parametrize(
    ("columns", "mismatch"),
    [
        (list(ROW), None),
        ([*ROW, "size"], "without field: size"),
        (list(ROW)[1:], "without column: tags"),
        ([*ROW, "name"], "twice: name"),
    ],
)
def test_row_mapper_finds_different_columns(columns: list[str], mismatch: str | None) -> None:
    assert RowMapper(Cake).describe_mismatch(columns) == mismatch


def test_row_mapper_accepts_declared_columns_without_field() -> None:
    assert RowMapper(Cake, unmapped=("total",)).describe_mismatch([*ROW, "total"]) is None


def test_positional_mapper_skips_leading_and_trailing_columns() -> None:
    mapper = PositionalMapper(Cake, skip=1, trailing=("total",))
    assert mapper.all([(0, "bun", None, 9)]) == [Cake("bun", None)]
    assert PositionalMapper(Cake, skip=1).all([(0, "bun", None)]) == [Cake("bun", None)]
    assert PositionalMapper(Cake).all([("bun", None)]) == [Cake("bun", None)]
    assert PositionalMapper(Cake).optional(None) is None


@pytest.mark.parametrize(
    ("columns", "mismatch"),
    [
        (["first", "name", "colour", "toppings", "total"], None),
        (["first", "name", "colour", "total"], "without column: toppings"),
        (["first", "colour", "name", "total"], "column 1 is colour, but the field there is name"),
        (["name", "colour", "total"], "column 1 is colour, but the field there is name"),
        (["first", "name", "colour"], "the last columns are colour, not total"),
        (["first", "name", "colour", "toppings", "baked_seconds", "total"], "without field: baked_seconds"),
    ],
)
def test_positional_mapper_finds_different_columns(columns: list[str], mismatch: str | None) -> None:
    mapper = PositionalMapper(Cake, skip=1, trailing=("total",), defaults=("baked_seconds", "tags"))
    assert mapper.describe_mismatch(columns) == mismatch


def test_positional_mapper_finds_defaults_that_are_not_the_last_fields() -> None:
    mapper = PositionalMapper(Cake, defaults=("toppings",))
    assert mapper.describe_mismatch(["name", "colour", "baked_seconds", "tags"]) == (
        "the last fields are tags, not toppings"
    )


def test_mappers_are_registered_with_statements() -> None:
    assert len(MAPPERS) >= 3
    assert [mapper.record_type for mapper in MAPPERS if not mapper.statements] == []


@pytest.mark.parametrize("mapper", MAPPERS, ids=lambda mapper: mapper.record_type.__name__)
async def test_columns_of_mapped_statements_are_the_fields_of_the_record(
    mapper: row_mapping.AnyMapper, db: Database
) -> None:
    mismatches = []
    async with db.connection() as connection:
        for text in mapper.statements:
            columns = [attribute.name for attribute in (await connection.prepare(text)).get_attributes()]
            if (mismatch := mapper.describe_mismatch(columns)) is not None:
                mismatches.append(f"{mismatch}\n{text}")
    assert mismatches == []
