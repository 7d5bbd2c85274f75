"""Changes of single objects in the event feed: steps of a parallel group, progress, tasks, batches, the overview."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.observability import event_feed
from tenuto.observability.event_feed import EventFeed, Subscription
from tenuto.observability.watched_objects import WatchedObjects, parse_watched_topic
from tenuto.postgres.database import Database
from tenuto.store.work import live_logs
from tests.support.errors import raises_code
from tests.support.manifests import claim_runs, create_batch, create_manifest
from tests.support.schedules import claim_steps, finish_task, start_execution
from tests.support.tasks import Register, claim, create_task


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def changed(watched: WatchedObjects, db: Database, *topics: str) -> list[str]:
    return [event.topic for event in await watched.detect_changes(db, topics)]


async def test_step_of_a_parallel_group_and_its_progress_change_the_execution(db: Database, worker_id: UUID) -> None:
    run, other = await start_execution(db, ["a", "b"], "c"), await start_execution(db, "x", name="Other")
    watched, topics = WatchedObjects(), (f"execution:{run}", f"execution:{other}")
    held = await claim_steps(db, worker_id)
    assert await changed(watched, db, *topics) == [], "the first state is no change"
    assert await changed(watched, db, *topics) == []
    await finish_task(db, held["a"])
    assert await changed(watched, db, *topics) == [topics[0]], "one step of the group has ended"
    await db.fetch_all("""UPDATE tenuto.tasks SET progress = '{"done": 3}' WHERE id = $1""", held["b"].id)
    assert await changed(watched, db, *topics) == [topics[0]], "progress"
    await finish_task(db, held["b"])
    assert await changed(watched, db, *topics) == [topics[0]], "the next group has started"
    assert await changed(watched, db, *topics) == []


async def test_claim_retry_and_end_change_a_task(db: Database, worker_id: UUID) -> None:
    task_id = await create_task(db)
    watched, topic = WatchedObjects(), f"task:{task_id}"
    await changed(watched, db, topic)
    (task,) = await claim(db, worker_id)
    assert await changed(watched, db, topic) == [topic]
    await finish_task(db, task)
    assert await changed(watched, db, topic) == [topic]
    assert await changed(watched, db, topic) == []


async def test_ended_items_change_a_batch(db: Database, worker_id: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db), 5)
    watched, topic = WatchedObjects(), f"batch:{batch}"
    await changed(watched, db, topic)
    held = await claim_runs(db, worker_id, 2)
    assert await changed(watched, db, topic) == [topic]
    await finish_task(db, held[0])
    assert await changed(watched, db, topic) == [topic]
    assert await changed(watched, db, topic) == []


async def test_subscription_to_a_log_watches_it_and_reports_new_lines(db: Database, worker_id: UUID) -> None:
    task_id = await create_task(db)
    (task,) = await claim(db, worker_id)
    watched, topic = WatchedObjects(), f"log:{task_id}"
    await changed(watched, db, topic)
    assert await live_logs.list_watched(db) == [task_id]
    await live_logs.append_texts(db, [(task_id, 0, "hello\n")])
    assert await changed(watched, db, topic) == [topic]
    assert await changed(watched, db, topic) == []
    await finish_task(db, task)
    assert await changed(watched, db, topic) == [topic], "the attempt has ended"


async def test_overview_changes_only_with_its_figures(db: Database) -> None:
    figures: dict[str, Any] = {"waiting": 1}

    async def load() -> Any:
        return dict(figures)

    watched = WatchedObjects(load)
    assert [await changed(watched, db, "overview") for _ in range(2)] == [[], []]
    figures["waiting"] = 2
    assert await changed(watched, db, "overview") == ["overview"]


async def next_topics(subscription: Subscription) -> list[str]:
    return [event.topic for batch in await subscription.next_batches(10) for event in batch.events]


async def test_first_event_of_an_object_follows_the_subscription(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"])
    topic = f"execution:{run}"
    held = await claim_steps(db, worker_id)

    async def open_database() -> Database:
        return db

    feed = EventFeed(open_database, poll_interval_seconds=0.05)
    try:
        async with feed.subscribe(frozenset({topic}), None) as first:
            assert await next_topics(first) == [topic]
            async with feed.subscribe(frozenset({topic}), db.clock.now()) as second:
                assert await next_topics(second) == [topic], "although another subscriber watches it already"
                await finish_task(db, held["a"])
                assert list(await asyncio.gather(next_topics(first), next_topics(second))) == [[topic], [topic]]
    finally:
        await feed.close()


async def test_feed_refuses_to_watch_more_objects_than_its_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_WATCHED", 3)

    async def open_database() -> Database:
        return db

    feed, ids = EventFeed(open_database, poll_interval_seconds=0.05), [f"task:{new_id()}" for _ in range(4)]
    try:
        async with feed.subscribe(frozenset(ids[:3]), None):
            async with feed.subscribe(frozenset(ids[1:3]), None):
                pass
            with raises_code("events.objects.limit", Conflict):
                async with feed.subscribe(frozenset(ids[3:]), None):
                    pass
        async with feed.subscribe(frozenset(ids[3:]), None):
            pass
    finally:
        await feed.close()


@pytest.mark.parametrize("topic", ["execution:", "execution:x", "mood:01a8c3f0-2b40-7000-8000-000000000000", ":"])
def test_topics_that_name_no_object_are_refused(topic: str) -> None:
    with raises_code("events.topic.unknown"):
        parse_watched_topic(topic)


async def test_processed_items_change_a_bulk_operation(db: Database) -> None:
    id = new_id()
    await db.fetch_all(
        "INSERT INTO tenuto.bulk_operations"
        " (id, kind, filter, description, until, total, created_at, actor_type, actor_name)"
        " VALUES ($1, 'task.cancel', '', '', now(), 2, now(), 'user', 'ana')",
        id,
    )
    watched, topic = WatchedObjects(), f"operation:{id}"
    assert await changed(watched, db, topic) == []
    await db.fetch_all("UPDATE tenuto.bulk_operations SET succeeded = 1 WHERE id = $1", id)
    assert await changed(watched, db, topic) == [topic]
    assert await changed(watched, db, topic) == []
