"""Time limits (W2, W5): enforced for every kind of job, and a timeout is a failure like any other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tenuto import Context, RetryPolicy, Tenuto
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.store.work.activities import ActivityDetails
from tenuto.worker.watchdog import WorkerTiming
from tests.lifecycle.test_task_cancellation import is_process_alive
from tests.support import isolated_jobs
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


def is_timed_out(record: ActivityDetails) -> bool:
    return bool(
        (record.state, record.reason) == ("failed", "timed_out")
        and record.error["type"] == "tenuto.TimedOut"
        and "time limit of 0.3 s" in record.error["message"]
    )


async def test_async_and_threaded_jobs_are_stopped_at_their_time_limit(app: Tenuto, worker: WorkerFactory) -> None:
    ends = []

    @app.job(timeout=0.3, max_attempts=1)
    async def wait() -> None:
        await asyncio.sleep(60)

    @app.job(timeout=0.3, max_attempts=1)
    def spin() -> None:
        try:
            while True:
                pass
        finally:
            ends.append(1)

    async with worker():
        tasks = [await app.enqueue(wait), await app.enqueue(spin)]
        for task in tasks:
            record = await app.wait(task, timeout=20)
            assert is_timed_out(record)
            taken = (known(record.ended_at) - known(record.started_at)).total_seconds()
            assert 0.2 <= taken < 10  # the clock is synchronised now and then
    assert ends == [1]


@pytest.mark.usefixtures("with_isolated_jobs")
async def test_isolated_job_is_killed_at_its_time_limit(
    app: Tenuto, worker: WorkerFactory, tmp_path: Path, sql: Any
) -> None:
    file = tmp_path / "pids"
    task = await app.enqueue(isolated_jobs.hang, file)
    policy = TaskPolicy(RetryPolicy(max_attempts=1), timeout_seconds=0.3).to_json()
    await sql("UPDATE tenuto.tasks SET policy = $1", policy)
    async with worker():
        record = await app.wait(task, timeout=30)
        assert is_timed_out(record)
        # The limit runs from the start of the attempt; a child that is slow to start may not even have begun.
        if file.exists() and file.read_text():
            pids = [int(pid) for pid in file.read_text().split()]
            await eventually(lambda: not any(is_process_alive(pid) for pid in pids))


async def test_timed_out_task_is_retried_by_its_policy(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(timeout=0.3, retry=RetryPolicy(max_attempts=2, base_seconds=0.01))
    async def wait() -> None:
        await asyncio.sleep(60)

    async with worker():
        record = await app.wait(await app.enqueue(wait), timeout=15)
    assert (record.attempt, record.failure_count, record.final) == (2, 2, True)
    assert is_timed_out(record)


async def test_job_within_its_time_limit_is_not_stopped(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(timeout="10s")
    async def quick() -> int:
        await asyncio.sleep(0.01)
        return 7

    @app.job(timeout="10s")
    def quick_too() -> int:
        time.sleep(0.01)
        return 7

    async with worker():
        for job in (quick, quick_too):
            assert (await app.wait(await app.enqueue(job), timeout=10)).output == 7


@pytest.mark.slow
async def test_manifest_run_that_does_not_stop_loses_its_lease(app: Tenuto, worker: WorkerFactory) -> None:
    live = most = 0
    seen_enough = False

    async def until_it_must(ctx: Context) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if ctx.lease_lost or seen_enough:
                    raise

    @app.job
    async def stubborn(ctx: Context) -> None:
        nonlocal live, most
        live, most = live + 1, max(most, live + 1)
        try:
            await until_it_must(ctx)
        finally:
            live -= 1

    retry = RetryPolicy(max_attempts=2, base_seconds=0.1)
    app.manifest("stubborn", stubborn, timeout=0.3, retry=retry)
    options: dict[str, Any] = {"lease_seconds": 5.0, "timing": WorkerTiming(overrun_seconds=0.5)}
    async with app, worker(name="one", **options), worker(name="two", **options):
        await app.manifests.deploy()
        try:
            record = await app.wait(await app.manifests.run("stubborn"), 40)
        finally:
            seen_enough = True
    assert (record.state, record.reason, record.attempt) == ("failed", "timed_out", 2)
    assert most == 1
