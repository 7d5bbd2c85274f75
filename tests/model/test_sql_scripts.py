"""Scripts as text: statements end where PostgreSQL ends them, and parameters stand where they are meant to."""

from __future__ import annotations

import tracemalloc

import pytest

from tenuto.errors import Invalid
from tenuto.model.sql_scripts import sql_literal, split_statements

SCRIPT = r"""
-- a; comment
CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END;
/* nested /* ; */ ; */ INSERT INTO t VALUES ('a;b''c', E'x\';y', "q;", $$ ; $$, $a$ $b$; :v $a$, :v, x::text, a[1:b]);
DO $do$ BEGIN NULL; END $do$;
CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2);;
SELECT $1, U&'x', '\', ':v';
ROLLBACK TO SAVEPOINT a; COMMIT AND CHAIN; prepare transaction 'x'; PREPARE p AS SELECT 1
"""


def test_a_statement_ends_at_its_own_semicolon_and_nowhere_else() -> None:
    found = split_statements(SCRIPT, {"v": sql_literal("it's \\ x", field="v")})
    assert [(each.line, each.command, each.controls_transaction) for each in found] == [
        (3, "CREATE", False), (4, "INSERT", False), (5, "DO", False), (6, "CREATE", False), (7, "SELECT", False),
        (8, "ROLLBACK", False), (8, "COMMIT", True), (8, "PREPARE", True), (8, "PREPARE", False),
    ]  # fmt: skip
    assert r"$a$ $b$; :v $a$,  E'it''s \\ x' , x::text, a[1:b])" in found[1].text
    assert found[4].text.endswith("':v'")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("SELECT 1;\n\\! id", "line 2: commands of psql"),
        ("SELECT 1 \\gexec", "commands of psql"),
        ("SELECT 'x", "does not end"),
        ('SELECT "x', "does not end"),
        ("SELECT E'x\\'", "does not end"),
        ("/* /* */", "does not end"),
        ("SELECT $a$ $b$", "does not end"),
        ("COPY t FROM STDIN", "nobody to talk to"),
        ("copy t to stdout (format csv)", "nobody to talk to"),
        (" ; -- nothing\n ;", "holds no statement"),
    ],
)
def test_what_is_no_sql_is_refused_with_its_line(script: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as refusal:
        split_statements(script, {})
    assert refusal.value.field == "script"


def test_values_are_written_so_that_nothing_of_them_is_read_as_sql() -> None:
    written = {None: " NULL ", True: " TRUE ", -5: " (-5) ", 1.5: " (1.5) ", "a'b": " 'a''b' ", "\\'": " E'\\\\''' "}
    assert {value: sql_literal(value, field="x") for value in written} == written
    for refused in (float("nan"), float("inf"), "a\0b"):
        with pytest.raises(Invalid):
            sql_literal(refused, field="x")


def test_a_quote_costs_as_much_as_it_is_long_whatever_is_in_it() -> None:
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
