"""What is done to schedules and executions, for `tests.races.scenarios.all_scenarios`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenuto.definitions import schedule_definitions
from tenuto.ids import new_id
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.schedules import ScheduleDefinition, OverlapPolicy
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.store import executions, schedules
from tests.races.execution_actions import failed_for_good, plan_of
from tests.races.scenarios.scenario import LATER, Calm, Scenario, Step, sql
from tests.races.scenarios.tasks import take
from tests.races.task_actions import ACTOR, claim, completed, failed


def nightly(**fields: Any) -> ScheduleDefinition:
    return ScheduleDefinition("Nightly", every("1d"), plan_of(2, 1), **{"overlap": OverlapPolicy.QUEUE_ONE, **fields})


async def create(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.create(db, nightly(), scenario.author(), id=scenario.id("schedule"))


async def edit(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.edit(db, "Nightly", nightly(description="in the night"), scenario.author())


def declare(words: str) -> Step:
    async def action(db: Database, scenario: Scenario) -> None:
        await schedule_definitions.declare(db, nightly(description=words), scenario.author())

    return action


async def unplanned(db: Database, scenario: Scenario) -> None:
    await firing.compute_missing_next_runs(db, db.clock.now())


async def run_by_hand(db: Database, scenario: Scenario) -> None:
    await _run_now(db, scenario.id("by hand"))


async def run_at_once(db: Database, scenario: Scenario) -> None:
    seen, request = await schedules.load_schedule(db, "Nightly"), scenario.id("at once")
    assert seen is not None
    if await firing.try_run_immediately(db, seen, db.clock.now(), ACTOR, request) is None:
        await _run_now(db, request)


async def _run_now(db: Database, request: UUID) -> None:
    now = db.clock.now()
    await db.transaction(lambda c: firing.run_schedule(c, "Nightly", now, ACTOR, request_id=request))


async def fire(db: Database, scenario: Scenario) -> None:
    await firing.fire_due_schedules(db, db.clock.now(), "tester")


async def pause(db: Database, scenario: Scenario) -> None:
    await execution_control.pause_execution(db, scenario.id("by hand"), db.clock.now(), ACTOR)


async def a_step_is_repeated(db: Database, scenario: Scenario) -> None:
    await finish(db, [failed(db, scenario.held[0])])


async def resume(db: Database, scenario: Scenario) -> None:
    await execution_control.resume_execution(db, scenario.id("by hand"), db.clock.now())


async def take_more(db: Database, scenario: Scenario) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now(), state = 'queued' WHERE state = 'scheduled'")
    scenario.held += await claim(db, scenario.worker, 20)


async def take_one(db: Database, scenario: Scenario) -> None:
    scenario.held = await claim(db, scenario.worker, 1)


async def the_group_ends(db: Database, scenario: Scenario) -> None:
    await finish(db, [completed(db, task) for task in scenario.held[1:]])


async def all_is_done(db: Database, scenario: Scenario) -> None:
    await finish(db, [completed(db, task) for task in scenario.held])


async def take_turns(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, db.clock.now(), "tester")


async def a_request_that_nobody_can_read_waits(db: Database, scenario: Scenario) -> None:
    await db.transaction(
        lambda connection: firing.run_schedule(connection, "Nightly", db.clock.now(), ACTOR, request_id=new_id())
    )
    await db.fetch_all("UPDATE tenuto.occurrences SET request = '{}' WHERE decision = 'queued'")


async def it_is_given_up(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, db.clock.now() + 2 * firing.UNREADABLE_REQUEST_KEPT_FOR, "tester")


async def pause_the_next(db: Database, scenario: Scenario) -> None:
    await execution_control.pause_execution(db, await _newest(scenario), db.clock.now(), ACTOR)


async def resume_the_next(db: Database, scenario: Scenario) -> None:
    await execution_control.resume_execution(db, await _newest(scenario), db.clock.now())


async def _newest(scenario: Scenario) -> UUID:
    id: UUID = await scenario.db.fetch_value("SELECT id FROM tenuto.executions ORDER BY id DESC LIMIT 1")
    return id


async def cancel_it(db: Database, scenario: Scenario) -> None:
    await execution_control.cancel_execution(db, await _newest(scenario), db.clock.now(), ACTOR)


async def what_ran_stops(db: Database, scenario: Scenario) -> None:
    await finish(db, [failed_for_good(db, task) for task in scenario.held])


async def repair(db: Database, scenario: Scenario) -> None:
    await repair_stuck_executions(db, db.clock.now())


async def disable(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.set_enabled(db, "Nightly", scenario.author(), enabled=False)


async def delete(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.delete(db, "Nightly", scenario.author())


async def forget_runs(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await executions.delete_old_executions(db, cutoff, 100)
    await schedules.delete_old_ledger_entries(db, cutoff, 100)


DUE = sql("UPDATE tenuto.schedules SET next_run_at = now() - interval '1 s'")
UNPLANNED = sql("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL")
STUCK = sql("UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'queued' AND group_index = 0", damages=True)
WAITING = sql(
    "UPDATE tenuto.tasks SET state = 'waiting', waits_for = gen_random_uuid() WHERE state = 'queued'", damages=True
)
OLD = sql("SELECT 1", damages=True)
"""What is forgotten goes in parts: the ledger, executions. Between them one tells of the other."""

RUNS: tuple[Step, ...] = (
    create, edit, declare("in the night"), declare("from code"), declare("from newer code"), UNPLANNED, unplanned,
    run_at_once, cancel_it, run_by_hand, STUCK, repair, WAITING, repair, Calm(take), DUE, fire,
    pause, a_step_is_repeated, resume, Calm(take_more), the_group_ends, Calm(take), all_is_done, take_turns, Calm(take),
    pause_the_next, all_is_done, resume_the_next, DUE, fire,
    Calm(take_one), Calm(a_request_that_nobody_can_read_waits), cancel_it, what_ran_stops, it_is_given_up,
    DUE, disable, delete, OLD, forget_runs,
)  # fmt: skip
