"""Connections to a server with the wanted role, and commits that no standby has yet."""

from __future__ import annotations

import asyncio

from tenuto.errors import Unavailable
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.servers import server_selection
from tests.support.errors import raises_code
from tests.support.replication import Cluster
from tests.support.waiting import eventually


async def port_of(url: str) -> int:
    connection = await server_selection.connect(url, timeout=10)
    found: int = await connection.fetchval("SELECT inet_server_port()")
    await connection.close()
    return found


async def test_connection_leads_to_the_server_with_the_wanted_role(cluster: Cluster) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    for first, second in ((primary, standby), (standby, primary)):
        assert await port_of(cluster.url(first, second)) == primary.port
        assert await port_of(cluster.url(first, second, target=None)) == primary.port
        assert await port_of(cluster.url(first, second, target="standby")) == standby.port
        assert await port_of(cluster.url(first, second, target="prefer-standby")) == standby.port
    with raises_code("database.server.read_only") as caught:
        await Database.open(cluster.url(standby), connect_timeout_seconds=0)
    assert isinstance(caught.value, Unavailable)
    primary.kill()
    with raises_code("database.unreachable") as caught:
        await Database.open(cluster.url(), connect_timeout_seconds=0)
    assert f"the server on 127.0.0.1 port {standby.port} is a read-only standby" in caught.value.message
    primary.start()
    await primary.until_answering()
    standby.stop()
    assert await port_of(cluster.url(target="prefer-standby")) == primary.port


async def test_repeated_write_is_not_accepted_before_the_standby_has_it(cluster: Cluster) -> None:
    primary, standby = await cluster.start(synchronous=True)
    assert standby is not None
    db = await Database.open(primary.url)
    await db.write_value("CREATE TABLE accepted (id integer PRIMARY KEY)")
    standby.stop()

    async def insert(connection: Connection) -> None:
        await connection.execute("INSERT INTO accepted VALUES (1) ON CONFLICT DO NOTHING")

    async def find_waiting() -> object:
        return await primary.value("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    writing = asyncio.create_task(db.transaction(insert))
    pid = await eventually(find_waiting, what="the commit waits for the standby")
    await primary.value(f"SELECT pg_terminate_backend({pid}, 5000)")  # committed on the primary, without a reply
    assert await primary.value("SELECT count(*) FROM accepted") == 1

    # The second try finds the row of the first.
    await eventually(find_waiting, what="the repeated write waits for the standby")
    assert not writing.done()
    standby.start()
    await writing
    primary.kill()
    standby.promote()
    await standby.until_answering(standby=False)
    assert await standby.value("SELECT count(*) FROM accepted") == 1
    await db.close()
