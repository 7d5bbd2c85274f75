"""The database server is restarted while events are collected and while messages are delivered."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component
from tenuto_notifications.extension import Notifications
from tests.notifications.failing_schedule import add_broken_job, delivered, webhook_rule
from tests.notifications.receivers import WebhookReceiver
from tests.races.disposable_server import DisposableServer
from tests.support.http_site import ReceivedRequest, Send, make_response
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def restarted_server() -> AsyncIterator[DisposableServer]:
    server = await asyncio.to_thread(DisposableServer)
    try:
        await server.migrate()
        database = await Database.open(server.url)
        await migrator.migrate(database, Component("notifications", Notifications().migrations()))
        await database.close()
        yield server
    finally:
        await asyncio.to_thread(server.close)


async def test_restarted_database_leads_to_one_message_for_each_event(
    restarted_server: DisposableServer, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    arrived, may_answer = threading.Event(), threading.Event()

    def hold(request: ReceivedRequest, send: Send) -> None:
        arrived.set()
        may_answer.wait(60)
        send(make_response(204))

    receiver.pages["/hook"] = hold
    async with Tenuto(restarted_server.url, home=tmp_path) as app:
        add_broken_job(app)
        await webhook_rule(app, receiver.url("/hook"), "task.failed")
        job, tasks = app.jobs.get_job("broken"), []
        async with app.worker(lease_seconds=5), app.scheduler():
            tasks += [await app.enqueue(job, f"first {number}") for number in range(3)]
            assert await asyncio.to_thread(arrived.wait, 30), "a message is being delivered"
            await restarted_server.crash()
            may_answer.set()
            await restarted_server.start()
            for restart in range(2):  # some of these events are being collected when the server stops
                tasks += await eventually(lambda n=restart: _enqueue(app, n), 30)  # type: ignore[misc]
                await restarted_server.crash()
                await restarted_server.start()
            await eventually(lambda: _are_delivered(app, len(tasks)), 60)
    messages: defaultdict[str, set[str]] = defaultdict(set)
    for document in receiver.documents:
        for event in document["events"]:
            messages[event["fields"]["id"]].add(document["id"])
    assert messages.keys() == {str(task.id) for task in tasks}
    assert {len(ids) for ids in messages.values()} == {1}


async def _enqueue(app: Tenuto, number: int) -> list[object]:
    job = app.jobs.get_job("broken")
    return [await app.enqueue(job, f"restart {number} task {each}") for each in range(3)]


async def _are_delivered(app: Tenuto, count: int) -> bool:
    return len(await delivered(app)) == count
