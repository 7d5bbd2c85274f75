"""Workers that stop responding without dying: suspended, disconnected, or stuck in code that cannot be interrupted."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.service.signals import EXIT_LOST_CONTROL
from tenuto.store.work.tasks import SQL
from tests.races import jobs
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import assert_all_completed, assert_invariants_hold
from tests.races.processes import WorkerProcess, Workers, is_running
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def test_worker_suspended_past_its_lease_changes_nothing_when_it_continues(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    started_jobs: list[jobs.AnyJob] = [jobs.touch, jobs.touch_in_thread]
    zombies = [
        await workers.start(f"zombie-{number}", lease_seconds=5.0, slots=10).wait_until_ready() for number in range(3)
    ]
    for number in range(30):
        await app.enqueue(started_jobs[number % 2], number, seconds=5.0)  # longer than enqueuing all of them takes
    await observer.until_running(30)

    for zombie in zombies:
        zombie.signal(signal.SIGSTOP)
    healthy = await workers.start("healthy", slots=30).wait_until_ready()
    await observer.until_all_ended(within=40)
    records = await observer.rows("SELECT * FROM tenuto.activities ORDER BY id")
    for zombie in zombies:
        zombie.signal(signal.SIGCONT)

    async def all_have_noticed() -> bool:
        return all(zombie.has_ended() or _has_noticed(zombie) for zombie in zombies)

    await eventually(all_have_noticed, timeout=20, what="every suspended worker notices that its lease is lost")
    await assert_all_completed(url, 30, ledger.effects())
    assert await observer.rows("SELECT * FROM tenuto.activities ORDER BY id") == records
    assert await observer.count("activities", "reason = 'lost' AND attempt = 1 AND NOT final") == 30
    assert await observer.count("activities", "status = 'completed' AND attempt = 2 AND final") == 30
    assert {zombie.exit_code for zombie in zombies} <= {None, EXIT_LOST_CONTROL}

    # A surviving worker continues to work normally.
    await workers.stop(healthy)
    survivors = [zombie for zombie in zombies if not zombie.has_ended()]
    await app.enqueue(jobs.touch, 31)
    if not survivors:
        await workers.start("zombie-0").wait_until_ready()
    await observer.until_all_ended(within=10)
    await assert_all_completed(url, 31, ledger.effects())


def _has_noticed(zombie: WorkerProcess) -> bool:
    return zombie.has_logged("stale outcome rejected") or zombie.has_logged("lease lost")


@pytest.mark.parametrize("job", [jobs.touch, jobs.touch_in_thread, jobs.touch_in_child], ids=lambda job: job.name)
async def test_disconnected_worker_stops_its_code_before_its_lease_expires(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy, job: jobs.AnyJob
) -> None:
    cut_off = await workers.start("cut-off", url=proxy.url, lease_seconds=9.0).wait_until_ready()
    await app.enqueue(job, 1, seconds=60.0)

    async def started() -> bool:
        return ledger.begun_count() == 1

    await eventually(started, timeout=10, what="the code has begun")
    proxy.stall()
    await workers.start("healthy").wait_until_ready()
    await observer.until("SELECT EXISTS (SELECT FROM tenuto.activities WHERE reason = 'lost')", within=30)

    async def begun_again() -> bool:
        return ledger.begun_count() == 2

    await eventually(begun_again, timeout=10, what="another worker has begun")
    first, second = ledger.effects()
    if job is jobs.touch_in_child:
        assert cut_off.descendants() == [] or not is_running(first.pid)
    else:
        assert first.ended_ns is not None
        assert first.ended_ns < second.began_ns
    assert not cut_off.has_ended()

    # When the connection is back, it continues by itself.
    proxy.resume()
    await app.enqueue(jobs.touch.using(queue="default", priority=5), 2)
    await eventually(lambda: _is_registered_as_live(observer), timeout=20, what="the worker is registered again")
    await assert_invariants_hold(url, 2)


async def _is_registered_as_live(observer: Observer) -> bool:
    return await observer.count("activities", "status = 'completed'") == 1


async def test_late_outcome_of_a_task_claimed_elsewhere_is_rejected(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy, tmp_path: Path
) -> None:
    cut_off = await workers.start("cut-off", url=proxy.url, lease_seconds=6.0).wait_until_ready()
    flag = tmp_path / "go"
    for _ in range(5):
        await app.enqueue(jobs.hold_slot_until_signal, str(flag))

    async def started() -> bool:
        return ledger.begun_count() == 5

    await eventually(started, timeout=10, what="the code has begun")
    proxy.stall()
    flag.touch()
    await workers.start("healthy").wait_until_ready()
    await observer.until_all_ended(within=30)
    records = await observer.rows("SELECT * FROM tenuto.activities ORDER BY id")
    proxy.resume()

    async def refused() -> bool:
        return cut_off.has_logged("stale outcome rejected")

    await eventually(refused, timeout=20, what="the late outcomes are rejected")
    assert await observer.rows("SELECT * FROM tenuto.activities ORDER BY id") == records
    effects = ledger.effects()
    await assert_all_completed(url, 5, effects)
    assert len(effects) == 10
    assert overlaps(effects, {}) == []
    assert not cut_off.has_ended()


async def test_worker_whose_code_cannot_be_stopped_in_time_exits(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy
) -> None:
    stuck = await workers.start("stuck", url=proxy.url, lease_seconds=8.0).wait_until_ready()
    await app.enqueue(jobs.sleep_in_c, 60.0)

    async def started() -> bool:
        return ledger.begun_count() == 1

    await eventually(started, timeout=10, what="the code has begun")
    lease_ends = await observer.value("SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM tenuto.tasks")
    proxy.stall()
    silent_at = time.monotonic_ns()
    await workers.start("healthy").wait_until_ready()

    assert await stuck.wait_for_exit(within=20) == EXIT_LOST_CONTROL
    workers.died_ns[stuck.pid] = time.monotonic_ns()
    await observer.until_all_ended(within=30)

    assert time.monotonic_ns() - silent_at > float(lease_ends) * 0.5e9
    await assert_all_completed(url, 1, ledger.effects())
    assert overlaps(ledger.effects(), workers.died_ns) == []
    assert await observer.count("activities", "reason = 'lost'") == 1


async def test_unanswered_renewal_is_sent_over_another_connection_in_time(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy
) -> None:
    worker = await workers.start("worker", url=proxy.url, lease_seconds=9.0).wait_until_ready()
    await app.enqueue(jobs.touch, 1, seconds=12.0)
    await observer.until_running(1)
    first = await observer.value("SELECT lease_until FROM tenuto.tasks")
    await observer.until("SELECT lease_until > $1 FROM tenuto.tasks", first, within=10)

    proxy.stall_connections(SQL.renew_leases)

    await observer.until_all_ended(within=40)
    await assert_all_completed(url, 1, ledger.effects())
    assert await observer.count("activities", "attempt = 1") == 1
    assert not worker.has_ended()


async def test_claim_reply_delayed_for_most_of_the_lease_returns_the_tasks(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy
) -> None:
    worker = await workers.start("worker", url=proxy.url, lease_seconds=8.0).wait_until_ready()

    async def has_returned_tasks() -> bool:
        return worker.has_logged("tasks returned to queue")

    proxy.delays[SQL.claim_tasks] = 6.6  # enough of the lease is left to return the delayed tasks
    await app.enqueue(jobs.touch, 1, seconds=0.5)
    await eventually(has_returned_tasks, timeout=30, what="the worker returns the delayed tasks")
    assert ledger.begun_count() == 0
    proxy.delays.clear()

    await observer.until_all_ended(within=40)
    await assert_all_completed(url, 1, ledger.effects())
    assert await observer.rows("SELECT attempt, fence > 1 FROM tenuto.activities") == [(1, True)]
    assert not worker.has_ended()


async def test_async_job_that_blocks_the_event_loop_keeps_its_lease(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    await workers.start("blocked", lease_seconds=6.0, slots=3).wait_until_ready()
    await app.enqueue(jobs.block_event_loop, 8.0)
    await observer.until_running(1)
    for number in range(2):  # these wait for the event loop, and their leases must be renewed too
        await app.enqueue(jobs.touch, number)
    await observer.until_running(3)
    await workers.start("onlooker").wait_until_ready()

    await observer.until_all_ended(within=40)

    await assert_all_completed(url, 3, ledger.effects())
    assert await observer.count("activities", "attempt = 1") == 3
    assert await observer.count("repairs") == 0


async def test_child_processes_of_a_killed_worker_end_soon(
    app: Tenuto, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    worker = await workers.start("parent").wait_until_ready()
    for number in range(3):
        await app.enqueue(jobs.touch_in_child, number, seconds=60.0)

    async def started() -> bool:
        return ledger.begun_count() == 3

    await eventually(started, timeout=20, what="the child processes are busy")
    children = [effect.pid for effect in ledger.effects()]
    assert set(children) <= set(worker.descendants())

    await workers.kill(worker)

    async def gone() -> bool:
        return not any(is_running(pid) for pid in children)

    # It takes a second; on a stalled machine it may take longer, but never a minute.
    await eventually(gone, timeout=8, what="the child processes are gone")
