"""Limit hand-off (W3, J7): a worker passes limit slots from task to task, and never exceeds the limit."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context
from tenuto.model.work.tasks import Outcome, OutcomeStatus, Settlement
from tenuto.store.work import tasks as store
from tenuto.worker.fetcher import PrefetchEstimator
from tenuto.worker.limit_handoff import (
    EXCLUSIVE_SECONDS,
    OPEN_SECONDS,
    LimitHandoff,
    confirm_successors,
    final_successors,
)
from tenuto.worker.watchdog import WorkerTiming
from tests.support.model_values import make_held_task
from tests.support.waiting import eventually

LIMIT = 3
KEEP_STANDBY = WorkerTiming(max_prefetch_seconds=60)
"""Keeps standby tasks in the worker, which by default returns them after a second."""


class RunningCount:
    """Counts how many attempts run at once."""

    now = highest = ended = 0

    async def __aenter__(self) -> None:
        self.now += 1
        self.highest = max(self.highest, self.now)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1
        self.ended += 1


async def test_worker_hands_on_limit_slots_without_exceeding_the_limit(app: Tenuto) -> None:
    running = RunningCount()

    @app.job(limit=LIMIT, retry=RetryPolicy(max_attempts=9, base_seconds=0))
    async def quick(number: int) -> None:
        async with running:
            await asyncio.sleep(0)
            if number % 50 == 7 and running.ended % 2:  # some are retried
                raise ValueError("try again")

    await app.enqueue_many(quick, [{"number": number} for number in range(1500)])
    db = await app.open()
    seen = []
    async with app.worker(slots=20) as worker:
        while await db.fetch_value("SELECT EXISTS (SELECT FROM tenuto.tasks)"):
            seen.append(
                await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running' AND NOT standby")
            )
        handed_on = worker._handoff.handed_on_count
    assert running.highest == LIMIT
    assert max(seen) <= LIMIT
    assert handed_on > 100
    assert await db.fetch_value("SELECT count(*) FROM tenuto.activities WHERE final AND status = 'completed'") == 1500


async def test_worker_returns_standby_tasks_while_long_tasks_run(app: Tenuto) -> None:
    gate = threading.Event()

    @app.job(limit=LIMIT)
    async def quick() -> None:
        pass

    @app.job(limit_key="job:quick", limit=LIMIT)
    async def long() -> None:
        await asyncio.to_thread(gate.wait, 60)  # the code runs on the event loop of the jobs

    await app.enqueue_many(quick, [{}] * 300)
    await app.enqueue_many(long, [{}] * 20)
    db = await app.open()
    async with app.worker(slots=20):

        async def holds_only_running_tasks() -> bool:
            held = "SELECT count(*), count(*) FILTER (WHERE standby) FROM tenuto.tasks WHERE state = 'running'"
            return tuple(await db.fetch_one(held) or ()) == (LIMIT, 0)

        await eventually(holds_only_running_tasks, 30)
        gate.set()
        await eventually(lambda: db.fetch_value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks)"), 30)


# --- the hand-off itself --------------------------------------------------------------------------------------------


@pytest.fixture
def attempts() -> list[Attempt]:
    made = [make_attempt() for _ in range(4)]
    for attempt in made[1:]:
        attempt.is_standby = True
    return made


def make_attempt() -> Attempt:
    task = make_held_task()
    return Attempt(task, Context(task), 0.0, 0.0)


def completed_results(*attempts: Attempt) -> list[tuple[Attempt, Outcome]]:
    return [(attempt, Outcome(OutcomeStatus.COMPLETED, ended_at=datetime.now(UTC))) for attempt in attempts]


def test_final_successor_is_the_first_attempt_of_the_chain_that_has_not_ended(attempts: list[Attempt]) -> None:
    first, second, third, _ = attempts
    first.successor, second.successor = second, third
    assert final_successors(completed_results(first)) == [second]
    assert final_successors(completed_results(first, second)) == [third, None]
    assert final_successors(completed_results(first, second, third)) == [None, None, None]
    assert final_successors(completed_results(second)) == [None]  # the database has not counted it in a limit slot
    second.is_standby = False
    assert final_successors(completed_results(second)) == [third]


def test_confirmed_successor_counts_against_the_limit_and_others_stop(attempts: list[Attempt]) -> None:
    first, second, third, fourth = attempts
    first.successor, third.successor = second, fourth
    batch = completed_results(first, third)
    settlements = [Settlement(attempt.task, outcome) for attempt, outcome in batch]
    settlements[0].successor = second.task.id
    confirm_successors(batch, settlements)
    assert (second.is_standby, second.stop_reason) == (False, None)
    assert (fourth.is_standby, fourth.stop_reason) == (True, StopReason.HANDED_BACK)


def test_limit_handoff_leaves_slots_to_other_workers_now_and_then(
    attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tenuto.worker.limit_handoff.monotonic_seconds", lambda: 1000.0
    )  # the open period is only a hundredth of a second
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.limit_slot = "slot"
    handoff = LimitHandoff()
    handoff.add_standby(waiting)
    handoff._cycle_started_at -= EXCLUSIVE_SECONDS + OPEN_SECONDS / 2
    assert handoff.hand_slot_to_successor(first) is None  # the slot is left to other workers
    handoff._cycle_started_at -= OPEN_SECONDS
    assert handoff.hand_slot_to_successor(first) is waiting[0]
    assert (handoff.standby_count, first.successor) == (2, waiting[0])
    waiting[0].stop(StopReason.HANDED_BACK)
    assert handoff.hand_slot_to_successor(waiting[0]) is None  # a stopped attempt may have lost its slot
    assert handoff.take_all_standby() == waiting[1:]
    assert handoff.hand_slot_to_successor(first) is None


def test_limit_handoff_after_changed_limits_returns_all_standby_tasks(attempts: list[Attempt]) -> None:
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.limit_slot = "slot"
    handoff = LimitHandoff()
    handoff.add_standby(waiting)
    handoff.invalidate()
    assert handoff.hand_slot_to_successor(first) is None
    assert handoff.oldest_standby_at() < 0  # so the worker returns them in its next cycle
    assert handoff.take_all_standby() == waiting
    handoff.add_standby(waiting[:1])
    assert handoff.hand_slot_to_successor(first) is waiting[0]


def test_limit_handoff_returns_standby_tasks_claimed_while_limits_changed(attempts: list[Attempt]) -> None:
    first, *waiting = attempts
    for attempt in attempts:
        attempt.task.limit_slot = "slot"
    handoff = LimitHandoff()
    handoff.invalidate()  # while the claim is in flight
    handoff.add_standby(waiting)
    assert handoff.hand_slot_to_successor(first) is None
    assert handoff.oldest_standby_at() < 0
    assert handoff.take_all_standby() == waiting


def test_limit_handoff_claims_no_standby_tasks_after_changed_limits(attempts: list[Attempt]) -> None:
    first = attempts[0]
    first.task.limit_slot = "slot"
    handoff, estimator = LimitHandoff(), PrefetchEstimator()
    estimator._task_seconds = 0.01
    handoff.invalidate()
    handoff.record_claimed([first.task])
    assert handoff.standby_demand([first], estimator, 10) == ({}, 0)
    assert (
        handoff.take_all_standby(pause=60) == []
    )  # no standby task was claimed under other limits, so no pause follows
    slots, count = handoff.standby_demand([first], estimator, 10)
    assert (list(slots), count) == (["slot"], 5)


def test_limit_handoff_forgets_slots_without_standby_tasks() -> None:
    handoff = LimitHandoff()
    for number in range(50):
        before, after = make_attempt(), make_attempt()
        before.task.limit_slot = after.task.limit_slot = f"slot of batch {number}"
        handoff.add_standby([after])
        assert handoff.hand_slot_to_successor(before) is after
    assert handoff._standby == {}
    assert handoff.oldest_standby_at() > monotonic_seconds()


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_standby_items_of_a_paused_or_cancelled_batch_do_not_start(app: Tenuto, verb: str) -> None:
    running, begun, gate = RunningCount(), 0, asyncio.Event()
    loop = asyncio.get_running_loop()
    gate.set()

    @app.job
    async def quick(number: int) -> None:
        nonlocal begun
        begun += 1
        async with running:
            if not gate.is_set():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    made = app.manifest("quick", quick, max_active=LIMIT)
    await app.manifests.deploy()
    batch = await app.bulk_enqueue(made, [{"number": number} for number in range(5000)])
    async with app.worker(slots=20, poll_seconds=60, timing=KEEP_STANDBY) as worker:
        await eventually(lambda: worker._handoff.standby_count > LIMIT * 2, 30)
        gate.clear()
        await eventually(lambda: running.now == LIMIT)
        before = begun
        assert worker._handoff.standby_count > 0
        await getattr(batch, verb)()
        await eventually(lambda: worker._handoff.standby_count == 0, what="standby tasks return")
        gate.set()
        db = await app.open()
        await eventually(lambda: db.fetch_value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running')"))
        assert begun == before
        left = {row["state"] for row in await db.fetch_all("SELECT state FROM tenuto.tasks")}
        assert left == ({"waiting"} if verb == "pause" else set())


@pytest.mark.parametrize("change", [{"max_active": 1}, {"enabled": False}], ids=["a lower cap", "switched off"])
async def test_changed_group_limit_applies_to_standby_tasks(app: Tenuto, change: dict[str, Any]) -> None:
    running, begun, gate = RunningCount(), list[int](), asyncio.Event()
    loop = asyncio.get_running_loop()
    gate.set()

    @app.job
    async def quick(number: int) -> None:
        async with running:
            begun.append(running.now)
            if not gate.is_set():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    made = app.manifest("quick", quick, group="reports")
    await app.manifests.deploy()
    await app.manifests.change_group("reports", max_active=8)
    items = [{"number": number} for number in range(5000)]
    await app.bulk_enqueue(made, items)
    async with app.worker(slots=20, poll_seconds=60, timing=KEEP_STANDBY) as worker:

        async def has_standby() -> bool:
            if not worker._slots.held:  # a fast worker may end all items between two looks
                await app.bulk_enqueue(made, items)
            return worker._handoff.standby_count > 16

        await eventually(has_standby, 60, what="standby tasks")
        gate.clear()
        await eventually(lambda: running.now == 8)
        before = len(begun)
        assert worker._handoff.standby_count > 0
        await app.manifests.change_group("reports", **change)
        await eventually(lambda: worker._handoff.standby_count == 0, what="standby tasks return")
        gate.set()
        if most := change.get("max_active", 0):
            await eventually(lambda: len(begun) > before + 20)
        else:
            db = await app.open()
            await eventually(
                lambda: db.fetch_value("SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running')")
            )
    assert max(begun[before:], default=0) == most


async def test_worker_with_blocked_limited_tasks_does_not_claim_in_a_loop(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, gate = 0, asyncio.Event()
    loop = asyncio.get_running_loop()
    claim = store.claim_limited_tasks

    async def counted(*given: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim(*given, **options)

    @app.job
    async def plain() -> None: ...

    @app.job(limit=1)
    async def lone() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))

    monkeypatch.setattr(store, "claim_limited_tasks", counted)
    async with app.worker(slots=10, poll_seconds=60) as worker:
        await app.enqueue(plain)  # fewer tasks than requested: the worker schedules a rescan
        await eventually(lambda: worker.finished_count == 1)
        await app.enqueue(lone)
        await app.enqueue(lone)
        await eventually(lambda: len(worker._slots.held) == 1)
        worker._fetcher.rescan()
        before = claims
        await asyncio.sleep(0.3)
        assert claims - before < 10
        gate.set()
        await eventually(lambda: worker.finished_count == 3)
