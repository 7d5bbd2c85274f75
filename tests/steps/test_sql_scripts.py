"""The step kind sql (B60, B61): scripts on PostgreSQL with their own login, on SQLite files, and by other drivers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
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
from tenuto.jobs.redaction import Mask
from tenuto.model.sql_scripts import Ran, Script
from tenuto.operations.schedules import definition
from tenuto.secret_encryption import Key
from tenuto.settings import ConnectionSettings, load
from tenuto.steps.sql import file_sandbox
from tenuto.steps.sql import script as sqlscript
from tenuto.steps.sql.script import BUILT_IN
from tenuto.store.postgres_scripts import SQL as SCRIPTS
from tenuto.store.postgres_scripts import own_login
from tests.support.engine_fixtures import Quick
from tests.support.model_values import a_held_task
from tests.support.waiting import eventually

_number = count(1)
PASSWORD = "pa55 w/rd:for@scripts"


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    before = logs._hide
    yield
    Mask.__init__(redaction.shown_here, redaction._MOST_REMEMBERED)
    logs._hide = before


@pytest.fixture
async def db_of_scripts(server: str, url: str) -> AsyncIterator[asyncpg.Connection]:
    """The test's database with a second login role that owns one schema; seen from above."""
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
    """The same address for another login."""
    role = f"{role}:{quote(PASSWORD, safe='')}"
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2] if '@' in rest.partition('?')[0] else rest}"


def in_database(url: str, name: str) -> str:
    """The same server and login, another database."""
    address, mark, options = url.partition("?")
    return f"{address.rpartition('/')[0]}/{name}{mark}{options}"


@pytest.fixture
def scripts(app: Tenuto, url: str, tmp_path: Path) -> Tenuto:
    """An app with connections and a folder for files."""
    connections = {
        "shop": ConnectionSettings(url={"secret": "shop-url"}),
        "ours": ConnectionSettings(url=url),
        "ours, meant so": ConnectionSettings(url=url, any_login=True),
        "elsewhere": ConnectionSettings(url=in_database(url, "postgres")),
        "other": ConnectionSettings(url="paper://desk", driver="paper"),
        "strange": ConnectionSettings(url="oracle://desk"),
        "broken": ConnectionSettings(url="postgresql://u:hidden-word@[half/x"),
        "wrong": ConnectionSettings(url={"sekret": "x"}),
    }
    (tmp_path / "files").mkdir()
    update = {"connections": connections, "files_folder": tmp_path / "files", "master_key": SecretStr(Key.new().text)}
    app.settings = app.settings.model_copy(update=update)
    return app


async def started(app: Tenuto, step: Step) -> UUID:
    """An execution of a schedule that has nothing but this step."""
    schedule = await app.schedules.create(definition(f"script {next(_number)}", manual(), [step]))
    execution = (await app.schedules.run(schedule.name)).execution_id
    assert execution is not None
    return execution


async def run(app: Tenuto, **arguments: Any) -> Any:
    """One step in a schedule of its own; the record of its attempt."""
    rules = {name: arguments.pop(name) for name in ("step_timeout",) if name in arguments}
    step = Step.of_kind("sql", arguments, name="script", timeout=rules.get("step_timeout"))
    execution = await started(app, step)

    async def ended() -> bool:
        return (await app.executions.get(execution))["ended_at"] is not None

    await eventually(ended, timeout=20)
    return await app.activity((await app.activities(limit=1))[0]["id"])


