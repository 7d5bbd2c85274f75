"""Any number of manifest managers (J5): under any action concurrent with a poll, a manifest runs once and no run
waits forever.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

import pytest

from tenuto.definitions import manifest_definitions
from tenuto.errors import Conflict, NotFound
from tenuto.lifecycle.completion import finish
from tenuto.model.triggers import every
from tenuto.model.work.tasks import Task
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import new_run
from tenuto.store.definitions import manifests
from tenuto.store.work import task_creation
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.support.manifests import (
    ANA,
    claim_runs,
    create_manifest,
    finish_task,
    make_change_context,
    make_manifest,
    make_settlement,
    read_table,
    start_run,
)
from tests.support.repetition_counts import times
from tests.support.tasks import Register

pytestmark = pytest.mark.slow
MANIFEST_COUNT = times(250, in_a_proof=1000)  # more than one batch


@pytest.mark.parametrize("count", [2, 3])
async def test_concurrent_manifest_managers_enqueue_every_manifest_once(
    db: Database, workers: Workers, observer: Observer, tmp_path: Path, count: int
) -> None:
    now = db.clock.now()
    for number in range(MANIFEST_COUNT):
        await create_manifest(db, f"m{number:03}", now - timedelta(hours=1), trigger=every("1m"))
    go = {"GO": str(tmp_path / "go")}
    racing = [workers.start(f"manager-{n}", do="manage", environment=go) for n in range(count)]
    for each in racing:
        await each.wait_until_ready()
    (tmp_path / "go").touch()
    for each in racing:
        assert await each.wait_for_exit(within=60) == 0
    assert await observer.count("tasks") == MANIFEST_COUNT
    assert await observer.value("SELECT count(DISTINCT manifest_id) FROM tenuto.tasks") == MANIFEST_COUNT
    assert await observer.value("SELECT sum(enqueued) FROM tenuto.polls") == MANIFEST_COUNT
    assert await observer.count("polls", "error IS NOT NULL") == 0
    assert await observer.count("polls") == count
    assert await observer.value("SELECT min(next_run_at) FROM tenuto.manifests") > now


# --- actions concurrent with a poll
# ----------------------------------------------------------------------------------


@dataclass
class Scenario:
    """A due manifest with a held item, and a dependent manifest with an open dead letter."""

    now: datetime
    stored: UUID
    held: Task
    running: Task
    dead_letter: UUID


class Action(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


async def poll_manifests(db: Database, scenario: Scenario) -> None:
    await manifest_manager.poll_manifests(db, scenario.now, "test")


async def run_manually(db: Database, scenario: Scenario) -> None:
    async def action(connection: Connection) -> None:
        held = await manifests.lock_manifest(connection, "a")
        if held is not None:
            await task_creation.enqueue_tasks_within(connection, [new_run(held.id, held.manifest, scenario.now, ANA)])

    await db.transaction(action)


async def add_item(db: Database, scenario: Scenario) -> None:
    async def action(connection: Connection) -> None:
        held = await manifests.lock_manifest(connection, "a")
        if held is not None:
            run = new_run(held.id, held.manifest, scenario.now, ANA, item_key="i")
            await task_creation.enqueue_tasks_within(connection, [run])

    await db.transaction(action)


async def finish_item(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, scenario.now)])


async def fail_item(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, scenario.now, "failed")])


async def finish_dependent(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.running, scenario.now)])


async def disable(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await manifest_definitions.set_enabled(db, "a", make_change_context(scenario.now), enabled=False)


async def edit(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await manifest_definitions.edit(
            db, "b", make_manifest("b", depends_on="a", priority=3), make_change_context(scenario.now)
        )


async def declare(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound):
        await manifest_definitions.declare(
            db, make_manifest("b", depends_on="a", priority=5), make_change_context(scenario.now, "code")
        )


async def retry(db: Database, scenario: Scenario) -> None:
    await dead_letters.retry_dead_letters(db, [scenario.dead_letter], scenario.now, ANA)


async def acknowledge(db: Database, scenario: Scenario) -> None:
    await dead_letters.acknowledge_dead_letters(db, [scenario.dead_letter], scenario.now, ANA, note=None)


async def delete(db: Database, scenario: Scenario) -> None:
    with suppress(NotFound, Conflict):
        await manifest_definitions.delete(db, "c", make_change_context(scenario.now))


ACTIONS: tuple[Action, ...] = (
    poll_manifests, run_manually, add_item, finish_item, fail_item, finish_dependent, disable, edit, declare, retry,
    acknowledge, delete,
)  # fmt: skip


async def create_scenario(db: Database, worker: UUID) -> Scenario:
    now = db.clock.now()
    stored = await create_manifest(db, "a", now - timedelta(hours=1), trigger=every("1m"))
    later = await create_manifest(db, "b", now, depends_on="a")
    await create_manifest(db, "c", now)
    await start_run(db, later, now)
    (failed,) = await claim_runs(db, worker)
    await finish_task(db, failed, "failed")
    await start_run(db, later, now, item_key="x")
    (running,) = await claim_runs(db, worker)
    await start_run(db, stored, now, item_key="i")
    (held,) = await claim_runs(db, worker)
    (dead_letter,) = await read_table(db, "dead_letters")
    return Scenario(now, stored.id, held, running, dead_letter["id"])


async def truncate(db: Database) -> None:
    for name in ("manifests", "manifest_versions", "polls", "dead_letters", "tasks"):
        await db.fetch_all(f"DELETE FROM tenuto.{name}")


@pytest.mark.parametrize("one", ACTIONS, ids=lambda action: action.__name__)
async def test_manifest_runs_once_under_any_concurrent_action(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register, one: Action
) -> None:
    worker = await register_worker()
    for other in ACTIONS:
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker)

            await interleaving.run(partial(one, scenario=scenario), partial(other, scenario=scenario))

            assert await violated_invariants(second) == [], (other, interleaving)
            await poll_manifests(second, scenario)
            await finish(second, [make_settlement(scenario.held, scenario.now)])
            await manifest_manager.poll_manifests(second, scenario.now + timedelta(hours=1), "test")
            assert await violated_invariants(second) == [], (other, interleaving)
            await truncate(second)
    assert first.deadlocks + second.deadlocks == 0


_INVARIANTS = (
    "SELECT 'twice', manifest_id::text FROM tenuto.tasks WHERE batch_id IS NULL AND item_key IS NULL"
    " GROUP BY manifest_id HAVING count(*) > 1",
    "SELECT 'one open per item', item FROM tenuto.dead_letters WHERE status = 'awaiting_intervention'"
    " GROUP BY manifest_id, item HAVING count(*) > 1",
    "SELECT 'a run without its manifest', id::text FROM tenuto.tasks"
    " WHERE manifest_id NOT IN (SELECT id FROM tenuto.manifests)",
    "SELECT 'a retry without its task', id::text FROM tenuto.dead_letters WHERE status = 'retried' AND retry_task_id"
    " NOT IN (SELECT id FROM tenuto.tasks UNION ALL SELECT id FROM tenuto.activities)",
    "SELECT 'due and never planned', external_id FROM tenuto.manifests WHERE enabled AND NOT planned",
)


async def violated_invariants(db: Database) -> list[tuple[str, str]]:
    return [tuple(row) for row in await db.fetch_all("\nUNION ALL\n".join(_INVARIANTS))]


async def test_two_concurrent_dependency_changes_create_no_cycle(
    first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    """The two changes touch different manifests, and each by itself creates no cycle."""

    async def change(db: Database, name: str, after: str) -> None:
        with suppress(Exception):
            await manifest_definitions.edit(db, name, make_manifest(name, depends_on=after), make_change_context())

    async for interleaving in interleavings(first, second):
        for name, after in (("a", None), ("b", "a"), ("c", None), ("d", "c")):
            await create_manifest(second, name, depends_on=after)
        await interleaving.run(partial(change, name="a", after="d"), partial(change, name="c", after="b"))
        changed = [row["external_id"] for row in await read_table(second, "manifests", "version > 1")]
        assert len(changed) == 1, interleaving
        await truncate(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_manifest_manager_notices_a_run_that_fails_during_its_poll(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register
) -> None:
    """Started manually and failed permanently between two statements of a poll: with its dead letter open, no
    dependent runs.
    """
    worker = await register_worker()

    async def run_and_fail(db: Database, now: datetime) -> None:
        async def action(connection: Connection) -> None:
            held = await manifests.lock_manifest(connection, "a")
            assert held is not None
            await task_creation.enqueue_tasks_within(connection, [new_run(held.id, held.manifest, now, ANA)])

        await db.transaction(action)
        for task in await claim_runs(db, worker):
            await finish_task(db, task, "failed")

    async for interleaving in interleavings(first, second):
        now = second.clock.now()
        await create_manifest(second, "a", now - timedelta(hours=1), trigger=every("1m"))
        await interleaving.run(
            partial(manifest_manager.poll_manifests, now=now, manager="test"), partial(run_and_fail, now=now)
        )
        if await read_table(second, "dead_letters"):
            assert await read_table(second, "tasks") == [], interleaving
        await truncate(second)
