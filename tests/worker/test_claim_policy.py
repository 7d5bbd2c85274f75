"""Claim policy of a worker (W3): its states, and that no notification is lost while a statement is in flight.

The workers poll once a minute: tasks that start within seconds were announced, or their announcement was remembered.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.errors import Unavailable
from tenuto.jobs.registry import TaskOptionValues
from tenuto.store.service_notifications import notify_services
from tenuto.store.work import tasks as store
from tenuto.store.work.tasks import PromotionResult
from tenuto.worker.claim_policy import ClaimPolicy, ClaimState
from tenuto.worker.worker import Worker
from tests.support.model_values import make_held_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

NOTHING_DUE = PromotionResult(0, None, has_limits=False)


def make_idle_policy() -> ClaimPolicy:
    policy = ClaimPolicy(poll_seconds=60)
    policy.begin_refresh()
    policy.finish_refresh(NOTHING_DUE)
    claim_nothing(policy)
    assert policy.state is ClaimState.IDLE
    return policy


def claim_nothing(policy: ClaimPolicy, limit: int = 10) -> None:
    policy.begin_claim(limit)
    policy.finish_claim([], limit, policy.start_position())


def is_idle(worker: Worker) -> bool:
    """Return whether the worker listens, has claimed what there was, and knows of nothing more to claim."""
    policy = worker._fetcher.policy
    return worker._listener.is_connected and policy.state is ClaimState.IDLE and not policy.is_limited


def test_claim_policy_starts_with_a_refresh() -> None:
    assert ClaimPolicy(poll_seconds=60).state is ClaimState.REFRESH


def test_claim_policy_claims_after_a_refresh_and_is_idle_after_an_empty_claim() -> None:
    policy = ClaimPolicy(poll_seconds=60)
    policy.begin_refresh()
    policy.finish_refresh(NOTHING_DUE)
    assert policy.wants_claim
    claim_nothing(policy)
    assert policy.state is ClaimState.IDLE


def test_claim_policy_refreshes_again_while_due_tasks_are_promoted() -> None:
    policy = make_idle_policy()
    policy.begin_refresh()
    policy.finish_refresh(PromotionResult(1000, None, has_limits=False))
    assert policy.state is ClaimState.REFRESH


def test_claim_policy_remembers_tasks_announced_while_a_claim_is_in_flight() -> None:
    policy = make_idle_policy()
    policy.announce_tasks("default", 0)
    policy.begin_claim(10)
    start = policy.start_position()
    policy.announce_tasks("default", 0)
    policy.finish_claim([], 10, start)
    assert policy.state is ClaimState.CLAIM


def test_claim_policy_remembers_limits_announced_while_a_refresh_is_in_flight() -> None:
    policy = make_idle_policy()
    policy.begin_refresh()
    policy.announce_tasks("default", limited=True)
    policy.finish_refresh(NOTHING_DUE)
    assert policy.is_limited


@pytest.mark.parametrize("statement", ["refresh", "claim"])
def test_claim_policy_repeats_a_failed_statement(statement: str) -> None:
    policy = make_idle_policy()
    if statement == "refresh":
        policy.begin_refresh()
        policy.fail_refresh()
        assert policy.state is ClaimState.REFRESH
    else:
        policy.begin_claim(10)
        policy.fail_claim()
        assert policy.state is ClaimState.CLAIM
        assert policy.slots_in_flight == 0


def test_claim_policy_claims_again_after_a_full_batch_from_behind_it() -> None:
    policy = make_idle_policy()
    tasks = [make_held_task(), make_held_task()]
    policy.begin_claim(2)
    policy.finish_claim(tasks, 2, policy.start_position())
    assert policy.state is ClaimState.CLAIM
    assert policy.cursor.positions.keys() == {tasks[0].queue}


def test_claim_policy_rescans_when_the_cursor_is_exhausted() -> None:
    policy = make_idle_policy()
    policy.begin_claim(1)
    policy.finish_claim([make_held_task()], 1, policy.start_position())
    policy.begin_claim(2)
    policy.finish_claim([make_held_task()], 2, policy.start_position())
    assert policy.is_rescan_pending
    assert not policy.start_position().positions, "a rescan starts at the head of the queues"


def test_claim_policy_refreshes_when_a_task_is_due_or_the_poll_is_due() -> None:
    policy, now = make_idle_policy(), make_held_task().run_at
    assert not policy.is_refresh_due(now)
    policy.next_due_at = now
    assert policy.is_refresh_due(now)
    policy.next_due_at = now + timedelta(seconds=1)
    assert not policy.is_refresh_due(now)
    policy.refreshed_at -= 61
    assert policy.is_refresh_due(now)


async def test_worker_respects_limits_announced_during_its_refresh(
    app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(limit=1)
    async def bake() -> int:
        return 7

    enqueued: list[Any] = []
    promote, enqueue_now = store.promote_due_tasks, asyncio.Event()

    async def promote_slowly(*values: Any) -> PromotionResult:
        result = await promote(*values)
        if enqueue_now.is_set():
            enqueue_now.clear()
            policy = one._fetcher.policy
            policy._limits_announced = False
            enqueued.append(await app.enqueue(bake))  # after the statement, before its result arrives
            await eventually(lambda: policy._limits_announced)
        return result

    monkeypatch.setattr(store, "promote_due_tasks", promote_slowly)
    async with worker() as one:
        await eventually(lambda: is_idle(one))
        enqueue_now.set()
        await notify_services(await app.open(), ["limits"])
        await eventually(lambda: enqueued)
        assert (await app.wait(enqueued[0], timeout=10)).output == 7


@pytest.mark.parametrize("statement", ["claim_tasks", "promote_due_tasks"])
async def test_worker_repeats_a_failed_cycle_before_the_next_poll(
    statement: str, app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def bake() -> int:
        return 7

    armed, failed = threading.Event(), threading.Event()
    real = getattr(store, statement)

    async def fail_once(*values: Any) -> Any:
        if armed.is_set() and not failed.is_set():
            failed.set()
            raise Unavailable("connection lost", code="database.unreachable")
        return await real(*values)

    monkeypatch.setattr(store, statement, fail_once)
    async with worker() as one:
        await eventually(lambda: is_idle(one))
        armed.set()
        options: TaskOptionValues = {"delay": 0.3} if statement == "promote_due_tasks" else {}
        record = await app.wait(await app.enqueue(bake.using(**options)), timeout=10)
        assert failed.is_set()
    assert record.output == 7


async def test_worker_returns_prefetched_tasks_if_no_slot_becomes_free(
    app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, prefetch_count = asyncio.Event(), [3]
    loop = asyncio.get_running_loop()

    @app.job
    async def bake() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(may_end.wait(), loop))

    async with worker(slots=1, name="full", grace_seconds=10) as full:
        # As if tasks had ended quickly until now.
        monkeypatch.setattr(full._estimator, "prefetch_count", lambda _limit: prefetch_count[0])
        tasks = [await app.enqueue(bake) for _ in range(4)]
        await eventually(lambda: len(full._slots.prefetched) == 3)
        prefetch_count[0] = 0
        async with worker(slots=10, name="free", grace_seconds=10) as free:
            await eventually(lambda: free._slots.running_count == 3, timeout=10)
            assert not full._slots.prefetched
            may_end.set()
            for task in tasks:
                await app.wait(task, timeout=10)


@pytest.mark.parametrize("options", [{}, {"limit": 5}], ids=["unlimited", "limited"])
async def test_worker_does_not_start_a_reclaimed_task_beside_its_own_earlier_attempt(
    options: dict[str, Any], app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    started, may_end, runs = threading.Event(), threading.Event(), []

    @app.job(**options)
    def stubborn() -> int:
        runs.append(1)
        started.set()
        if len(runs) == 1:
            may_end.wait(30)
        return len(runs)

    @app.job
    async def bake(n: int) -> int:
        return n

    async def fence() -> int:
        return int((await app.task(task.id)).fence)

    async with worker() as one:
        task = await app.enqueue(stubborn)
        await eventually(started.is_set)
        await sql(  # as a recovery sweep does after the lease expired
            "UPDATE tenuto.tasks SET state = 'queued', worker_id = NULL, lease_until = NULL, claimed_at = NULL,"
            " fence = fence + 1"
        )
        await sql("SELECT pg_notify('tenuto', 'limited default')")
        await eventually(lambda: one._reclaimed.ids)
        try:
            for n in range(20):  # each triggers another claim
                assert (await app.wait(await app.enqueue(bake, n), timeout=10)).output == n
            assert await fence() <= 4, "the task is claimed once more, returned, and then excluded from claims"
            assert len(runs) == 1
        finally:
            may_end.set()
        record = await app.wait(task, timeout=10)
    assert (record.output, len(runs), record.final) == (2, 2, True)
