"""The conformance suite over the SQL connector on both databases, with each way to find changes and to delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tenuto_identity.connectors.conformance import (
    CHECKS,
    Check,
    ConnectorUnderTest,
    Sample,
)
from tenuto_identity.connectors.contract import Connector
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.values import DataType
from tests.identity.sql.conftest import OpenSql
from tests.identity.sql.databases import PostgresqlDatabase, SqlDatabase, SqliteDatabase

ATTRIBUTES = {
    "id": Attribute("id"),
    "name": Attribute("name"),
    "title": Attribute("title"),
    "size": Attribute("size", DataType.INTEGER),
    "active": Attribute("active", DataType.BOOLEAN),
    "born": Attribute("born", DataType.DATE),
    "seen": Attribute("seen", DataType.DATETIME),
    "ratio": Attribute("ratio", DataType.DECIMAL),
    "photo": Attribute("photo", DataType.BINARY),
    "phones": Attribute("phones", multi=True),
}
PERSON = ObjectType("person", anchor="id", attributes=ATTRIBUTES)
NUMBERED = ObjectType(
    "person", anchor="id", attributes={**ATTRIBUTES, "id": Attribute("id", DataType.INTEGER)}, address="name"
)

COLUMNS = """name text, "the title" varchar(200), size bigint, active boolean, born date, seen {time}, ratio numeric,
             photo {binary}"""
PHONES = {"table": "phones", "key": "person_id", "value": "phone"}


def columns(database: SqlDatabase) -> str:
    is_postgresql = isinstance(database, PostgresqlDatabase)
    return COLUMNS.format(
        time="timestamptz" if is_postgresql else "datetime", binary="bytea" if is_postgresql else "blob"
    )


def with_change_table(database: SqlDatabase) -> None:
    """Create people whose changes triggers write into a table; rows are deleted."""
    key_type = "text" if isinstance(database, SqliteDatabase) else "varchar(50)"
    database.execute(f"""
        CREATE TABLE people (id {key_type} PRIMARY KEY, {columns(database)});
        CREATE TABLE phones (person_id {key_type} REFERENCES people (id), phone text, UNIQUE (person_id, phone));
        CREATE TABLE changes (seq {database.key}, id {key_type});
    """)
    if isinstance(database, PostgresqlDatabase):
        database.execute("""
            CREATE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
            BEGIN INSERT INTO changes (id) VALUES (coalesce(NEW.id, OLD.id)); RETURN NULL; END $$;
            CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON people FOR EACH ROW EXECUTE FUNCTION log_change();
        """)
        return
    for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        database.execute(
            f"CREATE TRIGGER log_{event} AFTER {event} ON people BEGIN INSERT INTO changes (id) VALUES ({row}.id); END"
        )


def with_change_column(database: SqlDatabase) -> None:
    """Create people with generated keys, a change column and a deletion marker."""
    database.execute(
        f"""
        CREATE TABLE people (id {database.key}, {columns(database)}, version bigint, deleted_at {{time}});
        CREATE TABLE phones (person_id bigint REFERENCES people (id), phone text);
    """.format(time="timestamptz" if isinstance(database, PostgresqlDatabase) else "datetime")
    )
    if isinstance(database, PostgresqlDatabase):
        database.execute("""
            CREATE SEQUENCE versions; GRANT USAGE ON versions TO PUBLIC;
            CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN NEW.version := nextval('versions'); RETURN NEW; END $$;
            CREATE TRIGGER count BEFORE INSERT OR UPDATE ON people FOR EACH ROW EXECUTE FUNCTION count_change();
        """)
        return
    for event, more in (("INSERT", ""), ("UPDATE", " WHEN NEW.version IS OLD.version")):
        database.execute(f"""CREATE TRIGGER count_{event} AFTER {event} ON people {more} BEGIN
            UPDATE people SET version = (SELECT coalesce(max(version), 0) + 1 FROM people) WHERE id = NEW.id; END""")


def person(number: int) -> Sample:
    values: dict[str, tuple[str | int | bool, ...]] = {
        "id": (f"{number:04}",),
        "name": (f"Person {number}",),
        "size": (9007199254740993 + number,),
        "active": (number % 2 == 0,),
        "born": (f"2000-01-{number:02}",),
        "seen": (f"2026-01-{number:02}T08:30:00Z",),
        "ratio": (f"{number}.25",),
        "photo": ("AAECAw==",),
        "phones": (f"+44 {number}", f"+49 {number}"),
    }
    return Sample(f"{number:04}", values)


def numbered_person(number: int) -> Sample:
    values = {name: value for name, value in person(number).values.items() if name != "id"}
    return Sample(f"Person {number}", values)


SYSTEMS: dict[str, tuple[ObjectType, Callable[[int], Sample], Callable[[SqlDatabase], None], dict[str, Any]]] = {
    "change-table": (PERSON, person, with_change_table, {"change_table": {"table": "changes", "key": "id"}}),
    "change-column": (
        NUMBERED,
        numbered_person,
        with_change_column,
        {"change_column": "version", "deletion_marker": {"column": "deleted_at"}},
    ),
    "change-column-only": (NUMBERED, numbered_person, with_change_column, {"change_column": "version"}),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, database: SqlDatabase, open_connector: OpenSql) -> ConnectorUnderTest:
    object_type, sample, create, more = SYSTEMS[request.param]
    create(database)
    source = {"table": "people", "columns": {"title": "the title"}, "lists": {"phones": PHONES}, **more}
    settings = database.settings(page_size=2, types={"person": source})

    def open_one(*, read_only: bool = False) -> Connector:
        return open_connector(settings, object_type, read_only=read_only)

    @contextmanager
    def renamed_table() -> Iterator[None]:
        database.execute("ALTER TABLE phones RENAME TO lost")
        yield
        database.execute("ALTER TABLE lost RENAME TO phones")

    def forget_changes() -> None:
        database.execute("DELETE FROM changes WHERE seq < (SELECT max(seq) FROM changes)")

    return ConnectorUnderTest(
        open=open_one,
        object_type=object_type,
        sample=sample,
        text_attribute="title",
        multi_attribute="phones",
        renamed=(lambda address: f"{address} the second") if object_type is NUMBERED else None,
        interrupted=renamed_table,
        forget_changes=forget_changes if "change_table" in more else None,
        delta_has_deletions="change_table" in more or "deletion_marker" in more,
        delta_repeats_newest="change_column" in more,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_sql_connector_passes_the_conformance_suite(check: Check, system: ConnectorUnderTest) -> None:
    check(system)
