"""The step kind sql (B60, B61): scripts on PostgreSQL with a separate login, on SQLite files, with other drivers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import asyncpg
import pytest
from pydantic import SecretStr

from tenuto import Step, Tenuto, logs, manual
from tenuto.errors import Forbidden, Invalid
from tenuto.jobs import redaction
from tenuto.jobs.context import Context
from tenuto.jobs.redaction import Redactor
from tenuto.model.definitions.sql_scripts import Script, StatementResult
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.script_runner import SQL as SCRIPTS
from tenuto.postgres.script_runner import load_own_login
from tenuto.secret_encryption import MasterKey
from tenuto.settings import ConnectionSettings, load_settings
from tenuto.steps import sql_script as sql_script
from tenuto.steps.sql_script import BUILT_IN_DRIVERS, resolve_file
from tenuto.store.work.activities import ActivityDetails
from tests.support.errors import raises_code
from tests.support.model_values import make_held_task
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

_number = count(1)
PASSWORD = "pa55 w/rd:for@scripts"


@pytest.fixture(autouse=True)
def forget_values() -> Iterator[None]:
    before = logs._redact
    yield
    Redactor.__init__(redaction.process_redactor, redaction._MAX_PROCESS_VALUES)
    logs._redact = before


@pytest.fixture
async def admin_connection(server: str, url: str) -> AsyncIterator[asyncpg.Connection]:
    """Create a second login role that owns one schema; return a connection of the superuser."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "DROP SCHEMA IF EXISTS shop CASCADE;"
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'scripter') THEN"
        " CREATE ROLE scripter LOGIN; END IF; END $$;"
        f"ALTER ROLE scripter PASSWORD '{PASSWORD}';"
        "CREATE SCHEMA shop AUTHORIZATION scripter;"
        "CREATE TABLE shop.items (id integer PRIMARY KEY, name text); ALTER TABLE shop.items OWNER TO scripter"
    )
    yield connection
    await connection.execute("DROP SCHEMA shop CASCADE")
    await connection.close()


def as_role(url: str, role: str) -> str:
    """Return the URL with another login."""
    role = f"{role}:{quote(PASSWORD, safe='')}"
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2] if '@' in rest.partition('?')[0] else rest}"


def in_database(url: str, name: str) -> str:
    """Return the URL with another database."""
    address, mark, options = url.partition("?")
    return f"{address.rpartition('/')[0]}/{name}{mark}{options}"


@pytest.fixture
def scripts(app: Tenuto, url: str, tmp_path: Path) -> Tenuto:
    """Return an app with connections and a folder for files."""
    connections = {
        "shop": ConnectionSettings(url={"secret": "shop-url"}),
        "ours": ConnectionSettings(url=url),
        "ours, meant so": ConnectionSettings(url=url, allow_privileged_login=True),
        "elsewhere": ConnectionSettings(url=in_database(url, "postgres")),
        "other": ConnectionSettings(url="paper://desk", driver="paper"),
        "strange": ConnectionSettings(url="oracle://desk"),
        "broken": ConnectionSettings(url="postgresql://u:hidden-word@[half/x"),
        "wrong": ConnectionSettings(url={"sekret": "x"}),
    }
    (tmp_path / "files").mkdir()
    update = {
        "connections": connections,
        "files_directory": tmp_path / "files",
        "master_key": SecretStr(MasterKey.new().text),
    }
    app.settings = app.settings.model_copy(update=update)
    return app


async def start_step(app: Tenuto, step: Step) -> UUID:
    """Start a schedule with this step; return the id of its execution."""
    schedule = await app.schedules.create(schedule_definition(f"script {next(_number)}", manual(), [step]))
    execution = (await app.schedules.run(schedule.name)).execution_id
    assert execution is not None
    return execution


