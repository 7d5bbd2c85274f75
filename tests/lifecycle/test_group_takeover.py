"""Who ends a step group, and has room, goes on with the next one in the same transaction (S1, S8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tenuto.lifecycle import completion
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store import workers
from tenuto.store.executions import Taking
from tests.support.schedules import LEASE, a_step, end, outcome, started, table, take, task_states, the_execution
from tests.support.tasks import Register
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.fixture
async def heard(db: Database) -> AsyncIterator[list[str]]:
    """Every word that is said."""
    words: list[str] = []
    listener = Listener(db, words.append)
    listener.start()
    await eventually(lambda: RECONNECTED in words)
    yield words
    await listener.stop()


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def going_on(
    db: Database, me: UUID, name: str, *, limit: int = 10, queues: tuple[str, ...] = ("default",)
) -> Taking:
    """End a step, ready to go on; what was taken over."""
    held = await take(db, me)
    taking = Taking(me, LEASE, ("default",), limit)
    settlement = outcome(held[name], db.clock.now())
    assert await completion.finish(db, [settlement], taking) == {held[name].id}
    return taking


async def test_the_next_group_is_held_by_who_ended_the_last_one(db: Database, me: UUID) -> None:
    run = await started(db, "a", ["b", "c"], "d")
    taking = await going_on(db, me, "a")
    assert {task.name for task in taking.taken} == {"b", "c"}
    assert await task_states(db) == {"b": "running", "c": "running", "d": "waiting"}
    assert (await the_execution(db, run))["current_group"] == 1
    for task in taking.taken:
        assert (task.worker_id, task.fence, task.execution_id) == (me, 1, run)
        await end(db, task)
    assert await task_states(db) == {"d": "queued"}


async def test_no_more_is_taken_over_than_there_is_room_for(db: Database, me: UUID) -> None:
    await started(db, "a", ["b", "c", "d"])
    taking = await going_on(db, me, "a", limit=2)
    assert len(taking.taken) == 2
    assert sorted((await task_states(db)).values()) == ["queued", "running", "running"]


async def test_a_group_that_is_not_over_hands_nothing_over(db: Database, me: UUID) -> None:
    await started(db, ["a", "b"], "c")
    assert (await going_on(db, me, "a")).taken == []
    assert await task_states(db) == {"b": "running", "c": "waiting"}


async def test_a_step_of_a_queue_that_is_not_served_gets_in_line(db: Database, me: UUID) -> None:
    await started(db, "a", [a_step("b", queue="mail"), "c"])
    assert [task.name for task in (await going_on(db, me, "a")).taken] == ["c"]
    assert await task_states(db) == {"b": "queued", "c": "running"}


async def test_a_step_under_a_limit_gets_in_line(db: Database, me: UUID) -> None:
    await started(db, "a", [a_step("b", limit_key="one", limit_max=1), "c"])
    assert [task.name for task in (await going_on(db, me, "a")).taken] == ["c"]


@pytest.mark.parametrize("how", ["paused", "limited"])
async def test_a_step_of_a_queue_that_is_held_back_gets_in_line(how: str, db: Database, me: UUID) -> None:
    await started(db, "a", "b")
    held = await take(db, me)
    if how == "paused":
        await workers.pause_queue(db, "default", by="Ana", reason=None)
    else:
        await workers.limit_queue(db, "default", 1)
    taking = Taking(me, LEASE, ("default",), 5)
    await completion.finish(db, [outcome(held["a"], db.clock.now())], taking)
    assert taking.taken == []
    assert await task_states(db) == {"b": "queued"}


async def test_a_worker_that_was_declared_dead_takes_nothing_over(db: Database, me: UUID) -> None:
    await started(db, "a", "b")
    held = await take(db, me)
    await workers.leave(db, me)
    taking = Taking(me, LEASE, ("default",), 5)
    await completion.finish(db, [outcome(held["a"], db.clock.now())], taking)
    assert taking.taken == []
    assert await task_states(db) == {"b": "queued"}


async def test_whoever_may_take_the_rest_is_told_and_nobody_else(db: Database, me: UUID, heard: list[str]) -> None:
    await started(db, "a", ["b", a_step("c", queue="mail")])
    await told(db, heard)
    heard.clear()
    await going_on(db, me, "a")
    await told(db, heard)
    assert heard == ["queued mail 0"]


async def told(db: Database, heard: list[str]) -> None:
    """Wait until everything said so far has been heard."""
    await db.all("SELECT pg_notify('tenuto', 'over')")
    await eventually(lambda: "over" in heard)
    heard.remove("over")


async def test_a_paused_execution_hands_nothing_over(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await db.all("UPDATE tenuto.executions SET paused_at = now(), paused_by = 'Ana' WHERE id = $1", run)
    taking = Taking(me, LEASE, ("default",), 5)
    await completion.finish(db, [outcome(held["a"], db.clock.now())], taking)
    assert taking.taken == []
    assert [task["state"] for task in await table(db, "tasks")] == ["waiting"]
