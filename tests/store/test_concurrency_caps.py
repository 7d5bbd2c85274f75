"""Caps on what is active (J7): of a manifest, a group, all manifests and a batch, each to the last one; fair shares."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from tenuto.postgres.database import Database
from tenuto.store import manifests
from tenuto.store import tasks as store
from tenuto.store.manifests import ALL
from tests.support.manifests import LEASE, NOON, a_batch, again, end, finish_all, kept, take, within
from tests.support.tasks import Register, start


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def cap(db: Database, group: str, most: int | None, *, enabled: bool = True) -> None:
    await within(db, lambda connection: manifests.set_group(connection, group, most, 0, enabled, NOON, "test"))


async def test_no_more_of_a_manifest_is_active_than_it_says_over_all_its_batches(db: Database, me: UUID) -> None:
    stored = await kept(db, max_active=3)
    await a_batch(db, stored, 5)
    await a_batch(db, stored, 5)
    held = await take(db, me)
    assert len(held) == 3
    assert await take(db, me) == []
    await end(db, held[0])
    assert len(await take(db, me)) == 1


async def test_a_cap_that_is_changed_holds_for_what_waits_already(db: Database, me: UUID) -> None:
    stored = await kept(db, max_active=1)
    await a_batch(db, stored, 5)
    assert len(await take(db, me)) == 1
    await db.all("UPDATE tenuto.manifests SET max_active = 4")
    assert len(await take(db, me)) == 3
    await db.all("UPDATE tenuto.manifests SET max_active = 1")
    assert await take(db, me) == []


async def test_no_more_of_a_group_is_active_than_it_says(db: Database, me: UUID) -> None:
    await cap(db, "g", 3)
    for name in ("a", "b"):
        await a_batch(db, await kept(db, name, job=name, group="g"), 5)
    await a_batch(db, await kept(db, "c", job="c"), 5)
    assert Counter(task.name == "c" for task in await take(db, me)) == {False: 3, True: 5}
    assert await take(db, me) == []


async def test_no_more_of_all_manifests_is_active_than_is_said_of_all(db: Database, me: UUID) -> None:
    await cap(db, ALL, 4)
    for name in ("a", "b", "c"):
        await a_batch(db, await kept(db, name, group="g" if name == "a" else None), 3)
    plain = await start(db)
    held = await take(db, me)
    assert len(held) == 5
    assert plain in {task.id for task in held}, "what is not of a manifest does not count"
    assert await take(db, me) == []


async def test_the_narrowest_of_several_caps_holds(db: Database, me: UUID) -> None:
    await cap(db, ALL, 9)
    await cap(db, "g", 5)
    await a_batch(db, await kept(db, "a", job="a", group="g", max_active=2), 9)
    await a_batch(db, await kept(db, "b", job="b", group="g"), 9)
    await a_batch(db, await kept(db, "c", job="c"), 9)
    held = Counter(task.name for task in await take(db, me))
    assert held["a"] <= 2
    assert held["a"] + held["b"] == 5
    assert sum(held.values()) == 9


async def test_a_disabled_group_holds_everything_of_it_back_and_nothing_else(db: Database, me: UUID) -> None:
    await cap(db, "g", None, enabled=False)
    await a_batch(db, await kept(db, "a", job="a", group="g"), 3)
    await a_batch(db, await kept(db, "b", job="b"), 3)
    assert {task.name for task in await take(db, me)} == {"b"}
    await cap(db, ALL, None, enabled=False)
    await cap(db, "g", None)
    assert await take(db, me) == []
    await cap(db, ALL, None)
    assert len(await take(db, me)) == 3


@pytest.mark.parametrize("capped", ["manifest", "group", "all"])
async def test_a_place_is_free_again_when_its_holders_lease_has_run_out(db: Database, me: UUID, capped: str) -> None:
    await a_batch(db, await kept(db, group="g", max_active=2 if capped == "manifest" else None), 5)
    if capped != "manifest":
        await cap(db, "g" if capped == "group" else ALL, 2)
    assert len(await take(db, me)) == 2
    await db.all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running'"
        " AND id = (SELECT min(id::text)::uuid FROM tenuto.tasks WHERE state = 'running')"
    )
    assert len(await take(db, me)) == 1


async def test_caps_hold_over_several_queues(db: Database, me: UUID) -> None:
    await cap(db, "g", 3)
    await a_batch(db, await kept(db, "a", group="g", queue="default"), 5)
    await a_batch(db, await kept(db, "b", group="g", queue="other"), 5)
    held = await store.claim_under_limits(db, me, ["default", "other"], 100, LEASE)
    assert len(held) == 3


async def test_an_urgent_task_overtakes_any_batch_with_or_without_a_manifest(db: Database, me: UUID) -> None:
    await a_batch(db, await kept(db), 500)
    plain = await start(db, priority=5)
    urgent = await kept(db, "urgent", job="urgent", priority=9)
    await a_batch(db, urgent, 1)
    assert [task.name for task in await take(db, me, 3)] == ["urgent", "bake", "bake"]
    assert await db.value("SELECT state FROM tenuto.tasks WHERE id = $1", plain) == "running"


async def test_two_batches_of_the_same_priority_share_whoever_came_first(db: Database, me: UUID) -> None:
    stored = await kept(db)
    first, second = await a_batch(db, stored, 300), await a_batch(db, stored, 300)
    for _ in range(3):
        held = await take(db, me, 20)
        assert Counter(task.batch_id for task in held) == {first: 10, second: 10}


async def test_two_batches_of_a_capped_manifest_share_its_places(db: Database, me: UUID) -> None:
    stored = await kept(db, max_active=6)
    first, second = await a_batch(db, stored, 100), await a_batch(db, stored, 100)
    assert Counter(task.batch_id for task in await take(db, me)) == {first: 3, second: 3}


async def test_who_has_little_waiting_is_not_shut_out_of_a_group_by_who_has_much(db: Database, me: UUID) -> None:
    await cap(db, "g", 4)
    await a_batch(db, await kept(db, "much", job="much", group="g"), 200)
    await a_batch(db, await kept(db, "little", job="little", group="g"), 2)
    assert Counter(task.name for task in await take(db, me)) == {"much": 2, "little": 2}


async def test_a_single_run_shares_with_a_batch_of_its_priority(db: Database, me: UUID) -> None:
    await a_batch(db, await kept(db, "much", job="much"), 200)
    late = await kept(db, "single", job="single")
    await db.all("UPDATE tenuto.tasks SET run_at = run_at - interval '1 hour'")
    await a_batch(db, late, 1)
    assert "single" in {task.name for task in await take(db, me, 2)}


async def test_what_is_capped_by_a_manifest_leaves_room_to_others(db: Database, me: UUID) -> None:
    await a_batch(db, await kept(db, "narrow", job="narrow", max_active=1), 50)
    await a_batch(db, await kept(db, "wide", job="wide"), 50)
    assert Counter(task.name for task in await take(db, me, 10)) == {"narrow": 1, "wide": 9}


async def test_runs_end_under_a_cap_until_all_are_done(db: Database, me: UUID) -> None:
    await a_batch(db, await kept(db, max_active=7), 30)
    assert [await finish_all(db, me) for _ in range(6)] == [7, 7, 7, 7, 2, 0]
    assert (await again(db)).manifest.max_active == 7
    assert await db.value("SELECT count(*) FROM tenuto.activities") == 30
