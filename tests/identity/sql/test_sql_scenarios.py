"""Acceptance scenario A65: a table as source and another one as target, on PostgreSQL and on SQLite."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from tests.identity.scenario_site import NIGHT, PEOPLE, Site
from tests.identity.sql.databases import PASSWORD, ROLE, PostgresqlDatabase, SqlDatabase, SqliteDatabase
from tests.identity.sql.test_writing import kill_connections

SOURCE = """
CREATE TABLE people (employee_id text PRIMARY KEY, first text, last text, mail text, department text, title text,
                     manager text, starts date, ends date, changed_at {time} NOT NULL);
CREATE TABLE accounts (uid text PRIMARY KEY, cn varchar(40) NOT NULL, mail varchar(40) UNIQUE, title {title},
                       manager text REFERENCES accounts (uid){tx});
"""
NOON = "2026-03-01 12:00:00"
LONG_TITLE = "Director of everything"


@pytest.fixture(autouse=True)
def _master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))


def create_tables(database: SqlDatabase) -> None:
    is_postgresql = isinstance(database, PostgresqlDatabase)
    database.execute(
        SOURCE.format(
            time="timestamptz" if is_postgresql else "datetime",
            title="varchar(20)" if is_postgresql else "text CHECK (length(title) <= 20)",
            tx=", tx text DEFAULT pg_current_xact_id()::text" if is_postgresql else "",
        )
    )
    for row in PEOPLE:
        values = ", ".join("NULL" if not value else f"'{value}'" for value in row.split(","))
        database.execute(f"INSERT INTO people VALUES ({values}, '{NOON}')")


def definitions(site: Site, database: SqlDatabase) -> dict[str, Any]:
    """Return the usual definitions with a table as source and another one as the only target."""
    whole: dict[str, Any] = yaml.safe_load(site.definitions())
    hr, target, _ = whole["systems"]
    hr["connector"] = target["connector"] = "sql"
    source = {"person": {"table": "people", "change_column": "changed_at"}}
    hr["settings"] = database.settings(types=source, read_only=True)
    target["settings"] = database.settings(types={"account": {"table": "accounts"}})
    manager = {"type": "reference", "to": "account"}
    target["types"] = [
        {
            "name": "account",
            "anchor": "uid",
            "attributes": {"uid": "text", "cn": "text", "mail": "text", "title": "text", "manager": manager},
        }
    ]
    del whole["systems"][2:]
    del whole["sync_rules"][2:]
    rule = whole["sync_rules"][1]
    rule["out"]["type"] = "account"
    rule["map"] = {"same": ["mail", "title", "manager"], "uid": "login", "cn": "display"}
    return whole


async def night(site: Site) -> dict[str, Any]:
    return {f"{system} {profile}": await site.run(system, profile) for system, profile in NIGHT if system != "LDAP"}


async def accounts(database: SqlDatabase) -> dict[str, tuple[Any, ...]]:
    rows = await asyncio.to_thread(database.fetch, "SELECT uid, mail, title, manager FROM accounts")
    return {row[0]: tuple(row[1:]) for row in rows}


EXPECTED = {
    "ada.lovelace": ("ada@example.org", "Director", None),
    "grace.hopper": ("grace@example.org", "Engineer", "ada.lovelace"),
    "alan.turing": ("alan@example.org", "Fellow", "ada.lovelace"),
    "edsger.dijkstra": ("edsger@example.org", "Engineer", "grace.hopper"),
}


async def test_a65_table_as_source_and_target(site: Site, database: SqlDatabase) -> None:
    await asyncio.to_thread(create_tables, database)
    await site.app.secrets.set("sql", PASSWORD)
    whole = definitions(site, database)
    await site.apply(yaml.safe_dump(whole))
    first = await night(site)
    assert {name: run.state for name, run in first.items()} == dict.fromkeys(first, "completed")
    assert await accounts(database) == EXPECTED
    assert await site.count("pending_exports") == 0
    if isinstance(database, PostgresqlDatabase):
        transactions = await asyncio.to_thread(database.fetch, "SELECT DISTINCT tx FROM accounts")
        assert len(transactions) == 1, "one transaction for each batch"

    async def execute(statement: str) -> None:
        await asyncio.to_thread(database.execute, statement)

    # A delta finds a change at the same instant as the watermark, and no deleted row; the full import finds that.
    await execute(f"UPDATE people SET title = 'Admiral', changed_at = '{NOON}' WHERE employee_id = '1002'")
    await execute("DELETE FROM people WHERE employee_id = '1004'")
    delta = await site.run("HR", "Delta Import")
    assert (delta.state, delta.changes) == ("completed_with_warning", ["Updated"])
    assert "does not find deletions" in (delta.error or "")
    assert (await site.run("HR", "Delta Import")).items == []
    assert (await night(site))["HR Full Import"].changes == ["Deleted"]
    expected = {**EXPECTED, "grace.hopper": ("grace@example.org", "Admiral", "ada.lovelace")}
    del expected["edsger.dijkstra"]
    assert await accounts(database) == expected

    # One row is refused, with the reason; its neighbour is written. HR corrects the value.
    await execute(f"UPDATE people SET title = '{LONG_TITLE}', changed_at = '2026-03-02' WHERE employee_id = '1001'")
    await execute("UPDATE people SET title = 'Professor', changed_at = '2026-03-02' WHERE employee_id = '1003'")
    run = (await night(site))["AD Export"]
    assert (run.changes, run.errors) == (["Exported"], ["refused"])
    (message,) = [item["message"] for item in run.items if item["error"]]
    assert "title" in message
    assert (await accounts(database))["alan.turing"][1] == "Professor"
    await execute("UPDATE people SET title = 'Countess', changed_at = '2026-03-03' WHERE employee_id = '1001'")
    for system, profile in (("HR", "Delta Import"), ("HR", "Delta Sync"), ("AD", "Export"), ("AD", "Full Import")):
        assert (await site.run(system, profile)).errors == []
    assert (await accounts(database))["ada.lovelace"][1] == "Countess"
    assert await site.count("pending_exports") == 0

    # A column of another type fails the import before anything is read, and names column and types.
    whole["systems"][0]["types"][0]["attributes"]["starts"] = "boolean"
    whole["metaverse"][0]["attributes"]["starts"] = "boolean"
    await site.apply(yaml.safe_dump(whole))
    failed = await site.run("HR", "Full Import")
    assert failed.state == "failed"
    assert "column starts of the table people has the type" in (failed.error or "")


@pytest.fixture
def named_connection(postgresql: PostgresqlDatabase, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a connection to the database in the settings of the worker."""
    url = postgresql.settings()["url"].replace(f"{ROLE}@", f"{ROLE}:{PASSWORD}@")
    monkeypatch.setenv("TENUTO_CONNECTIONS", json.dumps({"target": {"url": url}}))
    return "target"


