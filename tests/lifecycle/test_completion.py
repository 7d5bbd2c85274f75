"""Ending and renewing (W2, W5, J2, S10): only the holder may, and what it says becomes a record in the same breath.

The guards: id, fence *and* worker. With any of them missing, a worker that slept past its lease would overwrite the
work of the one that took over.
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
from tenuto.model.actors import Actor
from tenuto.model.tasks import Again, Outcome, Reason, Settlement, Status, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store import activities, workers
from tenuto.store import tasks as store
from tests.support.model_values import NOON
from tests.support.tasks import LEASE, Register, claim, completed, failed, now, rows, start, start_and_claim, the_task

Touch: TypeAlias = Callable[[Database, Task], Awaitable[object]]


async def end(db: Database, task: Task) -> object:
    return await finish(db, [Settlement(task, completed())])


async def repeat(db: Database, task: Task) -> object:
    return await finish(db, [Settlement(task, failed(), Again(NOON, new_id(), 1, 0))])


async def renew(db: Database, task: Task) -> object:
    assert task.worker_id is not None
    return await store.renew(db, task.worker_id, [(task.id, task.fence, '{"done": 1}')], LEASE)


async def put_back(db: Database, task: Task) -> object:
    assert task.worker_id is not None
    return await store.put_back(db, task.worker_id, [task])


WRITES: list[Touch] = [end, repeat, renew, put_back]


@pytest.mark.parametrize("write", WRITES)
async def test_the_holder_may(write: Touch, db: Database, register_worker: Register) -> None:
    assert await write(db, await start_and_claim(db, await register_worker()))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("fence", [0, 2])
async def test_a_stale_fence_changes_nothing(write: Touch, fence: int, db: Database, register_worker: Register) -> None:
    task = await start_and_claim(db, await register_worker())
    before = await rows(db)
    assert not await write(db, replace(task, fence=fence))
    assert (await rows(db), await rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_another_worker_changes_nothing(write: Touch, db: Database, register_worker: Register) -> None:
    task = await start_and_claim(db, await register_worker())
    other = await register_worker()
    before = await rows(db)
    assert not await write(db, replace(task, worker_id=other))
    assert (await rows(db), await rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_an_id_that_is_not_there_changes_nothing(write: Touch, db: Database, register_worker: Register) -> None:
    task = await start_and_claim(db, await register_worker())
    before = await rows(db)
    assert not await write(db, replace(task, id=new_id()))
    assert (await rows(db), await rows(db, "activities")) == (before, [])


@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_that_slept_past_its_lease_finds_the_task_in_other_hands(
    write: Touch, db: Database, register_worker: Register
) -> None:
    sleeper, other = await register_worker(), await register_worker()
    task = await start_and_claim(db, sleeper)
    await store.put_back(db, sleeper, [task])
    (taken_over,) = await claim(db, other)
    before = await rows(db)
    assert not await write(db, task)
    assert await rows(db) == before
    assert await finish(db, [Settlement(taken_over, completed())]) == {task.id}


@pytest.mark.parametrize("write", [end, repeat])
async def test_nobody_may_end_a_held_task_as_if_it_were_free(
    write: Touch, db: Database, register_worker: Register
) -> None:
    task = await start_and_claim(db, await register_worker())
    before = await rows(db)
    assert not await write(db, replace(task, worker_id=None))
    assert await rows(db) == before


@pytest.mark.parametrize("write", [end, repeat])
async def test_finishing_twice_records_once(write: Touch, db: Database, register_worker: Register) -> None:
    """A reply that was lost is asked for again."""
    task = await start_and_claim(db, await register_worker())
    assert await write(db, task)
    assert not await write(db, task)
    assert len(await rows(db, "activities")) == 1


async def test_a_lease_that_has_run_out_cannot_be_renewed(db: Database, register_worker: Register) -> None:
    task = await start_and_claim(db, await register_worker())
    await db.all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms'")
    assert await renew(db, task) == set()


async def test_renewing_prolongs_the_lease_and_keeps_the_latest_progress(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker)
    before = (await the_task(db))["lease_until"]
    hold = timedelta(minutes=5)
    assert await store.renew(db, worker, [(task.id, task.fence, '{"done": 3}')], hold) == {task.id}
    row = await the_task(db)
    assert row["lease_until"] > before + timedelta(minutes=4)
    assert json.loads(row["progress"]) == {"done": 3}
    await store.renew(db, worker, [(task.id, task.fence, None)], hold)
    assert json.loads((await the_task(db))["progress"]) == {"done": 3}, "nothing new to say leaves what was said"


async def test_one_statement_renews_many_and_leaves_out_what_is_no_longer_held(
    db: Database, register_worker: Register
) -> None:
    worker = await register_worker()
    for _ in range(5):
        await start(db)
    tasks = await claim(db, worker)
    await finish(db, [Settlement(tasks[0], completed())])
    held: list[tuple[UUID, int, str | None]] = [(task.id, task.fence, None) for task in tasks]
    assert await store.renew(db, worker, held, LEASE) == {task.id for task in tasks[1:]}
    assert await store.renew(db, worker, [], LEASE) == set()


# --- what a record holds -------------------------------------------------------------------------------------------


async def test_a_finished_task_leaves_and_its_activity_remains_whole(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await start_and_claim(
        db, worker, priority=3, tags=["a"], unique_key="k", correlation_id="c", parent_id=UUID(int=7), input='{"n": 1}'
    )
    claimed = await the_task(db)
    begun, done = now(), now() + timedelta(seconds=1)
    outcome = Outcome(
        Status.COMPLETED_WITH_WARNING,
        None,
        begun,
        done,
        output='{"ok": true}',
        error='{"type": "tenuto.Warning"}',
        log="said\n",
        progress='{"done": 9}',
    )
    assert await finish(db, [Settlement(task, outcome)]) == {task.id}
    assert await rows(db) == []
    (record,) = await activities.attempts(db, task.id)
    assert (record["id"], record["task_id"], record["attempt"], record["final"]) == (task.id, task.id, 1, True)
    assert (record["status"], record["reason"]) == ("completed_with_warning", None)
    assert (record["started_at"], record["ended_at"], record["claimed_at"]) == (begun, done, claimed["claimed_at"])
    assert (record["created_at"], record["run_at"]) == (claimed["created_at"], claimed["run_at"])
    assert (record["input"], record["output"], record["log"]) == ({"n": 1}, {"ok": True}, "said\n")
    assert (record["error"], record["progress"]) == ({"type": "tenuto.Warning"}, {"done": 9})
    assert (record["priority"], record["tags"], record["unique_key"]) == (3, ["a"], "k")
    assert (record["correlation_id"], record["parent_id"], record["worker_id"]) == ("c", UUID(int=7), worker)
    assert (record["initiator_type"], record["initiator_id"], record["initiator_name"]) == ("user", "ana", "Ana")
    assert (record["fence"], record["failures"], record["losses"]) == (1, 0, 0)


async def test_progress_reported_before_the_end_is_kept_if_the_end_says_nothing_of_it(
    db: Database, register_worker: Register
) -> None:
    task = await start_and_claim(db, await register_worker())
    await renew(db, task)
    await end(db, task)
    ((record),) = await activities.attempts(db, task.id)
    assert record["progress"] == {"done": 1}


async def test_every_attempt_is_a_new_record_and_the_task_goes_on(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker, unique_key="k", tags=["a"])
    second = new_id()
    later = now() + timedelta(hours=1)
    await finish(db, [Settlement(task, failed(), Again(later, second, 1, 0))])
    row = await the_task(db)
    assert (row["state"], row["attempt"], row["activity_id"], row["failures"]) == ("scheduled", 2, second, 1)
    assert (row["worker_id"], row["lease_until"], row["claimed_at"], row["progress"]) == (None, None, None, None)
    assert (row["run_at"], row["unique_key"], row["tags"], row["fence"]) == (later, "k", ["a"], task.fence)
    await store.promote(db, later, ["default"])
    (again,) = await claim(db, worker)
    assert (again.attempt, again.activity_id, again.failures, again.fence) == (2, second, 1, 2)
    await finish(db, [Settlement(again, completed())])
    first_record, second_record = await activities.attempts(db, task.id)
    assert (first_record["id"], first_record["final"], first_record["status"]) == (task.id, False, "failed")
    assert (second_record["id"], second_record["final"], second_record["status"]) == (second, True, "completed")
    assert (first_record["failures"], second_record["failures"]) == (1, 1)


async def test_a_task_repeated_at_once_is_queued_at_once(db: Database, register_worker: Register) -> None:
    task = await start_and_claim(db, await register_worker())
    await finish(db, [Settlement(task, failed(), Again(now() - timedelta(seconds=1), new_id(), 0, 1))])
    assert (await the_task(db))["state"] == "queued"


@pytest.mark.parametrize(
    ("outcome", "failures", "losses"),
    [
        (Outcome(Status.COMPLETED), 2, 1),
        (Outcome(Status.FAILED, Reason.ERROR, may_retry=False), 3, 1),
        (Outcome(Status.FAILED, Reason.TIMED_OUT, may_retry=False), 3, 1),
        (Outcome(Status.FAILED, Reason.REFUSED, may_retry=False), 3, 1),
        (Outcome(Status.FAILED, may_retry=False), 3, 1),
        (Outcome(Status.FAILED, Reason.LOST), 2, 2),
        (Outcome(Status.CANCELLED, Reason.REQUESTED), 2, 1),
        (Outcome(Status.COMPLETED_WITH_ERROR), 2, 1),
    ],
)
async def test_the_last_record_counts_failures_and_losses_apart(
    outcome: Outcome, failures: int, losses: int, db: Database, register_worker: Register
) -> None:
    task = await start_and_claim(db, await register_worker())
    await db.all("UPDATE tenuto.tasks SET failures = 2, losses = 1")
    outcome.ended_at = now()
    await finish(db, [Settlement(task, outcome)])
    (record,) = await activities.attempts(db, task.id)
    assert (record["failures"], record["losses"]) == (failures, losses)


async def test_a_batch_may_end_some_and_repeat_others(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(20):
        await start(db)
    tasks = await claim(db, worker, limit=20)
    settlements = [settle(task, completed() if n % 2 else failed(), now(), new_id) for n, task in enumerate(tasks)]
    stale = replace(tasks[0], fence=9)
    settlements[0] = settle(stale, failed(), now(), new_id)
    assert await finish(db, settlements) == {task.id for task in tasks[1:]}
    assert len(await rows(db)) == 10
    assert len(await rows(db, "activities")) == 19


# --- what the nets and the canceller see ---------------------------------------------------------------------------


async def test_only_tasks_whose_lease_has_run_out_are_expired(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    for _ in range(3):
        await start(db)
    tasks = await claim(db, worker)
    assert not await store.anything_slipped(db)
    await db.all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE id = ANY ($1)",
        [task.id for task in tasks[:2]],
    )
    assert await store.anything_slipped(db)

    async def look(connection: Connection) -> list[Task]:
        return await store.expired(connection, 10)

    expired = await db.transaction(look)
    assert {task.id for task in expired} == {task.id for task in tasks[:2]}
    assert all(task.claimed_at is not None and task.worker_id == worker for task in expired)


async def test_what_a_dead_worker_holds_is_seen_whatever_its_lease(db: Database, register_worker: Register) -> None:
    dead, alive = await register_worker(), await register_worker()
    lost = await start_and_claim(db, dead)
    await start_and_claim(db, alive)
    assert not await store.anything_slipped(db)
    await workers.leave(db, dead)
    assert await store.anything_slipped(db)
    assert await workers.ended_holders(db) == [dead]

    async def look(connection: Connection) -> list[Task]:
        return await store.held_by(connection, dead, 10)

    assert [task.id for task in await db.transaction(look)] == [lost.id]


async def test_the_first_to_ask_for_a_stop_is_the_one_on_record(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker)
    assert await store.ask_to_cancel(db, task, Actor.user("ana", "Ana"))
    assert await store.ask_to_cancel(db, task, Actor.system("reaper"))
    ((asked_id, fence, who),) = await store.cancellations(db, worker)
    assert (asked_id, fence, who) == (task.id, task.fence, Actor.user("ana", "Ana"))


async def test_a_stop_asked_of_a_holder_that_is_gone_reaches_nobody(db: Database, register_worker: Register) -> None:
    worker = await register_worker()
    task = await start_and_claim(db, worker)
    await store.put_back(db, worker, [task])
    assert not await store.ask_to_cancel(db, task, Actor.user("ana"))
    await claim(db, worker)
    assert not await store.ask_to_cancel(db, task, Actor.user("ana"))
    assert await store.cancellations(db, worker) == []
