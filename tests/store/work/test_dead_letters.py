"""Rows of dead letters (J4): written with the final failure, one open per item, resolved once."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tenuto.ids import new_id, smallest_id_at
from tenuto.lifecycle import completion
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.model.filters import Filter
from tenuto.postgres.database import Connection, Database, DatabaseError
from tenuto.store.reports import failure_groups
from tenuto.store.work import dead_letters
from tenuto.store.work import tasks as store
from tests.support.manifests import (
    ANA,
    claim_runs,
    create_batch,
    create_manifest,
    finish_all_runs,
    finish_task,
    make_settlement,
    read_table,
    run_in_transaction,
    start_run,
)
from tests.support.tasks import Register, create_and_claim


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def acknowledge(db: Database, id: UUID) -> set[UUID]:
    asked, now = new_id(), db.clock.now()
    return await run_in_transaction(
        db, lambda connection: dead_letters.resolve_dead_letters(connection, [(id, None)], now, ANA, "seen", asked)
    )


@pytest.mark.parametrize(("max_attempts", "failures"), [(1, 1), (3, 3)])
async def test_only_the_final_failure_writes_a_dead_letter(
    db: Database, me: UUID, max_attempts: int, failures: int
) -> None:
    policy = TaskPolicy(RetryPolicy(max_attempts=max_attempts, base_seconds=0, jitter=0))
    await start_run(db, await create_manifest(db, policy=policy), db.clock.now())
    for number in range(1, failures + 1):
        assert await read_table(db, "dead_letters") == []
        await store.promote_due_tasks(db, db.clock.now(), ["default"])
        (task,) = await claim_runs(db, me)
        assert task.attempt == number
        await finish_task(db, task, "failed", f"failure {number}")
    (dead_letter,) = await read_table(db, "dead_letters")
    last = (await read_table(db, "activities", "final"))[0]
    assert (dead_letter["attempts"], dead_letter["reason"]) == (failures, f"Broken: failure {failures}")
    assert (dead_letter["activity_id"], dead_letter["task_id"]) == (last["id"], last["task_id"])
    assert (dead_letter["external_id"], dead_letter["item"], dead_letter["status"]) == (
        "bake",
        "",
        "awaiting_intervention",
    )
    assert dead_letter["dead_lettered_at"] == last["ended_at"]


@pytest.mark.parametrize("status", ["completed", "completed_with_warning", "completed_with_error", "cancelled"])
async def test_only_failures_write_dead_letters(db: Database, me: UUID, status: str) -> None:
    await start_run(db, await create_manifest(db))
    await finish_all_runs(db, me, status)
    assert await read_table(db, "dead_letters") == []


@pytest.mark.parametrize("dead_letter", [True, False])
async def test_task_without_manifest_writes_a_dead_letter_unless_its_policy_forbids_it(
    db: Database, me: UUID, dead_letter: bool
) -> None:
    policy = TaskPolicy(RetryPolicy(max_attempts=1), dead_letter=dead_letter)
    task = await create_and_claim(db, me, policy=policy.to_json())
    await finish_task(db, task, "failed")
    assert [row["task_id"] for row in await read_table(db, "dead_letters")] == ([task.id] if dead_letter else [])


async def test_dead_letter_identifies_its_item_by_key_or_task(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    batch = await create_batch(db, stored, 1)
    await start_run(db, stored)
    await start_run(db, stored, item_key="users/7")
    await finish_all_runs(db, me, "failed")
    found = {row["item"]: row for row in await read_table(db, "dead_letters")}
    (of_batch,) = [row for row in found.values() if row["batch_id"] == batch]
    assert set(found) == {"", "users/7", str(of_batch["task_id"])}


async def test_late_outcome_writes_no_dead_letter(db: Database, me: UUID) -> None:
    await start_run(db, await create_manifest(db))
    (task,) = await claim_runs(db, me)
    failed = make_settlement(task, db.clock.now(), "failed")
    task.fence += 1
    assert await completion.finish(db, [failed]) == set()
    assert await read_table(db, "dead_letters") == []


async def test_item_that_fails_again_keeps_its_open_dead_letter(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    for message in ("first", "second"):
        await start_run(db, stored, item_key="a")
        (task,) = await claim_runs(db, me)
        await finish_task(db, task, "failed", message)
    (dead_letter,) = await read_table(db, "dead_letters")
    assert (dead_letter["reason"], dead_letter["attempts"], dead_letter["task_id"]) == ("Broken: second", 2, task.id)


async def test_repair_writes_the_newest_of_two_missing_dead_letters(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    for message in ("first", "second"):
        await start_run(db, stored)
        (task,) = await claim_runs(db, me)
        await finish_task(db, task, "failed", message)
        await db.fetch_all("DELETE FROM tenuto.dead_letters")

    async def repair() -> int:
        async def act(connection: Connection) -> int:
            since, before = smallest_id_at(db.clock.now() - timedelta(days=1)), db.clock.now() + timedelta(minutes=1)
            return await dead_letters.write_dead_letters(
                connection, await dead_letters.find_missing_dead_letters(connection, since, before, 10)
            )

        return await db.transaction(act)

    assert await repair() == 1
    (dead_letter,) = await read_table(db, "dead_letters")
    assert dead_letter["reason"] == "Broken: second"
    assert await repair() == 0
    await acknowledge(db, dead_letter["id"])
    assert await repair() == 0, "what is resolved does not come back"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tenuto.dead_letters SET status = 'awaiting_intervention', resolved_at = NULL, resolved_name = NULL",
        "UPDATE tenuto.dead_letters SET note = 'another'",
        "UPDATE tenuto.dead_letters SET status = 'retried', retry_task_id = gen_random_uuid()",
    ],
)
async def test_database_rejects_changes_of_resolved_dead_letters(db: Database, me: UUID, change: str) -> None:
    await start_run(db, await create_manifest(db))
    await finish_all_runs(db, me, "failed")
    (dead_letter,) = await read_table(db, "dead_letters")
    assert await acknowledge(db, dead_letter["id"]) == {dead_letter["id"]}
    before = await read_table(db, "dead_letters")
    with pytest.raises(DatabaseError, match="is acknowledged already"):
        await db.fetch_all(change)
    assert await acknowledge(db, dead_letter["id"]) == set()
    assert await read_table(db, "dead_letters") == before


async def test_database_allows_one_open_dead_letter_per_item(db: Database, me: UUID) -> None:
    await start_run(db, await create_manifest(db))
    await finish_all_runs(db, me, "failed")
    copied = (
        "INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, task_id, activity_id, dead_lettered_at,"
        " reason, fingerprint, attempts, input) SELECT gen_random_uuid(), manifest_id, external_id, item,"
        " gen_random_uuid(), activity_id, dead_lettered_at, reason, fingerprint, attempts, input"
        " FROM tenuto.dead_letters LIMIT 1"
    )
    with pytest.raises(DatabaseError, match="dead_letters_one_open"):
        await db.fetch_all(copied)
    await acknowledge(db, (await read_table(db, "dead_letters"))[0]["id"])
    await db.fetch_all(copied)


async def test_dead_letters_are_listed_grouped_and_selected(db: Database, me: UUID) -> None:
    first, second = await create_manifest(db, "a"), await create_manifest(db, "b")
    batch = await create_batch(db, first, 3)
    await start_run(db, second)
    await finish_all_runs(db, me, "failed")
    all_ids = [row["id"] for row in await read_table(db, "dead_letters")]
    (group,) = await failure_groups.list_failure_groups(db, None, None, 10)
    assert (group.dead_letter_count, group.manifest_count) == (4, 2)
    assert [group.dead_letter_count for group in await failure_groups.list_failure_groups(db, "a", None, 10)] == [3]

    async def select(until: datetime | None = None, **values: object) -> list[UUID]:
        return await dead_letters.select_open_dead_letters(db, Filter(DEAD_LETTER_KEYS).where(**values), until)

    assert await select() == all_ids
    assert len(await select(manifest="a")) == len(await select(batch=batch)) == 3
    assert await select(fingerprint=group.fingerprint) == all_ids
    assert await select(fingerprint="other") == await select(until=db.clock.now() - timedelta(hours=1)) == []
    await acknowledge(db, all_ids[0])
    assert await select() == all_ids[1:]
    listed = await dead_letters.list_dead_letters(
        db, Filter(DEAD_LETTER_KEYS).where(state="awaiting_intervention"), below=all_ids[3], limit=1
    )
    assert [dead_letter.id for dead_letter in listed] == [all_ids[2]]


async def test_resolved_dead_letters_are_deleted_with_their_activity(db: Database, me: UUID) -> None:
    await create_batch(db, await create_manifest(db), 2)
    await finish_all_runs(db, me, "failed")
    resolved, open_one = [row["id"] for row in await read_table(db, "dead_letters")]
    await acknowledge(db, resolved)
    cutoff = db.clock.now() + timedelta(days=1)
    assert await dead_letters.delete_resolved_dead_letters(db, cutoff, 10) == 0, (
        "the dead letter stays as long as the activity"
    )
    async with db.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL tenuto.retention = 'on'")
        await connection.execute("DELETE FROM tenuto.activities")
    assert await dead_letters.delete_resolved_dead_letters(db, cutoff - timedelta(days=2), 10) == 0
    assert await dead_letters.delete_resolved_dead_letters(db, cutoff, 10) == 1
    assert [row["id"] for row in await read_table(db, "dead_letters")] == [open_one]
