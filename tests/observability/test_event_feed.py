"""The feed: nothing is missed, nothing is told twice, and those who come back together ask together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.observability.event_feed import TOPICS, ChangeDetector, Event, EventBatch, EventFeed, Subscription
from tenuto.postgres.database import Database
from tenuto.store.reports import changes
from tests.support.engine_fixtures import WorkerFactory

ALL = frozenset({*TOPICS, "reset"})
COPY_ROW = """
INSERT INTO tenuto.{table}
SELECT (jsonb_populate_record(NULL::tenuto.{table},
        to_jsonb(one) || jsonb_build_object('id', gen_random_uuid(), 'ended_at', $1::timestamptz))).*
FROM (SELECT * FROM tenuto.{table} LIMIT 1) AS one, generate_series(1, $2)
"""


@pytest.fixture
async def done(app: Tenuto, worker: WorkerFactory) -> Database:
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
    return [news.data for news in found if news.topic == topic]


def count_ended_attempts(found: Sequence[Event]) -> int:
    return sum(each["count"] for data in data_of_topic("activities", found) for each in data["ended"])


async def test_an_end_that_is_committed_late_is_told_and_once(done: Database) -> None:
    look, now = ChangeDetector(), done.clock.now()
    await look.detect_changes(done, now)
    assert count_ended_attempts(await look.detect_changes(done, now)) == 0
    await done.fetch_all(COPY_ROW.format(table="activities"), now - timedelta(seconds=3), 7)
    told = [await look.detect_changes(done, now) for _ in range(2)]
    assert [count_ended_attempts(found) for found in told] == [7, 0]
    await done.fetch_all(COPY_ROW.format(table="activities"), now - timedelta(seconds=3), 2)
    assert count_ended_attempts(await look.detect_changes(done, now)) == 2


async def test_more_than_fit_on_a_page_are_all_told_and_far_too_many_in_one_word(
    done: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, now = ChangeDetector(), done.clock.now() + timedelta(minutes=1)
    await look.detect_changes(done, now)
    await done.fetch_all(COPY_ROW.format(table="executions"), now, 1200)
    found = await look.detect_changes(done, now)
    assert len({each["id"] for each in data_of_topic("executions", found)}) == 1200
    assert data_of_topic("executions", await look.detect_changes(done, now)) == []
    monkeypatch.setattr("tenuto.observability.event_feed._MOST", 1000)
    assert [news.topic for news in await ChangeDetector().detect_changes(done, now)] == ["reset"]


def record_queries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each look at what has ended."""
    asked: list[object] = []
    ask = changes.list_ended_executions

    async def count(*given: Any) -> list[dict[str, Any]]:
        asked.append(given)
        await asyncio.sleep(0)
        return await ask(*given)

    monkeypatch.setattr(changes, "list_ended_executions", count)
    return asked


async def test_those_who_come_back_together_ask_once_and_later_nobody_asks(
    done: Database, app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.observability.event_feed._EVERY", 600.0)  # the feed itself looks once
    monkeypatch.setattr("tenuto.observability.event_feed._LONGEST", 600.0)
    monkeypatch.setattr(
        "tenuto.observability.event_feed._SHARED_FOR", timedelta(minutes=1)
    )  # however long all of them take
    feed = EventFeed(app.open)
    long_before = done.clock.now() - timedelta(minutes=5)
    before = asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(feed.subscribe(ALL, None))
        asked = record_queries(monkeypatch)

        async def come_back() -> Subscription:
            await before.wait()
            return await stack.enter_async_context(feed.subscribe(ALL, long_before))

        coming = [asyncio.create_task(come_back()) for _ in range(30)]
        before.set()
        watchers = await asyncio.gather(*coming)
        assert len(asked) <= 3, "each asked for itself"
        for watcher in watchers:
            (missed,) = await watcher.next_batches(0)
            assert len(data_of_topic("executions", missed.events)) == 1
            assert count_ended_attempts(missed.events) == 1

        now = done.clock.now()
        told = [EventBatch(now, now + timedelta(seconds=n), (Event("workers", n),)) for n in range(1, 4)]
        for each in told:
            feed._publish(each)
        asked.clear()
        again = await stack.enter_async_context(feed.subscribe(ALL, told[0].at))
        assert await again.next_batches(0) == told[1:]
        assert await first.next_batches(0) == told
        assert asked == []
    await feed.close()


async def test_who_is_too_slow_hears_the_beginning_whole_and_comes_again(done: Database) -> None:
    now = done.clock.now()
    watcher = Subscription(ALL)
    looks = [EventBatch(now, now + timedelta(seconds=n), (Event("workers", n),)) for n in range(150)]
    for look in looks[:120]:
        watcher.publish(look)
    heard = await watcher.next_batches(0)
    watcher.publish(looks[120])
    assert (heard, watcher.is_closed) == (looks[:100], True)
    assert await watcher.next_batches(0) == [], "after a gap nothing more is told"


async def test_a_feed_that_is_closed_lets_everybody_go(done: Database, app: Tenuto) -> None:
    feed = EventFeed(app.open)
    async with feed.subscribe(ALL, None) as watcher:
        waiting = asyncio.create_task(watcher.next_batches(60))
        await asyncio.sleep(0)
        await feed.close()
        async with asyncio.timeout(10):
            assert await waiting == []
        assert watcher.is_closed
        async with feed.subscribe(ALL, None) as late:
            assert late.is_closed
