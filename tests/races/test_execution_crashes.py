"""A process that fires, advances, cancels or repairs crashes before any statement: invariants hold, and the work
completes in the end.

A crash before the n-th statement is a transaction that is never committed; n grows until the action completes. The
other half is a reply lost after the commit: the action is repeated and must take effect once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from uuid import UUID

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.lifecycle import execution_control
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tests.races import test_execution_races as of_executions
from tests.races import test_firing_races as of_firing
from tests.races.execution_actions import create_plan, run_to_end, violated_invariants
from tests.races.interleaving import InterleavedDatabase
from tests.races.task_actions import ACTOR

RegisterWorker = Callable[..., Awaitable[UUID]]


class SimulatedCrash(BaseException):
    """The simulated process is gone; only the test catches this."""


@pytest.fixture
async def crashable(url: str) -> AsyncIterator[InterleavedDatabase]:
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


async def crashes_before(
    database: InterleavedDatabase, action: Callable[[Database], Awaitable[object]], place: int
) -> bool:
    """Run an action and crash before the n-th statement; return False if the action completed first."""
    seen = 0

    async def before() -> None:
        nonlocal seen
        seen += 1
        if seen == place:
            raise SimulatedCrash

    database.before = before
    try:
        await action(database)
    except SimulatedCrash:
        return True
    finally:
        database.before = database.nothing
    return False


async def run_with_lost_replies(database: InterleavedDatabase, action: Callable[[Database], Awaitable[object]]) -> None:
    """Run an action whose first commits are not acknowledged."""
    left = 1

    async def after() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ConnectionResetError("the reply is lost")

    database.after_commit = after
    try:
        await action(database)
    finally:
        database.after_commit = database.nothing


@pytest.mark.parametrize("action", of_executions.ACTIONS, ids=lambda action: action.__name__)
async def test_process_advancing_an_execution_may_crash_before_any_statement(
    db: Database, crashable: InterleavedDatabase, register_worker: RegisterWorker, action: of_executions.Action
) -> None:
    worker, other = await register_worker(), await register_worker()
    place = 1
    while True:
        scenario = await of_executions.create_scenario(db, worker, other, held=2, paused=action is of_executions.resume)
        died = await crashes_before(crashable, partial(action, scenario=scenario), place)

        assert await violated_invariants(db) == [], place
        scenario.allowed_cancelled = False
        await action(db, scenario)
        await of_executions.resume(db, scenario)
        await run_to_end(db, other)
        assert await violated_invariants(db) == [], place
        if not died:
            break
        place += 1
    assert await db.fetch_value("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL") == 0
    assert await db.fetch_value("SELECT count(*) FROM tenuto.repairs WHERE net = 'execution_stuck'") == 0


@pytest.mark.parametrize(
    ("action", "overlap"), of_firing.SCENARIOS, ids=lambda given: getattr(given, "__name__", given)
)
async def test_scheduler_firing_a_schedule_may_crash_before_any_statement(
    db: Database,
    crashable: InterleavedDatabase,
    register_worker: RegisterWorker,
    action: of_firing.Action,
    overlap: OverlapPolicy,
) -> None:
    worker = await register_worker()
    place = 1
    while True:
        scenario = await of_firing.create_scenario(db, worker, overlap)
        died = await crashes_before(crashable, partial(action, scenario=scenario), place)

        assert await violated_invariants(db) == [], place
        await of_firing.assert_settled(db, scenario, worker)
        assert await violated_invariants(db) == [], place
        await of_firing.truncate(db)
        if not died:
            return
        place += 1


@pytest.mark.parametrize(
    ("action", "overlap"), of_firing.SCENARIOS, ids=lambda given: getattr(given, "__name__", given)
)
async def test_firing_with_lost_commit_reply_takes_effect_once(
    db: Database,
    crashable: InterleavedDatabase,
    register_worker: RegisterWorker,
    action: of_firing.Action,
    overlap: OverlapPolicy,
) -> None:
    worker = await register_worker()
    scenario = await of_firing.create_scenario(db, worker, overlap)
    await run_with_lost_replies(crashable, partial(action, scenario=scenario))

    assert await violated_invariants(db) == []
    by_hand = await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE origin = 'manual'")
    assert by_hand == (action in (of_firing.run_manually, of_firing.run_immediately))
    await of_firing.assert_settled(db, scenario, worker)
    assert await violated_invariants(db) == []


async def test_cancel_and_pause_with_lost_reply_report_success(
    db: Database, crashable: InterleavedDatabase, register_worker: RegisterWorker
) -> None:
    worker = await register_worker()
    scenario = await of_executions.create_scenario(db, worker, worker, held=2, paused=False)
    now = db.clock.now()

    await run_with_lost_replies(
        crashable, lambda database: execution_control.pause_execution(database, scenario.run, now, ACTOR)
    )
    await run_with_lost_replies(
        crashable, lambda database: execution_control.cancel_execution(database, scenario.run, now, ACTOR)
    )

    assert await db.fetch_value("SELECT state FROM tenuto.executions") == "cancelled"


async def test_batch_of_due_schedules_fires_completely_or_not_at_all(
    db: Database, crashable: InterleavedDatabase
) -> None:
    for number in range(30):
        await schedule_definitions.create(
            db,
            ScheduleDefinition(
                f"schedule {number}", every("1m"), create_plan(2, 1), misfire=Misfire(MisfirePolicy.ALL)
            ),
            ChangeContext(ACTOR, of_firing.CREATED_AT),
        )
    place = 1
    while await crashes_before(
        crashable, lambda db: firing.fire_due_schedules(db, of_firing.NOW, "a scheduler"), place
    ):
        for table in ("occurrences", "executions", "tasks"):
            assert await db.fetch_value(f"SELECT count(*) FROM tenuto.{table}") == 0
        place += 1
    assert place >= 7
    assert await violated_invariants(db) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE decision = 'fired'") == 30
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 90
