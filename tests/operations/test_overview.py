"""The overview: figures of queues, and what needs attention."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.maintenance.activity_rollups import add_ended_activities
from tenuto.model.work.rollups import floor_to_bucket
from tenuto.operations.overview import Overview, make_overview
from tenuto.postgres.database import Database
from tenuto.presentation.overview_views import describe_attention
from tenuto.settings import load_settings
from tenuto.store.reports.overview import load_overview_facts
from tenuto.store.work import workers
from tests.maintenance.test_activity_rollups import write_activity
from tests.support.manifests import create_manifest, finish_all_runs, start_run
from tests.support.schedules import (
    ANA,
    create_schedule,
    make_definition,
    run_claimable_steps,
    run_schedule_now,
    start_execution,
)
from tests.support.tasks import Register, claim, create_task


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def read_overview(db: Database) -> Overview:
    return make_overview(await load_overview_facts(db))


async def test_overview_of_an_empty_installation_names_nothing(db: Database) -> None:
    found = await read_overview(db)
    assert (found.running_count, found.waiting_count, found.oldest_due_at) == (0, 0, None)
    assert describe_attention(found) == []
    steps = found.first_steps
    assert (steps.has_worker, steps.has_definition, steps.has_run) == (False, False, False)


async def test_overview_counts_waiting_and_running_tasks_by_queue(db: Database, worker_id: UUID) -> None:
    for _ in range(3):
        await create_task(db)
    await create_task(db, queue="mail")
    await create_task(db, queue="mail", limit_key="k", limit_max=1)
    await claim(db, worker_id, limit=1)
    async with db.connection() as connection:
        await workers.limit_queue(connection, "mail", 7)
    found = await read_overview(db)
    queues = {each.name: each for each in found.queues}
    assert (found.running_count, found.waiting_count) == (1, 4)
    assert (queues["default"].waiting_count, queues["default"].running_count) == (2, 1)
    assert (queues["mail"].waiting_count, queues["mail"].max_running) == (2, 7)
    assert queues["default"].in_per_minute >= 3
    assert found.oldest_due_at == queues["default"].oldest_due_at


async def test_overview_rates_come_from_ended_attempts(db: Database) -> None:
    now = db.clock.now()
    async with db.connection() as connection:
        for _ in range(6):
            await write_activity(connection, floor_to_bucket(now, 10) - timedelta(seconds=25), queue="mail")
        await write_activity(connection, now - timedelta(minutes=20), "failed", queue="mail")
    await add_ended_activities(db, now)
    for _ in range(3):
        await create_task(db, queue="mail")
    found = await read_overview(db)
    (queue,) = found.queues
    assert (found.finished_per_minute, found.failed_last_hour_count) == (6, 1)
    assert (queue.out_per_minute, queue.empty_in_seconds) == (6, 30.0)


async def test_overview_names_queues_that_no_live_worker_serves(db: Database, worker_id: UUID) -> None:
    await create_task(db, queue="mail")
    await create_task(db, queue="default")
    found = await read_overview(db)
    assert [(each.name, each.waiting_count) for each in found.unserved_queues] == [("mail", 1)]
    await db.fetch_all("UPDATE tenuto.workers SET draining_at = now() WHERE id = $1", worker_id)
    assert {each.name for each in (await read_overview(db)).unserved_queues} == {"mail", "default"}
    async with db.connection() as connection:
        await workers.pause_queue(connection, "mail", by="ana", reason="server down")
    paused = await read_overview(db)
    assert [each.name for each in paused.unserved_queues] == ["default"]
    (one,) = paused.paused
    assert (one.kind, one.name, one.paused_by, one.reason) == ("queue", "mail", "ana", "server down")
    texts = describe_attention(paused)
    assert any(text.startswith("queue mail is paused by ana: server down; 1 task waiting · ") for text in texts)


async def test_overview_names_dead_workers_and_when_their_tasks_are_recovered(db: Database, worker_id: UUID) -> None:
    await create_task(db)
    (task,) = await claim(db, worker_id)
    assert (await read_overview(db)).silent_processes == []
    await db.fetch_all(
        "UPDATE tenuto.workers SET silence_limit = interval '30 s', seen_at = now() - interval '40 s' WHERE id = $1",
        worker_id,
    )
    (silent,) = (await read_overview(db)).silent_processes
    assert (silent.service, silent.running_count) == ("worker", 1)
    assert silent.silent_seconds >= 40
    lease_until = await db.fetch_value("SELECT lease_until FROM tenuto.tasks WHERE id = $1", task.id)
    assert silent.recovered_at == lease_until


async def test_overview_names_failed_executions_until_one_completes(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    await run_claimable_steps(db, worker_id)
    await run_claimable_steps(db, worker_id, b="failed")
    (failed,) = (await read_overview(db)).unresolved_executions
    assert (failed.id, failed.schedule_name, failed.current_group, failed.group_count) == (run, "Nightly", 1, 2)
    assert failed.running_id is None
    second = (await run_schedule_now(db, now=db.clock.now())).execution_id
    (failed,) = (await read_overview(db)).unresolved_executions
    assert (failed.id, failed.running_id) == (run, second)
    await run_claimable_steps(db, worker_id)
    await run_claimable_steps(db, worker_id)
    assert (await read_overview(db)).unresolved_executions == []


async def test_overview_groups_open_dead_letters_by_failure(db: Database, worker_id: UUID) -> None:
    for name in ("bills", "mail"):
        await start_run(db, await create_manifest(db, name))
        await finish_all_runs(db, worker_id, "failed")
    found = await read_overview(db)
    assert found.open_dead_letter_count == 2
    assert sum(each.dead_letter_count for each in found.failures) == 2
    assert {name for each in found.failures for name in each.external_ids} == {"bills", "mail"}


async def test_overview_lists_late_and_next_runs(db: Database) -> None:
    now = db.clock.now()
    await create_schedule(db, make_definition(name="late"), now)
    await create_schedule(db, make_definition(name="soon"), now)
    for name, seconds in (("late", -30), ("soon", 60)):
        await db.fetch_all(
            "UPDATE tenuto.schedules SET next_run_at = $1, planned = true WHERE name = $2",
            now + timedelta(seconds=seconds),
            name,
        )
    found = await read_overview(db)
    assert [each.name for each in found.late_runs] == ["late"]
    assert [each.name for each in found.next_runs] == ["late", "soon"]


async def test_overview_is_computed_once_per_second_for_all_callers(url: str, tmp_path: Path) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    try:
        first = await app.reports.overview()
        assert await app.reports.overview() is first
        assert await app.acting_as(ANA).reports.overview() is first
    finally:
        await app.close()


async def test_overview_names_recent_repairs(db: Database) -> None:
    async with db.connection() as connection:
        await workers.count_repair(connection, "lost_tasks", 2)
    (repair,) = (await read_overview(db)).repairs
    assert (repair.repair, repair.total_count) == ("lost_tasks", 2)
    await db.fetch_all("UPDATE tenuto.repairs SET last_at = now() - interval '25 h'")
    assert (await read_overview(db)).repairs == []


async def test_overview_names_paused_executions(db: Database) -> None:
    run = await start_execution(db, "a")
    await db.fetch_all("UPDATE tenuto.executions SET paused_at = now(), paused_by = 'ana' WHERE id = $1", run)
    (paused,) = (await read_overview(db)).paused
    assert (paused.kind, paused.id, paused.name, paused.paused_by) == ("execution", str(run), "Nightly", "ana")


async def test_overview_names_bulk_operations_that_ended_with_failures(db: Database) -> None:
    insert = (
        "INSERT INTO tenuto.bulk_operations (id, kind, filter, description, until, state, total, failed, created_at,"
        " ended_at, actor_type, actor_name) VALUES ($1, 'task.cancel', 'queue:mail', 'mail', now(), 'ended', 9,"
        " $2, now(), now(), 'user', 'ana')"
    )
    await db.fetch_all(insert, new_id(), 0)
    await db.fetch_all(insert, new_id(), 4)
    found = await read_overview(db)
    (failed,) = found.failed_operations
    assert (failed.failed_count, failed.total_count, failed.started_by) == (4, 9, "ana")
    assert any("4 of 9 items of the bulk operation task.cancel failed" in text for text in describe_attention(found))
