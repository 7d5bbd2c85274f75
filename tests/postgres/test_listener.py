"""The listener receives notifications on its own connection, which reconnects and reports it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store.service_notifications import notify_services
from tests.support.waiting import eventually

KILL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'tenuto listener' AND datname = current_database()
"""


@pytest.fixture
async def received(db: Database) -> AsyncIterator[list[str]]:
    received: list[str] = []
    listener = Listener(db, received.append)
    listener.start()
    await eventually(lambda: received == [RECONNECTED])
    yield received
    await listener.stop()
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenuto listener' AND datname = $1"
    name = await db.fetch_value("SELECT current_database()")

    async def is_disconnected() -> bool:
        return bool(await db.fetch_value(count, name) == 0)

    await eventually(is_disconnected)


async def test_listener_receives_notifications_in_order(db: Database, received: list[str]) -> None:
    await notify_services(db, ["queued mail", "cancel 17"])
    await eventually(lambda: received[1:] == ["queued mail", "cancel 17"])


async def test_listener_receives_no_notification_of_a_rolled_back_transaction(
    db: Database, url: str, received: list[str]
) -> None:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_notify('tenuto', 'never')")
    await transaction.rollback()
    await connection.close()
    await notify_services(db, ["queued mail"])
    await eventually(lambda: "queued mail" in received)
    assert "never" not in received


async def test_listener_reconnects_and_reports_it(db: Database, received: list[str]) -> None:
    for times in (2, 3):
        await db.fetch_all(KILL)
        await eventually(lambda times=times: received.count(RECONNECTED) == times)  # type: ignore[misc]
        await notify_services(db, [f"notification {times}"])
        await eventually(lambda times=times: f"notification {times}" in received)  # type: ignore[misc]


async def test_listener_logs_an_interruption_and_its_end_once(
    db: Database, received: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tenuto.listener")
    connect = asyncpg.connect
    refused: list[ConnectionRefusedError] = []

    async def refuse_twice(*arguments: Any, **options: Any) -> asyncpg.Connection:
        if len(refused) < 2:
            refused.append(ConnectionRefusedError("no server"))
            raise refused[-1]
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncpg, "connect", refuse_twice)
    await db.fetch_all(KILL)
    await eventually(lambda: received.count(RECONNECTED) == 2)
    events = [record.message.partition(" channel=")[0] for record in caplog.records if record.name == "tenuto.listener"]
    assert events == ["notification listener disconnected", "notification listener reconnected"]
    assert len(refused) == 2


@pytest.mark.parametrize("ticks", range(6))
async def test_listener_stops_when_the_connection_ends_at_the_same_time(
    db: Database, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[asyncpg.Connection] = []
    connect = asyncpg.connect

    async def remember(*arguments: Any, **options: Any) -> asyncpg.Connection:
        connections.append(await connect(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(asyncpg, "connect", remember)
    received: list[str] = []
    listener = Listener(db, received.append)
    listener.start()
    await eventually(lambda: received == [RECONNECTED])
    connections[0].terminate()
    for _ in range(ticks):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(listener.stop())
    done, _ = await asyncio.wait((stopping,), timeout=5)
    await listener.stop()
    assert done == {stopping}


async def test_listener_does_not_connect_behind_a_pooler(url: str) -> None:
    database = await Database.open(url, behind_pooler=True)
    listener = Listener(database, lambda _notification: None)
    try:
        listener.start()
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenuto listener' AND datname = $1"
        assert await database.fetch_value(count, await database.fetch_value("SELECT current_database()")) == 0
        assert not listener.is_connected
    finally:
        await listener.stop()
        await database.close()
