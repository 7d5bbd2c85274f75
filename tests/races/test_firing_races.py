"""Whatever two things happen to one schedule at once, at whatever statement they meet: every due instant is decided
once, what runs runs by the rule, and nothing waits for ever."""

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
from tenuto.definitions.versioned import ChangeContext
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.lifecycle import execution_control
from tenuto.lifecycle.completion import finish
from tenuto.model.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.tasks import Task
from tenuto.model.triggers import every
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing, schedule_step
from tenuto.service.quarantine import Quarantine
from tenuto.store import schedules
from tests.races.execution_actions import create_executions, create_plan, run_to_end, violated_invariants
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, claim, complete

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = "a schedule"
CREATED = datetime(2026, 3, 2, 11, 59, 30, tzinfo=UTC)
DUE = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NOW = DUE + timedelta(seconds=5)


@dataclass
class Scenario:
    """A schedule that is due while an earlier run of it is active, and a step of another that wants to run it."""

    schedule: UUID
    run: UUID
    held: Task
    step: Task
    quarantine: Quarantine = field(default_factory=firing.new_quarantine)


class Action(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


def by(reason: str | None = None) -> ChangeContext:
    return ChangeContext(ACTOR, NOW, reason)


def definition(overlap: OverlapPolicy, interval: str = "1m") -> ScheduleDefinition:
    return ScheduleDefinition(
        NAME, every(interval), create_plan(1, 1), overlap=overlap, misfire=Misfire(MisfirePolicy.ALL)
    )


async def fire(db: Database, scenario: Scenario) -> None:
    await firing.fire_due_schedules(db, NOW, "a scheduler", scenario.quarantine)


async def take_turns(db: Database, scenario: Scenario) -> None:
    await firing.start_queued_runs(db, NOW, "a scheduler")


async def run_by_hand(db: Database, scenario: Scenario) -> None:
    await _run_now(db, new_id())


async def _run_now(db: Database, request: UUID) -> None:
    async def action(connection: Connection) -> None:
        await firing.run_schedule(connection, NAME, NOW, ACTOR, request_id=request)

    with suppress(NotFound):
        await db.transaction(action)


async def run_at_once(db: Database, scenario: Scenario) -> None:
    seen, request = await schedules.load_schedule(db, NAME), new_id()
    if seen is None or await firing.try_run_immediately(db, seen, NOW, ACTOR, request) is None:
        await _run_now(db, request)


async def disable(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await schedule_definitions.set_enabled(db, NAME, by(), enabled=False)


async def enable(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await schedule_definitions.set_enabled(db, NAME, by(), enabled=True)


async def edit(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        present = await schedule_definitions.get(db, NAME)
        await schedule_definitions.edit(db, NAME, definition(present.definition.overlap, "2m"), by())


async def delete(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound, Conflict):
        await schedule_definitions.delete(db, NAME, by())


async def cancel(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.run, NOW, ACTOR)


async def the_run_ends(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held)])


async def the_step_begins(db: Database, scenario: Scenario) -> None:
    async def action(connection: Connection) -> UUID:
        return await schedule_step._start_child(connection, db, Context(scenario.step))

    with suppress(PermanentFailure):
        await db.transaction(action)


async def the_step_is_cancelled(db: Database, scenario: Scenario) -> None:
    assert scenario.step.execution_id is not None
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.step.execution_id, NOW, ACTOR)


async def retry(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await execution_control.retry_execution(db, scenario.run, NOW, ACTOR)


ACTIONS: tuple[Action, ...] = (
    fire, take_turns, run_by_hand, run_at_once, disable, enable, edit, delete, cancel, the_run_ends, the_step_begins,
    the_step_is_cancelled, retry,
)  # fmt: skip


async def create_scenario(db: Database, worker: UUID, overlap: OverlapPolicy) -> Scenario:
    schedule = await schedule_definitions.create(db, definition(overlap), ChangeContext(ACTOR, CREATED))
    (outer,) = await create_executions(db, create_plan(1, kind="schedule"))
    await db.fetch_all("UPDATE tenuto.tasks SET name = $1", NAME)
    (step,) = await claim(db, worker)
    assert step.execution_id == outer
    alone = overlap is not OverlapPolicy.ALLOW
    (run,) = await create_executions(db, create_plan(1), schedule_id=schedule.id, schedule_name=NAME, alone=alone)
    (held,) = await claim(db, worker)
    assert schedule.next_run_at == DUE
    return Scenario(schedule.id, run, held, step)


async def settled(db: Database, scenario: Scenario, worker: UUID) -> None:
    """A scheduler and a worker go on as usual until nothing is left: the instant that was due has been decided, by one
    row, and no run waits for a turn that does not come."""
    await fire(db, scenario)
    assert scenario.quarantine.rows == set()
    decided = "SELECT count(*) FROM tenuto.occurrences WHERE origin = 'trigger' AND due_at = $1"
    assert await db.fetch_value(decided, DUE) == 1
    for _ in range(10):
        await run_to_end(db, worker)
        if not await firing.start_queued_runs(db, NOW, "a scheduler"):
            break
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE decision = 'queued'") == 0


async def clear(db: Database) -> None:
    for table in ("schedules", "occurrences", "executions", "tasks"):
        await db.fetch_all(f"DELETE FROM tenuto.{table}")


# Where the rules differ only in a word, one of them stands for the others.
FIRING = (fire, take_turns, run_by_hand, run_at_once, cancel, the_run_ends)
SCENARIOS = [
    *((action, OverlapPolicy.SKIP) for action in ACTIONS),
    *((action, OverlapPolicy.QUEUE_ONE) for action in (fire, take_turns, run_by_hand, the_run_ends)),
    *((action, OverlapPolicy.CANCEL_PREVIOUS) for action in (fire, run_by_hand)),
    (fire, OverlapPolicy.ALLOW),
]


@pytest.mark.parametrize(("one", "overlap"), SCENARIOS, ids=lambda given: getattr(given, "__name__", given))
async def test_a_due_instant_is_decided_once_whatever_meets_it(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    register_worker: RegisterWorker,
    one: Action,
    overlap: OverlapPolicy,
) -> None:
    worker = await register_worker()
    for other in ACTIONS if overlap is OverlapPolicy.SKIP else (*FIRING, disable, the_step_begins):
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker, overlap)

            await interleaving.run(partial(one, scenario=scenario), partial(other, scenario=scenario))

            assert await violated_invariants(second) == [], (other, interleaving)
            await settled(second, scenario, worker)
            assert await violated_invariants(second) == [], (other, interleaving)
            await clear(second)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs") == 0
    assert first.deadlocks + second.deadlocks == 0
