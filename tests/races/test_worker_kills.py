"""kill -9 at random moments: no task is lost or completed twice, and work continues."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tenuto import Tenuto
from tests.races import jobs
from tests.races.effect_ledger import Ledger, overlaps, peak_concurrency
from tests.races.invariants import assert_all_completed, assert_invariants_hold
from tests.races.processes import WorkerProcess, Workers
from tests.races.table_queries import Observer
from tests.support.repetition_counts import seed, times
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
KILLS = times(20, in_a_proof=50)
TASKS = times(1600, in_a_proof=4000)


async def test_random_kills_under_load_lose_and_repeat_no_task(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    chance, submitted_count = random.Random(seed()), 0

    async def submit(count: int) -> None:
        nonlocal submitted_count
        for job in (jobs.touch, jobs.touch_in_thread):
            await app.enqueue_many(
                job, [{"number": n, "seconds": chance.choice((0, 0.01))} for n in range((count - 100) // 2)]
            )
        await app.enqueue_many(jobs.fail_once, [{"number": n} for n in range(100)])
        submitted_count += count

    await submit(TASKS)
    living = [workers.start(f"worker-{number}", lease_seconds=6.0) for number in range(3)]

    for kill in range(KILLS):
        if await observer.count("tasks", "true") < TASKS // 4:  # a slow machine kills more slowly than workers work
            await submit(TASKS // 2)
        before, enough = ledger.begun_count(), chance.randrange(5, 60)

        async def some_more_has_begun(goal: int = before + enough) -> bool:
            return ledger.begun_count() >= goal

        await eventually(some_more_has_begun, timeout=30, what="tasks are processed")
        victim = living.pop(chance.randrange(3))
        await workers.kill(victim)
        # Usually the worker restarts under its name; sometimes it never does, and others wait for its leases.
        name = victim.name if chance.random() < 0.8 else f"newcomer-{kill}"
        living.append(workers.start(name, lease_seconds=6.0))
    await observer.until_all_ended(within=60)

    effects = ledger.effects()
    await assert_all_completed(url, submitted_count, effects)
    assert overlaps(effects, workers.died_ns) == []
    lost = await observer.count("activities", "reason = 'lost'")
    print(f"{KILLS} kills, {lost} attempts lost, {len(effects)} effects of {submitted_count} tasks")
    assert lost >= KILLS
    await workers.stop(*living)
    # Only processes that exited by themselves are marked as ended: a killed one appears alive until its lease expires.
    left = [worker.name for worker in living]
    assert (
        await observer.value("SELECT count(*) FROM tenuto.workers WHERE name = ANY($1) AND ended_at IS NULL", left) == 0
    )


async def test_restarted_worker_recovers_its_own_tasks_at_once_while_others_wait_for_the_lease(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    worker = await workers.start("phoenix", lease_seconds=60.0).wait_until_ready()
    baits = [await app.enqueue(jobs.sleep_in_c, 60.0) for _ in range(2)]
    for _ in range(5):
        await app.enqueue(jobs.sleep_in_c, 60.0)
    await observer.until_running(7)
    await workers.start("onlooker", sweep=0.1).wait_until_ready()

    await workers.kill(worker)
    # The bystander recovers expired tasks. Once it has recovered the second, the sweep that recovered the first is
    # over. It leaves the other tasks of the dead worker alone.
    for claimed, bait in enumerate(baits, start=1):
        await observer.value("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE id = $1", bait.id)
        await observer.until("SELECT sum(count) = $1 FROM tenuto.repairs", claimed, within=20)
    held = "state = 'running' AND attempt = 1 AND worker_id = (SELECT id FROM tenuto.workers WHERE name = 'phoenix')"
    assert await observer.count("tasks", held) == 5
    workers.start("phoenix", lease_seconds=60.0)

    await observer.until_all_ended(within=20)
    await assert_all_completed(url, 7, ledger.effects())
    assert overlaps(ledger.effects(), workers.died_ns) == []
    assert await observer.count("activities", "reason = 'lost' AND attempt = 1") == 7
    repairs = await observer.rows("SELECT net, count FROM tenuto.repairs ORDER BY net")
    assert repairs == [("lease_expired", 2), ("worker_restarted", 5)]


async def test_tasks_of_a_dead_worker_are_recovered_only_after_its_lease(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    worker = await workers.start("dead", lease_seconds=6.0).wait_until_ready()
    for _ in range(5):
        await app.enqueue(jobs.sleep_in_c, 60.0)  # in its first attempt only, which is interrupted
    await observer.until_running(5)
    await workers.start("successor", sweep=0.1).wait_until_ready()

    await workers.kill(worker)
    ends = await observer.value("SELECT min(lease_until) FROM tenuto.tasks WHERE state = 'running'")

    await observer.until_all_ended(within=20)
    await assert_all_completed(url, 5, ledger.effects())
    assert await observer.value("SELECT min(claimed_at) FROM tenuto.activities WHERE attempt = 2") > ends
    assert await observer.rows("SELECT net, count FROM tenuto.repairs") == [("lease_expired", 5)]


async def restart_until_done(workers: Workers, name: str, observer: Observer, **settings: Any) -> list[WorkerProcess]:
    """Restart a worker that crashes until no task is open."""
    lives = [workers.start(name, **settings)]

    async def crashed_or_done() -> bool:
        return lives[-1].has_ended() or await observer.count("tasks") == 0

    while True:
        await eventually(crashed_or_done, timeout=40, what="the worker crashed or all tasks are done")
        if not lives[-1].has_ended():
            return lives
        lives.append(workers.start(name, **settings))


async def test_poison_task_is_set_aside_and_other_tasks_complete(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    poison = await app.enqueue(jobs.crash_worker)
    lives = asyncio.create_task(restart_until_done(workers, "victim", observer, slots=5))
    await app.enqueue_many(jobs.touch, ({"number": number} for number in range(200)))

    assert [life.exit_code for life in await lives] == [86, 86, 86, None]

    await assert_invariants_hold(url, 201)
    last = await app.wait(poison.id, timeout=1)
    assert (last.state, last.reason, last.attempt, last.loss_count) == ("failed", "lost", 3, 3)
    assert last.error["type"] == "tenuto.SetAside"
    assert len(ledger.effects_of(poison.id)) == 3
    assert await observer.count("activities", "final AND status = 'completed'") == 200


async def test_tasks_beside_a_poison_task_are_not_set_aside(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    await app.enqueue_many(jobs.touch, ({"number": number, "seconds": 0.2} for number in range(9)))
    await app.enqueue(jobs.crash_worker)

    await restart_until_done(workers, "victim", observer, slots=10)

    await assert_invariants_hold(url, 10)
    assert await observer.count("activities", "final AND status = 'completed'") == 9
    assert await observer.count("activities", "final AND reason = 'lost'") == 1
    # On their last attempt they ran one at a time.
    last = [
        replace(effect, ended_ns=effect.ended_ns or effect.began_ns + 1)
        for effect in ledger.effects()
        if effect.attempt == 3
    ]
    assert len(last) > 1
    assert peak_concurrency(last, {}) == {"-": 1}
