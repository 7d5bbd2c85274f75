"""Finish and renewal (W2, W5, J2, S10): only the worker that holds a task may write; task and activity change together.

The fence consists of task id, fence number and worker id. Without any of them a worker with an expired lease would
overwrite the work of its successor.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus, Retry, Settlement, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store.work import activities, workers
from tenuto.store.work import tasks as store
from tests.support.model_values import NOON
from tests.support.tasks import (
    LEASE,
    Register,
    claim,
    completed_outcome,
    create_and_claim,
    create_task,
    failed_outcome,
    now,
    read_only_task,
    read_rows,
)

WriteTask: TypeAlias = Callable[[Database, Task], Awaitable[object]]


async def finish_task(db: Database, task: Task) -> object:
    return await finish(db, [Settlement(task, completed_outcome())])


async def retry_task(db: Database, task: Task) -> object:
    return await finish(db, [Settlement(task, failed_outcome(), Retry(NOON, new_id(), 1, 0))])


async def renew_lease(db: Database, task: Task) -> object:
    assert task.worker_id is not None
    return await store.renew_leases(db, task.worker_id, [(task.id, task.fence, '{"done": 1}')], LEASE)


async def return_task_to_queue(db: Database, task: Task) -> object:
    assert task.worker_id is not None
    return await store.return_tasks_to_queue(db, task.worker_id, [task])


WRITES: list[WriteTask] = [finish_task, retry_task, renew_lease, return_task_to_queue]


@pytest.mark.parametrize("write", WRITES)
async def test_worker_writes_to_a_task_that_it_holds(write: WriteTask, db: Database, register_worker: Register) -> None:
    assert await write(db, await create_and_claim(db, await register_worker()))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("fence", [0, 2])
async def test_worker_with_a_stale_fence_changes_nothing(
    write: WriteTask, fence: int, db: Database, register_worker: Register
) -> None:
    task = await create_and_claim(db, await register_worker())
    before = await read_rows(db)
    assert not await write(db, replace(task, fence=fence))
    assert (await read_rows(db), await read_rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_worker_that_does_not_hold_the_task_changes_nothing(
    write: WriteTask, db: Database, register_worker: Register
) -> None:
    task = await create_and_claim(db, await register_worker())
    other = await register_worker()
    before = await read_rows(db)
    assert not await write(db, replace(task, worker_id=other))
    assert (await read_rows(db), await read_rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_unknown_task_id_changes_nothing(write: WriteTask, db: Database, register_worker: Register) -> None:
    task = await create_and_claim(db, await register_worker())
    before = await read_rows(db)
    assert not await write(db, replace(task, id=new_id()))
    assert (await read_rows(db), await read_rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_worker_with_expired_lease_finishes_nothing(
    write: WriteTask, db: Database, register_worker: Register
) -> None:
    sleeper, other = await register_worker(), await register_worker()
    task = await create_and_claim(db, sleeper)
    await store.return_tasks_to_queue(db, sleeper, [task])
    (taken_over,) = await claim(db, other)
    before = await read_rows(db)
    assert not await write(db, task)
    assert await read_rows(db) == before
    assert await finish(db, [Settlement(taken_over, completed_outcome())]) == {task.id}


@pytest.mark.parametrize("write", [finish_task, retry_task])
async def test_held_task_cannot_be_finished_as_unclaimed(
    write: WriteTask, db: Database, register_worker: Register
) -> None:
    task = await create_and_claim(db, await register_worker())
    before = await read_rows(db)
    assert not await write(db, replace(task, worker_id=None))
    assert await read_rows(db) == before


@pytest.mark.parametrize("write", [finish_task, retry_task])
async def test_finishing_a_task_twice_records_one_activity(
    write: WriteTask, db: Database, register_worker: Register
) -> None:
    """A statement is repeated when its reply was lost."""
    task = await create_and_claim(db, await register_worker())
    assert await write(db, task)
    assert not await write(db, task)
    assert len(await read_rows(db, "activities")) == 1


async def test_expired_lease_cannot_be_renewed(db: Database, register_worker: Register) -> None:
    task = await create_and_claim(db, await register_worker())
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms'")
    assert await renew_lease(db, task) == set()


async def test_renewal_extends_the_lease_and_stores_the_progress(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    before = (await read_only_task(db))["lease_until"]
    hold = timedelta(minutes=5)
    assert await store.renew_leases(db, worker, [(task.id, task.fence, '{"done": 3}')], hold) == {task.id}
    row = await read_only_task(db)
    assert row["lease_until"] > before + timedelta(minutes=4)
    assert json.loads(row["progress"]) == {"done": 3}
    await store.renew_leases(db, worker, [(task.id, task.fence, None)], hold)
    assert json.loads((await read_only_task(db))["progress"]) == {"done": 3}, "nothing new to say leaves what was said"


async def test_renewal_of_many_tasks_skips_tasks_no_longer_held(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(5):
        await create_task(db)
    tasks = await claim(db, worker)
    await finish(db, [Settlement(tasks[0], completed_outcome())])
    held: list[tuple[UUID, int, str | None]] = [(task.id, task.fence, None) for task in tasks]
    assert await store.renew_leases(db, worker, held, LEASE) == {task.id for task in tasks[1:]}
    assert await store.renew_leases(db, worker, [], LEASE) == set()


# --- what a record holds -------------------------------------------------------------------------------------------


async def test_finished_task_leaves_a_complete_activity(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(
        db, worker, priority=3, tags=["a"], unique_key="k", correlation_id="c", parent_id=UUID(int=7), input='{"n": 1}'
    )
    claimed = await read_only_task(db)
    begun, done = now(), now() + timedelta(seconds=1)
    outcome = Outcome(
        OutcomeStatus.COMPLETED_WITH_WARNING,
        None,
        begun,
        done,
        output='{"ok": true}',
        error='{"type": "tenuto.Warning"}',
        log="said\n",
        progress='{"done": 9}',
    )
    assert await finish(db, [Settlement(task, outcome)]) == {task.id}
    assert await read_rows(db) == []
    (record,) = await activities.list_attempts(db, task.id)
    assert (record.id, record.task_id, record.attempt, record.final) == (task.id, task.id, 1, True)
    assert (record.state, record.reason) == ("completed_with_warning", None)
    assert (record.started_at, record.ended_at, record.claimed_at) == (begun, done, claimed["claimed_at"])
    assert (record.created_at, record.run_at) == (claimed["created_at"], claimed["run_at"])
    assert (record.input, record.output, record.log) == ({"n": 1}, {"ok": True}, "said\n")
    assert (record.error, record.progress) == ({"type": "tenuto.Warning"}, {"done": 9})
    assert (record.priority, record.tags, record.unique_key) == (3, ["a"], "k")
    assert (record.correlation_id, record.parent_id, record.worker_id) == ("c", UUID(int=7), worker)
    assert (record.initiator_type, record.initiator_id, record.initiator_name) == ("user", "ana", "Ana")
    assert (record.fence, record.failure_count, record.loss_count) == (1, 0, 0)


async def test_finish_without_progress_keeps_the_last_progress(db: Database, register_worker: Register) -> None:
    task = await create_and_claim(db, await register_worker())
    await renew_lease(db, task)
    await finish_task(db, task)
    ((record),) = await activities.list_attempts(db, task.id)
    assert record.progress == {"done": 1}


async def test_retried_task_records_each_attempt(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker, unique_key="k", tags=["a"])
    second = new_id()
    later = now() + timedelta(hours=1)
    await finish(db, [Settlement(task, failed_outcome(), Retry(later, second, 1, 0))])
    row = await read_only_task(db)
    assert (row["state"], row["attempt"], row["activity_id"], row["failures"]) == ("scheduled", 2, second, 1)
    assert (row["worker_id"], row["lease_until"], row["claimed_at"], row["progress"]) == (None, None, None, None)
    assert (row["run_at"], row["unique_key"], row["tags"], row["fence"]) == (later, "k", ["a"], task.fence)
    await store.promote_due_tasks(db, later, ["default"])
    (again,) = await claim(db, worker)
    assert (again.attempt, again.activity_id, again.failures, again.fence) == (2, second, 1, 2)
    await finish(db, [Settlement(again, completed_outcome())])
    first_record, second_record = await activities.list_attempts(db, task.id)
    assert (first_record.id, first_record.final, first_record.state) == (task.id, False, "failed")
    assert (second_record.id, second_record.final, second_record.state) == (second, True, "completed")
    assert (first_record.failure_count, second_record.failure_count) == (1, 1)


async def test_task_with_an_immediate_retry_is_queued(db: Database, register_worker: Register) -> None:
    task = await create_and_claim(db, await register_worker())
    await finish(db, [Settlement(task, failed_outcome(), Retry(now() - timedelta(seconds=1), new_id(), 0, 1))])
    assert (await read_only_task(db))["state"] == "queued"


@pytest.mark.parametrize(
    ("outcome", "failures", "losses"),
    [
        (Outcome(OutcomeStatus.COMPLETED), 2, 1),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.ERROR, may_retry=False), 3, 1),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT, may_retry=False), 3, 1),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.REFUSED, may_retry=False), 3, 1),
        (Outcome(OutcomeStatus.FAILED, may_retry=False), 3, 1),
        (Outcome(OutcomeStatus.FAILED, OutcomeReason.LOST), 2, 2),
        (Outcome(OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED), 2, 1),
        (Outcome(OutcomeStatus.COMPLETED_WITH_ERROR), 2, 1),
    ],
)
async def test_final_activity_counts_failures_and_losses_separately(
    outcome: Outcome, failures: int, losses: int, db: Database, register_worker: Register
) -> None:
    task = await create_and_claim(db, await register_worker())
    await db.fetch_all("UPDATE tenuto.tasks SET failures = 2, losses = 1")
    outcome.ended_at = now()
    await finish(db, [Settlement(task, outcome)])
    (record,) = await activities.list_attempts(db, task.id)
    assert (record.failure_count, record.loss_count) == (failures, losses)


async def test_finish_ends_and_retries_tasks_in_one_call(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(20):
        await create_task(db)
    tasks = await claim(db, worker, limit=20)
    settlements = [
        settle(task, completed_outcome() if n % 2 else failed_outcome(), now(), new_id) for n, task in enumerate(tasks)
    ]
    stale = replace(tasks[0], fence=9)
    settlements[0] = settle(stale, failed_outcome(), now(), new_id)
    assert await finish(db, settlements) == {task.id for task in tasks[1:]}
    assert len(await read_rows(db)) == 10
    assert len(await read_rows(db, "activities")) == 19


# --- recovery and cancellation requests ----------------------------------------------------------------------------


async def test_recovery_locks_only_tasks_with_expired_leases(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(3):
        await create_task(db)
    tasks = await claim(db, worker)
    assert not await store.has_recoverable_tasks(db)
    await db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE id = ANY ($1)",
        [task.id for task in tasks[:2]],
    )
    assert await store.has_recoverable_tasks(db)

    async def look(connection: Connection) -> list[Task]:
        return await store.lock_expired_tasks(connection, 10)

    expired = await db.transaction(look)
    assert {task.id for task in expired} == {task.id for task in tasks[:2]}
    assert all(task.claimed_at is not None and task.worker_id == worker for task in expired)


async def test_recovery_locks_tasks_of_a_dead_worker_despite_their_leases(
    db: Database, register_worker: Register
) -> None:
    dead, alive = await register_worker(), await register_worker()
    lost = await create_and_claim(db, dead)
    await create_and_claim(db, alive)
    assert not await store.has_recoverable_tasks(db)
    await workers.deregister_process(db, dead)
    assert await store.has_recoverable_tasks(db)
    assert await workers.find_ended_holders(db) == [dead]

    async def look(connection: Connection) -> list[Task]:
        return await store.lock_tasks_of_worker(connection, dead, 10)

    assert [task.id for task in await db.transaction(look)] == [lost.id]


async def test_first_cancellation_request_is_recorded(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    assert await store.request_cancellation(db, task, Actor.user("ana", "Ana"))
    assert await store.request_cancellation(db, task, Actor.system("reaper"))
    ((asked_id, fence, who),) = await store.list_cancel_requests(db, worker)
    assert (asked_id, fence, who) == (task.id, task.fence, Actor.user("ana", "Ana"))


async def test_cancellation_request_for_a_former_worker_has_no_effect(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await create_and_claim(db, worker)
    await store.return_tasks_to_queue(db, worker, [task])
    assert not await store.request_cancellation(db, task, Actor.user("ana"))
    await claim(db, worker)
    assert not await store.request_cancellation(db, task, Actor.user("ana"))
    assert await store.list_cancel_requests(db, worker) == []
