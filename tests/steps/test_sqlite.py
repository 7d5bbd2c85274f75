"""Scripts on SQLite files, by themselves: what they cost, whom they wait for, and that they hear when to stop."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenuto.model.sql_scripts import Ran, Script, ScriptFailed
from tenuto.steps.sql import sqlite

TRIGGER = "CREATE TRIGGER t AFTER INSERT ON x BEGIN\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    return path


@pytest.fixture
def other(file: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else who works on the file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def script(file: Path, text: str, *, limit: float = 60, transaction: bool = True) -> Script:
    return Script(f"sqlite:///{file}", text, {}, frozenset(), limit, transaction, lambda *_: None)


async def ran(told: Script) -> list[Ran]:
    return [each async for each in sqlite.run(told)]


def taken_apart(text: str) -> list[tuple[int, str, str]]:
    return list(sqlite._statements(text, lambda: None))


def work_for(text: str) -> float:
    """What reading it costs, in seconds of the processor: what neighbours do meanwhile does not count."""
    costs = []
    for _ in range(3):
        began = time.thread_time()
        taken_apart(text)
        costs.append(time.thread_time() - began)
    return min(costs)


def test_a_sqlite_script_is_taken_apart_in_one_go_however_long_its_texts_are() -> None:
    text = "SELECT '" + ";" * 2_000_000 + "';\n-- a; comment\nSELECT \"a;b\", [c;d], `e;f` /* g; */;\nSELECT 'open; "
    found = taken_apart(text)
    assert [(line, command, len(text)) for line, command, text in found[:1]] == [(1, "SELECT", 2_000_010)]
    assert found[1:] == [(3, "SELECT", 'SELECT "a;b", [c;d], `e;f` /* g; */;'), (4, "SELECT", "SELECT 'open;")]


def test_a_trigger_ends_where_sqlite_says_so_and_a_command_is_a_word() -> None:
    trigger = "{} -- a; b\n/* TABLE; */TRIGGER t AFTER INSERT ON x BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; END x; {}\n ;"
    beginnings = ("CREATE", "create/**/temp", "CREATE temporary", "explain create", "EXPLAIN query/**/PLAN CREATE TEMP")
    triggers = [trigger.format(words, "END --\n/* ; */") for words in beginnings]
    assert all(sqlite3.complete_statement(each) for each in triggers)
    others = ["CREATE TABLE trigger_ (a);", "EXPLAIN SELECT 1;", 'CREATE "TRIGGER" x;', "VALUES(1);", "SELECT'a b';"]
    for each in (*triggers, *others):
        assert [text for _, _, text in taken_apart(f"{each} SELECT 1;")] == [each, "SELECT 1;"], each
    unended = trigger.format("CREATE", "/* END */")
    assert not sqlite3.complete_statement(unended)
    assert taken_apart(f";;\n{unended}; SELECT 1;") == [(2, "CREATE", f"{unended}; SELECT 1;")]
    assert [command for _, command, _ in taken_apart("VALUES(1); select'a b'; (1)")] == ["VALUES", "SELECT", "("]
    assert taken_apart(" ; -- nothing\n; /* open") == []


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
def test_reading_a_script_twice_as_long_is_no_more_than_twice_the_work(before: str, again: str, after: str) -> None:
    """Four times, rather, since it is measured: a square would be sixteen, and before that it would not have ended."""
    small, large = (work_for(before + again * many + after) for many in (4_000, 16_000))
    assert large < 8 * small


def test_whoever_stops_a_script_is_heard_while_it_is_read() -> None:
    for text in (TRIGGER + "SELECT 1;" * 20_000, "CREATE" + "/**/" * 20_000, "SELECT 1 " + "-" * 20_000 + "\n" * 9):
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks == 10:
                raise ScriptFailed("enough")

        with pytest.raises(ScriptFailed, match="enough"):
            list(sqlite._statements(text.replace("--", "- "), look))


async def test_reading_counts_to_the_time_of_a_statement(file: Path) -> None:
    with pytest.raises(ScriptFailed, match=r"reading the script took longer than 0\.02 s"):
        await ran(script(file, TRIGGER + "SELECT 1;" * 200_000, limit=0.02))


async def test_statements_are_read_as_they_are_run(file: Path) -> None:
    """What a script that is stopped early has after that costs nothing."""
    text = "INSERT INTO items VALUES (1); SELECT * FROM nowhere;" + "x;" * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ScriptFailed, match="no such table"):
            await ran(script(file, text))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


async def test_a_time_limit_and_cancelling_hold_while_others_have_the_file_locked(
    file: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 3600)
    for lock, text, what in (
        ("BEGIN EXCLUSIVE", "SELECT * FROM items", "SELECT\\)"),
        ("BEGIN IMMEDIATE", "INSERT INTO items VALUES (1)", "INSERT\\)"),
        ("BEGIN; SELECT * FROM items", "INSERT INTO items VALUES (1)", "COMMIT"),
    ):
        for words in lock.split(";"):
            other.execute(words)
        with pytest.raises(ScriptFailed, match=f"{what} took longer than 0.6 s"):
            await ran(script(file, text, limit=0.6))
        waiting = asyncio.create_task(ran(script(file, text, limit=3600)))
        await asyncio.wait([waiting], timeout=0.5)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=30)
        heard = waiting.done()
        other.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert heard
    assert other.execute("SELECT count(*) FROM items").fetchone() == (0,)


@pytest.mark.parametrize("transaction", [True, False])
async def test_a_script_goes_on_once_the_file_is_free(
    file: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, transaction: bool
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 3600)
    for lock in ("BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM items"):
        for words in lock.split(";"):
            other.execute(words)
        text = "INSERT INTO items SELECT max(value, (SELECT count(*) FROM items)) FROM json_each('[0, 1]') LIMIT 1"
        waiting = asyncio.create_task(ran(script(file, text, transaction=transaction)))
        done, _ = await asyncio.wait([waiting], timeout=0.8)
        assert not done
        other.execute("COMMIT")
        assert await waiting == [Ran("INSERT", 1)]
    assert other.execute("SELECT id FROM items").fetchall() == [(0,), (1,)]


async def test_nobody_waits_for_one_who_waits_for_him(
    file: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that has read holds up the other's commit: waiting for the other's lock would be for ever."""
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 3600)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ScriptFailed, match="database is locked"):
        await ran(script(file, "SELECT * FROM items; INSERT INTO items VALUES (1)"))


async def test_no_more_than_one_row_is_held_at_a_time_and_none_is_read(file: Path) -> None:
    text = "SELECT randomblob(1000000), CAST(randomblob(1000000) AS TEXT) FROM json_each('[1,2,3,4,5,6,7,8,9,0]')"
    tracemalloc.start()
    try:
        assert await ran(script(file, text)) == [Ran("SELECT", 10)]
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


async def test_a_time_limit_holds_for_few_rows_that_are_long(file: Path) -> None:
    text = f"SELECT randomblob(4000000) FROM json_each('{[0] * 60}')"
    with pytest.raises(ScriptFailed, match=r"SELECT\) took longer than 0\.02 s"):
        await ran(script(file, text, limit=0.02))
