"""What steps have come to (J10): only who holds the task may say so, and what was said stays."""

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
from tenuto.model.tasks import Aside, Outcome, Settlement, Status, Task
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store import step_checkpoints
from tenuto.store import tasks as store
from tests.support.model_values import a_new_task
from tests.support.waiting import eventually

RegisterWorker = Callable[..., Awaitable[UUID]]
LEASE = timedelta(seconds=30)


@pytest.fixture
async def held(db: Database, register_worker: RegisterWorker) -> Task:
    """A task somebody holds."""
    await store.start(db, [a_new_task()])
    (task,) = await store.claim(db, await register_worker(), ["default"], 1, LEASE)
    return task


async def test_what_was_recorded_first_stands(db: Database, held: Task) -> None:
    assert await step_checkpoints.record(db, held, "1 load", '{"value": 1}') == '{"value": 1}'
    assert await step_checkpoints.record(db, held, "1 load", '{"value": 2}') == '{"value": 1}'
    assert await step_checkpoints.recorded(db, held.id) == {"1 load": '{"value": 1}'}


async def test_who_does_not_hold_the_task_records_nothing(
    db: Database, held: Task, register_worker: RegisterWorker
) -> None:
    other = await register_worker()
    for stranger in (replace(held, fence=held.fence - 1), replace(held, worker_id=other), replace(held, id=new_id())):
        with pytest.raises(StaleLease):
            await step_checkpoints.record(db, stranger, "1 load", "{}")
        with pytest.raises(StaleLease):
            await step_checkpoints.sleep(db, stranger, "1 load", 1, '{"number": 1}')
    assert await step_checkpoints.told(db, held.id) == []


@pytest.mark.parametrize("slipped", ["lease_until = clock_timestamp()", "state = 'queued', worker_id = NULL,"])
async def test_a_lease_that_has_run_out_records_nothing(db: Database, held: Task, slipped: str) -> None:
    if slipped.endswith(","):
        slipped += " lease_until = NULL, claimed_at = NULL"
    await db.all(f"UPDATE tenuto.tasks SET {slipped}")
    with pytest.raises(StaleLease):
        await step_checkpoints.record(db, held, "1 load", "{}")
    with pytest.raises(StaleLease):
        await step_checkpoints.sleep(db, held, "1 load", 1, '{"number": 1}')
    assert await step_checkpoints.told(db, held.id) == []


async def test_who_loses_the_task_while_he_records_has_recorded_nothing(db: Database, held: Task) -> None:
    """Somebody takes the task over and has not committed yet: the other waits, and looks again."""
    async with db.connection() as taker:
        transaction = taker.transaction()
        await transaction.start()
        await taker.execute("UPDATE tenuto.tasks SET fence = fence + 1")
        recording = step_checkpoints.record(db, held, "1 load", "{}")

        waiting = asyncio.create_task(recording)
        await eventually(
            lambda: db.value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%chain_steps%'"
            )
        )
        await transaction.commit()
    with pytest.raises(StaleLease):
        await waiting
    assert await step_checkpoints.told(db, held.id) == []


async def test_the_last_sleep_of_a_step_is_one_row(db: Database, held: Task) -> None:
    def nap(number: int) -> str:
        return f'{{"number": {number}, "until": "2031-01-0{number}T00:00:00+00:00"}}'

    assert '"number": 1' in await step_checkpoints.sleep(db, held, "1 load", 1, nap(1))
    assert '"number": 2' in await step_checkpoints.sleep(db, held, "1 load", 2, nap(2))
    assert '"number": 2' in await step_checkpoints.sleep(db, held, "1 load", 1, nap(1))
    assert await step_checkpoints.recorded(db, held.id) == {}
    (told,) = await step_checkpoints.told(db, held.id)
    assert (told["name"], told["until"].day, told["stopped"]) == ("sleep in 1 load", 2, False)


async def test_another_task_can_go_on_from_there(db: Database, held: Task) -> None:
    await step_checkpoints.record(db, held, "1 load", '{"value": 1}')
    new = new_id()
    async with db.connection() as connection:
        for _ in range(2):
            await step_checkpoints.carry_over(connection, [(held.id, new)])
        await step_checkpoints.carry_over(connection, [])
    assert await step_checkpoints.recorded(db, new) == {"1 load": '{"value": 1}'}


async def test_who_is_put_aside_until_a_moment_that_has_passed_is_called_again_at_once_under_his_limit(
    db: Database, register_worker: RegisterWorker
) -> None:
    words: list[str] = []
    listener = Listener(db, words.append)
    listener.start()
    await eventually(lambda: words == [RECONNECTED])
    try:
        await store.start(db, [a_new_task(limit_key="oven", limit_max=1)])
        (task,) = await store.claim_under_limits(db, await register_worker(), ["default"], 1, LEASE)
        words.clear()
        aside = Outcome(Status.COMPLETED, aside=Aside(until=db.clock.now() - timedelta(seconds=1)))
        assert await finish(db, [Settlement(task, aside)]) == {task.id}
        await eventually(lambda: words == ["limited default"])
        assert await db.value("SELECT state FROM tenuto.tasks") == "queued"
    finally:
        await listener.stop()
