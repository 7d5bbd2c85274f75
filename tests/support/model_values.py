"""Task values for tests, with defaults for every field."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.work.tasks import NewTask, Task

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


def make_held_task(policy: TaskPolicy | None = None, **fields: Any) -> Task:
    """Make a task in its first attempt, held by a worker."""
    task_id = new_id()
    task = Task(
        id=task_id,
        activity_id=task_id,
        fence=1,
        worker_id=new_id(),
        kind="job",
        name="bake",
        input="{}",
        policy_json=(policy or TaskPolicy()).to_json(),
        attempt=1,
        failures=0,
        losses=0,
        queue="default",
        priority=0,
        run_at=NOON,
        claimed_at=NOON,
        initiator_type="user",
        initiator_id="ana",
        initiator_name="Ana",
        correlation_id=None,
        tags=None,
    )
    return replace(task, **fields)


def make_new_task(**fields: Any) -> NewTask:
    """Make a task that is due now and not yet in the database."""
    given = {"id": new_id(), "name": "bake", "input": "{}", "created_at": datetime.now(UTC), **fields}
    return NewTask(initiator=given.pop("initiator", Actor.user("ana", "Ana")), **given)
