"""Schedules for tests: definitions, the actions of a scheduler and a worker, and reading of tables.

Nothing runs in the background: the test decides the time, claims the steps and finishes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.ids import new_id
from tenuto.lifecycle import completion
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.schedules import Misfire, OverlapPolicy, Plan, ScheduleDefinition, misfire_from_fields
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import Trigger, every
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, Settlement, Task, error_json, settle
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import Schedule
from tenuto.store.work import executions
from tenuto.store.work import tasks as store
from tests.support.model_values import NOON

ANA = Actor.user("u-17", "Ana")
MINUTE = timedelta(minutes=1)
LEASE = timedelta(seconds=30)
NAME = "Nightly"
EVERY_MINUTE = every("1m")
SINGLE_ATTEMPT = TaskPolicy()


def make_step(name: str, **fields: Any) -> Step:
    """Make a step with its policy. Its first failure is final unless ``max_attempts`` is given."""
    retries = fields.pop("max_attempts", 1)
    policy = TaskPolicy(replace(SINGLE_ATTEMPT.retry, max_attempts=retries, base_seconds=1.0, jitter=0.0))
    return Step("job", name, **{"policy": policy, **fields})


def make_plan(*groups: str | Step | Iterable[str | Step]) -> Plan:
    """Make a plan of step names or steps; a list is a parallel group."""

    def step(given: str | Step) -> Step:
        return given if isinstance(given, Step) else make_step(given)

    return Plan.from_steps(
        step(each) if isinstance(each, str | Step) else [step(one) for one in each] for each in groups
    )


def make_definition(
    *groups: str | Step | Iterable[str | Step],
    name: str = NAME,
    trigger: Trigger = EVERY_MINUTE,
    overlap: OverlapPolicy | str = OverlapPolicy.SKIP,
    misfire: Misfire | dict[str, Any] | str = "once",
    description: str = "",
) -> ScheduleDefinition:
    plan = make_plan(*(groups or ("a",)))
    return ScheduleDefinition(name, trigger, plan, description, OverlapPolicy(overlap), misfire_from_fields(misfire))


def make_change_context(now: datetime = NOON, reason: str | None = None) -> ChangeContext:
    return ChangeContext(ANA, now, reason)


async def create_schedule(
    db: Database, definition: ScheduleDefinition, now: datetime = NOON, *, enabled: bool = True
) -> Schedule:
    """Create a schedule in the database."""
    return await schedule_definitions.create(db, definition, make_change_context(now), enabled=enabled)


async def fire_due_schedules(db: Database, now: datetime) -> int:
    """Fire due schedules as the scheduler does at that instant."""
    return await firing.fire_due_schedules(db, now, "test")


async def run_schedule_now(
    db: Database, name: str = NAME, now: datetime = NOON, by: Actor = ANA, **given: Any
) -> RunResult:
    """Run a schedule like a caller: by the fast path if no other run is active."""
    request = given.pop("request_id", None) or new_id()
    seen = await schedules.load_schedule(db, name)
    if (
        seen is not None
        and not given
        and (started := await firing.try_run_immediately(db, seen, now, by, request)) is not None
    ):
        return started
    return await db.transaction(
        lambda connection: firing.run_schedule(connection, name, now, by, request_id=request, **given)
    )


async def start_execution(db: Database, *groups: str | Step | Iterable[str | Step], **options: Any) -> UUID:
    """Create a schedule and start an execution."""
    definition = make_definition(*groups, **options)
    await create_schedule(db, definition)
    answer = await run_schedule_now(db, definition.name, db.clock.now())
    assert answer.execution_id is not None
    return answer.execution_id


# --- worker ---------------------------------------------------------------------------------------------------------


async def claim_steps(db: Database, worker_id: UUID, limit: int = 2000) -> dict[str, Task]:
    """Claim all claimable tasks, by name."""
    held = await store.claim_tasks(db, worker_id, ["default"], limit, LEASE)
    by_name = {task.name: task for task in held}
    assert len(by_name) == len(held), "steps that are claimed together need different names"
    return by_name


def make_settlement(task: Task, now: datetime, status: str = "completed", message: str = "it broke") -> Settlement:
    """Make the settlement of an attempt from a status or a failure reason."""
    reason = None
    if status in ("timed_out", "lost"):
        status, reason = "failed", OutcomeReason(status)
    elif status == "failed":
        reason = OutcomeReason.ERROR
    elif status == "cancelled":
        reason = OutcomeReason.REQUESTED
    error = None if status in ("completed", "completed_with_warning") else error_json("Broken", message)
    outcome = Outcome(OutcomeStatus(status), reason, now, now, error=error)
    return settle(task, outcome, now, new_id)


async def run_claimable_steps(db: Database, worker_id: UUID, now: datetime | None = None, **outcomes: str) -> set[str]:
    """Claim all claimable steps and finish them, completed unless named; return their names."""
    held = await claim_steps(db, worker_id)
    at = now or db.clock.now()
    settlements = [make_settlement(task, at, outcomes.get(name, "completed")) for name, task in held.items()]
    if settlements:
        assert len(await completion.finish(db, settlements)) == len(settlements)
    return set(held)


async def finish_task(db: Database, task: Task, status: str = "completed", message: str = "it broke") -> None:
    """Finish one held task."""
    assert await completion.finish(db, [make_settlement(task, db.clock.now(), status, message)]) == {task.id}


# --- tables ---------------------------------------------------------------------------------------------------------


async def read_table(db: Database, name: str, where: str = "true", *values: Any) -> list[dict[str, Any]]:
    return [
        dict(row) for row in await db.fetch_all(f"SELECT * FROM tenuto.{name} WHERE {where} ORDER BY 1, 2", *values)
    ]


async def load_execution(db: Database, id: UUID) -> executions.StoredExecution:
    found = await executions.load_execution(db, id)
    assert found is not None
    return found


async def open_task_states(db: Database, id: UUID | None = None) -> dict[str, str]:
    """Return the states of open tasks by name."""
    rows = await read_table(db, "tasks", "$1::uuid IS NULL OR execution_id = $1", id)
    return {row["name"]: row["state"] for row in rows}


async def list_attempts(db: Database, id: UUID) -> list[tuple[str, str, str | None]]:
    """Return (step, status, reason) of every attempt of an execution, in the order of the plan."""
    rows = await db.fetch_all(
        "SELECT name, status, reason FROM tenuto.activities WHERE execution_id = $1 ORDER BY step_index, attempt", id
    )
    return [tuple(row) for row in rows]


async def read_ledger(db: Database) -> list[tuple[float, str]]:
    """Return (seconds after noon, decision) of every due instant, oldest first."""
    rows = await db.fetch_all("SELECT due_at, decision FROM tenuto.occurrences ORDER BY due_at, id")
    return [((row["due_at"] - NOON).total_seconds(), row["decision"]) for row in rows]


async def read_repairs(db: Database) -> dict[str, int]:
    return {row["net"]: row["count"] for row in await read_table(db, "repairs")}
