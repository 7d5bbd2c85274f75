"""The entry of one guard in the table, and the kinds of mutation that take a guard out of the source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the marked statement (Python) or the marked line (SQL; a final semicolon stays)."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Replace the condition: of an `if` or `while` in Python, after the first WHERE, AND, OR, … of the line in SQL."""

    becomes: str


@dataclass(frozen=True, slots=True)
class Value:
    """Replace what is assigned, returned, evaluated, iterated over or entered by `with`. Python only."""

    becomes: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace a fragment that occurs once in the marked place; white space is not compared."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert code before the marked statement (Python) or the marked line (SQL)."""

    code: str


Mutation = Remove | Condition | Value | Replace | Insert


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition, lock or key that a guarantee depends on, and the tests of which one must fail without it."""

    id: str
    """`component.invariant`, as in the marker."""
    description: str
    mutations: tuple[Mutation, ...]
    """One mutation for every marked place, or one for each of them in the order of the source."""
    tests: tuple[str, ...]
    """`file::test`, or `file` for all its tests, relative to the folder `tests`."""
    places: int = 1
    """How many places carry the marker."""
    schema: str | None = None
    """Text by which the lines are found in the migrations: those files are frozen and carry no markers."""


def guard(
    id: str,
    description: str,
    mutation: Mutation | tuple[Mutation, ...],
    *tests: str,
    places: int = 1,
    schema: str | None = None,
) -> Guard:
    """Build a table entry."""
    mutations = mutation if isinstance(mutation, tuple) else (mutation,)
    return Guard(id, description, mutations, tests, places, schema)
