"""Time limits (W2, W5): kept for code of every kind, and a failure like any other."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import Context, RetryPolicy, Tenuto
from tenuto.model.policies import Policy
from tenuto.worker import watchdog
from tests.lifecycle.test_task_cancellation import runs
from tests.support import isolated_jobs
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually


def stopped(record: dict[str, Any]) -> bool:
    return bool(
        (record["status"], record["reason"]) == ("failed", "timed_out")
        and record["error"]["type"] == "tenuto.TimedOut"
        and "time limit of 0.3 s" in record["error"]["message"]
    )


async def test_async_code_and_threads_are_stopped_at_their_limit(app: Tenuto, worker: Quick) -> None:
    ends = []

    @app.job(timeout=0.3, max_retries=0)
    async def wait() -> None:
        await asyncio.sleep(60)

    @app.job(timeout=0.3, max_retries=0)
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
            assert stopped(record)
            taken = (record["ended_at"] - record["started_at"]).total_seconds()
            assert 0.2 <= taken < 10  # by a clock that is set anew now and then
    assert ends == [1]


@pytest.mark.usefixtures("with_isolated_jobs")
async def test_a_process_is_killed_at_its_limit(app: Tenuto, worker: Quick, tmp_path: Path, sql: Any) -> None:
    file = tmp_path / "pids"
    task = await app.enqueue(isolated_jobs.hang, file)
    policy = Policy(RetryPolicy(max_retries=0), timeout_seconds=0.3).to_json()
    await sql("UPDATE tenuto.tasks SET policy = $1", policy)
    async with worker():
        record = await app.wait(task, timeout=30)
        assert stopped(record)
        # The limit runs from the start of the attempt; a child that is slow to start may not even have begun.
        if file.exists() and file.read_text():
            pids = [int(pid) for pid in file.read_text().split()]
            await eventually(lambda: not any(runs(pid) for pid in pids))


async def test_what_ran_into_its_limit_is_tried_again_as_its_policy_says(app: Tenuto, worker: Quick) -> None:
    @app.job(timeout=0.3, retry=RetryPolicy(max_retries=2, base_seconds=0.01))
    async def wait() -> None:
        await asyncio.sleep(60)

    async with worker():
        record = await app.wait(await app.enqueue(wait), timeout=15)
    assert (record["attempt"], record["failures"], record["final"]) == (2, 2, True)
    assert stopped(record)


async def test_code_that_keeps_within_its_limit_is_left_alone(app: Tenuto, worker: Quick) -> None:
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
            assert (await app.wait(await app.enqueue(job), timeout=10))["output"] == 7


async def test_a_run_of_a_manifest_that_does_not_stop_loses_its_lease_and_nobody_has_it_before(
    app: Tenuto, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "OVERRUN", timedelta(seconds=0.5))
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

    retry = RetryPolicy(max_retries=2, base_seconds=0.1)
    app.manifest("stubborn", stubborn, timeout=0.3, retry=retry)
    async with app, worker(lease_seconds=5.0, name="one"), worker(lease_seconds=5.0, name="two"):
        await app.manifests.deploy()
        try:
            record = await app.wait(await app.manifests.run("stubborn"), 40)
        finally:
            seen_enough = True
    assert (record["status"], record["reason"], record["attempt"]) == ("failed", "timed_out", 2)
    assert most == 1
