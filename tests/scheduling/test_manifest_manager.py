"""The manifest manager (J5): time out runs, enqueue due manifests, record every poll; each stage commits separately."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tenuto import Tenuto, every
from tenuto.definitions import manifest_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.errors import StoreError
from tenuto.maintenance.recovery import REPAIR_TIME_LIMIT_EXCEEDED, recover_lost_tasks
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.triggers import cron
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import REPAIR_MISSING_DEAD_LETTER, ManifestManager
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import SkippedManifests
from tenuto.store.work import tasks as store
from tests.races.interleaving import InterleavedDatabase
from tests.support.errors import raises_code
from tests.support.manifests import (
    ANA,
    NOON,
    claim_runs,
    create_batch,
    create_manifest,
    finish_all_runs,
    finish_task,
    make_change_context,
    make_manifest,
    poll_manifests,
    read_table,
    reload_manifest,
    start_run,
)
from tests.support.schedules import MINUTE, read_repairs
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import Register
from tests.support.waiting import eventually

HALF_A_MINUTE = timedelta(seconds=30)


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


# --- determine ------------------------------------------------------------------------------------------------------


async def test_due_manifest_is_enqueued_once_and_gets_its_next_run(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"), properties={"flour": 3}, priority=4, queue="oven", group="g")
    assert (await poll_manifests(db, NOON + timedelta(seconds=59))).enqueued == 0
    assert (await poll_manifests(db, NOON + MINUTE)).enqueued == 1
    (task,) = await read_table(db, "tasks")
    assert (task["name"], task["input"], task["queue"], -task["rank"]) == ("bake", '{"flour": 3}', "oven", 4)
    assert (task["initiator_name"], task["limit_group"]) == ("manifest manager", "g")
    stored = await reload_manifest(db)
    assert (stored.last_run_at, stored.next_run_at) == (NOON + MINUTE, NOON + 2 * MINUTE)
    assert (await poll_manifests(db, NOON + MINUTE)).enqueued == 0
    assert len(await read_table(db, "tasks")) == 1


async def test_cron_manifest_follows_its_time_zone_over_a_dst_change(db: Database) -> None:
    before = datetime(2031, 3, 29, 12, tzinfo=UTC)  # the clocks of Berlin go forward on the 30th
    await create_manifest(db, now=before, trigger=cron("0 8 * * *", zone="Europe/Berlin"))
    first = (await reload_manifest(db)).next_run_at
    assert first == datetime(2031, 3, 30, 6, tzinfo=UTC)
    assert (await poll_manifests(db, first - timedelta(seconds=1))).enqueued == 0
    assert (await poll_manifests(db, first)).enqueued == 1
    assert (await reload_manifest(db)).next_run_at == datetime(2031, 3, 31, 6, tzinfo=UTC)


@pytest.mark.parametrize("fields", [{}, {"on_demand": True}, {"depends_on": "other"}])
async def test_manual_manifest_is_not_enqueued_by_a_poll(db: Database, fields: dict[str, object]) -> None:
    await create_manifest(db, "other")
    await create_manifest(db, **fields)  # type: ignore[arg-type]
    for day in range(3):
        assert (await poll_manifests(db, NOON + timedelta(days=day))).enqueued == 0


async def test_manifest_runs_once_after_downtime(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"))
    assert (await poll_manifests(db, NOON + timedelta(days=3))).enqueued == 1
    assert (await reload_manifest(db)).next_run_at == NOON + timedelta(days=3, minutes=1)


async def test_manifest_run_records_when_it_was_due(db: Database, worker_id: UUID) -> None:
    await create_manifest(db, trigger=every("1m"))
    await poll_manifests(db, NOON + MINUTE + timedelta(seconds=10))
    (task,) = await read_table(db, "tasks")
    assert (task["run_at"], task["created_at"]) == (NOON + MINUTE, NOON + MINUTE + timedelta(seconds=10))
    await finish_all_runs(db, worker_id)
    (activity,) = await read_table(db, "activities")
    assert activity["run_at"] == NOON + MINUTE


async def test_disabled_manifest_does_not_run_and_catches_up_nothing(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"))
    await manifest_definitions.set_enabled(db, "bake", make_change_context(), enabled=False)
    assert (await reload_manifest(db)).next_run_at is None
    assert (await poll_manifests(db, NOON + timedelta(hours=1))).enqueued == 0
    await manifest_definitions.set_enabled(db, "bake", make_change_context(NOON + timedelta(hours=1)), enabled=True)
    assert (await poll_manifests(db, NOON + timedelta(hours=1))).enqueued == 0
    assert (await poll_manifests(db, NOON + timedelta(hours=1, minutes=1))).enqueued == 1


@pytest.mark.parametrize("state", ["queued", "running", "scheduled"])
async def test_poll_skips_a_manifest_with_an_open_run(db: Database, worker_id: UUID, state: str) -> None:
    await create_manifest(db, trigger=every("1m"), policy=TaskPolicy(RetryPolicy(max_attempts=3)))
    await poll_manifests(db, NOON + MINUTE)
    if state != "queued":
        (task,) = await claim_runs(db, worker_id)
        if state == "scheduled":
            await finish_task(db, task, "failed")
    result = await poll_manifests(db, NOON + 2 * MINUTE)
    assert (result.enqueued, result.skipped) == (0, {"its last run is not over": ["bake"]})
    assert (await reload_manifest(db)).next_run_at == NOON + 3 * MINUTE
    assert await db.fetch_value("SELECT state FROM tenuto.tasks") == state


async def test_manifest_that_continues_runs_beside_its_open_dead_letter(db: Database, worker_id: UUID) -> None:
    await create_manifest(
        db, trigger=every("1m"), policy=TaskPolicy(RetryPolicy(max_attempts=1)), on_dead_letter="continue"
    )
    for minute in (1, 2):
        assert (await poll_manifests(db, NOON + minute * MINUTE)).enqueued == 1
        (task,) = await claim_runs(db, worker_id)
        await finish_task(db, task, "failed")
    (dead_letter,) = await read_table(db, "dead_letters")
    assert (dead_letter["task_id"], dead_letter["attempts"]) == (task.id, 2), (
        "the open dead letter has the newest failure"
    )
    assert (await poll_manifests(db, NOON + 3 * MINUTE)).enqueued == 1
    (task,) = await claim_runs(db, worker_id)
    await finish_task(db, task, "completed")
    assert len(await read_table(db, "dead_letters", "status = 'awaiting_intervention'")) == 1


async def test_open_dead_letter_blocks_the_manifest_until_resolved(db: Database, worker_id: UUID) -> None:
    await create_manifest(
        db, trigger=every("1m"), policy=TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=0, jitter=0))
    )
    await poll_manifests(db, NOON + MINUTE)
    for _ in range(2):
        (task,) = await claim_runs(db, worker_id)
        await finish_task(db, task, "failed")
    assert (await poll_manifests(db, NOON + 2 * MINUTE)).skipped == {"it has an open dead letter": ["bake"]}
    (dead_letter,) = await read_table(db, "dead_letters")
    assert dead_letter["attempts"] == 2
    await dead_letters.acknowledge_dead_letters(db, [dead_letter["id"]], NOON, ANA, note=None)
    assert (await poll_manifests(db, NOON + 3 * MINUTE)).enqueued == 1
    (task,) = await claim_runs(db, worker_id)
    assert (task.attempt, task.failures) == (1, 0)
    await finish_task(db, task, "failed")
    assert len(await read_table(db, "dead_letters", "status = 'awaiting_intervention'")) == 0, (
        "one more failure is allowed"
    )
    assert (await poll_manifests(db, NOON + 4 * MINUTE)).enqueued == 0


async def test_failure_count_of_a_manifest_restarts_after_a_success(db: Database, worker_id: UUID) -> None:
    await create_manifest(
        db, trigger=every("1m"), policy=TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=0, jitter=0))
    )
    for minute in (1, 2, 3):
        assert (await poll_manifests(db, NOON + minute * MINUTE)).enqueued == 1
        for status in ("failed", "completed"):
            (task,) = await claim_runs(db, worker_id)
            await finish_task(db, task, status)
    assert await read_table(db, "dead_letters") == []


async def test_batch_items_do_not_block_the_run_of_their_manifest(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, trigger=every("1m"))
    await create_batch(db, stored, 1)
    await start_run(db, stored, item_key="a")
    await finish_all_runs(db, worker_id, "failed")
    await create_batch(db, stored, 1)
    assert (await poll_manifests(db, NOON + MINUTE)).enqueued == 1


async def test_group_disables_its_manifests_and_adds_its_priority(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"), group="g", priority=1)
    await manifest_definitions.change_group(db, "g", ChangeContext(ANA, NOON), enabled=False, priority=10)
    assert (await poll_manifests(db, NOON + MINUTE)).skipped == {"its group is disabled": ["bake"]}
    await manifest_definitions.change_group(db, "g", ChangeContext(ANA, NOON), enabled=True)
    assert (await poll_manifests(db, NOON + 2 * MINUTE)).enqueued == 1
    assert await db.fetch_value("SELECT rank FROM tenuto.tasks") == -11


async def test_unreadable_manifest_stays_due_and_does_not_block_others(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("broken", "sound"):
        await create_manifest(db, name, trigger=every("1m"))
    await db.fetch_all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'broken'""")
    (before,) = await db.fetch_all("SELECT definition FROM tenuto.manifests WHERE external_id = 'sound'")
    older = manifest_manager.new_quarantine()
    result = await manifest_manager.poll_manifests(db, NOON + MINUTE, "an older one", older)
    assert (result.enqueued, result.skipped) == (1, {"cannot be read": ["broken"]})
    assert (await manifest_manager.poll_manifests(db, NOON + MINUTE, "an older one", older)).skipped == {}
    older.release_all()
    await manifest_manager.poll_manifests(db, NOON + MINUTE, "an older one", older)
    assert caplog.text.count("manifest quarantined") == 1, "logged once"
    assert await manifests.load_next_due_at(db) == NOON + MINUTE, "it stays due for another version"
    await db.fetch_all("UPDATE tenuto.manifests SET definition = $1 WHERE external_id = 'broken'", before["definition"])
    assert (await poll_manifests(db, NOON + MINUTE)).enqueued == 1


