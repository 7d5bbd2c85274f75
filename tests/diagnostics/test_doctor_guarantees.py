"""The doctor and the sixteen invariants of docs/guarantees.md: each has a check that finds planted damage."""

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
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.diagnostics import deep_checks
from tenuto.diagnostics.attention import AttentionCode
from tenuto.diagnostics.statement_checks import CHECKS
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.settings import Settings, load_settings
from tests.diagnostics.test_doctor import execute_without_triggers, fail_task_three_times, insert_task, run_doctor
from tests.races.execution_actions import create_plan, run_to_end
from tests.races.task_actions import ACTOR
from tests.support.doctor import run_checks

pytestmark = pytest.mark.slow

RegisterWorker = Callable[..., Awaitable[UUID]]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
OTHER_CHECKS = {"server", "clock", "schema", "disk", "partitions", "audit", "occurrence_missing", "secret_exposed"}
OTHER_CHECKS |= {"next_run_unknown", *AttentionCode}
"""Checks that are not in statement_checks.toml."""


def test_guarantees_page_names_checks_and_tests_of_every_invariant() -> None:
    rows = re.findall(r"^\| I(\d+) \| .+? \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 17))
    known = {check.name for check in CHECKS} | OTHER_CHECKS
    for number, checks, tests in rows:
        named = set(re.findall(r"`(\w+)`", checks))
        assert named, f"I{number} has no check"
        assert named <= known, f"I{number}: {named - known} is no check of the doctor"
        for title, file in re.findall(r"\[([^\]]+)\]\(\.\./([^)]+)\)", tests):
            test_names = re.findall(r"def test_(\w+)\(", (PAGE.parents[1] / file).read_text(encoding="utf-8"))
            assert title.replace(" ", "_") in test_names, f"I{number}: {title}"
        assert "](../tests/" in tests, f"I{number} has no test"


# ---- tasks


async def test_doctor_finds_attempt_after_success(app: Tenuto, database: Database, settings: Settings) -> None:
    task = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET status = 'completed' WHERE task_id = $1 AND attempt = 1", task
    )
    found = (await run_doctor(database, settings))["attempt_after_success"]
    assert found.severity is Severity.PROBLEM
    assert f"task {task}" in found.details[0]
    assert "attempt 2" in found.details[0]


async def test_doctor_finds_attempt_with_old_fence(app: Tenuto, database: Database, settings: Settings) -> None:
    task = await fail_task_three_times(app)
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET fence = 1 WHERE task_id = $1 AND attempt = 3", task
    )
    found = (await run_doctor(database, settings))["fence_not_increased"]
    assert re.search(r"fence 1\b.* 2$", found.details[0])


async def test_doctor_finds_open_poison_task(
    app: Tenuto, database: Database, settings: Settings, register_worker: RegisterWorker
) -> None:
    task = await insert_task(database, None)
    await database.fetch_all(
        "UPDATE tenuto.tasks SET attempt = 4, losses = 3, activity_id = gen_random_uuid() WHERE id = $1", task
    )
    found = (await run_doctor(database, settings))["poison_task_open"]
    assert f"task {task} (work) has lost 3 workers" in found.details[0]


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("ALTER TABLE tenuto.tasks DROP CONSTRAINT tasks_running_means_held", "tasks_running_means_held"),
        ("ALTER TABLE tenuto.executions ALTER COLUMN plan DROP NOT NULL", "executions.plan NOT NULL"),
        ("ALTER TABLE tenuto.audit ALTER COLUMN actor_name DROP NOT NULL", "audit.actor_name NOT NULL"),
    ],
)
async def test_doctor_finds_missing_constraint(
    database: Database, settings: Settings, statement: str, constraint: str
) -> None:
    await database.fetch_all(statement)
    found = (await run_doctor(database, settings))["constraints_missing"]
    assert [detail.partition(" is ")[0] for detail in found.details] == [constraint]


# ---- executions and the ledger


