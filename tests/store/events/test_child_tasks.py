"""Child tasks of workflows: one child for each wait, ended by its own end only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.errors import StaleLease
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import Deferral, NewTask, Outcome, OutcomeStatus, Settlement, Task, WaitKey, settle
from tenuto.postgres.database import Database
from tenuto.store.events import child_tasks, external_events
from tenuto.store.work import task_creation
from tenuto.store.work import tasks as store
from tests.support.model_values import make_new_task

RegisterWorker = Callable[..., Awaitable[UUID]]
LEASE = timedelta(seconds=30)


@pytest.fixture
async def worker_id(register_worker: RegisterWorker) -> UUID:
    return await register_worker()


@pytest.fixture
async def parent(db: Database, worker_id: UUID) -> Task:
    """Return a claimed task that is a workflow."""
    await task_creation.enqueue_tasks(db, [make_new_task()])
    (task,) = await store.claim_tasks(db, worker_id, ["default"], 1, LEASE)
    return task


def make_child(parent: Task, step: str = "1") -> NewTask:
    child = make_new_task()
    child.let_wait(parent.id, step)
    return child


async def claim_child(db: Database, worker_id: UUID) -> Task:
    (task,) = await store.claim_tasks(db, worker_id, ["default"], 5, LEASE)
    return task


def completed(db: Database, task: Task, **fields: Any) -> Settlement:
    now = db.clock.now()
    return Settlement(task, Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now, **fields))


async def test_child_is_started_once(db: Database, parent: Task, worker_id: UUID) -> None:
    child = make_child(parent)
    first = await child_tasks.start_child(db, parent, "1", child, None)
    assert (first.key, first.outcome) == (str(child.id), None)
    again = await child_tasks.start_child(db, parent, "1", make_child(parent), None)
    assert again.key == str(child.id)
    task = await claim_child(db, worker_id)
    assert task.id == child.id
    await finish(db, [completed(db, task, output="7")])
    ended = await child_tasks.start_child(db, parent, "1", child, None)  # repeated after a lost reply
    assert (ended.outcome, ended.payload) == ("received", {"status": "completed", "output": 7, "error": None})
    assert await store.claim_tasks(db, worker_id, ["default"], 5, LEASE) == []


async def test_cancelled_workflow_starts_no_child(db: Database, parent: Task, worker_id: UUID) -> None:
    assert await store.request_cancellation(db, parent, Actor.user("ana"))
    with pytest.raises(StaleLease):
        await child_tasks.start_child(db, parent, "1", make_child(parent), None)
    assert await store.claim_tasks(db, worker_id, ["default"], 5, LEASE) == []


async def test_end_of_another_task_does_not_end_the_wait(db: Database, parent: Task, worker_id: UUID) -> None:
    """An operator's retry of a child is another task with the same policy."""
    child = make_child(parent)
    await child_tasks.start_child(db, parent, "1", child, None)
    await task_creation.enqueue_tasks(db, [make_child(parent)])
    for task in await store.claim_tasks(db, worker_id, ["default"], 5, LEASE):
        if task.id != child.id:
            await finish(db, [completed(db, task)])
    (wait,) = await external_events.list_waits_of_task(db, parent.id)
    assert wait.outcome is None


async def test_children_and_workflows_that_end_in_one_statement_all_continue(
    db: Database, parent: Task, worker_id: UUID
) -> None:
    """A batch of the completer ends a child, retries another and defers the workflow itself."""
    children = [make_child(parent, str(step)) for step in (1, 2)]
    for step, child in enumerate(children, 1):
        await child_tasks.start_child(db, parent, str(step), child, None)
    tasks = {task.id: task for task in await store.claim_tasks(db, worker_id, ["default"], 5, LEASE)}
    now = db.clock.now()
    deferral = Deferral(resume_at=now + timedelta(hours=1), waits=(WaitKey("1", 1), WaitKey("2", 1)))
    parked = Settlement(parent, Outcome(OutcomeStatus.COMPLETED, started_at=now, deferral=deferral))
    failed = settle(tasks[children[1].id], Outcome(OutcomeStatus.FAILED, started_at=now, ended_at=now), now, new_id)
    ended = completed(db, tasks[children[0].id], output='"done"')
    assert len(await finish(db, [parked, ended, failed])) == 3
    (again,) = [each for each in await store.claim_tasks(db, worker_id, ["default"], 5, LEASE) if each.id == parent.id]
    assert again.attempt == parent.attempt
    waits = await external_events.list_waits_of_task(db, parent.id)
    assert [(each.step, each.outcome) for each in waits] == [("1", "received"), ("2", None)]
