"""After downtime (S5): once, all up to N, skip beyond a grace; each instant in the ledger, however long it was."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.definitions.schedule_definitions import delete, edit, switch
from tenuto.diagnostics import deep_checks
from tenuto.diagnostics.checks import Verdict
from tenuto.model.triggers import Trigger, cron, every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.simulation.simulator import Subject, simulate
from tests.support.model_values import NOON
from tests.support.schedules import MINUTE, NAME, a_definition, author, fire, ledger, play, run_now, saved, table
from tests.support.tasks import Register

FOUR = NOON + 4 * MINUTE


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def test_once_runs_once_for_all_that_was_missed(db: Database) -> None:
    await saved(db, a_definition())
    await fire(db, FOUR + timedelta(seconds=30))
    assert await ledger(db) == [(60, "coalesced"), (120, "coalesced"), (180, "coalesced"), (240, "fired")]
    (run,) = await table(db, "executions")
    assert run["due_at"] == FOUR
    (schedule,) = await table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 5 * MINUTE


async def test_all_makes_up_for_each_one_after_the_other(db: Database, me: UUID) -> None:
    await saved(db, a_definition(misfire="all"))
    await fire(db, NOON + 3 * MINUTE)
    assert await ledger(db) == [(60, "fired"), (120, "queued"), (180, "queued")]
    rows = await table(db, "occurrences", "decision = 'queued'")
    assert {row["reason"] for row in rows} == {"missed runs are made up for one after the other"}
    for _ in range(2):
        assert await firing.take_turns(db, FOUR, "test") == 0
        await play(db, me)
        assert await firing.take_turns(db, FOUR, "test") == 1
    await play(db, me)
    assert await ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    runs = await table(db, "executions")
    assert [(run["state"], run["due_at"]) for run in runs] == [
        ("completed", NOON + minute * MINUTE) for minute in (1, 2, 3)
    ]


async def test_all_is_bounded_and_says_what_it_left_out(db: Database) -> None:
    await saved(db, a_definition(misfire={"policy": "all", "max_runs": 2}))
    await fire(db, FOUR)
    assert await ledger(db) == [(60, "missed"), (120, "missed"), (180, "fired"), (240, "queued")]
    (row, _) = await table(db, "occurrences", "decision = 'missed'")
    assert row["reason"] == "only the last 2 missed runs are made up for"


async def test_all_with_allow_runs_them_side_by_side(db: Database) -> None:
    await saved(db, a_definition(misfire="all", overlap="allow"))
    await fire(db, NOON + 3 * MINUTE)
    assert await ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    assert len(await table(db, "executions")) == 3


async def test_missed_runs_wait_behind_one_that_is_active(db: Database, me: UUID) -> None:
    await saved(db, a_definition(misfire="all"))
    await run_now(db)
    await fire(db, NOON + 2 * MINUTE)
    assert await ledger(db) == [(0, "fired"), (60, "queued"), (120, "queued")]
    await play(db, me)
    assert await firing.take_turns(db, FOUR, "test") == 1


async def test_skip_lets_go_what_is_too_late(db: Database) -> None:
    await saved(db, a_definition(trigger=every("1h"), misfire={"policy": "skip", "grace_seconds": 120}))
    await fire(db, NOON + timedelta(hours=2, minutes=10))
    assert await ledger(db) == [(3600, "missed"), (7200, "missed")]
    assert await table(db, "executions") == []
    (schedule,) = await table(db, "schedules")
    assert (schedule["next_run_at"], schedule["last_run_at"]) == (NOON + timedelta(hours=3), None)
    await fire(db, NOON + timedelta(hours=3, minutes=2))
    assert (await ledger(db))[-1] == (10_800, "fired")


async def test_the_overlap_rule_has_its_say_about_what_is_made_up_for(db: Database) -> None:
    await saved(db, a_definition())
    await run_now(db)
    await fire(db, NOON + 2 * MINUTE)
    assert await ledger(db) == [(0, "fired"), (60, "coalesced"), (120, "skipped")]


@pytest.mark.parametrize("misfire", ["once", {"policy": "all", "max_runs": 1000}, "skip"])
async def test_a_year_of_downtime_of_a_schedule_of_seconds_stays_bounded(db: Database, misfire: Any) -> None:
    await saved(db, a_definition(trigger=every("1s"), misfire=misfire))
    began = time.monotonic()
    assert await fire(db, NOON + timedelta(days=365)) == 1
    assert time.monotonic() - began < 30, "to go through all of them would take many minutes"
    assert len(await table(db, "occurrences")) <= 1001
    assert len(await table(db, "executions")) == 1
    assert await fire(db, NOON + timedelta(days=365)) == 0
    (gap,) = await table(db, "occurrences", "until IS NOT NULL")
    assert (gap["due_at"], gap["decision"]) == (NOON + timedelta(seconds=1), "missed")


@pytest.mark.parametrize(
    ("misfire", "runs"), [("once", 1), ("all", 100), ({"policy": "skip", "grace_seconds": 30 * 86_400}, 1)]
)
async def test_a_week_of_downtime_that_ends_while_the_trigger_is_silent_is_made_up_for_as_simulated(
    db: Database, misfire: Any, runs: int
) -> None:
    monday, sunday = datetime(2026, 11, 2, 7, tzinfo=UTC), datetime(2026, 11, 8, 23, tzinfo=UTC)
    definition = a_definition(trigger=cron("* 8-17 * * 1-5"), misfire=misfire, overlap="allow")
    await saved(db, definition, monday)

    await fire(db, sunday)

    begun = await table(db, "executions")
    assert len(begun) == runs
    assert max(run["due_at"] for run in begun) == datetime(2026, 11, 6, 17, 59, tzinfo=UTC)
    played = simulate([Subject(definition, "", 1.0)], monday, sunday + MINUTE, outages=[(monday, sunday)])
    assert [(run.due_at, run.until, str(run.decision)) for run in played.runs] == sorted(
        (row["due_at"], row["until"], row["decision"]) for row in await table(db, "occurrences")
    )
    assert (await deep_checks.ledger(db)).verdict is Verdict.OK


# --- switched off, and retimed --------------------------------------------------------------------------------------


async def test_switching_on_does_not_make_up_for_the_time_it_was_off(db: Database) -> None:
    await saved(db, a_definition(misfire="all"))
    await switch(db, NAME, author(NOON), enabled=False)
    assert await fire(db, NOON + 10 * MINUTE) == 0
    await switch(db, NAME, author(NOON + 10.5 * MINUTE), enabled=True)
    (schedule,) = await table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 11 * MINUTE
    await fire(db, NOON + 11 * MINUTE)
    assert await ledger(db) == [(60, "missed"), (660, "fired")]


async def test_switching_off_what_is_overdue_leaves_a_row_in_the_ledger(db: Database) -> None:
    await saved(db, a_definition())
    await switch(db, NAME, author(NOON + MINUTE), enabled=False)
    (row,) = await table(db, "occurrences")
    assert (row["due_at"], row["until"], row["decision"]) == (NOON + MINUTE, None, "missed")
    assert row["reason"] == "it was disabled before it fired"
    assert row["decided_by"] == "Ana"


@pytest.mark.parametrize(("trigger", "next_run"), [(every("1h"), timedelta(hours=1)), (every("5s"), None)])
async def test_a_new_trigger_sets_the_next_run_at_once(
    db: Database, trigger: Trigger, next_run: timedelta | None
) -> None:
    await saved(db, a_definition())
    now = NOON + timedelta(seconds=1)
    await edit(db, NAME, a_definition(trigger=trigger), author(now))
    (schedule,) = await table(db, "schedules")
    assert schedule["next_run_at"] == (NOON + next_run if next_run else NOON + timedelta(seconds=5))
    assert await table(db, "occurrences") == []


async def test_a_new_trigger_leaves_a_row_for_what_was_overdue_by_the_old_one(db: Database) -> None:
    await saved(db, a_definition())
    now = NOON + 3.5 * MINUTE
    await edit(db, NAME, a_definition(trigger=every("1h")), author(now))
    (row,) = await table(db, "occurrences")
    assert (row["due_at"], row["until"], row["decision"]) == (NOON + MINUTE, now, "missed"), "one for all three"
    assert row["reason"] == "the trigger was changed before it fired"


@pytest.mark.parametrize("minutes", [1, 3], ids=["nothing else is overdue", "others are overdue"])
@pytest.mark.parametrize("change", ["switched off", "retimed", "deleted"])
async def test_what_is_decided_leaves_no_second_row_however_it_came_to_be_planned_again(
    db: Database, me: UUID, change: str, minutes: int
) -> None:
    await saved(db, a_definition())
    await fire(db, NOON + MINUTE)
    await play(db, me)
    # Somebody whose clock is a little behind has worked out the next run.
    await db.all("UPDATE tenuto.schedules SET next_run_at = $1", NOON + MINUTE)
    now = author(NOON + minutes * MINUTE)

    if change == "switched off":
        await switch(db, NAME, now, enabled=False)
    elif change == "retimed":
        await edit(db, NAME, a_definition(trigger=every("1h")), now)
    else:
        await delete(db, NAME, now)

    rows = [(row["due_at"], row["until"], row["decision"]) for row in await table(db, "occurrences")]
    left = [] if minutes == 1 else [(NOON + 2 * MINUTE, NOON + 3 * MINUTE, "missed")]
    assert sorted(rows) == [(NOON + MINUTE, None, "fired"), *left]


async def test_changing_anything_else_leaves_what_is_overdue_to_be_fired(db: Database) -> None:
    await saved(db, a_definition())
    await edit(db, NAME, a_definition("x", description="new"), author(NOON + 3 * MINUTE))
    await fire(db, NOON + 3 * MINUTE)
    assert [decision for _, decision in await ledger(db)] == ["coalesced", "coalesced", "fired"]
