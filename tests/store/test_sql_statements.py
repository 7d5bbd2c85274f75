"""Every statement of every ``.sql`` file has a name, a description and a user, and prepares on the database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tenuto.store
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import SqlStatements, load_statements

STORE = Path(tenuto.store.__file__).parent
PACKAGE = STORE.parent
FILES = sorted([*STORE.rglob("*.sql"), *(PACKAGE / "postgres").glob("*.sql")])
STATEMENTS = [(file.stem, name) for file in FILES for name, _ in SqlStatements(file)]


def test_sql_files_contain_statements() -> None:
    assert {"tasks", "activities", "workers", "doctor", "audit_log"} <= {file.stem for file in FILES}
    assert len(STATEMENTS) > 300


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_sql_statements_prepare_on_the_database(file: Path, db: Database) -> None:
    refused = {}
    async with db.connection() as connection:
        for name, statement in SqlStatements(file):
            try:
                await connection.prepare(statement)
            except Exception as error:
                refused[name] = str(error)
    assert refused == {}


@pytest.mark.parametrize(("file", "name"), STATEMENTS, ids=lambda part: str(part))
def test_sql_statement_is_used(file: str, name: str) -> None:
    if file == "doctor":  # the checks name their statements
        sources = [PACKAGE / "diagnostics" / "statement_checks.toml", *PACKAGE.rglob("*.py")]
        pattern = rf'["\']{name}["\']|^\[{name}\]|SQL\.{name}\b'
    else:
        sources = [*STORE.rglob("*.py"), *(PACKAGE / "postgres").glob("*.py")]
        prefix = "SQL|_sql" if file in ("schedules", "manifests") else "SQL"  # definition_rows uses both files
        pattern = rf"\b({prefix})\.{name}\b"
    assert any(re.search(pattern, source.read_text(encoding="utf-8"), re.MULTILINE) for source in sources)


@pytest.mark.parametrize("file", ["schedules", "manifests"])
def test_definition_tables_have_the_shared_statements(file: str) -> None:
    needed = set(
        re.findall(r"\b_sql\.(\w+)\b", (STORE / "definitions" / "definition_rows.py").read_text(encoding="utf-8"))
    )
    assert needed
    assert needed <= {name for name, _ in SqlStatements(STORE / "definitions" / f"{file}.sql")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_sql_statements_are_described(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    names = [number for number, line in enumerate(lines) if line.startswith(("-- name: ", "-- fragment: "))]
    assert [lines[number] for number in names if not re.match(r"-- [A-Z]", lines[number + 1])] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_sql_statement_contains_one_statement(file: Path) -> None:
    assert [name for name, statement in SqlStatements(file) if ";" in statement] == []


def test_comments_are_not_sent_to_the_database(tmp_path: Path) -> None:
    file = tmp_path / "comments.sql"
    file.write_text(
        "-- name: first\n-- A description.\nSELECT '-- text' -- guard: a.guard\n    -- a comment\nFROM t; -- the end\n"
    )
    assert dict(SqlStatements(file)) == {"first": "SELECT '-- text'\nFROM t"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_sql_statements_are_loaded_without_comments(file: Path) -> None:
    assert [name for name, statement in SqlStatements(file) if "--" in statement] == []


def test_missing_sql_statement_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = load_statements(str(STORE / "work" / "tasks.py")).nonsense


def test_fragment_of_a_file_replaces_its_name_in_the_statements(tmp_path: Path) -> None:
    file = tmp_path / "parts.sql"
    fragment = "-- fragment: columns\n-- Columns.\na,\nb\n\n"
    file.write_text(f"{fragment}-- name: load\n-- Load.\nSELECT {{columns}}\nFROM t WHERE {{unexpired}};\n")
    (statement,) = dict(SqlStatements(file)).values()
    assert statement.startswith("SELECT a,\nb\nFROM t WHERE (free.expires_at IS NULL")


def test_duplicate_sql_statement_name_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "twice.sql"
    file.write_text("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")
    with pytest.raises(ValueError, match="same name"):
        SqlStatements(file)
