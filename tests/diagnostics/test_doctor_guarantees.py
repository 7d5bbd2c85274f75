"""The doctor and the sixteen promises of docs/guarantees.md: for each there is a check, and damage that it finds."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned import ChangeContext
from tenuto.diagnostics import deep_checks
from tenuto.diagnostics.checks import CHECKS, Severity
from tenuto.diagnostics.checks import Finding
from tenuto.diagnostics.doctor import examine
from tenuto.model.schedules import ScheduleDefinition
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.settings import Settings, load_settings
from tests.diagnostics.test_doctor import execute_without_triggers, run_doctor, fail_task_three_times, insert_task
from tests.races.execution_actions import plan_of, run_to_the_end
from tests.races.task_actions import SOMEBODY

RegisterWorker = Callable[..., Awaitable[UUID]]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
OTHER_CHECKS = {"server", "clock", "schema", "disk", "partitions", "audit", "occurrence_missing", "secret_exposed"}
OTHER_CHECKS |= {"next_run_unknown"}
"""What the doctor looks at beside the list of rules."""


def test_every_promise_has_its_checks_and_tests_that_plant_the_damage() -> None:
    rows = re.findall(r"^\| I(\d+) \| .+? \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 17))
    known = {rule.name for rule in CHECKS} | OTHER_CHECKS
    for number, checks, tests in rows:
        named = set(re.findall(r"`(\w+)`", checks))
        assert named, f"I{number} has no check"
        assert named <= known, f"I{number}: {named - known} is no check of the doctor"
        for words, file in re.findall(r"\[([^\]]+)\]\(\.\./([^)]+)\)", tests):
            source = (PAGE.parents[1] / file).read_text(encoding="utf-8")
            assert f"def test_{words.replace(' ', '_').replace('-', '_')}(" in source, f"I{number}: {words}"
        assert "](../tests/" in tests, f"I{number} has no test"


# ---- tasks


async def test_an_attempt_after_a_success_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    task = await fail_task_three_times(app)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET status = 'completed' WHERE task_id = $1 AND attempt = 1", task)
    found = (await run_doctor(database, settings))["attempt_after_success"]
    assert found.severity is Severity.PROBLEM
    assert str(task) in found.details[0]
    assert found.details[0].endswith("attempt 2 came after one that had completed")


async def test_an_attempt_under_an_old_fence_is_found(app: Tenuto, database: Database, settings: Settings) -> None:
    task = await fail_task_three_times(app)
    await execute_without_triggers(database, "UPDATE tenuto.activities SET fence = 1 WHERE task_id = $1 AND attempt = 3", task)
    found = (await run_doctor(database, settings))["fence_not_increased"]
    assert "has fence 1, the one before it 2" in found.details[0]


async def test_a_task_that_should_have_been_set_aside_is_found(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    task = await insert_task(database, None)
    await database.fetch_all(
        "UPDATE tenuto.tasks SET attempt = 4, losses = 3, activity_id = gen_random_uuid() WHERE id = $1", task
    )
    found = (await run_doctor(database, settings))["poison_task_open"]
    assert f"task {task} (work) has lost 3 workers and is queued" in found.details


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE tenuto.tasks DROP CONSTRAINT tasks_running_means_held", "tasks_running_means_held"),
        ("ALTER TABLE tenuto.executions ALTER COLUMN plan DROP NOT NULL", "executions.plan NOT NULL"),
        ("ALTER TABLE tenuto.audit ALTER COLUMN actor_name DROP NOT NULL", "audit.actor_name NOT NULL"),
    ],
)
async def test_a_condition_that_is_gone_is_found(
    database: Database, settings: Settings, statement: str, named: str
) -> None:
    await database.fetch_all(statement)
    found = (await run_doctor(database, settings))["constraints_missing"]
    assert found.details == [f"{named} is missing or not valid"]


# ---- executions and the ledger


@pytest.fixture
async def ran(db: Database, register_worker: RegisterWorker) -> UUID:
    """A schedule every minute that has fired five times, each run to its end."""
    worker = await register_worker()
    began = db.clock.now() - timedelta(minutes=6)
    made = await schedule_definitions.create(
        db, ScheduleDefinition("Nightly", every("1m"), plan_of(2, 1)), ChangeContext(SOMEBODY, began)
    )
    for minute in range(1, 6):
        assert await firing.fire_due_schedules(db, began + timedelta(minutes=minute), "test")
        await run_to_the_end(db, worker)
    await db.fetch_all("DELETE FROM tenuto.tasks")
    return made.id


async def test_a_ledger_without_gaps_is_sound_and_a_row_that_is_missing_is_found(
    database: Database, settings: Settings, ran: UUID
) -> None:
    assert "occurrence_missing" not in await run_doctor(database, settings)
    (third,) = await database.fetch_all("SELECT due_at FROM tenuto.occurrences ORDER BY due_at OFFSET 2 LIMIT 1")
    await execute_without_triggers(database, "DELETE FROM tenuto.occurrences WHERE due_at = $1", third["due_at"])
    found = (await run_doctor(database, settings))["occurrence_missing"]
    assert found.severity is Severity.PROBLEM
    assert found.details == [f"Nightly: nothing is told of {third['due_at']:%Y-%m-%d %H:%M:%S} UTC"]
    assert "tenuto schedule run" in (found.remedy or "")


async def test_a_next_run_that_leaps_over_a_due_instant_is_found(
    database: Database, settings: Settings, ran: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = next_run_at + interval '2 minutes'")
    found = (await run_doctor(database, settings))["occurrence_missing"]
    assert len(found.details) == 1


async def test_a_step_that_began_before_its_turn_is_found(database: Database, settings: Settings, ran: UUID) -> None:
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET claimed_at = claimed_at - interval '1 hour' WHERE group_index = 1"
    )
    found = (await run_doctor(database, settings))["step_started_too_early"]
    assert len(found.details) == 5
    assert "step 2 of group 1 began before step 0 had ended" in found.details[0]


async def test_a_plan_that_was_changed_under_way_is_found(database: Database, settings: Settings, ran: UUID) -> None:
    await execute_without_triggers(database, "UPDATE tenuto.executions SET plan = plan - 1 WHERE due_at = (SELECT max(due_at) FROM"
                           " tenuto.executions)")  # fmt: skip
    found = (await run_doctor(database, settings))["plan_changed"]
    assert "(Nightly): 1 groups and 2 steps, begun with 2 and 3" in found.details[0]


# ---- secrets


async def test_a_secret_in_the_open_is_found_and_not_told(
    app: Tenuto, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_MASTER_KEY", "bWFzdGVyIGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzISE=")
    settings = load_settings(database=settings.database, home=settings.home)
    app.settings = settings
    await app.secrets.set("password", "hush-hush-4711")
    assert "secret_exposed" not in await run_doctor(database, settings)
    task = await insert_task(database, None, input='{"login": "aHVzaC1odXNoLTQ3MTE="}')
    found = (await run_doctor(database, settings))["secret_exposed"]
    assert found.severity is Severity.PROBLEM
    assert found.details == [f"the value of 'password' stands in task {task}"]
    assert "hush" not in str(found)


async def test_texts_of_any_number_are_searched_in_little_memory(
    app: Tenuto, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_MASTER_KEY", "bWFzdGVyIGtleSBmb3IgdGVzdHMsIDMyIGJ5dGVzISE=")
    settings = load_settings(database=settings.database, home=settings.home)
    app.settings = settings
    await app.secrets.set("password", "hush-hush-4711")
    await database.fetch_all(
        "INSERT INTO tenuto.log_entries (log, at, message, key)"
        " SELECT 'long ' || n, now(), repeat('x', 200000) || CASE n WHEN 299 THEN 'hush-hush-4711' ELSE '' END,"
        " gen_random_uuid() FROM generate_series(1, 300) AS n"
    )
    tracemalloc.start()
    try:
        found = await deep_checks.check_exposed_secrets(database, settings, 5_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.details == ["the value of 'password' stands in log long 299"]
    assert peak < 20_000_000, "of sixty million"


# ---- the report


async def test_the_doctor_tells_how_far_he_has_come(database: Database, settings: Settings) -> None:
    told: list[tuple[str, int, int]] = []

    def hear(finding: Finding, number: int, of: int) -> None:
        told.append((finding.name, number, of))

    findings = await examine(database, settings, report=hear)
    assert [name for name, *_ in told] == [finding.name for finding in findings]
    assert [number for _, number, _ in told] == list(range(1, len(findings) + 1))
    assert {of for *_, of in told} == {len(findings)}
