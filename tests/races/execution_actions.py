"""Executions for tests that call the engine directly, and invariants that must hold after any fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.lifecycle import completion
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.steps import Step
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, Settlement, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store.work import executions
from tenuto.store.work import tasks as store
from tenuto.store.work.executions import NewExecution
from tests.races.task_actions import ACTOR, LEASE, claim, complete


def create_plan(*groups: int, queue: str = "default", kind: str = "job") -> Plan:
    """Return a plan with that many steps in each group."""
    return Plan(
        tuple(
            tuple(
                Step(kind, "touch", {"number": step}, name=f"{group}.{step}", policy=TaskPolicy(), queue=queue)
                for step in range(steps)
            )
            for group, steps in enumerate(groups)
        )
    )


def new_execution(database: Database, plan: Plan, **options: Any) -> NewExecution:
    now = database.clock.now()
    schedule = {"schedule_id": new_id(), "schedule_name": "a schedule", "version": 1, "origin": "retry", "alone": True}
    return NewExecution(id=new_id(), plan=plan, due_at=now, started_at=now, initiator=ACTOR, **{**schedule, **options})


async def create_executions(database: Database, *plans: Plan, **options: Any) -> list[UUID]:
    """Create executions without entries in the occurrence ledger."""
    new = [new_execution(database, plan, **options) for plan in plans]

    async def action(connection: Connection) -> None:
        await executions.create_executions(connection, new)

    await database.transaction(action)
    return [each.id for each in new]


def fail_permanently(database: Database, task: Task) -> Settlement:
    now = database.clock.now()
    error = '{"type": "ValueError", "message": "no"}'
    return settle(
        task, Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, now, now, error=error, may_retry=False), now, new_id
    )


async def run_to_end(database: Database, worker_id: UUID) -> None:
    """Claim and finish tasks until none is left, as workers do, without recovery or repair."""
    while left := await database.fetch_all("SELECT id, state FROM tenuto.tasks"):
        held = [row["id"] for row in left if row["state"] == "running"]
        for task_id in held:
            task = await store.load_task_to_cancel(database, task_id)
            assert task is not None
            await completion.finish(database, [complete(database, task)])
        if any(row["state"] == "scheduled" for row in left):
            await database.fetch_all(
                "UPDATE tenuto.tasks SET run_at = now() - interval '1 s' WHERE state = 'scheduled'"
            )
            await store.promote_due_tasks(database, database.clock.now(), ["default"])
        claimed = await claim(database, worker_id, 500)
        if not claimed:
            claimed = await store.claim_limited_tasks(database, worker_id, ["default"], 500, LEASE)
        assert held or claimed, [tuple(row.values()) for row in await _open_tasks(database)]
        if claimed:
            await completion.finish(database, [complete(database, task) for task in claimed])


async def _open_tasks(database: Database) -> Sequence[Any]:
    return await database.fetch_all(
        "SELECT task.state, task.group_index, task.waits_for, task.run_at, execution.state AS of, current_group,"
        " paused_at FROM tenuto.tasks AS task LEFT JOIN tenuto.executions AS execution ON execution.id = execution_id"
        " LIMIT 10"
    )


# Each query returns the rows that violate the invariant.
_INVARIANTS = {
    "a task of an execution has its execution": """
        SELECT id FROM tenuto.tasks
        WHERE execution_id IS NOT NULL AND execution_id NOT IN (SELECT id FROM tenuto.executions)""",
    "an ended execution has no tasks": """
        SELECT execution.id FROM tenuto.executions AS execution JOIN tenuto.tasks ON execution_id = execution.id
        WHERE execution.ended_at IS NOT NULL""",
    "an open execution has a task in its current group": """
        SELECT id, state, current_group FROM tenuto.executions AS execution
        WHERE ended_at IS NULL AND NOT EXISTS (
            SELECT FROM tenuto.tasks WHERE execution_id = execution.id AND group_index = current_group)""",
    "an execution in progress has not ended, and other states have an end": """
        SELECT id, state FROM tenuto.executions AS execution
        WHERE (state = 'in_progress' AND ended_at IS NOT NULL)
           OR (state IN ('completed', 'failed') AND ended_at IS NULL)""",
    "only steps of the current group can be claimed, and no earlier step is open": """
        SELECT task.id, task.state, task.group_index, current_group
        FROM tenuto.tasks AS task JOIN tenuto.executions AS execution ON execution.id = execution_id
        WHERE group_index <> current_group AND NOT (group_index > current_group AND task.state = 'waiting')
          AND NOT (group_index > current_group AND execution.step_dependencies IS NOT DISTINCT FROM 'by_step')""",
    "steps of the current group are not waiting without a reason": """
        SELECT task.id
        FROM tenuto.tasks AS task JOIN tenuto.executions AS execution ON execution.id = execution_id
        WHERE group_index = current_group AND task.state = 'waiting' AND waits_for IS NULL AND paused_at IS NULL""",
    "steps of a paused execution are waiting": """
        SELECT task.id, task.state
        FROM tenuto.tasks AS task JOIN tenuto.executions AS execution ON execution.id = execution_id
        WHERE paused_at IS NOT NULL AND task.state IN ('queued', 'scheduled')""",
    "all open steps of a cancelled execution are running with a cancel request": """
        SELECT task.id, task.state, task.cancel_at
        FROM tenuto.tasks AS task JOIN tenuto.executions AS execution ON execution.id = execution_id
        WHERE execution.state = 'cancelled' AND (task.state <> 'running' OR cancel_at IS NULL)""",
    "the child execution of a cancelled step is cancelled": """
        SELECT child.id
        FROM tenuto.executions AS child
        WHERE child.state = 'in_progress' AND child.parent_task_id IS NOT NULL
          AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE id = child.parent_task_id AND cancel_at IS NULL)""",
    "every step of an ended execution has one final activity": """
        SELECT execution.id, execution.state, count(past.id) AS ends, count(DISTINCT step_index) AS steps
        FROM tenuto.executions AS execution
        LEFT JOIN tenuto.activities AS past ON past.execution_id = execution.id AND past.final
        WHERE execution.ended_at IS NOT NULL
        GROUP BY execution.id
        HAVING count(past.id) <> count(DISTINCT step_index)
            OR count(past.id) <> (SELECT sum(jsonb_array_length(step)) FROM jsonb_array_elements(execution.plan)
                                  WITH ORDINALITY AS listed (step, place) WHERE place > execution.first_group)""",
    "an execution completes only if no required step failed": """
        SELECT execution.id, execution.failed_steps, execution.error
        FROM tenuto.executions AS execution
        JOIN tenuto.activities AS past ON past.execution_id = execution.id
        WHERE execution.state = 'completed' AND past.final
          AND past.status NOT IN ('completed', 'completed_with_warning')
          AND NOT (past.status = 'skipped' AND execution.step_dependencies IS NOT NULL)""",
    "groups run one after the other": """
        SELECT later.execution_id, later.step_index, earlier.step_index
        FROM tenuto.activities AS later
        JOIN tenuto.activities AS earlier
          ON earlier.execution_id = later.execution_id AND earlier.group_index < later.group_index
        WHERE earlier.final AND later.claimed_at IS NOT NULL AND earlier.claimed_at IS NOT NULL
          AND later.claimed_at < earlier.claimed_at""",
    "a fired occurrence has its execution": """
        SELECT id FROM tenuto.occurrences
        WHERE decision = 'fired' AND execution_id NOT IN (SELECT id FROM tenuto.executions)""",
    "a triggered or manual execution is in the ledger once": """
        SELECT execution.id, count(entry.id)
        FROM tenuto.executions AS execution
        LEFT JOIN tenuto.occurrences AS entry ON entry.execution_id = execution.id
        WHERE execution.origin IN ('trigger', 'manual')
        GROUP BY execution.id
        HAVING count(entry.id) <> 1""",
    "a due instant is decided once": """
        SELECT schedule_id, due_at FROM tenuto.occurrences WHERE origin = 'trigger'
        GROUP BY schedule_id, due_at HAVING count(*) > 1""",
    "a schedule without overlap has one active execution": """
        SELECT schedule_id FROM tenuto.executions WHERE ended_at IS NULL AND alone
        GROUP BY schedule_id HAVING count(*) > 1""",
}


_ALL_INVARIANTS = "\nUNION ALL\n".join(
    f"SELECT '{name}' AS rule, to_jsonb(row)::text AS row FROM ({query}\n LIMIT 5) AS row"
    for name, query in _INVARIANTS.items()
)


async def violated_invariants(database: Database) -> list[tuple[str, str]]:
    """Return the violated invariants with the rows that violate them."""
    return [(row["rule"], row["row"]) for row in await database.fetch_all(_ALL_INVARIANTS)]
