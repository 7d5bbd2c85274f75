"""Full and delta import of tables by the SQL connector."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorContext,
    ConnectorError,
    DeletedObject,
    ImportedObject,
    NamedConnection,
    ReadEvent,
    ReadScope,
    ReadWarning,
    WatermarkLost,
)
from tenuto_identity.model.schema import Attribute, ObjectType, Writable
from tenuto_identity.model.values import DataType
from tests.identity.sql.conftest import OpenSql
from tests.identity.sql.databases import PostgresqlDatabase, SqlDatabase, SqliteDatabase

PERSON = ObjectType("person", "id", {"id": Attribute("id"), "name": Attribute("name")})
SCOPE = ReadScope((PERSON,))
DELTA = {"person": {"table": "people", "change_column": "changed_at"}}


def create_people(database: SqlDatabase, *rows: str) -> None:
    time = "timestamptz DEFAULT now()" if isinstance(database, PostgresqlDatabase) else "datetime"
    database.execute(f"CREATE TABLE people (id text, name text, changed_at {time})")
    for row in rows:
        database.execute(f"INSERT INTO people VALUES ({row})")


def objects(events: Iterator[ReadEvent]) -> list[ImportedObject]:
    return [each for each in events if isinstance(each, ImportedObject)]


def anchors(events: Iterator[ReadEvent]) -> list[str]:
    return [each.anchor for each in objects(events)]


def warnings(events: Iterator[ReadEvent]) -> list[str]:
    return [each.code for each in events if isinstance(each, ReadWarning)]


@contextmanager
def open_transaction(database: PostgresqlDatabase, statement: str) -> Iterator[Any]:
    """Execute a statement in a transaction that is left open; yields a function that commits it."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(database.url))
    loop.run_until_complete(connection.execute("BEGIN"))
    loop.run_until_complete(connection.execute(statement))
    try:
        yield lambda: loop.run_until_complete(connection.execute("COMMIT"))
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


# --- full import ------------------------------------------------------------------------------------------------------


