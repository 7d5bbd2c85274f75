"""Rate limits hold across worker processes under load and kill -9: starts are counted from the activities."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.model.work.rate_limits import parse_rate_limit
from tests.races import jobs
from tests.races.processes import Workers
from tests.races.table_queries import Observer

pytestmark = pytest.mark.slow
PERIODS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1)}


async def starts_of(app: Tenuto, where: str) -> list[datetime]:
    database = await app._open()
    rows = await database.fetch_all(
        f"SELECT claimed_at FROM tenuto.all_activities WHERE claimed_at IS NOT NULL AND {where} ORDER BY claimed_at"
    )
    return [row["claimed_at"] for row in rows]


def most_in_a_period(starts: list[datetime], period: timedelta) -> int:
    """Return the largest number of starts in any period that begins with a start."""
    return max(sum(first <= each < first + period for each in starts) for first in starts)


def assert_rate_holds(starts: list[datetime], text: str) -> None:
    rate = parse_rate_limit(text)
    assert rate is not None
    assert most_in_a_period(starts, PERIODS[rate.unit]) <= rate.count + rate.burst - 1


async def test_rates_hold_across_worker_processes_that_are_killed(
    app: Tenuto, observer: Observer, workers: Workers
) -> None:
    """Two rate keys and a queue with a rate and a concurrency limit; a worker is killed after every 20 starts."""
    await app.limit_queue_rate("narrow", "30/s burst 5")
    await app.limit_queue("narrow", 3)
    limited: dict[str, Any] = {"a": "20/s", "b": "40/s burst 10"}
    for key, text in limited.items():
        await app.enqueue_many(jobs.touch.using(rate_key=key, rate_limit=text, tags=[key]), range(60))
    await app.enqueue_many(jobs.touch.using(queue="narrow"), range(60))
    await app.enqueue_many(jobs.touch, range(300))  # without a limit: not held back
    living = [workers.start(f"w{n}", queues=["default", "narrow"], lease_seconds=4.0) for n in range(3)]
    for worker in living:
        await worker.wait_until_ready()
    for kill in range(3):
        await observer.until(
            f"SELECT count(*) >= {20 * (kill + 1)} FROM tenuto.activities WHERE name = 'touch'", within=30
        )
        victim = living.pop(0)
        await workers.kill(victim)
        living.append(workers.start(victim.name, queues=["default", "narrow"], lease_seconds=4.0))
    await observer.until_all_ended(within=60)
    for key, text in limited.items():
        starts = await starts_of(app, f"'{key}' = ANY (tags)")
        assert len(starts) >= 60
        assert_rate_holds(starts, text)
    assert_rate_holds(await starts_of(app, "queue = 'narrow'"), "30/s burst 5")


async def test_workers_start_tasks_soon_after_their_tokens_come(
    app: Tenuto, observer: Observer, workers: Workers
) -> None:
    """Polls are a minute apart, so that each start is the effect of its token. Delays are compared with those of tasks
    without a limit, because the machine may be busy."""
    for name in ("one", "two"):
        await workers.start(name, poll_seconds=60.0).wait_until_ready()
    delays = []
    for number in range(11):
        record = await app.wait(await app.enqueue(jobs.touch, number), 30)
        assert record.claimed_at is not None
        delays.append((record.claimed_at - record.created_at).total_seconds())
    await app.enqueue_many(jobs.touch.using(rate_key="a", rate_limit="25/s", tags=["limited"]), range(75))
    await observer.until_all_ended(within=60)
    starts = await starts_of(app, "'limited' = ANY (tags)")
    assert len(starts) == 75
    assert_rate_holds(starts, "25/s")
    # A token comes 1 / 25 s after the start that used the one before. Most starts are soon after their tokens, measured
    # by the delays of this machine; and a quarter is before the next token would come, however busy the machine is.
    late = [(second - first).total_seconds() - 1 / 25 for first, second in pairwise(starts)]
    assert median(late) < 5 * max(median(delays), 0.01), delays
    assert quantiles(late, n=4)[0] < 0.75 / 25, late


async def test_workers_use_the_tokens_that_come_after_one_of_them_is_killed(
    app: Tenuto, observer: Observer, workers: Workers
) -> None:
    await app.enqueue_many(jobs.touch.using(rate_key="a", rate_limit="25/s"), range(75))
    first = await workers.start("one", lease_seconds=4.0).wait_until_ready()
    await workers.start("two", lease_seconds=4.0).wait_until_ready()
    await observer.until("SELECT count(*) >= 15 FROM tenuto.activities", within=30)
    await workers.kill(first)
    await observer.until_all_ended(within=60)
    starts = await starts_of(app, "name = 'touch'")
    assert_rate_holds(starts, "25/s")
    assert starts[-1] - starts[0] < timedelta(seconds=25)  # 3 s without load; a lease of 4 s may run out
