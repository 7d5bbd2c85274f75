"""Addresses, logins and TLS of the SQL connector."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tenuto.errors import Invalid
from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import ConnectorContext, ConnectorError, NamedConnection
from tenuto_identity.connectors.sql.postgresql import PostgresqlSession
from tenuto_identity.connectors.sql.session import ConnectionLost, RefusalKind, StatementRefused
from tenuto_identity.connectors.sql.settings import postgresql_address
from tenuto_identity.model.schema import Attribute, ObjectType
from tests.identity.sql.conftest import OpenSql
from tests.identity.sql.databases import PASSWORD, ROLE, PostgresqlDatabase, SqliteDatabase
from tests.support.certificates import create_certificate

PERSON = ObjectType("people", "id", {"id": Attribute("id")})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "postgresql://hr:secret@db/hr"}, "password: {secret: NAME}"),
        ({"url": "postgresql://db/hr"}, "needs a login role"),
        ({"url": "postgresql://hr@db/hr?sslmode=prefer"}, "sslmode 'prefer' is not one of"),
        ({"url": "postgresql://hr@db/hr?options=-c"}, "unknown option options"),
        ({"url": "postgresql://hr@db:x/hr"}, "port that is not a number"),
        ({"url": "mysql://hr@db/hr"}, "write postgresql://"),
        ({"url": "sqlite://people.db"}, "sqlite:///FILE"),
        ({"url": "sqlite:///people.db", "password": {"secret": "x"}}, "a SQLite file has none"),
        ({"url": "sqlite:///people.db", "connection": "hr"}, "exactly one of url and connection"),
        ({"connection": "hr", "password": {"secret": "x"}}, "in the settings of the worker"),
        ({"url": "sqlite:///p.db", "types": {"p": {"table": "a", "query": "SELECT 1"}}}, "exclude each other"),
        ({"url": "sqlite:///p.db", "types": {"p": {"change_column": "a", "change_table": {"table": "b"}}}}, "exclude"),
        ({"url": "sqlite:///p.db", "types": {"p": {"table": "a.b.c"}}}, "SCHEMA.TABLE"),
        ({"url": "sqlite:///p.db", "types": {"p": {"query": " ; "}}}, "the query is empty"),
    ],
)
def test_invalid_settings_of_the_sql_connector_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        registry.parse_settings(registry.find_connector("sql"), settings)
    assert message in str(raised.value)
    assert "secret@db" not in str(raised.value)


def test_tls_is_verified_unless_the_address_of_postgresql_says_otherwise() -> None:
    def mode(url: str) -> str:
        registry.parse_settings(registry.find_connector("sql"), {"url": url})
        return postgresql_address(url).tls_mode

    assert mode("postgresql://hr@db.example.org/hr") == "verify-full"
    assert mode("postgresql://hr@127.0.0.1/hr") == "verify-full"
    assert mode("postgresql://hr@db/hr?sslmode=require") == "require"
    assert mode("postgresql://hr@/hr?host=/run/postgresql") == "disable"


def test_sqlite_file_outside_of_the_allowed_folders_is_refused(tmp_path: Path, sqlite: SqliteDatabase) -> None:
    allowed = tmp_path / "files" / "below"
    allowed.mkdir()
    for url in (f"sqlite:///{sqlite.path}", "sqlite:///../people.db"):
        with pytest.raises(ConnectorError) as raised:
            registry.open_connector("sql", {"url": url}, ConnectorContext((PERSON,), (allowed,)))
        assert raised.value.code == "not_allowed"


def test_sqlite_file_that_does_not_exist_is_not_created(tmp_path: Path, open_connector: OpenSql) -> None:
    with pytest.raises(ConnectorError) as raised:
        open_connector({"url": "sqlite:///new.db"}, PERSON).check()
    assert raised.value.code == "unreachable"
    assert not (tmp_path / "new.db").exists()


def test_postgresql_login_that_may_change_tenuto_or_the_server_is_refused(
    postgresql: PostgresqlDatabase, open_connector: OpenSql
) -> None:
    postgresql.execute("CREATE TABLE people (id text PRIMARY KEY)")
    owner = {"url": postgresql.url + "&sslmode=disable"}
    with pytest.raises(ConnectorError, match="superuser"):
        open_connector(owner, PERSON).check()
    postgresql.execute("CREATE SCHEMA tenuto_identity; CREATE TABLE tenuto_identity.objects (id integer)")
    try:
        with pytest.raises(ConnectorError) as raised:
            list(open_connector(postgresql.settings(), PERSON).discover().types)
        assert raised.value.code == "login_too_powerful"
    finally:
        postgresql.execute("DROP SCHEMA tenuto_identity CASCADE")
    open_connector(postgresql.settings(), PERSON).check()


def test_connection_of_the_worker_has_address_password_and_rights(
    postgresql: PostgresqlDatabase, sqlite: SqliteDatabase, tmp_path: Path
) -> None:
    def check(url: str | None, *, allows_privileged_login: bool = False) -> None:
        known = {} if url is None else {"hr": NamedConnection(url, allows_privileged_login)}
        context = ConnectorContext((PERSON,), (tmp_path / "elsewhere",), connections=known)
        connector = registry.open_connector("sql", {"connection": "hr"}, context)
        try:
            connector.check()
        finally:
            connector.close()

    for database in (postgresql, sqlite):
        database.execute("CREATE TABLE people (id text PRIMARY KEY)")
    check(f"sqlite:///{sqlite.path}")
    check(postgresql.settings()["url"].replace(f"{ROLE}@", f"{ROLE}:{PASSWORD}@"))
    with pytest.raises(ConnectorError, match="superuser"):
        check(postgresql.url)
    check(postgresql.url, allows_privileged_login=True)
    with pytest.raises(ConnectorError, match="there is no connection named 'hr'"):
        check(None)
    with pytest.raises(ConnectorError, match="unknown option") as raised:
        check("postgresql://hr:canary@db/hr?options=x")
    assert "canary" not in str(raised.value)


def test_wrong_password_of_postgresql_is_refused_without_its_value(
    postgresql: PostgresqlDatabase, tmp_path: Path
) -> None:
    context = ConnectorContext((PERSON,), (tmp_path,), secrets={"sql": "wrong-canary"})
    connector = registry.open_connector("sql", postgresql.settings(), context)
    with pytest.raises(ConnectorError) as raised:
        connector.check()
    connector.close()
    assert raised.value.code == "unreachable"
    assert "wrong-canary" not in str(raised.value)
    with pytest.raises(ConnectorError, match="the secret 'sql' of the password is empty"):
        registry.open_connector("sql", postgresql.settings(), ConnectorContext((PERSON,)))


def test_password_in_the_environment_of_the_worker_is_not_sent_to_the_database(
    monkeypatch: pytest.MonkeyPatch, open_connector: OpenSql
) -> None:
    monkeypatch.setenv("PGPASSWORD", "canary-of-the-worker")
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1000)
                client.sendall(b"R" + struct.pack("!ii", 8, 3))  # asks for the password in clear text
                received.extend(client.recv(1000))

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"postgresql://hr@127.0.0.1:{listening.getsockname()[1]}/hr?sslmode=disable"
        with pytest.raises(ConnectorError):
            open_connector({"url": url}, PERSON).check()
        serving.join(10)
    assert b"canary" not in received


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_postgresql_transaction_never_continues_on_another_connection(
    in_savepoint: bool, postgresql: PostgresqlDatabase
) -> None:
    postgresql.execute("CREATE TABLE rows (number integer)")
    session = PostgresqlSession(
        postgresql_address(postgresql.settings()["url"]),
        PASSWORD,
        read_only=False,
        allows_privileged_login=False,
        connect_timeout_seconds=10,
        timeout_seconds=60,
    )

    def end_connection() -> None:
        """Let the server end the connection, and the driver notice it before the next statement."""
        connection = session._opened
        assert connection is not None
        postgresql.fetch(f"SELECT pg_terminate_backend({connection.get_server_pid()}, 10000)")
        while not connection.is_closed():
            session._run(asyncio.sleep(0.01))

    def insert(number: int) -> None:
        session.execute("INSERT INTO rows VALUES ($1::text::integer)", [str(number)])

    def lose_connection_before_a_statement() -> None:
        with session.transaction():
            insert(1)
            if in_savepoint:
                with suppress(StatementRefused), session.savepoint():
                    end_connection()
                    raise StatementRefused(RefusalKind.VALUE, "a value does not fit")
            else:
                end_connection()
            insert(2)

    def lose_connection_before_the_commit() -> None:
        with session.transaction():
            insert(3)
            end_connection()

    try:
        for lose_connection in (lose_connection_before_a_statement, lose_connection_before_the_commit):
            with pytest.raises(ConnectionLost):
                lose_connection()
            assert postgresql.fetch("SELECT number FROM rows") == []
        with session.transaction():
            insert(4)
        assert postgresql.fetch("SELECT number FROM rows") == [(4,)]
    finally:
        session.close()


@contextmanager
def tls_proxy(database: PostgresqlDatabase, certificate: Path, key: Path) -> Iterator[int]:
    """Accept TLS connections as PostgreSQL does and forward them to the socket of the server; yields the port."""
    where = parse_qs(urlsplit(database.url).query)
    target = f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    started = threading.Event()
    ports: list[int] = []
    stop: list[Any] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(8)  # SSLRequest
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(context)
            server_reader, server_writer = await asyncio.open_unix_connection(target)
            await asyncio.gather(forward(reader, server_writer), forward(server_reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def serve() -> None:
        ended = asyncio.Event()
        stop.extend((asyncio.get_running_loop(), ended))
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield ports[0]
    finally:
        stop[0].call_soon_threadsafe(stop[1].set)
        thread.join(10)


def test_certificate_and_host_name_of_postgresql_are_verified(
    postgresql: PostgresqlDatabase, open_connector: OpenSql, tmp_path: Path
) -> None:
    postgresql.execute("CREATE TABLE people (id text PRIMARY KEY)")
    certificate, key = create_certificate(tmp_path, "localhost")
    with tls_proxy(postgresql, certificate, key) as port:

        def check(host: str, options: str = "") -> None:
            database = urlsplit(postgresql.url).path
            settings = {"url": f"postgresql://{ROLE}@{host}:{port}{database}{options}", "password": {"secret": "sql"}}
            connector = open_connector(settings, PERSON)
            try:
                connector.check()
            finally:
                connector.close()

        trusted = f"sslrootcert={certificate}"
        check("localhost", f"?{trusted}")
        check("127.0.0.1", f"?sslmode=verify-ca&{trusted}")
        check("127.0.0.1", "?sslmode=require")
        with pytest.raises(ConnectorError, match=r"(?i)certificate"):
            check("localhost")  # the certificate is not trusted
        with pytest.raises(ConnectorError, match=r"(?i)certificate"):
            check("127.0.0.1", f"?{trusted}")  # another host
        with pytest.raises(ConnectorError) as raised:
            check("localhost", "?sslrootcert=/does/not/exist.pem")
        assert raised.value.code == "tls_files"
