"""Runs that begin while other transactions lock runs and systems: none of them ends with a deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.errors import StaleLease
from tenuto.ids import new_id
from tenuto.jobs.context import Context
from tenuto.postgres.database import Connection, Database
from tenuto_identity.runs.run_lifecycle import BegunRun, RunRequest, begin_run
from tenuto_identity.store import runs, transaction_settings
from tests.identity.scenario_site import OPEN_RUN, Site
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.support.model_values import make_held_task
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
HELD = {"run": str(new_id()), "message": "too many deletions"}


@pytest.fixture
async def first(url: str) -> AsyncIterator[InterleavedDatabase]:
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


@pytest.fixture
async def second(url: str) -> AsyncIterator[InterleavedDatabase]:
    database = await InterleavedDatabase.at(url)
    yield database
    await database.close()


async def begin(database: Database, task_id: UUID, profile: str, fence: int = 1) -> BegunRun | runs.OpenRun:
    """Begin a run of HR as an attempt of a task."""
    assert isinstance(database, InterleavedDatabase)
    ctx = Context(make_held_task(id=task_id, fence=fence))
    async with database.watched_connection() as connection:
        return await begin_run(connection, ctx, RunRequest("HR", profile), database.clock.now())


async def open_run(site: Site, task_id: UUID, system_number: int, kind: str) -> UUID:
    """Insert an open run; return its id."""
    database = await site.database()
    rows = await database.write_all(f"{OPEN_RUN} RETURNING id", task_id, system_number, kind, kind)
    return UUID(str(rows[0]["id"]))


async def remove_runs(site: Site) -> None:
    database = await site.database()
    await database.write_all("DELETE FROM tenuto_identity.runs")
    await database.write_all("UPDATE tenuto_identity.systems SET held = NULL")


@pytest.mark.parametrize("page_is_first", [True, False], ids=["begins during the page", "page during the begin"])
@pytest.mark.parametrize("is_later_attempt", [True, False], ids=["later attempt", "other task"])
async def test_run_begins_while_a_page_holds_its_system(
    site: Site, first: InterleavedDatabase, second: InterleavedDatabase, page_is_first: bool, is_later_attempt: bool
) -> None:
    await site.apply(site.definitions())
    count = 0
    async for interleaving in interleavings(first, second):
        await remove_runs(site)
        owner = await site.waiting_task()
        run_id = await open_run(site, owner, 1, "full_import")

        async def hold(database: Database, run_id: UUID = run_id) -> bool:
            async def write(connection: Connection) -> None:
                await transaction_settings.prepare(connection)
                await runs.begin_fenced_page(connection, run_id, 1, 1)
                await runs.hold_system_if_free(connection, 1, HELD)

            try:
                await database.transaction(write)
            except StaleLease:
                return False
            return True

        async def start(database: Database, owner: UUID = owner) -> bool:
            if is_later_attempt:
                return isinstance(await begin(database, owner, "Full Import", fence=2), BegunRun)
            return isinstance(await begin(database, new_id(), "Full Import"), BegunRun)

        results = await interleaving.run(*((hold, start) if page_is_first else (start, hold)))
        is_held, has_begun = results if page_is_first else reversed(results)
        assert has_begun is is_later_attempt, interleaving
        assert is_held or is_later_attempt, interleaving
        count += 1
    assert count > 3
    assert (first.deadlocks, second.deadlocks) == (0, 0)


async def test_runs_that_begin_together_end_different_abandoned_runs(
    site: Site, first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    await site.apply(site.definitions())
    count = 0
    async for interleaving in interleavings(first, second):
        await remove_runs(site)
        await open_run(site, new_id(), 1, "full_import")
        task = await site.waiting_task()
        await open_run(site, task, 3, "full_sync")

        async def start(database: Database) -> Any:
            return await begin(database, new_id(), "Full Sync")

        async def cancel_and_start(database: Database, task: UUID = task) -> Any:
            await site.app.one_shots.cancel(task)
            return await begin(database, new_id(), "Delta Sync")

        results = await interleaving.run(start, cancel_and_start)
        assert any(isinstance(each, BegunRun) for each in results), interleaving
        count += 1
    assert count > 3


async def test_run_that_meets_a_deadlock_begins_again(site: Site, url: str, first: InterleavedDatabase) -> None:
    await site.apply(site.definitions())
    task = await site.waiting_task()
    run_id = await open_run(site, task, 1, "full_import")
    database = await site.database()
    other = await asyncpg.connect(url)
    await other.execute("SET deadlock_timeout = '1min'")  # so that the run that begins finds the deadlock
    async with first.connection() as connection:
        await connection.execute(
            f"ALTER DATABASE {await connection.fetchval('SELECT current_database()')} SET deadlock_timeout = '2s'"
        )
    opposite = other.transaction()
    await opposite.start()
    await other.execute("SELECT FROM tenuto_identity.systems WHERE name = 'HR' FOR UPDATE")
    beginner = await InterleavedDatabase.at(url)
    begun = asyncio.create_task(begin(beginner, task, "Full Import", fence=2))
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%FOR SHARE%'"
    )
    await eventually(lambda: database.fetch_value(waiting))
    await other.execute("UPDATE tenuto_identity.runs SET page = page WHERE id = $1", run_id)
    await opposite.commit()
    await other.close()
    assert isinstance(await begun, BegunRun)
    await beginner.close()
