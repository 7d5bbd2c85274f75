"""Step checkpoints (J10): only the worker that holds the task stores them, and the first one stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from tenuto.errors import StaleLease
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement, Task
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store.work import step_checkpoints, task_creation
from tenuto.store.work import tasks as store
from tests.support.model_values import make_new_task
from tests.support.require_value import known
from tests.support.waiting import eventually

RegisterWorker = Callable[..., Awaitable[UUID]]
LEASE = timedelta(seconds=30)


@pytest.fixture
async def claimed_task(db: Database, register_worker: RegisterWorker) -> Task:
    """Return a claimed task."""
    await task_creation.enqueue_tasks(db, [make_new_task()])
    (task,) = await store.claim_tasks(db, await register_worker(), ["default"], 1, LEASE)
    return task


async def test_first_recorded_checkpoint_stays(db: Database, claimed_task: Task) -> None:
    assert await step_checkpoints.record_checkpoint(db, claimed_task, "1 load", '{"value": 1}') == '{"value": 1}'
    assert await step_checkpoints.record_checkpoint(db, claimed_task, "1 load", '{"value": 2}') == '{"value": 1}'
    assert await step_checkpoints.load_checkpoints(db, claimed_task.id) == {"1 load": '{"value": 1}'}


async def test_worker_without_the_task_records_no_checkpoint(
    db: Database, claimed_task: Task, register_worker: RegisterWorker
) -> None:
    other = await register_worker()
    for stranger in (
        replace(claimed_task, fence=claimed_task.fence - 1),
        replace(claimed_task, worker_id=other),
        replace(claimed_task, id=new_id()),
    ):
        with pytest.raises(StaleLease):
            await step_checkpoints.record_checkpoint(db, stranger, "1 load", "{}")
        with pytest.raises(StaleLease):
            await step_checkpoints.record_sleep(db, stranger, "1 load", 1, '{"number": 1}')
    assert await step_checkpoints.list_steps_and_sleeps(db, claimed_task.id) == []


@pytest.mark.parametrize("slipped", ["lease_until = clock_timestamp()", "state = 'queued', worker_id = NULL,"])
async def test_worker_with_expired_lease_records_no_checkpoint(db: Database, claimed_task: Task, slipped: str) -> None:
    if slipped.endswith(","):
        slipped += " lease_until = NULL, claimed_at = NULL"
    await db.fetch_all(f"UPDATE tenuto.tasks SET {slipped}")
    with pytest.raises(StaleLease):
        await step_checkpoints.record_checkpoint(db, claimed_task, "1 load", "{}")
    with pytest.raises(StaleLease):
        await step_checkpoints.record_sleep(db, claimed_task, "1 load", 1, '{"number": 1}')
    assert await step_checkpoints.list_steps_and_sleeps(db, claimed_task.id) == []


async def test_worker_that_loses_the_task_while_recording_records_no_checkpoint(
    db: Database, claimed_task: Task
) -> None:
    """Another worker is claiming the task and has not committed: the checkpoint waits, and is rejected."""
    async with db.connection() as taker:
        transaction = taker.transaction()
        await transaction.start()
        await taker.execute("UPDATE tenuto.tasks SET fence = fence + 1")
        recording = step_checkpoints.record_checkpoint(db, claimed_task, "1 load", "{}")

        waiting = asyncio.create_task(recording)
        await eventually(
            lambda: db.fetch_value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%chain_steps%'"
            )
        )
        await transaction.commit()
    with pytest.raises(StaleLease):
        await waiting
    assert await step_checkpoints.list_steps_and_sleeps(db, claimed_task.id) == []


async def test_sleeps_of_a_step_use_one_row(db: Database, claimed_task: Task) -> None:
    def make_sleep(number: int) -> str:
        return f'{{"number": {number}, "until": "2031-01-0{number}T00:00:00+00:00"}}'

    assert '"number": 1' in await step_checkpoints.record_sleep(db, claimed_task, "1 load", 1, make_sleep(1))
    assert '"number": 2' in await step_checkpoints.record_sleep(db, claimed_task, "1 load", 2, make_sleep(2))
    assert '"number": 2' in await step_checkpoints.record_sleep(db, claimed_task, "1 load", 1, make_sleep(1))
    assert (await step_checkpoints.load_checkpoints(db, claimed_task.id)).keys() == {"sleep in 1 load"}
    (row,) = await step_checkpoints.list_steps_and_sleeps(db, claimed_task.id)
    assert (row.name, known(row.sleep_ends_at).day, row.stopped) == ("sleep in 1 load", 2, False)


async def test_checkpoints_are_copied_to_another_task(db: Database, claimed_task: Task) -> None:
    await step_checkpoints.record_checkpoint(db, claimed_task, "1 load", '{"value": 1}')
    new = new_id()
    async with db.connection() as connection:
        for _ in range(2):
            await step_checkpoints.copy_checkpoints(connection, [(claimed_task.id, new)])
        await step_checkpoints.copy_checkpoints(connection, [])
    assert await step_checkpoints.load_checkpoints(db, new) == {"1 load": '{"value": 1}'}


async def test_task_deferred_to_a_past_instant_is_queued_under_its_limit(
    db: Database, register_worker: RegisterWorker
) -> None:
    words: list[str] = []
    listener = Listener(db, words.append)
    listener.start()
    await eventually(lambda: words == [RECONNECTED])
    try:
        await task_creation.enqueue_tasks(db, [make_new_task(limit_key="oven", limit_max=1)])
        (task,) = await store.claim_limited_tasks(db, await register_worker(), ["default"], 1, LEASE)
        words.clear()
        aside = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(resume_at=db.clock.now() - timedelta(seconds=1)))
        assert await finish(db, [Settlement(task, aside)]) == {task.id}
        await eventually(lambda: words == ["limited default"])
        assert await db.fetch_value("SELECT state FROM tenuto.tasks") == "queued"
    finally:
        await listener.stop()


async def test_checkpoints_that_are_recorded_together_have_their_own_results(
    db: Database, register_worker: RegisterWorker
) -> None:
    await task_creation.enqueue_tasks(db, [make_new_task() for _ in range(3)])
    first, second, third = await store.claim_tasks(db, await register_worker(), ["default"], 3, LEASE)
    stale = replace(second, fence=second.fence - 1)
    requests = [(task, name) for task in (third, stale, first) for name in ("1 load", "2 save")]
    found = await asyncio.gather(
        *(step_checkpoints.record_checkpoint(db, task, name, f'{{"value": "{name}"}}') for task, name in requests),
        return_exceptions=True,
    )
    assert [str(each) for each in found[:2] + found[4:]] == ['{"value": "1 load"}', '{"value": "2 save"}'] * 2
    assert [type(each) for each in found[2:4]] == [StaleLease, StaleLease]
    assert await step_checkpoints.list_steps_and_sleeps(db, second.id) == []
