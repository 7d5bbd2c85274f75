"""From a due instant to an execution (S2, S4, S5): one transaction, all of it or nothing, every instant once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tenuto.definitions.schedule_definitions import edit
from tenuto.errors import Unavailable
from tenuto.model.schedules import Plan
from tenuto.model.triggers import every, manual
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.service.quarantine import BATCH
from tenuto.store import schedules
from tests.support.model_values import NOON
from tests.support.schedules import (
    MINUTE,
    NAME,
    a_definition,
    a_step,
    author,
    fire,
    ledger,
    play,
    saved,
    table,
    take,
    task_states,
    the_execution,
)
from tests.support.tasks import Register


async def test_a_due_schedule_becomes_an_execution_with_all_its_tasks(db: Database) -> None:
    schedule = await saved(db, a_definition("a", ["b", "c"], "d"))
    late = NOON + MINUTE + timedelta(seconds=2)
    assert await fire(db, late) == 1
    (run,) = await table(db, "executions")
    assert (run["state"], run["current_group"], run["total_groups"], run["total_steps"]) == ("in_progress", 0, 3, 4)
    assert (run["schedule_id"], run["schedule_name"], run["version"]) == (schedule.id, NAME, 1)
    assert (run["origin"], run["due_at"], run["started_at"]) == ("trigger", NOON + MINUTE, late)
    assert (run["initiator_type"], run["initiator_id"], run["initiator_name"]) == ("system", None, "scheduler")
    assert await task_states(db) == {"a": "queued", "b": "waiting", "c": "waiting", "d": "waiting"}
    steps = await db.all("SELECT name, group_index, step_index FROM tenuto.tasks ORDER BY step_index")
    assert [tuple(step) for step in steps] == [("a", 0, 0), ("b", 1, 1), ("c", 1, 2), ("d", 2, 3)]
    assert {task["initiator_name"] for task in await table(db, "tasks")} == {"scheduler"}
    (row,) = await table(db, "schedules")
    assert (row["last_run_at"], row["next_run_at"]) == (late, NOON + 2 * MINUTE)


async def test_the_ledger_tells_of_it(db: Database) -> None:
    schedule = await saved(db, a_definition())
    await fire(db, NOON + MINUTE)
    (row,) = await table(db, "occurrences")
    (run,) = await table(db, "executions")
    assert (row["schedule_id"], row["schedule_name"], row["due_at"]) == (schedule.id, NAME, NOON + MINUTE)
    assert (row["origin"], row["decision"], row["reason"], row["execution_id"]) == ("trigger", "fired", None, run["id"])
    assert (row["decided_at"], row["decided_by"]) == (NOON + MINUTE, "test")


async def test_what_is_not_due_does_not_fire(db: Database) -> None:
    await saved(db, a_definition())
    assert await fire(db, NOON + MINUTE - timedelta(microseconds=1)) == 0
    assert await table(db, "executions") == []


async def test_what_is_disabled_or_has_no_clock_does_not_fire(db: Database) -> None:
    await saved(db, a_definition(name="off"), enabled=False)
    await saved(db, a_definition(name="by hand", trigger=manual()))
    assert await fire(db, NOON + timedelta(days=365)) == 0


async def test_a_due_instant_fires_once(db: Database) -> None:
    await saved(db, a_definition(overlap="allow"))
    assert await fire(db, NOON + MINUTE) == 1
    assert await fire(db, NOON + MINUTE) == 0
    assert len(await table(db, "executions")) == 1


async def test_many_schedulers_at_once_fire_each_schedule_once(db: Database) -> None:
    for number in range(150):
        await saved(db, a_definition(name=f"s{number}"))
    fired = await asyncio.gather(*(fire(db, NOON + MINUTE) for _ in range(4)))
    while sum(fired) < 150:  # who met a lock left that one to its holder
        fired.append(await fire(db, NOON + MINUTE))
        assert fired[-1] > 0
    assert sum(fired) == 150
    assert len(await table(db, "executions")) == 150
    assert await ledger(db) == [(60, "fired")] * 150


async def test_an_instant_that_is_in_the_ledger_cannot_be_decided_again(db: Database) -> None:
    """Even if somebody sets the next run back by hand."""
    await saved(db, a_definition(overlap="allow"))
    await fire(db, NOON + MINUTE)
    await db.all("UPDATE tenuto.schedules SET next_run_at = $1", NOON + MINUTE)
    await fire(db, NOON + MINUTE)
    assert len(await table(db, "executions")) == len(await table(db, "occurrences")) == 1
    (schedule,) = await table(db, "schedules")
    assert schedule["next_run_at"] == NOON + 2 * MINUTE, "and the schedule goes on from there"


async def test_fired_instants_follow_each_other_without_a_gap(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    await saved(db, a_definition())
    for minute in range(1, 6):
        await fire(db, NOON + minute * MINUTE)
        await play(db, me)
    assert await ledger(db) == [(60 * minute, "fired") for minute in range(1, 6)]


@pytest.mark.parametrize("table_name", ["executions", "tasks", "occurrences", "schedules"])
async def test_a_failure_in_any_part_leaves_nothing(db: Database, table_name: str) -> None:
    await saved(db, a_definition("a", "b"))
    before = await table(db, "schedules")
    on = "UPDATE" if table_name == "schedules" else "INSERT"
    await db.all(
        "CREATE FUNCTION tenuto.test_refuse() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$"
    )
    await db.all(
        f"CREATE TRIGGER test_refuse BEFORE {on} ON tenuto.{table_name} FOR EACH ROW"
        " EXECUTE FUNCTION tenuto.test_refuse()"
    )
    try:
        assert await fire(db, NOON + MINUTE) == 0
    finally:
        await db.all("DROP FUNCTION tenuto.test_refuse CASCADE")
    for name in ("executions", "tasks", "occurrences"):
        assert await table(db, name) == []
    assert await table(db, "schedules") == before, "it is still due"
    assert await fire(db, NOON + MINUTE) == 1


async def test_one_that_cannot_be_fired_does_not_hold_up_the_others(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await saved(db, a_definition("poison", name="bad"))
    for number in range(5):
        await saved(db, a_definition(name=f"good {number}"))
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    left_out = firing.none_left_out()
    try:
        assert await firing.fire_due(db, NOON + MINUTE, "test", left_out) == 5
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert len(left_out.ids) == 1
    assert len(await table(db, "executions")) == 5
    assert await firing.fire_due(db, NOON + MINUTE, "test", left_out) == 0, "till it is time to try it again"
    left_out.try_again()
    assert await firing.fire_due(db, NOON + MINUTE, "test", left_out) == 1


async def test_one_that_could_not_be_fired_is_fired_as_soon_as_somebody_has_changed_it(db: Database) -> None:
    await saved(db, a_definition("poison"))
    left_out = firing.none_left_out()
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        for _ in range(2):
            assert await firing.fire_due(db, NOON + MINUTE, "test", left_out) == 0
            assert await schedules.next_due(db, left_out.ids) is None
        await edit(db, NAME, a_definition("wholesome"), author())
        assert await schedules.next_due(db, left_out.ids) == NOON + MINUTE
        assert await firing.fire_due(db, NOON + MINUTE, "test", left_out) == 1, "not only when all are tried again"
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_more_than_a_batch_of_such_do_not_hold_up_the_others_either(db: Database) -> None:
    for number in range(BATCH + 5):
        await saved(db, a_definition("poison", name=f"bad {number}"))
    await saved(db, a_definition(name="good"))
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        assert await fire(db, NOON + MINUTE) == 1
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_a_database_that_is_away_is_no_schedules_fault(db: Database) -> None:
    await saved(db, a_definition())
    left_out = firing.none_left_out()
    away = await Database.open(db.url)
    await away.close()
    with pytest.raises(Unavailable):
        await firing.fire_due(away, NOON + MINUTE, "test", left_out)
    assert left_out.ids == set()


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
async def test_what_one_scheduler_cannot_read_stays_due_for_another_and_does_not_hold_up_the_others(
    db: Database, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await saved(db, a_definition(name="bad"))
    await saved(db, a_definition(name="good"))
    (before,) = await table(db, "schedules", "name = 'bad'")
    await db.all(f"UPDATE tenuto.schedules SET {damage} WHERE name = 'bad'")
    older = firing.none_left_out()
    for _ in range(3):
        await firing.fire_due(db, NOON + MINUTE, "an older one", older)
        older.try_again()
    assert [run["schedule_name"] for run in await table(db, "executions")] == ["good"]
    assert await table(db, "occurrences", "schedule_name = 'bad'") == [], "nothing is decided on it"
    (bad,) = await table(db, "schedules", "name = 'bad'")
    assert (bad["next_run_at"], bad["planned"]) == (NOON + MINUTE, True)
    assert caplog.text.count("a schedule cannot be read") == 1, "not again and again"

    written = [before[part] for part in ("plan", "trigger", "misfire")]
    await db.all("UPDATE tenuto.schedules SET plan = $1, trigger = $2, misfire = $3 WHERE name = 'bad'", *written)
    assert await fire(db, NOON + MINUTE) == 1, "whoever can read it fires it"
    assert [row["due_at"] for row in await table(db, "occurrences", "schedule_name = 'bad'")] == [NOON + MINUTE]


# --- the next run ---------------------------------------------------------------------------------------------------


async def test_a_next_run_nobody_has_worked_out_is_worked_out(db: Database) -> None:
    await saved(db, a_definition())
    await db.all("UPDATE tenuto.schedules SET next_run_at = NULL, planned = false")
    assert await firing.plan_missing(db, NOON + timedelta(seconds=90)) == 1
    (row,) = await table(db, "schedules")
    assert (row["next_run_at"], row["planned"]) == (NOON + 2 * MINUTE, True)
    assert await firing.plan_missing(db, NOON + timedelta(seconds=90)) == 0


async def test_a_due_instant_is_never_moved_on_before_it_fired(db: Database) -> None:
    await saved(db, a_definition())
    assert await firing.plan_missing(db, NOON + timedelta(hours=1)) == 0
    (row,) = await table(db, "schedules")
    assert row["next_run_at"] == NOON + MINUTE


async def test_a_trigger_nobody_can_read_does_not_stop_the_planning_of_the_others(db: Database) -> None:
    await saved(db, a_definition(name="bad"))
    await saved(db, a_definition(name="good"))
    await db.all("UPDATE tenuto.schedules SET next_run_at = NULL, planned = false")
    await db.all("""UPDATE tenuto.schedules SET trigger = '{"kind": "interval", "every": {}}' WHERE name = 'bad'""")
    older = firing.none_left_out()
    assert await firing.plan_missing(db, NOON, older) == 1
    assert await firing.plan_missing(db, NOON, older) == 0
    rows = {row["name"]: (row["next_run_at"], row["planned"]) for row in await table(db, "schedules")}
    assert rows == {"bad": (None, False), "good": (NOON + MINUTE, True)}, "another version may be able to"
    sound = """trigger = (SELECT trigger FROM tenuto.schedules WHERE name = 'good'), version = version + 1"""
    await db.all(f"UPDATE tenuto.schedules SET {sound} WHERE name = 'bad'")
    assert await firing.plan_missing(db, NOON, older) == 1, "and has made it such that this one is, too"


async def test_what_has_come_to_its_end_fires_no_more(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    await saved(db, a_definition(trigger=every("6h", end="2031-05-17")))
    assert await fire(db, NOON + timedelta(hours=6)) == 1
    await play(db, me)
    (row,) = await table(db, "schedules")
    assert (row["next_run_at"], row["planned"]) == (None, True)
    assert await fire(db, NOON + timedelta(days=900)) == 0


# --- the snapshot ---------------------------------------------------------------------------------------------------


async def test_a_plan_edited_in_mid_run_leaves_the_run_as_it_began(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    await saved(db, a_definition("a", a_step("b", continue_on_failure=True), "c"))
    await fire(db, NOON + MINUTE)
    await play(db, me)
    await edit(db, NAME, a_definition("x", "b"), author(NOON + MINUTE))
    assert await play(db, me, b="failed") == {"b"}
    assert await play(db, me) == {"c"}
    (run,) = await table(db, "executions")
    assert (run["state"], run["failed_steps"], run["version"]) == ("completed", 1, 1)
    await fire(db, NOON + 2 * MINUTE)
    assert set(await task_states(db)) == {"x", "b"}
    second = (await table(db, "executions"))[1]
    assert second["version"] == 2


async def test_a_plan_as_large_as_may_be_is_fired_whole(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    plan = Plan(tuple((a_step(f"s{n}"),) for n in range(1000)))
    await saved(db, a_definition(*(group[0] for group in plan.groups)))
    await fire(db, NOON + MINUTE)
    assert len(await table(db, "tasks")) == 1000
    assert list(await take(db, me)) == ["s0"]
    (run,) = await table(db, "executions")
    assert (await the_execution(db, run["id"]))["total_groups"] == 1000
