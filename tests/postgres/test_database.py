"""Database connections: translated errors, retries of transient errors, session settings."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import asyncpg
import pytest
import uvloop

from tenuto.errors import Invalid, StoreError, TenutoError, Unavailable, Unsupported
from tenuto.postgres import database as module
from tenuto.postgres import embedded_server
from tenuto.postgres.database import (
    Connection,
    Database,
    DatabaseError,
    LockTimeout,
    translate_driver_error,
)
from tenuto.postgres.servers.server_addresses import describe_address
from tenuto.store.work.tasks import SQL as TASKS
from tests.conftest import database_url
from tests.races.proxy import Proxy
from tests.support.errors import raises_code
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually


async def open_error(url: str, wait: float = 0.0) -> TenutoError:
    with pytest.raises(TenutoError) as caught:
        await (await Database.open(url, connect_timeout_seconds=wait)).close()
    return caught.value


def as_role(url: str, role: str) -> str:
    return url.replace("postgresql://tenuto@", f"postgresql://{role}@")


# --- connecting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tenuto@127.0.0.1:1/tenuto",  # no server listens
        "postgresql://tenuto@no-such-host.invalid/tenuto",
        f"postgresql://tenuto@/tenuto?host={quote('/tmp/no/such/socket', safe='')}",
    ],
)
async def test_unreachable_server_is_reported_as_unavailable(url: str) -> None:
    error = await open_error(url)
    assert isinstance(error, Unavailable)
    assert error.code == "database.unreachable"
    assert "TENUTO_DATABASE" in str(error)


async def test_unknown_role_is_reported_as_rejected_login(url: str) -> None:
    error = await open_error(as_role(url, "stranger"))
    assert not isinstance(error, Unavailable), "a retry would not help"
    assert error.code == "database.login.rejected"
    assert f"at {describe_address(url)}" in error.message, "which server"
    assert '"stranger"' in error.message
    assert "user and password" in str(error.remedy)
    assert "TENUTO_DATABASE" in str(error)


@pytest.fixture
async def role_with_password(url: str) -> AsyncIterator[str]:
    """Create a role that needs a password, for one test."""
    connection = await asyncpg.connect(url)
    rules = Path(await connection.fetchval("SHOW hba_file"))
    before = rules.read_text()
    rules.write_text("local all role_with_password scram-sha-256\n" + before)
    await connection.execute("SELECT pg_reload_conf()")
    await connection.execute("CREATE ROLE role_with_password LOGIN PASSWORD 'right'")
    await connection.execute("GRANT USAGE ON SCHEMA tenuto TO role_with_password")
    yield "role_with_password"
    rules.write_text(before)
    await connection.execute("DROP OWNED BY role_with_password")
    await connection.execute("DROP ROLE role_with_password")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


async def test_wrong_password_is_reported_without_the_password(role_with_password: str, url: str) -> None:
    async def can_log_in() -> bool:
        try:
            await (await Database.open(as_role(url, f"{role_with_password}:right"), connect_timeout_seconds=0)).close()
        except StoreError:
            return False
        return True

    await eventually(can_log_in)
    error = await open_error(as_role(url, f"{role_with_password}:wrong-secret"))
    assert not isinstance(error, Unavailable)
    assert error.code == "database.login.rejected"
    assert "wrong-secret" not in str(error)


async def test_missing_database_is_named_without_a_retry(server: str) -> None:
    error = await open_error(database_url(server, "nowhere"))
    assert not isinstance(error, Unavailable)
    assert error.code == "database.not_found"
    assert '"nowhere"' in str(error)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "not an address", "postgresql://localhost:port/x", ""])
async def test_invalid_database_url_is_rejected(url: str) -> None:
    error = await open_error(url)
    assert "TENUTO_DATABASE" in str(error)


async def test_old_server_version_is_rejected(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_SERVER_VERSION", 990000)
    error = await open_error(url)
    assert isinstance(error, Unsupported)
    assert error.code == "database.version.not_supported"
    assert "15 or newer" in str(error)


@pytest.fixture(scope="module")
def standby() -> Iterator[str]:
    """Start a read-only standby server."""
    home = new_temp_dir("tnt-")
    settings = {"wal_level": "replica", "hot_standby": "on", "fsync": "off"}
    embedded_server.acquire_server(home, linger_seconds=0, settings=settings).release()
    embedded_server.stop_server(home)
    signal = home / "postgres" / "standby.signal"
    signal.touch()
    shutil.chown(signal, home.joinpath("postgres").stat().st_uid)
    hold = embedded_server.acquire_server(home, linger_seconds=0, settings=settings)
    yield hold.url
    hold.release()
    embedded_server.stop_server(home)
    shutil.rmtree(home, ignore_errors=True)


async def test_standby_server_is_rejected(standby: str) -> None:
    error = await open_error(standby)
    assert isinstance(error, Unsupported)
    assert error.code == "database.server.read_only"


async def test_database_open_retries_until_the_server_answers(url: str) -> None:
    connection = await asyncpg.connect(url)
    socket = Path(await connection.fetchval("SHOW unix_socket_directories")) / ".s.PGSQL.5432"
    await connection.close()
    connection_count = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connection_count
        connection_count += 1
        if connection_count > 2:
            inside_reader, inside_writer = await asyncio.open_unix_connection(str(socket))
            await asyncio.gather(forward(reader, inside_writer), forward(inside_reader, writer))
        writer.close()

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        proxy_url = f"postgresql://tenuto@127.0.0.1:{port}/{await database_name(url)}?sslmode=disable"
        assert isinstance(await open_error(proxy_url), Unavailable), "no retry without a timeout"
        database = await Database.open(proxy_url, connect_timeout_seconds=10)
        assert await database.fetch_value("SELECT 1") == 1
        await database.close()
    assert connection_count >= 3


async def database_name(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SELECT current_database()"))
    finally:
        await connection.close()


# --- statements ----------------------------------------------------------------------------------------------------


async def test_connection_has_application_name_and_timeouts(db: Database) -> None:
    settings = {
        name: await db.fetch_value("SELECT current_setting($1)", name)
        for name in ("application_name", "statement_timeout", "lock_timeout", "timezone", "plan_cache_mode")
    }
    assert settings == {
        "application_name": "tenuto",
        "statement_timeout": "30s",
        "lock_timeout": "10s",
        "timezone": "UTC",
        "plan_cache_mode": "force_generic_plan",
    }
    assert await db.fetch_value("SELECT current_setting('idle_in_transaction_session_timeout')") == "30s"


async def test_longest_statement_is_planned_once_per_connection(db: Database) -> None:
    """The default limits of the driver are a length of 15 kB and a life of five minutes."""
    assert len(TASKS.claim_limited_tasks) > 15_000, "choose another statement"
    values: tuple[Any, ...] = (uuid4(), timedelta(seconds=30), ["default"], 1, [], [], [], None, None, [], [], 1)
    async with db.connection() as connection:
        for _ in range(2):
            await connection.fetch(TASKS.claim_limited_tasks, *values)
        prepared = await connection.fetch(
            "SELECT generic_plans FROM pg_prepared_statements WHERE statement = $1", TASKS.claim_limited_tasks
        )
        assert [row["generic_plans"] for row in prepared] == [2]
        driver_connection: Any = connection
        assert driver_connection._con._stmt_cache.get_max_lifetime() == 0


async def test_connection_behind_pooler_keeps_no_session_state(url: str) -> None:
    database = await Database.open(url, generic_plans=True, behind_pooler=True)
    try:
        assert await database.fetch_value("SELECT current_setting('plan_cache_mode')") == "auto"
        await database.fetch_all("SELECT 1")
        assert await database.fetch_value("SELECT count(*) FROM pg_prepared_statements") == 0
    finally:
        await database.close()


async def terminate_connections(url: str) -> int:
    connection = await asyncpg.connect(url)
    cut = await connection.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
    return int(cut)


async def test_statement_is_retried_after_a_lost_connection(db: Database, url: str) -> None:
    assert await db.fetch_value("SELECT 1") == 1
    assert await terminate_connections(url) >= 1
    assert await db.fetch_value("SELECT 2") == 2


def test_server_that_went_away_is_named_in_the_error_of_a_statement(url: str) -> None:
    async def lose_server() -> None:
        async with Proxy(url) as proxy:
            db = await Database.open(proxy.url)
            proxy.disconnect_all()
        with raises_code("database.unreachable") as caught:
            await db.fetch_one("SELECT 1 AS one")
        await db.close()
        assert f"no server listens on {describe_address(proxy.url)}" in str(caught.value)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # of the services; its errors name no address
        runner.run(lose_server())


async def test_transaction_is_retried_as_a_whole_after_a_lost_connection(db: Database, url: str) -> None:
    tries = 0

    async def work(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        await connection.execute("INSERT INTO tenuto.repairs VALUES ($1, 1, now())", f"net {tries}")
        if tries == 1:
            await terminate_connections(url)
        return int(await connection.fetchval("SELECT count(*) FROM tenuto.repairs"))

    assert await db.transaction(work) == 1
    assert tries == 2
    assert [row["net"] for row in await db.fetch_all("SELECT net FROM tenuto.repairs")] == ["net 2"]


async def test_transaction_is_retried_after_a_deadlock(db: Database) -> None:
    await db.fetch_all("INSERT INTO tenuto.repairs SELECT n::text, 0, now() FROM generate_series(1, 2) AS n")
    both_hold = asyncio.Barrier(2)
    first_try = {"1": True, "2": True}

    async def lock_in_order(mine: str, theirs: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute("UPDATE tenuto.repairs SET count = count + 1 WHERE net = $1", mine)
            if first_try[mine]:
                first_try[mine] = False
                await both_hold.wait()
            await connection.execute("UPDATE tenuto.repairs SET count = count + 1 WHERE net = $1", theirs)

        await db.transaction(work)

    await asyncio.gather(lock_in_order("1", "2"), lock_in_order("2", "1"))
    assert [row["count"] for row in await db.fetch_all("SELECT count FROM tenuto.repairs")] == [2, 2]


async def test_rejected_statement_is_not_retried(db: Database) -> None:
    tries = 0

    async def work(connection: Connection) -> None:
        nonlocal tries
        tries += 1
        await connection.execute("SELECT 1 / 0")

    with raises_code("database.statement_rejected", DatabaseError) as caught:
        await db.transaction(work)
    assert isinstance(caught.value, DatabaseError)
    assert (tries, caught.value.sqlstate) == (1, "22012")


async def test_unique_violation_of_copy_is_reported(db: Database) -> None:
    async def load(connection: Connection) -> None:
        await connection.copy_records_to_table(
            "repairs", schema_name="tenuto", columns=["net", "count", "last_at"], records=[("net", 1, db.clock.now())]
        )

    await db.copy(load)
    with pytest.raises(DatabaseError) as caught:
        await db.copy(load)
    assert caught.value.sqlstate == module.UNIQUE_VIOLATION


async def test_text_with_nul_character_is_invalid(db: Database) -> None:
    with pytest.raises(TenutoError, match=r"0x00|NUL|null"):
        await db.fetch_all("SELECT $1::text", "a\x00b")
    with raises_code("database.text.not_storable", Invalid):
        await db.fetch_all("SELECT $1::jsonb", r'"\u0000"')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.DeadlockDetectedError("x"), Unavailable),
        (asyncpg.SerializationError("x"), Unavailable),
        (asyncpg.LockNotAvailableError("x"), LockTimeout),
        (asyncpg.AdminShutdownError("x"), Unavailable),
        (asyncpg.CannotConnectNowError("x"), Unavailable),
        (asyncpg.TooManyConnectionsError("x"), Unavailable),
        (asyncpg.ObjectNotInPrerequisiteStateError("not accepting connections"), Unavailable),
        (asyncpg.ConnectionDoesNotExistError("x"), Unavailable),
        (asyncpg.ReadOnlySQLTransactionError("x"), Unavailable),
        (asyncpg.DiskFullError("x"), Unavailable),
        (asyncpg.OutOfMemoryError("x"), Unavailable),
        (ConnectionResetError("x"), Unavailable),
        (TimeoutError(), Unavailable),
        (asyncpg.InterfaceError("connection is closed"), Unavailable),
        (asyncpg.UntranslatableCharacterError("x"), Invalid),
        (asyncpg.InvalidPasswordError("x"), StoreError),
        (asyncpg.InvalidCatalogNameError("x"), StoreError),
        (asyncpg.UndefinedTableError("x"), DatabaseError),
        (ValueError("bad address"), StoreError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_driver_error_is_translated(error: Exception, kind: type[TenutoError]) -> None:
    translated = translate_driver_error(error)
    assert type(translated) is kind
    assert translated.code.startswith("database.")


def test_full_disk_is_reported_as_such_in_one_line() -> None:
    fields = {"S": "ERROR", "C": "53100", "M": "No space left on device", "H": "Check free disk space."}
    error = translate_driver_error(asyncpg.PostgresError.new(fields))
    assert error.code == "database.out_of_resources"
    assert error.message == "the database server is out of resources: No space left on device"
    assert "disk" in str(error.remedy)


async def test_slow_reply_does_not_set_the_database_clock_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a task with an instant of this clock would precede one with an instant of the database."""
    fetch_one = Database.fetch_one

    async def fetch_slowly(self: Database, *values: Any) -> Any:
        row = await fetch_one(self, *values)
        await asyncio.sleep(0.5)
        return row

    with monkeypatch.context() as patched:
        patched.setattr(Database, "fetch_one", fetch_slowly)
        database = await Database.open(url)
    try:
        database_time: datetime = await database.fetch_value("SELECT clock_timestamp()")
        assert database.clock.now() > database_time - timedelta(seconds=0.05)
    finally:
        await database.close()


async def test_statement_is_retried_on_another_connection_after_a_driver_failure(url: str) -> None:
    """As it does now and then when a backend says its last words to a connection that is about to ask."""
    database = await Database.open(url, max_connections=1)
    pids: list[int] = []

    async def ask(connection: Connection) -> int:
        pids.append(await connection.fetchval("SELECT pg_backend_pid()"))
        if len(pids) == 1:
            raise asyncpg.InternalClientError("got result for unknown protocol state 3")
        return pids[-1]

    try:
        assert await database.transaction(ask) == pids[1]
    finally:
        await database.close()
    assert pids[0] != pids[1]