async def test_a65_export_whose_connection_is_killed_converges(
    named_connection: str, site: Site, postgresql: PostgresqlDatabase
) -> None:
    await asyncio.to_thread(create_tables, postgresql)
    # The server ends the connection in the middle of the batch, and again when the connector repeats the batch.
    await asyncio.to_thread(kill_connections, postgresql, when="NEW.uid = 'alan.turing'", count=2, table="accounts")
    await site.app.secrets.set("sql", PASSWORD)
    whole = definitions(site, postgresql)
    whole["systems"][1]["settings"] = {"connection": named_connection, "types": {"account": {"table": "accounts"}}}
    await site.apply(yaml.safe_dump(whole))
    runs = await night(site)
    assert runs["AD Export"].state == "failed"
    assert "terminating connection due to administrator command" in runs["AD Export"].error
    assert PASSWORD not in runs["AD Export"].error
    assert await accounts(postgresql) == {}
    assert (await site.run("AD", "Export")).state == "completed"
    assert (await site.run("AD", "Full Import")).errors == []
    assert await accounts(postgresql) == EXPECTED
    assert await site.count("pending_exports") == 0


async def test_a65_row_that_is_committed_late_is_imported_by_the_next_delta(
    site: Site, postgresql: PostgresqlDatabase
) -> None:
    await asyncio.to_thread(create_tables, postgresql)
    await site.app.secrets.set("sql", PASSWORD)
    whole = definitions(site, postgresql)
    whole["systems"][0]["settings"]["settle_seconds"] = 0
    await site.apply(yaml.safe_dump(whole))
    assert (await site.run("HR", "Full Import")).state == "completed"
    late = await asyncpg.connect(postgresql.url)
    try:
        await late.execute("BEGIN")
        await late.execute("UPDATE people SET title = 'Admiral', changed_at = now() WHERE employee_id = '1002'")
        newer = "UPDATE people SET title = 'Countess', changed_at = clock_timestamp() WHERE employee_id = '1001'"
        await asyncio.to_thread(postgresql.execute, newer)
        run = await site.run("HR", "Delta Import")
        assert run.changes == ["Updated"]
        assert "the earlier watermark is kept" in (run.error or "")
        await late.execute("COMMIT")
    finally:
        await late.close()
    run = await site.run("HR", "Delta Import")
    assert run.changes == ["Updated"]
    assert "the earlier watermark is kept" not in (run.error or "")
    assert [item["anchor"] for item in run.items] == ["1002"]
    assert (await site.run("HR", "Delta Import")).items == []


