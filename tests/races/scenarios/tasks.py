"""Actions on tasks, workers and queues."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenuto.ids import new_id
from tenuto.lifecycle import task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_lost_tasks, recover_tasks_of_worker
from tenuto.model.access.operation_context import OperationContext
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.rate_limits import RateLimit
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.work import task_creation, workers
from tenuto.store.work import tasks as store
from tenuto.store.work.tasks import QUEUE_START
from tenuto.store.work.workers import Declarations, ProcessRegistration
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, in_transaction, run_sql
from tests.races.task_actions import ACTOR, LEASE, claim, complete, fail
from tests.support.manifests import create_batch, create_manifest


async def enqueue(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_or_find(db, scenario.task("one"))


async def enqueue_many(db: Database, scenario: Scenario) -> None:
    later = {"run_at": db.clock.now() - timedelta(hours=1)}
    many = [scenario.task(f"many {number}") for number in range(4)]
    limited = [scenario.task(f"limited {number}", limit_key="two", limit_max=2) for number in range(6)]
    await task_creation.enqueue_tasks(db, [*many, *limited, scenario.task("later", **later)])


async def enqueue_audited(db: Database, scenario: Scenario) -> None:
    entry = AuditEntry(OperationContext(ACTOR, "task.create", "test"), id=scenario.id("audit entry"))
    await task_creation.insert_audited_tasks(db, [(scenario.task("audited"), entry)])


async def enqueue_bulk(db: Database, scenario: Scenario) -> None:
    """Enqueue tasks whose ids are generated on the way; after an interruption, check first whether they exist."""
    if not await scenario.db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE name = 'copied'"):
        await task_creation.enqueue_bulk(db, replace(scenario.task("like"), name="copied"), ["{}"] * 2)


async def promote(db: Database, scenario: Scenario) -> None:
    await store.promote_due_tasks(db, db.clock.now(), ["default"])


async def claim_tasks(db: Database, scenario: Scenario) -> None:
    scenario.held = sorted(await claim(db, scenario.worker, 20), key=lambda task: task.id) or scenario.held


async def recover_unknown_claims(scenario: Scenario) -> None:
    """Expire and recover the tasks that a crashed worker claimed without learning of it."""
    known = [task.id for task in scenario.held]
    await scenario.db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running' AND id <> ALL ($1)", known
    )
    await recover_lost_tasks(scenario.db, scenario.db.clock.now())


async def renew(db: Database, scenario: Scenario) -> None:
    await store.renew_leases(db, scenario.worker, [(task.id, task.fence, None) for task in scenario.held], LEASE)


async def mark_overrun(db: Database, scenario: Scenario) -> None:
    await store.mark_overrun_tasks(db, scenario.worker, [(task.id, task.fence) for task in scenario.held])


async def finish_one(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held[0])])


async def retry_one(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.held[1])])


async def defer_one(db: Database, scenario: Scenario) -> None:
    now = db.clock.now()
    aside = Outcome(
        OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(resume_at=now + timedelta(hours=1))
    )
    await finish(db, [settle(scenario.held[2], aside, now, new_id)])


async def return_one_to_queue(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.held[3]])


async def request_cancellation(db: Database, scenario: Scenario) -> None:
    await task_cancellation.cancel_task(db, scenario.held[4].id, ACTOR)


async def fail_cancelled_one(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail(db, scenario.held[4])])


async def cancel_one(db: Database, scenario: Scenario) -> None:
    await task_cancellation.cancel_task(db, scenario.held[3].id, ACTOR)


async def claim_limited(db: Database, scenario: Scenario) -> None:
    scenario.held += await store.claim_limited_tasks(db, scenario.worker, ["default"], 2, LEASE)


async def enqueue_uncapped(db: Database, scenario: Scenario) -> None:
    await create_batch(db, await create_manifest(db, queue="uncapped"), 3)


async def claim_uncapped(db: Database, scenario: Scenario) -> None:
    scenario.held += await store.claim_limited_tasks(db, scenario.worker, ["uncapped"], 2, LEASE)


async def enqueue_rated(db: Database, scenario: Scenario) -> None:
    rate = {"queue": "rated", "rate_key": "oven", "rate_limit": RateLimit(1, "h")}
    await task_creation.enqueue_tasks(db, [scenario.task("rated", **rate), scenario.task("parked", **rate)])


async def claim_rated(db: Database, scenario: Scenario) -> None:
    """Claim the task for which there is a token, and park the other."""
    scenario.held += await store.claim_limited_tasks(db, scenario.worker, ["rated"], 2, LEASE)


async def claim_standby(db: Database, scenario: Scenario) -> None:
    limit_slots = {task.limit_slot: QUEUE_START for task in _limited_tasks(scenario)[:1]}
    scenario.held += await store.claim_standby_tasks(db, scenario.worker, limit_slots, 2, LEASE)


async def hand_off_slot_after_success(db: Database, scenario: Scenario) -> None:
    first, _, successor, *_ = _limited_tasks(scenario)
    await finish(db, [_with_successor(complete(db, first), successor)])


async def hand_off_slot_after_failure(db: Database, scenario: Scenario) -> None:
    """The failing task does not end; it will be retried."""
    _, second, _, successor = _limited_tasks(scenario)
    await finish(db, [_with_successor(fail(db, second), successor)])


def _limited_tasks(scenario: Scenario) -> list[Any]:
    return [task for task in scenario.held if task.limit_slot is not None]


def _with_successor(settlement: Settlement, successor: Task) -> Settlement:
    settlement.successor = successor.id
    return settlement


async def recover_lost(db: Database, scenario: Scenario) -> None:
    await recover_lost_tasks(db, db.clock.now())


async def recover_own(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


async def register(db: Database, scenario: Scenario) -> None:
    for what in ("a first life", "a second life"):
        registration = ProcessRegistration(scenario.id(what), "ann", "worker", "here", "boot", 1, "0", ["default"], 1)
        await workers.register_process(db, registration, holds_name_lock=True, reserved_for=LEASE)


async def replace_silent_process(db: Database, scenario: Scenario) -> None:
    for what in ("there", "here"):
        registration = ProcessRegistration(
            scenario.id(f"bob {what}"), "bob", "worker", what, "boot", 1, "0", ["default"], 1
        )
        await workers.register_process(db, registration, holds_name_lock=True, reserved_for=timedelta())


async def record_declarations_handlers_and_slots(db: Database, scenario: Scenario) -> None:
    id = scenario.id("a second life")
    await workers.record_declarations(db, id, Declarations(["Nightly"], ["bake"]))
    await workers.update_handlers(db, id, KnownHandlers({"touch": "2"}, {}))
    await workers.update_slots(db, id, 4)


async def drain_worker(connection: Connection, scenario: Scenario) -> None:
    await workers.drain_worker(connection, "ann", by="tester", reason="an upgrade")


async def resume_worker(connection: Connection, scenario: Scenario) -> None:
    await workers.resume_worker(connection, "ann")


async def heartbeat_and_leave(db: Database, scenario: Scenario) -> None:
    id = scenario.id("a second life")
    await workers.record_heartbeat(db, id)
    await workers.mark_draining(db, id)
    await workers.deregister_process(db, id)


async def limit_and_pause_queue(db: Database, scenario: Scenario) -> None:
    await db.transaction(lambda connection: workers.limit_queue(connection, "default", 5))
    await db.transaction(lambda connection: workers.limit_queue_rate(connection, "default", "5/s"))
    await db.transaction(lambda connection: workers.limit_queue_rate(connection, "default", None))
    await workers.delete_unused_buckets(db)
    await db.transaction(lambda connection: workers.pause_queue(connection, "default", by="tester", reason=None))
    await db.transaction(lambda connection: workers.resume_queue(connection, "default"))


async def end_silent_processes(db: Database, scenario: Scenario) -> None:
    await workers.end_silent_processes(db, timedelta(hours=1))
    await workers.delete_ended_processes(db, db.clock.now() + LATER)


async def count_repair(connection: Connection, scenario: Scenario) -> None:
    await workers.count_repair(connection, "lease_expired", 1)


EXPIRE_LEASES = run_sql("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
MAKE_PROCESSES_SILENT = run_sql("UPDATE tenuto.workers SET seen_at = now() - interval '1 day'")
CLAIMS = (claim_tasks, claim_limited, claim_standby, claim_uncapped, claim_rated)
TASKS: tuple[Action, ...] = (
    enqueue, enqueue_audited, enqueue_many, enqueue_bulk, promote, claim_tasks, renew, mark_overrun, finish_one,
    retry_one, defer_one, return_one_to_queue, request_cancellation, fail_cancelled_one, cancel_one, claim_limited,
    claim_standby, hand_off_slot_after_success, hand_off_slot_after_failure,
    Preparation(enqueue_uncapped), claim_uncapped, Preparation(enqueue_rated), claim_rated, EXPIRE_LEASES, recover_lost,
    Preparation(claim_tasks), recover_own,
)  # fmt: skip
WORKERS: tuple[Action, ...] = (
    register, replace_silent_process, record_declarations_handlers_and_slots, in_transaction(drain_worker),
    in_transaction(resume_worker), heartbeat_and_leave, limit_and_pause_queue, in_transaction(count_repair),
    MAKE_PROCESSES_SILENT, end_silent_processes,
)  # fmt: skip
