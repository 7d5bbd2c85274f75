"""The table of guards fits the source, the tests and the stored results."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import asyncpg
import pytest

from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component
from tenuto.postgres.sql_loader import SqlStatements
from tenuto_identity.extension import Identity
from tenuto_notifications.extension import Notifications
from tests.guards.guard import Guard
from tests.guards.mutation import Place, StaleGuard, marked_places, mutate
from tests.guards.runner import ROOT, digest, stored_results
from tests.guards.table import GUARDS

SOURCE = ROOT / "src"
MIN_GUARD_COUNT = 300
"""With fewer entries, part of the table was lost."""


@cache
def marked() -> dict[str, list[Place]]:
    return marked_places(SOURCE)


@cache
def mutated(guard: Guard) -> dict[Path, str]:
    return mutate(guard, SOURCE, marked())


def test_guard_ids_are_unique_and_well_formed() -> None:
    assert [id for id, count in Counter(guard.id for guard in GUARDS).items() if count > 1] == []
    assert [guard.id for guard in GUARDS if not re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*", guard.id)] == []
    assert len(GUARDS) >= MIN_GUARD_COUNT


def test_guard_descriptions_are_one_sentence() -> None:
    assert [guard.id for guard in GUARDS if not re.fullmatch(r"[A-Z][^.]*\.", guard.description)] == []


def test_every_guard_has_its_markers_and_a_mutation_that_changes_something() -> None:
    stale = []
    for each in GUARDS:
        try:
            mutated(each)
        except StaleGuard as error:
            stale.append(str(error))
    assert stale == [], "bring the markers in src or the entries in tests/guards/components up to date"


def test_every_marker_has_a_guard() -> None:
    expected = {guard.id for guard in GUARDS if guard.schema is None}
    unknown = [
        f"{place.file}:{place.line}: {id}" for id, places in marked().items() for place in places if id not in expected
    ]
    assert unknown == [], "add the guard to tests/guards/components, or correct the marker"


def test_migrations_carry_no_markers() -> None:
    """An applied migration must not change, not even in a comment: the database stores its checksum."""
    files = {place.file for places in marked().values() for place in places}
    assert [file for file in files if file.suffix == ".sql" and file.parent.name == "migrations"] == []


async def test_every_mutated_statement_prepares_on_the_database(db: Database, tmp_path: Path) -> None:
    """Otherwise the tests of a guard fail because of an invalid statement, and prove nothing."""
    refused, file_without_guard, prepared = [], tmp_path / "mutated.sql", 0
    await migrator.migrate(db, Component("identity", Identity().migrations()))
    await migrator.migrate(db, Component("notifications", Notifications().migrations()))
    async with db.connection() as connection:
        await connection.execute("SET search_path TO tenuto_identity, pg_catalog")  # its statements name no schema
        for each in GUARDS:
            if each.schema is not None:
                continue
            for file, text in mutated(each).items():
                if file.suffix != ".sql":
                    continue
                file_without_guard.write_text(text, encoding="utf-8")
                before = {statement for _, statement in SqlStatements(file)}
                for statement in {statement for _, statement in SqlStatements(file_without_guard)} - before:
                    prepared += 1
                    try:
                        await connection.prepare(statement)
                    except asyncpg.PostgresError as error:
                        refused.append(f"{each.id}: {error}")
    assert refused == []
    assert prepared > 100


# --- tests ----------------------------------------------------------------------------------------------------------


def missing_test(test: str) -> str | None:
    """Say what is missing of a test that is named as `file`, `file::name` or `file::name[parameters]`."""
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file():
        return f"no file tests/{file}"
    names, wanted = functions_in(path), name.partition("[")[0]
    if wanted and wanted not in names:
        return f"no test {wanted} in tests/{file}"
    return None if names else f"no tests in tests/{file}"


@cache
def functions_in(file: Path) -> frozenset[str]:
    """Return the names of the test functions of a file; methods as `Class::name`."""
    found = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        owner, members = (f"{node.name}::", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        found |= {
            f"{owner}{each.name}"
            for each in members
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
        }
    return frozenset(found)


def test_every_test_of_a_guard_exists() -> None:
    stale = [f"{guard.id}: {missing}" for guard in GUARDS for test in guard.tests if (missing := missing_test(test))]
    assert stale == [], "bring the tests of these entries in tests/guards/components up to date"
    assert [guard.id for guard in GUARDS if not guard.tests] == []


@pytest.mark.parametrize(
    ("test", "missing"),
    [
        ("guards/test_table.py", None),
        ("guards/test_table.py::test_every_marker_has_a_guard", None),
        ("guards/test_table.py::test_every_marker_has_a_guard[one-two]", None),
        ("guards/test_table.py::test_gone", "no test test_gone in tests/guards/test_table.py"),
        ("guards/test_gone.py::test_gone", "no file tests/guards/test_gone.py"),
        ("guards/table.py", "no tests in tests/guards/table.py"),
    ],
)
def test_missing_tests_are_recognised(test: str, missing: str | None) -> None:
    assert missing_test(test) == missing


# --- results --------------------------------------------------------------------------------------------------------


def test_every_guard_was_tried_as_it_is_and_caught() -> None:
    expected = {guard.id: {"digest": digest(guard, marked()), "verdict": "caught"} for guard in GUARDS}
    stored = stored_results()
    assert stored.keys() - expected.keys() == set(), "these guards are gone: run scripts/mutants --new"
    assert [id for id in expected if stored.get(id) != expected[id]] == [], "run scripts/mutants --new"
