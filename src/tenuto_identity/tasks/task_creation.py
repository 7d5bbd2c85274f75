"""Enqueuing of tasks of step kinds outside of schedules: by operations and by housekeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tenuto.extension import ExtensionServices
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, check_new_task
from tenuto.operations.work.tasks import new_task
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation


def build_task(
    services: ExtensionServices,
    database: Database,
    kind: str,
    arguments: Mapping[str, Any],
    actor: Actor,
    *,
    unique_key: str | None = None,
    id: UUID | None = None,
) -> NewTask:
    """Return a task of a step kind, with the options that the kind derives from the arguments."""
    services.jobs.load_more_kinds()
    job = services.jobs.handlers_by_kind[kind]
    text = job.validate_input(validation.dump_json(dict(arguments), field="arguments"))
    task = new_task(job, text, database.clock.now(), actor, id)
    task.kind, task.name, task.unique_key = kind, kind, unique_key
    derive = services.jobs.kinds[kind].derive
    if derive is not None:
        derived = derive(job.load_arguments(text))
        task.queue = derived.queue or task.queue
        task.limit_key, task.limit_max = derived.limit_key, derived.limit
    return check_new_task(task)


async def enqueue_step(
    services: ExtensionServices,
    database: Database,
    kind: str,
    arguments: Mapping[str, Any],
    actor: Actor,
    *,
    unique_key: str | None = None,
    id: UUID | None = None,
) -> UUID:
    """Enqueue a task of a step kind; return its id, or that of the open task with the same unique key."""
    task = build_task(services, database, kind, arguments, actor, unique_key=unique_key, id=id)
    return await task_creation.enqueue_or_find(database, task, may_exist=id is not None)
