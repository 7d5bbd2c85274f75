"""The scheduler (S1, S2): its round in its order, asleep until something is due, awake when something changes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenuto import Step, Tenuto, cron, every, manual
from tenuto.operations.schedules import definition
from tenuto.postgres.database import Database, DatabaseError
from tenuto.scheduling.scheduler import Scheduler
from tests.diagnostics.test_doctor import hold
from tests.support.engine_fixtures import Quick
from tests.support.schedules import a_definition, fire, ledger, repairs, saved, started, table, take
from tests.support.tasks import Register
from tests.support.waiting import eventually

POLL = 30.0
NIGHTLY = cron("0 2 * * *")
SELDOM = every("365d")
"""So that no other instant falls between the one that is due and the present."""


def scheduler(db: Database) -> Scheduler:
    return Scheduler(db, "test", POLL, lambda: None)


async def is_due(db: Database, name: str, ago: timedelta = timedelta(seconds=1)) -> datetime:
    """Let a schedule be due since then."""
    due_at = db.clock.now() - ago
    await db.all("UPDATE tenuto.schedules SET next_run_at = $2 WHERE name = $1", name, due_at)
    return due_at


@pytest.fixture
def bake(app: Tenuto) -> Step:
    @app.job
    async def bake() -> None: ...

    return Step.job(bake)


# --- a round --------------------------------------------------------------------------------------------------------


async def test_a_round_fires_then_plans_then_repairs_then_takes_back(db: Database, register_worker: Register) -> None:
    now = db.clock.now()
    await saved(db, a_definition(name="due", trigger=SELDOM), now)
    await is_due(db, "due")
    await saved(db, a_definition(name="unplanned", trigger=SELDOM), now)
    await db.all("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL WHERE name = 'unplanned'")
    await started(db, "gone", "next", name="stuck", trigger=manual())
    await db.all("DELETE FROM tenuto.tasks WHERE name = 'gone'")
    await started(db, "lost", name="stale", trigger=manual())
    await take(db, await register_worker())
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE name = 'lost'")
    await db.all("CREATE TABLE test_seen (id bigserial, what text)")
    await db.all(
        "CREATE FUNCTION test_see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO test_seen (what) VALUES (TG_ARGV[0]); RETURN NEW; END $$"
    )
    for what, when in {
        "fire": "INSERT ON tenuto.occurrences FOR EACH ROW",
        "plan": "UPDATE ON tenuto.schedules FOR EACH ROW WHEN (NEW.planned AND NOT OLD.planned)",
        "repair": "UPDATE ON tenuto.executions FOR EACH ROW WHEN (NEW.current_group > OLD.current_group)",
        "take back": "INSERT ON tenuto.activities FOR EACH ROW WHEN (NEW.reason = 'lost')",
    }.items():
        await db.all(f"CREATE TRIGGER test_see AFTER {when} EXECUTE FUNCTION test_see('{what}')")
    try:
        await scheduler(db).round()
        seen = [row["what"] for row in await db.all("SELECT what FROM test_seen ORDER BY id")]
    finally:
        await db.all("DROP FUNCTION test_see CASCADE")
        await db.all("DROP TABLE test_seen")
    assert seen == ["fire", "plan", "repair", "take back"]


async def test_a_round_with_nothing_to_do_changes_nothing_and_sleeps_till_the_next_look(db: Database) -> None:
    await saved(db, a_definition(trigger=manual()))
    before = await table(db, "schedules")
    assert await scheduler(db).round() == POLL
    assert await table(db, "schedules") == before
    assert await repairs(db) == {}


async def test_it_sleeps_until_the_next_one_is_due(db: Database) -> None:
    await saved(db, a_definition(trigger=every("1h")), db.clock.now())
    await is_due(db, "Nightly", timedelta(seconds=-20))
    assert 10 < await scheduler(db).round() <= 20


async def test_what_somebody_else_is_just_firing_is_looked_at_again_soon_but_not_without_a_pause(
    db: Database,
) -> None:
    await saved(db, a_definition(), db.clock.now())
    await is_due(db, "Nightly")
    one = scheduler(db)

    async with db.connection() as other, other.transaction():
        await other.fetch("SELECT FROM tenuto.schedules FOR UPDATE")
        assert 0.01 < await one.round() < 1
    assert one.fired == 0
    await one.round()
    assert one.fired == 1


async def test_one_that_cannot_be_fired_does_not_delay_the_others(db: Database) -> None:
    now = db.clock.now()
    await saved(db, a_definition("poison", name="bad"), now)
    await saved(db, a_definition(name="good", trigger=every("1h")), now)
    await is_due(db, "bad")
    await is_due(db, "good", timedelta(seconds=-20))
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        one = scheduler(db)
        assert 10 < await one.round() <= 20, "awake when the good one is due, not only at the next look"
        assert one.fired == 0
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_one_that_cannot_be_read_is_neither_asked_for_nor_told_of_in_every_round(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await saved(db, a_definition(name="bad"), db.clock.now())
    await is_due(db, "bad")
    await db.all("UPDATE tenuto.schedules SET plan = '{}'")
    eager = Scheduler(db, "test", 0.0, lambda: None)
    for _ in range(3):  # each time it looks at all of them again
        await eager.round()
    assert caplog.text.count("a schedule cannot be read") == 1
    assert await scheduler(db).round() == POLL, "it does not keep a scheduler awake"


@pytest.mark.parametrize(("table_name", "column"), [("occurrences", "decision"), ("executions", "current_group")])
async def test_a_part_that_fails_keeps_no_other_from_its_turn(
    db: Database, register_worker: Register, table_name: str, column: str
) -> None:
    """Damage that nobody has thought of: starting in turn, and repairing, read what is not there."""
    await saved(db, a_definition(), db.clock.now())
    await db.all("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL")
    await hold(db, await register_worker(), lease_until=db.clock.now() - timedelta(seconds=1))
    await db.all(f"ALTER TABLE tenuto.{table_name} RENAME COLUMN {column} TO test_away")
    try:
        with suppress(DatabaseError):
            await scheduler(db).round()
    finally:
        await db.all(f"ALTER TABLE tenuto.{table_name} RENAME COLUMN test_away TO {column}")
    assert await db.value("SELECT planned FROM tenuto.schedules"), "worked out"
    assert await db.value("SELECT losses FROM tenuto.tasks") == 1, "taken back"


async def test_a_round_of_which_a_part_failed_has_failed_so_that_the_next_does_not_come_at_once(db: Database) -> None:
    schedule = await saved(db, a_definition(trigger=SELDOM), db.clock.now())
    await is_due(db, schedule.name)
    await db.all("ALTER TABLE tenuto.schedules RENAME COLUMN misfire TO test_away")
    try:
        with pytest.raises(DatabaseError, match="misfire"):
            await scheduler(db).round()
    finally:
        await db.all("ALTER TABLE tenuto.schedules RENAME COLUMN test_away TO misfire")
    await scheduler(db).round()
    assert [decision for _, decision in await ledger(db)] == ["fired"]


async def test_two_schedulers_fire_each_due_instant_once(db: Database) -> None:
    now = db.clock.now()
    for number in range(20):
        await saved(db, a_definition(name=f"s{number}", trigger=SELDOM), now)
        await is_due(db, f"s{number}")
    pair = scheduler(db), scheduler(db)
    while sum(each.fired for each in pair) < 20:
        await asyncio.gather(*(each.round() for each in pair))
    assert sum(each.fired for each in pair) == 20
    assert [decision for _, decision in await ledger(db)] == ["fired"] * 20


# --- the service ----------------------------------------------------------------------------------------------------


async def runs(app: Tenuto, name: str, **given: Any) -> Any:
    return await app.executions.list(schedule=name, **given)


async def test_a_due_instant_starts_within_a_second_though_the_poll_is_half_a_minute(
    app: Tenuto, worker: Quick, bake: Step
) -> None:
    assert app.settings.scheduler_poll_seconds == POLL
    async with worker(), app.scheduler():
        await app.schedules.create(definition("ticks", every("1s"), [bake]))
        await eventually(lambda: three_have_ended(app))
    late = []
    for run in await runs(app, "ticks", state="completed"):
        begun = await (await app.open()).value(
            "SELECT min(claimed_at) FROM tenuto.activities WHERE execution_id = $1", run["id"]
        )
        late.append(begun - run["due_at"])
    assert min(late) > timedelta(milliseconds=-5)
    assert sorted(late)[1] < timedelta(seconds=1)  # a machine that stands still for a moment may spoil one
    assert await repairs(await app.open()) == {}


async def three_have_ended(app: Tenuto) -> bool:
    return len(await runs(app, "ticks", state="completed")) >= 3


@pytest.mark.parametrize("change", ["create", "edit", "enable"])
async def test_a_change_wakes_it(app: Tenuto, bake: Step, change: str) -> None:
    soon, never = definition("s", every("1s"), [bake]), definition("s", NIGHTLY, [bake])
    async with app.scheduler():
        if change == "edit":
            await app.schedules.create(never)
            await app.schedules.edit("s", soon)
        else:
            await app.schedules.create(soon, enabled=change == "create")
        if change == "enable":
            await app.schedules.enable("s")
        assert await eventually(lambda: runs(app, "s"), timeout=8)


async def test_a_run_that_waited_starts_as_soon_as_the_one_before_it_has_ended(
    app: Tenuto, worker: Quick, bake: Step
) -> None:
    await app.schedules.create(definition("s", manual(), [bake], overlap="queue_one"))
    async with app.scheduler():
        first = await app.schedules.run("s")
        second = await app.schedules.run("s")
        assert (first.decision, second.decision) == ("fired", "queued")
        async with worker():
            await eventually(lambda: two_have_ended(app), timeout=8)
    assert await repairs(await app.open()) == {}


async def two_have_ended(app: Tenuto) -> bool:
    return len(await runs(app, "s", state="completed")) == 2


async def test_a_scheduler_is_on_the_register_while_it_is_there(app: Tenuto) -> None:
    async with app.scheduler(name="clock"):
        (one,) = await app.workers()
        assert (one["name"], one["service"]) == ("clock", "scheduler")
    assert await app.workers() == []


async def test_what_fell_due_while_no_scheduler_was_there_is_decided_when_one_starts(app: Tenuto, bake: Step) -> None:
    await app.schedules.create(definition("s", cron("0 0 1 1 *"), [bake]))
    database = await app.open()
    due_at = await is_due(database, "s", timedelta(minutes=30))
    async with app.scheduler():
        (run,) = await eventually(lambda: runs(app, "s"))
    assert run["due_at"] == due_at
    (row,) = await app.schedules.ledger("s")
    assert (row["decision"], row["execution_id"]) == ("fired", run["id"])


async def test_a_week_of_a_busy_schedule_leaves_a_complete_ledger(db: Database) -> None:
    """Whenever schedulers look, every instant of the trigger is in the ledger, once."""
    start = datetime.fromisoformat("2031-03-24T00:00:00+00:00")
    trigger = cron("*/30 1-4 * * *", zone="Europe/London")  # through the change of the clocks
    await saved(db, a_definition(trigger=trigger, overlap="allow"), start)
    now = start
    for step in (7, 61, 30, 1440, 5, 333, 2880, 29, 31, 60, 1000, 3000):
        now += timedelta(minutes=step)
        await fire(db, now)
    expected, instant = [], trigger.next_after(start)
    while instant is not None and instant <= now:
        expected.append(instant)
        instant = trigger.next_after(instant)
    assert [row["due_at"] for row in await db.all("SELECT due_at FROM tenuto.occurrences ORDER BY 1")] == expected
