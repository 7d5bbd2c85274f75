"""Event feed: no change is missed or reported twice, and returning subscribers share one query."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.extension import Event
from tenuto.observability import event_sources
from tenuto.observability.event_feed import ChangeDetector, EventBatch, EventFeed, Subscription
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tenuto.store.reports import changed_objects
from tests.support.service_fixtures import WorkerFactory

ALL = frozenset({*(topic for each in event_sources.TOPICS for topic in each.topics), event_sources.RESET})
COPY_ROW = """
INSERT INTO tenuto.{table}
SELECT (jsonb_populate_record(NULL::tenuto.{table},
        to_jsonb(one) || jsonb_build_object('id', gen_random_uuid(), 'ended_at', $1::timestamptz))).*
FROM (SELECT * FROM tenuto.{table} LIMIT 1) AS one, generate_series(1, $2)
"""


@pytest.fixture
async def database(app: Tenuto, worker: WorkerFactory) -> Database:
    """A database in which one execution of one step has ended."""

    @app.job
    async def hello() -> None: ...

    app.schedule("Greeting", manual(), [Step.job(hello)])
    await app.schedules.deploy()
    async with worker():
        run = await app.schedules.run("Greeting")
        assert run.execution_id is not None
        await app.executions.wait(run.execution_id, 20)
    return await app.open()


def data_of_topic(topic: str, found: Sequence[Event]) -> list[Any]:
    return [event.data for event in found if event.topic == topic]


def count_ended_attempts(found: Sequence[Event]) -> int:
    return sum(each.count for data in data_of_topic("activities", found) for each in data.ended)


async def test_change_detector_reports_late_commit_once(database: Database) -> None:
    detector, now = ChangeDetector(), database.clock.now()
    await detector.detect_changes(database, now)
    assert count_ended_attempts(await detector.detect_changes(database, now)) == 0
    await database.fetch_all(COPY_ROW.format(table="activities"), now - timedelta(seconds=3), 7)
    polls = [await detector.detect_changes(database, now) for _ in range(2)]
    assert [count_ended_attempts(found) for found in polls] == [7, 0]
    await database.fetch_all(COPY_ROW.format(table="activities"), now - timedelta(seconds=3), 2)
    assert count_ended_attempts(await detector.detect_changes(database, now)) == 2


def named_tasks(found: Sequence[Event]) -> list[UUID]:
    return [id for data in data_of_topic("activities", found) for each in data.ended for id in each.task_ids]


async def test_activity_events_name_the_last_tasks_once(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def hello(n: int) -> None: ...

    database, detector = await app.open(), ChangeDetector()
    now = database.clock.now()
    await detector.detect_changes(database, now)
    async with worker():
        for count in (3, 50):
            tasks = [await app.enqueue(hello, n) for n in range(count)]
            for task in tasks:
                await app.wait(task, timeout=20)
            events = await detector.detect_changes(database, now)
            named = named_tasks(events)
            assert count_ended_attempts(events) == count
            assert len(named) == len(set(named)) == min(count, 20)
            assert set(named) <= {task.id for task in tasks}
            assert named_tasks(await detector.detect_changes(database, now)) == []


async def test_change_detector_reads_all_pages_and_resets_above_its_limit(database: Database) -> None:
    detector, now = ChangeDetector(), database.clock.now() + timedelta(minutes=1)
    await detector.detect_changes(database, now)
    await database.fetch_all(COPY_ROW.format(table="executions"), now, 1200)
    found = await detector.detect_changes(database, now)
    assert len({each.id for each in data_of_topic("executions", found)}) == 1200
    assert data_of_topic("executions", await detector.detect_changes(database, now)) == []
    events = await ChangeDetector(max_changes=1000).detect_changes(database, now)
    assert [event.topic for event in events] == ["reset"]


def record_queries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that receives an entry for each query of ended executions."""
    queries: list[object] = []
    list_ended_executions = changed_objects.list_ended_executions

    async def record(*arguments: Any) -> list[changed_objects.ExecutionChange]:
        queries.append(arguments)
        await asyncio.sleep(0)
        return await list_ended_executions(*arguments)

    monkeypatch.setattr(changed_objects, "list_ended_executions", record)
    return queries


def make_batch(now: datetime, seconds: float) -> EventBatch:
    at = now + timedelta(seconds=seconds)
    return EventBatch(now, at, (Event("workers", seconds),), at)


def publish(feed: EventFeed, batch: EventBatch) -> None:
    """Publish a batch as a poll does."""
    feed._publish(batch)
    feed._own_positions.append(batch.at)


