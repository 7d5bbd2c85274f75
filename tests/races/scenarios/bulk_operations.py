"""Actions on bulk operations: one of each kind of selection, skipped items, a backfill, and an aborted operation."""

from __future__ import annotations

from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.work.bulk_operations import BulkKind
from tenuto.operations.definitions import backfills
from tenuto.operations.work.bulk_operations import BulkOperations
from tenuto.operations.work.bulk_processor import process_chunk
from tenuto.postgres.database import Connection, Database
from tenuto.settings import load_settings
from tenuto.store.work import bulk_operations, task_creation
from tests.races.execution_actions import run_to_end
from tests.races.scenarios.executions import create_schedule, fail_all, run_manually
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, in_transaction
from tests.races.scenarios.tasks import claim_tasks
from tests.races.task_actions import ACTOR

CHUNK_SIZE = 2
"""Smaller than the number of tasks, so that an operation has several chunks."""


def _operations(db: Database) -> BulkOperations:
    async def open_database() -> Database:
        return db

    return BulkOperations(open_database, OperationCaller(lambda: ACTOR, is_audited=True), load_settings)


def create_operation(kind: BulkKind, request: str = "") -> Action:
    """Return an action that creates a bulk operation on all objects; its repetition is the same request."""

    async def action(db: Database, scenario: Scenario) -> None:
        await _operations(db).create(kind, reason="tested", request_id=scenario.id(f"{kind} {request}"))

    return action


async def process_chunks(db: Database, scenario: Scenario) -> None:
    while await process_chunk(db, CHUNK_SIZE):
        pass


async def abort_operation(db: Database, scenario: Scenario) -> None:
    await _operations(db).abort(scenario.id(f"{BulkKind.TASK_CANCEL} to abort"))


async def create_backfill(connection: Connection, scenario: Scenario) -> None:
    await backfills.create_backfill(
        connection, "Nightly", "2025-03-01", "2025-03-02", parallel=1, id=scenario.id("backfill"), actor=ACTOR,
        reason="tested", now=scenario.db.clock.now(),
    )  # fmt: skip


async def pause_backfill(db: Database, scenario: Scenario) -> None:
    await _operations(db).pause(scenario.id("backfill"))


async def resume_backfill(db: Database, scenario: Scenario) -> None:
    await _operations(db).resume(scenario.id("backfill"))


async def finish_run(db: Database, scenario: Scenario) -> None:
    await run_to_end(db, scenario.worker)


async def delete_old_operations(db: Database, scenario: Scenario) -> None:
    await bulk_operations.delete_old_operations(db, db.clock.now() + LATER, 100)


async def enqueue_failing_tasks(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_tasks(db, [scenario.task(f"failing {number}") for number in range(3)])


async def enqueue_tasks(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_tasks(db, [scenario.task(f"queued {number}") for number in range(3)])


async def create_one_shot(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_new(db, scenario.task("one-shot", origin="once"))


BULK_OPERATIONS: tuple[Action, ...] = (
    Preparation(enqueue_failing_tasks), Preparation(claim_tasks), Preparation(fail_all),
    create_operation(BulkKind.DEAD_LETTER_ACKNOWLEDGE), process_chunks, delete_old_operations,
    Preparation(create_schedule), in_transaction(create_backfill), process_chunks, pause_backfill, resume_backfill,
    Preparation(finish_run), process_chunks, Preparation(finish_run), process_chunks,
    Preparation(run_manually),
    create_operation(BulkKind.EXECUTION_PAUSE), process_chunks,
    create_operation(BulkKind.EXECUTION_CANCEL), process_chunks,
    create_operation(BulkKind.SCHEDULE_DISABLE), process_chunks,
    create_operation(BulkKind.SCHEDULE_DISABLE, "skipped"), process_chunks,
    Preparation(create_one_shot), create_operation(BulkKind.ONE_SHOT_CANCEL), process_chunks,
    Preparation(enqueue_tasks), create_operation(BulkKind.TASK_CANCEL, "to abort"), abort_operation,
    create_operation(BulkKind.TASK_CANCEL), process_chunks,
)  # fmt: skip
