"""Every statement in every ``.sql`` file: named once, described, used, and understood by the real database."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

import tenuto.store
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import Statements, beside
from tests.mutants import MUTANTS

STORE = Path(tenuto.store.__file__).parent
PACKAGE = STORE.parent
FILES = sorted(STORE.glob("*.sql"))
STATEMENTS = [(file.stem, name) for file in FILES for name, _ in Statements(file)]


def test_there_are_statements_to_look_at() -> None:
    assert {"tasks", "activities", "workers"} <= {file.stem for file in FILES}
    assert len(STATEMENTS) > 40


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_every_statement_of_a_file_prepares_on_the_real_database(file: Path, db: Database) -> None:
    refused = {}
    async with db.connection() as connection:
        for name, statement in Statements(file):
            try:
                await connection.prepare(statement)
            except Exception as error:
                refused[name] = str(error)
    assert refused == {}


@pytest.mark.parametrize(("file", "name"), STATEMENTS, ids=lambda part: str(part))
def test_a_statement_is_used_by_a_module_of_the_store(file: str, name: str) -> None:
    if file == "doctor":  # its questions are asked by name, from a list outside the store
        text = "".join(module.read_text(encoding="utf-8") for module in PACKAGE.rglob("*.py"))
        assert re.search(rf'["\']{name}["\']|SQL\.{name}\b', text)
    else:
        text = "".join(module.read_text(encoding="utf-8") for module in STORE.glob("*.py"))
        ways = "SQL|_sql" if file in ("schedules", "manifests") else "SQL"  # what both have, `kept` asks for
        assert re.search(rf"\b({ways})\.{name}\b", text)


@pytest.mark.parametrize("file", ["schedules", "manifests"])
def test_every_kind_of_definition_has_the_statements_all_are_kept_by(file: str) -> None:
    wanted = set(re.findall(r"\b_sql\.(\w+)\b", (STORE / "kept.py").read_text(encoding="utf-8")))
    assert wanted
    assert wanted <= {name for name, _ in Statements(STORE / f"{file}.sql")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_statement_says_what_it_is_for(file: Path) -> None:
    assert [name for name, statement in Statements(file) if not statement.startswith("-- ")] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_statement_is_one_statement(file: Path) -> None:
    assert [name for name, statement in Statements(file) if ";" in re.sub(r"--.*", "", statement)] == []


def test_a_statement_that_is_not_there_is_an_attribute_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no statement named nonsense"):
        _ = beside(str(STORE / "tasks.py")).nonsense


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.sql"
    file.write_text("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")
    with pytest.raises(ValueError, match="twice"):
        Statements(file)


async def test_what_is_left_of_a_statement_without_its_guard_is_one(db: Database, tmp_path: Path) -> None:
    """Else its tests would fail for that alone, and nobody would know whether they miss the guard."""
    ill, without = [], tmp_path / "without.sql"
    async with db.connection() as connection:
        for mutant in MUTANTS:
            file = PACKAGE / mutant.file
            if file not in FILES:
                continue
            text = file.read_text(encoding="utf-8").replace(mutant.passage, mutant.becomes)
            without.write_text(text, encoding="utf-8")
            for statement in {body for _, body in Statements(without)} - {body for _, body in Statements(file)}:
                try:
                    await connection.prepare(statement)
                except asyncpg.PostgresError as error:
                    ill.append(f"{mutant.name}: {error}")
    assert ill == []
