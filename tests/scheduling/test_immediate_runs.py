"""Fast path of manual runs: one statement that equals `run_schedule` if nothing blocks it, else changes nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.definitions import schedule_definitions
from tenuto.ids import new_id
from tenuto.model.definitions.schedules import OverlapPolicy
from tenuto.model.work.occurrences import Decision
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import Schedule
from tenuto.store.work import executions
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    NAME,
    create_schedule,
    make_change_context,
    make_definition,
    read_table,
    run_schedule_now,
)
from tests.support.waiting import eventually

EXCLUSIVE_POLICIES = [overlap for overlap in OverlapPolicy if overlap is not OverlapPolicy.ALLOW]


async def load_current_schedule(db: Database) -> Schedule:
    found = await schedules.load_schedule(db, NAME)
    assert found is not None
    return found


async def run_immediately(db: Database, schedule: Schedule, request: UUID | None = None) -> RunResult | None:
    return await firing.try_run_immediately(db, schedule, NOON, ANA, request or new_id())


async def assert_row_counts(db: Database, expected: int = 0) -> None:
    for name in ("executions", "occurrences", "tasks"):
        assert len(await read_table(db, name)) == expected, name


@pytest.mark.parametrize("overlap", OverlapPolicy)
async def test_immediate_run_leaves_the_same_rows_as_the_transaction(db: Database, overlap: OverlapPolicy) -> None:
    request, results = new_id(), []
    await create_schedule(db, make_definition("a", ["b", "c"], overlap=overlap))
    for way in ("at once", "in a transaction"):
        if way == "at once":
            assert await run_immediately(db, await load_current_schedule(db), request) == RunResult(
                Decision.FIRED, None, request
            )
        else:
            await db.transaction(lambda c: firing.run_schedule(c, NAME, NOON, ANA, request_id=request))
        rows = [
            {
                # Each way is a separate transaction, which both must record.
                column: value is not None if column == "transaction_id" else value
                for column, value in row.items()
                if column not in ("id", "activity_id")
            }
            for name in ("executions", "occurrences", "tasks", "schedules")
            for row in await read_table(db, name)
        ]
        results.append(sorted(rows, key=lambda row: str(row.get("step_index"))))
        for name in ("tasks", "executions", "occurrences"):
            await db.fetch_all(f"DELETE FROM tenuto.{name}")
    assert results[0] == results[1]
    assert [row["transaction_id"] for row in results[0] if "transaction_id" in row] == [True]
    assert [row["state"] for row in results[0] if row.get("group_index") is not None] == [
        "queued",
        "waiting",
        "waiting",
    ]


async def test_immediate_run_of_a_changed_schedule_is_left_to_the_transaction(db: Database) -> None:
    await create_schedule(db, make_definition("a"))
    before = await load_current_schedule(db)
    await schedule_definitions.edit(db, NAME, make_definition("b"), make_change_context(NOON))
    assert await run_immediately(db, before) is None
    await assert_row_counts(db)


async def test_immediate_run_of_a_deleted_schedule_starts_nothing(db: Database) -> None:
    await create_schedule(db, make_definition("a"))
    before = await load_current_schedule(db)
    await schedule_definitions.delete(db, NAME, make_change_context(NOON))
    assert await run_immediately(db, before) is None
    await assert_row_counts(db)


@pytest.mark.parametrize("overlap", EXCLUSIVE_POLICIES)
async def test_immediate_run_starts_nothing_beside_an_active_execution(db: Database, overlap: OverlapPolicy) -> None:
    """Also if the active run started under another policy, so that the unique index does not reject this one."""
    await create_schedule(db, make_definition("a", overlap="allow"))
    assert await run_immediately(db, await load_current_schedule(db)) is not None
    await schedule_definitions.edit(db, NAME, make_definition("a", overlap=overlap), make_change_context(NOON))
    assert await run_immediately(db, await load_current_schedule(db)) is None
    await assert_row_counts(db, expected=1)


async def test_immediate_run_does_not_overtake_a_queued_run(db: Database) -> None:
    await create_schedule(db, make_definition("a", overlap="queue_one"))
    await run_schedule_now(db)
    assert (await run_schedule_now(db)).decision == "queued"
    await db.fetch_all("UPDATE tenuto.executions SET ended_at = now(), state = 'completed'")
    assert await run_immediately(db, await load_current_schedule(db)) is None


async def test_immediate_runs_start_side_by_side_where_overlap_is_allowed(db: Database) -> None:
    await create_schedule(db, make_definition("a", overlap="allow"))
    schedule = await load_current_schedule(db)
    assert [await run_immediately(db, schedule) is not None for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("overlap", EXCLUSIVE_POLICIES)
async def test_one_of_two_concurrent_immediate_runs_starts(db: Database, url: str, overlap: OverlapPolicy) -> None:
    """The second statement took its snapshot before the first commit, and waits for the lock on the schedule."""
    await create_schedule(db, make_definition("a", overlap=overlap))
    schedule = await load_current_schedule(db)
    other = await Database.open(url)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def first(connection: Connection) -> asyncio.Task[RunResult | None]:
        new = firing._manual_execution(new_id(), schedule, schedule.plan, NOON, NOON, ANA)
        assert await connection.fetch(executions.SQL.create_manual_execution, *executions._manual_execution_values(new))
        second = asyncio.create_task(run_immediately(other, schedule))
        await eventually(lambda: db.fetch_value(waits))
        return second

    second = await db.transaction(first)
    assert await second is None
    assert len(await read_table(db, "executions")) == 1
    await other.close()


async def test_repeated_run_request_returns_the_first_result(db: Database) -> None:
    await create_schedule(db, make_definition("a", overlap="allow"))
    request = new_id()
    first = await run_schedule_now(db, request_id=request)
    assert await run_immediately(db, await load_current_schedule(db), request) is None
    assert await run_schedule_now(db, request_id=request) == first
    await assert_row_counts(db, expected=1)


async def test_app_runs_the_current_version_of_a_schedule(app: Tenuto) -> None:
    @app.job
    async def one() -> None: ...

    @app.job
    async def another() -> None: ...

    async def steps() -> list[str]:
        started = await app.schedules.run("Changing")
        assert started.execution_id is not None
        return [step.target for step in (await app.executions.get(started.execution_id)).steps]

    await app.schedules.create(schedule_definition("Changing", manual(), [Step.job(one)], overlap="allow"))
    assert await steps() == await steps() == ["one"]
    await app.schedules.edit(
        "Changing", schedule_definition("Changing", manual(), [Step.job(another)], overlap="allow")
    )
    assert await steps() == await steps() == ["another"]
