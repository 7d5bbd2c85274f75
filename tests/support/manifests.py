"""Manifests for tests: definitions, the actions of a manifest manager and a worker, and reading of tables.

Nothing runs in the background: the test decides the time, claims the runs and finishes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tenuto.definitions import manifest_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.work.tasks import Task
from tenuto.operations.work import batches as bulk
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store.definitions.manifests import StoredManifest
from tenuto.store.work import batches, task_creation
from tenuto.store.work import tasks as store
from tests.support.model_values import NOON
from tests.support.schedules import ANA, LEASE, finish_task, make_settlement, read_table

__all__ = ["ANA", "LEASE", "NOON", "finish_task", "make_settlement", "read_table"]

T = TypeVar("T")
SINGLE_ATTEMPT = TaskPolicy(RetryPolicy(max_attempts=1))


def make_manifest(external_id: str = "bake", **fields: Any) -> Manifest:
    """Make a manifest without trigger whose first failure is final."""
    return Manifest(external_id, **{"job": "bake", "policy": SINGLE_ATTEMPT, **fields})


def make_change_context(now: datetime = NOON, origin: str = "hand") -> ChangeContext:
    return ChangeContext(ANA, now, None, origin)


async def create_manifest(
    db: Database, external_id: str = "bake", now: datetime = NOON, *, enabled: bool = True, **fields: Any
) -> StoredManifest:
    """Create a manifest in the database."""
    return await manifest_definitions.create(
        db, make_manifest(external_id, **fields), make_change_context(now), enabled=enabled
    )


async def reload_manifest(db: Database, external_id: str = "bake") -> StoredManifest:
    """Load the manifest again."""
    return await manifest_definitions.get(db, external_id)


async def poll_manifests(db: Database, now: datetime = NOON) -> PollResult:
    return await manifest_manager.poll_manifests(db, now, "a manager")


async def start_run(db: Database, stored: StoredManifest, now: datetime = NOON, **fields: Any) -> UUID | None:
    """Start one run of a manifest; return None if it is blocked."""
    run = manifest_manager.new_run(stored.id, stored.manifest, now, ANA, **fields)
    return (
        run.id
        if await run_in_transaction(db, lambda connection: task_creation.enqueue_tasks_within(connection, [run]))
        else None
    )


async def create_batch(db: Database, stored: StoredManifest, items: int, *, key: str | None = None) -> UUID:
    """Create a complete batch with this number of items."""
    now = db.clock.now()
    batch = await bulk.open_batch(db, stored, now, ANA, key=key, name=None)
    like = await bulk.item_template(db, stored, batch.id, now, ANA)
    await bulk.add_items(db, batch.id, 0, like, ["{}"] * items, None)
    await bulk.complete_batch(db, batch.id, now)
    return UUID(str(batch.id))


async def claim_runs(db: Database, worker_id: UUID, limit: int = 1000) -> list[Task]:
    """Claim all claimable runs."""
    return await store.claim_limited_tasks(db, worker_id, ["default"], limit, LEASE)


async def finish_all_runs(db: Database, worker_id: UUID, status: str = "completed") -> int:
    """Claim all claimable runs and finish them; return their number."""
    held = await claim_runs(db, worker_id)
    for task in held:
        await finish_task(db, task, status)
    return len(held)


async def run_in_transaction(db: Database, act: Callable[[Connection], Awaitable[T]]) -> T:
    return await db.transaction(act)


async def batch_counts(db: Database, id: UUID) -> dict[str, int]:
    """Return the counts of batch items by result and check their sum."""
    found = await batches.load_batch(db, id)
    assert found is not None
    left, past = sum(found.open_counts.values()), found.ended_counts
    done = past.get("completed", 0) + past.get("completed_with_warning", 0)
    cancelled = past.get("cancelled", 0)
    failed = sum(past.values()) - done - cancelled - found.retried_count
    assert found.item_count == left + done + failed + cancelled, found
    return {"left": left, "done": done, "failed": failed, "cancelled": cancelled}


async def task_state_counts(db: Database) -> dict[str, int]:
    rows = await db.fetch_all("SELECT state, count(*) AS number FROM tenuto.tasks GROUP BY state")
    return {row["state"]: row["number"] for row in rows}
