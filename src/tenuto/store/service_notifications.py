"""Notifications of services about changes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tenuto.errors import StoreError
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)


async def notify_services(database: Database, notifications: Iterable[str]) -> None:
    """Notify the services of a change. Errors are ignored, because polling finds the change, too."""
    with suppress(StoreError):
        await database.fetch_all(SQL.notify_services, list(notifications))
