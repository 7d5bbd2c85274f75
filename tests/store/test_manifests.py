"""Manifests as rows (J1, J5): who is due, what stands in the way, runs that are there once, success that moves on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from tenuto.definitions import manifest_definitions
from tenuto.ids import first_id_at, new_id
from tenuto.model.actors import Actor
from tenuto.model.policies import Policy
from tenuto.model.triggers import every
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store import dead_letters, manifests
from tenuto.store import tasks as store
from tests.support.manifests import (
    ANA,
    NOON,
    a_batch,
    a_manifest,
    again,
    author,
    end,
    finish_all,
    kept,
    started,
    table,
    take,
    within,
)
from tests.support.schedules import MINUTE
from tests.support.tasks import Register


async def due(db: Database, limit: int = 100) -> list[str]:
    found = await within(db, lambda connection: manifests.due(connection, NOON + MINUTE, limit))
    return [each.external_id for each in found]


async def test_there_is_one_manifest_of_an_external_id(db: Database) -> None:
    first = await kept(db)
    refused = await within(
        db,
        lambda connection: manifests.ROWS.insert(
            connection, new_id(), a_manifest(), enabled=True, origin="hand", declared=None, now=NOON, next_run=None
        ),
    )
    assert refused is False
    assert (await again(db)).id == first.id


async def test_the_longest_overdue_comes_first_and_only_what_is_enabled_and_due(db: Database) -> None:
    await kept(db, "later", NOON, trigger=every("1m"))
    await kept(db, "earlier", NOON - MINUTE, trigger=every("1m"))
    await kept(db, "tomorrow", NOON, trigger=every("24h"))
    await kept(db, "off", NOON, enabled=False, trigger=every("1m"))
    await kept(db, "by-hand")
    assert await due(db) == ["earlier", "later"]
    assert await due(db, limit=1) == ["earlier"]


async def test_what_one_manager_looks_at_another_passes_over(db: Database, url: str) -> None:
    await kept(db, "a", trigger=every("1m"))
    await kept(db, "b", trigger=every("1m"))
    other = await asyncpg.connect(url)
    async with other.transaction():
        (held,) = await manifests.due(other, NOON + MINUTE, 1)
        async with asyncio.timeout(5):
            assert await due(db) == [{"a": "b", "b": "a"}[held.external_id]]
    await other.close()
    assert await due(db) == ["a", "b"]


async def test_what_stands_in_the_way_is_the_manifests_own_run_and_its_own_letter(
    db: Database, register_worker: Register
) -> None:
    me, stored = await register_worker(), await kept(db)

    async def standing() -> tuple[bool, bool]:
        found = (await within(db, lambda connection: manifests.standing(connection, [stored.id])))[stored.id]
        return found.dead_lettered, found.open_task is not None

    await a_batch(db, stored, 1)
    await started(db, stored, item_key="a")
    assert await standing() == (False, False)
    await finish_all(db, me, "failed")
    assert await standing() == (False, False), "letters of items do not hold up the manifest"
    await started(db, stored)
    assert await standing() == (False, True)
    await finish_all(db, me, "failed")
    assert await standing() == (True, False)


async def test_one_run_of_a_manifest_and_one_per_item_and_any_number_in_batches(db: Database) -> None:
    stored, other = await kept(db), await kept(db, "other")
    assert await started(db, stored) is not None
    assert await started(db, stored) is None
    assert await started(db, other) is not None
    assert await started(db, stored, item_key="a") is not None
    assert await started(db, stored, item_key="a") is None
    assert await started(db, other, item_key="a") is not None
    await a_batch(db, stored, 3)
    await a_batch(db, stored, 3)
    assert len(await table(db, "tasks")) == 10


@pytest.mark.parametrize("key", [None, "a"])
async def test_the_database_itself_refuses_a_second_run(db: Database, key: str | None) -> None:
    stored = await kept(db)
    await started(db, stored, item_key=key)
    copied = (
        "INSERT INTO tenuto.tasks (id, activity_id, state, queue, rank, kind, name, input, policy, initiator_type,"
        " initiator_name, manifest_id, item_key) SELECT $1, $1, 'queued', queue, rank, kind, name, input, policy,"
        " initiator_type, initiator_name, manifest_id, item_key FROM tenuto.tasks"
    )
    with pytest.raises(DatabaseError, match="tasks_one_"):
        await db.all(copied, new_id())


async def test_a_run_that_has_ended_is_not_started_again(db: Database, register_worker: Register) -> None:
    me, stored, id = await register_worker(), await kept(db), new_id()
    assert await started(db, stored, id=id) == id
    assert await finish_all(db, me) == 1
    assert await started(db, stored, id=id) is None
    assert await table(db, "tasks") == []


async def test_success_moves_the_manifest_and_makes_those_due_that_run_after_it(
    db: Database, register_worker: Register
) -> None:
    me, first = await register_worker(), await kept(db, "a")
    await kept(db, "b", depends_on="a")
    await kept(db, "c", depends_on="b")
    await kept(db, "off", enabled=False, depends_on="a")
    await started(db, first)
    (task,) = await take(db, me)
    await end(db, task)
    (record,) = await table(db, "activities")
    assert (await again(db, "a")).last_successful_run == record["ended_at"]
    assert (await again(db, "b")).next_run_at == record["ended_at"]
    assert (await again(db, "c")).next_run_at is None
    assert (await again(db, "off")).next_run_at is None


async def test_one_that_has_just_succeeded_itself_is_due_again_if_what_it_runs_after_has_too(db: Database) -> None:
    first = await kept(db, "a")
    second = await kept(db, "b", depends_on="a")
    await within(db, lambda connection: manifests.succeeded(connection, [first.id, second.id], NOON))
    assert [(await again(db, name)).last_successful_run for name in "ab"] == [NOON, NOON]
    assert (await again(db, "b")).next_run_at == NOON
    assert (await again(db, "a")).next_run_at is None


@pytest.mark.parametrize("status", ["failed", "cancelled", "completed_with_error"])
async def test_what_did_not_succeed_moves_nothing(db: Database, register_worker: Register, status: str) -> None:
    me, first = await register_worker(), await kept(db, "a")
    await kept(db, "b", depends_on="a")
    await started(db, first)
    await finish_all(db, me, status)
    assert (await again(db, "a")).last_successful_run is None
    assert (await again(db, "b")).next_run_at is None


async def test_success_never_moves_it_back(db: Database) -> None:
    stored = await kept(db)
    for at in (NOON, NOON - MINUTE):
        await within(db, partial(manifests.succeeded, ids=[stored.id], at=at))
        await manifests.touch(db, [stored.id], at)
    assert (await again(db)).last_successful_run == NOON


async def test_a_list_tells_what_is_open_and_can_be_paged_and_narrowed(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    stored = await kept(db, "a", group="g")
    await kept(db, "b", name="Bread")
    await kept(db, "c", enabled=False)
    await started(db, stored)
    await finish_all(db, me, "failed")
    await a_batch(db, stored, 2)

    async def names(**wanted: object) -> list[str]:
        given = {"after": None, "enabled": None, "group": None, "search": None, "limit": 10, **wanted}
        return [row["external_id"] for row in await manifests.list_manifests(db, **given)]  # type: ignore[arg-type]

    assert await names() == ["a", "b", "c"]
    assert await names(after="a", limit=1) == ["b"]
    assert await names(enabled=False) == ["c"]
    assert await names(group="g") == ["a"]
    assert await names(search="rea") == ["b"]
    (first, *_) = await manifests.list_manifests(db, after=None, enabled=None, group=None, search=None, limit=10)
    assert (first["open_tasks"], first["has_dead_letters"], first["definition"]["job"]) == (2, True, "bake")


async def test_every_change_is_a_version_with_who_and_what(db: Database) -> None:
    await kept(db)
    await manifest_definitions.edit(db, "bake", a_manifest(priority=3), author(NOON + MINUTE))
    await manifest_definitions.switch(db, "bake", author(NOON + 2 * MINUTE), enabled=False)
    await manifest_definitions.delete(db, "bake", author(NOON + 3 * MINUTE))
    told = await manifests.versions(db, "bake", 10)
    assert [each.change for each in told] == ["deleted", "disabled", "edited", "created"]
    assert {each.actor for each in told} == {ANA}
    edited = told[2]
    assert edited.before is not None
    assert edited.after is not None
    assert (edited.before["priority"], edited.after["priority"]) == (0, 3)


async def test_a_group_says_what_is_active_of_it(db: Database, register_worker: Register) -> None:
    me, stored = await register_worker(), await kept(db, "a", group="g")
    await kept(db, "b", group="h")
    await a_batch(db, stored, 3)
    await take(db, me, 2)
    by = Actor.system("test").name
    await within(db, lambda connection: manifests.set_group(connection, "g", 5, 2, False, NOON, by))
    found = {row["name"]: row for row in await manifests.list_groups(db)}
    assert {name: (row["active"], row["manifests"], row["max_active"]) for name, row in found.items()} == {
        "g": (2, 1, 5),
        "h": (0, 1, None),
    }
    assert (found["g"]["enabled"], found["g"]["priority"], found["h"]["enabled"]) == (False, 2, True)


async def test_polls_are_told_the_newest_first_and_the_old_ones_forgotten(db: Database) -> None:
    ids = [first_id_at(NOON + n * timedelta(days=1)) for n in range(4)]
    for n, id in enumerate(ids):
        await manifests.record_poll(db, id, NOON, "me", 0.1, n % 2, 0, 0, "{}", None)
    await manifests.record_poll(db, ids[0], NOON, "me", 0.1, 1, 0, 0, "{}", None)
    assert [row["id"] for row in await manifests.polls(db, below=None, busy=False, limit=9)] == ids[::-1]
    assert [row["id"] for row in await manifests.polls(db, below=ids[3], busy=True, limit=9)] == [ids[1]]
    assert await manifests.forget_polls(db, NOON + timedelta(days=2), 1) == 1
    assert await manifests.forget_polls(db, NOON + timedelta(days=2), 9) == 1
    assert [row["id"] for row in await table(db, "polls")] == ids[2:]


async def test_a_run_that_its_worker_has_let_go_is_found_when_its_lease_is_over(
    db: Database, register_worker: Register
) -> None:
    me, another = await register_worker(), await register_worker()
    await started(db, await kept(db, "over", policy=Policy(timeout_seconds=1.0)))
    await started(db, await kept(db, "fine", policy=Policy(timeout_seconds=900.0)))
    over, fine = sorted(await take(db, me), key=lambda task: task.policy.timeout_seconds or 0)
    assert await store.let_go(db, another, [(over.id, over.fence)]) == set()
    assert await store.let_go(db, me, [(fine.id, fine.fence + 1)]) == set()
    assert await store.let_go(db, me, [(over.id, over.fence)]) == {over.id}
    assert await manifests.ran_over(db, 10) == [], "it is its worker's as long as the lease lasts"
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    assert [(task.id, task.ran_over) for task in await manifests.ran_over(db, 10)] == [(over.id, True)]
    assert await dead_letters.groups(db, None, None, 10) == []
