"""The doctor on manifests, batches and letters: silent on sound data, and each kind of damage, done by hand, is
named."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tenuto.diagnostics import doctor
from tenuto.diagnostics.checks import Severity
from tenuto.diagnostics.checks import Finding
from tenuto.diagnostics.doctor import Limits
from tenuto.model.triggers import every
from tenuto.operations import batches
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tests.diagnostics.test_doctor import execute_without_triggers, run_doctor
from tests.support.manifests import create_batch, finish_task, create_manifest, start_run, claim_runs
from tests.support.tasks import Register
from tests.support.waiting import eventually


@pytest.fixture
async def busy(db: Database, register_worker: Register) -> UUID:
    """A batch, one item of which failed, two run and one waits; a manifest with a run of its own; caps."""
    me = await register_worker()
    stored = await create_manifest(db, group="g", max_active=2, trigger=every("1h"), now=db.clock.now())
    await db.fetch_all(
        "INSERT INTO tenuto.manifest_groups VALUES ('g', 2, 0, true, now(), 'me'), ('*', 2, 0, true, now(), 'me')"
    )
    batch = await create_batch(db, stored, 4)
    await start_run(db, await create_manifest(db, "other", priority=-9, now=db.clock.now()), db.clock.now())
    (failed,) = await claim_runs(db, me, 1)
    await finish_task(db, failed, "failed")
    assert len(await claim_runs(db, me)) == 2
    return batch


async def test_sound_manifests_leave_the_doctor_nothing_to_say(
    database: Database, settings: Settings, busy: UUID
) -> None:
    assert await run_doctor(database, settings) == {}


@pytest.mark.parametrize(
    ("damaged", "name", "said"),
    [
        (
            "DELETE FROM tenuto.dead_letters; UPDATE tenuto.activities SET ended_at = ended_at - interval '1 hour'",
            "dead_letter_missing",
            "(bake) failed for good",
        ),
        ("UPDATE tenuto.manifests SET max_active = 1", "manifest_cap_exceeded", "manifest bake: 2 active, 1 allowed"),
        ("UPDATE tenuto.manifest_groups SET max_active = 1 WHERE name = 'g'", "manifest_cap_exceeded", "group g: 2 active"),
        ("UPDATE tenuto.manifest_groups SET max_active = 1 WHERE name = '*'", "manifest_cap_exceeded", "all manifests: 2 active"),
        (
            "DROP INDEX tenuto.tasks_one_run_per_manifest; UPDATE tenuto.tasks SET batch_id = NULL",
            "manifest_runs_overlap",
            "bake: 3 runs are open",
        ),
        ("DROP INDEX tenuto.tasks_one_per_item", "unique_keys_missing", "tasks_one_per_item is missing"),
        ("DROP INDEX tenuto.dead_letters_one_open", "unique_keys_missing", "dead_letters_one_open is missing"),
        ("DROP TRIGGER dead_letters_resolve_once ON tenuto.dead_letters", "triggers_missing", "dead_letters_resolve_once"),
        ("DELETE FROM tenuto.manifests", "run_without_manifest", "which is not there"),
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
            "nobody has worked out",
        ),
        ("UPDATE tenuto.manifests SET next_run_at = NULL, planned = true", "next_run_unknown", "manifest bake would run"),
    ],
)  # fmt: skip
async def test_damage_to_manifests_is_found(
    database: Database, settings: Settings, busy: UUID, damaged: str, name: str, said: str
) -> None:
    await execute_without_triggers(database, damaged)
    found = (await run_doctor(database, settings))[name]
    warned = name in ("manifest_cap_exceeded", "batch_change_incomplete", "manifest_without_next_run")
    assert found.severity is (Severity.WARNING if warned else Severity.PROBLEM)
    assert [detail for detail in found.details if said in detail], found.details


async def test_a_resumption_that_is_under_way_is_not_taken_for_an_interrupted_one(
    database: Database, settings: Settings, busy: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 1)
    batch = await create_batch(database, await create_manifest(database, "long", now=database.clock.now()), 200)
    await execute_without_triggers(database, "UPDATE tenuto.tasks SET state = 'waiting' WHERE batch_id = $1", batch)
    at_it: list[asyncio.Task[Any]] = []
    waiting = "SELECT count(*) FROM tenuto.tasks WHERE batch_id = $1 AND state = 'waiting'"

    async def until_it_has_got_on(seconds: float) -> None:
        assert seconds > 0
        before = await database.fetch_value(waiting, batch)

        async def fewer_wait() -> bool:
            return at_it[0].done() or bool(await database.fetch_value(waiting, batch) < before)

        await eventually(fewer_wait)

    def begin(finding: Finding, _number: int, _of: int) -> None:
        if finding.name == "batch_counts_wrong":  # the question before
            at_it.append(asyncio.create_task(batches.resume_batch(database, batch, database.clock.now())))

    monkeypatch.setattr(doctor, "asyncio", SimpleNamespace(sleep=until_it_has_got_on, to_thread=asyncio.to_thread))
    assert "batch_change_incomplete" not in await run_doctor(database, settings, limits=Limits.from_settings(settings), report=begin)
    await at_it[0]


async def test_a_manifest_this_version_cannot_read_is_found(database: Database, settings: Settings, busy: UUID) -> None:
    await database.fetch_all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'bake'""")
    found = (await run_doctor(database, settings))["next_run_unknown"]
    assert found.severity is Severity.WARNING
    assert found.details[0].startswith("manifest bake cannot be read by this version: ")


async def test_a_paused_batch_may_wait(database: Database, settings: Settings, busy: UUID) -> None:
    await execute_without_triggers(
        database,
        "UPDATE tenuto.batches SET paused_at = now(), paused_by = 'me';"
        "UPDATE tenuto.tasks SET state = 'waiting' WHERE state = 'queued' AND batch_id IS NOT NULL",
    )
    assert await run_doctor(database, settings) == {}
