"""Caps on active runs (J7): of a manifest, a group, all manifests and a batch; fair shares."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from tenuto.postgres.database import Database
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import ALL_MANIFESTS, GroupSettings
from tenuto.store.work import tasks as store
from tests.support.manifests import (
    LEASE,
    NOON,
    claim_runs,
    create_batch,
    create_manifest,
    finish_all_runs,
    finish_task,
    reload_manifest,
    run_in_transaction,
)
from tests.support.tasks import Register, create_task


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def set_cap(db: Database, group: str, max_active: int | None, *, enabled: bool = True) -> None:
    settings = GroupSettings(max_active, enabled=enabled)
    await run_in_transaction(db, lambda connection: manifests.save_group(connection, group, settings, NOON, "test"))


async def test_manifest_cap_applies_across_its_batches(db: Database, me: UUID) -> None:
    stored = await create_manifest(db, max_active=3)
    await create_batch(db, stored, 5)
    await create_batch(db, stored, 5)
    held = await claim_runs(db, me)
    assert len(held) == 3
    assert await claim_runs(db, me) == []
    await finish_task(db, held[0])
    assert len(await claim_runs(db, me)) == 1


async def test_changed_cap_applies_to_queued_runs(db: Database, me: UUID) -> None:
    stored = await create_manifest(db, max_active=1)
    await create_batch(db, stored, 5)
    assert len(await claim_runs(db, me)) == 1
    await db.fetch_all("UPDATE tenuto.manifests SET max_active = 4")
    assert len(await claim_runs(db, me)) == 3
    await db.fetch_all("UPDATE tenuto.manifests SET max_active = 1")
    assert await claim_runs(db, me) == []


async def test_group_cap_is_never_exceeded(db: Database, me: UUID) -> None:
    await set_cap(db, "g", 3)
    for name in ("a", "b"):
        await create_batch(db, await create_manifest(db, name, job=name, group="g"), 5)
    await create_batch(db, await create_manifest(db, "c", job="c"), 5)
    assert Counter(task.name == "c" for task in await claim_runs(db, me)) == {False: 3, True: 5}
    assert await claim_runs(db, me) == []


async def test_cap_of_all_manifests_is_never_exceeded(db: Database, me: UUID) -> None:
    await set_cap(db, ALL_MANIFESTS, 4)
    for name in ("a", "b", "c"):
        await create_batch(db, await create_manifest(db, name, group="g" if name == "a" else None), 3)
    plain = await create_task(db)
    held = await claim_runs(db, me)
    assert len(held) == 5
    assert plain in {task.id for task in held}, "a task without a manifest does not count"
    assert await claim_runs(db, me) == []


async def test_smallest_of_several_caps_applies(db: Database, me: UUID) -> None:
    await set_cap(db, ALL_MANIFESTS, 9)
    await set_cap(db, "g", 5)
    await create_batch(db, await create_manifest(db, "a", job="a", group="g", max_active=2), 9)
    await create_batch(db, await create_manifest(db, "b", job="b", group="g"), 9)
    await create_batch(db, await create_manifest(db, "c", job="c"), 9)
    held = Counter(task.name for task in await claim_runs(db, me))
    assert held["a"] <= 2
    assert held["a"] + held["b"] == 5
    assert sum(held.values()) == 9


async def test_disabled_group_blocks_only_its_own_runs(db: Database, me: UUID) -> None:
    await set_cap(db, "g", None, enabled=False)
    await create_batch(db, await create_manifest(db, "a", job="a", group="g"), 3)
    await create_batch(db, await create_manifest(db, "b", job="b"), 3)
    assert {task.name for task in await claim_runs(db, me)} == {"b"}
    await set_cap(db, ALL_MANIFESTS, None, enabled=False)
    await set_cap(db, "g", None)
    assert await claim_runs(db, me) == []
    await set_cap(db, ALL_MANIFESTS, None)
    assert len(await claim_runs(db, me)) == 3


@pytest.mark.parametrize("capped", ["manifest", "group", "all"])
async def test_expired_lease_does_not_count_under_caps(db: Database, me: UUID, capped: str) -> None:
    await create_batch(db, await create_manifest(db, group="g", max_active=2 if capped == "manifest" else None), 5)
    if capped != "manifest":
        await set_cap(db, "g" if capped == "group" else ALL_MANIFESTS, 2)
    assert len(await claim_runs(db, me)) == 2
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running'"
        " AND id = (SELECT min(id::text)::uuid FROM tenuto.tasks WHERE state = 'running')"
    )
    assert len(await claim_runs(db, me)) == 1


async def test_caps_apply_across_queues(db: Database, me: UUID) -> None:
    await set_cap(db, "g", 3)
    await create_batch(db, await create_manifest(db, "a", group="g", queue="default"), 5)
    await create_batch(db, await create_manifest(db, "b", group="g", queue="other"), 5)
    held = await store.claim_limited_tasks(db, me, ["default", "other"], 100, LEASE)
    assert len(held) == 3


async def test_urgent_task_is_claimed_before_batch_items(db: Database, me: UUID) -> None:
    await create_batch(db, await create_manifest(db), 500)
    plain = await create_task(db, priority=5)
    urgent = await create_manifest(db, "urgent", job="urgent", priority=9)
    await create_batch(db, urgent, 1)
    assert [task.name for task in await claim_runs(db, me, 3)] == ["urgent", "bake", "bake"]
    assert await db.fetch_value("SELECT state FROM tenuto.tasks WHERE id = $1", plain) == "running"


async def test_batches_of_equal_priority_share_claims(db: Database, me: UUID) -> None:
    stored = await create_manifest(db)
    first, second = await create_batch(db, stored, 300), await create_batch(db, stored, 300)
    for _ in range(3):
        held = await claim_runs(db, me, 20)
        assert Counter(task.batch_id for task in held) == {first: 10, second: 10}


async def test_batches_of_a_capped_manifest_share_its_slots(db: Database, me: UUID) -> None:
    stored = await create_manifest(db, max_active=6)
    first, second = await create_batch(db, stored, 100), await create_batch(db, stored, 100)
    assert Counter(task.batch_id for task in await claim_runs(db, me)) == {first: 3, second: 3}


async def test_small_batch_is_not_blocked_by_a_large_one_in_its_group(db: Database, me: UUID) -> None:
    await set_cap(db, "g", 4)
    await create_batch(db, await create_manifest(db, "much", job="much", group="g"), 200)
    await create_batch(db, await create_manifest(db, "little", job="little", group="g"), 2)
    assert Counter(task.name for task in await claim_runs(db, me)) == {"much": 2, "little": 2}


async def test_single_run_shares_claims_with_a_batch_of_its_priority(db: Database, me: UUID) -> None:
    await create_batch(db, await create_manifest(db, "much", job="much"), 200)
    late = await create_manifest(db, "single", job="single")
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = run_at - interval '1 hour'")
    await create_batch(db, late, 1)
    assert "single" in {task.name for task in await claim_runs(db, me, 2)}


async def test_capped_manifest_leaves_capacity_to_others(db: Database, me: UUID) -> None:
    await create_batch(db, await create_manifest(db, "narrow", job="narrow", max_active=1), 50)
    await create_batch(db, await create_manifest(db, "wide", job="wide"), 50)
    assert Counter(task.name for task in await claim_runs(db, me, 10)) == {"narrow": 1, "wide": 9}


async def test_all_runs_finish_under_a_cap(db: Database, me: UUID) -> None:
    await create_batch(db, await create_manifest(db, max_active=7), 30)
    assert [await finish_all_runs(db, me) for _ in range(6)] == [7, 7, 7, 7, 2, 0]
    assert (await reload_manifest(db)).manifest.max_active == 7
    assert await db.fetch_value("SELECT count(*) FROM tenuto.activities") == 30