HISTORY = """
CREATE TABLE people (employee_id text, first text, last text, mail text, department text, title text, manager text,
                     starts date, ends date, version integer, ended text);
CREATE TABLE changes (seq integer PRIMARY KEY, key text);
INSERT INTO changes (key) VALUES ('1000');
CREATE TRIGGER log_insert AFTER INSERT ON people BEGIN INSERT INTO changes (key) VALUES (NEW.employee_id); END;
CREATE TRIGGER log_update AFTER UPDATE ON people BEGIN INSERT INTO changes (key) VALUES (NEW.employee_id); END;
CREATE TABLE accounts (uid text PRIMARY KEY, cn text, mail text, title text, manager text);
"""


@pytest.mark.parametrize("page_size", [None, 1])
@pytest.mark.parametrize(
    "changes", [{"change_column": "version"}, {"change_table": {"table": "changes"}}], ids=["column", "table"]
)
async def test_delta_of_sql_keeps_a_person_with_an_ended_and_an_active_row(
    changes: dict[str, Any], page_size: int | None, site: Site, sqlite: SqliteDatabase
) -> None:
    sqlite.execute(HISTORY)
    for row in PEOPLE:
        values = ", ".join("NULL" if not value else f"'{value}'" for value in row.split(","))
        sqlite.execute(f"INSERT INTO people VALUES ({values}, 1, NULL)")
    whole = definitions(site, sqlite)
    source = {"table": "people", "deletion_marker": {"column": "ended"}, **changes}
    whole["systems"][0]["settings"]["types"]["person"] = source
    for profile in whole["systems"][0]["run_profiles"]:
        if page_size is not None and profile["kind"].endswith("import"):
            profile["page_size"] = page_size
    await site.apply(yaml.safe_dump(whole))
    await site.run("HR", "Full Import")
    active = "SELECT employee_id, first, last, mail, department, 'Countess', manager, starts, ends, 3, NULL"
    sqlite.execute(f"""
        UPDATE people SET ended = '2026-03-02', version = 2 WHERE employee_id = '1001';
        INSERT INTO people {active} FROM people WHERE employee_id = '1001';
    """)
    assert (await site.run("HR", "Delta Import")).changes == ["Updated"]
    sqlite.execute("UPDATE people SET ended = '2026-03-03', version = 4 WHERE employee_id = '1001' AND ended IS NULL")
    assert (await site.run("HR", "Delta Import")).changes == ["Deleted"]
