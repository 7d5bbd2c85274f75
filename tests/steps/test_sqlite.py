"""The SQLite driver for SQL scripts: parsing, locked files, time limits, cancellation and memory."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenuto.model.definitions.sql_scripts import Script, ScriptFailed, StatementResult
from tenuto.steps import sqlite
from tests.support.errors import raises_code

TRIGGER = "CREATE TRIGGER t AFTER INSERT ON x BEGIN\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    return path


@pytest.fixture
def other_connection(file: Path) -> Iterator[sqlite3.Connection]:
    """Open another connection to the file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def create_script(file: Path, text: str, *, limit: float = 60, transaction: bool = True) -> Script:
    return Script(f"sqlite:///{file}", text, {}, frozenset(), limit, transaction, lambda *_: None)


async def run_script(script: Script, busy_timeout_seconds: float = 3600) -> list[StatementResult]:
    return [each async for each in sqlite.run_script(script, busy_timeout_seconds=busy_timeout_seconds)]


def split(text: str) -> list[tuple[int, str, str]]:
    return list(sqlite._split_statements(text, lambda: None))


def measure_split_seconds(text: str) -> float:
    """Return the processor time of splitting, which other processes do not affect."""
    durations = []
    for _ in range(3):
        started_at = time.thread_time()
        split(text)
        durations.append(time.thread_time() - started_at)
    return min(durations)


def test_sqlite_script_with_long_texts_is_split() -> None:
    text = "SELECT '" + ";" * 2_000_000 + "';\n-- a; comment\nSELECT \"a;b\", [c;d], `e;f` /* g; */;\nSELECT 'open; "
    found = split(text)
    assert [(line, command, len(text)) for line, command, text in found[:1]] == [(1, "SELECT", 2_000_010)]
    assert found[1:] == [(3, "SELECT", 'SELECT "a;b", [c;d], `e;f` /* g; */;'), (4, "SELECT", "SELECT 'open;")]


def test_sqlite_script_with_triggers_is_split_like_in_sqlite() -> None:
    trigger = "{} -- a; b\n/* TABLE; */TRIGGER t AFTER INSERT ON x BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; END x; {}\n ;"
    beginnings = ("CREATE", "create/**/temp", "CREATE temporary", "explain create", "EXPLAIN query/**/PLAN CREATE TEMP")
    triggers = [trigger.format(words, "END --\n/* ; */") for words in beginnings]
    assert all(sqlite3.complete_statement(each) for each in triggers)
    others = ["CREATE TABLE trigger_ (a);", "EXPLAIN SELECT 1;", 'CREATE "TRIGGER" x;', "VALUES(1);", "SELECT'a b';"]
    for each in (*triggers, *others):
        assert [text for _, _, text in split(f"{each} SELECT 1;")] == [each, "SELECT 1;"], each
    unended = trigger.format("CREATE", "/* END */")
    assert not sqlite3.complete_statement(unended)
    assert split(f";;\n{unended}; SELECT 1;") == [(2, "CREATE", f"{unended}; SELECT 1;")]
    assert [command for _, command, _ in split("VALUES(1); select'a b'; (1)")] == ["VALUES", "SELECT", "("]
    assert split(" ; -- nothing\n; /* open") == []


@pytest.mark.parametrize(
    ("before", "again", "after"),
    [
        ("CREATE", " /**/", "TABLE x(a); SELECT 1"),
        ("EXPLAIN", "--\n", "SELECT 1"),
        (TRIGGER, "SELECT 1;", ""),
        (TRIGGER, "END x; /* */;", ""),
        ("", "/*;*/ ;", "/*"),
        ("", "SELECT'a';", ""),
        ("SELECT 1 ", "- /", "'"),
    ],
    ids=["comments", "lines", "no end", "almost an end", "nothing", "statements", "signs"],
)
def test_sqlite_script_is_split_in_linear_time(before: str, again: str, after: str) -> None:
    """A four times longer script takes about four times as long; quadratic time would be sixteen times."""
    small, large = (measure_split_seconds(before + again * many + after) for many in (4_000, 16_000))
    assert large < 8 * small


