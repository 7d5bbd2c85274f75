"""Connections to one of several servers; standbys are tested in `tests/failover`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from tenuto.errors import StoreError, Unavailable
from tenuto.postgres.database import Database
from tenuto.postgres.servers import server_selection
from tests.support.errors import raises_code


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port of a machine that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def also(url: str, port: int) -> str:
    """Return the URL of the test's database behind a server on this port."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return f"postgresql://tenuto@{parts.path}?host=127.0.0.1,{query['host']}&port={port},{query['port']}"


async def test_server_that_does_not_answer_hides_no_other(url: str, silent_port: int) -> None:
    began = time.monotonic()
    first = await server_selection.connect(also(url, silent_port), timeout=10)
    second_began = time.monotonic()
    second = await server_selection.connect(also(url, silent_port), timeout=10)
    assert second_began - began < 8, "the second server is tried before the time limit"
    assert time.monotonic() - second_began < server_selection._NEXT_SERVER_SECONDS, (
        "the server used last is tried first"
    )
    await first.close()
    await second.close()


async def test_refused_connection_leads_to_the_next_server_at_once(url: str, unused_tcp_port: int) -> None:
    db = await Database.open(also(url, unused_tcp_port))
    assert await db.fetch_value("SELECT 1") == 1
    await db.close()


async def test_error_names_each_server_and_what_is_wrong_with_it(unused_tcp_port: int) -> None:
    with raises_code("database.unreachable") as caught:
        await Database.open(
            f"postgresql://tenuto@127.0.0.1:{unused_tcp_port},no-such-host.invalid/x", connect_timeout_seconds=0
        )
    assert isinstance(caught.value, Unavailable)
    assert f"no server listens on 127.0.0.1 port {unused_tcp_port}" in caught.value.message
    assert "unknown host name no-such-host.invalid" in caught.value.message


async def test_login_rejected_by_every_server_is_not_retried(url: str) -> None:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    twice = f"host={query['host']},{query['host']}&port={query['port']},{query['port']}"
    with pytest.raises(StoreError) as caught:
        await Database.open(f"postgresql://stranger@{parts.path}?{twice}")
    assert caught.value.code == "database.login.rejected"


async def test_address_that_is_not_valid_is_refused() -> None:
    with raises_code("database.url.not_valid"):
        await Database.open("postgresql://a@one,two/x?port=1,2,3")


async def test_connection_over_tcp_breaks_when_the_machine_vanishes() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        server_selection._limit_silence(writer.get_extra_info("socket"))
        found = writer.get_extra_info("socket")
        options = [
            found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        ]
        writer.close()
    assert options == [10_000, 1]


async def test_connection_that_became_read_only_is_replaced(url: str) -> None:
    db = await Database.open(url, max_connections=1)
    await db.fetch_value("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    await db.write_value("CREATE TABLE written (number integer)")
    assert await db.fetch_value("SELECT count(*) FROM written") == 0
    await db.write_value("DROP TABLE written")
    await db.close()


async def test_built_in_types_are_read_once_per_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads the types of arrays on every connection."""
    monkeypatch.setattr(server_selection, "_built_in_types", {})
    reads, found = [], []
    for _ in range(2):
        connection = await server_selection.connect(url)
        for statement, value in (
            ("SELECT $1::uuid[]", []),
            ("SELECT $1::timestamptz[]", None),
            ("SELECT $1::int[]", [3]),
        ):
            found.append(await connection.fetchval(statement, value))
        await connection.execute("CREATE TYPE pg_temp.mood AS ENUM ('calm')")
        found.append(await connection.fetchval("SELECT ARRAY[$1::pg_temp.mood]", "calm"))
        reads.append(
            await connection.fetchval(
                "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement ~ $1", "typeinfo_tree"
            )
        )
        await connection.close()
    assert found == [[], None, [3], ["calm"]] * 2
    assert reads[1] < reads[0], "only own types are read again"
