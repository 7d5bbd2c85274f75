"""Concurrent operations on dead letters and batches at every statement; lost replies; crashing workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.definitions import manifest_definitions
from tenuto.errors import Conflict, NotFound
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_tasks_of_worker
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.work.tasks import Task
from tenuto.operations.work import batches as bulk
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Database
from tenuto.store.definitions import manifests
from tenuto.store.work import batches, task_creation
from tenuto.store.work import dead_letters as dead_letter_rows
from tenuto.store.work import tasks as store
from tests.races import jobs
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.processes import Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.support.manifests import (
    ANA,
    LEASE,
    batch_counts,
    claim_runs,
    create_batch,
    create_manifest,
    finish_all_runs,
    finish_task,
    make_change_context,
    make_manifest,
    make_settlement,
    read_table,
    reload_manifest,
    start_run,
    task_state_counts,
)
from tests.support.tasks import Register

pytestmark = pytest.mark.slow


@dataclass
class Scenario:
    """A batch with one failed item, one held, one waiting for its second attempt and one claimable."""

    batch: UUID
    dead_letter: UUID
    held: Task
    worker: UUID
    retried: list[dict[UUID, UUID]]
    acknowledged: list[set[UUID]]


class Action(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


async def retry(db: Database, scenario: Scenario) -> None:
    scenario.retried.append(await dead_letters.retry_dead_letters(db, [scenario.dead_letter], db.clock.now(), ANA))


async def acknowledge(db: Database, scenario: Scenario) -> None:
    scenario.acknowledged.append(
        await dead_letters.acknowledge_dead_letters(db, [scenario.dead_letter], db.clock.now(), ANA, note=None)
    )


async def pause(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await bulk.pause_batch(db, scenario.batch, db.clock.now(), ANA)


async def resume(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await bulk.resume_batch(db, scenario.batch, db.clock.now())


async def cancel(db: Database, scenario: Scenario) -> None:
    with suppress(Conflict):
        await bulk.cancel_batch(db, scenario.batch, db.clock.now(), ANA)


async def finish_held(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, db.clock.now())])


async def fail_held(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, db.clock.now(), "failed")])


async def return_held_to_queue(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.held])


async def claim(db: Database, scenario: Scenario) -> None:
    await store.claim_limited_tasks(db, scenario.worker, ["default"], 10, LEASE)


async def promote(db: Database, scenario: Scenario) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now() WHERE state = 'scheduled'")
    await store.promote_due_tasks(db, db.clock.now(), ["default"])


async def add_more_items(db: Database, scenario: Scenario) -> None:
    stored = await reload_manifest(db)
    like = await bulk.item_template(db, stored, scenario.batch, db.clock.now(), ANA)
    with suppress(Conflict):
        await bulk.add_items(db, scenario.batch, 4, like, ["{}"] * 2, ["x", "y"])


async def recover_held(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


ACTIONS: tuple[Action, ...] = (
    retry, acknowledge, pause, resume, cancel, finish_held, fail_held, return_held_to_queue, recover_held, claim,
    promote, add_more_items,
)  # fmt: skip


async def create_scenario(db: Database, worker: UUID) -> Scenario:
    stored = await create_manifest(db, policy=TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=3600, jitter=0)))
    batch = await create_batch(db, stored, 4)
    held = await claim_runs(db, worker, 3)
    for task in held[:2]:
        await finish_task(db, task, "failed")
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now() WHERE id = $1", held[0].id)
    await store.promote_due_tasks(db, db.clock.now(), ["default"])
    free = [task for task in await claim_runs(db, worker, 2) if task.id != held[0].id]
    await store.return_tasks_to_queue(db, worker, free)
    again_held = await store.load_task_to_cancel(db, held[0].id)
    assert again_held is not None
    await finish_task(db, again_held, "failed")
    (dead_letter,) = await read_table(db, "dead_letters")
    assert await task_state_counts(db) == {"running": 1, "scheduled": 1, "queued": 1}
    return Scenario(batch, dead_letter["id"], held[2], worker, [], [])


async def assert_consistent(db: Database, scenario: Scenario) -> None:
    """Assert that one operation decided, the sums are right, no item waits forever and no cancelled item goes on."""
    done = sum(len(result) for result in scenario.retried) + sum(len(result) for result in scenario.acknowledged)
    (dead_letter,) = await read_table(db, "dead_letters", "id = $1", scenario.dead_letter)
    assert done == (dead_letter["status"] != "awaiting_intervention")
    await batch_counts(db, scenario.batch)
    (batch,) = await read_table(db, "batches")
    found = await task_state_counts(db)
    if batch["cancelled_at"] is not None:
        assert set(found) <= {"running"}
        assert await read_table(db, "tasks", "cancel_at IS NULL") == [], "running items have a cancel request"
    elif batch["paused_at"] is not None:
        assert set(found) <= {"running", "waiting"}
        assert await claim_runs(db, scenario.worker) == []
    else:
        assert "waiting" not in found


async def truncate(db: Database) -> None:
    for name in ("manifests", "manifest_versions", "batches", "dead_letters", "tasks"):
        await db.fetch_all(f"DELETE FROM tenuto.{name}")


@pytest.mark.parametrize("one", ACTIONS, ids=lambda action: action.__name__)
async def test_concurrent_batch_operations_keep_sums_right_and_lose_no_item(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register, one: Action
) -> None:
    worker = await register_worker()
    for other in ACTIONS:
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker)
            try:
                await interleaving.run(partial(one, scenario=scenario), partial(other, scenario=scenario))
                await assert_consistent(second, scenario)
            except AssertionError as error:
                raise AssertionError(f"{one.__name__} and {other.__name__}, {interleaving}: {error}") from error
            await truncate(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_recovery_locks_the_batch_before_its_lost_tasks(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register
) -> None:
    worker = await register_worker()
    for other in (cancel, pause):
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker)
            await interleaving.run(partial(recover_held, scenario=scenario), partial(other, scenario=scenario))
            await truncate(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_retrying_dead_letters_of_several_manifests_locks_in_the_order_of_finishing_runs(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register
) -> None:
    """The order by name is the reverse of the order by id."""
    worker = await register_worker()

    async def retry_both(db: Database) -> None:
        ids = [row["id"] for row in await read_table(second, "dead_letters")]
        assert len(await dead_letters.retry_dead_letters(db, ids, db.clock.now(), ANA)) == 2

    async def fail_both(held: list[Task], db: Database) -> None:
        await finish(db, [make_settlement(task, db.clock.now(), "failed") for task in held])

    async for interleaving in interleavings(first, second):
        older, newer = await create_manifest(second, "zeta"), await create_manifest(second, "alpha")
        assert older.id < newer.id
        for stored in (older, newer):
            await create_batch(second, stored, 2)
        held = sorted(await claim_runs(second, worker), key=lambda task: str(task.manifest_id))  # two of each
        for task in held[::2]:
            await finish_task(second, task, "failed")
        await interleaving.run(retry_both, partial(fail_both, held[1::2]))
        await truncate(second)
    assert first.deadlocks + second.deadlocks == 0


# --- lost replies ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def proxied_db(proxy: Proxy) -> AsyncIterator[Database]:
    """The database behind the proxy."""
    database = await Database.open(proxy.url, generic_plans=True)
    yield database
    await database.close()


def lose_commit_reply(proxy: Proxy, statement: str) -> None:
    """Commit the next transaction with this statement, but lose the reply."""
    proxy.lose_reply("COMMIT", within=statement)


async def test_dead_letter_retry_with_lost_reply_happens_once_and_is_reported(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: Register
) -> None:
    worker_id = await register_worker()
    await create_batch(db, await create_manifest(db), 1)
    await finish_all_runs(db, worker_id, "failed")
    (dead_letter,) = await read_table(db, "dead_letters")
    lose_commit_reply(proxy, dead_letter_rows.SQL.resolve_dead_letters)
    done = await dead_letters.retry_dead_letters(proxied_db, [dead_letter["id"]], db.clock.now(), ANA, strict=True)
    assert proxy.lost == 1
    (task,) = await read_table(db, "tasks")
    assert done == {dead_letter["id"]: task["id"]}


async def test_dead_letter_acknowledgement_with_lost_reply_happens_once_and_is_reported(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: Register
) -> None:
    worker_id = await register_worker()
    await create_batch(db, await create_manifest(db), 1)
    await finish_all_runs(db, worker_id, "failed")
    (dead_letter,) = await read_table(db, "dead_letters")
    lose_commit_reply(proxy, dead_letter_rows.SQL.resolve_dead_letters)
    assert await dead_letters.acknowledge_dead_letters(
        proxied_db, [dead_letter["id"]], db.clock.now(), ANA, note="n"
    ) == {dead_letter["id"]}
    assert proxy.lost == 1


async def test_batch_part_with_lost_reply_is_added_once(db: Database, proxied_db: Database, proxy: Proxy) -> None:
    stored = await create_manifest(db)
    batch = (await bulk.open_batch(db, stored, db.clock.now(), ANA, key=None, name=None)).id
    like = await bulk.item_template(db, stored, batch, db.clock.now(), ANA)
    lose_commit_reply(proxy, batches.SQL.add_batch_part)
    await bulk.add_items(proxied_db, batch, 0, like, ["{}"] * 5, None)
    assert proxy.lost == 1
    assert (await batch_counts(db, batch))["left"] == 5


async def test_batch_pause_resume_and_cancel_with_lost_reply_happen_once_without_error(
    db: Database, proxied_db: Database, proxy: Proxy
) -> None:
    batch = await create_batch(db, await create_manifest(db), 3)
    lose_commit_reply(proxy, batches.SQL.pause_batch)
    await bulk.pause_batch(proxied_db, batch, db.clock.now(), ANA)
    assert proxy.lost == 1
    lose_commit_reply(proxy, batches.SQL.resume_batch)
    await bulk.resume_batch(proxied_db, batch, db.clock.now())
    assert proxy.lost == 1
    lose_commit_reply(proxy, batches.SQL.cancel_batch)
    await bulk.cancel_batch(proxied_db, batch, db.clock.now(), ANA)
    assert proxy.lost == 1
    assert (await batch_counts(db, batch))["cancelled"] == 3


async def test_manifest_changes_with_lost_reply_happen_once(db: Database, proxied_db: Database, proxy: Proxy) -> None:
    now = db.clock.now()
    lose_commit_reply(proxy, manifests.SQL.insert_definition)
    await manifest_definitions.create(proxied_db, make_manifest(), make_change_context(now))
    assert proxy.lost == 1
    lose_commit_reply(proxy, manifests.SQL.update_definition)
    await manifest_definitions.edit(
        proxied_db, "bake", make_manifest(priority=3), make_change_context(db.clock.now()), version=1
    )
    assert proxy.lost == 1
    lose_commit_reply(proxy, manifests.SQL.update_definition)
    assert (
        await manifest_definitions.set_enabled(proxied_db, "bake", make_change_context(db.clock.now()), enabled=False)
        is True
    )
    assert proxy.lost == 1
    lose_commit_reply(proxy, manifests.SQL.delete_definition)
    await manifest_definitions.delete(proxied_db, "bake", make_change_context(db.clock.now()))
    assert proxy.lost == 1
    lose_commit_reply(proxy, manifests.SQL.insert_definition)
    assert (
        await manifest_definitions.declare(proxied_db, make_manifest("new"), make_change_context(now, "code"))
        == "created"
    )
    assert proxy.lost == 1
    changes = [row["change"] for row in await read_table(db, "manifest_versions", "external_id = 'bake'")]
    assert changes == ["created", "edited", "disabled", "deleted"]
    with pytest.raises(NotFound):
        await manifest_definitions.delete(proxied_db, "bake", make_change_context(db.clock.now()))


@pytest.mark.parametrize("key", [None, "a"])
async def test_manifest_run_with_lost_reply_starts_once_and_is_reported(
    url: str, db: Database, proxy: Proxy, tmp_path: Any, key: str | None, register_worker: Register
) -> None:
    worker_id = await register_worker()
    app = Tenuto(proxy.url, home=tmp_path)
    app.jobs.jobs_by_name.update(jobs.app.jobs.jobs_by_name)
    await app.manifests.create(make_manifest("touch", job="touch", properties={"number": 1}))
    lose_commit_reply(proxy, task_creation.SQL.enqueue_tasks)
    run = app.manifests.run("touch") if key is None else app.manifests.enqueue("touch", {"number": 2}, key=key)
    id = await run
    assert proxy.lost == 1
    assert [row["id"] for row in await read_table(db, "tasks")] == [id]
    assert await finish_all_runs(db, worker_id) == 1
    await app.close()


# --- crashing workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before finish_tasks 1", "after finish_tasks 1"])
async def test_last_failure_and_dead_letter_are_written_together(
    db: Database, workers: Workers, observer: Observer, point: str
) -> None:
    """Checked while the crashed worker has not recovered; its next start recovers the task and writes both."""
    stored = await create_manifest(db, job="fail_once", policy=TaskPolicy(RetryPolicy(max_attempts=1), on_lost="fail"))
    await start_run(db, stored, db.clock.now(), input='{"number": 1}')
    assert await workers.start("mortal", crash_at=point, sweep=600).wait_for_exit(within=20) == 9
    assert await observer.count("activities") == await observer.count("dead_letters") == 0
    assert await observer.count("tasks") == 1
    await workers.start("mortal").wait_until_ready()
    await observer.until("SELECT count(*) = 1 FROM tenuto.dead_letters", within=20)
    assert await observer.rows("SELECT reason, final FROM tenuto.activities") == [("lost", True)]
    assert await observer.count("tasks") == 0
