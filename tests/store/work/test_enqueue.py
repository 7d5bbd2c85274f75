"""Enqueueing tasks (S7): one, many or thousands; a repeated call changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.errors import StoreError, TenutoError
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, Settlement, cancelled_outcome
from tenuto.postgres.database import Connection, Database, DatabaseError
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store.work import task_creation, task_outcomes
from tenuto.store.work import tasks as store
from tests.support.model_values import NOON, make_new_task
from tests.support.tasks import create_task, now, read_rows
from tests.support.waiting import eventually

# One task uses its own statement, several use unnest.
HOW_MANY = [1, 2, 120]

EVERYTHING: dict[str, Any] = {
    "name": "bake",
    "input": '{"n": 1, "text": "ä \\\\ \\" 😀"}',
    "run_at": NOON,
    "queue": "oven",
    "priority": 7,
    "policy": '{"max_attempts": 9}',
    "limit_key": "gas",
    "limit_max": 4,
    "tags": ["plain", 'a "quoted" one', "back\\slash", "{curly, comma}", "ä😀", "NULL"],
    "correlation_id": "'; DROP TABLE tenuto.tasks;--",
    "initiator": Actor.api_key("k1", "nightly"),
}


@pytest.mark.parametrize("count", HOW_MANY)
async def test_enqueued_tasks_are_stored_with_all_fields(count: int, db: Database) -> None:
    parent = new_id()
    tasks = [make_new_task(**EVERYTHING, parent_id=parent) for _ in range(count)]
    assert await task_creation.enqueue_tasks(db, tasks) == {task.id for task in tasks}
    stored = await read_rows(db)
    assert {row["id"] for row in stored} == {task.id for task in tasks}
    for row in stored:
        assert row["activity_id"] == row["id"]
        assert (row["state"], row["attempt"], row["failures"], row["losses"]) == ("scheduled", 1, 0, 0)
        assert (row["queue"], row["rank"], row["run_at"], row["kind"]) == ("oven", -7, NOON, "job")
        assert json.loads(row["input"]) == {"n": 1, "text": 'ä \\ " 😀'}
        assert json.loads(row["policy"]) == {"max_attempts": 9}
        assert (row["limit_key"], row["limit_max"], row["tags"]) == ("gas", 4, EVERYTHING["tags"])
        assert (row["initiator_type"], row["initiator_id"], row["initiator_name"]) == ("api_key", "k1", "nightly")
        assert (row["correlation_id"], row["parent_id"]) == (EVERYTHING["correlation_id"], parent)


@pytest.mark.parametrize("count", HOW_MANY)
async def test_enqueueing_the_same_tasks_again_changes_nothing(count: int, db: Database) -> None:
    tasks = [make_new_task() for _ in range(count)]
    await task_creation.enqueue_tasks(db, tasks)
    before = await read_rows(db)
    assert await task_creation.enqueue_tasks(db, tasks) == set()
    assert await read_rows(db) == before


@pytest.mark.parametrize("count", [2, 50])
async def test_enqueue_creates_only_the_missing_tasks(count: int, db: Database) -> None:
    tasks = [make_new_task() for _ in range(count)]
    await task_creation.enqueue_tasks(db, tasks[:1])
    assert await task_creation.enqueue_tasks(db, tasks) == {task.id for task in tasks[1:]}
    assert len(await read_rows(db)) == count


async def test_unique_key_allows_one_open_task(db: Database) -> None:
    first = await create_task(db, unique_key="order 17")
    assert await task_creation.enqueue_tasks(db, [make_new_task(unique_key="order 17")]) == set()
    assert await task_creation.enqueue_or_find(db, make_new_task(unique_key="order 17")) == first
    other = make_new_task(unique_key="order 18")
    assert await task_creation.enqueue_or_find(db, other) == other.id


@pytest.mark.parametrize("count", [2, 50])
async def test_unique_key_repeated_in_one_call_creates_one_task(count: int, db: Database) -> None:
    tasks = [make_new_task(unique_key="order 17") for _ in range(count)]
    assert len(await task_creation.enqueue_tasks(db, tasks)) == 1
    assert len(await read_rows(db)) == 1


async def test_concurrent_enqueues_with_one_key_create_one_task(db: Database) -> None:
    created = await asyncio.gather(
        *(task_creation.enqueue_tasks(db, [make_new_task(unique_key="order 17")]) for _ in range(20))
    )
    assert sum(map(len, created)) == 1


async def test_bulk_enqueue_creates_thousands_of_tasks(db: Database) -> None:
    like = make_new_task(queue="oven", priority=3, tags=["bulk"], limit_key="gas", limit_max=2)
    assert await task_creation.enqueue_bulk(db, like, [json.dumps({"n": n}) for n in range(2000)]) == 2000
    stored = await read_rows(db)
    assert sorted(json.loads(row["input"])["n"] for row in stored) == list(range(2000))
    assert {(row["queue"], row["rank"], row["state"], row["limit_key"], tuple(row["tags"])) for row in stored} == {
        ("oven", -3, "queued", "gas", ("bulk",))
    }
    assert all(row["activity_id"] == row["id"] for row in stored)
    assert all(abs(row["run_at"] - now()) < timedelta(minutes=1) for row in stored)


async def test_bulk_enqueued_tasks_for_later_are_scheduled(db: Database) -> None:
    later = now() + timedelta(hours=1)
    await task_creation.enqueue_bulk(db, make_new_task(run_at=later), ["{}"] * 60)
    assert {(row["state"], row["run_at"]) for row in await read_rows(db)} == {("scheduled", later)}


@pytest.mark.parametrize("count", [2, 50])
async def test_enqueue_stores_all_tasks_or_none(count: int, db: Database) -> None:
    tasks = [make_new_task() for _ in range(count)]
    tasks[-1].input = "not JSON"
    with pytest.raises(TenutoError):
        await task_creation.enqueue_tasks(db, tasks)
    assert await read_rows(db) == []


@pytest.mark.parametrize(
    ("tasks", "word"),
    [
        (lambda: [make_new_task(queue="mail")], "queued mail"),
        (lambda: [make_new_task(queue="mail") for _ in range(2)], "queued mail"),
        (lambda: [make_new_task(queue="mail") for _ in range(60)], "queued mail"),
        (lambda: [make_new_task(queue="mail", run_at=NOON)], "scheduled mail"),
        (lambda: [make_new_task(queue="mail", run_at=NOON) for _ in range(2)], "scheduled mail"),
    ],
)
async def test_enqueue_notifies_workers(tasks: Callable[[], Sequence[NewTask]], word: str, db: Database) -> None:
    heard: list[str] = []
    listener = Listener(db, heard.append)
    listener.start()
    try:
        await eventually(lambda: RECONNECTED in heard)
        await task_creation.enqueue_tasks(db, tasks())
        await eventually(lambda: any(said.startswith(word) for said in heard))
    finally:
        await listener.stop()


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'running'", "tasks_running_means_held"),
        ("worker_id = gen_random_uuid()", None),
        ("attempt = 2", "tasks_first_attempt_is_the_task"),
        ("activity_id = gen_random_uuid()", "tasks_first_attempt_is_the_task"),
        ("limit_max = 3", "tasks_limit_is_whole"),
        ("state = 'asleep'", "tasks_state_check"),
    ],
)
async def test_database_rejects_inconsistent_tasks(change: str, constraint: str | None, db: Database) -> None:
    await create_task(db)
    if constraint is None:
        await db.fetch_all(f"UPDATE tenuto.tasks SET {change}")  # a queued task has no worker
        return
    with pytest.raises(DatabaseError, match=constraint):
        await db.fetch_all(f"UPDATE tenuto.tasks SET {change}")


async def test_enqueue_rejects_text_that_the_database_cannot_store(db: Database) -> None:
    with pytest.raises(TenutoError) as refusal:
        await task_creation.enqueue_tasks(db, [make_new_task(correlation_id="a\x00b")])
    assert not isinstance(refusal.value, StoreError) or isinstance(refusal.value, DatabaseError)


def test_new_ids_ascend() -> None:
    ids: list[UUID] = [new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


async def test_task_that_ends_during_a_repeated_enqueue_is_not_created_again(db: Database, url: str) -> None:
    """The second enqueue has read the activities before, and waits for the transaction that ends the task."""
    new = make_new_task()
    await task_creation.enqueue_tasks(db, [new])
    task, other = await store.load_task_to_cancel(db, new.id), await Database.open(url)
    assert task is not None

    async def end(connection: Connection) -> asyncio.Task[set[UUID]]:
        await task_outcomes.end_tasks(connection, [Settlement(task, cancelled_outcome(task, now(), new.initiator))])
        again = asyncio.create_task(task_creation.enqueue_tasks(other, [new]))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        return again

    again = await db.transaction(end)
    assert await again == set()
    assert await read_rows(db) == []
    assert len(await read_rows(db, "activities")) == 1
    await other.close()