async def test_event_feed_shares_catch_up_query_and_replays_recent_batches(
    database: Database, app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The feed polls once, and the catch-up query stays valid for the whole test.
    feed = EventFeed(app.open, poll_interval_seconds=600.0, catch_up_validity=timedelta(minutes=1))
    left_at = database.clock.now() - timedelta(minutes=5)
    start = asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(feed.subscribe(ALL, None))
        queries = record_queries(monkeypatch)

        async def resubscribe() -> Subscription:
            await start.wait()
            return await stack.enter_async_context(feed.subscribe(ALL, left_at))

        returning = [asyncio.create_task(resubscribe()) for _ in range(30)]
        start.set()
        subscriptions = await asyncio.gather(*returning)
        assert len(queries) <= 3, "each subscriber ran its own query"
        for subscription in subscriptions:
            (missed,) = await subscription.next_batches(0)
            assert len(data_of_topic("executions", missed.events)) == 1
            assert count_ended_attempts(missed.events) == 1

        now = database.clock.now()
        batches = [make_batch(now, n) for n in range(1, 4)]
        for each in batches:
            publish(feed, each)
        queries.clear()
        returned = await stack.enter_async_context(feed.subscribe(ALL, batches[0].at))
        assert await returned.next_batches(0) == batches[1:]
        assert await first.next_batches(0) == batches
        assert queries == []
    await feed.close()


async def test_subscription_begins_with_changes_detected_after_its_objects_were_loaded(
    database: Database, app: Tenuto
) -> None:
    feed = EventFeed(app.open, poll_interval_seconds=600.0)
    async with feed.subscribe(ALL, None):
        now = database.clock.now() + timedelta(seconds=60)
        # A poll that began before the objects were loaded detected a change after that.
        before, during, after = (
            EventBatch(now, now + timedelta(seconds=start), (Event("workers", start),), now + timedelta(seconds=end))
            for start, end in ((-9.1, -9.0), (-5.0, 0.6), (0.7, 0.8))
        )
        for each in (before, during, after):
            publish(feed, each)
        loaded_at = now + timedelta(seconds=0.4)
        async with feed.subscribe(ALL, None, loaded_at) as opened, feed.subscribe(ALL, during.at) as resumed:
            assert await opened.next_batches(0) == [during, after]
            assert await resumed.next_batches(0) == [after]
    await feed.close()


async def test_subscription_of_another_process_begins_with_changes_since_the_page_was_loaded(
    database: Database, app: Tenuto, url: str, tmp_path: Path
) -> None:
    """Two web processes know the clock of the database only as exactly as it answers: here the one with the stream is
    a second behind the one that rendered the page."""
    async with Tenuto(settings=load_settings(database=url, home=tmp_path)) as other:
        second = await other.open()
        second.clock.synchronize(second.clock.now() - timedelta(seconds=1))
        feed = EventFeed(other.open, poll_interval_seconds=0.02)
        async with feed.subscribe(ALL, None) as earlier:
            await app.pause_queue("earlier")  # the feed has a history when the page is loaded
            loaded_at = database.clock.now()
            await app.schedules.disable("Greeting")
            async with asyncio.timeout(20):
                while not data_of_topic("definitions", [e for b in await earlier.next_batches(1) for e in b.events]):
                    pass
            async with feed.subscribe(ALL, None, loaded_at) as opened:
                missed = [event for batch in await opened.next_batches(0) for event in batch.events]
        await feed.close()
    assert [each.name for each in data_of_topic("definitions", missed)] == ["Greeting"]


async def test_subscription_of_another_process_begins_with_changes_since_its_baseline(
    database: Database, app: Tenuto, url: str, tmp_path: Path
) -> None:
    async with Tenuto(settings=load_settings(database=url, home=tmp_path)) as other:
        second = await other.open()
        second.clock.synchronize(second.clock.now() - timedelta(seconds=1))
        loaded_at = database.clock.now()
        await app.schedules.disable("Greeting")
        feed = EventFeed(other.open, poll_interval_seconds=600.0)
        async with feed.subscribe(ALL, None, loaded_at) as opened:
            missed = [event for batch in await opened.next_batches(0) for event in batch.events]
        await feed.close()
    assert [each.name for each in data_of_topic("definitions", missed)] == ["Greeting"]


async def test_subscription_resumed_in_another_process_begins_before_the_id_of_its_last_event(
    database: Database, app: Tenuto
) -> None:
    """The poll of this process began before that of the other one, and detected what was committed after both began."""
    feed = EventFeed(app.open, poll_interval_seconds=600.0)
    async with feed.subscribe(ALL, None):
        now = database.clock.now() + timedelta(seconds=60)
        own, later = (
            EventBatch(now, now + timedelta(seconds=start), (Event("workers", start),), now + timedelta(seconds=end))
            for start, end in ((0.1, 0.5), (0.6, 0.7))
        )
        for each in (own, later):
            publish(feed, each)
        foreign_id = now + timedelta(seconds=0.3)
        async with feed.subscribe(ALL, foreign_id) as resumed, feed.subscribe(ALL, own.at) as known:
            assert await resumed.next_batches(0) == [own, later]
            assert await known.next_batches(0) == [later], "an event of this process is not repeated"
    await feed.close()


async def test_slow_subscription_is_closed_after_its_first_batches(database: Database) -> None:
    now = database.clock.now()
    subscription = Subscription(ALL)
    batches = [make_batch(now, n) for n in range(150)]
    for batch in batches[:120]:
        subscription.publish(batch)
    received = await subscription.next_batches(0)
    subscription.publish(batches[120])
    assert (received, subscription.is_closed) == (batches[:100], True)
    assert await subscription.next_batches(0) == [], "nothing is published after a gap"


async def test_closing_event_feed_closes_subscriptions(database: Database, app: Tenuto) -> None:
    feed = EventFeed(app.open)
    async with feed.subscribe(ALL, None) as subscription:
        waiting = asyncio.create_task(subscription.next_batches(60))
        await asyncio.sleep(0)
        await feed.close()
        async with asyncio.timeout(10):
            assert await waiting == []
        assert subscription.is_closed
        async with feed.subscribe(ALL, None) as late:
            assert late.is_closed
