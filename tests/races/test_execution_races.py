"""Whatever two things happen to one execution at once, at whatever statement they meet: it stays sound and ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol
from uuid import UUID

import pytest

from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.lifecycle import execution_control, task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks, recover_tasks_of_worker
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.tasks import Deferral, Outcome, OutcomeStatus, Task, settle
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tenuto.store.executions import NextGroupClaim
from tests.races.execution_actions import (
    create_executions,
    create_plan,
    fail_permanently,
    run_to_end,
    violated_invariants,
)
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, LEASE, claim, complete, fail

pytestmark = pytest.mark.usefixtures("one_completion_path")

RegisterWorker = Callable[..., Awaitable[UUID]]


@dataclass
class Scenario:
    """An execution of two steps side by side, then one: the first two are held, or one of them is still free."""

    run: UUID
    worker: UUID
    other: UUID
    a: Task
    b: Task
    last: UUID
    cancelled: bool = False


class Action(Protocol):
    """Something that happens to the execution."""

    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


async def a_ends(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.a)])


async def b_ends(db: Database, scenario: Scenario) -> None:
    if scenario.b.worker_id is not None:
        await finish(db, [complete(db, scenario.b)])


async def both_end(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in (scenario.b, scenario.a) if task.worker_id is not None])


async def both_end_and_the_worker_goes_on(db: Database, scenario: Scenario) -> None:
    ended = [complete(db, task) for task in (scenario.b, scenario.a) if task.worker_id is not None]
    await finish(db, ended, NextGroupClaim(scenario.worker, LEASE, ["default"], 5))


async def a_fails_for_good(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, scenario.a)])


async def a_is_to_be_repeated(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.a)])


async def a_is_put_aside(db: Database, scenario: Scenario) -> None:
    now = db.clock.now()
    outcome = Outcome(
        OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(resume_at=now + timedelta(hours=1))
    )
    await finish(db, [settle(scenario.a, outcome, now, new_id)])


async def a_is_put_back(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.a])


async def cancel(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.run, db.clock.now(), ACTOR)
        scenario.cancelled = True


async def pause(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.pause_execution(db, scenario.run, db.clock.now(), ACTOR)


async def resume(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.resume_execution(db, scenario.run, db.clock.now())


async def sweeping(db: Database, scenario: Scenario) -> None:
    await recover_lost_tasks(db, db.clock.now())


async def recovering(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


async def repair(db: Database, scenario: Scenario) -> None:
    await repair_stuck_executions(db, db.clock.now())


async def claiming(db: Database, scenario: Scenario) -> None:
    await claim(db, scenario.other, 10)


async def a_is_cancelled(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await task_cancellation.cancel_task(db, scenario.a.id, ACTOR)


async def the_last_is_cancelled(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await task_cancellation.cancel_task(db, scenario.last, ACTOR)


ACTIONS: tuple[Action, ...] = (
    a_ends, b_ends, both_end, both_end_and_the_worker_goes_on, a_fails_for_good, a_is_to_be_repeated, a_is_put_aside,
    a_is_put_back, cancel, pause,
    resume, sweeping, recovering, repair, claiming, a_is_cancelled, the_last_is_cancelled,
)  # fmt: skip
SILENT = (claiming,)
"""One statement outside a transaction: nothing can happen in its middle."""


async def create_scenario(db: Database, worker: UUID, other: UUID, *, held: int, paused: bool) -> Scenario:
    (run,) = await create_executions(db, create_plan(2, 1))
    a, *rest = await claim(db, worker, held)
    rows = await db.fetch_all("SELECT id FROM tenuto.tasks WHERE id <> $1 ORDER BY group_index, id", a.id)
    b = rest[0] if rest else await store.load_task_to_cancel(db, rows[0]["id"])
    assert b is not None
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
    if paused:
        await execution_control.pause_execution(db, run, db.clock.now(), ACTOR)
    return Scenario(run, worker, other, a, b, rows[-1]["id"])


# (what happens, how many steps are held, whether the execution is paused): the others differ only in a word.
SCENARIOS = [
    *((action, 2, False) for action in ACTIONS if action not in SILENT),
    *((action, 1, False) for action in (a_ends, cancel, pause, sweeping)),
    *((action, 2, True) for action in (both_end, a_is_to_be_repeated, a_is_put_back, cancel, resume, sweeping)),
]


@pytest.mark.parametrize(("one", "held", "paused"), SCENARIOS, ids=lambda given: getattr(given, "__name__", given))
async def test_an_execution_stays_sound_and_ends_whatever_two_things_meet(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    register_worker: RegisterWorker,
    one: Action,
    held: int,
    paused: bool,
) -> None:
    worker, other = await register_worker(), await register_worker()
    for other_act in ACTIONS:
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker, other, held=held, paused=paused)

            await interleaving.run(partial(one, scenario=scenario), partial(other_act, scenario=scenario))

            assert await violated_invariants(second) == [], (other_act, interleaving)
            await resume(second, scenario)
            await run_to_end(second, other)
            assert await violated_invariants(second) == [], (other_act, interleaving)
            state = await second.fetch_value("SELECT state FROM tenuto.executions WHERE id = $1", scenario.run)
            assert (state == "cancelled") == scenario.cancelled, (other_act, interleaving)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs WHERE net = 'execution_stuck'") == 0
    assert first.deadlocks + second.deadlocks == 0


# --- a step that waits for an execution it has started ----------------------------------------------------------------


@dataclass
class Waiting(Scenario):
    """Step a of the two waits for the end of an execution of one step, which is held like b."""

    child: UUID = field(kw_only=True)
    last_of_child: Task = field(kw_only=True)


class Passes(Protocol):
    """Something that happens to the execution, or to the one that its step waits for."""

    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Waiting) -> None: ...


async def the_child_ends(db: Database, scenario: Waiting) -> None:
    await finish(db, [complete(db, scenario.last_of_child)])


async def the_child_fails(db: Database, scenario: Waiting) -> None:
    await finish(db, [fail_permanently(db, scenario.last_of_child)])


async def the_child_is_cancelled(db: Database, scenario: Waiting) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.child, db.clock.now(), ACTOR)


THE_END = (the_child_ends, the_child_fails, the_child_is_cancelled)
PASSES: tuple[Passes, ...] = (*THE_END, resume, pause, cancel, a_is_cancelled, b_ends, repair)


async def create_waiting_scenario(db: Database, worker: UUID, other: UUID, *, paused: bool) -> Waiting:
    (run,) = await create_executions(db, create_plan(2, 1))
    a, b = await claim(db, worker, 2)
    (child,) = await create_executions(db, create_plan(1), parent_task_id=a.id, origin="step")
    (last_of_child,) = await claim(db, worker)
    outcome = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=child))
    await finish(db, [settle(a, outcome, db.clock.now(), new_id)])
    if paused:
        await execution_control.pause_execution(db, run, db.clock.now(), ACTOR)
    last = await db.fetch_value("SELECT id FROM tenuto.tasks WHERE group_index = 1")
    return Waiting(run, worker, other, a, b, last, child=child, last_of_child=last_of_child)


@pytest.mark.parametrize("paused", [False, True], ids=["going on", "paused"])
@pytest.mark.parametrize("one", PASSES, ids=lambda given: getattr(given, "__name__", given))
async def test_a_step_that_waits_for_another_execution_goes_on_after_its_end_whatever_meets_it(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: RegisterWorker, one: Passes, paused: bool
) -> None:
    worker, other = await register_worker(), await register_worker()
    for other_act in PASSES if one in THE_END else THE_END:
        async for interleaving in interleavings(first, second):
            scenario = await create_waiting_scenario(second, worker, other, paused=paused)

            await interleaving.run(partial(one, scenario=scenario), partial(other_act, scenario=scenario))

            assert await violated_invariants(second) == [], (other_act, interleaving)
            await resume(second, scenario)
            await run_to_end(second, other)
            state = await second.fetch_value("SELECT state FROM tenuto.executions WHERE id = $1", scenario.run)
            assert (state == "cancelled") == scenario.cancelled, (other_act, interleaving)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs WHERE net <> 'execution_abandoned'") == 0
    assert first.deadlocks + second.deadlocks == 0
