"""The scheduler (S1, S2): order of its stages, sleep until the next due instant, wake-up on changes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenuto import Step, Tenuto, cron, every, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database, DatabaseError
from tenuto.scheduling.scheduler import Scheduler
from tests.diagnostics.test_doctor import insert_task
from tests.support.schedules import (
    claim_steps,
    create_schedule,
    fire_due_schedules,
    make_definition,
    read_ledger,
    read_repairs,
    read_table,
    start_execution,
)
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import Register
from tests.support.waiting import eventually

POLL_SECONDS = 30.0
NIGHTLY = cron("0 2 * * *")
ONCE_A_YEAR = every("365d")
"""No further instant falls between the due one and the present."""


def make_scheduler(db: Database) -> Scheduler:
    return Scheduler(db, "test", POLL_SECONDS, lambda: None)


async def make_due(db: Database, name: str, ago: timedelta = timedelta(seconds=1)) -> datetime:
    """Set the next run of a schedule to an instant in the past."""
    due_at = db.clock.now() - ago
    await db.fetch_all("UPDATE tenuto.schedules SET next_run_at = $2 WHERE name = $1", name, due_at)
    return due_at


@pytest.fixture
def bake(app: Tenuto) -> Step:
    @app.job
    async def bake() -> None: ...

    return Step.job(bake)


# --- a round --------------------------------------------------------------------------------------------------------


async def test_scheduler_cycle_runs_its_stages_in_order(db: Database, register_worker: Register) -> None:
    now = db.clock.now()
    await create_schedule(db, make_definition(name="due", trigger=ONCE_A_YEAR), now)
    await make_due(db, "due")
    await create_schedule(db, make_definition(name="unplanned", trigger=ONCE_A_YEAR), now)
    await db.fetch_all("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL WHERE name = 'unplanned'")
    await start_execution(db, "gone", "next", name="stuck", trigger=manual())
    await db.fetch_all("DELETE FROM tenuto.tasks WHERE name = 'gone'")
    await start_execution(db, "lost", name="stale", trigger=manual())
    await claim_steps(db, await register_worker())
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE name = 'lost'")
    await db.fetch_all("CREATE TABLE test_seen (id bigserial, what text)")
    await db.fetch_all(
        "CREATE FUNCTION test_see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO test_seen (what) VALUES (TG_ARGV[0]); RETURN NEW; END $$"
    )
    for what, when in {
        "fire": "INSERT ON tenuto.occurrences FOR EACH ROW",
        "plan": "UPDATE ON tenuto.schedules FOR EACH ROW WHEN (NEW.planned AND NOT OLD.planned)",
        "repair": "UPDATE ON tenuto.executions FOR EACH ROW WHEN (NEW.current_group > OLD.current_group)",
        "take back": "INSERT ON tenuto.activities FOR EACH ROW WHEN (NEW.reason = 'lost')",
    }.items():
        await db.fetch_all(f"CREATE TRIGGER test_see AFTER {when} EXECUTE FUNCTION test_see('{what}')")
    try:
        await make_scheduler(db).run_cycle()
        seen = [row["what"] for row in await db.fetch_all("SELECT what FROM test_seen ORDER BY id")]
    finally:
        await db.fetch_all("DROP FUNCTION test_see CASCADE")
        await db.fetch_all("DROP TABLE test_seen")
    assert seen == ["fire", "plan", "repair", "take back"]


async def test_idle_scheduler_cycle_changes_nothing_and_sleeps_for_the_poll_interval(db: Database) -> None:
    await create_schedule(db, make_definition(trigger=manual()))
    before = await read_table(db, "schedules")
    assert await make_scheduler(db).run_cycle() == POLL_SECONDS
    assert await read_table(db, "schedules") == before
    assert await read_repairs(db) == {}


async def test_scheduler_sleeps_until_the_next_due_instant(db: Database) -> None:
    await create_schedule(db, make_definition(trigger=every("1h")), db.clock.now())
    await make_due(db, "Nightly", timedelta(seconds=-20))
    assert 10 < await make_scheduler(db).run_cycle() <= 20


async def test_scheduler_retries_locked_schedules_after_a_short_pause(
    db: Database,
) -> None:
    await create_schedule(db, make_definition(), db.clock.now())
    await make_due(db, "Nightly")
    one = make_scheduler(db)

    async with db.connection() as other, other.transaction():
        await other.fetch("SELECT FROM tenuto.schedules FOR UPDATE")
        assert 0.01 < await one.run_cycle() < 1
    assert one.fired_count == 0
    await one.run_cycle()
    assert one.fired_count == 1


async def test_failing_schedule_does_not_delay_others(db: Database) -> None:
    now = db.clock.now()
    await create_schedule(db, make_definition("poison", name="bad"), now)
    await create_schedule(db, make_definition(name="good", trigger=every("1h")), now)
    await make_due(db, "bad")
    await make_due(db, "good", timedelta(seconds=-20))
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        one = make_scheduler(db)
        assert 10 < await one.run_cycle() <= 20, "it wakes when the valid schedule is due, not only at the next poll"
        assert one.fired_count == 0
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")


async def test_unreadable_schedule_is_logged_once(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    await create_schedule(db, make_definition(name="bad"), db.clock.now())
    await make_due(db, "bad")
    await db.fetch_all("UPDATE tenuto.schedules SET plan = '{}'")
    eager = Scheduler(db, "test", 0.0, lambda: None)
    for _ in range(3):  # each cycle releases the quarantine
        await eager.run_cycle()
    assert caplog.text.count("schedule quarantined") == 1
    assert await make_scheduler(db).run_cycle() == POLL_SECONDS, "it does not keep a scheduler awake"


@pytest.mark.parametrize(("table_name", "column"), [("occurrences", "decision"), ("executions", "current_group")])
async def test_failed_scheduler_stage_does_not_prevent_others(
    db: Database, register_worker: Register, table_name: str, column: str
) -> None:
    """Unexpected damage: starting queued runs and repairing read missing columns."""
    await create_schedule(db, make_definition(), db.clock.now())
    await db.fetch_all("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL")
    await insert_task(db, await register_worker(), lease_until=db.clock.now() - timedelta(seconds=1))
    await db.fetch_all(f"ALTER TABLE tenuto.{table_name} RENAME COLUMN {column} TO test_away")
    try:
        with suppress(DatabaseError):
            await make_scheduler(db).run_cycle()
    finally:
        await db.fetch_all(f"ALTER TABLE tenuto.{table_name} RENAME COLUMN test_away TO {column}")
    assert await db.fetch_value("SELECT planned FROM tenuto.schedules"), "worked out"
    assert await db.fetch_value("SELECT losses FROM tenuto.tasks") == 1, "taken back"


async def test_scheduler_cycle_with_a_failed_stage_raises(db: Database) -> None:
    schedule = await create_schedule(db, make_definition(trigger=ONCE_A_YEAR), db.clock.now())
    await make_due(db, schedule.name)
    await db.fetch_all("ALTER TABLE tenuto.schedules RENAME COLUMN misfire TO test_away")
    try:
        with pytest.raises(DatabaseError, match="misfire"):
            await make_scheduler(db).run_cycle()
    finally:
        await db.fetch_all("ALTER TABLE tenuto.schedules RENAME COLUMN test_away TO misfire")
    await make_scheduler(db).run_cycle()
    assert [decision for _, decision in await read_ledger(db)] == ["fired"]


async def test_two_running_schedulers_fire_each_due_instant_once(db: Database) -> None:
    now = db.clock.now()
    for number in range(20):
        await create_schedule(db, make_definition(name=f"s{number}", trigger=ONCE_A_YEAR), now)
        await make_due(db, f"s{number}")
    pair = make_scheduler(db), make_scheduler(db)
    while sum(each.fired_count for each in pair) < 20:
        await asyncio.gather(*(each.run_cycle() for each in pair))
    assert sum(each.fired_count for each in pair) == 20
    assert [decision for _, decision in await read_ledger(db)] == ["fired"] * 20


# --- the service ----------------------------------------------------------------------------------------------------


async def list_runs(app: Tenuto, name: str, **given: Any) -> Any:
    return await app.executions.list(schedule=name, **given)


@pytest.mark.slow
async def test_due_schedule_starts_within_a_second_of_its_instant(
    app: Tenuto, worker: WorkerFactory, bake: Step
) -> None:
    assert app.settings.scheduler_poll_seconds == POLL_SECONDS
    async with worker(), app.scheduler():
        await app.schedules.create(schedule_definition("ticks", every("1s"), [bake]))
        await eventually(lambda: has_three_completed_ticks(app))
    late = []
    for run in await list_runs(app, "ticks", state="completed"):
        begun = await (await app.open()).fetch_value(
            "SELECT min(claimed_at) FROM tenuto.activities WHERE execution_id = $1", run.id
        )
        late.append(begun - run.due_at)
    assert min(late) > timedelta(milliseconds=-5)
    assert sorted(late)[1] < timedelta(seconds=1)  # a short stall of the machine may delay one
    assert await read_repairs(await app.open()) == {}


async def has_three_completed_ticks(app: Tenuto) -> bool:
    return len(await list_runs(app, "ticks", state="completed")) >= 3


@pytest.mark.parametrize("change", ["create", "edit", "enable"])
async def test_change_of_a_schedule_wakes_the_scheduler(app: Tenuto, bake: Step, change: str) -> None:
    soon, never = schedule_definition("s", every("1s"), [bake]), schedule_definition("s", NIGHTLY, [bake])
    async with app.scheduler():
        if change == "edit":
            await app.schedules.create(never)
            await app.schedules.edit("s", soon)
        else:
            await app.schedules.create(soon, enabled=change == "create")
        if change == "enable":
            await app.schedules.enable("s")
        assert await eventually(lambda: list_runs(app, "s"), timeout=8)


async def test_scheduler_starts_a_queued_run_after_the_previous_execution(
    app: Tenuto, worker: WorkerFactory, bake: Step
) -> None:
    await app.schedules.create(schedule_definition("s", manual(), [bake], overlap="queue_one"))
    async with app.scheduler():
        first = await app.schedules.run("s")
        second = await app.schedules.run("s")
        assert (first.decision, second.decision) == ("fired", "queued")
        async with worker():
            await eventually(lambda: has_two_completed_runs(app), timeout=8)
    assert await read_repairs(await app.open()) == {}


async def has_two_completed_runs(app: Tenuto) -> bool:
    return len(await list_runs(app, "s", state="completed")) == 2


async def test_scheduler_is_registered_while_it_runs(app: Tenuto) -> None:
    async with app.scheduler(name="clock"):
        (one,) = await app.workers()
        assert (one.name, one.service) == ("clock", "scheduler")
    assert await app.workers() == []


async def test_scheduler_decides_missed_occurrences_at_its_start(app: Tenuto, bake: Step) -> None:
    await app.schedules.create(schedule_definition("s", cron("0 0 1 1 *"), [bake]))
    database = await app.open()
    due_at = await make_due(database, "s", timedelta(minutes=30))
    async with app.scheduler():
        (run,) = await eventually(lambda: list_runs(app, "s"))
    assert run.due_at == due_at
    (row,) = await app.schedules.ledger("s")
    assert (row.decision, row.execution_id) == ("fired", run.id)


async def test_ledger_of_a_busy_week_is_complete(db: Database) -> None:
    """Every instant of the trigger is in the ledger once, whenever schedulers run."""
    start = datetime.fromisoformat("2031-03-24T00:00:00+00:00")
    trigger = cron("*/30 1-4 * * *", zone="Europe/London")  # through the change of the clocks
    await create_schedule(db, make_definition(trigger=trigger, overlap="allow"), start)
    now = start
    for step in (7, 61, 30, 1440, 5, 333, 2880, 29, 31, 60, 1000, 3000):
        now += timedelta(minutes=step)
        await fire_due_schedules(db, now)
    expected, instant = [], trigger.next_after(start)
    while instant is not None and instant <= now:
        expected.append(instant)
        instant = trigger.next_after(instant)
    assert [row["due_at"] for row in await db.fetch_all("SELECT due_at FROM tenuto.occurrences ORDER BY 1")] == expected


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["cancel_previous", "queue_one"])
async def test_worker_starts_a_queued_run_without_a_scheduler(app: Tenuto, worker: WorkerFactory, overlap: str) -> None:
    is_over = threading.Event()

    @app.job
    async def wait() -> None:
        while not is_over.is_set():  # noqa: ASYNC110 — set in another thread
            await asyncio.sleep(0.02)

    await app.schedules.create(schedule_definition("s", manual(), [Step.job(wait)], overlap=overlap))
    async with worker():
        first = await app.schedules.run("s")
        assert first.execution_id is not None
        await eventually(lambda: find_running_step(app))
        second = await app.schedules.run("s")
        assert (second.decision, second.execution_id) == ("queued", None)
        if overlap == "cancel_previous":
            await eventually(lambda: has_ended(app, first.execution_id))
        is_over.set()
        await eventually(lambda: has_two_ended_runs(app), timeout=30)
    ended = {run.id: run.state for run in await list_runs(app, "s")}
    assert ended.pop(first.execution_id) == ("cancelled" if overlap == "cancel_previous" else "completed")
    assert list(ended.values()) == ["completed"]


async def has_ended(app: Tenuto, execution_id: Any) -> bool:
    return (await app.executions.get(execution_id)).ended_at is not None


async def has_two_ended_runs(app: Tenuto) -> bool:
    return len([run for run in await list_runs(app, "s") if run.ended_at is not None]) == 2


async def find_running_step(app: Tenuto) -> Any:
    return await (await app.open()).fetch_value("SELECT id FROM tenuto.tasks WHERE state = 'running'")
