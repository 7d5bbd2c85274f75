"""Sending, waiting, deciding and giving up the slot at the same moment: every interleaving of two transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.errors import Conflict, StaleLease
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.events.approvals import ApprovalState, Decision
from tenuto.model.events.event_names import EventWait, WaitOutcome
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement, Task, WaitKey
from tenuto.operations.events.approvals import Approvals
from tenuto.postgres.database import Connection, Database
from tenuto.store.events import approvals, external_events
from tenuto.store.events.approvals import NewApproval
from tenuto.store.events.external_events import NewEvent, WaitRecord
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, enqueue
from tests.support.waiting import eventually

Action = Callable[[Database], Awaitable[Any]]


async def claim_one(database: Database, worker_id: UUID) -> Task:
    await database.write_all("DELETE FROM tenuto.tasks WHERE state = 'queued'")  # of earlier interleavings
    await enqueue(database, 1)
    (task,) = await claim(database, worker_id)
    return task


def wait_of(database: Database, key: str, *, seconds: float = 3600) -> EventWait:
    return EventWait("", 1, "paid", key, database.clock.now() + timedelta(seconds=seconds))


def register(task: Task, key: str) -> Action:
    return lambda database: external_events.register_wait(database, task, wait_of(database, key), database.clock.now())


def park(task: Task) -> Action:
    """Give up the slot of a task that has begun to wait."""

    async def give_up(database: Database) -> None:
        now = database.clock.now()
        deferral = Deferral(resume_at=now + timedelta(hours=1), waits=(WaitKey("", 1),))
        await finish(database, [Settlement(task, Outcome(OutcomeStatus.COMPLETED, started_at=now, deferral=deferral))])

    return give_up


def wait_and_park(task: Task, key: str) -> Action:
    async def wait(database: Database) -> WaitRecord:
        found: WaitRecord = await register(task, key)(database)
        if found.outcome is None:
            await park(task)(database)
        return found

    return wait


def send(key: str, id: UUID) -> Action:
    async def send_event(database: Database) -> bool:
        now = database.clock.now()
        new = NewEvent(id, "paid", key, '{"amount": 1}', now, now + timedelta(days=1), ACTOR)
        return await database.transaction(lambda connection: external_events.send_event(connection, new))

    return send_event


async def assert_received_once(database: Database, task: Task, event_id: UUID, found: WaitRecord | None) -> None:
    """Check that the task has received the event, and continues."""
    (wait,) = await external_events.list_waits_of_task(database, task.id)
    event = await external_events.find_event(database, event_id)
    assert event is not None
    assert (wait.outcome, wait.event_id, event.delivery_count) == (WaitOutcome.RECEIVED, event_id, 1)
    state = await database.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", task.id)
    assert state == ("running" if found is not None and found.outcome is not None else "queued")


@pytest.mark.parametrize("sender_is_first", [True, False])
async def test_event_and_wait_of_the_same_moment_meet(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, sender_is_first: bool
) -> None:
    count = 0
    async for interleaving in interleavings(first, second):
        count += 1
        key, event_id, task = f"order {count}", new_id(), await claim_one(db, worker_id)
        waiting, sending = wait_and_park(task, key), send(key, event_id)
        results = await interleaving.run(*((sending, waiting) if sender_is_first else (waiting, sending)))
        found = results[1] if sender_is_first else results[0]
        await assert_received_once(db, task, event_id, found)
    assert count > 4
    assert first.deadlocks == second.deadlocks == 0


@pytest.mark.parametrize("sender_is_first", [True, False])
async def test_event_during_giving_up_the_slot_wakes_the_task(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, sender_is_first: bool
) -> None:
    count = 0
    async for interleaving in interleavings(first, second):
        count += 1
        key, event_id, task = f"order {count}", new_id(), await claim_one(db, worker_id)
        await register(task, key)(db)
        parking, sending = park(task), send(key, event_id)
        await interleaving.run(*((sending, parking) if sender_is_first else (parking, sending)))
        await assert_received_once(db, task, event_id, None)
    assert count > 3
    assert first.deadlocks == second.deadlocks == 0


async def test_two_waits_of_the_same_moment_do_not_share_a_kept_event(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    count = 0
    async for interleaving in interleavings(first, second):
        count += 1
        key, event_id = f"order {count}", new_id()
        one, other = await claim_one(db, worker_id), await claim_one(db, worker_id)
        assert await send(key, event_id)(db)
        found = await interleaving.run(register(one, key), register(other, key))
        assert sorted(str(each.outcome) for each in found) == ["None", "received"]


async def test_two_requests_of_the_same_moment_send_one_event(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    count = 0
    async for interleaving in interleavings(first, second):
        count += 1
        key, event_id, task = f"order {count}", new_id(), await claim_one(db, worker_id)
        await wait_and_park(task, key)(db)
        assert sorted(await interleaving.run(send(key, event_id), send(key, event_id))) == [False, True]
        await assert_received_once(db, task, event_id, None)


async def test_sender_that_fails_at_any_statement_delivers_once_when_it_repeats(
    db: Database, first: InterleavedDatabase, worker_id: UUID
) -> None:
    place, has_failed = 0, True
    while has_failed:
        place += 1
        key, event_id, task = f"order {place}", new_id(), await claim_one(db, worker_id)
        await wait_and_park(task, key)(db)
        seen, has_failed = 0, False

        async def fail_at_place(place: int = place) -> None:
            nonlocal seen, has_failed
            seen += 1
            if seen == place:
                has_failed = True
                raise asyncpg.ConnectionDoesNotExistError("killed")

        first.before = fail_at_place
        try:  # the transaction is repeated, as after a lost connection
            assert await send(key, event_id)(first)
        finally:
            first.before = first.nothing
        assert not await send(key, event_id)(db)
        await assert_received_once(db, task, event_id, None)
    assert place > 5


# --- approvals ------------------------------------------------------------------------------------------------------


async def request(database: Database, worker_id: UUID, *, count: int = 1, seconds: float = 3600) -> Task:
    """Request an approval as a step does, and give up the slot."""
    task, now = await claim_one(database, worker_id), database.clock.now()
    new = NewApproval(
        "go live", None, None, "Deploy?", "{}", None, ["ana", "ben"], count, "fail",
        now + timedelta(seconds=seconds), ACTOR,
    )  # fmt: skip

    async def store(connection: Connection) -> None:
        await approvals.request_approval(connection, task, new, now)

    await database.transaction(store)
    await park(task)(database)
    return task


def operations(database: Database, name: str) -> Approvals:
    async def open() -> Database:
        return database

    return Approvals(open, OperationCaller(lambda: Actor.user(name)))


def decide(task: Task, name: str, decision: Decision) -> Action:
    async def run(database: Database) -> str:
        group = operations(database, name)
        try:
            await (group.approve if decision is Decision.APPROVE else group.reject)(task.id)
        except Conflict as error:
            return error.code
        return "decided"

    return run


async def state_of(database: Database, task: Task) -> tuple[str, str]:
    approval = await approvals.find_approval(database, task.id)
    assert approval is not None
    return approval.state, await database.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", task.id)


async def test_two_approvals_of_the_same_moment_complete_an_approval(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    async for interleaving in interleavings(first, second):
        task = await request(db, worker_id, count=2)
        results = await interleaving.run(decide(task, "ana", Decision.APPROVE), decide(task, "ben", Decision.APPROVE))
        assert results == ("decided", "decided")
        assert await state_of(db, task) == ("approved", "queued"), interleaving


async def test_approval_and_rejection_of_the_same_moment_have_one_result(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    async for interleaving in interleavings(first, second):
        task = await request(db, worker_id)
        results = await interleaving.run(decide(task, "ana", Decision.APPROVE), decide(task, "ben", Decision.REJECT))
        assert sorted(results) == ["approval.not_pending", "decided"], interleaving
        expected = ApprovalState.APPROVED if results[0] == "decided" else ApprovalState.REJECTED
        assert await state_of(db, task) == (expected, "queued")


async def test_link_that_is_used_twice_at_the_same_moment_decides_once(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    async for interleaving in interleavings(first, second):
        task = await request(db, worker_id, count=2)
        link = (await operations(db, "admin").create_link(task.id, "ana")).link

        def use(decision: Decision, link: str = link) -> Action:
            return lambda database: operations(database, "ana").decide_by_link(link, decision)

        results = await interleaving.run(use(Decision.APPROVE), use(Decision.REJECT))
        assert [each is None for each in results].count(True) == 1, interleaving
        decisions = await approvals.list_decisions(db, [task.id])
        assert [each.via_link for each in decisions] == [True]


async def test_wait_of_a_lost_attempt_is_not_registered(db: Database, worker_id: UUID) -> None:
    task = await claim_one(db, worker_id)
    for stranger in (replace(task, fence=task.fence - 1), replace(task, worker_id=new_id())):
        with pytest.raises(StaleLease):
            await register(stranger, "order")(db)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp()")
    with pytest.raises(StaleLease):
        await register(task, "order")(db)
    assert await external_events.list_waits_of_task(db, task.id) == []


async def test_worker_that_loses_the_task_while_it_begins_to_wait_stores_no_wait(db: Database, worker_id: UUID) -> None:
    """Another worker is claiming the task and has not committed: the wait is not stored beside its claim."""
    task = await claim_one(db, worker_id)
    async with db.connection() as taker:
        transaction = taker.transaction()
        await transaction.start()
        await taker.execute("UPDATE tenuto.tasks SET fence = fence + 1")
        waiting = asyncio.ensure_future(register(task, "order")(db))
        await eventually(
            lambda: db.fetch_value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%event_waits%'"
            )
        )
        await transaction.commit()
    with pytest.raises(StaleLease):
        await waiting


async def test_wait_past_its_deadline_receives_nothing(db: Database, worker_id: UUID) -> None:
    task, event_id = await claim_one(db, worker_id), new_id()
    await register(task, "order")(db)
    await db.write_all("UPDATE tenuto.event_waits SET expires_at = now() - interval '1 s'")
    assert await send("order", event_id)(db)
    event = await external_events.find_event(db, event_id)
    assert event is not None
    assert event.delivery_count == 0
    assert (await register(task, "order")(db)).outcome is WaitOutcome.TIMED_OUT


async def test_event_does_not_shorten_the_delay_of_a_retry(db: Database, worker_id: UUID) -> None:
    task = await claim_one(db, worker_id)
    await register(task, "order")(db)
    await db.write_all(
        "UPDATE tenuto.tasks SET state = 'scheduled', worker_id = NULL, lease_until = NULL, claimed_at = NULL,"
        " run_at = now() + interval '1 hour'"
    )
    assert await send("order", new_id())(db)
    assert await db.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", task.id) == "scheduled"
    (wait,) = await external_events.list_waits_of_task(db, task.id)
    assert wait.outcome is WaitOutcome.RECEIVED
