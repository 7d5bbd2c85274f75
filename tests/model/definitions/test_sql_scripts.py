"""SQL scripts: splitting into statements as PostgreSQL does, and literals of parameters."""

from __future__ import annotations

import tracemalloc

import pytest

from tenuto.errors import Invalid
from tenuto.model.definitions.sql_scripts import split_statements, sql_literal
from tests.support.errors import raises_code

SCRIPT = r"""
-- a; comment
CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END;
/* nested /* ; */ ; */ INSERT INTO t VALUES ('a;b''c', E'x\';y', "q;", $$ ; $$, $a$ $b$; :v $a$, :v, x::text, a[1:b]);
DO $do$ BEGIN NULL; END $do$;
CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2);;
SELECT $1, U&'x', '\', ':v';
ROLLBACK TO SAVEPOINT a; COMMIT AND CHAIN; prepare transaction 'x'; PREPARE p AS SELECT 1
"""


def test_sql_statements_are_split_at_their_own_semicolons() -> None:
    found = split_statements(SCRIPT, {"v": sql_literal("it's \\ x", field="v")})
    assert [(each.line, each.command, each.controls_transaction) for each in found] == [
        (3, "CREATE", False), (4, "INSERT", False), (5, "DO", False), (6, "CREATE", False), (7, "SELECT", False),
        (8, "ROLLBACK", False), (8, "COMMIT", True), (8, "PREPARE", True), (8, "PREPARE", False),
    ]  # fmt: skip
    assert r"$a$ $b$; :v $a$,  E'it''s \\ x' , x::text, a[1:b])" in found[1].text
    assert found[4].text.endswith("':v'")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("SELECT 1;\n\\! id", "step.sql.script.invalid"),
        ("SELECT 1 \\gexec", "step.sql.script.invalid"),
        ("SELECT 'x", "step.sql.script.invalid"),
        ('SELECT "x', "step.sql.script.invalid"),
        ("SELECT E'x\\'", "step.sql.script.invalid"),
        ("/* /* */", "step.sql.script.invalid"),
        ("SELECT $a$ $b$", "step.sql.script.invalid"),
        ("COPY t FROM STDIN", "step.sql.script.invalid"),
        ("copy t to stdout (format csv)", "step.sql.script.invalid"),
        (" ; -- nothing\n ;", "step.sql.script.empty"),
    ],
)
def test_invalid_sql_script_is_rejected(script: str, code: str) -> None:
    with raises_code(code) as rejected:
        split_statements(script, {})
    assert rejected.value.field == "script"


def test_sql_script_error_names_the_line() -> None:
    with raises_code("step.sql.script.invalid") as rejected:
        split_statements("SELECT 1;\n\\! id", {})
    assert "line 2" in rejected.value.message


def test_sql_literals_are_escaped() -> None:
    written = {None: " NULL ", True: " TRUE ", -5: " (-5) ", 1.5: " (1.5) ", "a'b": " 'a''b' ", "\\'": " E'\\\\''' "}
    assert {value: sql_literal(value, field="x") for value in written} == written
    for invalid in (float("nan"), float("inf"), "a\0b"):
        with pytest.raises(Invalid):
            sql_literal(invalid, field="x")


def test_splitting_quoted_text_uses_linear_memory() -> None:
    for quoted in ("'" + "''" * 100_000 + "'", "E'" + "\\'a''" * 50_000 + "'", '"' + 'a""' * 100_000 + '"'):
        tracemalloc.start()
        try:
            assert [each.text for each in split_statements(f"SELECT {quoted}; SELECT 1", {})] == [
                f"SELECT {quoted}",
                "SELECT 1",
            ]
            assert tracemalloc.get_traced_memory()[1] < 12 * len(quoted)
        finally:
            tracemalloc.stop()
