"""Actions on manifests, batches, dead letters and chains."""

from __future__ import annotations

from typing import Any

from tenuto.definitions import manifest_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.queues import QueueSettings
from tenuto.model.triggers import every
from tenuto.operations.work import batches as bulk
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.store.definitions import manifests, queues
from tenuto.store.work import batches, step_checkpoints, task_creation
from tenuto.store.work import dead_letters as dead_letter_rows
from tenuto.store.work import tasks as store
from tests.races.execution_actions import fail_permanently
from tests.races.scenarios.executions import fail_all
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, in_transaction, run_sql
from tests.races.scenarios.tasks import claim_tasks
from tests.races.task_actions import ACTOR, LEASE, complete, fail


def bake_manifest(**fields: Any) -> Manifest:
    return Manifest("bake", **{"job": "bake", "policy": TaskPolicy(RetryPolicy(max_attempts=2)), **fields})


async def create_manifest(db: Database, scenario: Scenario) -> None:
    await manifest_definitions.create(
        db, bake_manifest(trigger=every("1d")), scenario.author(), id=scenario.id("manifest")
    )


async def edit_manifest(db: Database, scenario: Scenario) -> None:
    await manifest_definitions.edit(db, "bake", bake_manifest(name="bread", trigger=every("1d")), scenario.author())


def declare_manifest(text: str) -> Action:
    async def action(db: Database, scenario: Scenario) -> None:
        await manifest_definitions.declare(db, bake_manifest(name=text, trigger=every("1d")), scenario.author())

    return action


async def change_group(db: Database, scenario: Scenario) -> None:
    await manifest_definitions.change_group(db, "ovens", ChangeContext(ACTOR, db.clock.now()), max_active=2)


async def poll_manifests(db: Database, scenario: Scenario) -> None:
    await manifest_manager.poll_manifests(db, db.clock.now(), "tester")


async def finish_run(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, task) for task in scenario.held])


async def record_item_success(db: Database, scenario: Scenario) -> None:
    await manifests.record_batch_item_successes(db, [scenario.id("manifest")], db.clock.now())


async def submit_batch(db: Database, scenario: Scenario) -> None:
    stored = await manifest_definitions.get(db, "bake")
    now = db.clock.now()
    batch = await bulk.open_batch(db, stored, now, ACTOR, key="the batch", name=None)
    scenario.ids["batch"] = batch.id
    like = await bulk.item_template(db, stored, batch.id, now, ACTOR)
    await bulk.add_items(db, batch.id, 0, like, ["{}"] * 5, None)
    await bulk.complete_batch(db, batch.id, now)


async def claim_items(db: Database, scenario: Scenario) -> None:
    scenario.held = await store.claim_limited_tasks(db, scenario.worker, ["default"], 3, LEASE)


async def record_checkpoints(db: Database, scenario: Scenario) -> None:
    await step_checkpoints.record_checkpoint(db, scenario.held[0], "1 load", "1")
    await step_checkpoints.record_sleep(db, scenario.held[0], "2 wait", 1, '"2030-01-01T00:00:00Z"')


async def pause_batch(db: Database, scenario: Scenario) -> None:
    await bulk.pause_batch(db, scenario.ids["batch"], db.clock.now(), ACTOR)


async def retry_item(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.held[1])])


async def resume_batch(db: Database, scenario: Scenario) -> None:
    await bulk.resume_batch(db, scenario.ids["batch"], db.clock.now())


async def fail_item(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, scenario.held[0])])


async def retry_dead_letter(db: Database, scenario: Scenario) -> None:
    (dead_letter,) = await scenario.db.fetch_all("SELECT id FROM tenuto.dead_letters")
    await dead_letters.retry_dead_letters(db, [dead_letter["id"]], db.clock.now(), ACTOR, task_id=scenario.id("again"))


async def fail_other_item(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, scenario.held[2])])


async def acknowledge_dead_letters(db: Database, scenario: Scenario) -> None:
    rows = await scenario.db.fetch_all("SELECT id FROM tenuto.dead_letters WHERE status = 'awaiting_intervention'")
    await dead_letters.acknowledge_dead_letters(db, [row["id"] for row in rows], db.clock.now(), ACTOR, note=None)


async def enqueue_without_manifest(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_tasks(db, [scenario.task("rejected"), scenario.task("rejected again")])


async def retry_dead_letter_of_task(db: Database, scenario: Scenario) -> None:
    id = await scenario.db.fetch_value("SELECT id FROM tenuto.dead_letters WHERE task_id = $1", scenario.id("rejected"))
    await dead_letters.retry_dead_letters(db, [id], db.clock.now(), ACTOR, task_id=scenario.id("corrected"))


async def cancel_batch(db: Database, scenario: Scenario) -> None:
    await bulk.cancel_batch(db, scenario.ids["batch"], db.clock.now(), ACTOR)


async def delete_old_batches(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await dead_letter_rows.delete_resolved_dead_letters(db, cutoff, 100)
    await step_checkpoints.delete_orphaned_checkpoints(db, cutoff, 100)
    await manifests.delete_old_polls(db, cutoff, 100)
    await batches.delete_old_batches(db, cutoff, 100)


async def delete_manifest(db: Database, scenario: Scenario) -> None:
    await manifest_definitions.delete(db, "bake", scenario.author())


async def finish_remaining_tasks(db: Database, scenario: Scenario) -> None:
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
    await recover_lost_tasks(db, db.clock.now())
    await db.fetch_all("UPDATE tenuto.tasks SET run_at = now(), state = 'queued' WHERE state = 'scheduled'")
    while claimed := await store.claim_limited_tasks(db, scenario.worker, ["default"], 50, LEASE):
        await finish(db, [complete(db, task) for task in claimed])


MAKE_MANIFEST_DUE = run_sql("UPDATE tenuto.manifests SET next_run_at = now() - interval '1 s'")


async def _declare_queue(connection: Connection, scenario: Scenario) -> None:
    stored = (await queues.lock_queues(connection, ["oven"]))["oven"]
    after = QueueSettings(3, "5/m", "cleaning")
    await queues.save_queue(connection, stored, after, {"max_running": 3}, by="tester")


async def _reset_queue(connection: Connection, scenario: Scenario) -> None:
    stored = (await queues.lock_queues(connection, ["oven"]))["oven"]
    await queues.save_queue(connection, stored, QueueSettings(), None, by="tester")
    await queues.delete_unset_queues(connection, ["oven"])


MANIFESTS: tuple[Action, ...] = (
    in_transaction(_declare_queue), in_transaction(_reset_queue),
    create_manifest, edit_manifest, declare_manifest("bread"), declare_manifest("from code"),
    declare_manifest("from newer code"), change_group, MAKE_MANIFEST_DUE, poll_manifests, Preparation(claim_items),
    finish_run, record_item_success, submit_batch, Preparation(claim_items), record_checkpoints, pause_batch,
    retry_item, resume_batch, fail_item, retry_dead_letter, Preparation(fail_other_item), acknowledge_dead_letters,
    Preparation(claim_items), cancel_batch, Preparation(finish_remaining_tasks),
    Preparation(enqueue_without_manifest), Preparation(claim_tasks), fail_all, retry_dead_letter_of_task,
    acknowledge_dead_letters, delete_old_batches, delete_manifest,
)  # fmt: skip
