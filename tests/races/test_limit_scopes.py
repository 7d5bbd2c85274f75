"""Claims under limits lock the scopes of the caps that apply: claims under one cap take turns, all others do not wait,
and nothing is claimed under a cap whose scope is not locked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.postgres.database import Database
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import ALL_MANIFESTS, GroupSettings, StoredManifest
from tenuto.store.work import batches
from tenuto.store.work import tasks as store
from tests.races.task_actions import LEASE, enqueue
from tests.races.test_task_guards import claim_in_open_transaction
from tests.support.manifests import ANA, NOON, create_batch, create_manifest, run_in_transaction
from tests.support.waiting import eventually

WAITS = """
    SELECT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND NOT granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
"""


async def set_cap(db: Database, scope: str, stored: StoredManifest, most: int | None, *, enabled: bool = True) -> None:
    if scope == "manifest":
        await db.fetch_all("UPDATE tenuto.manifests SET max_active = $2 WHERE id = $1", stored.id, most)
        return
    name, settings = "g" if scope == "group" else ALL_MANIFESTS, GroupSettings(most, enabled=enabled)
    await run_in_transaction(db, lambda connection: manifests.save_group(connection, name, settings, NOON, "test"))


async def cap_group(db: Database, name: str, most: int) -> None:
    settings = GroupSettings(max_active=most)
    await run_in_transaction(db, lambda connection: manifests.save_group(connection, name, settings, NOON, "test"))


async def wait_for_lock_or_end(db: Database, task: asyncio.Task[Any]) -> None:
    async def it_waits_or_is_done() -> bool:
        return task.done() or await db.fetch_value(WAITS)

    await eventually(it_waits_or_is_done, timeout=5, what="the action waits for the open claim, or is done")


async def claim_at_once(db: Database, worker_id: UUID, queue: str = "default", limit: int = 2) -> list[UUID]:
    """Claim without waiting for a lock of another claim, which would take longer than the time limit."""
    async with asyncio.timeout(5):
        return [task.id for task in await store.claim_limited_tasks(db, worker_id, [queue], limit, LEASE)]


# --- which claims wait for each other -------------------------------------------------------------------------------


async def test_claims_of_manifest_runs_without_cap_neither_wait_nor_meet(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await create_batch(db, await create_manifest(db, group="g"), 10)
    async with other.transaction():
        first = [row["id"] for row in await claim_in_open_transaction(other, worker_id, limit=3)]
        second = await claim_at_once(db, worker_id, limit=20)
        assert (
            await other.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            == 0
        ), "a claim without a cap locks nothing exclusively"
    assert (len(first), len(second), len({*first, *second})) == (3, 7, 10)


async def test_claim_whose_sources_another_claim_holds_in_part_is_incomplete(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    for number in range(6):
        await create_batch(db, await create_manifest(db, f"manifest-{number}"), 1)
    cursor = store.LimitKeyCursor()
    async with other.transaction():
        first = [row["id"] for row in await claim_in_open_transaction(other, worker_id, limit=3)]
        second = await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE, cursor)
        assert 0 < len(second) < 3, "three of the five most urgent runs are held"
        assert cursor.has_unseen_keys, "so the worker claims again at once"
        third = await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE, cursor)
    assert len({*first, *(task.id for task in (*second, *third))}) == 6


async def test_claim_of_runs_that_another_session_locks_waits_for_the_next_poll(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    await create_batch(db, await create_manifest(db), 3)
    cursor = store.LimitKeyCursor()
    async with other.transaction():
        await other.fetch("SELECT FROM tenuto.tasks FOR UPDATE")
        assert await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE, cursor) == []
        assert not cursor.has_unseen_keys, "a worker that claims again at once would do nothing else until the commit"
    assert len(await store.claim_limited_tasks(db, worker_id, ["default"], 5, LEASE, cursor)) == 3


async def cap_two(db: Database, scope: str, names: tuple[str, str]) -> None:
    """Enqueue two tasks under a cap of one for each of two scopes, each in the queue of its name."""
    for name in names:
        if scope == "queue":
            await db.fetch_all("INSERT INTO tenuto.queues (name, max_running) VALUES ($1, 1)", name)
            await enqueue(db, 2, queue=name)
        elif scope == "key":
            await enqueue(db, 2, queue=name, limit_key=f"key of {name}", limit_max=1)
        else:
            cap: dict[str, Any] = {"max_active": 1} if scope == "manifest" else {"group": name}
            await create_batch(db, await create_manifest(db, name, queue=name, **cap), 2)
            await cap_group(db, name, 1)


@pytest.mark.parametrize("scope", ["queue", "key", "manifest", "group"])
async def test_claims_under_caps_of_different_scopes_do_not_wait_for_each_other(
    db: Database, worker_id: UUID, other: asyncpg.Connection, scope: str
) -> None:
    await cap_two(db, scope, ("one", "two"))
    async with other.transaction():
        assert len(await claim_in_open_transaction(other, worker_id, "one")) == 1
        assert len(await claim_at_once(db, worker_id, "two")) == 1


@pytest.mark.parametrize("scope", ["queue", "group"])
async def test_claims_under_caps_whose_former_buckets_were_equal_do_not_wait_for_each_other(
    db: Database, worker_id: UUID, other: asyncpg.Connection, scope: str
) -> None:
    (names,) = await db.fetch_all(
        """
        SELECT min('name-' || n) AS first, max('name-' || n) AS second
        FROM generate_series(1, 99) AS n
        GROUP BY hashtext($1 || ' name-' || n) & 63
        HAVING count(*) > 1
        ORDER BY 1
        LIMIT 1
        """,
        scope,
    )
    await cap_two(db, scope, (names["first"], names["second"]))
    async with other.transaction():
        assert len(await claim_in_open_transaction(other, worker_id, names["first"])) == 1
        assert len(await claim_at_once(db, worker_id, names["second"])) == 1


@pytest.mark.parametrize("scope", ["manifest", "group", "all"])
async def test_claim_waits_for_a_claim_under_the_same_cap(
    db: Database, worker_id: UUID, other: asyncpg.Connection, scope: str
) -> None:
    stored = await create_manifest(db, group="g")
    await set_cap(db, scope, stored, 3)
    await create_batch(db, stored, 2)
    beside = stored if scope == "manifest" else await create_manifest(db, "beside", group="g", queue="other")
    await create_batch(db, beside, 9)
    begun = other.transaction()
    await begun.start()
    assert len(await claim_in_open_transaction(other, worker_id, limit=2)) == 2

    queues = ["default"] if scope == "manifest" else ["other"]
    late = asyncio.create_task(store.claim_limited_tasks(db, worker_id, queues, 9, LEASE))
    await wait_for_lock_or_end(db, late)
    await begun.commit()

    assert len(await late) == 1, "both claims together take three"


@pytest.mark.parametrize("scope", ["manifest", "group", "all"])
async def test_claim_under_a_new_cap_waits_for_claims_that_began_without_it(
    db: Database, worker_id: UUID, other: asyncpg.Connection, scope: str
) -> None:
    stored = await create_manifest(db, group="g")
    await create_batch(db, stored, 9)
    begun = other.transaction()
    await begun.start()
    assert len(await claim_in_open_transaction(other, worker_id, limit=3)) == 3
    await set_cap(db, scope, stored, 3)
    await create_batch(db, stored, 9)  # not locked by the open claim

    late = asyncio.create_task(store.claim_limited_tasks(db, worker_id, ["default"], 9, LEASE))
    await wait_for_lock_or_end(db, late)
    await begun.commit()

    assert await late == []


@pytest.mark.parametrize("change", [batches.cancel_batch, batches.pause_batch])
async def test_change_of_a_batch_waits_for_claims_without_cap(
    db: Database, worker_id: UUID, other: asyncpg.Connection, change: Callable[..., Awaitable[bool]]
) -> None:
    batch = await create_batch(db, await create_manifest(db), 9)
    begun = other.transaction()
    await begun.start()
    assert len(await claim_in_open_transaction(other, worker_id, limit=3)) == 3

    changing = asyncio.create_task(db.transaction(lambda connection: change(connection, batch, NOON, ANA)))
    await wait_for_lock_or_end(db, changing)
    assert not changing.done(), "it waits for the open claim"
    await begun.commit()

    assert await changing
    assert await claim_at_once(db, worker_id) == []
    requested = await db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE cancel_at IS NOT NULL")
    assert requested == (3 if change is batches.cancel_batch else 0)


async def test_many_workers_never_exceed_caps_of_eight_groups(db: Database, worker_id: UUID) -> None:
    for number in range(8):
        name = f"g{number}"
        await cap_group(db, name, 2)
        await create_batch(db, await create_manifest(db, name, group=name, queue=f"q{number % 2}"), 20)
    queues = (["q0"], ["q1"], ["q0", "q1"], ["q1", "q0"])
    claims = [store.claim_limited_tasks(db, worker_id, queues[n % 4], 5, LEASE) for n in range(16)]
    claimed = [task for tasks in await asyncio.gather(*claims) for task in tasks]
    assert len({task.id for task in claimed}) == len(claimed) == 16


# --- what a claim takes without the lock of a scope -----------------------------------------------------------------


async def claim_with_scopes(
    db: Database, worker_id: UUID, *, uncapped: bool, without: str = "", limit: int = 9
) -> tuple[int, list[str]]:
    """Claim as if the scope had not been locked; return the number of tasks and the scopes reported as not locked."""

    async def claim(connection: Any) -> tuple[int, list[str]]:
        locks = await connection.fetchrow(store.SQL.lock_limits, ["default"], [""], 9, [])
        exclusive = [scope for scope in locks["capped_scopes"] if not without or not scope.startswith(without)]
        shared = [scope for scope in locks["uncapped_scopes"] if not without or not scope.startswith(without)]
        values: tuple[Any, ...] = (
            worker_id, LEASE, ["default"], limit, locks["queues_of_keys"], locks["keys"], [], None, None,
            exclusive, shared,
        )  # fmt: skip
        if uncapped:
            rows = await connection.fetch(store.SQL.claim_uncapped_tasks, *values, locks["batches_of_keys"])
        else:
            rows = await connection.fetch(store.SQL.claim_limited_tasks, *values, limit)
        return sum(row["id"] is not None for row in rows), rows[0]["unlocked_scopes"]

    return await db.transaction(claim)


@pytest.mark.parametrize("is_capped", [True, False])
@pytest.mark.parametrize("scope", ["manifest", "group", "all"])
async def test_claim_takes_no_manifest_run_of_an_unlocked_scope(
    db: Database, worker_id: UUID, scope: str, is_capped: bool
) -> None:
    stored = await create_manifest(db, group="g")
    await create_batch(db, stored, 5)
    if is_capped:
        await set_cap(db, scope, stored, 3)
    taken, unlocked = await claim_with_scopes(db, worker_id, uncapped=False, without=scope)
    assert taken == 0
    assert [name.split()[0] for name in unlocked] == [scope]
    assert await claim_with_scopes(db, worker_id, uncapped=False) == (3 if is_capped else 5, [])


@pytest.mark.parametrize("scope", ["queue", "key", "all last-chance"])
async def test_claim_takes_no_task_under_an_unlocked_cap(db: Database, worker_id: UUID, scope: str) -> None:
    if scope == "queue":
        await db.fetch_all("INSERT INTO tenuto.queues (name, max_running) VALUES ('default', 3)")
    await enqueue(db, 5, **({} if scope == "queue" else {"limit_key": "a key", "limit_max": 3}))
    if scope == "all last-chance":
        await db.fetch_all("UPDATE tenuto.tasks SET last_chance = true")
    taken, _ = await claim_with_scopes(db, worker_id, uncapped=False, without=scope)
    assert taken == 0
    taken, _ = await claim_with_scopes(db, worker_id, uncapped=False)
    assert taken == (1 if scope == "all last-chance" else 3)


@pytest.mark.parametrize(
    "scope", ["manifest", "group", "all", "disabled group", "all disabled", "queue", "paused batch"]
)
async def test_claim_without_cap_takes_nothing_under_a_cap_set_after_its_locks(
    db: Database, worker_id: UUID, other: asyncpg.Connection, scope: str
) -> None:
    stored = await create_manifest(db, group="g")
    batch = await create_batch(db, stored, 5)
    async with other.transaction():
        locks = await other.fetchrow(store.SQL.lock_limits, ["default"], [""], 9, [])
        assert locks is not None
        assert locks["capped_scopes"] == []
        match scope:
            case "queue":
                await db.fetch_all("INSERT INTO tenuto.queues (name, max_running) VALUES ('default', 1)")
            case "paused batch":
                await db.fetch_all("UPDATE tenuto.batches SET paused_at = now() WHERE id = $1", batch)
            case "disabled group" | "all disabled":
                await set_cap(db, "group" if scope == "disabled group" else "all", stored, None, enabled=False)
            case _:
                await set_cap(db, scope, stored, 1)
        rows = await other.fetch(
            store.SQL.claim_uncapped_tasks, worker_id, LEASE, ["default"], 9, locks["queues_of_keys"], locks["keys"],
            [], None, None, [], locks["uncapped_scopes"], locks["batches_of_keys"],
        )  # fmt: skip
    assert [row["id"] for row in rows] == [None]


@pytest.mark.parametrize("scope", ["manifest", "group"])
async def test_claim_without_cap_takes_no_run_of_an_unlocked_scope(db: Database, worker_id: UUID, scope: str) -> None:
    await create_batch(db, await create_manifest(db, group="g"), 5)
    taken, _ = await claim_with_scopes(db, worker_id, uncapped=True, without=scope)
    assert taken == 0


async def test_claim_without_cap_takes_no_run_with_a_rate_limit(db: Database, worker_id: UUID) -> None:
    """The first run of its manifest is older than the rate limit of the job, so that the rate key is not locked."""
    await create_batch(db, await create_manifest(db), 5)
    first = "(SELECT id FROM tenuto.tasks ORDER BY rank, run_at, id LIMIT 1)"
    await db.fetch_all(f"UPDATE tenuto.tasks SET rate_key = 'k', rate_limit = '1/h' WHERE id <> {first}")
    taken, _ = await claim_with_scopes(db, worker_id, uncapped=True)
    assert taken == 1


async def test_claim_locks_the_groups_of_runs_that_moved_between_groups(db: Database, worker_id: UUID) -> None:
    stored = await create_manifest(db, group="g")
    await create_batch(db, stored, 6)
    ids = "(SELECT id FROM tenuto.tasks ORDER BY id OFFSET 3)"
    await db.fetch_all(f"UPDATE tenuto.tasks SET limit_group = 'former' WHERE id IN {ids}")
    await set_cap(db, "group", stored, None, enabled=False)
    assert len(await store.claim_limited_tasks(db, worker_id, ["default"], 9, LEASE)) == 3


# --- equivalence of the two claim statements ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [4, 9, 100])
async def test_uncapped_claim_takes_what_a_claim_under_limits_takes(db: Database, worker_id: UUID, limit: int) -> None:
    """The fast path for runs without a cap, and the general statement, drain the same queue in the same order of
    priorities, with equal shares of the batches.
    """
    for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", -5)):
        await create_batch(db, await create_manifest(db, name, job=name, priority=priority, group="g"), 12)
    await enqueue(db, 12)
    drained: dict[bool, set[UUID]] = {}
    for uncapped in (True, False):
        drained[uncapped], last_rank = set(), -100
        while claimed := await claim_by_statement(db, worker_id, limit, uncapped=uncapped):
            ranks, names = [row["rank"] for row in claimed], Counter(row["name"] for row in claimed)
            assert min(ranks) >= last_rank, "the most urgent tasks are claimed first"
            last_rank = max(ranks)
            if limit == 4:
                assert max(names["a"], names["b"]) <= 2, "equal shares"
            drained[uncapped].update(row["id"] for row in claimed)
        await db.fetch_all(
            "UPDATE tenuto.tasks SET state = 'queued', worker_id = NULL, lease_until = NULL, claimed_at = NULL"
        )
    assert drained[True] == drained[False]
    assert len(drained[True]) == 60


async def claim_by_statement(db: Database, worker_id: UUID, limit: int, *, uncapped: bool) -> list[asyncpg.Record]:
    """Claim by one of the two statements; return the claimed tasks."""
    before = {row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.tasks WHERE state = 'running'")}
    await claim_with_scopes(db, worker_id, uncapped=uncapped, limit=limit)
    rows = await db.fetch_all("SELECT id, name, rank FROM tenuto.tasks WHERE state = 'running'")
    return [row for row in rows if row["id"] not in before]


async def test_keys_beyond_the_first_are_served_while_uncapped_keys_have_more(db: Database, worker_id: UUID) -> None:
    cursor = store.LimitKeyCursor()
    for number in range(store.LIMIT_KEYS_PER_CLAIM + 5):
        await create_batch(db, await create_manifest(db, f"m{number}", job=f"m{number}"), 12)
    served: set[str] = set()
    for _ in range(6):
        served |= {t.name for t in await store.claim_limited_tasks(db, worker_id, ["default"], 300, LEASE, cursor)}
        assert cursor.has_unseen_keys
    assert len(served) == store.LIMIT_KEYS_PER_CLAIM + 5
