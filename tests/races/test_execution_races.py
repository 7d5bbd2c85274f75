"""Two concurrent actions on one execution, interleaved at every statement: it stays sound and ends."""

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
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Task, settle
from tenuto.postgres.database import Database
from tenuto.store.work import tasks as store
from tenuto.store.work.executions import NextGroupClaim
from tests.races.execution_actions import (
    create_executions,
    create_plan,
    fail_permanently,
    run_to_end,
    violated_invariants,
)
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.task_actions import ACTOR, LEASE, claim, complete, fail

pytestmark = [pytest.mark.usefixtures("one_completion_path"), pytest.mark.slow]

RegisterWorker = Callable[..., Awaitable[UUID]]


@dataclass
class Scenario:
    """An execution of two parallel steps, then one: the first two are held, or one of them is claimable."""

    run: UUID
    worker: UUID
    other_worker: UUID
    held_a: Task
    held_b: Task
    last_step: UUID
    allowed_cancelled: bool = False


class Action(Protocol):
    """An action on the execution."""

    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


async def finish_a(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held_a)])


async def finish_b(db: Database, scenario: Scenario) -> None:
    if scenario.held_b.worker_id is not None:
        await finish(db, [complete(db, scenario.held_b)])


async def finish_both(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in (scenario.held_b, scenario.held_a) if task.worker_id is not None])


async def finish_both_and_claim_next(db: Database, scenario: Scenario) -> None:
    ended = [complete(db, task) for task in (scenario.held_b, scenario.held_a) if task.worker_id is not None]
    await finish(db, ended, NextGroupClaim(scenario.worker, LEASE, ["default"], 5))


async def fail_a_permanently(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, scenario.held_a)])


async def retry_a(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.held_a)])


async def defer_a(db: Database, scenario: Scenario) -> None:
    now = db.clock.now()
    outcome = Outcome(
        OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(resume_at=now + timedelta(hours=1))
    )
    await finish(db, [settle(scenario.held_a, outcome, now, new_id)])


async def return_a_to_queue(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.held_a])


async def cancel(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.run, db.clock.now(), ACTOR)
        scenario.allowed_cancelled = True


async def pause(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.pause_execution(db, scenario.run, db.clock.now(), ACTOR)


async def resume(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await execution_control.resume_execution(db, scenario.run, db.clock.now())


async def recover_lost(db: Database, scenario: Scenario) -> None:
    await recover_lost_tasks(db, db.clock.now())


async def recover_own(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


async def repair(db: Database, scenario: Scenario) -> None:
    await repair_stuck_executions(db, db.clock.now())


async def claim_next(db: Database, scenario: Scenario) -> None:
    await claim(db, scenario.other_worker, 10)


async def cancel_a(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await task_cancellation.cancel_task(db, scenario.held_a.id, ACTOR)


async def cancel_last(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict, NotFound):
        await task_cancellation.cancel_task(db, scenario.last_step, ACTOR)


ACTIONS: tuple[Action, ...] = (
    finish_a, finish_b, finish_both, finish_both_and_claim_next, fail_a_permanently, retry_a, defer_a,
    return_a_to_queue, cancel, pause, resume, recover_lost, recover_own, repair, claim_next, cancel_a, cancel_last,
)  # fmt: skip
SINGLE_STATEMENT = (claim_next,)
"""One statement outside a transaction, so nothing can be interleaved."""


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


# (action, number of held steps, whether the execution is paused); other combinations run the same statements.
SCENARIOS = [
    *((action, 2, False) for action in ACTIONS if action not in SINGLE_STATEMENT),
    *((action, 1, False) for action in (finish_a, cancel, pause, recover_lost)),
    *((action, 2, True) for action in (finish_both, retry_a, return_a_to_queue, cancel, resume, recover_lost)),
]


@pytest.mark.parametrize(("one", "held", "paused"), SCENARIOS, ids=lambda given: getattr(given, "__name__", given))
async def test_execution_stays_sound_and_ends_under_any_two_concurrent_actions(
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
            assert (state == "cancelled") == scenario.allowed_cancelled, (other_act, interleaving)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs WHERE net = 'execution_stuck'") == 0
    assert first.deadlocks + second.deadlocks == 0


# --- a step that waits for a child execution
# --------------------------------------------------------------------------


@dataclass
class WaitingScenario(Scenario):
    """Step a waits for the end of a child execution of one step, which is held like b."""

    child: UUID = field(kw_only=True)
    last_of_child: Task = field(kw_only=True)


class WaitingAction(Protocol):
    """An action on the execution or on its child execution."""

    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: WaitingScenario) -> None: ...


async def finish_child(db: Database, scenario: WaitingScenario) -> None:
    await finish(db, [complete(db, scenario.last_of_child)])


async def fail_child(db: Database, scenario: WaitingScenario) -> None:
    await finish(db, [fail_permanently(db, scenario.last_of_child)])


async def cancel_child(db: Database, scenario: WaitingScenario) -> None:
    with suppress(Conflict):
        await execution_control.cancel_execution(db, scenario.child, db.clock.now(), ACTOR)


CHILD_ENDS = (finish_child, fail_child, cancel_child)
WAITING_ACTIONS: tuple[WaitingAction, ...] = (*CHILD_ENDS, resume, pause, cancel, cancel_a, finish_b, repair)


async def create_waiting_scenario(db: Database, worker: UUID, other: UUID, *, paused: bool) -> WaitingScenario:
    (run,) = await create_executions(db, create_plan(2, 1))
    a, b = await claim(db, worker, 2)
    (child,) = await create_executions(db, create_plan(1), parent_task_id=a.id, origin="step")
    (last_of_child,) = await claim(db, worker)
    outcome = Outcome(OutcomeStatus.COMPLETED, deferral=Deferral(execution_id=child))
    await finish(db, [settle(a, outcome, db.clock.now(), new_id)])
    if paused:
        await execution_control.pause_execution(db, run, db.clock.now(), ACTOR)
    last = await db.fetch_value("SELECT id FROM tenuto.tasks WHERE group_index = 1")
    return WaitingScenario(run, worker, other, a, b, last, child=child, last_of_child=last_of_child)


@pytest.mark.parametrize("paused", [False, True], ids=["going on", "paused"])
@pytest.mark.parametrize("one", WAITING_ACTIONS, ids=lambda given: getattr(given, "__name__", given))
async def test_step_that_waits_for_a_child_execution_continues_after_its_end_under_concurrent_actions(
    first: InterleavedDatabase,
    second: InterleavedDatabase,
    register_worker: RegisterWorker,
    one: WaitingAction,
    paused: bool,
) -> None:
    worker, other = await register_worker(), await register_worker()
    for other_act in WAITING_ACTIONS if one in CHILD_ENDS else CHILD_ENDS:
        async for interleaving in interleavings(first, second):
            scenario = await create_waiting_scenario(second, worker, other, paused=paused)

            await interleaving.run(partial(one, scenario=scenario), partial(other_act, scenario=scenario))

            assert await violated_invariants(second) == [], (other_act, interleaving)
            await resume(second, scenario)
            await run_to_end(second, other)
            state = await second.fetch_value("SELECT state FROM tenuto.executions WHERE id = $1", scenario.run)
            assert (state == "cancelled") == scenario.allowed_cancelled, (other_act, interleaving)
    assert await second.fetch_value("SELECT count(*) FROM tenuto.repairs WHERE net <> 'execution_abandoned'") == 0
    assert first.deadlocks + second.deadlocks == 0
