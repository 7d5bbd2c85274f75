"""A worker dies at any point of a wait for an event: the event is received once, and no stored step runs again."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tenuto import Tenuto
from tests.races import jobs
from tests.races.crash_points import EXIT_CODE
from tests.races.effect_ledger import Ledger
from tests.races.invariants import assert_invariants_hold
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.races.test_crash_points import expire_leases_soon, wait_for_crash_or_stop
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
STATEMENTS = (
    "list_waits_of_task", "lock_events", "insert_wait", "take_kept_event", "end_wait", "commit of take_kept_event",
    "commit of end_wait", "lock_open_waits", "defer_tasks", "commit of defer_tasks", "record_checkpoint",
    "finish_tasks",
)  # fmt: skip
DOOMED: dict[str, Any] = {"lease_seconds": 30.0, "poll_seconds": 10.0, "slots": 1}
BATCH_SIZE = 8


@pytest.mark.parametrize("sent", ["before the wait", "after the wait"])
async def test_worker_that_crashes_at_any_point_of_a_wait_receives_the_event_once(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, sent: str
) -> None:
    points = [f"{when} {statement} 1" for statement in STATEMENTS for when in ("before", "after")]
    tasks: dict[UUID, str] = {}
    deaths: Counter[str] = Counter()
    for start in range(0, len(points), BATCH_SIZE):
        some = points[start : start + BATCH_SIZE]
        queues = [point.replace(" ", "-") for point in some]
        ids = [(await app.enqueue(jobs.waiting_chain.using(queue=queue), 7)).id for queue in queues]
        tasks.update(zip(ids, some, strict=True))
        if sent == "before the wait":
            await send(app, ids)
        doomed = [
            workers.start(f"doomed-{queue}", queues=(queue,), crash_at=point, **DOOMED)
            for queue, point in zip(queues, some, strict=True)
        ]
        if sent == "after the wait":
            await eventually(partial(have_waited_or_crashed, app, ids, doomed), timeout=40, what="tasks wait")
            await send(app, ids)
        await asyncio.gather(
            *(wait_for_crash_or_stop(observer, worker, queue) for worker, queue in zip(doomed, queues, strict=True))
        )
        assert {worker.exit_code for worker in doomed} <= {0, EXIT_CODE}
        deaths.update(point for point, worker in zip(some, doomed, strict=True) if worker.exit_code == EXIT_CODE)
        await expire_leases_soon(observer)
        healthy = await workers.start("healthy", queues=tuple(queues), slots=10).wait_until_ready()
        await observer.until_all_ended(within=40)
        await workers.stop(healthy)

    print(f"{len(tasks)} chains, {deaths.total()} crashes: {sorted(deaths)}")
    assert deaths.total() >= 16
    await assert_invariants_hold(url, len(tasks))
    assert await observer.count("activities", "final AND status = 'completed' AND output = '120'") == len(tasks)
    assert await observer.count("sent_events", "delivery_count = 1") == len(tasks)
    for task in tasks:
        groups = Counter(effect.group for effect in ledger.effects_of(task))
        assert groups["ships"] <= 2, tasks[task]  # twice only if its result could not be stored
        assert groups["first"] <= 2, tasks[task]


async def send(app: Tenuto, ids: list[UUID]) -> None:
    for id in ids:
        for _ in range(2):  # the second request repeats the first
            await app.events.send("paid", 120, key=str(id), id=f"payment of {id}")


async def have_waited_or_crashed(app: Tenuto, ids: list[UUID], doomed: list[Any]) -> bool:
    """Return whether each task has begun to wait, or its worker has crashed."""
    waiting = {each.task_id for each in await app.events.waits(limit=500)}
    return all(id in waiting or worker.has_ended() for id, worker in zip(ids, doomed, strict=True))