async def test_quarantined_manifest_is_enqueued_after_a_change(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"))
    (before,) = await db.fetch_all("SELECT definition FROM tenuto.manifests")
    await db.fetch_all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}'""")
    older = manifest_manager.new_quarantine()
    for skipped in ({"cannot be read": ["bake"]}, {}):
        assert (await manifest_manager.poll_manifests(db, NOON + MINUTE, "an older one", older)).skipped == skipped
        assert await manifests.load_next_due_at(db, older.rows) is None
    await db.fetch_all("UPDATE tenuto.manifests SET definition = $1, version = version + 1", before["definition"])
    assert await manifests.load_next_due_at(db, older.rows) == NOON + MINUTE
    assert (await manifest_manager.poll_manifests(db, NOON + MINUTE, "an older one", older)).enqueued == 1


async def test_manifest_with_unreadable_trigger_gets_no_next_run(db: Database) -> None:
    for name in ("broken", "sound"):
        await create_manifest(db, name, trigger=every("1m"))
    await db.fetch_all("UPDATE tenuto.manifests SET planned = false, next_run_at = NULL")
    await db.fetch_all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}' WHERE external_id = 'broken'""")
    await poll_manifests(db, NOON)
    rows = {row["external_id"]: (row["next_run_at"], row["planned"]) for row in await read_table(db, "manifests")}
    assert rows == {"broken": (None, False), "sound": (NOON + MINUTE, True)}


