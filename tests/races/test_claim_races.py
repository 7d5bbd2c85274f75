"""Many workers on one queue: a task has one holder, and no limit is ever exceeded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tenuto import Tenuto
from tests.races import jobs
from tests.races.effect_ledger import Effect, Ledger, overlaps, peak_concurrency
from tests.races.invariants import assert_all_completed
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.support.repetition_counts import times
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
TASKS = times(2000, in_a_proof=10_000)


@pytest.mark.parametrize("count", [2, 4])
async def test_worker_processes_never_hold_a_task_twice(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, tmp_path: Path, count: int
) -> None:
    processes = [workers.start(f"worker-{number}", slots=20) for number in range(count)]
    for process in processes:
        await process.wait_until_ready()

    flag = tmp_path / "go"
    held = 20 * count  # as many as there are slots, so that each worker has work on a busy machine
    await app.enqueue_many(jobs.hold_slot_until_signal, [str(flag)] * held)
    await observer.until_running(held, within=30)
    await app.enqueue_many(jobs.touch, ({"number": number, "seconds": 0.002} for number in range(TASKS)))
    flag.touch()
    await observer.until_all_ended(within=60)

    effects = ledger.effects()
    await assert_all_completed(url, TASKS + held, effects)
    assert len(effects) == TASKS + held
    assert overlaps(effects, {}) == []
    assert {effect.pid for effect in effects} == {process.pid for process in processes}
    assert await observer.count("activities", "attempt > 1") == 0


async def test_queue_and_key_limits_hold_over_three_worker_processes(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    await app.limit_queue("narrow", 3)
    for number in range(3):
        await workers.start(f"worker-{number}", slots=10, queues=("default", "narrow")).wait_until_ready()

    kinds: dict[str, jobs.AnyJob] = {
        "queue": jobs.touch.using(queue="narrow"),
        "key": jobs.touch.using(limit_key="a key", limit=2),
        "both": jobs.touch_in_thread.using(queue="narrow", limit_key="another key", limit=1),
        "free": jobs.touch,
    }
    for group, job in kinds.items():
        await app.enqueue_many(job, [{"number": n, "seconds": 0.004, "group": group} for n in range(150)])
    await observer.until_all_ended(within=60)

    effects = ledger.effects()
    await assert_all_completed(url, 600, effects)
    assert overlaps(effects, {}) == []
    most = peak_concurrency(effects, {})
    assert most["key"] == 2
    assert most["both"] == 1
    assert most["free"] > 3
    narrow = [effect for effect in effects if effect.group in ("queue", "both")]
    assert sum(peak_concurrency(narrow, {}).values()) >= 3
    assert peak_concurrency([_as_one_group(effect) for effect in narrow], {}) == {"narrow": 3}


def _as_one_group(effect: Effect) -> Effect:
    return replace(effect, group="narrow")


async def test_limit_slot_of_a_killed_worker_is_free_after_its_lease(
    app: Tenuto, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    job = jobs.touch.using(limit_key="one at a time", limit=1)
    first = await workers.start("first", lease_seconds=6.0).wait_until_ready()
    await app.enqueue(job, 1, seconds=60.0)
    await observer.until_running(1)
    second = await workers.start("second").wait_until_ready()
    await app.enqueue(job, 2)

    await workers.kill(first)
    ends = await observer.value("SELECT lease_until FROM tenuto.tasks WHERE state = 'running'")

    async def second_has_begun() -> bool:
        return {effect.pid for effect in ledger.effects()} == {first.pid, second.pid}

    await eventually(second_has_begun, timeout=20, what="another task gets the limit slot")
    taken_at = "SELECT min(claimed_at) FROM tenuto.all_activities JOIN tenuto.workers ON workers.id = worker_id"
    assert await observer.value(f"{taken_at} WHERE workers.name = 'second'") > ends


async def test_prefetched_tasks_do_not_wait_behind_long_tasks_of_their_worker(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    await app.enqueue_many(jobs.touch, ({"number": number} for number in range(2000)))
    await app.enqueue_many(jobs.touch, ({"number": number, "seconds": 60.0} for number in range(4)))
    await app.enqueue_many(jobs.touch, ({"number": number} for number in range(20)))
    workers.start("quick", slots=4)
    await observer.until("SELECT count(*) <= 24 FROM tenuto.tasks", within=30)
    await observer.until(
        "SELECT count(*) = 4 FROM tenuto.tasks WHERE (input -> 'seconds')::float > 0 AND state = 'running'", within=10
    )

    workers.start("idle")

    await observer.until("SELECT count(*) = 4 FROM tenuto.tasks", within=10)
    assert overlaps(ledger.effects(), {}) == []