async def run_script(app: Tenuto, **arguments: Any) -> ActivityDetails:
    """Run one SQL step to its end; return the activity of its attempt."""
    rules = {name: arguments.pop(name) for name in ("step_timeout",) if name in arguments}
    step = Step.of("sql", arguments, name="script", timeout=rules.get("step_timeout"))
    execution = await start_step(app, step)

    async def ended() -> bool:
        return (await app.executions.get(execution)).ended_at is not None

    await eventually(ended, timeout=20)
    return await app.activity((await app.activities(limit=1))[0].id)


async def test_sql_script_runs_with_its_login_and_reports_rows_per_statement(
    scripts: Tenuto, worker: WorkerFactory, url: str, admin_connection: asyncpg.Connection
) -> None:
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))
    await app.secrets.set("token", "the-kanarie-token")
    (app.settings.files_directory or Path()).joinpath("load.sql").write_text(
        "-- a file\nINSERT INTO shop.items VALUES (10, 'ten');", encoding="utf-8"
    )
    text = r"""
        INSERT INTO shop.items SELECT n, :name FROM generate_series(1, :many) AS n;
        DO $$ BEGIN RAISE NOTICE 'half; way'; RAISE WARNING 'careful'; END $$;
        UPDATE shop.items SET name = 'it''s; ' || id::text WHERE id <= 2;
        INSERT INTO shop.items VALUES (100, :token);
        SELECT * FROM shop.items; /* done; /* really */ */
        DELETE FROM shop.items WHERE id = 5
    """
    hostile = "'; DROP TABLE shop.items; -- \\' "
    async with worker(), app.scheduler():
        parameters = {"name": hostile, "many": 5, "token": {"secret": "token"}}
        record = await run_script(app, connection="shop", script=text, parameters=parameters)
        assert record.state == "completed", record.error
        results = [(each["command"], each["rows"]) for each in record.output["statements"]]
        assert results == [("INSERT", 5), ("DO", None), ("UPDATE", 2), ("INSERT", 1), ("SELECT", 6), ("DELETE", 1)]
        assert (record.output["count"], record.output["rows"]) == (6, 15)
        assert "notice: half; way" in known(record.log)
        assert "warning warning: careful" in known(record.log)
        found = {row["id"]: row["name"] for row in await admin_connection.fetch("SELECT * FROM shop.items")}
        assert found == {1: "it's; 1", 2: "it's; 2", 3: hostile, 4: hostile, 100: "the-kanarie-token"}
        assert (await run_script(app, connection="shop", script_file="load.sql")).output["rows"] == 1


async def test_sql_script_is_one_transaction_by_default(
    scripts: Tenuto, worker: WorkerFactory, url: str, admin_connection: asyncpg.Connection
) -> None:
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))
    await admin_connection.execute("INSERT INTO shop.items SELECT n, 'item' FROM generate_series(5, 10) AS n")
    async with worker(), app.scheduler():
        record = await run_script(app, connection="shop", script="DELETE FROM shop.items;\nSELECT 1 / 0")
        assert record.state == "failed"
        assert record.error["message"] == "statement 2 (line 2, SELECT): 22012 division by zero"
        assert await admin_connection.fetchval("SELECT count(*) FROM shop.items") == 6
        record = await run_script(
            app, connection="shop", script="DELETE FROM shop.items WHERE id = 10; SELECT 1 / 0", transaction=False
        )
        assert record.state == "failed"
        assert await admin_connection.fetchval("SELECT count(*) FROM shop.items") == 5
        record = await run_script(app, connection="shop", script="BEGIN; DELETE FROM shop.items", transaction=False)
        assert "left a transaction open" in record.error["message"]
        assert await admin_connection.fetchval("SELECT count(*) FROM shop.items") == 5