def test_sqlite_script_can_be_stopped_while_it_is_split() -> None:
    for text in (TRIGGER + "SELECT 1;" * 20_000, "CREATE" + "/**/" * 20_000, "SELECT 1 " + "-" * 20_000 + "\n" * 9):
        check_count = 0

        def check() -> None:
            nonlocal check_count
            check_count += 1
            if check_count == 10:
                raise ScriptFailed("enough", code="step.sql.timeout")

        with raises_code("step.sql.timeout", ScriptFailed):
            list(sqlite._split_statements(text.replace("--", "- "), check))


async def test_sqlite_timeout_includes_parsing(file: Path) -> None:
    with raises_code("step.sql.timeout", ScriptFailed):
        await run_script(create_script(file, TRIGGER + "SELECT 1;" * 200_000, limit=0.02))


async def test_sqlite_statements_are_parsed_lazily(file: Path) -> None:
    """The rest of a script that fails early is not parsed."""
    text = "INSERT INTO items VALUES (1); SELECT * FROM nowhere;" + "x;" * 1_000_000
    tracemalloc.start()
    try:
        with raises_code("step.sql.statement.failed", ScriptFailed):
            await run_script(create_script(file, text))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_sqlite_timeout_and_cancellation_work_while_the_file_is_locked(
    file: Path, other_connection: sqlite3.Connection
) -> None:
    for lock, text, name in (
        ("BEGIN EXCLUSIVE", "SELECT * FROM items", "SELECT)"),
        ("BEGIN IMMEDIATE", "INSERT INTO items VALUES (1)", "INSERT)"),
        ("BEGIN; SELECT * FROM items", "INSERT INTO items VALUES (1)", "COMMIT"),
    ):
        for statement in lock.split(";"):
            other_connection.execute(statement)
        with raises_code("step.sql.timeout", ScriptFailed) as caught:
            await run_script(create_script(file, text, limit=0.6))
        assert f"{name} took longer than 0.6 s" in caught.value.message
        waiting = asyncio.create_task(run_script(create_script(file, text, limit=3600)))
        await asyncio.wait([waiting], timeout=0.5)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=30)
        was_done = waiting.done()
        other_connection.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert was_done
    assert other_connection.execute("SELECT count(*) FROM items").fetchone() == (0,)


@pytest.mark.parametrize("transaction", [True, False])
async def test_sqlite_script_continues_when_the_file_is_unlocked(
    file: Path, other_connection: sqlite3.Connection, transaction: bool
) -> None:
    for lock in ("BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM items"):
        for statement in lock.split(";"):
            other_connection.execute(statement)
        text = "INSERT INTO items SELECT max(value, (SELECT count(*) FROM items)) FROM json_each('[0, 1]') LIMIT 1"
        waiting = asyncio.create_task(run_script(create_script(file, text, transaction=transaction)))
        done, _ = await asyncio.wait([waiting], timeout=0.8)
        assert not done
        other_connection.execute("COMMIT")
        assert await waiting == [StatementResult("INSERT", 1)]
    assert other_connection.execute("SELECT id FROM items").fetchall() == [(0,), (1,)]


async def test_sqlite_deadlock_fails_at_once(file: Path, other_connection: sqlite3.Connection) -> None:
    """A script that has read blocks the commit of the other connection, so waiting for its lock would never end."""
    other_connection.execute("BEGIN IMMEDIATE")
    with raises_code("step.sql.statement.failed", ScriptFailed):
        await run_script(create_script(file, "SELECT * FROM items; INSERT INTO items VALUES (1)"))


async def test_sqlite_rows_are_not_kept_in_memory(file: Path) -> None:
    text = "SELECT randomblob(1000000), CAST(randomblob(1000000) AS TEXT) FROM json_each('[1,2,3,4,5,6,7,8,9,0]')"
    tracemalloc.start()
    try:
        assert await run_script(create_script(file, text)) == [StatementResult("SELECT", 10)]
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


async def test_sqlite_timeout_works_for_few_long_rows(file: Path) -> None:
    text = f"SELECT randomblob(4000000) FROM json_each('{[0] * 60}')"
    with raises_code("step.sql.timeout", ScriptFailed):
        await run_script(create_script(file, text, limit=0.02))
