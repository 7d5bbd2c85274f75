"""Manifests for tests, a manager's and a worker's hand to play them with, and what is left in the tables.

Nothing here runs by itself: a test says when the clock stands where, who takes a run and what it comes to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.definitions.versioned import Author
from tenuto.model.manifests import Manifest
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.tasks import Task
from tenuto.operations import batches as bulk
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store import batches, manifests
from tenuto.store import tasks as store
from tenuto.store.manifests import StoredManifest
from tests.support.model_values import NOON
from tests.support.schedules import ANA, LEASE, end, outcome, table

__all__ = ["ANA", "LEASE", "NOON", "end", "outcome", "table"]

T = TypeVar("T")
ONCE = Policy(RetryPolicy(max_retries=1))


def a_manifest(external_id: str = "bake", **fields: Any) -> Manifest:
    """A manifest that nobody but its test runs; it fails for good at its first failure unless told otherwise."""
    return Manifest(external_id, **{"job": "bake", "policy": ONCE, **fields})


def author(now: datetime = NOON, origin: str = "hand") -> Author:
    return Author(ANA, now, None, origin)


async def kept(
    db: Database, external_id: str = "bake", now: datetime = NOON, *, enabled: bool = True, **fields: Any
) -> StoredManifest:
    """A manifest in the database."""
    return await manifest_definitions.create(db, a_manifest(external_id, **fields), author(now), enabled=enabled)


async def again(db: Database, external_id: str = "bake") -> StoredManifest:
    """The manifest as it is now."""
    return await manifest_definitions.get(db, external_id)


async def poll(db: Database, now: datetime = NOON) -> PollResult:
    return await manifest_manager.poll(db, now, "a manager")


async def started(db: Database, stored: StoredManifest, now: datetime = NOON, **fields: Any) -> UUID | None:
    """One run of a manifest, if nothing stands in its way."""
    run = manifest_manager.run_of(stored.id, stored.manifest, now, ANA, **fields)
    return run.id if await within(db, lambda connection: manifests.start_runs(connection, [run])) else None


async def a_batch(db: Database, stored: StoredManifest, items: int, *, key: str | None = None) -> UUID:
    """A batch with so many items, complete."""
    now = db.clock.now()
    batch = await bulk.open_batch(db, stored, now, ANA, key=key, name=None)
    like = await bulk.pattern(db, stored, batch["id"], now, ANA)
    await bulk.take_in(db, batch["id"], 0, like, ["{}"] * items, None)
    await bulk.complete(db, batch["id"], now)
    return UUID(str(batch["id"]))


async def take(db: Database, worker_id: UUID, limit: int = 1000) -> list[Task]:
    """Whatever may be taken of manifests."""
    return await store.claim_under_limits(db, worker_id, ["default"], limit, LEASE)


async def finish_all(db: Database, worker_id: UUID, status: str = "completed") -> int:
    """Take whatever may be taken and end it so; how many."""
    held = await take(db, worker_id)
    for task in held:
        await end(db, task, status)
    return len(held)


async def within(db: Database, act: Callable[[Connection], Awaitable[T]]) -> T:
    return await db.transaction(act)


async def counts(db: Database, id: UUID) -> dict[str, int]:
    """What has become of the items of a batch: the sums must always be those of the whole."""
    found = await batches.batch(db, id)
    assert found is not None
    left, past = sum(found["open"].values()), found["past"]
    done = past.get("completed", 0) + past.get("completed_with_warning", 0)
    cancelled = past.get("cancelled", 0)
    failed = sum(past.values()) - done - cancelled - found["retried"]
    assert found["total"] == left + done + failed + cancelled, found
    return {"left": left, "done": done, "failed": failed, "cancelled": cancelled}


async def states(db: Database) -> dict[str, int]:
    rows = await db.all("SELECT state, count(*) AS number FROM tenuto.tasks GROUP BY state")
    return {row["state"]: row["number"] for row in rows}