async def test_sql_script_with_a_privileged_login_is_rejected(
    scripts: Tenuto, worker: WorkerFactory, url: str, admin_connection: asyncpg.Connection
) -> None:
    """A script has only the privileges of its login."""
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))
    await app.secrets.set("token", "the-kanarie-token")
    async with worker(), app.scheduler():
        for forbidden in (
            "RESET ROLE; SET SESSION AUTHORIZATION tenuto",
            "RESET ROLE; DELETE FROM tenuto.tasks",
            "COPY (SELECT 1) TO PROGRAM 'id'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT * FROM tenuto.secrets",
            "SELECT :token::integer",
        ):
            given = {"parameters": {"token": {"secret": "token"}}} if ":token" in forbidden else {}
            record = await run_script(app, connection="shop", script=forbidden, **given)
            assert record.state == "failed", forbidden
            assert "permission denied" in record.error["message"] or '"***"' in record.error["message"]
        record = await run_script(app, connection="ours", script="SELECT 1")
        assert "may change tenuto." in record.error["message"]
        record = await run_script(app, connection="elsewhere", script="SELECT 1")
        assert "is a superuser" in record.error["message"]
        assert "allow_privileged_login" in record.error["message"]
        assert (await run_script(app, connection="ours, meant so", script="SELECT 1")).state == "completed"


@pytest.mark.slow
async def test_sql_commit_has_a_time_limit(
    scripts: Tenuto, worker: WorkerFactory, url: str, admin_connection: asyncpg.Connection
) -> None:
    """Also if the script removes the limit of the server."""
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))
    async with worker(), app.scheduler():
        slow = """
            CREATE FUNCTION shop.slow() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON shop.items DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION shop.slow();
            INSERT INTO shop.items VALUES (77, 'late');
        """
        for script, expected in (
            (slow, "COMMIT took longer than 2 s"),
            (slow + "SET statement_timeout = 0", "was interrupted"),
        ):
            # The limit is longer than the statements before COMMIT take.
            record = await run_script(app, connection="shop", script=script, timeout=2)
            assert expected in record.error["message"]
        assert await admin_connection.fetchval("SELECT count(*) FROM shop.items WHERE id = 77") == 0


async def test_sql_script_with_the_login_of_tenuto_is_forbidden(
    app: Tenuto, url: str, admin_connection: asyncpg.Connection
) -> None:
    """It is recognised in every database of its server."""
    database = await app.open()
    assert await admin_connection.fetchval(SCRIPTS.load_login) == await load_own_login(database)
    theirs = await asyncpg.connect(as_role(url, "scripter"))
    ours = str(await theirs.fetchval(SCRIPTS.load_login))
    await theirs.close()
    assert ours != await load_own_login(database)
    for forbidden, is_rejected in ((ours, True), ("", False)):
        script = Script(
            as_role(url, "scripter"), "SELECT 1", {}, frozenset(), 20, True, lambda *_: None, forbidden_login=forbidden
        )
        if is_rejected:
            with pytest.raises(Forbidden):
                [ran async for ran in BUILT_IN_DRIVERS["postgresql"](script)]
        else:
            assert [ran.row_count async for ran in BUILT_IN_DRIVERS["postgresql"](script)] == [1]


@pytest.mark.slow
async def test_sql_statement_is_stopped_by_timeouts_and_cancellation(
    scripts: Tenuto, worker: WorkerFactory, url: str, admin_connection: asyncpg.Connection
) -> None:
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))

    async def running() -> Any:
        return await admin_connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'scripter' AND query LIKE '%pg_sleep%'"
        )

    async def stopped() -> bool:  # long before it would have ended by itself
        return not await running()

    async with worker(), app.scheduler():
        record = await run_script(app, connection="shop", script="SELECT pg_sleep(60)", timeout=0.2)
        assert "took longer than 0.2 s" in record.error["message"]
        await eventually(stopped)

        lifted = "SET statement_timeout = 0; SELECT pg_sleep(60)"
        record = await run_script(app, connection="shop", script=lifted, timeout=2)
        assert "was interrupted" in record.error["message"]
        await eventually(stopped)

        record = await run_script(app, connection="shop", script="SELECT pg_sleep(60)", step_timeout=0.5)
        assert (record.state, record.reason) == ("failed", "timed_out")
        await eventually(stopped)

        execution = await start_step(app, Step.of("sql", {"connection": "shop", "script": lifted}))
        await eventually(running)
        await app.executions.cancel(execution)

        async def ended() -> bool:
            return bool((await app.executions.get(execution)).state == "cancelled")

        await eventually(ended)

        async def recorded() -> bool:
            return bool((await app.activities(limit=1))[0].state == "cancelled")

        await eventually(recorded)
        await eventually(stopped)


