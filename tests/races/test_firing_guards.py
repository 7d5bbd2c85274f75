"""Each guard of firing, of the ledger and of turns alone: a test that fails when it is gone (see `tests.mutants`)."""

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
from tenuto.definitions.versioned import ChangeContext
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.tasks import Task
from tenuto.model.triggers import every
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.store import schedules
from tenuto.store.schedules import LedgerEntry, Schedule
from tests.races import test_firing_races as falls_due
from tests.races.execution_actions import create_executions, create_plan, run_to_end, violated_invariants
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, complete
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_completion_paths")

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = falls_due.NAME


async def a_schedule(db: Database, overlap: OverlapPolicy = OverlapPolicy.SKIP) -> Schedule:
    return await schedule_definitions.create(
        db,
        ScheduleDefinition(NAME, every("1m"), create_plan(1), overlap=overlap),
        ChangeContext(ACTOR, falls_due.CREATED),
    )


async def ending(db: Database, task: Task) -> None:
    await finish(db, [complete(db, task)])


async def all_ending(db: Database, tasks: list[Task]) -> None:
    await finish(db, [complete(db, task) for task in tasks])


async def run_now(db: Database, request: UUID | None = None) -> RunResult:
    request = request or new_id()
    return await db.transaction(
        lambda connection: firing.run_schedule(connection, NAME, falls_due.NOW, ACTOR, request_id=request)
    )


# --- firing -----------------------------------------------------------------------------------------------------------


async def test_of_a_schedule_that_must_run_alone_there_is_one_active_execution(db: Database) -> None:
    schedule_id = new_id()
    await create_executions(db, create_plan(1), schedule_id=schedule_id)
    with pytest.raises(Exception, match="executions_one_active"):
        await create_executions(db, create_plan(1), schedule_id=schedule_id)
    await create_executions(db, create_plan(1), schedule_id=schedule_id, alone=False)


def entry(schedule_id: UUID, decision: Decision, turn: str | None = None, minutes: int = 0) -> LedgerEntry:
    due_at = falls_due.DUE + timedelta(minutes=minutes)
    return LedgerEntry(new_id(), schedule_id, NAME, due_at, None, "trigger", decision, turn, None, None)


async def write(db: Database, *entries: LedgerEntry) -> None:
    async def action(connection: Connection) -> None:
        await schedules.write_ledger_entries(connection, entries, falls_due.NOW, "a scheduler")

    await db.transaction(action)


async def test_a_due_instant_has_one_row_in_the_ledger(db: Database) -> None:
    schedule_id = new_id()
    await write(db, entry(schedule_id, Decision.SKIPPED))
    with pytest.raises(Exception, match="occurrences_once"):
        await write(db, entry(schedule_id, Decision.MISSED))
    await write(db, entry(new_id(), Decision.SKIPPED))


async def test_one_run_of_a_schedule_waits_for_the_end_of_another(db: Database) -> None:
    schedule_id = new_id()
    await write(db, entry(schedule_id, Decision.QUEUED, "overlap"))
    with pytest.raises(Exception, match="occurrences_one_queued"):
        await write(db, entry(schedule_id, Decision.QUEUED, "overlap", minutes=1))
    await write(db, *(entry(schedule_id, Decision.QUEUED, "catch_up", minutes=n) for n in (1, 2)))


async def test_a_schedule_one_scheduler_is_firing_no_other_waits_for(db: Database, other: asyncpg.Connection) -> None:
    await a_schedule(db)
    async with other.transaction():
        assert len(await schedules.lock_due_schedules(other, falls_due.NOW, 10)) == 1

        fired = await asyncio.wait_for(firing.fire_due_schedules(db, falls_due.NOW, "another"), timeout=5)

        assert fired == 0
    assert await firing.fire_due_schedules(db, falls_due.NOW, "another") == 1


