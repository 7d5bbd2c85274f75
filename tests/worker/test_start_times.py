"""When things begin (S1, W3): at once if due, within a second of their time otherwise, though polling is rare."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.clock import DatabaseClock
from tenuto.errors import Invalid
from tenuto.postgres.database import Database
from tenuto.settings import load
from tenuto.store import workers
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually

ABOUT_NOW = timedelta(milliseconds=-50)


async def begins_in_time(ask: Callable[[], Awaitable[float]]) -> None:
    """One of three begins less than a second late: a machine that stands still for a moment spoils one, and not all.

    How late is told by the machine's steady timer alone: what is recorded comes from several clocks.
    """
    late = [await ask()]
    while late[-1] >= 1 and len(late) < 3:
        late.append(await ask())
    assert late[-1] < 1, late


@pytest.fixture
def begun() -> list[float]:
    """When the code of each attempt began, on the steady timer."""
    return []


async def test_what_is_asked_for_begins_at_once_though_the_worker_is_idle(
    app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    @app.job
    async def bake() -> None:
        begun.append(time.monotonic())

    async def late() -> float:
        asked = time.monotonic()
        await app.wait(await app.enqueue(bake), timeout=10)
        return begun[-1] - asked

    async with worker():
        for _ in range(3):
            await begins_in_time(late)


@pytest.mark.parametrize("options", [{}, {"limit": 3}], ids=["free", "limited"])
async def test_what_is_scheduled_begins_within_a_second_of_its_time_though_the_worker_is_idle(
    options: dict[str, Any], app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    @app.job(**options)
    async def bake() -> None:
        begun.append(time.monotonic())

    async def late() -> float:
        asked = time.monotonic()
        record = await app.wait(await app.enqueue(bake.using(delay=timedelta(seconds=0.4))), timeout=10)
        assert record["claimed_at"] - record["run_at"] > ABOUT_NOW
        return begun[-1] - asked - 0.4

    async with worker():
        await app.wait(await app.enqueue(bake), timeout=10)
        await begins_in_time(late)


@pytest.mark.parametrize("options", [{}, {"limit": 3}], ids=["free", "limited"])
async def test_what_was_scheduled_before_the_worker_came_begins_in_time(
    options: dict[str, Any], app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    @app.job(**options)
    async def bake() -> None:
        begun.append(time.monotonic())

    async def late() -> float:
        asked = time.monotonic()
        task = await app.enqueue(bake.using(run_at=datetime.now(UTC) + timedelta(seconds=0.5)))
        async with worker():
            record = await app.wait(task, timeout=10)
        assert record["claimed_at"] - record["run_at"] > ABOUT_NOW
        return begun[-1] - asked - 0.5

    far = await app.enqueue(bake.using(delay=timedelta(days=365)))
    await begins_in_time(late)
    assert (await app.task(far.id))["state"] == "scheduled"


@pytest.mark.parametrize("options", [{}, {"limit": 3}], ids=["free", "limited"])
async def test_what_is_tried_again_later_begins_in_time(
    options: dict[str, Any], app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    @app.job(retry=RetryPolicy(max_retries=2, base_seconds=0.4, jitter=0), **options)
    async def fail() -> None:
        begun.append(time.monotonic())
        raise ValueError

    async def late() -> float:
        record = await app.wait(await app.enqueue(fail), timeout=10)
        assert record["attempt"] == 2
        assert record["claimed_at"] - record["run_at"] > ABOUT_NOW
        return begun[-1] - begun[-2] - 0.4

    async with worker():
        await begins_in_time(late)


async def test_an_earlier_time_that_is_heard_of_later_is_kept_too(
    app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    @app.job
    async def bake() -> None:
        begun.append(time.monotonic())

    async def late() -> float:
        asked = time.monotonic()
        await app.wait(await app.enqueue(bake.using(delay=timedelta(seconds=0.3))), timeout=10)
        return begun[-1] - asked - 0.3

    async with worker():
        far = await app.enqueue(bake.using(delay=timedelta(minutes=10)))
        await begins_in_time(late)
        assert (await app.task(far.id))["state"] == "scheduled"


async def test_what_belongs_before_the_task_taken_last_begins_at_once_even_beside_a_newer_one(
    app: Tenuto, worker: Quick, begun: list[float]
) -> None:
    """A claim goes on where the last one ended; that must not keep what lies before it waiting for what lies behind."""

    @app.job
    async def bake(seconds: float) -> None:
        if not seconds:
            begun.append(time.monotonic())
        await asyncio.sleep(seconds)

    async def late() -> float:
        await app.wait(await app.enqueue(bake, 0), timeout=10)
        async with (await app.open()).connection() as connection, connection.transaction():
            await app.enqueue_within(connection, bake, 60)
            old = await app.enqueue_within(connection, bake.using(run_at=datetime(1999, 1, 1, tzinfo=UTC)), 0)
        asked = time.monotonic()
        await app.wait(old, timeout=10)
        return begun[-1] - asked

    async with worker():
        await begins_in_time(late)


async def test_a_time_in_the_past_is_now(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake() -> None: ...

    async with worker():
        for run_at in (datetime(1999, 1, 1, tzinfo=UTC), "1999-01-01T00:00:00Z"):
            task = await app.enqueue(bake.using(run_at=run_at))
            assert (await app.wait(task, timeout=10))["status"] == "completed"


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(1, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2031, 1, 1)},  # noqa: DTZ001 - that it is naive is the point
        {"delay": timedelta.max},
        {"delay": timedelta.min},
        {"delay": float("nan")},
        {"delay": timedelta(days=-1)},
        {"delay": -5},
        {"delay": "soon"},
        {"run_at": "tomorrow"},
        {"run_at": "2031-01-01T00:00:00"},
        {"run_at": 17},
    ],
)
async def test_a_time_that_is_none_is_refused(options: dict[str, Any], app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    with pytest.raises(Invalid) as refusal:
        await app.enqueue(bake.using(**options))
    assert refusal.value.field in ("run_at", "delay")


async def test_without_notifications_polling_finds_everything(app: Tenuto, worker: Quick, url: str, sql: Any) -> None:
    """As behind a transaction pooler: the listener hears nothing."""
    pooled = Tenuto(settings=load(database=url, home=app.settings.home, behind_pooler=True))

    @pooled.job
    async def bake() -> None: ...

    @pooled.job(limit=1)
    async def wash() -> None: ...

    try:
        async with pooled.worker(slots=5, poll_seconds=0.1, grace_seconds=0):
            for job in (bake, wash):
                await pooled.wait(await pooled.enqueue(job), timeout=10)
                await pooled.wait(await pooled.enqueue(job.using(delay=timedelta(seconds=0.2))), timeout=10)
    finally:
        await pooled.close()


async def test_a_worker_whose_line_was_cut_takes_what_came_meanwhile(app: Tenuto, worker: Quick, sql: Any) -> None:
    @app.job
    async def bake() -> None: ...

    async with worker():
        await app.wait(await app.enqueue(bake), timeout=10)
        for _ in range(2):
            await sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            task = await app.enqueue(bake)

            async def done(task_id: Any = task.id) -> bool:
                return bool((await app.activity(task_id))["final"])

            await eventually(done, timeout=15)


@pytest.mark.parametrize("service", ["worker", "scheduler"])
async def test_a_sign_of_life_whose_answer_was_long_under_way_does_not_set_the_clock_back(
    service: str, app: Tenuto, url: str, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = load(database=url, home=app.settings.home, scheduler_poll_seconds=1)
    monkeypatch.setattr(app, "settings", often)
    seen, hear, answered = workers.seen, DatabaseClock.heard, threading.Semaphore(0)
    clocks: list[DatabaseClock] = []  # a service has one of its own

    async def slowly(database: Database, id: UUID) -> datetime | None:
        told = await seen(database, id)
        await asyncio.sleep(0.5)
        answered.release()
        return told

    def heard(clock: DatabaseClock, *told: Any) -> None:
        hear(clock, *told)
        clocks.append(clock)

    monkeypatch.setattr(workers, "seen", slowly)
    monkeypatch.setattr(DatabaseClock, "heard", heard)
    async with worker(lease_seconds=3) if service == "worker" else app.scheduler():
        await asyncio.to_thread(lambda: [answered.acquire(timeout=20) for _ in range(2)])  # the first has been heard
        told: datetime = await (await app.open()).value("SELECT clock_timestamp()")
        assert all(clock.now() - told > ABOUT_NOW for clock in clocks)