TO_MEMBER = "tenuto_test_member"


@asynccontextmanager
async def acting_as_member(admin: asyncpg.Connection, grants: str) -> AsyncIterator[asyncpg.Connection]:
    """Provide a session of a login role with these privileges; everything is rolled back."""
    rolled_back = admin.transaction()
    await rolled_back.start()
    try:
        await admin.execute(f"CREATE ROLE {TO_MEMBER} NOINHERIT; CREATE ROLE tenuto_test_role; {grants}")
        await admin.execute(f"SET LOCAL SESSION AUTHORIZATION {TO_MEMBER}")
        yield admin
    finally:
        await rolled_back.rollback()


TRIGGER_FUNCTION = "CREATE FUNCTION shop.planted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"


@pytest.mark.parametrize(
    ("grants", "privilege"),
    [
        (f"GRANT UPDATE ON tenuto.api_keys TO {TO_MEMBER}", "may change tenuto.api_keys"),
        (f"GRANT UPDATE (role) ON tenuto.api_keys TO {TO_MEMBER}", "may change tenuto.api_keys"),
        (f"GRANT INSERT ON tenuto.tasks TO {TO_MEMBER}", "may change tenuto.tasks"),
        (f"GRANT TRIGGER ON tenuto.workers TO {TO_MEMBER}", "may change tenuto.workers"),
        (f"GRANT REFERENCES ON tenuto.manifests TO {TO_MEMBER}", "may change tenuto.manifests"),
        ("GRANT DELETE ON tenuto.schedules TO PUBLIC", "may change tenuto.schedules"),
        (
            f"GRANT DELETE ON tenuto.tasks TO tenuto_test_role; GRANT tenuto_test_role TO {TO_MEMBER}",
            "may change tenuto.tasks",
        ),
        (f"GRANT pg_write_all_data TO {TO_MEMBER}", "may change tenuto."),
        (f"GRANT CREATE ON SCHEMA tenuto TO {TO_MEMBER}", "may create objects in the schema tenuto"),
        (
            f"ALTER FUNCTION tenuto.refuse_to_change_the_past() OWNER TO {TO_MEMBER}",
            "owns the function tenuto.refuse_to",
        ),
        (
            f"{TRIGGER_FUNCTION}; CREATE TRIGGER planted BEFORE UPDATE ON tenuto.api_keys FOR EACH ROW"
            f" EXECUTE FUNCTION shop.planted(); ALTER FUNCTION shop.planted() OWNER TO {TO_MEMBER}",
            "owns the function shop.planted()",
        ),
    ],
)
async def test_login_with_a_privilege_on_tenuto_is_detected(
    admin_connection: asyncpg.Connection, grants: str, privilege: str
) -> None:
    async with acting_as_member(admin_connection, grants) as session:
        assert str(await session.fetchval(SCRIPTS.find_privilege_on_tenuto)).startswith(privilege)
        assert await session.fetchval(SCRIPTS.find_privilege_on_server) is None


@pytest.mark.parametrize(
    ("grants", "privilege"),
    [
        (f"ALTER ROLE tenuto_test_role SUPERUSER; GRANT tenuto_test_role TO {TO_MEMBER}", "is a superuser"),
        (f"ALTER ROLE {TO_MEMBER} CREATEROLE", "may create roles"),
        (f"ALTER ROLE tenuto_test_role CREATEROLE; GRANT tenuto_test_role TO {TO_MEMBER}", "may create roles"),
        (f"GRANT pg_execute_server_program TO {TO_MEMBER}", "may act as the server (pg_execute_server_program)"),
        (
            f"GRANT pg_write_server_files TO tenuto_test_role; GRANT tenuto_test_role TO {TO_MEMBER}",
            "may act as the server",
        ),
    ],
)
async def test_login_with_a_privilege_on_the_server_is_detected(
    admin_connection: asyncpg.Connection, grants: str, privilege: str
) -> None:
    async with acting_as_member(admin_connection, grants) as session:
        assert str(await session.fetchval(SCRIPTS.find_privilege_on_server)).startswith(privilege)


