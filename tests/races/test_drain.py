"""SIGTERM: running tasks may finish within the grace period, the others are handed back without counting as failures,
and the process exits in time.
"""

from __future__ import annotations

import signal
import time

import pytest

from tenuto import Tenuto
from tenuto.service.signals import EXIT_LOST_CONTROL
from tests.races import jobs
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import assert_all_completed, assert_invariants_hold
from tests.races.processes import WorkerProcess, Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.support.repetition_counts import times
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
DRAINS = times(6, in_a_proof=20)
GRACE_SECONDS = 20.0


async def seconds_to_exit(process: WorkerProcess, *, within: float = 45) -> float:
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert await process.wait_for_exit(within=within) == 0
    return time.monotonic() - began


async def test_workers_drained_repeatedly_under_load_lose_no_task(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    tasks = DRAINS * 300
    for job in (jobs.touch, jobs.touch_in_thread):
        await app.enqueue_many(job, [{"number": n, "seconds": 0.01} for n in range(tasks // 2)])
    for number in range(DRAINS):
        before = ledger.begun_count()
        process = workers.start(f"worker-{number % 2}", slots=20, grace_seconds=GRACE_SECONDS)

        async def busy(goal: int = before + 50) -> bool:
            return ledger.begun_count() >= goal

        await eventually(busy, timeout=20, what="the worker is busy")
        assert await seconds_to_exit(process) < GRACE_SECONDS, "the worker waited although its tasks were finished"
        assert await observer.count("tasks", "state = 'running'") == 0
    workers.start("last", slots=20)
    await observer.until_all_ended(within=60)

    effects = ledger.effects()
    await assert_all_completed(url, tasks, effects)
    assert len(effects) == tasks
    assert await observer.count("activities", "reason IS NOT NULL") == 0
    assert await observer.count("repairs") == 0


async def test_long_task_is_handed_back_after_the_grace_period_without_a_failure(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    leaving = await workers.start("leaving", grace_seconds=1.0, lease_seconds=60.0).wait_until_ready()
    for job in (jobs.touch, jobs.touch_in_thread, jobs.touch_in_child):
        for number in range(3):
            await app.enqueue(job, number, seconds=60.0)
    await app.enqueue(jobs.fail_once_then_last, 60.0)

    async def started() -> bool:
        return ledger.begun_count() == 11

    await eventually(started, timeout=20, what="all have begun, one for the second time")
    # Not before the end of the grace period; the tasks and their leases would have lasted a minute.
    assert 1.0 <= await seconds_to_exit(leaving) < 30

    records = await observer.rows(
        "SELECT DISTINCT status, reason, final, losses FROM tenuto.activities WHERE name <> 'fail_once_then_last'"
    )
    assert records == [("cancelled", "handed_back", False, 0)]
    assert await observer.count("tasks", "state = 'queued' AND failures = 0 AND losses = 0 AND attempt = 2") == 9
    assert await observer.count("tasks", "state = 'queued' AND failures = 1 AND losses = 0 AND attempt = 3") == 1
    assert await observer.count("workers", "ended_at IS NULL") == 0

    successor = await workers.start("successor").wait_until_ready()
    await observer.until_running(10)
    effects = ledger.effects()
    assert overlaps([effect for effect in effects if effect.ended_ns is not None], {}) == []
    await workers.kill(successor)
    await assert_invariants_hold(url, 10)


async def test_worker_exits_at_once_after_a_second_signal(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    leaving = await workers.start("leaving", grace_seconds=60.0, lease_seconds=60.0).wait_until_ready()
    for job in (jobs.touch, jobs.touch_in_thread):
        for number in range(3):
            await app.enqueue(job, number, seconds=60.0)

    async def started() -> bool:
        return ledger.begun_count() == 6

    async def draining() -> bool:
        return leaving.has_logged("drain started")

    await eventually(started, timeout=20, what="all have begun")
    leaving.signal(signal.SIGTERM)
    await eventually(draining, timeout=10, what="it drains")
    assert not leaving.has_ended()

    assert await seconds_to_exit(leaving) < 30, "half of the grace period, and of the leases"

    assert await observer.count("tasks", "state = 'queued' AND attempt = 2 AND losses = 0 AND failures = 0") == 6
    assert await observer.count("activities", "status = 'cancelled' AND reason = 'handed_back'") == 6
    await assert_invariants_hold(url, 6)


async def test_cancelled_code_may_clean_up_during_drain(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    leaving = await workers.start("leaving", grace_seconds=0.0).wait_until_ready()
    await app.enqueue(jobs.clean_up_slowly, 1.0)

    async def started() -> bool:
        return ledger.begun_count() == 1

    await eventually(started, timeout=10, what="the task has begun")
    await seconds_to_exit(leaving)

    (cleaning,) = [effect for effect in ledger.effects() if effect.group == "cleaning"]
    assert cleaning.ended_ns is not None
    assert cleaning.ended_ns - cleaning.began_ns > 0.95e9
    assert await observer.count("tasks", "state = 'queued' AND attempt = 2") == 1
    await assert_invariants_hold(url, 1)


async def test_draining_worker_with_unstoppable_code_exits_before_its_task_runs_elsewhere(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    stuck = await workers.start("stuck", grace_seconds=0.0, lease_seconds=6.0).wait_until_ready()
    await app.enqueue(jobs.sleep_in_c, 60.0)

    async def started() -> bool:
        return ledger.begun_count() == 1

    await eventually(started, timeout=10, what="the task has begun")
    await workers.start("healthy").wait_until_ready()
    stuck.signal(signal.SIGTERM)
    assert await stuck.wait_for_exit(within=20) == EXIT_LOST_CONTROL
    workers.died_ns[stuck.pid] = time.monotonic_ns()

    await observer.until_all_ended(within=20)
    await assert_all_completed(url, 1, ledger.effects())
    assert overlaps(ledger.effects(), workers.died_ns) == []


async def test_worker_drains_while_the_database_is_unreachable(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy
) -> None:
    leaving = await workers.start("leaving", url=proxy.url, grace_seconds=0.5).wait_until_ready()
    await app.enqueue(jobs.touch, 1, seconds=60.0)  # it must not have ended before the connection stalls
    await observer.until_running(1)
    proxy.stall()

    leaving.signal(signal.SIGTERM)
    assert await leaving.wait_for_exit(within=20) == EXIT_LOST_CONTROL

    await assert_invariants_hold(url, 1)
