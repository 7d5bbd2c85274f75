"""Misfire policies after downtime (S5): once, all up to a limit, skip after a grace; the ledger is complete."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.definitions.schedule_definitions import delete, edit, set_enabled
from tenuto.diagnostics import deep_checks
from tenuto.model.doctor_findings import Severity
from tenuto.model.triggers import Trigger, cron, every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.simulation.simulator import SimulatedSchedule, simulate
from tests.support.model_values import NOON
from tests.support.schedules import (
    MINUTE,
    NAME,
    create_schedule,
    fire_due_schedules,
    make_change_context,
    make_definition,
    read_ledger,
    read_table,
    run_claimable_steps,
    run_schedule_now,
)
from tests.support.tasks import Register

FOUR = NOON + 4 * MINUTE


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def test_misfire_once_runs_once_for_all_missed_occurrences(db: Database) -> None:
    await create_schedule(db, make_definition())
    await fire_due_schedules(db, FOUR + timedelta(seconds=30))
    assert await read_ledger(db) == [(60, "coalesced"), (120, "coalesced"), (180, "coalesced"), (240, "fired")]
    (run,) = await read_table(db, "executions")
    assert run["due_at"] == FOUR
    (schedule,) = await read_table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 5 * MINUTE


async def test_misfire_all_runs_missed_occurrences_one_after_the_other(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(misfire="all"))
    await fire_due_schedules(db, NOON + 3 * MINUTE)
    assert await read_ledger(db) == [(60, "fired"), (120, "queued"), (180, "queued")]
    rows = await read_table(db, "occurrences", "decision = 'queued'")
    assert {row["reason"] for row in rows} == {"missed runs are made up for one after the other"}
    for _ in range(2):
        assert await firing.start_queued_runs(db, FOUR, "test") == 0
        await run_claimable_steps(db, worker_id)
        assert await firing.start_queued_runs(db, FOUR, "test") == 1
    await run_claimable_steps(db, worker_id)
    assert await read_ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    runs = await read_table(db, "executions")
    assert [(run["state"], run["due_at"]) for run in runs] == [
        ("completed", NOON + minute * MINUTE) for minute in (1, 2, 3)
    ]


async def test_misfire_all_is_bounded_and_records_skipped_occurrences(db: Database) -> None:
    await create_schedule(db, make_definition(misfire={"policy": "all", "max_runs": 2}))
    await fire_due_schedules(db, FOUR)
    assert await read_ledger(db) == [(60, "missed"), (120, "missed"), (180, "fired"), (240, "queued")]
    (row, _) = await read_table(db, "occurrences", "decision = 'missed'")
    assert row["reason"] == "only the last 2 missed runs are made up for"


async def test_misfire_all_with_overlap_allow_runs_side_by_side(db: Database) -> None:
    await create_schedule(db, make_definition(misfire="all", overlap="allow"))
    await fire_due_schedules(db, NOON + 3 * MINUTE)
    assert await read_ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    assert len(await read_table(db, "executions")) == 3


async def test_missed_runs_queue_behind_an_active_execution(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(misfire="all"))
    await run_schedule_now(db)
    await fire_due_schedules(db, NOON + 2 * MINUTE)
    assert await read_ledger(db) == [(0, "fired"), (60, "queued"), (120, "queued")]
    await run_claimable_steps(db, worker_id)
    assert await firing.start_queued_runs(db, FOUR, "test") == 1


async def test_misfire_skip_drops_late_occurrences(db: Database) -> None:
    await create_schedule(db, make_definition(trigger=every("1h"), misfire={"policy": "skip", "grace_seconds": 120}))
    await fire_due_schedules(db, NOON + timedelta(hours=2, minutes=10))
    assert await read_ledger(db) == [(3600, "missed"), (7200, "missed")]
    assert await read_table(db, "executions") == []
    (schedule,) = await read_table(db, "schedules")
    assert (schedule["next_run_at"], schedule["last_run_at"]) == (NOON + timedelta(hours=3), None)
    await fire_due_schedules(db, NOON + timedelta(hours=3, minutes=2))
    assert (await read_ledger(db))[-1] == (10_800, "fired")


async def test_overlap_policy_applies_to_missed_runs(db: Database) -> None:
    await create_schedule(db, make_definition())
    await run_schedule_now(db)
    await fire_due_schedules(db, NOON + 2 * MINUTE)
    assert await read_ledger(db) == [(0, "fired"), (60, "coalesced"), (120, "skipped")]


@pytest.mark.parametrize("misfire", ["once", {"policy": "all", "max_runs": 1000}, "skip"])
async def test_misfire_after_a_year_of_downtime_is_bounded(db: Database, misfire: Any) -> None:
    await create_schedule(db, make_definition(trigger=every("1s"), misfire=misfire))
    began = time.monotonic()
    assert await fire_due_schedules(db, NOON + timedelta(days=365)) == 1
    assert time.monotonic() - began < 30, "to go through all of them would take many minutes"
    assert len(await read_table(db, "occurrences")) <= 1001
    assert len(await read_table(db, "executions")) == 1
    assert await fire_due_schedules(db, NOON + timedelta(days=365)) == 0
    (gap,) = await read_table(db, "occurrences", "until IS NOT NULL")
    assert (gap["due_at"], gap["decision"]) == (NOON + timedelta(seconds=1), "missed")


@pytest.mark.parametrize(
    ("misfire", "runs"), [("once", 1), ("all", 100), ({"policy": "skip", "grace_seconds": 30 * 86_400}, 1)]
)
async def test_misfire_after_downtime_matches_the_simulation(db: Database, misfire: Any, runs: int) -> None:
    monday, sunday = datetime(2026, 11, 2, 7, tzinfo=UTC), datetime(2026, 11, 8, 23, tzinfo=UTC)
    definition = make_definition(trigger=cron("* 8-17 * * 1-5"), misfire=misfire, overlap="allow")
    await create_schedule(db, definition, monday)

    await fire_due_schedules(db, sunday)

    begun = await read_table(db, "executions")
    assert len(begun) == runs
    assert max(run["due_at"] for run in begun) == datetime(2026, 11, 6, 17, 59, tzinfo=UTC)
    played = simulate([SimulatedSchedule(definition, "", 1.0)], monday, sunday + MINUTE, outages=[(monday, sunday)])
    assert [(run.due_at, run.until, str(run.decision)) for run in played.runs] == sorted(
        (row["due_at"], row["until"], row["decision"]) for row in await read_table(db, "occurrences")
    )
    assert (await deep_checks.check_ledger(db)).severity is Severity.OK


# --- switched off, and retimed --------------------------------------------------------------------------------------


async def test_enabled_schedule_does_not_catch_up_its_disabled_time(db: Database) -> None:
    await create_schedule(db, make_definition(misfire="all"))
    await set_enabled(db, NAME, make_change_context(NOON), enabled=False)
    assert await fire_due_schedules(db, NOON + 10 * MINUTE) == 0
    await set_enabled(db, NAME, make_change_context(NOON + 10.5 * MINUTE), enabled=True)
    (schedule,) = await read_table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 11 * MINUTE
    await fire_due_schedules(db, NOON + 11 * MINUTE)
    assert await read_ledger(db) == [(60, "missed"), (660, "fired")]


async def test_disabling_an_overdue_schedule_writes_the_ledger(db: Database) -> None:
    await create_schedule(db, make_definition())
    await set_enabled(db, NAME, make_change_context(NOON + MINUTE), enabled=False)
    (row,) = await read_table(db, "occurrences")
    assert (row["due_at"], row["until"], row["decision"]) == (NOON + MINUTE, None, "missed")
    assert row["reason"] == "it was disabled before it fired"
    assert row["decided_by"] == "Ana"


@pytest.mark.parametrize(("trigger", "next_run"), [(every("1h"), timedelta(hours=1)), (every("5s"), None)])
async def test_new_trigger_sets_the_next_run(db: Database, trigger: Trigger, next_run: timedelta | None) -> None:
    await create_schedule(db, make_definition())
    now = NOON + timedelta(seconds=1)
    await edit(db, NAME, make_definition(trigger=trigger), make_change_context(now))
    (schedule,) = await read_table(db, "schedules")
    assert schedule["next_run_at"] == (NOON + next_run if next_run else NOON + timedelta(seconds=5))
    assert await read_table(db, "occurrences") == []


async def test_new_trigger_writes_the_ledger_for_an_overdue_occurrence(db: Database) -> None:
    await create_schedule(db, make_definition())
    now = NOON + 3.5 * MINUTE
    await edit(db, NAME, make_definition(trigger=every("1h")), make_change_context(now))
    (row,) = await read_table(db, "occurrences")
    assert (row["due_at"], row["until"], row["decision"]) == (NOON + MINUTE, now, "missed"), "one for all three"
    assert row["reason"] == "the trigger was changed before it fired"


@pytest.mark.parametrize("minutes", [1, 3], ids=["nothing else is overdue", "others are overdue"])
@pytest.mark.parametrize("change", ["switched off", "retimed", "deleted"])
async def test_decided_occurrence_gets_no_second_ledger_row(
    db: Database, worker_id: UUID, change: str, minutes: int
) -> None:
    await create_schedule(db, make_definition())
    await fire_due_schedules(db, NOON + MINUTE)
    await run_claimable_steps(db, worker_id)
    # A scheduler whose clock is slightly behind has computed the next run.
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = $1", NOON + MINUTE)
    now = make_change_context(NOON + minutes * MINUTE)

    if change == "switched off":
        await set_enabled(db, NAME, now, enabled=False)
    elif change == "retimed":
        await edit(db, NAME, make_definition(trigger=every("1h")), now)
    else:
        await delete(db, NAME, now)

    rows = [(row["due_at"], row["until"], row["decision"]) for row in await read_table(db, "occurrences")]
    left = [] if minutes == 1 else [(NOON + 2 * MINUTE, NOON + 3 * MINUTE, "missed")]
    assert sorted(rows) == [(NOON + MINUTE, None, "fired"), *left]


async def test_other_changes_keep_an_overdue_occurrence(db: Database) -> None:
    await create_schedule(db, make_definition())
    await edit(db, NAME, make_definition("x", description="new"), make_change_context(NOON + 3 * MINUTE))
    await fire_due_schedules(db, NOON + 3 * MINUTE)
    assert [decision for _, decision in await read_ledger(db)] == ["coalesced", "coalesced", "fired"]
