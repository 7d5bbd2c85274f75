"""Many rows in one parameter each: how columns are sent to a statement that unnests them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

Excluded = Collection[tuple[UUID, int]]
"""Some schedules or manifests, each by id and version: one that has been changed since is not excluded any more."""


def columns_of(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows, turned: one list for every column."""
    return [list(column) for column in zip(*rows, strict=True)]


def ids_and_versions(excluded: Excluded) -> tuple[list[UUID], list[int]]:
    """The same of those that are excluded, of whom there may be none."""
    return [id for id, _ in excluded], [version for _, version in excluded]


def array_literal(values: list[str]) -> str:
    """Texts as an array within an array, which the driver cannot send."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def array_literals(column: Iterable[list[str] | None]) -> list[str | None]:
    """A whole column of such."""
    return [None if values is None else array_literal(values) for values in column]
