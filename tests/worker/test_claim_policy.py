"""Taking work (W3): a word heard while the worker waits for an answer is not forgotten, what failed is tried again
soon, and nothing is taken again and again only to be put back.

The worker polls once a minute: what comes within seconds came by a word, or because it was remembered.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.errors import Unavailable
from tenuto.store import tasks as store
from tenuto.worker.worker import Worker
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually


def has_settled(one: Worker) -> bool:
    """It listens, has looked at everything, found nothing and has nothing more to look at."""
    return one._listener.connected and not (one._look_ahead or one._more or one._limited)


async def test_a_word_of_limits_heard_while_looking_ahead_is_heeded(
    app: Tenuto, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(limit=1)
    async def bake() -> int:
        return 7

    asked: list[Any] = []
    promote, look_again = store.promote, asyncio.Event()

    async def slow_to_answer(*values: Any) -> store.Outlook:
        outlook = await promote(*values)
        if look_again.is_set():
            look_again.clear()
            one._told_of_limits = False
            asked.append(await app.enqueue(bake))  # after the look, before its answer has come
            await eventually(lambda: one._told_of_limits)
        return outlook

    monkeypatch.setattr(store, "promote", slow_to_answer)
    async with worker() as one:
        await eventually(lambda: has_settled(one))
        look_again.set()
        await store.wake(await app.open(), ["limits"])
        await eventually(lambda: asked)
        assert (await app.wait(asked[0], timeout=10))["output"] == 7


@pytest.mark.parametrize("what", ["claim", "promote"])
async def test_a_round_that_failed_costs_no_poll(
    what: str, app: Tenuto, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def bake() -> int:
        return 7

    failed = threading.Event()
    real = getattr(store, what)

    async def fails_once(*values: Any) -> Any:
        if told.is_set() and not failed.is_set():
            failed.set()
            raise Unavailable("the line broke")
        return await real(*values)

    told = threading.Event()
    monkeypatch.setattr(store, what, fails_once)
    async with worker() as one:
        await eventually(lambda: has_settled(one))
        told.set()
        options = {"delay": 0.3} if what == "promote" else {}
        record = await app.wait(await app.enqueue(bake.using(**options)), timeout=10)
        assert failed.is_set()
    assert record["output"] == 7


async def test_what_waits_here_for_a_slot_is_returned_soon_if_none_becomes_free(
    app: Tenuto, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, ahead = asyncio.Event(), [3]
    loop = asyncio.get_running_loop()

    @app.job
    async def bake() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go_on.wait(), loop))

    async with worker(slots=1, name="full", grace_seconds=10) as full:
        monkeypatch.setattr(full._pace, "ahead", lambda _most: ahead[0])  # as if tasks had ended quickly till now
        tasks = [await app.enqueue(bake) for _ in range(4)]
        await eventually(lambda: len(full._backlog) == 3)
        ahead[0] = 0
        async with worker(slots=10, name="free", grace_seconds=10) as free:
            await eventually(lambda: free._executing == 3, timeout=10)
            assert not full._backlog
            go_on.set()
            for task in tasks:
                await app.wait(task, timeout=10)


@pytest.mark.parametrize("options", [{}, {"limit": 5}], ids=["free", "limited"])
async def test_a_task_that_comes_back_before_our_own_attempt_has_stopped_waits_for_that(
    options: dict[str, Any], app: Tenuto, worker: Quick, sql: Any
) -> None:
    begun, go_on, runs = threading.Event(), threading.Event(), []

    @app.job(**options)
    def stubborn() -> int:
        runs.append(1)
        begun.set()
        if len(runs) == 1:
            go_on.wait(30)
        return len(runs)

    @app.job
    async def bake(n: int) -> int:
        return n

    async def fence() -> int:
        return int((await app.task(task.id))["fence"])

    async with worker() as one:
        task = await app.enqueue(stubborn)
        await eventually(begun.is_set)
        await sql(  # somebody has given us up and taken it back
            "UPDATE tenuto.tasks SET state = 'queued', worker_id = NULL, lease_until = NULL, claimed_at = NULL,"
            " fence = fence + 1"
        )
        await sql("SELECT pg_notify('tenuto', 'limited default')")
        await eventually(lambda: one._comebacks.ids)
        try:
            for n in range(20):  # each makes it look again
                assert (await app.wait(await app.enqueue(bake, n), timeout=10))["output"] == n
            assert await fence() <= 4, "it is taken once more, put back, and then left alone"
            assert len(runs) == 1
        finally:
            go_on.set()
        record = await app.wait(task, timeout=10)
    assert (record["output"], len(runs), record["final"]) == (2, 2, True)