async def test_a_script_runs_with_its_own_login_and_tells_rows_per_statement(
    scripts: Tenuto, worker: Quick, url: str, db_of_scripts: asyncpg.Connection
) -> None:
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))
    await app.secrets.set("token", "the-kanarie-token")
    (app.settings.files_folder or Path()).joinpath("load.sql").write_text(
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
        record = await run(app, connection="shop", script=text, parameters=parameters)
        assert record["status"] == "completed", record["error"]
        told = [(each["command"], each["rows"]) for each in record["output"]["statements"]]
        assert told == [("INSERT", 5), ("DO", None), ("UPDATE", 2), ("INSERT", 1), ("SELECT", 6), ("DELETE", 1)]
        assert (record["output"]["count"], record["output"]["rows"]) == (6, 15)
        assert "notice: half; way" in record["log"]
        assert "warning warning: careful" in record["log"]
        found = {row["id"]: row["name"] for row in await db_of_scripts.fetch("SELECT * FROM shop.items")}
        assert found == {1: "it's; 1", 2: "it's; 2", 3: hostile, 4: hostile, 100: "the-kanarie-token"}
        assert (await run(app, connection="shop", script_file="load.sql"))["output"]["rows"] == 1

        # All or nothing, unless it says otherwise.
        record = await run(app, connection="shop", script="DELETE FROM shop.items;\nSELECT 1 / 0")
        assert record["status"] == "failed"
        assert record["error"]["message"] == "statement 2 (line 2, SELECT): 22012 division by zero"
        assert await db_of_scripts.fetchval("SELECT count(*) FROM shop.items") == 6
        record = await run(
            app, connection="shop", script="DELETE FROM shop.items WHERE id = 10; SELECT 1 / 0", transaction=False
        )
        assert record["status"] == "failed"
        assert await db_of_scripts.fetchval("SELECT count(*) FROM shop.items") == 5
        record = await run(app, connection="shop", script="BEGIN; DELETE FROM shop.items", transaction=False)
        assert "left a transaction open" in record["error"]["message"]
        assert await db_of_scripts.fetchval("SELECT count(*) FROM shop.items") == 5

        # The login is the limit.
        for forbidden in (
            "RESET ROLE; SET SESSION AUTHORIZATION tenuto",
            "RESET ROLE; DELETE FROM tenuto.tasks",
            "COPY (SELECT 1) TO PROGRAM 'id'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT * FROM tenuto.secrets",
            "SELECT :token::integer",
        ):
            given = {"parameters": {"token": {"secret": "token"}}} if ":token" in forbidden else {}
            record = await run(app, connection="shop", script=forbidden, **given)
            assert record["status"] == "failed", forbidden
            assert "permission denied" in record["error"]["message"] or '"***"' in record["error"]["message"]
        record = await run(app, connection="ours", script="SELECT 1")
        assert "may change Tenuto's own tables" in record["error"]["message"]
        record = await run(app, connection="elsewhere", script="SELECT 1")
        assert "is a superuser's" in record["error"]["message"]
        assert "any_login" in record["error"]["message"]
        assert (await run(app, connection="ours, meant so", script="SELECT 1"))["status"] == "completed"

        # What we say ourselves has an end, too, also if the script has lifted the server's.
        slow = """
            CREATE FUNCTION shop.slow() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON shop.items DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION shop.slow();
            INSERT INTO shop.items VALUES (77, 'late');
        """
        for script, words in (
            (slow, "COMMIT took longer than 2 s"),
            (slow + "SET statement_timeout = 0", "broken off"),
        ):
            record = await run(app, connection="shop", script=script, timeout=2)  # longer than all before it takes
            assert words in record["error"]["message"]
        assert await db_of_scripts.fetchval("SELECT count(*) FROM shop.items WHERE id = 77") == 0


async def test_the_login_of_tenuto_itself_is_not_one_for_scripts(
    app: Tenuto, url: str, db_of_scripts: asyncpg.Connection
) -> None:
    """It is known wherever on its server it logs in, and whatever it may do there."""
    database = await app.open()
    assert await db_of_scripts.fetchval(SCRIPTS.who_is_logged_in) == await own_login(database)
    theirs = await asyncpg.connect(as_role(url, "scripter"))
    ours = str(await theirs.fetchval(SCRIPTS.who_is_logged_in))
    await theirs.close()
    assert ours != await own_login(database)
    for forbidden, refused in ((ours, True), ("", False)):
        script = Script(
            as_role(url, "scripter"), "SELECT 1", {}, frozenset(), 20, True, lambda *_: None, forbidden_login=forbidden
        )
        if refused:
            with pytest.raises(Forbidden, match="is the one Tenuto itself uses"):
                [ran async for ran in BUILT_IN["postgresql"](script)]
        else:
            assert [ran.rows async for ran in BUILT_IN["postgresql"](script)] == [1]


async def test_a_statement_is_really_stopped_by_its_timeout_by_the_step_s_and_by_cancelling(
    scripts: Tenuto, worker: Quick, url: str, db_of_scripts: asyncpg.Connection
) -> None:
    app = scripts
    await app.secrets.set("shop-url", as_role(url, "scripter"))

    async def running() -> Any:
        return await db_of_scripts.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'scripter' AND query LIKE '%pg_sleep%'"
        )

    async def stopped() -> bool:  # long before it would have ended by itself
        return not await running()

    async with worker(), app.scheduler():
        record = await run(app, connection="shop", script="SELECT pg_sleep(60)", timeout=0.2)
        assert "took longer than 0.2 s" in record["error"]["message"]
        await eventually(stopped)

        lifted = "SET statement_timeout = 0; SELECT pg_sleep(60)"
        record = await run(app, connection="shop", script=lifted, timeout=2)
        assert "was broken off" in record["error"]["message"]
        await eventually(stopped)

        record = await run(app, connection="shop", script="SELECT pg_sleep(60)", step_timeout=0.5)
        assert (record["status"], record["reason"]) == ("failed", "timed_out")
        await eventually(stopped)

        execution = await started(app, Step.of_kind("sql", {"connection": "shop", "script": lifted}))
        await eventually(running)
        await app.executions.cancel(execution)

        async def ended() -> bool:
            return bool((await app.executions.get(execution))["state"] == "cancelled")

        await eventually(ended)

        async def recorded() -> bool:
            return bool((await app.activities(limit=1))[0]["status"] == "cancelled")

        await eventually(recorded)
        await eventually(stopped)


