"""A worker crashes before or after any statement, at its first pass, second pass …: all tasks complete."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from tenuto import Tenuto
from tests.races import jobs
from tests.races.crash_points import EXIT_CODE
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import assert_all_completed
from tests.races.processes import WorkerProcess, Workers
from tests.races.table_queries import Observer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
STATEMENTS = (
    "register_process", "commit of register_process", "promote_due_tasks", "claim_tasks", "claim_limited_tasks",
    "commit of claim_limited_tasks", "renew_leases", "finish_tasks", "retry_tasks", "commit of retry_tasks",
    "mark_draining", "mark_ended",
)  # fmt: skip
BATCH_SIZE = 12
TASKS_PER_QUEUE = 5
DOOMED: dict[str, Any] = {"lease_seconds": 6.0, "poll_seconds": 10.0}


async def test_worker_that_crashes_at_any_statement_loses_and_repeats_no_completed_task(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    """Each crash has its own queue; several crashes run side by side."""
    points = [f"{when} {statement}" for statement in STATEMENTS for when in ("before", "after")]
    deaths: Counter[str] = Counter()
    runs = 0
    time = 0
    while points:  # the first pass of each point, the second, … until a point is no longer reached
        time += 1
        reached = []
        for some in batches(points):
            doomed = await crash_workers(app, observer, workers, [f"{point} {time}" for point in some])
            reached += [point for point, worker in zip(some, doomed, strict=True) if worker.exit_code == EXIT_CODE]
            runs += len(doomed)
        deaths.update(reached)
        points = reached

    print(f"{runs} runs, {deaths.total()} crashes: {dict(deaths)}")
    assert all(deaths[f"{when} {statement}"] for statement in STATEMENTS for when in ("before", "after"))
    effects = ledger.effects()
    await assert_all_completed(url, runs * TASKS_PER_QUEUE, effects)
    assert overlaps([effect for effect in effects if effect.ended_ns is not None], {}) == []


def batches(points: list[str]) -> list[list[str]]:
    return [points[first : first + BATCH_SIZE] for first in range(0, len(points), BATCH_SIZE)]


async def crash_workers(app: Tenuto, observer: Observer, workers: Workers, crashes: list[str]) -> list[WorkerProcess]:
    """Crash workers at these points, then let a healthy worker finish their tasks."""
    queues = [crash.replace(" ", "-") for crash in crashes]
    for queue in queues:
        await enqueue_work(app, queue)
    doomed = [
        workers.start(f"doomed-{queue}", queues=(queue,), crash_at=crash, **DOOMED)
        for queue, crash in zip(queues, crashes, strict=True)
    ]
    await asyncio.gather(*(wait_for_crash_or_stop(observer, *pair) for pair in zip(doomed, queues, strict=True)))
    assert {worker.exit_code for worker in doomed} <= {0, EXIT_CODE}

    await expire_leases_soon(observer)
    healthy = await workers.start("healthy", queues=tuple(queues), slots=50).wait_until_ready()
    await observer.until_all_ended(within=40)
    await workers.stop(healthy)
    return doomed


async def enqueue_work(app: Tenuto, queue: str) -> None:
    """Enqueue tasks that are claimed with and without a limit, renewed, finished and retried."""
    await app.enqueue(jobs.touch.using(queue=queue), 1)
    await app.enqueue(jobs.touch.using(queue=queue, limit_key=queue, limit=1), 2)
    await app.enqueue(jobs.fail_once.using(queue=queue), 3)
    await app.enqueue(jobs.touch_in_thread.using(queue=queue), 4, seconds=2.5)
    await app.enqueue(jobs.touch.using(queue=queue), 5)


async def expire_leases_soon(observer: Observer) -> None:
    """Leases must be long enough for live workers on a busy machine, so those of dead workers are shortened."""
    await observer.value("UPDATE tenuto.tasks SET lease_until = now() + interval '0.2 s' WHERE state = 'running'")


async def wait_for_crash_or_stop(observer: Observer, worker: WorkerProcess, queue: str) -> None:
    """Wait until the worker crashed; if it finished all tasks first, stop it."""

    async def crashed_or_done() -> bool:
        return worker.has_ended() or await observer.value(
            "SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE queue = $1)", queue
        )

    await eventually(crashed_or_done, timeout=30, what="the worker crashed or finished all tasks")
    if not worker.has_ended():
        worker.signal(signal.SIGTERM)
        await worker.wait_for_exit(within=20)
