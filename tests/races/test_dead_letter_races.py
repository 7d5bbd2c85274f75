"""Letters and batches that several action upon at once, at every statement; replies that get lost; workers that die."""

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
from tenuto.model.policies import RetryPolicy, TaskPolicy
from tenuto.model.tasks import Task
from tenuto.operations import batches as bulk
from tenuto.operations import dead_letters
from tenuto.postgres.database import Database
from tenuto.store import batches, manifests
from tenuto.store import dead_letters as dead_letter_rows
from tenuto.store import tasks as store
from tests.races import jobs
from tests.races.interleaving import InterleavedDatabase, interleavings
from tests.races.observer import Observer
from tests.races.processes import Workers
from tests.races.proxy import Proxy
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


@dataclass
class Scenario:
    """A batch of which one item has failed, one is held, one waits for its second attempt and one is free to take."""

    batch: UUID
    letter: UUID
    held: Task
    worker: UUID
    retried: list[dict[UUID, UUID]]
    acknowledged: list[set[UUID]]


class Action(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, db: Database, scenario: Scenario) -> None: ...


async def retry(db: Database, scenario: Scenario) -> None:
    scenario.retried.append(await dead_letters.retry_dead_letters(db, [scenario.letter], db.clock.now(), ANA))


async def acknowledge(db: Database, scenario: Scenario) -> None:
    scenario.acknowledged.append(
        await dead_letters.acknowledge_dead_letters(db, [scenario.letter], db.clock.now(), ANA, note=None)
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


async def the_held_one_ends(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, db.clock.now())])


async def the_held_one_fails(db: Database, scenario: Scenario) -> None:
    await finish(db, [make_settlement(scenario.held, db.clock.now(), "failed")])


async def the_held_one_is_put_back(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.held])


async def claim(db: Database, scenario: Scenario) -> None:
    await store.claim_limited_tasks(db, scenario.worker, ["default"], 10, LEASE)


async def promote(db: Database, scenario: Scenario) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now() WHERE state = 'scheduled'")
    await store.promote_due_tasks(db, db.clock.now(), ["default"])


async def more_comes_in(db: Database, scenario: Scenario) -> None:
    stored = await reload_manifest(db)
    like = await bulk.item_template(db, stored, scenario.batch, db.clock.now(), ANA)
    with suppress(Conflict):
        await bulk.add_items(db, scenario.batch, 4, like, ["{}"] * 2, ["x", "y"])


