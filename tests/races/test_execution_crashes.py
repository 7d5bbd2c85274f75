"""Whoever fires, advances, cancels or repairs dies before any statement it sends: all is sound, and is done in the end.

A death before the n-th statement is a transaction that is never committed; n goes up until the action comes to its end.
A reply that is lost after the commit is the other half: the action is done a second time, and must not be done twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from uuid import UUID

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned import ChangeContext
from tenuto.lifecycle import execution_control
from tenuto.model.schedules import Misfire, MisfirePolicy, OverlapPolicy, ScheduleDefinition
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
    """The process is gone: nobody catches this."""


@pytest.fixture
async def crashable(url: str) -> AsyncIterator[InterleavedDatabase]:
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


async def dies(database: InterleavedDatabase, action: Callable[[Database], Awaitable[object]], place: int) -> bool:
    """Let somebody do this and die before the n-th statement; False if he was done by then."""
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


async def loses_replies(database: InterleavedDatabase, action: Callable[[Database], Awaitable[object]]) -> None:
    """Let somebody do this whose first commits go unanswered."""
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
async def test_who_moves_an_execution_may_die_before_any_statement(
    db: Database, crashable: InterleavedDatabase, register_worker: RegisterWorker, action: of_executions.Action
) -> None:
    worker, other = await register_worker(), await register_worker()
    place = 1
    while True:
        scenario = await of_executions.create_scenario(db, worker, other, held=2, paused=action is of_executions.resume)
        died = await dies(crashable, partial(action, scenario=scenario), place)

        assert await violated_invariants(db) == [], place
        scenario.cancelled = False
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
async def test_who_fires_a_schedule_may_die_before_any_statement(
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
        died = await dies(crashable, partial(action, scenario=scenario), place)

        assert await violated_invariants(db) == [], place
        await of_firing.settled(db, scenario, worker)
        assert await violated_invariants(db) == [], place
        await of_firing.clear(db)
        if not died:
            return
        place += 1


@pytest.mark.parametrize(
    ("action", "overlap"), of_firing.SCENARIOS, ids=lambda given: getattr(given, "__name__", given)
)
async def test_what_was_committed_without_a_reply_is_not_done_twice(
    db: Database,
    crashable: InterleavedDatabase,
    register_worker: RegisterWorker,
    action: of_firing.Action,
    overlap: OverlapPolicy,
) -> None:
    worker = await register_worker()
    scenario = await of_firing.create_scenario(db, worker, overlap)
    await loses_replies(crashable, partial(action, scenario=scenario))

    assert await violated_invariants(db) == []
    by_hand = await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE origin = 'manual'")
    assert by_hand == (action in (of_firing.run_by_hand, of_firing.run_at_once))
    await of_firing.settled(db, scenario, worker)
    assert await violated_invariants(db) == []


async def test_whoever_cancels_or_pauses_is_told_so_though_the_first_reply_was_lost(
    db: Database, crashable: InterleavedDatabase, register_worker: RegisterWorker
) -> None:
    worker = await register_worker()
    scenario = await of_executions.create_scenario(db, worker, worker, held=2, paused=False)
    now = db.clock.now()

    await loses_replies(
        crashable, lambda database: execution_control.pause_execution(database, scenario.run, now, ACTOR)
    )
    await loses_replies(
        crashable, lambda database: execution_control.cancel_execution(database, scenario.run, now, ACTOR)
    )

    assert await db.fetch_value("SELECT state FROM tenuto.executions") == "cancelled"


async def test_a_batch_of_due_schedules_is_fired_as_a_whole_or_not_at_all(
    db: Database, crashable: InterleavedDatabase
) -> None:
    for number in range(30):
        await schedule_definitions.create(
            db,
            ScheduleDefinition(
                f"schedule {number}", every("1m"), create_plan(2, 1), misfire=Misfire(MisfirePolicy.ALL)
            ),
            ChangeContext(ACTOR, of_firing.CREATED),
        )
    place = 1
    while await dies(crashable, lambda db: firing.fire_due_schedules(db, of_firing.NOW, "a scheduler"), place):
        for table in ("occurrences", "executions", "tasks"):
            assert await db.fetch_value(f"SELECT count(*) FROM tenuto.{table}") == 0
        place += 1
    assert place >= 7
    assert await violated_invariants(db) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto.occurrences WHERE decision = 'fired'") == 30
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 90