async def test_login_that_may_only_read_tenuto_is_accepted(admin_connection: asyncpg.Connection) -> None:
    grants = f"GRANT USAGE ON SCHEMA tenuto TO {TO_MEMBER}; GRANT SELECT ON tenuto.activities TO {TO_MEMBER}"
    async with acting_as_member(admin_connection, grants) as session:
        assert await session.fetchval(SCRIPTS.find_privilege_on_tenuto) is None
        assert await session.fetchval(SCRIPTS.find_privilege_on_server) is None


async def test_functions_of_tenuto_pin_their_search_path(admin_connection: asyncpg.Connection) -> None:
    unpinned = await admin_connection.fetch(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'tenuto'::regnamespace AND prosqlbody IS NULL"
        " AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, tenuto, pg_temp']"
    )
    assert unpinned == [], "add SET search_path to the function"


def test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B71, B72, B96: with any folder and any name of a key file."""
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "postgres").mkdir(parents=True)
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("master.key", "admin.key", "audit.keys", "postgres/PG_VERSION"):
        (home / name).write_text("kept", encoding="ascii")
    for name in ("tenuto.toml", "tls.pem", "given.key", "plain.sql"):
        (work / name).write_text("", encoding="ascii")
    by_default = load_settings(home=home)
    assert resolve_file(by_default, Path("x.sql"), "f") == home / "files" / "x.sql"
    assert (home / "files").stat().st_mode & 0o777 == 0o700
    (home / "files" / "twin.sql").hardlink_to(home / "master.key")
    (home / "files" / "link.sql").symlink_to(home / "admin.key")
    (work / "twin.sql").hardlink_to(home / "audit.keys")
    with_keys = {"master_key_file": work / "given.key", "web_tls_key": work / "tls.pem"}
    chosen = load_settings(home=home, files_directory=work, **with_keys)
    assert resolve_file(chosen, Path("plain.sql"), "f") == work / "plain.sql"
    reached = [(load_settings(home=home, files_directory=folder), "master.key") for folder in (home, tmp_path / "home")]
    reached += [
        (load_settings(home=home, files_directory=home), name) for name in ("admin.key", "run/x", "postgres/PG_VERSION")
    ]
    reached += [(load_settings(home=home, files_directory=tmp_path), "home/master.key"), (by_default, "twin.sql")]
    reached += [(chosen, name) for name in ("tenuto.toml", "tls.pem", "given.key", "twin.sql", "../work/tls.pem")]
    for settings, name in reached:
        with raises_code("step.file.forbidden", Forbidden) as caught:
            resolve_file(settings, Path(name), "script_file")
        assert caught.value.field == "script_file"
    for name in ("../master.key", "link.sql", str(work / "plain.sql"), "a/../../master.key"):
        with raises_code("step.file.outside_folder", Invalid):
            resolve_file(by_default, Path(name), "script_file")


def test_password_of_a_connection_url_is_redacted() -> None:
    for address in ("postgresql://u:pa%2Fss-word@h/d", "postgresql://h/d?user=u&password=pa%2Fss-word"):
        context = Context(make_held_task())
        sql_script.redact_password(context, address)
        assert context.redact_text("it says pa/ss-word") == "it says ***"


async def test_sqlite_script_cannot_reach_beyond_its_file(
    scripts: Tenuto, worker: WorkerFactory, tmp_path: Path
) -> None:
    app, folder = scripts, tmp_path / "files"
    sqlite3.connect(folder / "shop.db").close()
    sqlite3.connect(tmp_path / "outside.db").close()
    (folder / "link.db").symlink_to(tmp_path / "outside.db")
    where = "sqlite:///shop.db"
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    make = """
        CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT);
        CREATE /* one; */ TRIGGER shout AFTER INSERT ON items
        BEGIN UPDATE items SET name = upper(name) WHERE id = new.id; END;
        INSERT INTO items SELECT value, :name FROM json_each('[1, 2, 3]'); -- a; comment
        SELECT * FROM items;
    """
    async with worker(), app.scheduler():
        record = await run_script(app, connection=where, script=make, parameters={"name": "it's; :x"})
        assert record.state == "completed", record.error
        assert [(each["command"], each["rows"]) for each in record.output["statements"]] == [
            ("CREATE", 0), ("CREATE", 0), ("INSERT", 3), ("SELECT", 3)
        ]  # fmt: skip
        rejected = {
            "ATTACH 'other.db' AS other": "ATTACH is not allowed",
            "ATTACH 'other' || '.db' AS other": "ATTACH is not allowed",
            "SELECT load_extension('x')": "load_extension is not allowed",
            "PRAGMA writable_schema = 1": "PRAGMA writable_schema is not allowed",
            "PRAGMA busy_timeout = 60000": "PRAGMA busy_timeout is not allowed",
            "DELETE FROM items; COMMIT": "would end the transaction",
            "DELETE FROM items; SELECT * FROM nowhere": "no such table",
            endless: "took longer than 0.3 s",
        }
        for script, expected in rejected.items():
            record = await run_script(app, connection=where, script=script, timeout=0.3 if script == endless else "1h")
            assert record.state == "failed"
            assert expected in record.error["message"]
        for script, expected in {
            "VACUUM INTO 'copy.db'": "ATTACH is not allowed",
            "BEGIN": "left a transaction",
        }.items():
            record = await run_script(app, connection=where, script=script, transaction=False)
            assert expected in record.error["message"]
        assert (await run_script(app, connection=where, script="VACUUM", transaction=False)).state == "completed"
        for script, parameters, expected in (
            ("ATTACH :file AS other", {"file": f"{tmp_path}/outside.db"}, "ATTACH is not allowed"),
            ("SELECT :number", {"number": 2**70}, "larger than SQLite can store"),
        ):
            record = await run_script(app, connection=where, script=script, parameters=parameters, transaction=False)
            assert expected in record.error["message"]
        record = await run_script(app, connection=where, script=endless, step_timeout=0.5)
        assert record.reason == "timed_out"
        beyond = (
            "sqlite:///../outside.db", f"sqlite:///{tmp_path}/outside.db", "sqlite:///link.db",
            "sqlite:///%2e%2e/outside.db", "sqlite:///%2E%2E%2Foutside.db", f"sqlite:///%2f{tmp_path}/outside.db",
        )  # fmt: skip
        for address in beyond:
            record = await run_script(app, connection=address, script="SELECT 1")
            assert "is outside of the folder" in record.error["message"], address
        # Percent signs are decoded once; the rest is part of the file name.
        for address in ("none.db", "%252e%252e/outside.db", "%252e%252e%252foutside.db", "%25252e%25252e/outside.db"):
            record = await run_script(app, connection=f"sqlite:///{address}", script="CREATE TABLE taken (id INTEGER)")
            assert "does not exist" in record.error["message"], address
        for name, address in {"100%.db": "100%25.db", "50%25.db": "50%2525.db", "a b?#.db": "a%20b%3F%23.db"}.items():
            sqlite3.connect(folder / name).close()
            record = await run_script(app, connection=f"sqlite:///{address}", script="CREATE TABLE worked (id INTEGER)")
            assert record.state == "completed", (name, record.error)
            assert (folder / name).stat().st_size > 0
        assert (tmp_path / "outside.db").stat().st_size == 0
    with sqlite3.connect(folder / "shop.db") as shop:
        assert shop.execute("SELECT count(*), min(name) FROM items").fetchone() == (3, "IT'S; :X")
    shop.close()


async def test_invalid_sql_steps_are_rejected(scripts: Tenuto, worker: WorkerFactory, tmp_path: Path) -> None:
    app = scripts
    (tmp_path / "files" / "latin.sql").write_bytes("SELECT 'ä'".encode("latin-1"))
    on_save: list[tuple[dict[str, Any], str]] = [
        ({"connection": "shop"}, "script"),
        ({"connection": "shop", "script": "SELECT 1", "script_file": "x"}, "script"),
        ({"connection": "shop", "script": "  "}, "script"),
        ({"connection": "postgresql://u:p@h/d", "script": "SELECT 1"}, "connection"),
        ({"connection": "sqlite:nonsense", "script": "SELECT 1"}, "connection"),
        ({"connection": "shop", "script": "SELECT 1", "timeout": 0}, "timeout"),
        ({"connection": "shop", "script": "SELECT 1", "timeout": "soon"}, "timeout"),
        ({"connection": "shop", "script": "SELECT 1", "parameters": {"a b": 1}}, "parameters"),
        ({"connection": "shop", "script": "SELECT 1", "parameters": {"a": {"secret": "x", "y": 1}}}, "parameters"),
        ({"connection": "shop", "script": "SELECT 1", "role": "x"}, "role"),
    ]
    for arguments, field in on_save:
        with pytest.raises(Invalid) as caught:
            await app.schedules.create(schedule_definition("refused", manual(), [Step.of("sql", arguments, name="s")]))
        assert (caught.value.field or "").startswith(f"steps.s.{field}"), (arguments, caught.value)

    async def paper(script: Script) -> AsyncIterator[StatementResult]:
        assert "paper" not in repr(script)
        script.on_notice("warning", f"about {script.text}")
        yield StatementResult("WRITE", 7)
        await asyncio.sleep(0)

    app.register_driver("paper", paper)
    with raises_code("app.driver.already_registered", Invalid):
        app.register_driver("paper", paper)
    at_run: list[tuple[dict[str, Any], str]] = [
        ({"connection": "nowhere", "script": "SELECT 1"}, "there is no connection named 'nowhere'"),
        ({"connection": "strange", "script": "SELECT 1"}, "there is no driver for the scheme"),
        ({"connection": "wrong", "script": "SELECT 1"}, "is neither a URL nor a reference"),
        ({"connection": "shop", "script": "SELECT 1"}, "there is no secret named 'shop-url'"),
        ({"connection": "broken", "script": "SELECT 1"}, "cannot use the database of the script"),
        ({"connection": "ours", "script_file": "../../etc/passwd"}, "is outside of the folder"),
        ({"connection": "ours", "script_file": "/proc/self/environ"}, "is outside of the folder"),
        ({"connection": "ours", "script_file": "none.sql"}, "cannot be read"),
        ({"connection": "ours", "script_file": "latin.sql"}, "is not UTF-8"),
        ({"connection": "ours", "script_file": "."}, "is not a file"),
        ({"connection": "ours", "script": "\\! id"}, "psql commands"),
        ({"connection": "ours", "script": "COMMIT; BEGIN"}, "would end the transaction"),
        ({"connection": "ours", "script": "COPY x FROM STDIN"}, "COPY FROM STDIN and TO STDOUT are not supported"),
        ({"connection": "ours", "script": "SELECT 'x"}, "does not end"),
        ({"connection": "ours", "script": "SELECT 1", "parameters": {"x": 1}}, "does not use the parameter"),
        ({"connection": "ours, meant so", "script": "DO $$ BEGIN RAISE EXCEPTION ''; END $$"}, "(line 1, DO): P0001"),
    ]
    async with worker(), app.scheduler():
        for arguments, expected in at_run:
            record = await run_script(app, **arguments)
            assert record.state == "failed"
            assert expected in record.error["message"], arguments
            assert "hidden-word" not in str(record.error)
        record = await run_script(app, connection="other", script="a note")
        assert record.output["rows"] == 7
        assert "about a note" in known(record.log)
