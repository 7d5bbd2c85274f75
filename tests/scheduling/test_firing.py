"""Firing of due schedules (S2, S4, S5): one transaction, and every due instant is decided once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tenuto.definitions.schedule_definitions import edit
from tenuto.errors import Unavailable
from tenuto.model.definitions.schedules import Plan
from tenuto.model.triggers import every, manual
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.service.quarantine import LOCKED_ROWS_PER_BATCH
from tenuto.store.definitions import schedules
from tests.support.model_values import NOON
from tests.support.schedules import (
    MINUTE,
    NAME,
    claim_steps,
    create_schedule,
    fire_due_schedules,
    load_execution,
    make_change_context,
    make_definition,
    make_step,
    open_task_states,
    read_ledger,
    read_table,
    run_claimable_steps,
)
from tests.support.tasks import Register


async def test_firing_creates_an_execution_with_all_its_tasks(db: Database) -> None:
    schedule = await create_schedule(db, make_definition("a", ["b", "c"], "d"))
    late = NOON + MINUTE + timedelta(seconds=2)
    assert await fire_due_schedules(db, late) == 1
    (run,) = await read_table(db, "executions")
    assert (run["state"], run["current_group"], run["total_groups"], run["total_steps"]) == ("in_progress", 0, 3, 4)
    assert (run["schedule_id"], run["schedule_name"], run["version"]) == (schedule.id, NAME, 1)
    assert (run["origin"], run["due_at"], run["started_at"]) == ("trigger", NOON + MINUTE, late)
    assert (run["initiator_type"], run["initiator_id"], run["initiator_name"]) == ("system", None, "scheduler")
    assert await open_task_states(db) == {"a": "queued", "b": "waiting", "c": "waiting", "d": "waiting"}
    steps = await db.fetch_all("SELECT name, group_index, step_index FROM tenuto.tasks ORDER BY step_index")
    assert [tuple(step) for step in steps] == [("a", 0, 0), ("b", 1, 1), ("c", 1, 2), ("d", 2, 3)]
    assert {task["initiator_name"] for task in await read_table(db, "tasks")} == {"scheduler"}
    (row,) = await read_table(db, "schedules")
    assert (row["last_run_at"], row["next_run_at"]) == (late, NOON + 2 * MINUTE)


async def test_firing_writes_the_occurrence_ledger(db: Database) -> None:
    schedule = await create_schedule(db, make_definition())
    await fire_due_schedules(db, NOON + MINUTE)
    (row,) = await read_table(db, "occurrences")
    (run,) = await read_table(db, "executions")
    assert (row["schedule_id"], row["schedule_name"], row["due_at"]) == (schedule.id, NAME, NOON + MINUTE)
    assert (row["origin"], row["decision"], row["reason"], row["execution_id"]) == ("trigger", "fired", None, run["id"])
    assert (row["decided_at"], row["decided_by"]) == (NOON + MINUTE, "test")


async def test_schedule_that_is_not_due_does_not_fire(db: Database) -> None:
    await create_schedule(db, make_definition())
    assert await fire_due_schedules(db, NOON + MINUTE - timedelta(microseconds=1)) == 0
    assert await read_table(db, "executions") == []


async def test_disabled_or_manual_schedule_does_not_fire(db: Database) -> None:
    await create_schedule(db, make_definition(name="off"), enabled=False)
    await create_schedule(db, make_definition(name="by hand", trigger=manual()))
    assert await fire_due_schedules(db, NOON + timedelta(days=365)) == 0


async def test_due_instant_fires_once(db: Database) -> None:
    await create_schedule(db, make_definition(overlap="allow"))
    assert await fire_due_schedules(db, NOON + MINUTE) == 1
    assert await fire_due_schedules(db, NOON + MINUTE) == 0
    assert len(await read_table(db, "executions")) == 1


async def test_concurrent_schedulers_fire_each_schedule_once(db: Database) -> None:
    for number in range(150):
        await create_schedule(db, make_definition(name=f"s{number}"))
    fired = await asyncio.gather(*(fire_due_schedules(db, NOON + MINUTE) for _ in range(4)))
    while sum(fired) < 150:  # a locked schedule is left to the scheduler that holds the lock
        fired.append(await fire_due_schedules(db, NOON + MINUTE))
        assert fired[-1] > 0
    assert sum(fired) == 150
    assert len(await read_table(db, "executions")) == 150
    assert await read_ledger(db) == [(60, "fired")] * 150


async def test_ledger_rejects_a_second_decision_on_an_instant(db: Database) -> None:
    """Even if an operator sets the next run back in the table."""
    await create_schedule(db, make_definition(overlap="allow"))
    await fire_due_schedules(db, NOON + MINUTE)
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = $1", NOON + MINUTE)
    await fire_due_schedules(db, NOON + MINUTE)
    assert len(await read_table(db, "executions")) == len(await read_table(db, "occurrences")) == 1
    (schedule,) = await read_table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 2 * MINUTE, "the schedule continues from there"


async def test_fired_instants_have_no_gaps(db: Database, register_worker: Register) -> None:
    worker_id = await register_worker()
    await create_schedule(db, make_definition())
    for minute in range(1, 6):
        await fire_due_schedules(db, NOON + minute * MINUTE)
        await run_claimable_steps(db, worker_id)
    assert await read_ledger(db) == [(60 * minute, "fired") for minute in range(1, 6)]


@pytest.mark.parametrize("table_name", ["executions", "tasks", "occurrences", "schedules"])
async def test_failed_firing_leaves_no_rows(db: Database, table_name: str) -> None:
    await create_schedule(db, make_definition("a", "b"))
    before = await read_table(db, "schedules")
    on = "UPDATE" if table_name == "schedules" else "INSERT"
    await db.fetch_all(
        "CREATE FUNCTION tenuto.test_refuse() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$"
    )
    await db.fetch_all(
        f"CREATE TRIGGER test_refuse BEFORE {on} ON tenuto.{table_name} FOR EACH ROW"
        " EXECUTE FUNCTION tenuto.test_refuse()"
    )
    try:
        assert await fire_due_schedules(db, NOON + MINUTE) == 0
    finally:
        await db.fetch_all("DROP FUNCTION tenuto.test_refuse CASCADE")
    for name in ("executions", "tasks", "occurrences"):
        assert await read_table(db, name) == []
    assert await read_table(db, "schedules") == before, "it is still due"
    assert await fire_due_schedules(db, NOON + MINUTE) == 1


async def test_schedule_that_cannot_be_fired_does_not_delay_others(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_schedule(db, make_definition("poison", name="bad"))
    for number in range(5):
        await create_schedule(db, make_definition(name=f"good {number}"))
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    quarantine = firing.new_quarantine()
    try:
        assert await firing.fire_due_schedules(db, NOON + MINUTE, "test", quarantine) == 5
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert len(quarantine.rows) == 1
    assert len(await read_table(db, "executions")) == 5
    assert await firing.fire_due_schedules(db, NOON + MINUTE, "test", quarantine) == 0, (
        "until the quarantine is released"
    )
    quarantine.release_all()
    assert await firing.fire_due_schedules(db, NOON + MINUTE, "test", quarantine) == 1


async def test_quarantined_schedule_fires_after_a_change(db: Database) -> None:
    await create_schedule(db, make_definition("poison"))
    quarantine = firing.new_quarantine()
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        for _ in range(2):
            assert await firing.fire_due_schedules(db, NOON + MINUTE, "test", quarantine) == 0
            assert await schedules.load_next_due_at(db, quarantine.rows) is None
        await edit(db, NAME, make_definition("wholesome"), make_change_context())
        assert await schedules.load_next_due_at(db, quarantine.rows) == NOON + MINUTE
        assert await firing.fire_due_schedules(db, NOON + MINUTE, "test", quarantine) == 1, (
            "before the quarantine is released"
        )
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_more_failing_schedules_than_a_batch_do_not_block_others(db: Database) -> None:
    for number in range(LOCKED_ROWS_PER_BATCH + 5):
        await create_schedule(db, make_definition("poison", name=f"bad {number}"))
    await create_schedule(db, make_definition(name="good"))
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        assert await fire_due_schedules(db, NOON + MINUTE) == 1
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_firing_raises_when_the_database_is_unavailable(db: Database) -> None:
    await create_schedule(db, make_definition())
    quarantine = firing.new_quarantine()
    away = await Database.open(db.url)
    await away.close()
    with pytest.raises(Unavailable):
        await firing.fire_due_schedules(away, NOON + MINUTE, "test", quarantine)
    assert quarantine.rows == set()


@pytest.mark.parametrize(
    "damage",
    [
        """plan = '[["not a step"]]'""",
        """plan = '{}'""",
        """plan = '[[{"kind": "job"}]]'""",
        """trigger = '{"kind": "lunar"}'""",
        """trigger = '[]'""",
        """misfire = '{"policy": "sometimes"}'""",
        """misfire = '5'""",
    ],
)
async def test_unreadable_schedule_stays_due_and_does_not_block_others(
    db: Database, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await create_schedule(db, make_definition(name="bad"))
    await create_schedule(db, make_definition(name="good"))
    (before,) = await read_table(db, "schedules", "name = 'bad'")
    await db.fetch_all(f"UPDATE tenuto.schedules SET {damage} WHERE name = 'bad'")
    older = firing.new_quarantine()
    for _ in range(3):
        await firing.fire_due_schedules(db, NOON + MINUTE, "an older one", older)
        older.release_all()
    assert [run["schedule_name"] for run in await read_table(db, "executions")] == ["good"]
    assert await read_table(db, "occurrences", "schedule_name = 'bad'") == [], "nothing is decided on it"
    (bad,) = await read_table(db, "schedules", "name = 'bad'")
    assert (bad["next_run_at"], bad["planned"]) == (NOON + MINUTE, True)
    assert caplog.text.count("schedule quarantined") == 1, "logged once"

    written = [before[part] for part in ("plan", "trigger", "misfire")]
    await db.fetch_all("UPDATE tenuto.schedules SET plan = $1, trigger = $2, misfire = $3 WHERE name = 'bad'", *written)
    assert await fire_due_schedules(db, NOON + MINUTE) == 1, "a scheduler that can read it fires it"
    assert [row["due_at"] for row in await read_table(db, "occurrences", "schedule_name = 'bad'")] == [NOON + MINUTE]


# --- the next run ---------------------------------------------------------------------------------------------------


async def test_missing_next_run_is_computed(db: Database) -> None:
    await create_schedule(db, make_definition())
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = NULL, planned = false")
    assert await firing.compute_missing_next_runs(db, NOON + timedelta(seconds=90)) == 1
    (row,) = await read_table(db, "schedules")
    assert (row["next_run_at"], row["planned"]) == (NOON + 2 * MINUTE, True)
    assert await firing.compute_missing_next_runs(db, NOON + timedelta(seconds=90)) == 0


async def test_computation_of_next_runs_skips_no_due_instant(db: Database) -> None:
    await create_schedule(db, make_definition())
    assert await firing.compute_missing_next_runs(db, NOON + timedelta(hours=1)) == 0
    (row,) = await read_table(db, "schedules")
    assert row["next_run_at"] == NOON + MINUTE


async def test_unreadable_trigger_does_not_block_next_runs_of_others(db: Database) -> None:
    await create_schedule(db, make_definition(name="bad"))
    await create_schedule(db, make_definition(name="good"))
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = NULL, planned = false")
    await db.fetch_all(
        """UPDATE tenuto.schedules SET trigger = '{"kind": "interval", "every": {}}' WHERE name = 'bad'"""
    )
    older = firing.new_quarantine()
    assert await firing.compute_missing_next_runs(db, NOON, older) == 1
    assert await firing.compute_missing_next_runs(db, NOON, older) == 0
    rows = {row["name"]: (row["next_run_at"], row["planned"]) for row in await read_table(db, "schedules")}
    assert rows == {"bad": (None, False), "good": (NOON + MINUTE, True)}, "another version may be able to"
    sound = """trigger = (SELECT trigger FROM tenuto.schedules WHERE name = 'good'), version = version + 1"""
    await db.fetch_all(f"UPDATE tenuto.schedules SET {sound} WHERE name = 'bad'")
    assert await firing.compute_missing_next_runs(db, NOON, older) == 1, (
        "and the change has made this one readable, too"
    )


async def test_schedule_past_its_end_does_not_fire(db: Database, register_worker: Register) -> None:
    worker_id = await register_worker()
    await create_schedule(db, make_definition(trigger=every("6h", end="2031-05-17")))
    assert await fire_due_schedules(db, NOON + timedelta(hours=6)) == 1
    await run_claimable_steps(db, worker_id)
    (row,) = await read_table(db, "schedules")
    assert (row["next_run_at"], row["planned"]) == (None, True)
    assert await fire_due_schedules(db, NOON + timedelta(days=900)) == 0


# --- the snapshot ---------------------------------------------------------------------------------------------------


async def test_edit_of_a_schedule_does_not_change_its_active_execution(db: Database, register_worker: Register) -> None:
    worker_id = await register_worker()
    await create_schedule(db, make_definition("a", make_step("b", continue_on_failure=True), "c"))
    await fire_due_schedules(db, NOON + MINUTE)
    await run_claimable_steps(db, worker_id)
    await edit(db, NAME, make_definition("x", "b"), make_change_context(NOON + MINUTE))
    assert await run_claimable_steps(db, worker_id, b="failed") == {"b"}
    assert await run_claimable_steps(db, worker_id) == {"c"}
    (run,) = await read_table(db, "executions")
    assert (run["state"], run["failed_steps"], run["version"]) == ("completed", 1, 1)
    await fire_due_schedules(db, NOON + 2 * MINUTE)
    assert set(await open_task_states(db)) == {"x", "b"}
    second = (await read_table(db, "executions"))[1]
    assert second["version"] == 2


async def test_largest_plan_fires_completely(db: Database, register_worker: Register) -> None:
    worker_id = await register_worker()
    plan = Plan(tuple((make_step(f"s{n}"),) for n in range(1000)))
    await create_schedule(db, make_definition(*(group[0] for group in plan.groups)))
    await fire_due_schedules(db, NOON + MINUTE)
    assert len(await read_table(db, "tasks")) == 1000
    assert list(await claim_steps(db, worker_id)) == ["s0"]
    (run,) = await read_table(db, "executions")
    assert (await load_execution(db, run["id"])).group_count == 1000
