"""A worker with free slots claims the next step group in the transaction that finishes the previous one (S1, S8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tenuto.lifecycle import completion
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.postgres.database import Database
from tenuto.postgres.listener import RECONNECTED, Listener
from tenuto.store.work import workers
from tenuto.store.work.executions import NextGroupClaim
from tests.support.schedules import (
    LEASE,
    claim_steps,
    finish_task,
    load_execution,
    make_settlement,
    make_step,
    open_task_states,
    read_table,
    start_execution,
)
from tests.support.tasks import Register
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_completion_paths")


@pytest.fixture
async def notifications(db: Database) -> AsyncIterator[list[str]]:
    """All notifications of the database, in order."""
    received: list[str] = []
    listener = Listener(db, received.append)
    listener.start()
    await eventually(lambda: RECONNECTED in received)
    yield received
    await listener.stop()


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def finish_and_claim_next(
    db: Database, worker_id: UUID, name: str, *, limit: int = 10, known: KnownHandlers | None = None
) -> NextGroupClaim:
    """Finish a step and claim the next group; return the claim."""
    held = await claim_steps(db, worker_id)
    next_claim = NextGroupClaim(worker_id, LEASE, ("default",), limit, known)
    settlement = make_settlement(held[name], db.clock.now())
    assert await completion.finish(db, [settlement], next_claim) == {held[name].id}
    return next_claim


async def test_worker_claims_the_next_group_with_its_finish(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", ["b", "c"], "d")
    next_claim = await finish_and_claim_next(db, worker_id, "a")
    assert {task.name for task in next_claim.claimed} == {"b", "c"}
    assert await open_task_states(db) == {"b": "running", "c": "running", "d": "waiting"}
    assert (await load_execution(db, run)).current_group == 1
    for task in next_claim.claimed:
        assert (task.worker_id, task.fence, task.execution_id) == (worker_id, 1, run)
        await finish_task(db, task)
    assert await open_task_states(db) == {"d": "queued"}


async def test_worker_claims_no_more_of_the_next_group_than_its_limit(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", ["b", "c", "d"])
    next_claim = await finish_and_claim_next(db, worker_id, "a", limit=2)
    assert len(next_claim.claimed) == 2
    assert sorted((await open_task_states(db)).values()) == ["queued", "running", "running"]


async def test_worker_claims_nothing_while_the_group_is_not_finished(db: Database, worker_id: UUID) -> None:
    await start_execution(db, ["a", "b"], "c")
    assert (await finish_and_claim_next(db, worker_id, "a")).claimed == []
    assert await open_task_states(db) == {"b": "running", "c": "waiting"}


async def test_step_of_a_queue_that_the_worker_does_not_serve_is_queued(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", [make_step("b", queue="mail"), "c"])
    assert [task.name for task in (await finish_and_claim_next(db, worker_id, "a")).claimed] == ["c"]
    assert await open_task_states(db) == {"b": "queued", "c": "running"}


async def test_step_of_a_job_that_the_worker_does_not_know_is_queued(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", ["b", "c"])
    known = KnownHandlers({"a": None, "c": None}, {})
    assert [task.name for task in (await finish_and_claim_next(db, worker_id, "a", known=known)).claimed] == ["c"]
    assert await open_task_states(db) == {"b": "queued", "c": "running"}


async def test_step_under_a_limit_is_queued(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", [make_step("b", limit_key="one", limit_max=1), "c"])
    assert [task.name for task in (await finish_and_claim_next(db, worker_id, "a")).claimed] == ["c"]


@pytest.mark.parametrize("how", ["paused", "limited"])
async def test_step_of_a_paused_or_limited_queue_is_queued(how: str, db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    if how == "paused":
        await db.transaction(lambda connection: workers.pause_queue(connection, "default", by="Ana", reason=None))
    else:
        await db.transaction(lambda connection: workers.limit_queue(connection, "default", 1))
    next_claim = NextGroupClaim(worker_id, LEASE, ("default",), 5)
    await completion.finish(db, [make_settlement(held["a"], db.clock.now())], next_claim)
    assert next_claim.claimed == []
    assert await open_task_states(db) == {"b": "queued"}


async def test_ended_worker_claims_nothing_of_the_next_group(db: Database, worker_id: UUID) -> None:
    await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await workers.deregister_process(db, worker_id)
    next_claim = NextGroupClaim(worker_id, LEASE, ("default",), 5)
    await completion.finish(db, [make_settlement(held["a"], db.clock.now())], next_claim)
    assert next_claim.claimed == []
    assert await open_task_states(db) == {"b": "queued"}


async def test_finish_notifies_only_for_queued_steps(db: Database, worker_id: UUID, notifications: list[str]) -> None:
    await start_execution(db, "a", ["b", make_step("c", queue="mail")])
    await flush_notifications(db, notifications)
    notifications.clear()
    await finish_and_claim_next(db, worker_id, "a")
    await flush_notifications(db, notifications)
    assert notifications == ["queued mail 0"]


async def flush_notifications(db: Database, notifications: list[str]) -> None:
    """Wait until all notifications sent so far have arrived."""
    await db.fetch_all("SELECT pg_notify('tenuto', 'over')")
    await eventually(lambda: "over" in notifications)
    notifications.remove("over")


async def test_worker_claims_nothing_of_a_paused_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await db.fetch_all("UPDATE tenuto.executions SET paused_at = now(), paused_by = 'Ana' WHERE id = $1", run)
    next_claim = NextGroupClaim(worker_id, LEASE, ("default",), 5)
    await completion.finish(db, [make_settlement(held["a"], db.clock.now())], next_claim)
    assert next_claim.claimed == []
    assert [task["state"] for task in await read_table(db, "tasks")] == ["waiting"]
