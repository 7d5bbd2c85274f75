"""Manifest limits under many workers and kill -9 (J7): never exceeded, according to the tables and to the jobs, and a
slot is free again after its holder died.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from uuid import UUID

import pytest

from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.operations.work import batches
from tenuto.postgres.database import Database
from tenuto.store.definitions import manifests
from tenuto.store.definitions.manifests import ALL_MANIFESTS, GroupSettings, StoredManifest
from tests.races.effect_ledger import Effect, Ledger, overlaps, peak_concurrency
from tests.races.processes import WorkerProcess, Workers
from tests.races.table_queries import Observer
from tests.support.manifests import ANA, NOON, create_manifest, run_in_transaction

pytestmark = pytest.mark.slow
MAX_IN_ALL, MAX_IN_GROUP, MAX_OF_ONE = 6, 4, 2

ACTIVE = """
SELECT count(*), count(*) FILTER (WHERE limit_group = 'g'), count(*) FILTER (WHERE manifest_id = $1)
FROM tenuto.tasks
WHERE state = 'running' AND NOT standby AND manifest_id IS NOT NULL AND lease_until > clock_timestamp()
"""


HOLDS = """
SELECT EXISTS (
    SELECT FROM tenuto.tasks JOIN tenuto.workers ON workers.id = worker_id WHERE state = 'running' AND workers.name = $1
)
"""


async def add_items(db: Database, stored: StoredManifest, items: int, seconds: float) -> UUID:
    now = db.clock.now()
    batch = (await batches.open_batch(db, stored, now, ANA, key=None, name=None)).id
    like = await batches.item_template(db, stored, batch, now, ANA)
    texts = [
        f'{{"number": {n}, "seconds": {seconds}, "group": "{stored.external_id}"}}' for n in range(items)
    ]  # fmt: skip
    await batches.add_items(db, batch, 0, like, texts, None)
    await batches.complete_batch(db, batch, now)
    return UUID(str(batch))


@asynccontextmanager
async def sample_active(observer: Observer, narrow: UUID) -> AsyncIterator[list[tuple[int, ...]]]:
    """Sample the number of active runs repeatedly."""
    seen: list[tuple[int, ...]] = []

    async def sample() -> None:
        while True:
            seen.extend(await observer.rows(ACTIVE, narrow))
            await asyncio.sleep(0.001)

    sampling = asyncio.create_task(sample())
    try:
        yield seen
    finally:
        sampling.cancel()


async def create_limited_manifests(db: Database) -> tuple[StoredManifest, StoredManifest, StoredManifest]:
    """Create a manifest with a limit in a group with a limit, one in the same group and one without, and limit them
    all.
    """
    for name, most in ((ALL_MANIFESTS, MAX_IN_ALL), ("g", MAX_IN_GROUP)):
        settings = GroupSettings(max_active=most)
        group = partial(manifests.save_group, name=name, settings=settings, at=NOON, by="test")
        await run_in_transaction(db, group)
    policy = TaskPolicy(RetryPolicy(max_attempts=5, base_seconds=0, jitter=0))
    narrow = await create_manifest(db, "narrow", job="touch", group="g", max_active=MAX_OF_ONE, policy=policy)
    grouped = await create_manifest(db, "grouped", job="touch", group="g", policy=policy)
    return narrow, grouped, await create_manifest(db, "free", job="touch", policy=policy)


def peak_of_groups(effects: list[Effect], died: dict[int, int], *groups: str) -> int:
    """Return the peak concurrency of these groups together."""
    return peak_concurrency([replace(each, group="-") for each in effects if each.group in groups], died)["-"]


async def kill_while_holding(workers: Workers, processes: list[WorkerProcess], observer: Observer) -> None:
    """Kill a worker with SIGKILL; it is stopped first, so that it keeps the tasks it holds then."""
    for process in cycle(processes):
        process.signal(signal.SIGSTOP)
        if await observer.value(HOLDS, process.name):
            break
        process.signal(signal.SIGCONT)
        assert await observer.count("tasks") > 0, "all tasks finished before a worker could be killed"
    await workers.kill(process)
    assert await observer.value(HOLDS, process.name), "the killed worker leaves tasks behind"


@pytest.mark.parametrize("killed", [False, True])
async def test_manifest_limits_hold_over_three_worker_processes_even_if_one_is_killed(
    db: Database, workers: Workers, observer: Observer, ledger: Ledger, killed: bool
) -> None:
    narrow, grouped, free = await create_limited_manifests(db)
    items, seconds, lease = (100, 0.1, 6.0) if killed else (100, 0.03, 30.0)
    for stored in (narrow, grouped, free):
        await add_items(db, stored, items, seconds)
    processes = [workers.start(f"worker-{n}", slots=10, lease_seconds=lease) for n in range(3)]
    async with sample_active(observer, narrow.id) as seen:
        if killed:
            await observer.until("SELECT count(*) > 20 FROM tenuto.activities", within=30)
            await kill_while_holding(workers, processes, observer)
        await observer.until_all_ended(within=60)
    assert len(seen) > 50
    assert all(row[0] <= MAX_IN_ALL and row[1] <= MAX_IN_GROUP and row[2] <= MAX_OF_ONE for row in seen)
    effects = ledger.effects()
    assert overlaps(effects, workers.died_ns) == []
    assert peak_of_groups(effects, workers.died_ns, "narrow", "grouped", "free") == MAX_IN_ALL, (
        "limits are reached and not exceeded"
    )
    assert peak_of_groups(effects, workers.died_ns, "narrow", "grouped") <= MAX_IN_GROUP
    assert peak_of_groups(effects, workers.died_ns, "narrow") <= MAX_OF_ONE
    assert await observer.count("activities", "final AND status = 'completed'") == 3 * items
    assert (await observer.count("activities", "reason = 'lost'") > 0) is killed


async def test_limit_slots_of_a_dead_worker_are_reused_after_its_leases_expire(
    db: Database, workers: Workers, observer: Observer
) -> None:
    narrow, _, _ = await create_limited_manifests(db)
    await add_items(db, narrow, MAX_OF_ONE, 60.0)
    first = await workers.start("first", lease_seconds=6.0).wait_until_ready()
    await observer.until_running(MAX_OF_ONE)
    await add_items(db, narrow, MAX_OF_ONE, 0.0)
    await workers.start("second").wait_until_ready()
    await workers.kill(first)
    ends = await observer.value("SELECT max(lease_until) FROM tenuto.tasks WHERE state = 'running'")
    await observer.until("SELECT count(*) >= 1 FROM tenuto.activities WHERE status = 'completed'", within=20)
    claimed = await observer.value("SELECT min(claimed_at) FROM tenuto.activities WHERE status = 'completed'")
    assert claimed >= ends


async def test_cancelled_batch_under_full_load_starts_no_further_item(
    db: Database, workers: Workers, observer: Observer, ledger: Ledger
) -> None:
    _, _, free = await create_limited_manifests(db)
    batch = await add_items(db, free, 3000, 0.05)  # far more than can finish before the cancellation
    for number in range(2):
        await workers.start(f"worker-{number}", slots=10).wait_until_ready()
    await observer.until("SELECT count(*) > 30 FROM tenuto.activities", within=30)
    await batches.cancel_batch(db, batch, db.clock.now(), ANA)
    cancelled_at = await observer.value("SELECT clock_timestamp()")
    await observer.until_all_ended(within=20)
    assert await observer.count("activities", "final") == 3000
    late = await observer.value("SELECT count(*) FROM tenuto.activities WHERE claimed_at > $1", cancelled_at)
    assert late == 0, "no item began after the cancellation"