async def the_held_one_is_taken_back(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


ACTIONS: tuple[Action, ...] = (
    retry, acknowledge, pause, resume, cancel, the_held_one_ends, the_held_one_fails, the_held_one_is_put_back,
    the_held_one_is_taken_back, claim, promote, more_comes_in,
)  # fmt: skip


async def create_scenario(db: Database, worker: UUID) -> Scenario:
    stored = await create_manifest(db, policy=TaskPolicy(RetryPolicy(max_retries=2, base_seconds=3600, jitter=0)))
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
    (letter,) = await read_table(db, "dead_letters")
    assert await task_state_counts(db) == {"running": 1, "scheduled": 1, "queued": 1}
    return Scenario(batch, letter["id"], held[2], worker, [], [])


async def settled(db: Database, scenario: Scenario) -> None:
    """One decided, the sums are right, and nothing waits for ever or goes on that was cancelled."""
    done = sum(len(answer) for answer in scenario.retried) + sum(len(answer) for answer in scenario.acknowledged)
    (letter,) = await read_table(db, "dead_letters", "id = $1", scenario.letter)
    assert done == (letter["status"] != "awaiting_intervention")
    await batch_counts(db, scenario.batch)
    (batch,) = await read_table(db, "batches")
    found = await task_state_counts(db)
    if batch["cancelled_at"] is not None:
        assert set(found) <= {"running"}
        assert await read_table(db, "tasks", "cancel_at IS NULL") == [], "what runs of it was told to stop"
    elif batch["paused_at"] is not None:
        assert set(found) <= {"running", "waiting"}
        assert await claim_runs(db, scenario.worker) == []
    else:
        assert "waiting" not in found


async def clear(db: Database) -> None:
    for name in ("manifests", "manifest_versions", "batches", "dead_letters", "tasks"):
        await db.fetch_all(f"DELETE FROM tenuto.{name}")


@pytest.mark.parametrize("one", ACTIONS, ids=lambda action: action.__name__)
async def test_one_decides_the_sums_are_right_and_nothing_is_left_behind(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register, one: Action
) -> None:
    worker = await register_worker()
    for other in ACTIONS:
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker)
            try:
                await interleaving.run(partial(one, scenario=scenario), partial(other, scenario=scenario))
                await settled(second, scenario)
            except AssertionError as error:
                raise AssertionError(f"{one.__name__} and {other.__name__}, {interleaving}: {error}") from error
            await clear(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_who_takes_back_what_was_lost_holds_its_batch_before_it(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register
) -> None:
    worker = await register_worker()
    for other in (cancel, pause):
        async for interleaving in interleavings(first, second):
            scenario = await create_scenario(second, worker)
            await interleaving.run(
                partial(the_held_one_is_taken_back, scenario=scenario), partial(other, scenario=scenario)
            )
            await clear(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_letters_of_several_manifests_are_retried_while_runs_of_the_same_end_in_the_one_order_of_locks(
    first: InterleavedDatabase, second: InterleavedDatabase, register_worker: Register
) -> None:
    """By name they stand the other way round than by id."""
    worker = await register_worker()

    async def retry_both(db: Database) -> None:
        ids = [row["id"] for row in await read_table(second, "dead_letters")]
        assert len(await dead_letters.retry_dead_letters(db, ids, db.clock.now(), ANA)) == 2

    async def both_fail(held: list[Task], db: Database) -> None:
        await finish(db, [make_settlement(task, db.clock.now(), "failed") for task in held])

    async for interleaving in interleavings(first, second):
        older, newer = await create_manifest(second, "zeta"), await create_manifest(second, "alpha")
        assert older.id < newer.id
        for stored in (older, newer):
            await create_batch(second, stored, 2)
        held = sorted(await claim_runs(second, worker), key=lambda task: str(task.manifest_id))  # two of each
        for task in held[::2]:
            await finish_task(second, task, "failed")
        await interleaving.run(retry_both, partial(both_fail, held[1::2]))
        await clear(second)
    assert first.deadlocks + second.deadlocks == 0


# --- replies that get lost ------------------------------------------------------------------------------------------


@pytest.fixture
async def proxied_db(proxy: Proxy) -> AsyncIterator[Database]:
    """The same database, at the proxied_db end of a line that loses replies."""
    database = await Database.open(proxy.url, generic_plans=True)
    yield database
    await database.close()


def lose(proxy: Proxy, statement: str) -> None:
    """The next transaction with this statement commits, and nobody hears of it."""
    proxy.lose_reply("COMMIT", within=statement)


async def test_a_letter_is_retried_once_and_who_did_it_is_told_so(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: Register
) -> None:
    worker_id = await register_worker()
    await create_batch(db, await create_manifest(db), 1)
    await finish_all_runs(db, worker_id, "failed")
    (letter,) = await read_table(db, "dead_letters")
    lose(proxy, dead_letter_rows.SQL.resolve_dead_letters)
    done = await dead_letters.retry_dead_letters(proxied_db, [letter["id"]], db.clock.now(), ANA, strict=True)
    assert proxy.lost == 1
    (task,) = await read_table(db, "tasks")
    assert done == {letter["id"]: task["id"]}


async def test_a_letter_is_acknowledged_once_and_who_did_it_is_told_so(
    db: Database, proxied_db: Database, proxy: Proxy, register_worker: Register
) -> None:
    worker_id = await register_worker()
    await create_batch(db, await create_manifest(db), 1)
    await finish_all_runs(db, worker_id, "failed")
    (letter,) = await read_table(db, "dead_letters")
    lose(proxy, dead_letter_rows.SQL.resolve_dead_letters)
    assert await dead_letters.acknowledge_dead_letters(proxied_db, [letter["id"]], db.clock.now(), ANA, note="n") == {
        letter["id"]
    }
    assert proxy.lost == 1


async def test_a_part_comes_in_once(db: Database, proxied_db: Database, proxy: Proxy) -> None:
    stored = await create_manifest(db)
    batch = (await bulk.open_batch(db, stored, db.clock.now(), ANA, key=None, name=None))["id"]
    like = await bulk.item_template(db, stored, batch, db.clock.now(), ANA)
    lose(proxy, batches.SQL.add_batch_part)
    await bulk.add_items(proxied_db, batch, 0, like, ["{}"] * 5, None)
    assert proxy.lost == 1
    assert (await batch_counts(db, batch))["left"] == 5


async def test_a_batch_is_paused_resumed_and_cancelled_once_without_a_word_of_complaint(
    db: Database, proxied_db: Database, proxy: Proxy
) -> None:
    batch = await create_batch(db, await create_manifest(db), 3)
    lose(proxy, batches.SQL.pause_batch)
    await bulk.pause_batch(proxied_db, batch, db.clock.now(), ANA)
    assert proxy.lost == 1
    lose(proxy, batches.SQL.resume_batch)
    await bulk.resume_batch(proxied_db, batch, db.clock.now())
    assert proxy.lost == 1
    lose(proxy, batches.SQL.cancel_batch)
    await bulk.cancel_batch(proxied_db, batch, db.clock.now(), ANA)
    assert proxy.lost == 1
    assert (await batch_counts(db, batch))["cancelled"] == 3


async def test_manifests_are_made_changed_switched_and_deleted_once(
    db: Database, proxied_db: Database, proxy: Proxy
) -> None:
    now = db.clock.now()
    lose(proxy, manifests.SQL.insert_definition)
    await manifest_definitions.create(proxied_db, make_manifest(), make_change_context(now))
    assert proxy.lost == 1
    lose(proxy, manifests.SQL.update_definition)
    await manifest_definitions.edit(
        proxied_db, "bake", make_manifest(priority=3), make_change_context(db.clock.now()), version=1
    )
    assert proxy.lost == 1
    lose(proxy, manifests.SQL.update_definition)
    assert (
        await manifest_definitions.set_enabled(proxied_db, "bake", make_change_context(db.clock.now()), enabled=False)
        is True
    )
    assert proxy.lost == 1
    lose(proxy, manifests.SQL.delete_definition)
    await manifest_definitions.delete(proxied_db, "bake", make_change_context(db.clock.now()))
    assert proxy.lost == 1
    lose(proxy, manifests.SQL.insert_definition)
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
async def test_a_run_is_started_once_and_who_asked_for_it_is_told_so(
    url: str, db: Database, proxy: Proxy, tmp_path: Any, key: str | None, register_worker: Register
) -> None:
    worker_id = await register_worker()
    app = Tenuto(proxy.url, home=tmp_path)
    app.jobs.jobs_by_name.update(jobs.app.jobs.jobs_by_name)
    await app.manifests.create(make_manifest("touch", job="touch", properties={"number": 1}))
    lose(proxy, manifests.SQL.enqueue_runs)
    run = app.manifests.run("touch") if key is None else app.manifests.enqueue("touch", {"number": 2}, key=key)
    id = await run
    assert proxy.lost == 1
    assert [row["id"] for row in await read_table(db, "tasks")] == [id]
    assert await finish_all_runs(db, worker_id) == 1
    await app.close()


# --- workers that die -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before finish_tasks 1", "after finish_tasks 1"])
async def test_the_last_failure_and_its_letter_are_there_both_or_neither(
    db: Database, workers: Workers, observer: Observer, point: str
) -> None:
    """Looked at while the worker that was writing them lies dead; the next start takes it back, and writes both."""
    stored = await create_manifest(db, job="fail_once", policy=TaskPolicy(RetryPolicy(max_retries=1), on_lost="fail"))
    await start_run(db, stored, db.clock.now(), input='{"number": 1}')
    assert await workers.start("mortal", crash_at=point, sweep=600).wait_for_exit(within=20) == 9
    assert await observer.count("activities") == await observer.count("dead_letters") == 0
    assert await observer.count("tasks") == 1
    await workers.start("mortal").wait_until_ready()
    await observer.until("SELECT count(*) = 1 FROM tenuto.dead_letters", within=20)
    assert await observer.rows("SELECT reason, final FROM tenuto.activities") == [("lost", True)]
    assert await observer.count("tasks") == 0