async def test_manifest_that_cannot_be_enqueued_does_not_block_others(db: Database) -> None:
    for number in range(5):
        await create_manifest(db, f"good-{number}", trigger=every("1m"))
    await create_manifest(db, "bad", job="poison", trigger=every("1m"))
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    quarantine = manifest_manager.new_quarantine()
    try:
        result = await manifest_manager.poll_manifests(db, NOON + MINUTE, "test", quarantine)
        assert (result.enqueued, result.skipped) == (5, {"cannot be enqueued": ["bad"]})
        assert "test_refuse" in (result.error or "")
        assert (await manifest_manager.poll_manifests(db, NOON + MINUTE, "test", quarantine)).error is None, (
            "while it is in quarantine"
        )
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    quarantine.release_all()
    assert (await manifest_manager.poll_manifests(db, NOON + MINUTE, "test", quarantine)).enqueued == 1


async def test_failed_timeout_stage_does_not_prevent_enqueuing(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"))
    await db.fetch_all("ALTER TABLE tenuto.activities RENAME COLUMN final TO test_away")
    try:
        result = await poll_manifests(db, NOON + MINUTE)
    finally:
        await db.fetch_all("ALTER TABLE tenuto.activities RENAME COLUMN test_away TO final")
    assert result.enqueued == 1
    assert (result.error or "").startswith("timing out runs: ")


async def test_manager_sleeps_despite_an_unreadable_due_manifest(db: Database) -> None:
    await create_manifest(db, now=db.clock.now() - MINUTE, trigger=every("1m"))
    await db.fetch_all("""UPDATE tenuto.manifests SET definition = '{"colour": "red"}'""")
    assert await ManifestManager(db, "test", 30.0).run_cycle() == 30.0


async def test_poll_handles_more_than_one_batch_of_manifests(db: Database) -> None:
    for number in range(205):
        await create_manifest(db, f"m{number:03}", trigger=every("1m"))
    result = await poll_manifests(db, NOON + MINUTE)
    assert result.enqueued == len(await read_table(db, "tasks")) == 205


async def test_poll_computes_missing_next_runs(db: Database) -> None:
    await create_manifest(db, trigger=every("1m"))
    await db.fetch_all("UPDATE tenuto.manifests SET planned = false, next_run_at = NULL")
    await poll_manifests(db, NOON)
    assert (await reload_manifest(db)).next_run_at == NOON + MINUTE


# --- dependents -----------------------------------------------------------------------------------------------------


async def test_dependent_manifests_run_in_order_after_success_only(db: Database, worker_id: UUID) -> None:
    await create_manifest(db, "a", job="a", trigger=every("1h"))
    await create_manifest(db, "b", job="b", depends_on="a")
    await create_manifest(db, "c", job="c", depends_on="b")
    now, ran = NOON + timedelta(hours=1), []
    for _ in range(5):
        await poll_manifests(db, now)
        for task in await claim_runs(db, worker_id):
            ran.append(task.name)
            await finish_task(db, task)
    assert ran == ["a", "b", "c"]
    await poll_manifests(db, now + timedelta(hours=1))
    await finish_all_runs(db, worker_id, "failed")
    assert (await poll_manifests(db, now + timedelta(hours=1, seconds=1))).enqueued == 0, "b runs only after success"


async def test_blocked_dependent_manifest_is_checked_again(db: Database, worker_id: UUID) -> None:
    first = await create_manifest(db, "a")
    second = await create_manifest(db, "b", depends_on="a")
    await start_run(db, second)
    await claim_runs(db, worker_id)
    await start_run(db, first)
    (task,) = await claim_runs(db, worker_id)
    await finish_task(db, task)
    now = db.clock.now()
    assert (await poll_manifests(db, now)).skipped == {"its last run is not over": ["b"]}
    held = await db.fetch_one("SELECT id FROM tenuto.tasks")
    assert held is not None
    await db.fetch_all("DELETE FROM tenuto.tasks")
    assert (await poll_manifests(db, now)).enqueued == 0
    assert (await poll_manifests(db, now + HALF_A_MINUTE)).enqueued == 1


async def test_former_dependent_manifest_does_not_run_after_its_former_parent(db: Database, worker_id: UUID) -> None:
    first = await create_manifest(db, "a")
    await create_manifest(db, "b", depends_on="a")
    await start_run(db, first)
    await finish_all_runs(db, worker_id)
    assert (await reload_manifest(db, "b")).next_run_at is not None
    await manifest_definitions.edit(db, "b", make_manifest("b", on_demand=True), make_change_context())
    assert (await reload_manifest(db, "b")).next_run_at is None
    assert (await poll_manifests(db, db.clock.now() + MINUTE)).enqueued == 0


async def test_manifest_dependency_cycle_and_unknown_parent_are_rejected(db: Database) -> None:
    await create_manifest(db, "a")
    await create_manifest(db, "b", depends_on="a")
    await create_manifest(db, "c", depends_on="b")
    with raises_code("manifest.depends_on.cycle"):
        await manifest_definitions.edit(db, "a", make_manifest("a", depends_on="c"), make_change_context())
    with raises_code("manifest.depends_on.not_found"):
        await create_manifest(db, "d", depends_on="z")
    with raises_code("manifest.in_use"):
        await manifest_definitions.delete(db, "a", make_change_context())


# --- reap -----------------------------------------------------------------------------------------------------------


async def delete_dead_letters(db: Database) -> None:
    """Simulate damage: an old final failure without a dead letter."""
    async with db.connection() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("DELETE FROM tenuto.dead_letters")
        await connection.execute("UPDATE tenuto.activities SET ended_at = ended_at - interval '5 minutes'")
        await connection.execute("RESET session_replication_role")


async def test_poll_writes_and_counts_a_missing_dead_letter(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, trigger=every("1m"))
    now = db.clock.now()
    await start_run(db, stored, now)
    await finish_all_runs(db, worker_id, "failed")
    await delete_dead_letters(db)
    await db.fetch_all("UPDATE tenuto.manifests SET next_run_at = $1, planned = true", now)
    result = await poll_manifests(db, now + MINUTE)
    assert (result.dead_lettered, result.enqueued) == (1, 0)
    assert result.skipped == {"it has an open dead letter": ["bake"]}, "dead letters come before enqueuing"
    assert await read_repairs(db) == {REPAIR_MISSING_DEAD_LETTER: 1}
    assert (await poll_manifests(db, now + MINUTE)).dead_lettered == 0


async def test_manager_checks_dead_letters_at_start_and_then_periodically(db: Database, worker_id: UUID) -> None:
    """A manifest may be due every second, and the check of all recent failures costs more than a poll."""
    stored = await create_manifest(db)
    rarely = ManifestManager(db, "test", 30.0)
    always = ManifestManager(db, "test", 30.0, dead_letter_check_seconds=0.0)
    for manager, repaired_count in ((rarely, 1), (rarely, 1), (always, 2)):
        await start_run(db, stored, db.clock.now())
        await finish_all_runs(db, worker_id, "failed")
        await delete_dead_letters(db)
        await manager.run_cycle()
        assert (await read_repairs(db))[REPAIR_MISSING_DEAD_LETTER] == repaired_count


async def test_in_normal_operation_the_nets_find_nothing(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, policy=TaskPolicy(RetryPolicy(max_attempts=1), timeout_seconds=600))
    await create_batch(db, stored, 3)
    await claim_runs(db, worker_id, 1)
    await finish_all_runs(db, worker_id, "failed")
    result = await poll_manifests(db, db.clock.now() + timedelta(hours=1))
    assert (result.dead_lettered, result.timed_out) == (0, 0)
    assert await read_repairs(db) == {}


@pytest.mark.parametrize("net", ["the poll", "the sweep"])
@pytest.mark.parametrize(("max_attempts", "lettered"), [(1, 1), (3, 0)])
async def test_poll_times_out_an_overrun_run_after_its_lease(
    db: Database, worker_id: UUID, max_attempts: int, lettered: int, net: str
) -> None:
    policy = TaskPolicy(RetryPolicy(max_attempts=max_attempts), timeout_seconds=1.0)
    await start_run(db, await create_manifest(db, policy=policy), db.clock.now())
    (held,) = await claim_runs(db, worker_id)
    await store.mark_overrun_tasks(db, worker_id, [(held.id, held.fence)])
    assert (await poll_manifests(db, db.clock.now())).timed_out == 0, "its worker still holds it"
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    if net == "the poll":
        result = await poll_manifests(db, db.clock.now())
        assert (result.timed_out, result.dead_lettered) == (1, lettered)
    else:
        assert await recover_lost_tasks(db, db.clock.now()) == 1
    (record,) = await read_table(db, "activities")
    assert (record["status"], record["reason"], record["final"]) == ("failed", "timed_out", bool(lettered))
    assert len(await read_table(db, "dead_letters")) == lettered
    assert await read_repairs(db) == {REPAIR_TIME_LIMIT_EXCEEDED: 1}


async def test_poll_keeps_reaped_runs_when_a_later_stage_fails(db: Database, worker_id: UUID) -> None:
    stored, other = await create_manifest(db), await create_manifest(db, "other", trigger=every("1m"))
    now = db.clock.now()
    await start_run(db, stored, now)
    await finish_all_runs(db, worker_id, "failed")
    await delete_dead_letters(db)
    await db.fetch_all("UPDATE tenuto.manifests SET next_run_at = $1 WHERE id = $2", now, other.id)
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT no_more CHECK (name <> 'bake') NOT VALID")
    try:
        await poll_manifests(db, now + MINUTE)
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT no_more")
    assert len(await read_table(db, "dead_letters")) == 1
    assert await read_table(db, "tasks") == []
    (poll,) = await manifests.list_polls(db, below=None, busy=True, limit=10)
    assert (poll.dead_lettered_count, poll.enqueued_count) == (1, 0)
    assert "no_more" in (poll.error or "")
    assert (await poll_manifests(db, now + MINUTE)).enqueued == 1, "and nothing of what failed is lost"


@pytest.mark.slow
async def test_poll_raises_when_the_database_is_unavailable(db: Database) -> None:
    away = await Database.open(db.url)
    await away.close()
    with pytest.raises(StoreError):
        await poll_manifests(away)


@pytest.mark.parametrize("change", ["disabled", "edited"])
async def test_manifest_past_its_end_can_be_edited_and_disabled(db: Database, change: str) -> None:
    over = every("1h", end="2031-05-18")
    await create_manifest(db, trigger=over)
    later = make_change_context(NOON + timedelta(days=30))
    if change == "disabled":
        assert await manifest_definitions.set_enabled(db, "bake", later, enabled=False)
        with raises_code("schedule.trigger.never_fires"):
            await manifest_definitions.set_enabled(db, "bake", later, enabled=True)
    else:
        assert (
            await manifest_definitions.edit(db, "bake", make_manifest(trigger=over, priority=3), later)
        ).manifest.priority == 3
        with raises_code("schedule.trigger.never_fires"):
            await manifest_definitions.edit(db, "bake", make_manifest(trigger=every("2h", end="2031-05-18")), later)


# --- what a poll says -----------------------------------------------------------------------------------------------


async def test_poll_is_recorded_with_its_results(db: Database) -> None:
    await create_manifest(db, "a", trigger=every("1m"))
    await poll_manifests(db, NOON)
    await poll_manifests(db, NOON + MINUTE)
    await poll_manifests(db, NOON + 2 * MINUTE)
    skipping, busy, idle = await manifests.list_polls(db, below=None, busy=False, limit=10)
    assert [poll.at for poll in (idle, busy, skipping)] == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    assert [poll.enqueued_count for poll in (idle, busy, skipping)] == [0, 1, 0]
    assert skipping.skipped == {"its last run is not over": SkippedManifests(1, ["a"])}
    assert {poll.by for poll in (idle, busy, skipping)} == {"a manager"}
    assert all(poll.duration_seconds > 0 and poll.error is None for poll in (idle, busy, skipping))
    assert [poll.at for poll in await manifests.list_polls(db, below=None, busy=True, limit=10)] == [
        NOON + 2 * MINUTE,
        NOON + MINUTE,
    ]


# --- the rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_manager_wakes_for_due_and_dependent_manifests(app: Tenuto, worker: WorkerFactory) -> None:
    ran: list[str] = []

    @app.job
    async def note(name: str) -> None:
        ran.append(name)

    app.manifest("clock", note, trigger=every("1s"), properties={"name": "clock"})
    app.manifest("after", note, after="clock", properties={"name": "after"})
    async with app, worker(), app.scheduler():
        await eventually(lambda: ran.count("clock") >= 2 and "after" in ran)
        made = await app.manifests.get("clock")
        assert made.last_successful_run_at is not None

        async def two_runs_are_recorded() -> bool:  # a poll is recorded when it has finished
            return bool(sum(poll.enqueued_count for poll in await app.manifests.polls(only_busy=True)) >= 2)

        await eventually(two_runs_are_recorded)
    first = ran.index("clock")
    assert first < ran.index("after")


async def test_manager_runs_a_new_manifest_in_time(app: Tenuto, worker: WorkerFactory) -> None:
    ran: list[int] = []

    @app.job
    async def note() -> None:
        ran.append(1)

    async with app, worker(), app.scheduler():
        await eventually(app.manifests.polls)
        await app.manifests.create(make_manifest(job="note", trigger=every("1s")))
        await eventually(lambda: ran)


async def test_worker_enforces_the_time_limit_of_a_manifest(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def linger() -> None:
        await asyncio.sleep(60)

    app.manifest("slow", linger, timeout=0.2, max_attempts=1)
    async with app, worker():
        await app.manifests.deploy()
        record = await app.wait(await app.manifests.run("slow"), 10)
        assert (record.state, record.reason) == ("failed", "timed_out")
        (dead_letter,) = await app.dead_letters.list()
        assert dead_letter.external_id == "slow"


async def test_poll_counts_each_run_once_when_a_transaction_is_repeated(db: Database, url: str) -> None:
    await create_manifest(db, trigger=every("1m"))
    await create_manifest(db, "busy", trigger=every("1m"))
    await start_run(db, await reload_manifest(db, "busy"))
    interleaved = await InterleavedDatabase.at(url)
    try:
        steps = 0

        async def kill_at_eighth_statement() -> None:
            nonlocal steps
            steps += 1
            if steps == 8:
                await db.fetch_all(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND state = 'idle in transaction'"
                )

        interleaved.before = kill_at_eighth_statement
        result = await poll_manifests(interleaved, NOON + MINUTE)
        interleaved.before = interleaved.nothing
        assert (result.enqueued, result.skipped) == (1, {"its last run is not over": ["busy"]})
        assert len(await read_table(db, "tasks")) == 2
    finally:
        await interleaved.close()
