"""Actions of the state machine on a real database, and a snapshot of the result.

Hypothesis is synchronous, so each action runs to completion on a private event loop. The model is unknown here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from tenuto.definitions import manifest_definitions, schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.ids import new_id
from tenuto.lifecycle import completion, execution_control, task_cancellation
from tenuto.maintenance import recovery
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import OverlapPolicy, Plan, ScheduleDefinition
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import every
from tenuto.model.work.tasks import Deferral, NewTask, Outcome, OutcomeReason, OutcomeStatus, Task, error_json, settle
from tenuto.operations.work import batches
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import firing
from tenuto.store.definitions.schedules import Schedule
from tenuto.store.reports import manual_clock
from tenuto.store.work import task_creation, workers
from tenuto.store.work import tasks as store
from tenuto.store.work.executions import NextGroupClaim
from tenuto.store.work.workers import ProcessRegistration

T = TypeVar("T")
ACTOR = Actor.system("the machine")
LEASE = timedelta(hours=1)
QUEUES = ("default", "other")
POLICY = TaskPolicy(RetryPolicy(max_attempts=2, base_seconds=60, jitter=0))

_TRUNCATE = """
SET LOCAL session_replication_role = replica;
DELETE FROM tenuto.tasks; DELETE FROM tenuto.activities; DELETE FROM tenuto.executions; DELETE FROM tenuto.occurrences;
DELETE FROM tenuto.schedules; DELETE FROM tenuto.schedule_versions; DELETE FROM tenuto.batches;
DELETE FROM tenuto.manifests; DELETE FROM tenuto.manifest_versions; DELETE FROM tenuto.dead_letters;
DELETE FROM tenuto.workers; DELETE FROM tenuto.queues; DELETE FROM tenuto.repairs;
"""


_COLUMNS = {
    "tasks": (
        "id",
        "state",
        "queue",
        "run_at",
        "attempt",
        "failures",
        "losses",
        "fence",
        "unique_key",
        "limit_key",
        "limit_max",
        "worker_id",
        "lease_until",
        "claimed_at",
        "cancel_at",
        "execution_id",
        "group_index",
        "batch_id",
    ),
    "activities": ("task_id", "attempt", "status", "reason", "final", "fence", "failures", "losses"),
    "executions": ("id", "schedule_name", "due_at", "state", "current_group", "ended_at", "paused_at"),
    "occurrences": ("schedule_name", "due_at", "origin", "decision"),
    "schedules": ("name", "enabled", "next_run_at"),
}
# One statement for everything, because a snapshot is taken after every step.
_SNAPSHOT = (
    "SELECT "
    + ", ".join(f"ARRAY(SELECT ROW({', '.join(names)}) FROM tenuto.{table})" for table, names in _COLUMNS.items())
    + """, (SELECT count(*) FROM tenuto.dead_letters) AS dead_letters,
    coalesce((SELECT sum(count) FROM tenuto.repairs
              WHERE net NOT IN ('lease_expired', 'worker_restarted')), 0)::integer AS repairs"""
)


@dataclass(frozen=True)
class Snapshot:
    """Contents of the tables."""

    tasks: list[dict[str, Any]]
    records: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    schedules: list[dict[str, Any]]
    counts: dict[str, int]


class Actions:
    """A database and the event loop that uses it."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.db: Database = self.run(Database.open(url, generic_plans=True))

    def run(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(_await(work))

    def close(self) -> None:
        self.run(self.db.close())
        self._loop.close()

    def clear(self) -> None:
        """Empty all tables."""

        async def action(connection: Connection) -> None:
            await connection.execute(_TRUNCATE)

        self.run(self.db.transaction(action))

    # --- workers ----------------------------------------------------------------------------------------------------

    def register(self, name: str) -> tuple[UUID, UUID | None]:
        """Start a process of that name; return its id, and the id of its predecessor if that had not stopped."""
        me = ProcessRegistration(new_id(), name, "worker", "here", "boot", 1, "0", list(QUEUES), 10)
        return me.id, self.run(workers.register_process(self.db, me, holds_name_lock=True, reserved_for=LEASE))

    def recover(self, worker: UUID, now: datetime) -> int:
        return self._with_retry_times(recovery.recover_tasks_of_worker(self.db, worker, now), now)

    def sweep(self, now: datetime) -> int:
        return self._with_retry_times(recovery.recover_lost_tasks(self.db, now), now)

    def stall(self, worker: UUID) -> None:
        """Expire the leases of a worker on the clock of the database."""
        self.run(
            self.db.fetch_all(
                "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE worker_id = $1", worker
            )
        )

    # --- tasks ------------------------------------------------------------------------------------------------------

    def enqueue(self, now: datetime, **fields: Any) -> tuple[NewTask, UUID]:
        task = NewTask(new_id(), "work", "{}", now, ACTOR, policy=POLICY.to_json(), **fields)
        return task, self.run(task_creation.enqueue_or_find(self.db, task))

    def enqueue_again(self, task: NewTask) -> UUID:
        """Repeat a request as if its reply was lost."""
        return self.run(task_creation.enqueue_or_find(self.db, task, may_exist=True))

    def promote(self, now: datetime) -> int:
        return self.run(store.promote_due_tasks(self.db, now, QUEUES)).promoted_count

    def claim(self, worker: UUID, most: int) -> list[Task]:
        return self.run(store.claim_tasks(self.db, worker, QUEUES, most, LEASE))

    def claim_limited(self, worker: UUID, most: int) -> list[Task]:
        return self.run(store.claim_limited_tasks(self.db, worker, QUEUES, most, LEASE))

    def renew(self, worker: UUID, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
        return self.run(store.renew_leases(self.db, worker, [(id, fence, None) for id, fence in held], LEASE))

    def finish(self, task: Task, how: str, now: datetime) -> set[UUID]:
        return self._with_retry_times(completion.finish(self.db, [settle(task, _outcome(how, now), now, new_id)]), now)

    def finish_and_claim_next(self, task: Task, now: datetime) -> tuple[set[UUID], list[Task]]:
        """Complete a task and claim a task of the next group in the same transaction."""
        assert task.worker_id is not None
        taking = NextGroupClaim(task.worker_id, LEASE, QUEUES, 5)
        settlement = settle(task, _outcome("completed", now), now, new_id)
        return self._with_retry_times(completion.finish(self.db, [settlement], taking), now), taking.claimed

    def return_to_queue(self, worker: UUID, task: Task) -> set[UUID]:
        return self.run(store.return_tasks_to_queue(self.db, worker, [task]))

    def cancel(self, task: UUID) -> str:
        return self.run(task_cancellation.cancel_task(self.db, task, ACTOR))

    def _with_retry_times(self, action: Awaitable[T], now: datetime) -> T:
        """The clock of the database is far ahead: tasks to be retried wait by the machine clock."""
        answer = self.run(action)
        self.run(manual_clock.reschedule_future_retries(self.db, now))
        return answer

    # --- queues -----------------------------------------------------------------------------------------------------

    def pause_queue(self, name: str) -> None:
        self.run(
            self.db.transaction(lambda connection: workers.pause_queue(connection, name, by="the machine", reason=None))
        )

    def resume_queue(self, name: str) -> None:
        self.run(self.db.transaction(lambda connection: workers.resume_queue(connection, name)))

    def limit_queue(self, name: str, most: int | None) -> None:
        self.run(self.db.transaction(lambda connection: workers.limit_queue(connection, name, most)))

    # --- schedules and executions -----------------------------------------------------------------------------------

    def create_schedule(
        self, name: str, minutes: int, overlap: str, groups: tuple[int, ...], now: datetime
    ) -> Schedule:
        return self.run(
            schedule_definitions.create(self.db, _definition(name, minutes, overlap, groups), ChangeContext(ACTOR, now))
        )

    def edit_schedule(self, name: str, minutes: int, overlap: str, groups: tuple[int, ...], now: datetime) -> Schedule:
        return self.run(
            schedule_definitions.edit(
                self.db, name, _definition(name, minutes, overlap, groups), ChangeContext(ACTOR, now)
            )
        )

    def set_enabled(self, name: str, now: datetime, *, enabled: bool) -> bool:
        return self.run(schedule_definitions.set_enabled(self.db, name, ChangeContext(ACTOR, now), enabled=enabled))

    def delete_schedule(self, name: str, now: datetime) -> None:
        self.run(schedule_definitions.delete(self.db, name, ChangeContext(ACTOR, now)))

    def fire_due_schedules(self, now: datetime) -> int:
        return self.run(firing.fire_due_schedules(self.db, now, "the machine"))

    def start_queued_runs(self, now: datetime) -> int:
        return self.run(firing.start_queued_runs(self.db, now, "the machine"))

    def run_manually(self, name: str, now: datetime) -> str:
        request = new_id()

        async def action(connection: Connection) -> str:
            return (await firing.run_schedule(connection, name, now, ACTOR, request_id=request)).decision

        return self.run(self.db.transaction(action))

    def cancel_execution(self, id: UUID, now: datetime) -> str:
        return self.run(execution_control.cancel_execution(self.db, id, now, ACTOR))

    def pause_execution(self, id: UUID, now: datetime) -> None:
        self.run(execution_control.pause_execution(self.db, id, now, ACTOR))

    def resume_execution(self, id: UUID, now: datetime) -> None:
        self.run(execution_control.resume_execution(self.db, id, now))

    def repair(self, now: datetime) -> int:
        return self.run(repair_stuck_executions(self.db, now))

    # --- batches ----------------------------------------------------------------------------------------------------

    def submit_batch(self, name: str, items: int, now: datetime) -> UUID:
        """Create a manifest and a batch of that many items."""

        async def make() -> UUID:
            stored = await manifest_definitions.create(
                self.db, Manifest(name, job="bake", policy=POLICY), ChangeContext(ACTOR, now)
            )
            opened = await batches.open_batch(self.db, stored, now, ACTOR, key=None, name=None)
            like = await batches.item_template(self.db, stored, opened.id, now, ACTOR)
            await batches.add_items(self.db, opened.id, 0, like, ["{}"] * items, None)
            await batches.complete_batch(self.db, opened.id, now)
            # Items are due immediately by the clock of the database; by the machine clock that is now.
            await self.db.fetch_all("UPDATE tenuto.tasks SET run_at = $2 WHERE batch_id = $1", opened.id, now)
            return UUID(str(opened.id))

        return self.run(make())

    def pause_batch(self, id: UUID, now: datetime) -> None:
        self.run(batches.pause_batch(self.db, id, now, ACTOR))

    def resume_batch(self, id: UUID, now: datetime) -> None:
        self.run(batches.resume_batch(self.db, id, now))

    def cancel_batch(self, id: UUID, now: datetime) -> None:
        self.run(batches.cancel_batch(self.db, id, now, ACTOR))

    # --- snapshot ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        row = self.run(self.db.fetch_one(_SNAPSHOT))
        assert row is not None
        tables = {
            table: [dict(zip(names, each, strict=True)) for each in row[place]]
            for place, (table, names) in enumerate(_COLUMNS.items())
        }
        return Snapshot(
            tables["tasks"],
            tables["activities"],
            tables["executions"],
            tables["occurrences"],
            tables["schedules"],
            {"dead_letters": row["dead_letters"], "repairs": row["repairs"]},
        )


async def _await(work: Awaitable[T]) -> T:
    return await work


def _definition(name: str, minutes: int, overlap: str, groups: tuple[int, ...]) -> ScheduleDefinition:
    steps = tuple(
        tuple(Step("job", "step", name=f"{place}.{number}", policy=POLICY) for number in range(count))
        for place, count in enumerate(groups)
    )
    return ScheduleDefinition(name, every(f"{minutes}m"), Plan(steps), overlap=OverlapPolicy(overlap))


_OUTCOMES: dict[str, Callable[[datetime], Outcome]] = {
    "completed": lambda now: Outcome(OutcomeStatus.COMPLETED, None, now, now),
    "warning": lambda now: Outcome(OutcomeStatus.COMPLETED_WITH_WARNING, None, now, now),
    "failed": lambda now: Outcome(
        OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, error=error_json("Broken", "it broke")
    ),
    "timed_out": lambda now: Outcome(
        OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT, now, now, error=error_json("Slow", "too slow")
    ),
    "final": lambda now: Outcome(
        OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, error=error_json("Broken", "for good"), may_retry=False
    ),
    "cancelled": lambda now: Outcome(OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, now, now, may_retry=False),
    "handed_back": lambda now: Outcome(OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, now, now),
    "deferred": lambda now: Outcome(
        OutcomeStatus.COMPLETED, None, now, now, deferral=Deferral(resume_at=now + timedelta(seconds=60))
    ),
}
OUTCOMES = tuple(_OUTCOMES)


def _outcome(how: str, now: datetime) -> Outcome:
    return _OUTCOMES[how](now)