async def test_a_login_that_can_become_somebody_who_may_change_tenuto_s_tables_is_seen(
    db_of_scripts: asyncpg.Connection,
) -> None:
    above, rolled_back = db_of_scripts, db_of_scripts.transaction()
    await rolled_back.start()
    try:
        await above.execute(
            "CREATE ROLE tenuto_test_writer; GRANT DELETE ON tenuto.tasks TO tenuto_test_writer;"
            "CREATE ROLE tenuto_test_above SUPERUSER; CREATE ROLE tenuto_test_member NOINHERIT;"
            "SET LOCAL SESSION AUTHORIZATION tenuto_test_member"
        )
        assert await above.fetchval(SCRIPTS.may_change_tenuto) is False
        await above.execute(
            "RESET SESSION AUTHORIZATION; GRANT tenuto_test_writer TO tenuto_test_member;"
            "SET LOCAL SESSION AUTHORIZATION tenuto_test_member"
        )
        assert await above.fetchval(SCRIPTS.may_change_tenuto) is True
        assert await above.fetchval(SCRIPTS.is_superuser) is False
        await above.execute(
            "RESET SESSION AUTHORIZATION; REVOKE tenuto_test_writer FROM tenuto_test_member;"
            "GRANT tenuto_test_above TO tenuto_test_member; SET LOCAL SESSION AUTHORIZATION tenuto_test_member"
        )
        assert await above.fetchval(SCRIPTS.is_superuser) is True
    finally:
        await rolled_back.rollback()


