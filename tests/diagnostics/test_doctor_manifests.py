"""The doctor on manifests, batches and dead letters: no findings for sound data, and one for each kind of damage."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tenuto.diagnostics.core_checks import Limits
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.model.triggers import every
from tenuto.operations.work import batches
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tests.diagnostics.test_doctor import execute_without_triggers, run_doctor
from tests.diagnostics.test_doctor_schedules import insert_scheduler
from tests.support.manifests import claim_runs, create_batch, create_manifest, finish_task, start_run
from tests.support.tasks import Register
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def partly_run_batch(db: Database, register_worker: Register) -> UUID:
    """A batch with one failed, two running and one waiting item; another manifest with a run; caps."""
    worker_id = await register_worker()
    stored = await create_manifest(db, group="g", max_active=2, trigger=every("1h"), now=db.clock.now())
    await db.fetch_all(
        "INSERT INTO tenuto.manifest_groups VALUES ('g', 2, 0, true, now(), 'me'), ('*', 2, 0, true, now(), 'me')"
    )
    batch = await create_batch(db, stored, 4)
    await start_run(db, await create_manifest(db, "other", priority=-9, now=db.clock.now()), db.clock.now())
    (failed,) = await claim_runs(db, worker_id, 1)
    await finish_task(db, failed, "failed")
    assert len(await claim_runs(db, worker_id)) == 2
    await insert_scheduler(db)
    return batch


async def test_doctor_reports_nothing_for_sound_manifests(
    database: Database, settings: Settings, partly_run_batch: UUID
) -> None:
    assert await run_doctor(database, settings) == {}


@pytest.mark.parametrize(
    ("statement", "name", "detail"),
    [
        (
            "DELETE FROM tenuto.dead_letters; UPDATE tenuto.activities SET ended_at = ended_at - interval '1 hour'",
            "dead_letter_missing",
            "(bake)",
        ),
        ("UPDATE tenuto.manifests SET max_active = 1", "manifest_cap_exceeded", "manifest bake: 2 active, 1 "),
        (
            "UPDATE tenuto.manifest_groups SET max_active = 1 WHERE name = 'g'",
            "manifest_cap_exceeded",
            "group g: 2 active",
        ),
        (
            "UPDATE tenuto.manifest_groups SET max_active = 1 WHERE name = '*'",
            "manifest_cap_exceeded",
            "all manifests: 2 active",
        ),
        (
            "DROP INDEX tenuto.tasks_one_run_per_manifest; UPDATE tenuto.tasks SET batch_id = NULL",
            "manifest_runs_overlap",
            "bake: 3 runs",
        ),
        ("DROP INDEX tenuto.tasks_one_per_item", "unique_keys_missing", "tasks_one_per_item is missing"),
        ("DROP INDEX tenuto.dead_letters_one_open", "unique_keys_missing", "dead_letters_one_open is missing"),
        (
            "DROP TRIGGER dead_letters_resolve_once ON tenuto.dead_letters",
            "triggers_missing",
            "dead_letters_resolve_once",
        ),
        ("DELETE FROM tenuto.manifests", "run_without_manifest", "(bake)"),
        (
            "DELETE FROM tenuto.tasks WHERE state = 'queued' AND batch_id IS NOT NULL",
            "batch_counts_wrong",
            "4 items, 2 open, 1 ended",
        ),
        ("DELETE FROM tenuto.activities", "batch_counts_wrong", "4 items, 3 open, 0 ended"),
        (
            "UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'queued' AND batch_id IS NOT NULL",
            "batch_change_incomplete",
            "tenuto batch resume",
        ),
        (
            "UPDATE tenuto.batches SET cancelled_at = now() - interval '1 hour', cancelled_by = 'me'",
            "batch_change_incomplete",
            "tenuto batch cancel",
        ),
        (
            "UPDATE tenuto.manifests SET planned = false, next_run_at = NULL, updated_at = now() - interval '1 day'",
            "manifest_without_next_run",
            "bake ",
        ),
        ("UPDATE tenuto.manifests SET next_run_at = NULL, planned = true", "next_run_unknown", "manifest bake "),
    ],
)
async def test_doctor_finds_damage_to_manifests(
    database: Database, settings: Settings, partly_run_batch: UUID, statement: str, name: str, detail: str
) -> None:
    await execute_without_triggers(database, statement)
    found = (await run_doctor(database, settings))[name]
    is_warning = name in ("manifest_cap_exceeded", "batch_change_incomplete", "manifest_without_next_run")
    assert found.severity is (Severity.WARNING if is_warning else Severity.PROBLEM)
    assert [each for each in found.details if detail in each], found.details


async def test_doctor_accepts_batch_that_is_being_resumed(
    database: Database, settings: Settings, partly_run_batch: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 1)
    batch = await create_batch(database, await create_manifest(database, "long", now=database.clock.now()), 200)
    await execute_without_triggers(database, "UPDATE tenuto.tasks SET state = 'waiting' WHERE batch_id = $1", batch)
    resuming: list[asyncio.Task[Any]] = []
    waiting = "SELECT count(*) FROM tenuto.tasks WHERE batch_id = $1 AND state = 'waiting'"

    async def wait_for_progress(seconds: float) -> None:
        assert seconds > 0
        before = await database.fetch_value(waiting, batch)

        async def has_progressed() -> bool:
            return resuming[0].done() or bool(await database.fetch_value(waiting, batch) < before)

        await eventually(has_progressed)

    def resume_before_check(finding: Finding, _number: int, _total: int) -> None:
        if finding.name == "batch_counts_wrong":  # the previous check
            resuming.append(asyncio.create_task(batches.resume_batch(database, batch, database.clock.now())))

    limits = Limits.from_settings(settings)
    found = await run_doctor(database, settings, limits=limits, report=resume_before_check, sleep=wait_for_progress)
    assert "batch_change_incomplete" not in found
    await resuming[0]


async def test_doctor_finds_unreadable_manifest(database: Database, settings: Settings, partly_run_batch: UUID) -> None:
    await database.fetch_all(
        """UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'bake'"""
    )
    found = (await run_doctor(database, settings))["next_run_unknown"]
    assert found.severity is Severity.WARNING
    assert found.details[0].startswith("manifest bake cannot be read")


async def test_doctor_accepts_waiting_items_of_paused_batch(
    database: Database, settings: Settings, partly_run_batch: UUID
) -> None:
    await execute_without_triggers(
        database,
        "UPDATE tenuto.batches SET paused_at = now(), paused_by = 'me';"
        "UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'queued' AND batch_id IS NOT NULL",
    )
    assert set(await run_doctor(database, settings)) == {"batch_paused"}