def test_full_import_of_sql_table_sees_one_state_and_has_flat_memory(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    create_people(database)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    database.execute(
        f"INSERT INTO people (id, name) {numbers}"
        " SELECT CAST(100000 + i AS text), 'x' || replace(CAST(1000000000 + i AS text), '0', 'long name of a person')"
        " FROM n"
    )
    connector = open_connector(database.settings(types={"person": {"table": "people"}}, page_size=500), PERSON)
    tracemalloc.start()
    try:
        events = connector.read(SCOPE, None)
        seen = anchors(islice(events, 1))
        database.execute("UPDATE people SET name = 'changed'")
        names = set()
        for each in events:
            if isinstance(each, ImportedObject):
                seen.append(each.anchor)
                names.add(each.cells["name"][0] == "changed")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert names == {False}
    assert len(seen) == 20_000
    assert seen == sorted(seen)
    assert peak < 6_000_000, "20,000 rows of 200 characters, 500 at a time; 1.3 MB of it are the anchors of this test"


def test_full_import_of_sql_query_reads_rows_with_repeated_and_missing_keys(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    create_people(database, "'1', 'Ada', NULL", "'1', 'Ada again', NULL", "NULL, 'Nobody', NULL", "'2', 'Grace', NULL")
    query = "SELECT id, name FROM people WHERE name <> ';' -- all;"
    connector = open_connector(database.settings(types={"person": {"query": query}}, page_size=1), PERSON)
    assert sorted(anchors(connector.read(SCOPE, None))) == ["", "1", "1", "2"]
    with pytest.raises(ConnectorError, match="of the type person"):
        open_connector(database.settings(types={"person": {"query": "SELECT id FROM nothing"}}), PERSON).check()


def test_sql_table_and_columns_with_hostile_names_are_quoted(database: SqlDatabase, open_connector: OpenSql) -> None:
    database.execute("""CREATE TABLE "a""b; DROP TABLE x" (id text PRIMARY KEY, "n""); --" text)""")
    source = {"table": ['a"b; DROP TABLE x'], "columns": {"name": 'n"); --'}}
    connector = open_connector(database.settings(types={"person": source}), PERSON)
    database.execute("""INSERT INTO "a""b; DROP TABLE x" VALUES ('1', 'Ada')""")
    (found,) = objects(connector.read(SCOPE, None))
    assert found.cells == {"id": ("1",), "name": ("Ada",)}


def test_sql_column_types_are_discovered_and_a_mismatch_is_named(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    database.execute("""CREATE TABLE people (id integer PRIMARY KEY, name varchar(20), born date, ratio numeric,
                        active boolean, twice integer GENERATED ALWAYS AS (id * 2) STORED)""")
    (found,) = open_connector(database.settings()).discover().types
    types = {name: each.type for name, each in found.attributes.items()}
    assert found.anchor == "id"
    assert types == {
        "id": DataType.INTEGER,
        "name": DataType.TEXT,
        "born": DataType.DATE,
        "ratio": DataType.DECIMAL,
        "active": DataType.BOOLEAN,
        "twice": DataType.INTEGER,
    }
    assert found.attributes["twice"].writable is Writable.NO
    wrong = ObjectType("people", "id", {"id": Attribute("id"), "born": Attribute("born", DataType.BOOLEAN)})
    with pytest.raises(ConnectorError, match=r"column born of the table people has the type (?i:date), and .* boolean"):
        list(open_connector(database.settings(), wrong).read(ReadScope((wrong,)), None))
    missing = ObjectType("people", "id", {"id": Attribute("id"), "nmae": Attribute("nmae")})
    with pytest.raises(ConnectorError, match=r"has no column nmae .did you mean name"):
        open_connector(database.settings(), missing).check()


@pytest.mark.parametrize("data_type", [DataType.INTEGER, DataType.TEXT])
def test_sql_read_by_anchors_skips_anchors_that_cannot_be_keys(
    data_type: DataType, database: SqlDatabase, open_connector: OpenSql
) -> None:
    person = ObjectType("people", "id", {"id": Attribute("id", data_type)})
    team = ObjectType("teams", "name", {"name": Attribute("name")})
    database.execute("CREATE TABLE people (id integer PRIMARY KEY); CREATE TABLE teams (name text PRIMARY KEY)")
    database.execute("INSERT INTO people VALUES (1), (2); INSERT INTO teams VALUES ('red'), ('blue')")
    connector = open_connector(database.settings(), person, team)
    scope = ReadScope((person, team), anchors=("1", "red", "9" * 15))
    assert anchors(connector.read(scope, None)) == ["1", "red"]
    assert anchors(connector.read(ReadScope((person,), anchors=("red",)), None)) == []


def test_sql_statement_that_takes_too_long_fails_the_import(database: SqlDatabase, open_connector: OpenSql) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) AS id, 1 AS name FROM n"
    settings = database.settings(types={"person": {"query": endless}}, timeout_seconds=0.2)
    with pytest.raises(ConnectorError) as raised:
        list(open_connector(settings, PERSON).read(SCOPE, None))
    assert raised.value.code == "incomplete"


def test_sqlite_text_that_is_not_utf8_is_an_error_of_its_value(sqlite: SqliteDatabase, open_connector: OpenSql) -> None:
    create_people(sqlite, "'1', CAST(x'ff41' AS text), NULL", "'2', 'Grace', NULL")
    connector = open_connector(sqlite.settings(types={"person": {"table": "people"}}), PERSON)
    assert [each.cells["name"] for each in objects(connector.read(SCOPE, None))] == [("\udcffA",), ("Grace",)]


def test_postgresql_connection_that_ends_during_an_import_fails_it_and_an_idle_one_is_opened_again(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    create_people(postgresql, "'1', 'Ada', now()", "'2', 'Grace', now()", "'3', 'Alan', now()")
    connector = open_connector(postgresql.settings(types={"person": {"table": "people"}}, page_size=1), PERSON)
    kill = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'tenuto identity'"
    reading = connector.read(SCOPE, None)
    assert isinstance(next(reading), ImportedObject)
    postgresql.fetch(kill)
    with pytest.raises(ConnectorError) as raised:
        list(reading)
    assert raised.value.code == "unreachable"
    assert anchors(connector.read(SCOPE, None)) == ["1", "2", "3"]
    postgresql.fetch(kill)
    assert anchors(connector.read(SCOPE, None)) == ["1", "2", "3"]


# --- delta import -----------------------------------------------------------------------------------------------------


def delta(connector: Connector, since: Any) -> list[str]:
    return sorted(anchors(connector.read(SCOPE, since)))


def test_delta_of_sql_table_reads_ties_and_rows_without_a_time_again(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    at = "'2026-01-01 08:00:00'"
    create_people(database, "'1', 'Ada', '2026-01-01 07:59:59'", f"'2', 'Grace', {at}", "'3', 'Alan', NULL")
    connector = open_connector(database.settings(types=DELTA), PERSON)
    watermark = connector.watermark(SCOPE)
    database.execute(f"INSERT INTO people VALUES ('4', 'Edsger', {at})")
    assert delta(connector, watermark) == ["2", "3", "4"]
    overlapping = open_connector(database.settings(types=DELTA, overlap=1), PERSON)
    assert delta(overlapping, watermark) == ["1", "2", "3", "4"]
    other = {"person": {"table": "people", "change_column": "name"}}
    with pytest.raises(WatermarkLost, match="does not cover the column name"):
        list(open_connector(database.settings(types=other), PERSON).read(SCOPE, watermark))


def test_delta_of_sql_table_reports_marked_rows_as_deleted(database: SqlDatabase, open_connector: OpenSql) -> None:
    database.execute("CREATE TABLE people (id text, name text, version integer, state char(1))")
    database.execute("INSERT INTO people VALUES ('1', 'Ada', 1, 'A'), ('2', 'Grace', 1, NULL), ('3', 'Alan', 1, 'D')")
    source = {
        "table": "people",
        "change_column": "version",
        "deletion_marker": {"column": "state", "deleted": "D", "active": "A"},
    }
    connector = open_connector(database.settings(types={"person": source}), PERSON)
    assert anchors(connector.read(SCOPE, None)) == ["1", "2"]
    watermark = connector.watermark(SCOPE)
    database.execute("UPDATE people SET state = 'D', version = 2 WHERE id = '2'")
    events = list(connector.read(SCOPE, watermark))
    assert sorted(each.anchor for each in events if isinstance(each, DeletedObject)) == ["2", "3"]
    assert anchors(iter(events)) == ["1"]


def test_delta_of_sql_table_reports_no_deletion_of_a_key_that_has_an_active_row(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    database.execute("CREATE TABLE people (id integer, name text, version integer, ended text)")
    database.execute("INSERT INTO people VALUES (1, 'Ada', 1, '2020'), (1, 'Ada', 2, NULL), (2, 'Grace', 3, NULL)")
    person = ObjectType("person", "id", {"id": Attribute("id", DataType.INTEGER), "name": Attribute("name")})
    source = {"table": "people", "change_column": "version", "deletion_marker": {"column": "ended"}}
    connector = open_connector(database.settings(types={"person": source}), person)
    watermark = connector.watermark(ReadScope((person,)))
    database.execute("UPDATE people SET name = 'Ada K.', version = 4 WHERE ended IS NOT NULL")
    database.execute("UPDATE people SET ended = '2026', version = 5 WHERE id = 2")
    events = list(connector.read(ReadScope((person,)), watermark))
    assert [each.anchor for each in events if isinstance(each, DeletedObject)] == ["2"]


def test_watermark_of_postgresql_waits_for_transactions_that_may_commit_older_changes(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    create_people(postgresql, "'1', 'Ada', now()")
    settings = postgresql.settings(types=DELTA, settle_seconds=60)
    connector = open_connector(settings, PERSON)
    before = connector.watermark(SCOPE)
    found: list[Any] = []
    with open_transaction(postgresql, "INSERT INTO people VALUES ('late', 'Late', now())") as commit:
        postgresql.execute("INSERT INTO people VALUES ('2', 'Grace', now())")  # newer, and committed first
        taking = threading.Thread(target=lambda: found.append(connector.watermark(SCOPE)))
        taking.start()
        taking.join(0.3)
        assert taking.is_alive(), "the watermark must not be taken while the transaction is open"
        commit()
        taking.join(30)
    assert found != []
    assert found[0] is not None
    assert delta(connector, before) == ["1", "2", "late"]
    assert delta(connector, found[0]) == ["2"]


def test_time_in_the_future_does_not_hide_later_changes_of_postgresql(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    create_people(postgresql, "'1', 'Ada', '2999-01-01'")
    connector = open_connector(postgresql.settings(types=DELTA), PERSON)
    watermark = connector.watermark(SCOPE)
    postgresql.execute("INSERT INTO people VALUES ('2', 'Grace', now())")
    assert delta(connector, watermark) == ["1", "2"]


def test_postgresql_import_keeps_the_earlier_watermark_while_a_transaction_is_open(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    create_people(postgresql, "'1', 'Ada', now()")
    connector = open_connector(postgresql.settings(types=DELTA, settle_seconds=0), PERSON)
    before = connector.watermark(SCOPE)
    with open_transaction(postgresql, "SELECT 1") as commit:  # it has not written yet, and its now() is old already
        postgresql.execute("INSERT INTO people VALUES ('2', 'Grace', now())")
        assert connector.watermark(SCOPE) is None
        assert warnings(connector.read(SCOPE, before)) == ["watermark_unsettled", "no_deletions"]
        commit()
    assert connector.watermark(SCOPE) is not None
    assert warnings(connector.read(SCOPE, before)) == ["no_deletions"]


@pytest.mark.parametrize("changed", ["table", "query", "columns", "url", "connection"])
def test_delta_after_the_source_of_a_sql_type_was_changed_needs_a_full_import(
    changed: str, sqlite: SqliteDatabase, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = SqliteDatabase(tmp_path / "other")
    for each in (sqlite, other):
        create_people(each, "'1', 'Ada', '2026-01-01 08:00:00'")
        each.execute("CREATE VIEW staff AS SELECT * FROM people")

    def settings(database: SqliteDatabase, source: dict[str, Any]) -> dict[str, Any]:
        address = {"connection": "hr"} if changed == "connection" else database.settings()
        return {**address, "types": {"person": {"change_column": "changed_at", **source}}}

    def open_one(database: SqliteDatabase, source: dict[str, Any]) -> Connector:
        named = {"hr": NamedConnection(database.settings()["url"])}
        context = ConnectorContext((PERSON,), (tmp_path,), connections=named)
        return registry.open_connector("sql", settings(database, source), context)

    before: dict[str, Any] = {"query": "SELECT * FROM people"} if changed == "query" else {"table": "people"}
    changes: dict[str, dict[str, Any]] = {
        "table": {"table": "staff"},
        "query": {"query": "SELECT * FROM people WHERE id <> ''"},
        "columns": {"table": "people", "columns": {"name": "changed_at"}},
    }
    with (
        closing(open_one(sqlite, before)) as first,
        closing(open_one(sqlite, before)) as same,
        closing(open_one(sqlite if changed in changes else other, changes.get(changed, before))) as different,
    ):
        watermark = first.watermark(SCOPE)
        assert delta(same, watermark) == ["1"]
        with pytest.raises(WatermarkLost, match="another database, table or query"):
            delta(different, watermark)


def test_delta_by_a_table_of_changes_needs_all_changes_since_the_watermark(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    create_people(database, "'1', 'Ada', NULL")
    database.execute(f"CREATE TABLE changes (seq {database.key}, key text)")
    types = {"person": {"table": "people", "change_table": {"table": "changes"}}}
    connector = open_connector(database.settings(types=types), PERSON)
    assert connector.watermark(SCOPE) is None, "an empty table of changes proves nothing"
    database.execute("INSERT INTO changes (key) VALUES ('1'), ('2')")
    watermark = connector.watermark(SCOPE)
    assert list(connector.read(SCOPE, watermark))[:-1] == []
    database.execute("INSERT INTO changes (key) VALUES ('1'), ('gone')")
    events = list(connector.read(SCOPE, watermark))
    assert (anchors(iter(events)), events[-2 if isinstance(events[-2], DeletedObject) else 0]) == (
        ["1"],
        DeletedObject("person", "gone"),
    )
    database.execute("DELETE FROM changes WHERE seq <= 2")
    with pytest.raises(WatermarkLost):
        list(connector.read(SCOPE, watermark))
    database.execute("DELETE FROM changes")
    with pytest.raises(WatermarkLost):
        list(connector.read(SCOPE, watermark))
