"""Activities (J2, W5): written once, protected by the database, found by one id in every state."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import Filter
from tenuto.model.work.tasks import Retry, Settlement
from tenuto.postgres.database import Connection, Database, DatabaseError
from tenuto.store.work import activities
from tenuto.store.work import tasks as store
from tests.support.model_values import NOON
from tests.support.tasks import (
    Register,
    claim,
    completed_outcome,
    create_and_claim,
    create_task,
    failed_outcome,
    now,
    read_rows,
)

PAST = Filter(ACTIVITY_KEYS)
OPEN = Filter(TASK_KEYS)


async def make_finished_task(db: Database, register_worker: Register, **fields: object) -> UUID:
    task = await create_and_claim(db, await register_worker(), **fields)
    await finish(db, [Settlement(task, completed_outcome())])
    return task.id


@pytest.mark.parametrize(
    ("statement", "operation"),
    [
        ("UPDATE tenuto.activities SET status = 'failed'", "UPDATE"),
        ("UPDATE tenuto.activities SET log = NULL", "UPDATE"),
        ("DELETE FROM tenuto.activities", "DELETE"),
        ("TRUNCATE tenuto.activities", "TRUNCATE"),
        ("TRUNCATE tenuto.tasks, tenuto.activities", "TRUNCATE"),
        ("UPDATE tenuto.{partition} SET status = 'failed'", "UPDATE"),
        ("DELETE FROM tenuto.{partition}", "DELETE"),
        ("TRUNCATE tenuto.{partition}", "TRUNCATE"),
        ("TRUNCATE tenuto.activities_old", "TRUNCATE"),
        ("UPDATE tenuto.activities SET id = gen_random_uuid()", "UPDATE"),  # would move it to another partition
    ],
)
async def test_database_rejects_changes_of_activities(
    statement: str, operation: str, db: Database, register_worker: Register
) -> None:
    await make_finished_task(db, register_worker)
    before = await read_rows(db, "activities")
    partition = await db.fetch_value(
        "SELECT relname FROM tenuto.activities JOIN pg_class ON pg_class.oid = activities.tableoid"
    )
    with pytest.raises(DatabaseError, match=f"an activity is written once: {operation}"):
        await db.fetch_all(statement.format(partition=partition))
    assert await read_rows(db, "activities") == before


async def test_retention_may_only_delete_activities_in_its_own_transaction(
    db: Database, register_worker: Register
) -> None:
    await make_finished_task(db, register_worker)

    async def change(connection: Connection) -> None:
        await connection.execute(activities.SQL.allow_retention)
        await connection.execute("UPDATE tenuto.activities SET status = 'failed'")

    async def empty(connection: Connection) -> None:
        await connection.execute(activities.SQL.allow_retention)
        await connection.execute("TRUNCATE tenuto.activities")

    async def delete(connection: Connection) -> None:
        await connection.execute(activities.SQL.allow_retention)
        await connection.execute("DELETE FROM tenuto.activities")

    for refused in (change, empty):
        with pytest.raises(DatabaseError, match="written once"):
            await db.transaction(refused)
    with pytest.raises(DatabaseError, match="written once"):
        await db.fetch_all("DELETE FROM tenuto.activities")
    await db.transaction(delete)
    assert await read_rows(db, "activities") == []


async def test_activity_is_found_before_during_and_after_its_attempt(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task_id = await create_task(db, run_at=NOON, priority=3)

    async def load_activity() -> activities.ActivityDetails:
        record = await activities.load_activity(db, task_id)
        assert record is not None
        assert (record.id, record.task_id, record.attempt, record.priority) == (task_id, task_id, 1, 3)
        return record

    assert (await load_activity()).state == "scheduled"
    await store.promote_due_tasks(db, NOON, ["default"])
    assert (await load_activity()).state == "queued"
    (task,) = await claim(db, worker)
    record = await load_activity()
    assert (record.state, record.worker_id, record.ended_at) == ("running", worker, None)
    await finish(db, [Settlement(task, completed_outcome())])
    record = await load_activity()
    assert (record.state, record.final) == ("completed", True)
    assert record.ended_at is not None


async def test_activities_of_later_attempts_are_found_before_during_and_after(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    second = new_id()
    await finish(db, [Settlement(task, failed_outcome(), Retry(NOON, second, 1, 0))])

    async def list_states() -> list[tuple[str, bool]]:
        found = [await activities.load_activity(db, id) for id in (task.id, second)]
        assert [record.attempt for record in found if record] == [1, 2]
        assert {record.task_id for record in found if record} == {task.id}
        listed = await activities.list_attempts(db, task.id)
        assert [record.id for record in listed] == [task.id, second]
        return [(record.state, record.final) for record in found if record]

    assert await list_states() == [("failed", False), ("scheduled", False)]
    await store.promote_due_tasks(db, NOON, ["default"])
    assert await list_states() == [("failed", False), ("queued", False)]
    (again,) = await claim(db, worker)
    assert await list_states() == [("failed", False), ("running", False)]
    await finish(db, [Settlement(again, completed_outcome())])
    assert await list_states() == [("failed", False), ("completed", True)]


async def test_unknown_activity_id_returns_nothing(db: Database) -> None:
    assert await activities.load_activity(db, new_id()) is None
    assert await activities.list_attempts(db, new_id()) == []
    assert await activities.load_task(db, new_id()) is None


async def test_open_task_is_returned_with_all_fields(db: Database) -> None:
    task_id = await create_task(db, input='{"n": 1}', policy='{"max_attempts": 2}', unique_key="k", tags=["a"])
    task = await activities.load_task(db, task_id)
    assert task is not None
    assert (task.input, task.policy, task.state) == ({"n": 1}, {"max_attempts": 2}, "queued")
    assert (task.unique_key, task.tags, task.initiator_name) == ("k", ["a"], "Ana")


async def test_activity_lists_are_newest_first_and_paged(db: Database, register_worker: Register) -> None:
    ids = [await make_finished_task(db, register_worker) for _ in range(3)]
    open_ids = [await create_task(db) for _ in range(3)]
    past = await activities.list_activities(db, PAST, limit=2)
    past += await activities.list_activities(db, PAST, limit=2, below=past[-1].id)
    assert [row.id for row in past] == ids[::-1]
    tasks = await activities.list_tasks(db, OPEN, limit=2)
    tasks += await activities.list_tasks(db, OPEN, limit=2, below=tasks[-1].id)
    assert [row.id for row in tasks] == open_ids[::-1]


async def test_activity_lists_can_be_filtered(db: Database, register_worker: Register) -> None:
    await make_finished_task(db, register_worker, name="bake", tags=["a", "b"])
    await make_finished_task(db, register_worker, name="wash")
    await create_task(db, name="bake", queue="mail", tags=["a"])
    await create_task(db, name="wash", run_at=NOON)

    async def tasks(**filters: str) -> list[str]:
        return [row.name for row in await activities.list_tasks(db, OPEN.where(**filters), limit=50)]

    async def past(**filters: str) -> list[str]:
        return [row.name for row in await activities.list_activities(db, PAST.where(**filters), limit=50)]

    assert await tasks(state="scheduled") == ["wash"]
    assert await tasks(queue="mail") == await tasks(tag="a") == await tasks(name="bake") == ["bake"]
    assert await past(tag="b") == await past(name="bake") == ["bake"]
    assert await past(state="failed") == await past(name="'; DROP TABLE tenuto.tasks;--") == await past(name="%") == []


async def test_id_prefix_finds_open_and_ended_tasks(db: Database, register_worker: Register) -> None:
    past, open_task = await make_finished_task(db, register_worker), await create_task(db)
    for id in (past, open_task):
        assert await activities.find_ids_by_prefix(db, str(id)) == [id]
        assert await activities.find_ids_by_prefix(db, str(id).upper()[:-2]) == [id]
    assert set(await activities.find_ids_by_prefix(db, str(past)[:3])) == {past, open_task}
    assert await activities.find_ids_by_prefix(db, "ffff") == []


@pytest.mark.parametrize("prefix", ["", "-", "1e3x", " 1", "\uff19", "0" * 33, "'; DROP", str(2**200), "\x00"])
async def test_invalid_id_prefix_is_rejected(prefix: str, db: Database) -> None:
    with pytest.raises(Invalid) as refusal:
        await activities.find_ids_by_prefix(db, prefix)
    assert refusal.value.field == "id"


async def test_outcomes_are_counted_by_tag(db: Database, register_worker: Register) -> None:
    await make_finished_task(db, register_worker, tags=["a"])
    await create_task(db, tags=["a"], run_at=now() + timedelta(hours=1))
    counts = await activities.count_outcomes(db, "a")
    assert (counts.done_count, counts.failed_count, counts.open_count, counts.doubled_count) == (1, 0, 1, 0)


async def test_outcomes_are_counted_by_initiator(db: Database) -> None:
    for who, tag in (("ana", "a"), ("ana", "b"), ("ben", "a")):
        await create_task(db, tags=[tag], initiator=Actor.user(who))
    assert (await activities.count_outcomes(db, initiator_id="ana")).open_count == 2
    assert (await activities.count_outcomes(db, "a", "ana")).open_count == 1
    assert (await activities.count_outcomes(db, initiator_id="unknown")).open_count == 0
