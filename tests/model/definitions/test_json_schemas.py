"""Comparison of JSON schemas: certain mismatches only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from tenuto.model.definitions.json_schemas import NoSuchPart, find_mismatch, find_part, json_types


class Row(BaseModel):
    id: int
    tags: list[str] = []
    parent: Row | None = None


@dataclass
class Wanted:
    id: int
    name: str = ""


class Other(TypedDict):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


def output(type: Any) -> dict[str, Any]:
    return TypeAdapter(type).json_schema(mode="serialization")


def input(type: Any) -> dict[str, Any]:
    return TypeAdapter(type).json_schema()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int), (int, float), (float, int), (str, str), (str, UUID), (datetime, datetime), (datetime, str),
        (Decimal, Decimal), (Any, int), (int, Any), (int | None, int), (str | int, int), (list[int], list[int]),
        (list[Any], list[int]), (list[int], tuple[int, ...]), (dict[str, int], Wanted), (Row, Wanted), (Row, dict),
        (Row, Row), (dict, Row), (bool, bool), (None, int | None), (set[int], list[int]),
    ],
)  # fmt: skip
def test_types_that_may_fit(given: Any, wanted: Any) -> None:
    assert find_mismatch(output(given), input(wanted)) is None


@pytest.mark.parametrize(
    ("given", "wanted", "problem"),
    [
        (str, int, "a text is not a whole number"),
        (int, str, "a whole number is not a text"),
        (list[int], int, "a list is not a whole number"),
        (int, list[int], "a whole number is not a list"),
        (list[str], list[int], "in the list, a text is not a whole number"),
        (Other, Wanted, "the object has no field 'id'"),
        (Row, Other, "the object has no field 'name'"),
        (None, int, "null is not a whole number"),
        (dict[str, int], list[int], "an object is not a list"),
    ],
)
def test_types_that_never_fit(given: Any, wanted: Any, problem: str) -> None:
    assert find_mismatch(output(given), input(wanted)) == problem


def test_parts_of_types() -> None:
    row = output(Row)
    assert json_types(find_part(row, ["id"])) == {"integer"}
    assert json_types(find_part(row, ["parent", "parent", "tags", 3])) == {"string"}
    assert json_types(find_part(row, ["parent"])) == {"object", "null"}
    assert json_types(find_part(output(dict[str, int]), ["any"])) == {"integer"}
    assert json_types(find_part(output(Pair), [1])) == {"string"}
    assert json_types(find_part({}, ["a", 0, "b"])) is None
    assert json_types(find_part(output(Any), ["a"])) is None


@pytest.mark.parametrize(
    ("type", "path", "depth"),
    [
        (Row, ["rows"], 0),
        (Row, ["parent", "rows"], 1),
        (Row, ["tags", "first"], 1),
        (Row, ["id", "x"], 1),
        (int, ["x"], 0),
        (list[int], ["x"], 0),
        (Other, ["id"], 0),
    ],
)
def test_part_that_cannot_exist(type: Any, path: list[str | int], depth: int) -> None:
    with pytest.raises(NoSuchPart) as missing:
        find_part(output(type), path)
    assert missing.value.depth == depth
