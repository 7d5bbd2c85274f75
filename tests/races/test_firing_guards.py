"""Each guard of firing, the occurrence ledger and queued runs alone: tests that fail when the guard is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.triggers import every
from tenuto.model.work.occurrences import Decision
from tenuto.model.work.tasks import Task
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerEntry, Schedule
from tests.races import test_firing_races as falls_due
from tests.races.execution_actions import create_executions, create_plan, run_to_end, violated_invariants
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, complete
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_completion_paths")

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = falls_due.NAME


async def create_due_schedule(db: Database, overlap: OverlapPolicy = OverlapPolicy.SKIP) -> Schedule:
    return await schedule_definitions.create(
        db,
        ScheduleDefinition(NAME, every("1m"), create_plan(1), overlap=overlap),
        ChangeContext(ACTOR, falls_due.CREATED_AT),
    )


async def finish_one(db: Database, task: Task) -> None:
    await finish(db, [complete(db, task)])


async def finish_all(db: Database, tasks: list[Task]) -> None:
    await finish(db, [complete(db, task) for task in tasks])


async def run_now(db: Database, request: UUID | None = None) -> RunResult:
    request = request or new_id()
    return await db.transaction(
        lambda connection: firing.run_schedule(connection, NAME, falls_due.NOW, ACTOR, request_id=request)
    )


# --- firing -----------------------------------------------------------------------------------------------------------


async def test_schedule_without_overlap_has_one_active_execution(db: Database) -> None:
    schedule_id = new_id()
    await create_executions(db, create_plan(1), schedule_id=schedule_id)
    with pytest.raises(Exception, match="executions_one_active"):
        await create_executions(db, create_plan(1), schedule_id=schedule_id)
    await create_executions(db, create_plan(1), schedule_id=schedule_id, alone=False)


def ledger_entry(schedule_id: UUID, decision: Decision, turn: str | None = None, minutes: int = 0) -> LedgerEntry:
    due_at = falls_due.DUE_AT + timedelta(minutes=minutes)
    return LedgerEntry(new_id(), schedule_id, NAME, due_at, None, "trigger", decision, turn, None, None)


async def insert_entries(db: Database, *entries: LedgerEntry) -> None:
    async def action(connection: Connection) -> None:
        await schedules.write_ledger_entries(connection, entries, falls_due.NOW, "a scheduler")

    await db.transaction(action)


async def test_due_instant_has_one_ledger_entry(db: Database) -> None:
    schedule_id = new_id()
    await insert_entries(db, ledger_entry(schedule_id, Decision.SKIPPED))
    with pytest.raises(Exception, match="occurrences_once"):
        await insert_entries(db, ledger_entry(schedule_id, Decision.MISSED))
    await insert_entries(db, ledger_entry(new_id(), Decision.SKIPPED))


async def test_schedule_has_one_queued_run(db: Database) -> None:
    schedule_id = new_id()
    await insert_entries(db, ledger_entry(schedule_id, Decision.QUEUED, "overlap"))
    with pytest.raises(Exception, match="occurrences_one_queued"):
        await insert_entries(db, ledger_entry(schedule_id, Decision.QUEUED, "overlap", minutes=1))
    await insert_entries(db, *(ledger_entry(schedule_id, Decision.QUEUED, "catch_up", minutes=n) for n in (1, 2)))


async def test_scheduler_skips_a_schedule_locked_by_another_scheduler(db: Database, other: asyncpg.Connection) -> None:
    await create_due_schedule(db)
    async with other.transaction():
        assert len(await schedules.lock_due_schedules(other, falls_due.NOW, 10)) == 1

        fired = await asyncio.wait_for(firing.fire_due_schedules(db, falls_due.NOW, "another"), timeout=5)

        assert fired == 0
    assert await firing.fire_due_schedules(db, falls_due.NOW, "another") == 1


async def test_second_of_two_concurrent_manual_runs_is_skipped(
    first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    await create_due_schedule(second)
    async for interleaving in interleavings(first, second):
        one, another = await interleaving.run(run_now, run_now)
        assert {one.decision, another.decision} == {Decision.FIRED, Decision.SKIPPED}, interleaving
        for table in ("occurrences", "executions", "tasks"):
            await second.fetch_all(f"DELETE FROM tenuto.{table}")


async def test_due_schedule_with_an_active_execution_is_not_fired(db: Database) -> None:
    await create_due_schedule(db)
    await run_now(db)

    quarantine = firing.new_quarantine()
    assert await firing.fire_due_schedules(db, falls_due.NOW, "a scheduler", quarantine) == 1

    assert quarantine.rows == set()
    assert await db.fetch_value("SELECT decision FROM tenuto.occurrences WHERE origin = 'trigger'") == "skipped"


@pytest.mark.parametrize(
    ("overlap", "misfire"),
    [(OverlapPolicy.CANCEL_PREVIOUS, Misfire()), (OverlapPolicy.SKIP, Misfire(MisfirePolicy.ALL))],
    ids=["is cancelled", "has missed runs queued behind it"],
)
async def test_firing_locks_blocking_executions_in_the_common_lock_order(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, overlap: OverlapPolicy, misfire: Misfire
) -> None:
    now = falls_due.NOW + timedelta(minutes=2)
    async for interleaving in interleavings(first, second):
        made = [
            await schedule_definitions.create(
                second,
                ScheduleDefinition(name, every("1m"), create_plan(1), overlap=rule, misfire=late),
                ChangeContext(ACTOR, falls_due.CREATED_AT),
            )
            for name, rule, late in (("one", OverlapPolicy.CANCEL_PREVIOUS, Misfire()), ("two", overlap, misfire))
        ]
        for schedule in reversed(made):  # the first to fire is the last one created
            await create_executions(second, create_plan(1), schedule_id=schedule.id, schedule_name=schedule.name)
        tasks = await claim(second, worker_id, 2)

        await interleaving.run(
            lambda db: firing.fire_due_schedules(db, now, "a scheduler"), partial(finish_all, tasks=tasks)
        )

        assert await violated_invariants(second) == [], interleaving
        await falls_due.truncate(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_run_request_made_twice_is_decided_once(db: Database) -> None:
    await create_due_schedule(db, OverlapPolicy.ALLOW)
    request = new_id()

    results = [await run_now(db, request) for _ in range(2)]

    assert results[0] == results[1]
    assert results[0].execution_id == request
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions") == 1


async def test_decided_instant_is_skipped_even_if_it_is_planned_again(db: Database) -> None:
    schedule = await create_due_schedule(db)
    quarantine = firing.new_quarantine()
    await firing.fire_due_schedules(db, falls_due.NOW, "a scheduler", quarantine)
    # A scheduler with a slow clock has computed the next run.
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = $1", falls_due.DUE_AT)

    await firing.fire_due_schedules(db, falls_due.NOW, "a scheduler", quarantine)

    assert quarantine.rows == set()
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences") == 1
    assert (await schedule_definitions.get(db, schedule.name)).next_run_at == falls_due.DUE_AT + timedelta(minutes=1)


async def test_queued_run_starts_once(first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID) -> None:
    async for interleaving in interleavings(first, second):
        await create_due_schedule(second, OverlapPolicy.QUEUE_ONE)
        await run_now(second)
        assert (await run_now(second)).decision is Decision.QUEUED
        await run_to_end(second, worker_id)

        started = await interleaving.run(
            lambda db: firing.start_queued_runs(db, falls_due.NOW, "one"),
            lambda db: firing.start_queued_runs(db, falls_due.NOW, "two"),
        )

        assert sum(started) == 1, interleaving
        assert await violated_invariants(second) == [], interleaving
        await falls_due.truncate(second)


async def test_schedule_is_not_deleted_while_its_queued_run_starts(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    async for interleaving in interleavings(first, second):
        await create_due_schedule(second, OverlapPolicy.QUEUE_ONE)
        for _ in range(2):
            await run_now(second)
        await run_to_end(second, worker_id)

        async def delete(db: Database) -> None:
            with suppress(Conflict):
                await schedule_definitions.delete(db, NAME, ChangeContext(ACTOR, falls_due.NOW))

        await interleaving.run(lambda db: firing.start_queued_runs(db, falls_due.NOW, "a scheduler"), delete)

        active = await second.fetch_value("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL")
        assert active == await second.fetch_value("SELECT count(*) FROM tenuto.schedules"), interleaving
        await falls_due.truncate(second)
    assert first.deadlocks + second.deadlocks == 0


# --- the occurrence ledger and queued runs
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["reason = 'none'", "decision = 'skipped', execution_id = NULL", "due_at = now()"])
async def test_decided_ledger_entry_cannot_be_changed(db: Database, change: str) -> None:
    await create_due_schedule(db)
    assert (await run_now(db)).decision is Decision.FIRED
    with pytest.raises(Exception, match="is decided"):
        await db.fetch_all(f"UPDATE tenuto.occurrences SET {change}")


async def test_end_of_an_execution_notifies_a_run_queued_concurrently(
    db: Database, worker_id: UUID, other: asyncpg.Connection, url: str
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.QUEUE_ONE)
    received: list[str] = []
    listening = await asyncpg.connect(url)
    await listening.add_listener("tenuto", lambda *arguments: received.append(arguments[-1]))
    queueing = other.transaction()
    await queueing.start()
    started = await firing.run_schedule(other, NAME, falls_due.NOW, ACTOR, request_id=new_id())
    assert started.decision is Decision.QUEUED

    ends = asyncio.create_task(finish_one(db, scenario.held))

    async def it_waits_or_is_done() -> bool:
        return ends.done() or await db.fetch_value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await eventually(it_waits_or_is_done, timeout=5, what="the finishing transaction waits or is committed")
    await queueing.commit()
    await ends
    await eventually(lambda: "schedules" in received, timeout=5, what="schedulers are notified")
    await listening.close()
