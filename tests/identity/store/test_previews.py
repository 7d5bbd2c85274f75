"""Scratch copies of the tables for previews."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tenuto.postgres.database import Connection, Database
from tenuto_identity.store import previews, transaction_settings
from tenuto_identity.store.previews import NOT_COPIED, SHARED_SCHEMA

TASK = """
INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, created_at, initiator_type,
                          initiator_name)
VALUES ($1, $1, 'queued', 'default', 0, 'step', 'identity.preview', '{}', '{}', now(), 'user', 'ana')
"""
NOW = datetime(2026, 11, 1, tzinfo=UTC)
OBJECTS = """
INSERT INTO tenuto_identity.connector_objects (system_number, type_number, anchor, changed_at)
SELECT 1, 1, 'a' || n, '2026-11-01' FROM generate_series(1, 3) AS n
"""


async def create(database: Database, schema: str) -> None:
    async with database.connection() as connection, connection.transaction(isolation="repeatable_read"):
        await transaction_settings.prepare(connection, whole_tables=True)
        await previews.create_scratch_copy(connection, schema)


async def tables(database: Database, schema: str) -> set[str]:
    rows = await database.fetch_all("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    return {row[0] for row in rows}


async def test_copy_has_all_tables_rows_indexes_and_its_own_sequences(database: Database) -> None:
    schema = previews.scratch_schema(uuid4())
    await database.fetch_all(OBJECTS)
    await create(database, schema)
    live = {each for each in await tables(database, "tenuto_identity") if not each.startswith(("items_", "changes_"))}
    assert await tables(database, schema) == live - NOT_COPIED
    assert await database.fetch_value(f"SELECT count(*) FROM {schema}.connector_objects") == 3
    count = "SELECT count(*) FROM pg_indexes WHERE schemaname = $1 AND tablename = 'connector_objects'"
    assert await database.fetch_value(count, schema) == await database.fetch_value(count, "tenuto_identity")
    async with database.connection() as connection, transaction_settings.transaction(connection, schema):
        assert await connection.fetchval("SELECT nextval('connector_objects_id_seq')") == 4
        await connection.execute("INSERT INTO sync_marks (object_id, system_number, reason) VALUES (1, 1, 'rule')")
    live_stamp = "SELECT is_called FROM tenuto_identity.sync_mark_stamps"
    assert await database.fetch_value(live_stamp) is False
    assert await database.fetch_value("SELECT last_value FROM tenuto_identity.connector_objects_id_seq") == 3
    await create(database, schema)  # a repeated attempt replaces it
    async with database.connection() as connection:
        await previews.drop_scratch_copy(connection, schema)
    assert await tables(database, schema) == set()


async def test_shared_schema_is_emptied_and_filled_again(database: Database) -> None:
    for _ in range(2):
        await create(database, SHARED_SCHEMA)
        assert "connector_objects" in await tables(database, SHARED_SCHEMA)
    async with database.connection() as connection:
        await previews.drop_scratch_copy(connection, SHARED_SCHEMA)
    assert await tables(database, SHARED_SCHEMA) == set()


async def test_shared_schema_is_used_by_one_preview_at_a_time(database: Database) -> None:
    async with database.connection() as first, database.connection() as second:
        assert await previews.try_shared_schema(first)
        assert not await previews.try_shared_schema(second)
        await previews.release_shared_schema(first)
        assert await previews.try_shared_schema(second)
        await previews.release_shared_schema(second)


async def test_expired_previews_and_abandoned_copies_are_dropped(database: Database, connection: Connection) -> None:
    running, expired = uuid4(), uuid4()
    for id, expires_at in ((running, NOW + timedelta(days=1)), (expired, NOW)):
        async with database.connection() as other, transaction_settings.transaction(other):
            assert await previews.insert_preview(
                other, id, "HR/Full Import", "ana", NOW, expires_at, has_definitions=False
            )
        await create(database, previews.scratch_schema(id))
    await database.fetch_all(TASK, running)
    async with database.connection() as other, transaction_settings.transaction(other):
        await previews.begin_preview(other, running)
    assert await previews.is_anything_expired(database, NOW)
    async with database.connection() as other, transaction_settings.transaction(other, whole_tables=True):
        assert await previews.drop_expired(other, NOW) == [previews.scratch_schema(expired)]
    assert not await previews.is_anything_expired(database, NOW)
    assert await previews.load_preview(database, expired) is None
    assert await tables(database, previews.scratch_schema(running)) != set()
    record = await previews.load_preview(database, running)
    assert record is not None
    assert record.state == "running"


async def drop_expired(database: Database) -> list[str]:
    async with database.connection() as connection, transaction_settings.transaction(connection, whole_tables=True):
        return await previews.drop_expired(connection, NOW)


async def test_copy_that_a_killed_worker_left_in_the_shared_schema_is_dropped(database: Database) -> None:
    assert not await previews.is_anything_expired(database, NOW)
    async with database.connection() as worker:
        assert await previews.try_shared_schema(worker)
        await create(database, SHARED_SCHEMA)
        assert await drop_expired(database) == []
        assert "connector_objects" in await tables(database, SHARED_SCHEMA)
        await previews.release_shared_schema(worker)
    assert await previews.is_anything_expired(database, NOW)
    assert await drop_expired(database) == [SHARED_SCHEMA]
    assert await tables(database, SHARED_SCHEMA) == set()
    assert not await previews.is_anything_expired(database, NOW)


async def test_preview_without_a_task_has_failed(database: Database) -> None:
    queued, running, open_one = uuid4(), uuid4(), uuid4()
    async with database.connection() as connection, transaction_settings.transaction(connection):
        for id in (queued, running, open_one):
            await previews.insert_preview(
                connection, id, "HR/Full Import", "ana", NOW, NOW + timedelta(days=1), has_definitions=False
            )
        await previews.begin_preview(connection, running)
    await database.fetch_all(TASK, open_one)
    assert await previews.is_anything_expired(database, NOW)
    await drop_expired(database)
    states = {each.id: (each.state, each.ended_at) for each in await previews.list_previews(database, None, 10)}
    assert states == {queued: ("failed", NOW), running: ("failed", NOW), open_one: ("queued", None)}
    assert not await previews.is_anything_expired(database, NOW)
