"""A run by hand where nothing stands in the way is one statement; where anything does, it leaves the decision alone."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.definitions import schedule_definitions
from tenuto.ids import new_id
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Overlap
from tenuto.operations.schedules import definition
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import Started
from tenuto.store import executions, schedules
from tenuto.store.schedules import Schedule
from tests.support.model_values import NOON
from tests.support.schedules import ANA, NAME, a_definition, author, run_now, saved, table
from tests.support.waiting import eventually

ALONE = [overlap for overlap in Overlap if overlap is not Overlap.ALLOW]


async def seen(db: Database) -> Schedule:
    found = await schedules.named(db, NAME)
    assert found is not None
    return found


async def at_once(db: Database, schedule: Schedule, request: UUID | None = None) -> Started | None:
    return await firing.run_at_once(db, schedule, NOON, ANA, request or new_id())


async def nothing_began(db: Database, but: int = 0) -> None:
    for name in ("executions", "occurrences", "tasks"):
        assert len(await table(db, name)) == but, name


@pytest.mark.parametrize("overlap", Overlap)
async def test_it_leaves_what_the_longer_way_leaves(db: Database, overlap: Overlap) -> None:
    request, told = new_id(), []
    await saved(db, a_definition("a", ["b", "c"], overlap=overlap))
    for way in ("at once", "in a transaction"):
        if way == "at once":
            assert await at_once(db, await seen(db), request) == Started(Decision.FIRED, None, request)
        else:
            await db.transaction(lambda c: firing.run_now(c, NAME, NOON, ANA, request_id=request))
        rows = [
            {column: value for column, value in row.items() if column not in ("id", "activity_id")}
            for name in ("executions", "occurrences", "tasks", "schedules")
            for row in await table(db, name)
        ]
        told.append(sorted(rows, key=lambda row: str(row.get("step_index"))))
        for name in ("tasks", "executions", "occurrences"):
            await db.all(f"DELETE FROM tenuto.{name}")
    assert told[0] == told[1]
    assert [row["state"] for row in told[0] if row.get("group_index") is not None] == ["queued", "waiting", "waiting"]


async def test_a_schedule_that_has_changed_since_it_was_seen_is_looked_at_again(db: Database) -> None:
    await saved(db, a_definition("a"))
    before = await seen(db)
    await schedule_definitions.edit(db, NAME, a_definition("b"), author(NOON))
    assert await at_once(db, before) is None
    await nothing_began(db)


async def test_a_schedule_that_is_gone_is_not_run(db: Database) -> None:
    await saved(db, a_definition("a"))
    before = await seen(db)
    await schedule_definitions.delete(db, NAME, author(NOON))
    assert await at_once(db, before) is None
    await nothing_began(db)


@pytest.mark.parametrize("overlap", ALONE)
async def test_beside_one_that_runs_nothing_begins(db: Database, overlap: Overlap) -> None:
    """Also where that one need not have been alone, because the rule was another then: no key would refuse this one."""
    await saved(db, a_definition("a", overlap="allow"))
    assert await at_once(db, await seen(db)) is not None
    await schedule_definitions.edit(db, NAME, a_definition("a", overlap=overlap), author(NOON))
    assert await at_once(db, await seen(db)) is None
    await nothing_began(db, but=1)


async def test_what_waits_for_its_turn_is_not_overtaken(db: Database) -> None:
    await saved(db, a_definition("a", overlap="queue_one"))
    await run_now(db)
    assert (await run_now(db)).decision == "queued"
    await db.all("UPDATE tenuto.executions SET ended_at = now(), state = 'completed'")
    assert await at_once(db, await seen(db)) is None


async def test_where_runs_may_overlap_each_begins_at_once(db: Database) -> None:
    await saved(db, a_definition("a", overlap="allow"))
    schedule = await seen(db)
    assert [await at_once(db, schedule) is not None for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("overlap", ALONE)
async def test_of_two_at_the_same_moment_one_begins(db: Database, url: str, overlap: Overlap) -> None:
    """The second has looked before the first was there, and waits for it to let go of the schedule."""
    await saved(db, a_definition("a", overlap=overlap))
    schedule = await seen(db)
    other = await Database.open(url)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def first(connection: Connection) -> asyncio.Task[Started | None]:
        new = firing._by_hand(new_id(), schedule, schedule.plan, NOON, NOON, ANA)
        assert await connection.fetch(executions.SQL.begin_at_once, *executions._at_once(new))
        second = asyncio.create_task(at_once(other, schedule))
        await eventually(lambda: db.value(waits))
        return second

    second = await db.transaction(first)
    assert await second is None
    assert len(await table(db, "executions")) == 1
    await other.close()


async def test_a_request_that_is_repeated_is_answered_as_the_first_time(db: Database) -> None:
    await saved(db, a_definition("a", overlap="allow"))
    request = new_id()
    first = await run_now(db, request_id=request)
    assert await at_once(db, await seen(db), request) is None
    assert await run_now(db, request_id=request) == first
    await nothing_began(db, but=1)


async def test_an_app_that_has_run_a_schedule_runs_it_as_it_is_now(app: Tenuto) -> None:
    @app.job
    async def one() -> None: ...

    @app.job
    async def another() -> None: ...

    async def steps() -> list[str]:
        started = await app.schedules.run("Changing")
        assert started.execution_id is not None
        return [step["target"] for step in (await app.executions.get(started.execution_id))["steps"]]

    await app.schedules.create(definition("Changing", manual(), [Step.job(one)], overlap="allow"))
    assert await steps() == await steps() == ["one"]
    await app.schedules.edit("Changing", definition("Changing", manual(), [Step.job(another)], overlap="allow"))
    assert await steps() == await steps() == ["another"]
