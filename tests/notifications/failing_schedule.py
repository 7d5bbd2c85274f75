"""What the tests of notifications share: a schedule that fails, and steps of the collector."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tenuto import Step, Tenuto, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto_notifications.collection.collector import Collector
from tenuto_notifications.extension import Notifications
from tenuto_notifications.operations import Delivery, NotificationOperations


def operations_of(app: Tenuto) -> NotificationOperations:
    found: NotificationOperations = app.extensions.notifications
    return found


def collector_of(app: Tenuto) -> Collector:
    extension = app.extension_registry.find("notifications")
    assert isinstance(extension, Notifications)
    return Collector(app.extension_registry.create_services(extension))


async def webhook_rule(app: Tenuto, url: str, event: str = "execution.failed", **more: Any) -> str:
    """Create a rule without grouping, unless given; return its name."""
    definition = {"name": "rule", "event": event, "channel": {"kind": "webhook", "url": url}, "group": {"window": 0}}
    created = await operations_of(app).create({**definition, **more})
    return created.name


def add_broken_job(app: Tenuto) -> None:
    @app.job(max_attempts=1)
    async def broken(text: str = "no space left") -> None:
        raise ValueError(text)

    @app.job(max_attempts=1)
    async def sound() -> None:
        pass


async def add_schedule(app: Tenuto, name: str = "Nightly", job: str = "broken") -> None:
    await app.schedules.create(schedule_definition(name, manual(), [Step.job(app.jobs.get_job(job))]))


async def run_schedule(app: Tenuto, name: str = "Nightly") -> UUID:
    """Run a schedule to its end; a worker must run."""
    started = await app.schedules.run(name)
    assert started.execution_id is not None
    await app.executions.wait(started.execution_id, 30)
    return started.execution_id


async def delivered(app: Tenuto, state: str = "delivered") -> list[Delivery]:
    return list(await operations_of(app).deliveries(state=state))


async def events_of(database: Database) -> list[tuple[str, str, str]]:
    """Return kind, title and state of all recorded events in the order of their keys."""
    rows = await database.fetch_all("SELECT kind, title, state FROM tenuto_notifications.events ORDER BY event_key")
    return [(row["kind"], row["title"], row["state"]) for row in rows]


async def run_concurrently(*collectors: Collector) -> None:
    await asyncio.gather(*(each.run_cycle() for each in collectors))


async def assert_stored_nowhere(app: Tenuto, text: str) -> None:
    """Search every table for a text."""
    database = await app.open()
    tables = await database.fetch_all(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname LIKE 'tenuto%'"
    )
    for table in tables:
        found = await database.fetch_value(
            f"SELECT count(*) FROM {table['name']} AS row WHERE strpos(row::text, $1) > 0", text
        )
        assert found == 0, table["name"]
