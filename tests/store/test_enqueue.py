"""Creating tasks (S7): one, many, or by the thousand; doing it twice is doing it once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.errors import StoreError, TenutoError
from tenuto.ids import new_id
from tenuto.lifecycle import completion
from tenuto.model.actors import Actor
from tenuto.model.tasks import NewTask, Settlement, cancelled
from tenuto.postgres.database import Connection, Database, DatabaseError
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store import tasks as store
from tests.support.model_values import NOON, a_new_task
from tests.support.tasks import now, rows, start, the_task
from tests.support.waiting import eventually

# One row goes by its own statement, more by unnest.
HOW_MANY = [1, 2, 120]

EVERYTHING: dict[str, Any] = {
    "name": "bake",
    "input": '{"n": 1, "text": "ä \\\\ \\" 😀"}',
    "run_at": NOON,
    "queue": "oven",
    "priority": 7,
    "policy": '{"max_retries": 9}',
    "limit_key": "gas",
    "limit_max": 4,
    "tags": ["plain", 'a "quoted" one', "back\\slash", "{curly, comma}", "ä😀", "NULL"],
    "correlation_id": "'; DROP TABLE tenuto.tasks;--",
    "initiator": Actor.api_key("k1", "nightly"),
}


@pytest.mark.parametrize("count", HOW_MANY)
async def test_whatever_a_task_carries_is_stored_however_many_there_are(count: int, db: Database) -> None:
    parent = new_id()
    tasks = [a_new_task(**EVERYTHING, parent_id=parent) for _ in range(count)]
    assert await store.start(db, tasks) == {task.id for task in tasks}
    stored = await rows(db)
    assert {row["id"] for row in stored} == {task.id for task in tasks}
    for row in stored:
        assert row["activity_id"] == row["id"]
        assert (row["state"], row["attempt"], row["failures"], row["losses"]) == ("scheduled", 1, 0, 0)
        assert (row["queue"], row["rank"], row["run_at"], row["kind"]) == ("oven", -7, NOON, "job")
        assert json.loads(row["input"]) == {"n": 1, "text": 'ä \\ " 😀'}
        assert json.loads(row["policy"]) == {"max_retries": 9}
        assert (row["limit_key"], row["limit_max"], row["tags"]) == ("gas", 4, EVERYTHING["tags"])
        assert (row["initiator_type"], row["initiator_id"], row["initiator_name"]) == ("api_key", "k1", "nightly")
        assert (row["correlation_id"], row["parent_id"]) == (EVERYTHING["correlation_id"], parent)


@pytest.mark.parametrize("count", HOW_MANY)
async def test_starting_the_same_tasks_again_changes_nothing(count: int, db: Database) -> None:
    tasks = [a_new_task() for _ in range(count)]
    await store.start(db, tasks)
    before = await rows(db)
    assert await store.start(db, tasks) == set()
    assert await rows(db) == before


@pytest.mark.parametrize("count", [2, 50])
async def test_of_tasks_partly_there_only_the_new_ones_are_created(count: int, db: Database) -> None:
    tasks = [a_new_task() for _ in range(count)]
    await store.start(db, tasks[:1])
    assert await store.start(db, tasks) == {task.id for task in tasks[1:]}
    assert len(await rows(db)) == count


async def test_a_unique_key_lets_one_open_task_in(db: Database) -> None:
    first = await start(db, unique_key="order 17")
    assert await store.start(db, [a_new_task(unique_key="order 17")]) == set()
    assert await store.start_or_find(db, a_new_task(unique_key="order 17")) == first
    other = a_new_task(unique_key="order 18")
    assert await store.start_or_find(db, other) == other.id


@pytest.mark.parametrize("count", [2, 50])
async def test_a_unique_key_given_many_times_at_once_lets_one_in(count: int, db: Database) -> None:
    tasks = [a_new_task(unique_key="order 17") for _ in range(count)]
    assert len(await store.start(db, tasks)) == 1
    assert len(await rows(db)) == 1


async def test_starts_that_race_for_a_key_create_one_task(db: Database) -> None:
    created = await asyncio.gather(*(store.start(db, [a_new_task(unique_key="order 17")]) for _ in range(20)))
    assert sum(map(len, created)) == 1


async def test_thousands_that_differ_only_in_their_input_are_created_alike(db: Database) -> None:
    like = a_new_task(queue="oven", priority=3, tags=["bulk"], limit_key="gas", limit_max=2)
    assert await store.start_alike(db, like, [json.dumps({"n": n}) for n in range(2000)]) == 2000
    stored = await rows(db)
    assert sorted(json.loads(row["input"])["n"] for row in stored) == list(range(2000))
    assert {(row["queue"], row["rank"], row["state"], row["limit_key"], tuple(row["tags"])) for row in stored} == {
        ("oven", -3, "queued", "gas", ("bulk",))
    }
    assert all(row["activity_id"] == row["id"] for row in stored)
    assert all(abs(row["run_at"] - now()) < timedelta(minutes=1) for row in stored)


async def test_many_created_alike_for_later_wait_for_their_time(db: Database) -> None:
    later = now() + timedelta(hours=1)
    await store.start_alike(db, a_new_task(run_at=later), ["{}"] * 60)
    assert {(row["state"], row["run_at"]) for row in await rows(db)} == {("scheduled", later)}


@pytest.mark.parametrize("count", [2, 50])
async def test_if_one_of_many_cannot_be_stored_none_is(count: int, db: Database) -> None:
    tasks = [a_new_task() for _ in range(count)]
    tasks[-1].input = "not JSON"
    with pytest.raises(TenutoError):
        await store.start(db, tasks)
    assert await rows(db) == []


async def test_a_task_started_within_a_transaction_shares_its_fate(db: Database, url: str) -> None:
    kept, dropped = a_new_task(), a_new_task()
    mine = await asyncpg.connect(url)
    try:
        async with mine.transaction():
            assert await store.start_or_find_within(mine, kept) == kept.id
            assert await rows(db) == [], "nobody sees it before the commit"
        transaction = mine.transaction()
        await transaction.start()
        await store.start_or_find_within(mine, dropped)
        await transaction.rollback()
    finally:
        await mine.close()
    assert (await the_task(db))["id"] == kept.id


@pytest.mark.parametrize(
    ("tasks", "word"),
    [
        (lambda: [a_new_task(queue="mail")], "queued mail"),
        (lambda: [a_new_task(queue="mail") for _ in range(2)], "queued mail"),
        (lambda: [a_new_task(queue="mail") for _ in range(60)], "queued mail"),
        (lambda: [a_new_task(queue="mail", run_at=NOON)], "scheduled mail"),
        (lambda: [a_new_task(queue="mail", run_at=NOON) for _ in range(2)], "scheduled mail"),
    ],
)
async def test_who_may_take_it_is_told(tasks: Callable[[], Sequence[NewTask]], word: str, db: Database) -> None:
    heard: list[str] = []
    listener = Listener(db, heard.append)
    listener.start()
    try:
        await eventually(lambda: RECONNECTED in heard)
        await store.start(db, tasks())
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
async def test_the_database_itself_refuses_a_task_that_contradicts_itself(
    change: str, constraint: str | None, db: Database
) -> None:
    await start(db)
    if constraint is None:
        await db.all(f"UPDATE tenuto.tasks SET {change}")  # half a holder is no holder: the state says it is free
        return
    with pytest.raises(DatabaseError, match=constraint):
        await db.all(f"UPDATE tenuto.tasks SET {change}")


async def test_text_the_database_cannot_keep_is_an_error_of_ours(db: Database) -> None:
    with pytest.raises(TenutoError) as refusal:
        await store.start(db, [a_new_task(correlation_id="a\x00b")])
    assert not isinstance(refusal.value, StoreError) or isinstance(refusal.value, DatabaseError)


def test_ids_made_one_after_the_other_ascend() -> None:
    ids: list[UUID] = [new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


async def test_what_ends_while_it_is_asked_for_again_is_not_made_anew(db: Database, url: str) -> None:
    """The second asker has looked for the past before, and waits for whoever ends it to be out of the way."""
    new = a_new_task()
    await store.start(db, [new])
    task, other = await store.to_cancel(db, new.id), await Database.open(url)
    assert task is not None

    async def end(connection: Connection) -> asyncio.Task[set[UUID]]:
        await completion.end_within(connection, [Settlement(task, cancelled(task, now(), new.initiator))])
        again = asyncio.create_task(store.start(other, [new]))
        await eventually(lambda: db.value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        return again

    again = await db.transaction(end)
    assert await again == set()
    assert await rows(db) == []
    assert len(await rows(db, "activities")) == 1
    await other.close()
