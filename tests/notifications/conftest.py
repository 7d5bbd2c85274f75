"""Fixtures of the tests of notifications: databases with their tables, receivers, and an app."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.postgres import migrator, scratch_databases
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component
from tenuto_notifications.extension import Notifications
from tests.conftest import database_name
from tests.notifications.receivers import MailServer, WebhookReceiver

_number = count(1)


@pytest.fixture(autouse=True)
def _enable_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "master.key"
    key.write_text(base64.b64encode(b"k" * 32).decode())
    key.chmod(0o600)
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))
    monkeypatch.setenv("TENUTO_DISABLED_EXTENSIONS", "identity")
    monkeypatch.setenv("TENUTO_HTTP_ALLOWED_HOSTS", "127.0.0.1")
    monkeypatch.setenv("TENUTO_NOTIFICATIONS_POLL_SECONDS", "0.05")
    monkeypatch.setenv("TENUTO_NOTIFICATIONS_CONDITION_SECONDS", "0.05")


@pytest.fixture(scope="session")
def notifications_template(server: str, template: str) -> Iterator[str]:
    """Name of a database with the schemas of Tenuto and of notifications."""
    name = database_name("notifications_template")

    async def create() -> None:
        database = await Database.open(await scratch_databases.copy_database(server, template, name, by_file_copy=True))
        try:
            await migrator.migrate(database, Component("notifications", Notifications().migrations()))
        finally:
            await database.close()

    asyncio.run(create())
    yield name
    asyncio.run(scratch_databases.drop_database(server, name))


@pytest.fixture
async def url(server: str, notifications_template: str) -> AsyncIterator[str]:
    """URL of a new database with the tables of notifications."""
    name = database_name(f"notifications_{next(_number)}")
    yield await scratch_databases.copy_database(server, notifications_template, name, by_file_copy=True)
    await scratch_databases.drop_database(server, name)


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    """An app with notifications."""
    async with Tenuto(url, home=tmp_path) as app:
        yield app
        assert app.extension_registry.failures == []


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    """A real HTTP server that records requests."""
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def mail_server(tmp_path: Path) -> Iterator[MailServer]:
    """A real SMTP server with STARTTLS and a login."""
    with MailServer(tmp_path) as server:
        yield server
