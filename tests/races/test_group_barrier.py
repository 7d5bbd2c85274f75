"""The last two steps of a group end at the same moment in two processes, many times: the next group starts once."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.errors import Conflict
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.work.tasks import Task
from tenuto.postgres.database import Database
from tests.races.execution_actions import create_executions, create_plan, run_to_end, violated_invariants
from tests.races.task_actions import ACTOR, claim, complete
from tests.support.repetition_counts import times

pytestmark = [pytest.mark.usefixtures("one_completion_path"), pytest.mark.slow]

RegisterWorker = Callable[..., Awaitable[UUID]]
PAIRS = times(500, in_a_proof=2000)
CONCURRENT_STEPS = 50


def _work_in_process(url: str, barrier: Barrier, work: Callable[[Database, Any], Awaitable[None]], rounds: Any) -> None:
    """Do one piece of work after the other, each at the same moment as the other processes."""

    async def go() -> None:
        database = await Database.open(url, generic_plans=True)
        for piece in rounds:
            barrier.wait(60)
            await work(database, piece)
        await database.close()

    asyncio.run(go())


async def finish_tasks(database: Database, tasks: Sequence[Task]) -> None:
    assert len(await finish(database, [complete(database, task) for task in tasks])) == len(tasks)


async def finish_or_be_too_late(database: Database, tasks: Sequence[Task]) -> None:
    await finish(database, [complete(database, task) for task in tasks])


async def cancel_executions(database: Database, runs: Sequence[UUID]) -> None:
    for run in runs:
        try:
            await execution_control.cancel_execution(database, run, database.clock.now(), ACTOR)
        except Conflict:
            continue


async def pause_executions(database: Database, runs: Sequence[UUID]) -> None:
    for run in runs:
        for action in (
            execution_control.pause_execution(database, run, database.clock.now(), ACTOR),
            execution_control.resume_execution(database, run, database.clock.now()),
        ):
            try:
                await action
            except Conflict:
                continue


async def recover_once(database: Database, _: Sequence[UUID]) -> None:
    await recover_lost_tasks(database, database.clock.now())


async def run_in_processes(url: str, *work: tuple[Callable[[Database, Any], Awaitable[None]], Sequence[Any]]) -> int:
    """Run each function in its own process, cycle by cycle, and return the number of deadlocks."""
    before = await _deadlock_count(url)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(len(work))
    started = [spawn.Process(target=_work_in_process, args=(url, barrier, action, rounds)) for action, rounds in work]
    for process in started:
        process.start()
    for process in started:
        await asyncio.to_thread(process.join, 100)
    assert [process.exitcode for process in started] == [0] * len(work)
    return await _deadlock_count(url) - before  # a backend reports its counters when it ends at the latest


async def _deadlock_count(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        found: int = await connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return found
    finally:
        await connection.close()


async def create_pairs(db: Database, worker_id: UUID, count: int) -> tuple[list[UUID], list[Task], list[Task]]:
    """Create executions of two steps, then one; the first two of each are claimed."""
    runs = await create_executions(db, *[create_plan(2, 1)] * count, alone=False)
    claimed: list[Task] = []
    while len(claimed) < 2 * count:
        claimed += await claim(db, worker_id, 500)
    by_run: dict[UUID | None, list[Task]] = {}
    for task in claimed:
        by_run.setdefault(task.execution_id, []).append(task)
    return runs, [by_run[run][0] for run in runs], [by_run[run][1] for run in runs]


@pytest.mark.parametrize("at_once", [1, CONCURRENT_STEPS], ids=["one by one", "in batches in reverse order"])
async def test_steps_that_end_at_the_same_moment_start_the_next_group_once(
    db: Database, register_worker: RegisterWorker, at_once: int
) -> None:
    worker_id = await register_worker()
    runs, left, right = await create_pairs(db, worker_id, PAIRS)
    batches = range(0, PAIRS, at_once)

    deadlocks = await run_in_processes(
        db.url,
        (finish_tasks, [left[first : first + at_once] for first in batches]),
        (finish_tasks, [right[first : first + at_once][::-1] for first in batches]),
    )

    assert await violated_invariants(db) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE current_group = 1") == len(runs)
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'queued' AND group_index = 1") == len(
        runs
    )
    assert await repair_stuck_executions(db, db.clock.now()) == 0
    assert deadlocks == 0
    await run_to_end(db, worker_id)
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE state = 'completed'") == len(runs)
    assert await violated_invariants(db) == []


async def test_executions_stay_sound_under_concurrent_finishes_cancellations_pauses_and_sweeps(
    db: Database, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    runs, left, right = await create_pairs(db, worker_id, times(240, in_a_proof=600))
    # every third lease has expired: the sweep competes with the holder for the same tasks
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s'"
        " WHERE state = 'running' AND execution_id = ANY ($1)",
        runs[::3],
    )
    some = range(0, len(runs), 20)

    deadlocks = await run_in_processes(
        db.url,
        (finish_or_be_too_late, [left[first : first + 20] for first in some]),
        (finish_or_be_too_late, [right[first : first + 20][::-1] for first in some]),
        (cancel_executions, [runs[first : first + 20 : 2] for first in some]),
        (pause_executions, [runs[first : first + 20][::-1] for first in some]),
        (recover_once, [[] for _ in some]),
    )

    assert await violated_invariants(db) == []
    assert deadlocks == 0
    assert await repair_stuck_executions(db, db.clock.now()) == 0
    cancelled = {
        row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.executions WHERE cancelled_at IS NOT NULL")
    }
    assert cancelled, "no cancellation was in time"
    for run in runs:
        try:
            await execution_control.resume_execution(db, run, db.clock.now())
        except Conflict:
            continue
    await run_to_end(db, worker_id)
    assert await violated_invariants(db) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL") == 0
    assert {
        row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.executions WHERE state = 'cancelled'")
    } == cancelled
