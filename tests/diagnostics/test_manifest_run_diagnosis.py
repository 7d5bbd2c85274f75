"""Diagnosis of manifest runs and batch items; it always agrees with the claim statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.definitions import manifest_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.diagnostics.reasons import Reason, ReasonCode
from tenuto.diagnostics.task_diagnosis import diagnose_task
from tenuto.operations.work import batches
from tenuto.postgres.database import Database
from tenuto.store.definitions.manifests import StoredManifest
from tenuto.store.work import tasks as store
from tests.diagnostics.test_task_diagnosis import Sql, insert_worker, reason_codes
from tests.support.manifests import ANA, LEASE, claim_runs, create_batch, create_manifest, reload_manifest, start_run

CLAIMABLE = {"free", "others_first"}
"""Reason codes of a task that a claim would take."""


@pytest.fixture
async def db(app: Tenuto) -> Database:
    return await app.open()


@pytest.fixture
async def worker_id(sql: Sql) -> UUID:
    return await insert_worker(sql, slots=100)


async def list_unclaimed_ids(db: Database) -> list[UUID]:
    """Return the ids of open tasks that do not run, in the order of claims."""
    rows = await db.fetch_all("SELECT id FROM tenuto.tasks WHERE state <> 'running' ORDER BY rank, run_at, id")
    return [row["id"] for row in rows]


async def load_reasons(db: Database, id: UUID) -> tuple[Reason, ...]:
    return (await diagnose_task(db, id)).reasons


async def change_group(db: Database, name: str, **changes: Any) -> None:
    await manifest_definitions.change_group(db, name, ChangeContext(ANA, db.clock.now()), **changes)


async def start_runs(db: Database, manifests: Sequence[StoredManifest]) -> list[UUID]:
    found = [await start_run(db, each, db.clock.now()) for each in manifests]
    assert None not in found
    return [id for id in found if id is not None]


async def test_why_names_active_runs_of_full_manifest(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, on_demand=True, max_active=1)
    await create_batch(db, stored, 3)
    (running,) = await claim_runs(db, worker_id)
    for id in await list_unclaimed_ids(db):
        (reason,) = await load_reasons(db, id)
        assert (reason.code, reason.ids) == (ReasonCode.MANIFEST_LIMIT, (running.id,))
        assert "manifest bake may run 1 at a time, and 1 is running" in reason.message


async def test_why_names_active_runs_of_full_manifest_group(db: Database, worker_id: UUID) -> None:
    await change_group(db, "kitchen", max_active=2)
    group = [await create_manifest(db, f"bake-{number}", on_demand=True, group="kitchen") for number in range(3)]
    alone = await create_manifest(db, "clean", on_demand=True)
    await start_runs(db, [*group, alone])
    taken = await claim_runs(db, worker_id)
    (id,) = await list_unclaimed_ids(db)
    (reason,) = await load_reasons(db, id)
    assert (reason.code, set(reason.ids)) == (
        ReasonCode.GROUP_LIMIT,
        {task.id for task in taken if task.manifest_id != alone.id},
    )
    assert "group kitchen may run 2 at a time, and 2 are running" in reason.message


async def test_why_reports_limit_of_all_manifests_for_runs_but_not_for_jobs(
    app: Tenuto, db: Database, worker_id: UUID
) -> None:
    @app.job
    async def quick() -> None: ...

    await change_group(db, "*", max_active=1)
    await start_runs(db, [await create_manifest(db, name, on_demand=True) for name in ("bake", "clean")])
    assert len(await claim_runs(db, worker_id)) == 1
    (id,) = await list_unclaimed_ids(db)
    (reason,) = await load_reasons(db, id)
    assert reason.code is ReasonCode.GROUP_LIMIT
    assert "all manifests together may run 1 at a time, and 1 is running" in reason.message
    other = await app.enqueue(quick)
    assert reason_codes(await app.why(other.id)) == ["free"]


@pytest.mark.parametrize(("name", "subject"), [("kitchen", "group kitchen"), ("*", "all manifests together")])
async def test_why_names_disabled_group_and_its_last_change(
    db: Database, worker_id: UUID, name: str, subject: str
) -> None:
    await start_runs(db, [await create_manifest(db, on_demand=True, group="kitchen")])
    (id,) = await list_unclaimed_ids(db)
    await change_group(db, name, enabled=False)
    assert await claim_runs(db, worker_id) == []
    (reason,) = await load_reasons(db, id)
    assert reason.code is ReasonCode.GROUP_DISABLED
    assert reason.message.startswith(subject)
    assert ANA.name in reason.message
    await change_group(db, name, enabled=True)
    assert [each.code for each in await load_reasons(db, id)] == [ReasonCode.FREE]
    assert len(await claim_runs(db, worker_id)) == 1


async def test_why_uses_the_group_at_enqueue_time(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, on_demand=True, group="kitchen")
    await start_runs(db, [stored])
    await db.fetch_all("UPDATE tenuto.manifests SET group_name = 'garden'")
    await change_group(db, "garden", enabled=False)
    (id,) = await list_unclaimed_ids(db)
    assert [each.code for each in await load_reasons(db, id)] == [ReasonCode.FREE]
    assert len(await claim_runs(db, worker_id)) == 1


async def test_why_ignores_limits_of_deleted_manifest(db: Database, worker_id: UUID) -> None:
    await create_batch(db, await create_manifest(db, on_demand=True, max_active=1), 3)
    assert len(await claim_runs(db, worker_id)) == 1
    await db.fetch_all("DELETE FROM tenuto.manifests")
    assert {each.code for id in await list_unclaimed_ids(db) for each in await load_reasons(db, id)} <= CLAIMABLE
    assert len(await claim_runs(db, worker_id)) == 2


async def test_why_names_actor_of_batch_pause_and_later_obstacles(db: Database, worker_id: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db, on_demand=True, group="kitchen"), 2)
    now = db.clock.now()
    await batches.pause_batch(db, batch, now, ANA)
    first, second = await list_unclaimed_ids(db)
    (reason,) = await load_reasons(db, first)
    assert (reason.code, reason.ids) == (ReasonCode.BATCH_PAUSED, (batch,))
    assert ANA.name in reason.message
    await change_group(db, "kitchen", enabled=False)
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now() + interval '1 hour', failures = 1 WHERE id = $1", second)
    assert [each.code for each in await load_reasons(db, second)] == [
        ReasonCode.BATCH_PAUSED,
        ReasonCode.BACKING_OFF,
        ReasonCode.GROUP_DISABLED,
    ]


async def test_why_names_the_command_that_completes_an_interrupted_batch_change(db: Database, worker_id: UUID) -> None:
    batch = await create_batch(db, await create_manifest(db, on_demand=True), 1)
    (id,) = await list_unclaimed_ids(db)
    await db.fetch_all("UPDATE tenuto.batches SET paused_at = now(), paused_by = 'ana'")
    assert await claim_runs(db, worker_id) == []
    assert [each.code for each in await load_reasons(db, id)] == [ReasonCode.BATCH_PAUSED]
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'waiting'")
    await db.fetch_all("UPDATE tenuto.batches SET paused_at = NULL, paused_by = NULL")
    (reason,) = await load_reasons(db, id)
    assert reason.code is ReasonCode.STUCK
    assert reason.command == f"tenuto batch resume {batch}"
    assert "scheduler" not in reason.message
    await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued'")
    await db.fetch_all("UPDATE tenuto.batches SET cancelled_at = now(), cancelled_by = 'ana'")
    assert await claim_runs(db, worker_id) == []
    (reason,) = await load_reasons(db, id)
    assert reason.code is ReasonCode.STOPPING
    assert reason.command == f"tenuto batch cancel {batch}"


async def test_why_reports_standby_task_that_uses_no_slot(app: Tenuto, db: Database, sql: Sql) -> None:
    @app.job
    async def quick() -> None: ...

    worker_id = await insert_worker(sql, slots=2)
    await create_batch(db, await create_manifest(db, on_demand=True, max_active=1), 3)
    (running,) = await claim_runs(db, worker_id)
    assert running.limit_slot is not None
    place = (-running.priority, running.run_at, running.id)
    ready = await store.claim_standby_tasks(db, worker_id, {running.limit_slot: place}, 1, LEASE, [])
    assert [each.code for each in await load_reasons(db, ready[0].id)] == [
        ReasonCode.STANDBY,
        ReasonCode.MANIFEST_LIMIT,
    ]
    assert [each.code for each in await load_reasons(db, running.id)] == [ReasonCode.RUNNING]
    other = await app.enqueue(quick)
    assert reason_codes(await app.why(other.id)) == ["free"]


async def test_why_agrees_with_claims_about_every_task(db: Database, worker_id: UUID) -> None:
    await change_group(db, "kitchen", max_active=3)
    await change_group(db, "*", max_active=6)
    await change_group(db, "off", enabled=False)
    plans: list[dict[str, Any]] = [
        {"group": "kitchen", "max_active": 2}, {"group": "kitchen"}, {"max_active": 1}, {}, {"group": "off"}
    ]  # fmt: skip
    for number, fields in enumerate(plans):
        stored = await create_manifest(db, f"m-{number}", on_demand=True, **fields)
        await create_batch(db, stored, 3)
        batch = await create_batch(db, await reload_manifest(db, f"m-{number}"), 1)
        if number == 3:
            await batches.pause_batch(db, batch, db.clock.now(), ANA)
    for _ in range(100):
        before = {id: {str(each.code) for each in await load_reasons(db, id)} for id in await list_unclaimed_ids(db)}
        taken = {task.id for task in await claim_runs(db, worker_id, 3)}
        assert all(before[id] <= CLAIMABLE for id in taken), "a claim took a task that has an obstacle"
        if taken:
            continue
        assert not any(codes & CLAIMABLE for codes in before.values()), "a task without an obstacle was not claimed"
        ended = await db.fetch_all(
            "DELETE FROM tenuto.tasks WHERE id = (SELECT id FROM tenuto.tasks WHERE state = 'running' LIMIT 1)"
            " RETURNING id"
        )
        if not ended:
            break
    rest = [await load_reasons(db, id) for id in await list_unclaimed_ids(db)]
    assert {each.code for reasons in rest for each in reasons} == {ReasonCode.GROUP_DISABLED, ReasonCode.BATCH_PAUSED}
