"""Caps under many workers and kill -9 (J7): never one more, seen from the tables and from the code itself, and a place
is free again when its holder is dead."""

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

from tenuto.model.policies import RetryPolicy, TaskPolicy
from tenuto.operations import batches
from tenuto.postgres.database import Database
from tenuto.store import manifests
from tenuto.store.manifests import ALL_MANIFESTS, StoredManifest
from tests.races.effect_ledger import Effect, Ledger, overlaps, peak_concurrency
from tests.races.observer import Observer
from tests.races.processes import WorkerProcess, Workers
from tests.support.manifests import ANA, NOON, create_manifest, run_in_transaction

IN_ALL, IN_GROUP, OF_ONE = 6, 4, 2

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


async def fill(db: Database, stored: StoredManifest, items: int, seconds: float) -> UUID:
    now = db.clock.now()
    batch = (await batches.open_batch(db, stored, now, ANA, key=None, name=None))["id"]
    like = await batches.item_template(db, stored, batch, now, ANA)
    texts = [
        f'{{"number": {n}, "seconds": {seconds}, "group": "{stored.external_id}"}}' for n in range(items)
    ]  # fmt: skip
    await batches.add_items(db, batch, 0, like, texts, None)
    await batches.complete_batch(db, batch, now)
    return UUID(str(batch))


@asynccontextmanager
async def sampled(observer: Observer, narrow: UUID) -> AsyncIterator[list[tuple[int, ...]]]:
    """What is active, looked at again and again from the database."""
    seen: list[tuple[int, ...]] = []

    async def look() -> None:
        while True:
            seen.extend(await observer.rows(ACTIVE, narrow))
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


async def capped(db: Database) -> tuple[StoredManifest, StoredManifest, StoredManifest]:
    """One manifest with a cap in a group with a cap, one in the same group, one in none; and a cap on all of them."""
    for name, most in ((ALL_MANIFESTS, IN_ALL), ("g", IN_GROUP)):
        group = partial(
            manifests.save_group, name=name, max_active=most, priority=0, enabled=True, at=NOON, by="test"
        )  # fmt: skip
        await run_in_transaction(db, group)
    policy = TaskPolicy(RetryPolicy(max_retries=5, base_seconds=0, jitter=0))
    narrow = await create_manifest(db, "narrow", job="touch", group="g", max_active=OF_ONE, policy=policy)
    grouped = await create_manifest(db, "grouped", job="touch", group="g", policy=policy)
    return narrow, grouped, await create_manifest(db, "free", job="touch", policy=policy)


def at_once(effects: list[Effect], died: dict[int, int], *groups: str) -> int:
    """How many of these ran side by side at most."""
    return peak_concurrency([replace(each, group="-") for each in effects if each.group in groups], died)["-"]


async def kill_while_it_holds_something(workers: Workers, processes: list[WorkerProcess], observer: Observer) -> None:
    """kill -9 one of them; it is stopped first, so that what it holds then it holds for ever."""
    for process in cycle(processes):
        process.signal(signal.SIGSTOP)
        if await observer.value(HOLDS, process.name):
            break
        process.signal(signal.SIGCONT)
        assert await observer.count("tasks") > 0, "all was done before anybody could be killed"
    await workers.kill(process)
    assert await observer.value(HOLDS, process.name), "it leaves something behind"


@pytest.mark.parametrize("killed", [False, True])
async def test_caps_hold_exactly_over_three_worker_processes_also_when_one_is_killed(
    db: Database, workers: Workers, observer: Observer, ledger: Ledger, killed: bool
) -> None:
    narrow, grouped, free = await capped(db)
    items, seconds, lease = (100, 0.1, 6.0) if killed else (100, 0.03, 30.0)
    for stored in (narrow, grouped, free):
        await fill(db, stored, items, seconds)
    processes = [workers.start(f"worker-{n}", slots=10, lease_seconds=lease) for n in range(3)]
    async with sampled(observer, narrow.id) as seen:
        if killed:
            await observer.until("SELECT count(*) > 20 FROM tenuto.activities", within=30)
            await kill_while_it_holds_something(workers, processes, observer)
        await observer.until_all_ended(within=60)
    assert len(seen) > 50
    assert all(row[0] <= IN_ALL and row[1] <= IN_GROUP and row[2] <= OF_ONE for row in seen)
    effects = ledger.effects()
    assert overlaps(effects, workers.died_ns) == []
    assert at_once(effects, workers.died_ns, "narrow", "grouped", "free") == IN_ALL, "as many as may be, and no more"
    assert at_once(effects, workers.died_ns, "narrow", "grouped") <= IN_GROUP
    assert at_once(effects, workers.died_ns, "narrow") <= OF_ONE
    assert await observer.count("activities", "final AND status = 'completed'") == 3 * items
    assert (await observer.count("activities", "reason = 'lost'") > 0) is killed


async def test_the_places_of_a_dead_worker_are_taken_when_its_leases_have_run_out(
    db: Database, workers: Workers, observer: Observer
) -> None:
    narrow, _, _ = await capped(db)
    await fill(db, narrow, OF_ONE, 60.0)
    first = await workers.start("first", lease_seconds=6.0).wait_until_ready()
    await observer.until_running(OF_ONE)
    await fill(db, narrow, OF_ONE, 0.0)
    await workers.start("second").wait_until_ready()
    await workers.kill(first)
    ends = await observer.value("SELECT max(lease_until) FROM tenuto.tasks WHERE state = 'running'")
    await observer.until("SELECT count(*) >= 1 FROM tenuto.activities WHERE status = 'completed'", within=20)
    taken = await observer.value("SELECT min(claimed_at) FROM tenuto.activities WHERE status = 'completed'")
    assert taken >= ends


async def test_a_cancelled_batch_stops_under_full_load_to_the_last_item(
    db: Database, workers: Workers, observer: Observer, ledger: Ledger
) -> None:
    _, _, free = await capped(db)
    batch = await fill(db, free, 3000, 0.05)  # proxied_db more than is done before it is cancelled
    for number in range(2):
        await workers.start(f"worker-{number}", slots=10).wait_until_ready()
    await observer.until("SELECT count(*) > 30 FROM tenuto.activities", within=30)
    await batches.cancel_batch(db, batch, db.clock.now(), ANA)
    cancelled_at = await observer.value("SELECT clock_timestamp()")
    await observer.until_all_ended(within=20)
    assert await observer.count("activities", "final") == 3000
    late = await observer.value("SELECT count(*) FROM tenuto.activities WHERE claimed_at > $1", cancelled_at)
    assert late == 0, "nothing of it has begun since"
