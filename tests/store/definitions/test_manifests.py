"""Rows of manifests (J1, J5): due manifests, run blockers, unique runs, effects of a success."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from tenuto.definitions import manifest_definitions
from tenuto.ids import new_id, smallest_id_at
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.triggers import every
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import GroupSettings
from tenuto.store.reports import failure_groups
from tenuto.store.work import tasks as store
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
    read_table,
    reload_manifest,
    run_in_transaction,
    start_run,
)
from tests.support.schedules import MINUTE
from tests.support.tasks import Register


async def claim_due(db: Database, limit: int = 100) -> list[str]:
    found = await run_in_transaction(
        db, lambda connection: manifests.lock_due_manifests(connection, NOON + MINUTE, limit)
    )
    return [each.external_id for each in found]


async def test_external_id_of_a_manifest_is_unique(db: Database) -> None:
    first = await create_manifest(db)
    refused = await run_in_transaction(
        db,
        lambda connection: manifests.TABLE.insert(
            connection, new_id(), make_manifest(), enabled=True, origin="hand", declared=None, now=NOON, next_run=None
        ),
    )
    assert refused is False
    assert (await reload_manifest(db)).id == first.id


async def test_due_manifests_are_enabled_and_ordered_by_delay(db: Database) -> None:
    await create_manifest(db, "later", NOON, trigger=every("1m"))
    await create_manifest(db, "earlier", NOON - MINUTE, trigger=every("1m"))
    await create_manifest(db, "tomorrow", NOON, trigger=every("24h"))
    await create_manifest(db, "off", NOON, enabled=False, trigger=every("1m"))
    await create_manifest(db, "by-hand")
    assert await claim_due(db) == ["earlier", "later"]
    assert await claim_due(db, limit=1) == ["earlier"]


async def test_manifest_manager_skips_manifests_locked_by_another(db: Database, url: str) -> None:
    await create_manifest(db, "a", trigger=every("1m"))
    await create_manifest(db, "b", trigger=every("1m"))
    other = await asyncpg.connect(url)
    async with other.transaction():
        (held,) = await manifests.lock_due_manifests(other, NOON + MINUTE, 1)
        async with asyncio.timeout(5):
            assert await claim_due(db) == [{"a": "b", "b": "a"}[held.external_id]]
    await other.close()
    assert await claim_due(db) == ["a", "b"]


async def test_manifest_run_is_blocked_by_its_own_run_and_dead_letter(db: Database, register_worker: Register) -> None:
    me, stored = await register_worker(), await create_manifest(db)

    async def load_blockers() -> tuple[bool, bool]:
        found = (await run_in_transaction(db, lambda connection: manifests.load_run_blockers(connection, [stored.id])))[
            stored.id
        ]
        return found.has_open_dead_letter, found.open_task_id is not None

    await create_batch(db, stored, 1)
    await start_run(db, stored, item_key="a")
    assert await load_blockers() == (False, False)
    await finish_all_runs(db, me, "failed")
    assert await load_blockers() == (False, False), "dead letters of items do not block the manifest"
    await start_run(db, stored)
    assert await load_blockers() == (False, True)
    await finish_all_runs(db, me, "failed")
    assert await load_blockers() == (True, False)


async def test_manifest_allows_one_run_and_one_per_item_outside_batches(db: Database) -> None:
    stored, other = await create_manifest(db), await create_manifest(db, "other")
    assert await start_run(db, stored) is not None
    assert await start_run(db, stored) is None
    assert await start_run(db, other) is not None
    assert await start_run(db, stored, item_key="a") is not None
    assert await start_run(db, stored, item_key="a") is None
    assert await start_run(db, other, item_key="a") is not None
    await create_batch(db, stored, 3)
    await create_batch(db, stored, 3)
    assert len(await read_table(db, "tasks")) == 10


@pytest.mark.parametrize("key", [None, "a"])
async def test_database_rejects_a_second_open_run(db: Database, key: str | None) -> None:
    stored = await create_manifest(db)
    await start_run(db, stored, item_key=key)
    copied = (
        "INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, initiator_type,"
        " initiator_name, manifest_id, item_key) SELECT $1, $1, 'queued', queue, rank, kind, name, input, policy,"
        " initiator_type, initiator_name, manifest_id, item_key FROM tenuto.tasks"
    )
    with pytest.raises(DatabaseError, match="tasks_one_"):
        await db.fetch_all(copied, new_id())


async def test_ended_run_is_not_enqueued_again(db: Database, register_worker: Register) -> None:
    me, stored, id = await register_worker(), await create_manifest(db), new_id()
    assert await start_run(db, stored, id=id) == id
    assert await finish_all_runs(db, me) == 1
    assert await start_run(db, stored, id=id) is None
    assert await read_table(db, "tasks") == []


async def test_success_is_stored_and_makes_dependents_due(db: Database, register_worker: Register) -> None:
    me, first = await register_worker(), await create_manifest(db, "a")
    await create_manifest(db, "b", depends_on="a")
    await create_manifest(db, "c", depends_on="b")
    await create_manifest(db, "off", enabled=False, depends_on="a")
    await start_run(db, first)
    (task,) = await claim_runs(db, me)
    await finish_task(db, task)
    (record,) = await read_table(db, "activities")
    assert (await reload_manifest(db, "a")).last_successful_run_at == record["ended_at"]
    assert (await reload_manifest(db, "b")).next_run_at == record["ended_at"]
    assert (await reload_manifest(db, "c")).next_run_at is None
    assert (await reload_manifest(db, "off")).next_run_at is None


async def test_dependent_that_just_succeeded_is_due_again(db: Database) -> None:
    first = await create_manifest(db, "a")
    second = await create_manifest(db, "b", depends_on="a")
    await run_in_transaction(db, lambda connection: manifests.record_successes(connection, [first.id, second.id], NOON))
    assert [(await reload_manifest(db, name)).last_successful_run_at for name in "ab"] == [NOON, NOON]
    assert (await reload_manifest(db, "b")).next_run_at == NOON
    assert (await reload_manifest(db, "a")).next_run_at is None


@pytest.mark.parametrize("status", ["failed", "cancelled", "completed_with_error"])
async def test_unsuccessful_run_makes_no_dependent_due(db: Database, register_worker: Register, status: str) -> None:
    me, first = await register_worker(), await create_manifest(db, "a")
    await create_manifest(db, "b", depends_on="a")
    await start_run(db, first)
    await finish_all_runs(db, me, status)
    assert (await reload_manifest(db, "a")).last_successful_run_at is None
    assert (await reload_manifest(db, "b")).next_run_at is None


async def test_last_success_never_moves_back(db: Database) -> None:
    stored = await create_manifest(db)
    for at in (NOON, NOON - MINUTE):
        await run_in_transaction(db, partial(manifests.record_successes, ids=[stored.id], at=at))
        await manifests.record_batch_item_successes(db, [stored.id], at)
    assert (await reload_manifest(db)).last_successful_run_at == NOON


async def test_manifest_list_has_open_counts_and_is_paged_and_filtered(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    stored = await create_manifest(db, "a", group="g")
    await create_manifest(db, "b", name="Bread")
    await create_manifest(db, "c", enabled=False)
    await start_run(db, stored)
    await finish_all_runs(db, me, "failed")
    await create_batch(db, stored, 2)

    async def list_names(**wanted: object) -> list[str]:
        given = {"after": None, "enabled": None, "group": None, "search": None, "limit": 10, **wanted}
        return [each.external_id for each in await manifests.list_manifests(db, **given)]  # type: ignore[arg-type]

    assert await list_names() == ["a", "b", "c"]
    assert await list_names(after="a", limit=1) == ["b"]
    assert await list_names(enabled=False) == ["c"]
    assert await list_names(group="g") == ["a"]
    assert await list_names(search="rea") == ["b"]
    (first, *_) = await manifests.list_manifests(db, after=None, enabled=None, group=None, search=None, limit=10)
    assert (first.open_task_count, first.has_dead_letters, first.definition["job"]) == (2, True, "bake")


async def test_manifest_changes_are_recorded_as_versions(db: Database) -> None:
    await create_manifest(db)
    await manifest_definitions.edit(db, "bake", make_manifest(priority=3), make_change_context(NOON + MINUTE))
    await manifest_definitions.set_enabled(db, "bake", make_change_context(NOON + 2 * MINUTE), enabled=False)
    await manifest_definitions.delete(db, "bake", make_change_context(NOON + 3 * MINUTE))
    versions = await manifests.list_versions(db, "bake", 10)
    assert [each.change for each in versions] == ["deleted", "disabled", "edited", "created"]
    assert {each.actor for each in versions} == {ANA}
    edited = versions[2]
    assert edited.before is not None
    assert edited.after is not None
    assert (edited.before["priority"], edited.after["priority"]) == (0, 3)


async def test_manifest_group_reports_its_active_runs(db: Database, register_worker: Register) -> None:
    me, stored = await register_worker(), await create_manifest(db, "a", group="g")
    await create_manifest(db, "b", group="h")
    await create_batch(db, stored, 3)
    await claim_runs(db, me, 2)
    settings, by = GroupSettings(max_active=5, priority=2, enabled=False), Actor.system("test").name
    await run_in_transaction(db, lambda connection: manifests.save_group(connection, "g", settings, NOON, by))
    found = {group.name: group for group in await manifests.list_groups(db)}
    assert {name: (group.active_count, group.manifest_count, group.max_active) for name, group in found.items()} == {
        "g": (2, 1, 5),
        "h": (0, 1, None),
    }
    assert (found["g"].enabled, found["g"].priority, found["h"].enabled) == (False, 2, True)


async def test_polls_are_listed_newest_first_and_old_ones_deleted(db: Database) -> None:
    ids = [smallest_id_at(NOON + n * timedelta(days=1)) for n in range(4)]
    for n, id in enumerate(ids):
        await manifests.record_poll(db, id, NOON, "me", 0.1, n % 2, 0, 0, "{}", None)
    await manifests.record_poll(db, ids[0], NOON, "me", 0.1, 1, 0, 0, "{}", None)
    assert [poll.id for poll in await manifests.list_polls(db, below=None, busy=False, limit=9)] == ids[::-1]
    assert [poll.id for poll in await manifests.list_polls(db, below=ids[3], busy=True, limit=9)] == [ids[1]]
    assert await manifests.delete_old_polls(db, NOON + timedelta(days=2), 1) == 1
    assert await manifests.delete_old_polls(db, NOON + timedelta(days=2), 9) == 1
    assert [row["id"] for row in await read_table(db, "polls")] == ids[2:]


async def test_overrun_run_is_found_when_its_lease_has_expired(db: Database, register_worker: Register) -> None:
    me, another = await register_worker(), await register_worker()
    await start_run(db, await create_manifest(db, "over", policy=TaskPolicy(timeout_seconds=1.0)))
    await start_run(db, await create_manifest(db, "fine", policy=TaskPolicy(timeout_seconds=900.0)))
    over, fine = sorted(await claim_runs(db, me), key=lambda task: task.policy.timeout_seconds or 0)
    assert await store.mark_overrun_tasks(db, another, [(over.id, over.fence)]) == set()
    assert await store.mark_overrun_tasks(db, me, [(fine.id, fine.fence + 1)]) == set()
    assert await store.mark_overrun_tasks(db, me, [(over.id, over.fence)]) == {over.id}
    assert await manifests.find_overrun_runs(db, 10) == [], "it is its worker's as long as the lease lasts"
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    assert [(task.id, task.overran_time_limit) for task in await manifests.find_overrun_runs(db, 10)] == [
        (over.id, True)
    ]
    assert await failure_groups.list_failure_groups(db, None, None, 10) == []