def test_the_files_of_steps_lie_in_a_folder_of_their_own_and_tenuto_s_are_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B71, B72, B96: whatever folder somebody has chosen, and whatever a key is called in it."""
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "postgres").mkdir(parents=True)
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("master.key", "admin.key", "audit.keys", "postgres/PG_VERSION"):
        (home / name).write_text("kept", encoding="ascii")
    for name in ("tenuto.toml", "tls.pem", "given.key", "plain.sql"):
        (work / name).write_text("", encoding="ascii")
    by_default = load(home=home)
    assert file_sandbox.inside(by_default, Path("x.sql"), "f") == home / "files" / "x.sql"
    assert (home / "files").stat().st_mode & 0o777 == 0o700
    (home / "files" / "twin.sql").hardlink_to(home / "master.key")
    (home / "files" / "link.sql").symlink_to(home / "admin.key")
    (work / "twin.sql").hardlink_to(home / "audit.keys")
    with_keys = {"master_key_file": work / "given.key", "web_tls_key": work / "tls.pem"}
    chosen = load(home=home, files_folder=work, **with_keys)
    assert file_sandbox.inside(chosen, Path("plain.sql"), "f") == work / "plain.sql"
    reached = [(load(home=home, files_folder=folder), "master.key") for folder in (home, tmp_path / "home")]
    reached += [(load(home=home, files_folder=home), name) for name in ("admin.key", "run/x", "postgres/PG_VERSION")]
    reached += [(load(home=home, files_folder=tmp_path), "home/master.key"), (by_default, "twin.sql")]
    reached += [(chosen, name) for name in ("tenuto.toml", "tls.pem", "given.key", "twin.sql", "../work/tls.pem")]
    for settings, name in reached:
        with pytest.raises(Forbidden, match="one of Tenuto's own files") as refusal:
            file_sandbox.inside(settings, Path(name), "script_file")
        assert (refusal.value.field, "folder of their own" in (refusal.value.remedy or "")) == ("script_file", True)
    for name in ("../master.key", "link.sql", str(work / "plain.sql"), "a/../../master.key"):
        with pytest.raises(Invalid, match="lies outside of"):
            file_sandbox.inside(by_default, Path(name), "script_file")


def test_the_password_of_an_address_is_hidden_wherever_it_stands_in_it() -> None:
    for address in ("postgresql://u:pa%2Fss-word@h/d", "postgresql://h/d?user=u&password=pa%2Fss-word"):
        context = Context(a_held_task())
        sqlscript._conceal_password(context, address)
        assert context.hidden("it says pa/ss-word") == "it says ***"


async def test_a_sqlite_file_is_worked_on_and_nothing_beyond_it(scripts: Tenuto, worker: Quick, tmp_path: Path) -> None:
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
        record = await run(app, connection=where, script=make, parameters={"name": "it's; :x"})
        assert record["status"] == "completed", record["error"]
        assert [(each["command"], each["rows"]) for each in record["output"]["statements"]] == [
            ("CREATE", 0), ("CREATE", 0), ("INSERT", 3), ("SELECT", 3)
        ]  # fmt: skip
        refused = {
            "ATTACH 'other.db' AS other": "ATTACH is not allowed",
            "ATTACH 'other' || '.db' AS other": "ATTACH is not allowed",
            "SELECT load_extension('x')": "load_extension is not allowed",
            "PRAGMA writable_schema = 1": "PRAGMA writable_schema is not allowed",
            "PRAGMA busy_timeout = 60000": "PRAGMA busy_timeout is not allowed",
            "DELETE FROM items; COMMIT": "all or nothing",
            "DELETE FROM items; SELECT * FROM nowhere": "no such table",
            endless: "took longer than 0.3 s",
        }
        for script, words in refused.items():
            record = await run(app, connection=where, script=script, timeout=0.3 if script == endless else "1h")
            assert record["status"] == "failed"
            assert words in record["error"]["message"]
        for script, words in {"VACUUM INTO 'copy.db'": "ATTACH is not allowed", "BEGIN": "left a transaction"}.items():
            record = await run(app, connection=where, script=script, transaction=False)
            assert words in record["error"]["message"]
        assert (await run(app, connection=where, script="VACUUM", transaction=False))["status"] == "completed"
        for script, given, words in (
            ("ATTACH :file AS other", {"file": f"{tmp_path}/outside.db"}, "ATTACH is not allowed"),
            ("SELECT :number", {"number": 2**70}, "is a number beyond what SQLite can hold"),
        ):
            record = await run(app, connection=where, script=script, parameters=given, transaction=False)
            assert words in record["error"]["message"]
        record = await run(app, connection=where, script=endless, step_timeout=0.5)
        assert record["reason"] == "timed_out"
        beyond = (
            "sqlite:///../outside.db", f"sqlite:///{tmp_path}/outside.db", "sqlite:///link.db",
            "sqlite:///%2e%2e/outside.db", "sqlite:///%2E%2E%2Foutside.db", f"sqlite:///%2f{tmp_path}/outside.db",
        )  # fmt: skip
        for address in beyond:
            record = await run(app, connection=address, script="SELECT 1")
            assert "lies outside of" in record["error"]["message"], address
        # Read once: what is left of a percent sign after that is part of a name, and nobody reads it again.
        for address in ("none.db", "%252e%252e/outside.db", "%252e%252e%252foutside.db", "%25252e%25252e/outside.db"):
            record = await run(app, connection=f"sqlite:///{address}", script="CREATE TABLE taken (id INTEGER)")
            assert "there is no file" in record["error"]["message"], address
        for name, address in {"100%.db": "100%25.db", "50%25.db": "50%2525.db", "a b?#.db": "a%20b%3F%23.db"}.items():
            sqlite3.connect(folder / name).close()
            record = await run(app, connection=f"sqlite:///{address}", script="CREATE TABLE worked (id INTEGER)")
            assert record["status"] == "completed", (name, record["error"])
            assert (folder / name).stat().st_size > 0
        assert (tmp_path / "outside.db").stat().st_size == 0
    with sqlite3.connect(folder / "shop.db") as shop:
        assert shop.execute("SELECT count(*), min(name) FROM items").fetchone() == (3, "IT'S; :X")
    shop.close()


async def test_what_cannot_be_run_is_refused_by_name_and_field(scripts: Tenuto, worker: Quick, tmp_path: Path) -> None:
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
        with pytest.raises(Invalid) as refusal:
            await app.schedules.create(definition("refused", manual(), [Step.of_kind("sql", arguments, name="s")]))
        assert (refusal.value.field or "").startswith(f"steps.s.{field}"), (arguments, refusal.value)

    async def paper(script: Script) -> AsyncIterator[Ran]:
        assert "paper" not in repr(script)
        script.notice("warning", f"about {script.text}")
        yield Ran("WRITE", 7)
        await asyncio.sleep(0)

    app.register_driver("paper", paper)
    with pytest.raises(Invalid, match="registered already"):
        app.register_driver("paper", paper)
    at_run: list[tuple[dict[str, Any], str]] = [
        ({"connection": "nowhere", "script": "SELECT 1"}, "there is no connection named 'nowhere'"),
        ({"connection": "strange", "script": "SELECT 1"}, "there is no driver for"),
        ({"connection": "wrong", "script": "SELECT 1"}, "neither an address nor a reference"),
        ({"connection": "shop", "script": "SELECT 1"}, "there is no secret named 'shop-url'"),
        ({"connection": "broken", "script": "SELECT 1"}, "the script's database cannot be used"),
        ({"connection": "ours", "script_file": "../../etc/passwd"}, "lies outside of"),
        ({"connection": "ours", "script_file": "/proc/self/environ"}, "lies outside of"),
        ({"connection": "ours", "script_file": "none.sql"}, "cannot be read"),
        ({"connection": "ours", "script_file": "latin.sql"}, "is not UTF-8"),
        ({"connection": "ours", "script_file": "."}, "is not a file"),
        ({"connection": "ours", "script": "\\! id"}, "commands of psql"),
        ({"connection": "ours", "script": "COMMIT; BEGIN"}, "would end the transaction"),
        ({"connection": "ours", "script": "COPY x FROM STDIN"}, "nobody to talk to"),
        ({"connection": "ours", "script": "SELECT 'x"}, "does not end"),
        ({"connection": "ours", "script": "SELECT 1", "parameters": {"x": 1}}, "does not stand in the script"),
        ({"connection": "ours, meant so", "script": "DO $$ BEGIN RAISE EXCEPTION ''; END $$"}, "(line 1, DO): P0001"),
    ]
    async with worker(), app.scheduler():
        for arguments, words in at_run:
            record = await run(app, **arguments)
            assert record["status"] == "failed"
            assert words in record["error"]["message"], arguments
            assert "hidden-word" not in str(record["error"])
        record = await run(app, connection="other", script="a letter")
        assert record["output"]["rows"] == 7
        assert "about a letter" in record["log"]
