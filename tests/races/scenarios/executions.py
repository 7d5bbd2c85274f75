"""Actions on schedules and executions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from tenuto.definitions import schedule_definitions
from tenuto.ids import new_id
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.definitions.schedules import OverlapPolicy, Plan, ScheduleDefinition
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.store.definitions import schedules
from tenuto.store.work import executions
from tests.races.execution_actions import create_plan, fail_permanently
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, run_sql
from tests.races.scenarios.tasks import claim_tasks
from tests.races.task_actions import ACTOR, claim, complete, fail


def nightly_definition(**fields: Any) -> ScheduleDefinition:
    return ScheduleDefinition(
        "Nightly", every("1d"), create_plan(2, 1), **{"overlap": OverlapPolicy.QUEUE_ONE, **fields}
    )


async def create_schedule(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.create(db, nightly_definition(), scenario.author(), id=scenario.id("schedule"))


async def edit_schedule(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.edit(db, "Nightly", nightly_definition(description="in the night"), scenario.author())


def declare_schedule(text: str) -> Action:
    async def action(db: Database, scenario: Scenario) -> None:
        await schedule_definitions.declare(db, nightly_definition(description=text), scenario.author())

    return action


async def compute_missing_next_runs(db: Database, scenario: Scenario) -> None:
    await firing.compute_missing_next_runs(db, db.clock.now())


async def run_manually(db: Database, scenario: Scenario) -> None:
    await _run_now(db, scenario.id("manual"))


async def run_immediately(db: Database, scenario: Scenario) -> None:
    seen, request = await schedules.load_schedule(db, "Nightly"), scenario.id("immediate")
    assert seen is not None
    if await firing.try_run_immediately(db, seen, db.clock.now(), ACTOR, request) is None:
        await _run_now(db, request)


async def _run_now(db: Database, request: UUID) -> None:
    now = db.clock.now()
    await db.transaction(lambda c: firing.run_schedule(c, "Nightly", now, ACTOR, request_id=request))


async def fire_due_schedules(db: Database, scenario: Scenario) -> None:
    await firing.fire_due_schedules(db, db.clock.now(), "tester")


async def pause_execution(db: Database, scenario: Scenario) -> None:
    await execution_control.pause_execution(db, scenario.id("manual"), db.clock.now(), ACTOR)


async def retry_step(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.held[0])])


async def resume_execution(db: Database, scenario: Scenario) -> None:
    await execution_control.resume_execution(db, scenario.id("manual"), db.clock.now())


async def claim_more(db: Database, scenario: Scenario) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now(), state = 'queued' WHERE state = 'scheduled'")
    scenario.held += await claim(db, scenario.worker, 20)


async def claim_one(db: Database, scenario: Scenario) -> None:
    scenario.held = await claim(db, scenario.worker, 1)


async def finish_group(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in scenario.held[1:]])


async def finish_all(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in scenario.held])


async def start_queued_runs(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, db.clock.now(), "tester")


async def queue_unreadable_request(db: Database, scenario: Scenario) -> None:
    await db.transaction(
        lambda connection: firing.run_schedule(connection, "Nightly", db.clock.now(), ACTOR, request_id=new_id())
    )
    await db.fetch_all("UPDATE tenuto.occurrences SET request = '{}' WHERE decision = 'queued'")


async def give_up_unreadable_request(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, db.clock.now() + 2 * firing.UNREADABLE_REQUEST_KEPT_FOR, "tester")


async def pause_newest(db: Database, scenario: Scenario) -> None:
    await execution_control.pause_execution(db, await _newest_execution(scenario), db.clock.now(), ACTOR)


async def resume_newest(db: Database, scenario: Scenario) -> None:
    await execution_control.resume_execution(db, await _newest_execution(scenario), db.clock.now())


async def _newest_execution(scenario: Scenario) -> UUID:
    id: UUID = await scenario.db.fetch_value("SELECT id FROM tenuto.executions ORDER BY id DESC LIMIT 1")
    return id


async def cancel_newest(db: Database, scenario: Scenario) -> None:
    await execution_control.cancel_execution(db, await _newest_execution(scenario), db.clock.now(), ACTOR)


async def fail_all(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, task) for task in scenario.held])


async def repair(db: Database, scenario: Scenario) -> None:
    await repair_stuck_executions(db, db.clock.now())


async def let_steps_depend_on_each_other(db: Database, scenario: Scenario) -> None:
    first, slow = Step("job", "touch", name="first"), Step("job", "touch", name="slow")
    early = Step("job", "touch", {"x": str(first.output)}, "early", needs=(first.name,))
    skipped = Step("job", "touch", name="skipped", when=str(first.skipped))
    plan = Plan(((first, slow), (early, skipped)))
    await schedule_definitions.edit(db, "Nightly", replace(nightly_definition(), plan=plan), scenario.author())


async def run_dependent_steps(db: Database, scenario: Scenario) -> None:
    await _run_now(db, scenario.id("dependent"))


async def finish_one(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held[0])])


async def finish_rest(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in scenario.held[1:]])


async def disable_schedule(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.set_enabled(db, "Nightly", scenario.author(), enabled=False)


async def delete_schedule(db: Database, scenario: Scenario) -> None:
    await schedule_definitions.delete(db, "Nightly", scenario.author())


async def delete_old_executions(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await executions.delete_old_executions(db, cutoff, 100)
    await schedules.delete_old_ledger_entries(db, cutoff, 100)


MAKE_DUE = run_sql("UPDATE tenuto.schedules SET next_run_at = now() - interval '1 s'")
REMOVE_NEXT_RUN = run_sql("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL")
MAKE_STUCK = run_sql(
    "UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'queued' AND group_index = 0", violates_invariants=True
)
WAIT_FOR_MISSING = run_sql(
    "UPDATE tenuto.tasks SET state = 'waiting', waits_for = gen_random_uuid() WHERE state = 'queued'",
    violates_invariants=True,
)
ALLOW_VIOLATIONS = run_sql("SELECT 1", violates_invariants=True)
"""Old rows are deleted in parts (ledger entries, executions), so references are missing in between."""

EXECUTIONS: tuple[Action, ...] = (
    create_schedule, edit_schedule, declare_schedule("in the night"), declare_schedule("from code"),
    declare_schedule("from newer code"), REMOVE_NEXT_RUN, compute_missing_next_runs, run_immediately, cancel_newest,
    run_manually, MAKE_STUCK, repair, WAIT_FOR_MISSING, repair, Preparation(claim_tasks), MAKE_DUE,
    fire_due_schedules, pause_execution, retry_step, resume_execution, Preparation(claim_more), finish_group,
    Preparation(claim_tasks), finish_all, start_queued_runs, Preparation(claim_tasks), pause_newest, finish_all,
    resume_newest, MAKE_DUE, fire_due_schedules, Preparation(claim_one), Preparation(queue_unreadable_request),
    cancel_newest, fail_all, give_up_unreadable_request, let_steps_depend_on_each_other, run_dependent_steps,
    Preparation(claim_tasks), finish_one, finish_rest, Preparation(claim_tasks), finish_all, MAKE_DUE,
    disable_schedule, delete_schedule,
    ALLOW_VIOLATIONS, delete_old_executions,
)  # fmt: skip
