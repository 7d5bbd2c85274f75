"""A worker dies at any point of a chain (J10): stored steps ran once, interrupted steps run again, nothing is lost.

The points are those of docs/how-to/chains.md: before a step, in it, between its end and the checkpoint, after the
checkpoint, and between the last checkpoint and the end of the task.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.store.work import step_checkpoints
from tests.races import jobs
from tests.races.crash_points import EXIT_CODE
from tests.races.effect_ledger import Ledger, overlaps
from tests.races.invariants import assert_invariants_hold
from tests.races.processes import Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.races.test_crash_points import expire_leases_soon, wait_for_crash_or_stop
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
STEPS = ("first", "second", "sleeps", "last", "stop")
STATEMENTS = (
    "load_checkpoints", "record_checkpoint", "record_sleep", "defer_tasks", "commit of defer_tasks", "finish_tasks",
)  # fmt: skip
DOOMED: dict[str, Any] = {"lease_seconds": 30.0, "poll_seconds": 10.0, "slots": 1}
BATCH_SIZE = 8


async def test_worker_that_crashes_at_any_point_of_a_chain_repeats_no_stored_step(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    points = [f"{when} {statement}" for statement in STATEMENTS for when in ("before", "after")]
    deaths: Counter[str] = Counter()
    tasks: dict[UUID, str] = {}
    round = 0
    while points:  # the first pass of each point, the second, … until a point is no longer reached
        round += 1
        reached = []
        for start in range(0, len(points), BATCH_SIZE):
            some = points[start : start + BATCH_SIZE]
            crashes = [f"{point} {round}" for point in some]
            queues = [crash.replace(" ", "-") for crash in crashes]
            for crash, queue in zip(crashes, queues, strict=True):
                tasks[(await app.enqueue(jobs.chained.using(queue=queue), 7)).id] = crash
            doomed = [
                workers.start(f"doomed-{queue}", queues=(queue,), crash_at=crash, **DOOMED)
                for queue, crash in zip(queues, crashes, strict=True)
            ]
            pairs = zip(doomed, queues, strict=True)
            await asyncio.gather(*(wait_for_crash_or_stop(observer, worker, queue) for worker, queue in pairs))
            assert {worker.exit_code for worker in doomed} <= {0, EXIT_CODE}
            await expire_leases_soon(observer)
            healthy = await workers.start("healthy", queues=tuple(queues), slots=10).wait_until_ready()
            await observer.until_all_ended(within=40)
            await workers.stop(healthy)
            reached += [point for point, worker in zip(some, doomed, strict=True) if worker.exit_code == EXIT_CODE]
        deaths.update(reached)
        points = reached

    print(f"{len(tasks)} chains, {deaths.total()} crashes: {dict(deaths)}")
    assert deaths["before record_checkpoint"] == deaths["after record_checkpoint"] == len(STEPS)
    assert all(deaths[f"{when} {statement}"] for statement in STATEMENTS for when in ("before", "after"))
    await assert_invariants_hold(url, len(tasks))
    assert await observer.count("activities", "final AND status = 'completed' AND output = '\"[7]\"'") == len(tasks)
    assert overlaps([effect for effect in ledger.effects() if effect.ended_ns is not None], {}) == []
    runs: dict[UUID, Counter[str]] = defaultdict(Counter)
    for effect in ledger.effects():
        runs[effect.task][effect.group] += 1
    for task, crash in tasks.items():
        assert runs[task] == expected_runs(crash), f"{crash}: {runs[task]}"


def expected_runs(crash: str) -> Counter[str]:
    """Return how often each step runs after this crash: unstored steps once more; the sleeping step is called again
    when it wakes.
    """
    what, _, number = crash.rpartition(" ")
    times = Counter(dict.fromkeys(STEPS, 1))
    times["sleeps"] = 2
    if what == "before record_checkpoint":
        if int(number) <= len(STEPS):
            times[STEPS[int(number) - 1]] += 1  # it ended, but its result was not stored
    elif crash == "before record_sleep 1":
        times["sleeps"] += 1  # afterwards the sleep is stored, and is over before another worker continues
    return times


async def test_worker_killed_during_a_chain_step_repeats_only_that_step(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    victim = await workers.start("victim").wait_until_ready()
    task = await app.enqueue(jobs.signalled_chain, str(flag))
    for life in range(2):

        async def in_the_middle(lives: int = life + 1) -> bool:
            return sum(effect.group == "held" for effect in ledger.effects()) == lives

        await eventually(in_the_middle, timeout=10, what="the step is running")
        await workers.kill(victim)
        victim = await workers.start("victim").wait_until_ready()
    flag.touch()
    await observer.until_all_ended(within=20)

    groups = Counter(effect.group for effect in ledger.effects_of(task.id))
    assert groups == {"before": 1, "held": 3}
    record = await app.wait(task, timeout=1)
    assert (record.state, record.output, record.loss_count) == ("completed", 7, 2)
    await assert_invariants_hold(url, 1)


async def test_sleeping_chain_survives_kill_of_every_worker(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    tasks = [await app.enqueue(jobs.chained, number) for number in range(20)]
    for life in range(6):
        victim = workers.start(f"life-{life}", lease_seconds=4.0, sweep=0.2, slots=2)

        async def some_more_has_begun(goal: int = ledger.begun_count() + 8) -> bool:
            return ledger.begun_count() >= goal or not await observer.count("tasks")

        await eventually(some_more_has_begun, timeout=20, what="tasks are processed")
        await workers.kill(victim)
    workers.start("last", lease_seconds=4.0, sweep=0.2, slots=2)
    await observer.until_all_ended(within=60)

    await assert_invariants_hold(url, len(tasks))
    assert await observer.count("activities", "final AND status = 'completed'") == len(tasks)
    assert overlaps(ledger.effects(), workers.died_ns) == []
    # A step begins once for each kill that interrupted it, and once more to complete.
    lost = await observer.count("activities", "reason = 'lost'")
    repeated = Counter((effect.task, effect.group) for effect in ledger.effects() if effect.group != "sleeps")
    assert sum(repeated.values()) - len(repeated) <= lost


@pytest.mark.parametrize("lose", ["lose_request", "lose_reply"])
async def test_chain_step_result_is_stored_later_if_the_database_is_unreachable(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger, proxy: Proxy, lose: str
) -> None:
    getattr(proxy, lose)(step_checkpoints.SQL.record_checkpoint, times=8)  # more often than one statement is retried
    await workers.start("proxied_db", url=proxy.url).wait_until_ready()
    task = await app.enqueue(jobs.chained, 7)
    await observer.until_all_ended(within=40)

    assert proxy.lost == 8
    assert Counter(effect.group for effect in ledger.effects_of(task.id)) == {**dict.fromkeys(STEPS, 1), "sleeps": 2}
    assert (await app.wait(task, timeout=1)).attempt == 1
