"""Export to tables by the SQL connector: refusals, transactions, lost connections, markers."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    ImportedObject,
    ReadScope,
    WriteChange,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType
from tests.identity.sql.conftest import OpenSql
from tests.identity.sql.databases import PostgresqlDatabase, SqlDatabase, SqliteDatabase
from tests.identity.sql.test_reading import open_transaction

PERSON = ObjectType(
    "people",
    "id",
    {
        "id": Attribute("id"),
        "name": Attribute("name"),
        "room": Attribute("room"),
        "manager": Attribute("manager", DataType.REFERENCE, to="people"),
    },
)
TABLE = """CREATE TABLE people (id {key} PRIMARY KEY, name varchar(10) NOT NULL, room integer,
           manager {key} REFERENCES people (id){more})"""


def create(anchor: str | None = None, *, uncertain: bool = False, **values: str) -> WriteRequest:
    sent = {**values} if anchor is None else {"id": anchor, **values}
    changes = tuple(WriteChange(name, ChangeOp.SET, (value,)) for name, value in sent.items())
    return WriteRequest(ExportKind.CREATE, "people", None, anchor or "", changes, uncertain=uncertain)


def update(anchor: str, *changes: WriteChange) -> WriteRequest:
    return WriteRequest(ExportKind.UPDATE, "people", anchor, anchor, changes)


def delete(anchor: str) -> WriteRequest:
    return WriteRequest(ExportKind.DELETE, "people", anchor, anchor)


def put(name: str, value: str) -> WriteChange:
    return WriteChange(name, ChangeOp.SET, (value,))


def outcomes(results: list[WriteResult]) -> list[str | None]:
    return [each.error or each.outcome.value for each in results]


def names(database: SqlDatabase) -> dict[str, str]:
    return dict(database.fetch("SELECT id, name FROM people ORDER BY id"))


@pytest.fixture
def connector(database: SqlDatabase, open_connector: OpenSql) -> Connector:
    database.execute(TABLE.format(key="text", more=""))
    return open_connector(database.settings(), PERSON)


def test_row_that_the_database_refuses_names_its_column_and_the_other_rows_are_written(
    database: SqlDatabase, connector: Connector
) -> None:
    results = connector.write(
        [
            create("1", name="Ada"),
            create("2", name="Grace", room="two"),
            create("3"),
            create("4", name="Alan", manager="9"),
            create("5", name="Edsger", manager="1", room="5"),
            update("1", put("name", "Ada L.")),
            update("9", put("name", "Nobody")),
            create("1", name="Somebody"),
        ]
    )
    assert outcomes(results) == ["ok", "refused", "refused", "missing_reference", "ok", "ok", "refused", "exists"]
    assert results[3].outcome is WriteOutcome.MISSING
    assert "column room (" in (results[1].text or "")
    assert "name" in (results[2].text or "")
    assert names(database) == {"1": "Ada L.", "5": "Edsger"}
    assert outcomes(connector.write([delete("1"), delete("5")])) == ["refused", "ok"], "row 5 refers to row 1"
    assert outcomes(connector.write([delete("1"), delete("1")])) == ["ok", "ok"]


def test_text_that_is_too_long_for_its_postgresql_column_is_refused_and_not_cut_off(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    postgresql.execute(TABLE.format(key="character(4)", more=""))
    connector = open_connector(postgresql.settings(), PERSON)
    results = connector.write([create("1", name="A name of many characters"), create("12345", name="Ada")])
    assert outcomes(results) == ["refused", "refused"]
    assert "column name (character varying)" in (results[0].text or "")
    assert names(postgresql) == {}


def test_refusal_of_postgresql_shows_no_values_of_other_columns(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    postgresql.execute("""CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, room integer CHECK (room > 0),
                          manager text REFERENCES people (id), hash text DEFAULT 'canary')""")
    connector = open_connector(postgresql.settings(), PERSON)
    connector.write([create("1", name="Ada")])
    results = connector.write(
        [
            update("1", WriteChange("name", ChangeOp.CLEAR)),
            update("1", put("room", "-1")),
            create("2", name="Grace", manager="9"),
        ]
    )
    assert outcomes(results) == ["refused", "refused", "missing_reference"]
    without_name, without_room, without_manager = (each.text or "" for each in results)
    assert "canary" not in without_name + without_room
    assert "name" in without_name
    assert "people_room_check" in without_room
    assert "(manager)=(9)" in without_manager


def test_update_writes_only_the_changed_columns(database: SqlDatabase, connector: Connector) -> None:
    connector.write([create("1", name="Ada", room="7"), create("2", name="Grace", manager="1")])
    database.execute("UPDATE people SET room = 8")  # by another client
    clear = WriteChange("manager", ChangeOp.CLEAR)
    kept = WriteChange("name", ChangeOp.REMOVE, ("another value",))
    assert outcomes(connector.write([update("1", put("name", "Ada L.")), update("2", clear, kept)])) == ["ok", "ok"]
    found = database.fetch("SELECT id, name, room, manager FROM people ORDER BY id")
    assert found == [("1", "Ada L.", 8, None), ("2", "Grace", 8, None)]


def test_sql_key_that_is_not_unique_is_not_updated_or_deleted(database: SqlDatabase, open_connector: OpenSql) -> None:
    database.execute("CREATE TABLE people (id text, name text, room integer, manager text)")
    database.execute("INSERT INTO people (id, name) VALUES ('1', 'Ada'), ('1', 'Ada')")
    connector = open_connector(database.settings(), PERSON)
    results = connector.write([update("1", put("name", "x")), delete("1")])
    assert outcomes(results) == ["refused", "refused"]
    assert database.fetch("SELECT name FROM people") == [("Ada",), ("Ada",)]


def test_constraint_that_fails_at_the_commit_refuses_only_its_row(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    database.execute(TABLE.format(key="text", more=" DEFERRABLE INITIALLY DEFERRED"))
    connector = open_connector(database.settings(), PERSON)
    results = connector.write([create("1", name="Ada"), create("2", name="Grace", manager="9"), create("3", name="A")])
    assert outcomes(results) == ["ok", "missing_reference", "ok"]
    assert names(database) == {"1": "Ada", "3": "A"}


def test_deleted_row_is_marked_and_restored_by_a_create(database: SqlDatabase, open_connector: OpenSql) -> None:
    time = "timestamptz" if isinstance(database, PostgresqlDatabase) else "datetime"
    database.execute(
        f"CREATE TABLE people (id text PRIMARY KEY, name text, room integer, manager text, left_at {time})"
    )
    marker = {"people": {"deletion_marker": {"column": "left_at"}}}
    connector = open_connector(database.settings(types=marker), PERSON)
    connector.write([create("1", name="Ada", room="1")])
    assert outcomes(connector.write([delete("1"), delete("1"), update("1", put("name", "x"))])) == [
        "ok",
        "ok",
        "refused",
    ]
    assert database.fetch("SELECT name, left_at IS NULL FROM people") in ([("Ada", False)], [("Ada", 0)])
    assert outcomes(connector.write([create("1", name="Ada again")])) == ["ok"]
    assert database.fetch("SELECT name, room FROM people WHERE left_at IS NULL") == [("Ada again", 1)]


def test_uncertain_create_with_a_generated_key_finds_its_row(database: SqlDatabase, open_connector: OpenSql) -> None:
    database.execute(f"CREATE TABLE people (id {database.key}, name text, room integer, manager bigint)")
    person = ObjectType("people", "id", {"id": Attribute("id", DataType.INTEGER), "name": Attribute("name")})
    connector = open_connector(database.settings(), person)
    (first,) = connector.write([create(name="Ada")])
    (again,) = connector.write([create(name="Ada", uncertain=True)])
    (other,) = connector.write([create(name="Ada")])
    assert (first.anchor, again.anchor) == ("1", "1")
    assert other.anchor == "2"
    assert outcomes(connector.write([create(name="Ada", uncertain=True)])) == ["exists"], "two rows have its values"


@pytest.mark.parametrize(("key", "owner"), [("integer", "text"), ("text", "integer")])
def test_list_whose_columns_have_other_types_than_the_key_is_read_and_written(
    key: str, owner: str, sqlite: SqliteDatabase, open_connector: OpenSql
) -> None:
    sqlite.execute(f"CREATE TABLE people (id {key} PRIMARY KEY); CREATE TABLE rooms (person {owner}, room text)")
    number = Attribute("id", DataType.INTEGER)
    person = ObjectType("people", "id", {"id": number, "rooms": Attribute("rooms", DataType.INTEGER, multi=True)})
    lists = {"people": {"lists": {"rooms": {"table": "rooms", "key": "person", "value": "room"}}}}
    connector = open_connector(sqlite.settings(types=lists), person)
    rooms = WriteChange("rooms", ChangeOp.SET, (7, 8))
    created = WriteRequest(ExportKind.CREATE, "people", "1", "", (put("id", "1"), rooms))
    added = update("1", WriteChange("rooms", ChangeOp.ADD, (8, 9)))
    replaced = update("1", WriteChange("rooms", ChangeOp.SET, (9, 10)))
    assert outcomes(connector.write([created, added])) == ["ok", "ok"]
    (found, _) = connector.read(ReadScope((person,)), None)
    assert isinstance(found, ImportedObject)
    assert found.cells["rooms"] == ("7", "8", "9")
    assert outcomes(connector.write([replaced])) == ["ok"]
    assert sorted(sqlite.fetch("SELECT room FROM rooms WHERE person = 1")) == [("10",), ("9",)]


def test_batch_is_sent_again_once_after_the_connection_was_killed(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    postgresql.execute(TABLE.format(key="text", more=""))
    kill_connections(postgresql, when="NEW.name = 'Grace'", count=1)
    connector = open_connector(postgresql.settings(), PERSON)
    batch = [create("1", name="Ada"), create("2", name="Grace"), create("3", name="Alan")]
    assert outcomes(connector.write(batch)) == ["ok", "ok", "ok"]
    assert names(postgresql) == {"1": "Ada", "2": "Grace", "3": "Alan"}

    kill_connections(postgresql, when="NEW.name = 'Edsger'", count=2)
    with pytest.raises(ConnectorError) as raised:
        connector.write([create("4", name="Barbara"), create("5", name="Edsger")])
    assert raised.value.code == "unreachable"
    assert len(names(postgresql)) == 3, "the transaction of the batch was rolled back"
    assert outcomes(connector.write([create("4", name="Barbara"), create("5", name="Edsger")])) == ["ok", "ok"]


def kill_connections(database: PostgresqlDatabase, *, when: str, count: int, table: str = "people") -> None:
    """Let the server end the first connections that insert such a row. A sequence is not rolled back with them."""
    database.execute(f"""
        DROP SEQUENCE IF EXISTS kills; CREATE SEQUENCE kills;
        CREATE OR REPLACE FUNCTION kill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            IF {when} AND nextval('kills') <= {count} THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
            RETURN NEW;
        END $$;
        CREATE OR REPLACE TRIGGER kill BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION kill();
    """)


async def test_sqlite_export_that_waits_for_a_lock_does_not_block_the_event_loop(
    sqlite: SqliteDatabase, open_connector: OpenSql
) -> None:
    sqlite.execute(TABLE.format(key="text", more=""))
    connector = open_connector(sqlite.settings(timeout_seconds=60), PERSON)
    locking = sqlite3.connect(sqlite.path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(asyncio.to_thread(connector.write, [create("1", name="Ada")]))
    done, _ = await asyncio.wait([writing], timeout=0.3)
    assert not done
    locking.execute("COMMIT")  # by the event loop, which is not blocked
    locking.close()
    assert outcomes(await asyncio.wait_for(writing, 60)) == ["ok"]


def test_locked_sqlite_file_fails_the_export_after_the_timeout(sqlite: SqliteDatabase, open_connector: OpenSql) -> None:
    sqlite.execute(TABLE.format(key="text", more=""))
    connector = open_connector(sqlite.settings(timeout_seconds=0.2), PERSON)
    locking = sqlite3.connect(sqlite.path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConnectorError, match="database is locked") as raised:
        connector.write([create("1", name="Ada"), create("2", name="Grace")])
    assert raised.value.code == "busy"
    locking.close()
    assert outcomes(connector.write([create("1", name="Ada")])) == ["ok"]


def test_rows_that_another_postgresql_transaction_has_locked_are_busy_without_a_long_wait_each(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    postgresql.execute(TABLE.format(key="text", more=""))
    connector = open_connector(postgresql.settings(timeout_seconds=1), PERSON)
    connector.write([create(str(number), name="Ada") for number in range(6)])
    batch = [update(str(number), put("name", "Grace")) for number in range(6)]
    with open_transaction(postgresql, "SELECT FROM people WHERE id < '4' FOR UPDATE"):
        for requests in (batch, [create("9"), *batch]):  # also if a request is refused before
            results = connector.write(requests)[-6:]
            assert outcomes(results) == ["busy"] * 4 + ["ok"] * 2
            assert {each.outcome for each in results[:4]} == {WriteOutcome.MISSING}
            assert all("lock timeout" in (each.text or "") for each in results[:4]), "not the timeout of statements"
    assert outcomes(connector.write(batch)) == ["ok"] * 6


@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("when", ["BEFORE", "AT COMMIT"])
def test_conflict_with_another_postgresql_transaction_is_busy(
    state: str, when: str, postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    trigger = "TRIGGER refuse BEFORE INSERT ON people"
    if when == "AT COMMIT":
        trigger = "CONSTRAINT TRIGGER refuse AFTER INSERT ON people DEFERRABLE INITIALLY DEFERRED"
    postgresql.execute(f"""{TABLE.format(key="text", more="")};
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.name = 'Grace' THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '{state}'; END IF;
            RETURN NEW;
        END $$;
        CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION refuse();
    """)
    connector = open_connector(postgresql.settings(), PERSON)
    results = connector.write([create("1", name="Ada"), create("2", name="Grace")])
    assert outcomes(results) == (["busy", "busy"] if when == "AT COMMIT" else ["ok", "busy"])
    assert names(postgresql) == ({} if when == "AT COMMIT" else {"1": "Ada"})


def test_sql_row_whose_statement_takes_too_long_is_busy_and_the_other_rows_are_written(
    database: SqlDatabase, open_connector: OpenSql
) -> None:
    database.execute(TABLE.format(key="text", more=""))
    if isinstance(database, PostgresqlDatabase):
        database.execute("""
            CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$;
            CREATE TRIGGER wait BEFORE INSERT ON people FOR EACH ROW WHEN (NEW.name = 'slow') EXECUTE FUNCTION wait();
        """)
    else:
        database.execute(
            "CREATE VIEW n AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        )
        database.execute("""CREATE TRIGGER wait BEFORE INSERT ON people WHEN NEW.name = 'slow' BEGIN
            UPDATE people SET room = (SELECT max(i) FROM n); END""")
    connector = open_connector(database.settings(timeout_seconds=1), PERSON)
    results = connector.write([create("1", name="Ada"), create("2", name="slow"), create("3", name="Alan")])
    assert outcomes(results) == ["ok", "busy", "ok"]
    assert names(database) == {"1": "Ada", "3": "Alan"}
    if isinstance(database, PostgresqlDatabase):
        slow = [create(str(number), name="slow") for number in range(4, 9)]
        assert outcomes(connector.write([*slow, create("9", name="Grace")])) == ["busy"] * 6, "the batch is given up"


def test_read_only_settings_allow_no_writes(database: SqlDatabase, open_connector: OpenSql) -> None:
    database.execute("CREATE TABLE people (id text PRIMARY KEY, name text, room integer, manager text)")
    connector: Any = open_connector(database.settings(read_only=True), PERSON)
    assert not connector.capabilities.export
    with pytest.raises(ConnectorError, match="reading only"):
        connector.write([create("1", name="Ada")])
    with pytest.raises(ConnectorError, match=r"read-?only"):  # the session itself, whatever a view or function does
        connector._session.execute("INSERT INTO people (id) VALUES ('1')")