async def test_of_two_runs_by_hand_at_once_one_is_skipped(
    first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    await a_schedule(second)
    async for interleaving in interleavings(first, second):
        one, another = await interleaving.run(run_now, run_now)
        assert {one.decision, another.decision} == {Decision.FIRED, Decision.SKIPPED}, interleaving
        for table in ("occurrences", "executions", "tasks"):
            await second.fetch_all(f"DELETE FROM tenuto.{table}")


async def test_what_is_due_while_another_run_is_active_is_not_fired(db: Database) -> None:
    await a_schedule(db)
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
async def test_what_is_in_the_way_is_held_in_the_order_in_which_everybody_locks_executions(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID, overlap: OverlapPolicy, misfire: Misfire
) -> None:
    now = falls_due.NOW + timedelta(minutes=2)
    async for interleaving in interleavings(first, second):
        made = [
            await schedule_definitions.create(
                second,
                ScheduleDefinition(name, every("1m"), create_plan(1), overlap=rule, misfire=late),
                ChangeContext(ACTOR, falls_due.CREATED),
            )
            for name, rule, late in (("one", OverlapPolicy.CANCEL_PREVIOUS, Misfire()), ("two", overlap, misfire))
        ]
        for schedule in reversed(made):  # who is fired first began last
            await create_executions(second, create_plan(1), schedule_id=schedule.id, schedule_name=schedule.name)
        tasks = await claim(second, worker_id, 2)

        await interleaving.run(
            lambda db: firing.fire_due_schedules(db, now, "a scheduler"), partial(all_ending, tasks=tasks)
        )

        assert await violated_invariants(second) == [], interleaving
        await falls_due.clear(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_a_request_made_twice_is_decided_once(db: Database) -> None:
    await a_schedule(db, OverlapPolicy.ALLOW)
    request = new_id()

    answers = [await run_now(db, request) for _ in range(2)]

    assert answers[0] == answers[1]
    assert answers[0].execution_id == request
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions") == 1


async def test_an_instant_that_is_decided_is_passed_over_however_it_came_to_be_planned_again(db: Database) -> None:
    schedule = await a_schedule(db)
    quarantine = firing.new_quarantine()
    await firing.fire_due_schedules(db, falls_due.NOW, "a scheduler", quarantine)
    # Somebody whose clock is a little behind has worked out the next run.
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = $1", falls_due.DUE)

    await firing.fire_due_schedules(db, falls_due.NOW, "a scheduler", quarantine)

    assert quarantine.rows == set()
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences") == 1
    assert (await schedule_definitions.get(db, schedule.name)).next_run_at == falls_due.DUE + timedelta(minutes=1)


async def test_a_turn_is_taken_once(first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID) -> None:
    async for interleaving in interleavings(first, second):
        await a_schedule(second, OverlapPolicy.QUEUE_ONE)
        await run_now(second)
        assert (await run_now(second)).decision is Decision.QUEUED
        await run_to_end(second, worker_id)

        started = await interleaving.run(
            lambda db: firing.start_queued_runs(db, falls_due.NOW, "one"),
            lambda db: firing.start_queued_runs(db, falls_due.NOW, "two"),
        )

        assert sum(started) == 1, interleaving
        assert await violated_invariants(second) == [], interleaving
        await falls_due.clear(second)


async def test_a_schedule_whose_turn_is_being_taken_is_not_deleted_from_under_it(
    first: InterleavedDatabase, second: InterleavedDatabase, worker_id: UUID
) -> None:
    async for interleaving in interleavings(first, second):
        await a_schedule(second, OverlapPolicy.QUEUE_ONE)
        for _ in range(2):
            await run_now(second)
        await run_to_end(second, worker_id)

        async def delete(db: Database) -> None:
            with suppress(Conflict):
                await schedule_definitions.delete(db, NAME, ChangeContext(ACTOR, falls_due.NOW))

        await interleaving.run(lambda db: firing.start_queued_runs(db, falls_due.NOW, "a scheduler"), delete)

        active = await second.fetch_value("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL")
        assert active == await second.fetch_value("SELECT count(*) FROM tenuto.schedules"), interleaving
        await falls_due.clear(second)
    assert first.deadlocks + second.deadlocks == 0


# --- the ledger and turns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["reason = 'none'", "decision = 'skipped', execution_id = NULL", "due_at = now()"])
async def test_what_the_ledger_has_decided_cannot_be_changed(db: Database, change: str) -> None:
    await a_schedule(db)
    assert (await run_now(db)).decision is Decision.FIRED
    with pytest.raises(Exception, match="is decided"):
        await db.fetch_all(f"UPDATE tenuto.occurrences SET {change}")


async def test_the_end_of_a_run_is_told_to_what_has_just_been_queued_behind_it(
    db: Database, worker_id: UUID, other: asyncpg.Connection, url: str
) -> None:
    scenario = await falls_due.create_scenario(db, worker_id, OverlapPolicy.QUEUE_ONE)
    heard: list[str] = []
    listening = await asyncpg.connect(url)
    await listening.add_listener("tenuto", lambda *told: heard.append(told[-1]))
    queueing = other.transaction()
    await queueing.start()
    started = await firing.run_schedule(other, NAME, falls_due.NOW, ACTOR, request_id=new_id())
    assert started.decision is Decision.QUEUED

    ends = asyncio.create_task(ending(db, scenario.held))

    async def it_waits_or_is_done() -> bool:
        return ends.done() or await db.fetch_value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await eventually(it_waits_or_is_done, timeout=5, what="the end waits, or is written")
    await queueing.commit()
    await ends
    await eventually(lambda: "schedules" in heard, timeout=5, what="schedulers hear of it")
    await listening.close()
