"""The doctor on schedules and executions: no findings for sound data, and one for each kind of damage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.ids import new_id
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.doctor_findings import Severity
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.settings import Settings
from tests.diagnostics.test_doctor import execute_without_triggers, run_doctor
from tests.races.execution_actions import create_plan, run_to_end
from tests.races.task_actions import ACTOR, claim

pytestmark = pytest.mark.slow

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = "Nightly"


async def run_schedule(db: Database) -> RunResult:
    now, request_id = db.clock.now(), new_id()
    return await db.transaction(
        lambda connection: firing.run_schedule(connection, NAME, now, ACTOR, request_id=request_id)
    )


@pytest.fixture
async def open_execution(db: Database, register_worker: RegisterWorker) -> UUID:
    """A schedule with an ended execution, and an open one with two running steps and a waiting one."""
    worker = await register_worker()
    author = ChangeContext(ACTOR, db.clock.now())
    await schedule_definitions.create(db, ScheduleDefinition(NAME, every("1h"), create_plan(2, 1)), author)
    await run_schedule(db)
    await run_to_end(db, worker)
    started = await run_schedule(db)
    assert started.execution_id is not None
    assert len(await claim(db, worker, 5)) == 2
    await insert_scheduler(db, started=timedelta())
    return started.execution_id


async def insert_scheduler(db: Database, *, started: timedelta = timedelta(hours=1)) -> None:
    await db.fetch_all("DELETE FROM tenuto.workers WHERE service = 'scheduler'")
    await db.fetch_all(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES ($1, 'punctual', 'scheduler', 'here', 'boot', 1, '0', '{}', 0, $2, now())",
        new_id(),
        datetime.now(UTC) - started,
    )


async def test_doctor_reports_nothing_for_sound_executions(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await insert_scheduler(database)
    assert await run_doctor(database, settings) == {}


async def test_doctor_accepts_paused_execution_without_open_step(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all(
        "UPDATE tenuto.tasks SET state = 'waiting', worker_id = NULL, lease_until = NULL, claimed_at = NULL"
    )
    assert set(await run_doctor(database, settings)) == {"execution_stuck"}
    await database.fetch_all("UPDATE tenuto.executions SET paused_at = now() WHERE ended_at IS NULL")
    assert set(await run_doctor(database, settings)) == {"execution_paused"}


DAMAGES = {
    "execution_stuck": (
        "DELETE FROM tenuto.tasks WHERE group_index = 0",
        "(Nightly) is in_progress in group 0",
    ),
    "step_before_its_group": (
        "UPDATE tenuto.tasks SET state = 'queued' WHERE group_index = 1",
        "of group 1 is queued while group 0",
    ),
    "step_before_its_group: left behind": (
        "UPDATE tenuto.executions SET current_group = 1 WHERE ended_at IS NULL",
        "of group 0 is running while group 1",
    ),
    "step_without_execution": ("DELETE FROM tenuto.executions WHERE ended_at IS NULL", "is a step of execution "),
    "step_after_execution_end": (
        "UPDATE tenuto.executions SET state = 'completed', ended_at = now() WHERE ended_at IS NULL",
        "has ended as completed",
    ),
    "cancelled_step_not_stopping": (
        "UPDATE tenuto.executions SET state = 'cancelled' WHERE ended_at IS NULL",
        "is waiting, and its execution ",
    ),
    "step_end_not_recorded_once": (
        "DELETE FROM tenuto.activities WHERE step_index = 1",
        "(Nightly) has 3 steps and 2 ",
    ),
    "step_end_not_recorded_once: twice": (
        "UPDATE tenuto.activities SET step_index = 0",
        "(Nightly) has 3 steps and 3 ",
    ),
    "step_waits_for_ended_execution": (
        "UPDATE tenuto.tasks SET waits_for = gen_random_uuid() WHERE group_index = 1",
        "waits for execution ",
    ),
    "fired_without_execution": ("DELETE FROM tenuto.executions WHERE ended_at IS NOT NULL", "Nightly, due at"),
    "execution_without_occurrence": ("DELETE FROM tenuto.occurrences", "was started by manual"),
}


@pytest.mark.parametrize("case", DAMAGES)
async def test_doctor_finds_damage_to_executions(
    database: Database, settings: Settings, open_execution: UUID, case: str
) -> None:
    name, (statement, detail) = case.partition(":")[0], DAMAGES[case]
    await execute_without_triggers(database, statement)
    found = (await run_doctor(database, settings))[name]
    assert found.severity is (Severity.WARNING if name == "step_waits_for_ended_execution" else Severity.PROBLEM)
    assert [each for each in found.details if detail in each], found.details


async def test_doctor_finds_overlapping_executions_and_the_missing_key(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all("DROP INDEX tenuto.executions_one_active")
    (detail,) = (await run_doctor(database, settings))["unique_keys_missing"].details
    assert detail.startswith("executions_one_active ")
    await execute_without_triggers(
        database,
        "UPDATE tenuto.executions SET ended_at = NULL, state = 'in_progress' WHERE ended_at IS NOT NULL",
    )
    (detail,) = (await run_doctor(database, settings))["overlapping_executions"].details
    assert detail.startswith("Nightly: 2 ")


@pytest.mark.parametrize("key", ["occurrences_once", "occurrences_one_queued"])
async def test_doctor_finds_key_that_is_not_unique(database: Database, settings: Settings, key: str) -> None:
    await database.fetch_all(f"DROP INDEX tenuto.{key}")
    await database.fetch_all(f"CREATE INDEX {key} ON tenuto.occurrences (schedule_id)")
    found = (await run_doctor(database, settings))["unique_keys_missing"]
    assert found.severity is Severity.PROBLEM
    assert [detail.split()[0] for detail in found.details] == [key]


@pytest.mark.parametrize(
    ("table", "trigger"), [("executions", "executions_end_once"), ("occurrences", "occurrences_are_decided_once")]
)
async def test_doctor_finds_disabled_trigger(database: Database, settings: Settings, table: str, trigger: str) -> None:
    await database.fetch_all(f"ALTER TABLE tenuto.{table} DISABLE TRIGGER {trigger}")
    (detail,) = (await run_doctor(database, settings))["triggers_missing"].details
    assert detail == f"{trigger} is disabled on tenuto.{table}"


async def test_doctor_finds_overdue_schedule_with_and_without_scheduler(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = now() - interval '61 s'")
    await database.fetch_all("DELETE FROM tenuto.workers WHERE service = 'scheduler'")
    found = (await run_doctor(database, settings))["scheduler_missing"]
    assert found.severity is Severity.WARNING
    assert found.details == ["no scheduler is running: 1 schedule will not fire (Nightly)"]

    await insert_scheduler(database)
    found = (await run_doctor(database, settings))["schedule_overdue"]
    assert found.severity is Severity.PROBLEM
    assert "scheduler punctual" in found.details[0]

    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = now() - interval '30 s'")
    assert set(await run_doctor(database, settings)) == {"run_late"}


async def test_doctor_gives_a_new_scheduler_time_to_fire(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await insert_scheduler(database, started=timedelta(seconds=5))
    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = now() - interval '2 h'")
    assert set(await run_doctor(database, settings)) == {"run_late"}


async def test_doctor_finds_schedule_without_computed_next_run(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET planned = false, next_run_at = NULL")
    assert await run_doctor(database, settings) == {}
    await database.fetch_all("UPDATE tenuto.schedules SET updated_at = now() - interval '2 min'")
    assert set(await run_doctor(database, settings)) == {"schedule_without_next_run"}


async def test_doctor_finds_lost_next_run_and_its_remedy_restores_it(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = NULL, planned = true")
    found = (await run_doctor(database, settings))["next_run_unknown"]
    assert found.severity is Severity.PROBLEM
    assert found.details[0].startswith("schedule Nightly ")
    assert "tenuto schedule disable NAME" in (found.remedy or "")
    for enabled in (False, True):
        await schedule_definitions.set_enabled(
            database, NAME, ChangeContext(ACTOR, database.clock.now()), enabled=enabled
        )
    assert await run_doctor(database, settings) == {}


@pytest.mark.parametrize("planned", ["true", "false"])
async def test_doctor_finds_unreadable_schedule_but_not_a_finished_one(
    database: Database, settings: Settings, open_execution: UUID, planned: str
) -> None:
    finished = """next_run_at = NULL, trigger = trigger || '{"end": "2020-01-01"}'"""
    await database.fetch_all(f"UPDATE tenuto.schedules SET {finished}")
    assert await run_doctor(database, settings) == {}
    await database.fetch_all(f"UPDATE tenuto.schedules SET plan = '[[{{}}]]', planned = {planned}")
    found = (await run_doctor(database, settings))["next_run_unknown"]
    assert found.severity is Severity.WARNING
    assert found.details[0].startswith("schedule Nightly cannot be read")


async def test_doctor_finds_unreadable_queued_request(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET overlap = 'queue_one'")
    assert (await run_schedule(database)).decision == "queued"
    assert await run_doctor(database, settings) == {}
    await database.fetch_all("""UPDATE tenuto.occurrences SET request = '{"a": 1}' WHERE decision = 'queued'""")
    found = (await run_doctor(database, settings))["next_run_unknown"]
    assert found.severity is Severity.WARNING
    assert "a run of Nightly" in found.details[0]
    assert "cannot be read" in found.details[0]


async def test_doctor_finds_queued_run_that_is_not_started(
    database: Database, settings: Settings, open_execution: UUID
) -> None:
    await database.fetch_all(
        "INSERT INTO tenuto.occurrences"
        " (id, schedule_id, schedule_name, due_at, origin, decision, turn, decided_at, decided_by)"
        " SELECT $1, id, name, now() - interval '2 min', 'trigger', 'queued', 'overlap', now() - interval '2 min', 'x'"
        " FROM tenuto.schedules",
        new_id(),
    )
    assert await run_doctor(database, settings) == {}
    await execute_without_triggers(
        database, "UPDATE tenuto.executions SET ended_at = now() - interval '90 s', state = 'completed'"
    )
    assert "queued_run_not_started" in await run_doctor(database, settings)