@pytest.fixture
async def fired_schedule(db: Database, register_worker: RegisterWorker) -> UUID:
    """A schedule that has fired every minute, five times; all executions have ended."""
    worker = await register_worker()
    started_at = db.clock.now() - timedelta(minutes=6)
    schedule = await schedule_definitions.create(
        db, ScheduleDefinition("Nightly", every("1m"), create_plan(2, 1)), ChangeContext(ACTOR, started_at)
    )
    for minute in range(1, 6):
        assert await firing.fire_due_schedules(db, started_at + timedelta(minutes=minute), "test")
        await run_to_end(db, worker)
    await db.fetch_all("DELETE FROM tenuto.tasks")
    return schedule.id


async def test_doctor_finds_missing_occurrence(database: Database, settings: Settings, fired_schedule: UUID) -> None:
    assert "occurrence_missing" not in await run_doctor(database, settings)
    (third,) = await database.fetch_all("SELECT due_at FROM tenuto.occurrences ORDER BY due_at OFFSET 2 LIMIT 1")
    await execute_without_triggers(database, "DELETE FROM tenuto.occurrences WHERE due_at = $1", third["due_at"])
    found = (await run_doctor(database, settings))["occurrence_missing"]
    assert found.severity is Severity.PROBLEM
    (detail,) = found.details
    assert "Nightly" in detail
    assert f"{third['due_at']:%Y-%m-%d %H:%M:%S} UTC" in detail
    assert "tenuto schedule run" in (found.remedy or "")


async def test_doctor_finds_next_run_that_skips_a_due_instant(
    database: Database, settings: Settings, fired_schedule: UUID
) -> None:
    await database.fetch_all("UPDATE tenuto.schedules SET next_run_at = next_run_at + interval '2 minutes'")
    found = (await run_doctor(database, settings))["occurrence_missing"]
    assert len(found.details) == 1


async def test_doctor_finds_step_started_too_early(
    database: Database, settings: Settings, fired_schedule: UUID
) -> None:
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET claimed_at = claimed_at - interval '1 hour' WHERE group_index = 1"
    )
    found = (await run_doctor(database, settings))["step_started_too_early"]
    assert len(found.details) == 5
    assert re.search(r"step 2 of group 1 .* step 0\b", found.details[0])


async def test_doctor_does_not_expect_steps_with_edges_to_wait_for_their_group(
    database: Database, settings: Settings, fired_schedule: UUID
) -> None:
    await execute_without_triggers(
        database, "UPDATE tenuto.activities SET claimed_at = claimed_at - interval '1 hour' WHERE group_index = 1"
    )
    await execute_without_triggers(database, "UPDATE tenuto.executions SET step_dependencies = 'by_step'")
    assert "step_started_too_early" not in await run_doctor(database, settings)


async def test_doctor_finds_plan_changed_during_execution(
    database: Database, settings: Settings, fired_schedule: UUID
) -> None:
    await execute_without_triggers(
        database,
        "UPDATE tenuto.executions SET plan = plan - 1 WHERE due_at = (SELECT max(due_at) FROM tenuto.executions)",
    )
    found = (await run_doctor(database, settings))["plan_changed"]
    assert re.search(r"\(Nightly\): 1 groups and 2 steps, .* 2 and 3$", found.details[0])


# ---- secrets


async def test_doctor_finds_exposed_secret_without_showing_it(
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
    (detail,) = found.details
    assert "'password'" in detail
    assert detail.endswith(f" task {task}")
    assert "hush" not in str(found)


async def test_doctor_searches_large_texts_in_bounded_memory(
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
    (detail,) = found.details
    assert "'password'" in detail
    assert detail.endswith(" log long 299")
    assert peak < 20_000_000, "the texts have 60 million characters"


# ---- the report


async def test_doctor_reports_its_progress(database: Database, settings: Settings) -> None:
    reports: list[tuple[str, int, int]] = []

    def record(finding: Finding, number: int, total: int) -> None:
        reports.append((finding.name, number, total))

    findings = await run_checks(database, settings, report=record)
    assert [name for name, *_ in reports] == [finding.name for finding in findings]
    assert [number for _, number, _ in reports] == list(range(1, len(findings) + 1))
    assert {total for *_, total in reports} == {len(findings)}
