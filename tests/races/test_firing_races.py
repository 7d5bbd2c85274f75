"""Two concurrent actions on one schedule, interleaved at every statement: every due instant is decided once,
executions obey the overlap policy, and no run waits forever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol
from uuid import UUID

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.triggers import every
from tenuto.model.work.tasks import Task
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing, schedule_step
from tenuto.service.quarantine import Quarantine
from tenuto.store.definitions import schedules
from tests.races.execution_actions import create_executions, create_plan, run_to_end, violated_invariants
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, complete

pytestmark = pytest.mark.slow
RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = "a schedule"
CREATED_AT = datetime(2026, 3, 2, 11, 59, 30, tzinfo=UTC)
DUE_AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NOW = DUE_AT + timedelta(seconds=5)


@dataclass
class Scenario:
    """A schedule that is due while an earlier execution is active, and a step of another execution that calls it."""

    schedule: UUID
    run: UUID
    held: Task
    step: Task
    quarantine: Quarantine = field(default_factory=firing.new_quarantine)


class Action(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


def change_context(reason: str | None = None) -> ChangeContext:
    return ChangeContext(ACTOR, NOW, reason)


def definition(overlap: OverlapPolicy, interval: str = "1m") -> ScheduleDefinition:
    return ScheduleDefinition(
        NAME, every(interval), create_plan(1, 1), overlap=overlap, misfire=Misfire(MisfirePolicy.ALL)
    )


async def fire_due_schedules(db: Database, scenario: Scenario) -> None:
    await firing.fire_due_schedules(db, NOW, "a scheduler", scenario.quarantine)


async def start_queued_runs(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, NOW, "a scheduler")


async def run_manually(db: Database, scenario: Scenario) -> None:
    await _run_now(db, new_id())


async def _run_now(db: Database, request: UUID) -> None:
    async def action(connection: Connection) -> None:
        await firing.run_schedule(connection, NAME, NOW, ACTOR, request_id=request)

    with suppress(NotFound):
        await db.transaction(action)


async def run_immediately(db: Database, scenario: Scenario) -> None:
    seen, request = await schedules.load_schedule(db, NAME), new_id()
    if seen is None or await firing.try_run_immediately(db, seen, NOW, ACTOR, request) is None:
        await _run_now(db, request)


async def disable(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await schedule_definitions.set_enabled(db, NAME, change_context(), enabled=False)


async def enable(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await schedule_definitions.set_enabled(db, NAME, change_context(), enabled=True)


async def edit(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        present = await schedule_definitions.get(db, NAME)
        await schedule_definitions.edit(db, NAME, definition(present.definition.overlap, "2m"), change_context())


async def delete(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound, Conflict):
        await schedule_definitions.delete(db, NAME, change_context())


async def cancel(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.run, NOW, ACTOR)


async def finish_run(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held)])


async def start_call_step(db: Database, scenario: Scenario) -> None:
    async def action(connection: Connection) -> UUID:
        return await schedule_step._start_child(connection, db, Context(scenario.step))

    with suppress(PermanentFailure):
        await db.transaction(action)


async def cancel_call_step(db: Database, scenario: Scenario) -> None:
    assert scenario.step.execution_id is not None
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.step.execution_id, NOW, ACTOR)


async def retry_execution(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await execution_control.retry_execution(db, scenario.run, NOW, ACTOR)


ACTIONS: tuple[Action, ...] = (
    fire_due_schedules, start_queued_runs, run_manually, run_immediately, disable, enable, edit, delete, cancel,
    finish_run, start_call_step, cancel_call_step, retry_execution,
)  # fmt: skip


async def create_scenario(db: Database, worker: UUID, overlap: OverlapPolicy) -> Scenario:
    schedule = await schedule_definitions.create(db, definition(overlap), ChangeContext(ACTOR, CREATED_AT))
    (outer,) = await create_executions(db, create_plan(1, kind="schedule"))
    await db.fetch_all("UPDATE tenuto.tasks SET name = $1", NAME)
    (step,) = await claim(db, worker)
    assert step.execution_id == outer
    alone = overlap is not OverlapPolicy.ALLOW
    (run,) = await create_executions(db, create_plan(1), schedule_id=schedule.id, schedule_name=NAME, alone=alone)
    (held,) = await claim(db, worker)
    assert schedule.next_run_at == DUE_AT
    return Scenario(schedule.id, run, held, step)


async def assert_settled(db: Database, scenario: Scenario, worker: UUID) -> None:
    """Run a scheduler and a worker until no task is left; then the due instant has one ledger entry and no run is
    queued.
    """
    await fire_due_schedules(db, scenario)
    assert scenario.quarantine.rows == set()
    decided = "SELECT count(*) FROM tenuto.occurrences WHERE origin = 'trigger' AND due_at = $1"
    assert await db.fetch_value(decided, DUE_AT) == 1
    for _ in range(10):
        await run_to_end(db, worker)
        if not await firing.start_queued_runs(db, NOW, "a scheduler"):
            break
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE decision = 'queued'") == 0


async def truncate(db: Database) -> None:
    for table in ("schedules", "occurrences", "executions", "tasks"):
        await db.fetch_all(f"DELETE FROM tenuto.{table}")


# Where policies run the same statements, one of them is tested for the others.
FIRING = (fire_due_schedules, start_queued_runs, run_manually, run_immediately, cancel, finish_run)
SCENARIOS = [
    *((action, OverlapPolicy.SKIP) for action in ACTIONS),
    *(
        (action, OverlapPolicy.QUEUE_ONE)
        for action in (fire_due_schedules, start_queued_runs, run_manually, finish_run)
    ),
    *((action, OverlapPolicy.CANCEL_PREVIOUS) for action in (fire_due_schedules, run_manually)),
    (fire_due_schedules, OverlapPolicy.ALLOW),
]


@pytest.mark.parametrize(("one", "overlap"), SCENARIOS, ids=lambda given: getattr(given, "__name__", given))
async def test_due_instant_is_decided_once_under_any_concurrent_action(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    register_worker: RegisterWorker,
    one: Action,
    overlap: OverlapPolicy,
) -> None:
    worker = await register_worker()
    for other in ACTIONS if overlap is OverlapPolicy.SKIP else (*FIRING, disable, start_call_step):
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker, overlap)

            await interleaving.run(partial(one, scenario=scenario), partial(other, scenario=scenario))

            assert await violated_invariants(second) == [], (other, interleaving)
            await assert_settled(second, scenario, worker)
            assert await violated_invariants(second) == [], (other, interleaving)
            await truncate(second)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs") == 0
    assert first.deadlocks + second.deadlocks == 0
