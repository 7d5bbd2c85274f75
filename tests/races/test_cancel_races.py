"""Finish, cancellation and recovery sweep reach the same task at the same moment: the task ends once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.errors import Conflict
from tenuto.lifecycle import task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.model.work.tasks import Task
from tenuto.postgres.database import Database
from tenuto.store.work import activities
from tests.races import jobs
from tests.races.effect_ledger import Ledger
from tests.races.invariants import assert_invariants_hold
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.races.task_actions import ACTOR, claim, complete, enqueue, fail
from tests.support.repetition_counts import times
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
ROUNDS = times(100, in_a_proof=600)
RegisterWorker = Callable[..., Awaitable[UUID]]


@pytest.fixture
async def databases(url: str) -> AsyncIterator[list[Database]]:
    """Three independent database pools."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(3):
            database = await Database.open(url, generic_plans=True, max_connections=2)
            stack.push_async_callback(database.close)
            opened.append(database)
        yield opened


async def run_at_once(*actions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Start all actions at the same moment and return their results or errors."""
    gate = asyncio.Barrier(len(actions))

    async def go(action: Callable[[], Awaitable[Any]]) -> Any:
        await gate.wait()
        try:
            return await action()
        except Conflict as error:
            return error

    return list(await asyncio.gather(*(go(action) for action in actions)))


async def expire_leases(db: Database) -> None:
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms' WHERE state = 'running'"
    )


async def last_activity(db: Database, task_id: UUID) -> activities.ActivityDetails:
    return (await activities.list_attempts(db, task_id))[-1]


async def test_task_finished_cancelled_and_recovered_at_once_ends_once(
    db: Database, databases: list[Database], register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    outcomes: Counter[str] = Counter()
    for number in range(ROUNDS):
        (new,) = await enqueue(db)
        (task,) = await claim(db, worker_id)
        await expire_leases(db)

        async def finish_in_a_while(task: Task = task, lag: int = number % 4) -> set[UUID]:
            for _ in range(lag):  # varying by a round trip or two, so that each of them comes first at times
                await databases[0].fetch_value("SELECT 1")
            return await finish(databases[0], [complete(databases[0], task)])

        finished, cancelled, _swept = await run_at_once(
            finish_in_a_while,
            partial(task_cancellation.cancel_task, databases[1], new.id, ACTOR),
            partial(recover_lost_tasks, databases[2], databases[2].clock.now()),
        )

        last = await last_activity(db, new.id)
        assert last.final or (last.state, last.attempt) == ("queued", 2)
        if finished:
            assert last.state == "completed"
        elif cancelled == "cancelled" or cancelled == "stopping":
            assert last.state == "cancelled"
        outcomes[f"{last.state}, cancel said {cancelled if isinstance(cancelled, str) else 'too late'}"] += 1
        if not last.final:
            (task,) = await claim(db, worker_id)
            assert await finish(db, [complete(db, task)]) == {new.id}
    print(dict(outcomes))
    await assert_invariants_hold(db.url, ROUNDS)
    assert await db.fetch_value("SELECT count(*) FROM tenuto.activities WHERE final") == ROUNDS
    assert len(outcomes) > 1


async def test_task_cancelled_at_the_moment_of_its_retry_is_not_retried(
    db: Database, databases: list[Database], register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    outcomes: Counter[str] = Counter()
    for number in range(ROUNDS):
        (new,) = await enqueue(db)
        (task,) = await claim(db, worker_id)

        fails = partial(finish, databases[0], [fail(databases[0], task)])
        stops = partial(task_cancellation.cancel_task, databases[1], new.id, ACTOR)
        results = await run_at_once(*((fails, stops) if number % 2 else (stops, fails)))
        cancelled = results[number % 2]

        last = await last_activity(db, new.id)
        assert (last.state, last.final) == ("cancelled", True)
        outcomes[str(cancelled)] += 1
    print(dict(outcomes))
    await assert_invariants_hold(db.url, ROUNDS)
    assert outcomes.keys() == {"cancelled", "stopping"}


async def test_task_that_fails_after_its_cancel_request_ends_as_cancelled(
    app: Tenuto, db: Database, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    one, other = await enqueue(db, 2)
    claimed = await claim(db, worker_id, 2)
    assert await app.cancel(one.id) == "stopping"

    assert await finish(db, [fail(db, task) for task in claimed]) == {one.id, other.id}

    last = await last_activity(db, one.id)
    assert (last.state, last.reason, last.final) == ("cancelled", "requested", True)
    assert (await last_activity(db, other.id)).state == "scheduled"
    await assert_invariants_hold(db.url, 2)


async def test_job_that_fails_at_the_moment_of_its_cancellation_does_not_run_again(
    app: Tenuto, observer: Observer, workers: Workers, ledger: Ledger, tmp_path: Path
) -> None:
    await workers.start("worker").wait_until_ready()
    flag = tmp_path / "fail"
    tasks = [await app.enqueue(jobs.fail_after_signal, str(flag)) for _ in range(8)]

    async def started() -> bool:
        return ledger.begun_count() == 8

    await eventually(started, timeout=10, what="all attempts have begun")
    flag.touch()
    await asyncio.gather(*(app.cancel(task.id) for task in tasks))

    await observer.until_all_ended(within=10)
    assert await observer.count("activities", "final AND status = 'cancelled'") == 8
