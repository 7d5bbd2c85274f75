"""The figures of events count what is open: no waits of ended tasks, and no events that nothing can receive."""

from __future__ import annotations

from uuid import UUID

from tenuto.ids import new_id
from tenuto.postgres.database import Database
from tenuto.store.events import external_events
from tests.support.tasks import create_task


async def insert_wait(db: Database, task_id: UUID) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.event_waits (task_id, step, number, name, key, registered_at, expires_at, attempt)"
        " VALUES ($1, '', 1, 'paid', '', now(), now() + interval '1 h', 1)",
        task_id,
    )


async def insert_event(db: Database, expires_in: str) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.sent_events (id, name, key, payload, sent_at, expires_at, sender_type, sender_name)"
        " VALUES ($1, 'paid', '', '{}', now() - interval '1 h', now() + $2::text::interval, 'system', 'test')",
        new_id(),
        expires_in,
    )


async def test_waits_of_ended_tasks_and_expired_events_are_not_counted(db: Database) -> None:
    await insert_wait(db, await create_task(db))
    await insert_wait(db, new_id())
    for expires_in in ("1 h", "2 h", "-1 s"):
        await insert_event(db, expires_in)
    async with db.connection() as connection:
        found = await external_events.count_events(connection, 10)
    assert (found.wait_count, found.kept_count) == (1, 2)
