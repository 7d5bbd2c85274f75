"""What is done to tasks and workers, for `tests.races.scripts`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenuto.ids import new_id
from tenuto.lifecycle import task_cancellation
from tenuto.lifecycle.completion import finish
from tenuto.maintenance.recovery import recover_tasks_of_worker, recover_lost_tasks
from tenuto.model.tasks import Deferral, Outcome, Settlement, OutcomeStatus, Task, settle
from tenuto.postgres.database import Connection, Database
from tenuto.store import tasks as store
from tenuto.store import workers
from tenuto.store.claim_cursor import QUEUE_START
from tenuto.store.workers import ProcessRegistration
from tests.races.scenarios.scenario import LATER, Calm, Stage, Step, sql, within
from tests.races.tasks import LEASE, SOMEBODY, claim, completed, failed


async def enqueue(db: Database, stage: Stage) -> None:
    await store.enqueue_or_find(db, stage.task("one"))


async def enqueue_many(db: Database, stage: Stage) -> None:
    later = {"run_at": db.clock.now() - timedelta(hours=1)}
    many = [stage.task(f"many {number}") for number in range(4)]
    limited = [stage.task(f"limited {number}", limit_key="two", limit_max=2) for number in range(6)]
    await store.enqueue_tasks(db, [*many, *limited, stage.task("later", **later)])


async def copy_many(db: Database, stage: Stage) -> None:
    """Their ids are made on the way: who was interrupted looks first what is there."""
    if not await stage.db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE name = 'copied'"):
        await store.enqueue_bulk(db, replace(stage.task("like"), name="copied"), ["{}"] * 2)


async def promote(db: Database, stage: Stage) -> None:
    await store.promote_due_tasks(db, db.clock.now(), ["default"])


async def take(db: Database, stage: Stage) -> None:
    stage.held = sorted(await claim(db, stage.worker, 20), key=lambda task: task.id) or stage.held


async def comes_back(stage: Stage) -> None:
    """What was taken by who died before he knew of it: its lease runs out."""
    known = [task.id for task in stage.held]
    await stage.db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running' AND id <> ALL ($1)", known
    )
    await recover_lost_tasks(stage.db, stage.db.clock.now())


async def renew(db: Database, stage: Stage) -> None:
    await store.renew_leases(db, stage.worker, [(task.id, task.fence, None) for task in stage.held], LEASE)


async def let_go(db: Database, stage: Stage) -> None:
    await store.mark_overrun(db, stage.worker, [(task.id, task.fence) for task in stage.held])


async def one_ends(db: Database, stage: Stage) -> None:
    await finish(db, [completed(db, stage.held[0])])


async def one_is_repeated(db: Database, stage: Stage) -> None:
    await finish(db, [failed(db, stage.held[1])])


async def one_is_put_aside(db: Database, stage: Stage) -> None:
    now = db.clock.now()
    aside = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(resume_at=now + timedelta(hours=1)))
    await finish(db, [settle(stage.held[2], aside, now, new_id)])


async def one_is_put_back(db: Database, stage: Stage) -> None:
    await store.return_tasks_to_queue(db, stage.worker, [stage.held[3]])


async def one_is_told_to_stop(db: Database, stage: Stage) -> None:
    await task_cancellation.cancel_task(db, stage.held[4].id, SOMEBODY)


async def and_fails_instead(db: Database, stage: Stage) -> None:
    await finish(db, [failed(db, stage.held[4])])


async def one_is_cancelled(db: Database, stage: Stage) -> None:
    await task_cancellation.cancel_task(db, stage.held[3].id, SOMEBODY)


async def take_under_limits(db: Database, stage: Stage) -> None:
    stage.held += await store.claim_limited_tasks(db, stage.worker, ["default"], 2, LEASE)


async def stand_by(db: Database, stage: Stage) -> None:
    seats = {task.seat: QUEUE_START for task in _seated(stage)[:1]}
    stage.held += await store.claim_standby_tasks(db, stage.worker, seats, 2, LEASE)


async def a_seat_is_handed_on(db: Database, stage: Stage) -> None:
    first, _, heir, *_ = _seated(stage)
    await finish(db, [_with_heir(completed(db, first), heir)])


async def another_is_handed_on(db: Database, stage: Stage) -> None:
    """By one that does not end, but will be tried again."""
    _, second, _, heir = _seated(stage)
    await finish(db, [_with_heir(failed(db, second), heir)])


def _seated(stage: Stage) -> list[Any]:
    return [task for task in stage.held if task.limit_slot is not None]


def _with_heir(settlement: Settlement, heir: Task) -> Settlement:
    settlement.successor = heir.id
    return settlement


async def sweeping(db: Database, stage: Stage) -> None:
    await recover_lost_tasks(db, db.clock.now())


async def recovering(db: Database, stage: Stage) -> None:
    await recover_tasks_of_worker(db, stage.worker, db.clock.now())


async def register(db: Database, stage: Stage) -> None:
    for what in ("a first life", "a second life"):
        me = ProcessRegistration(stage.id(what), "ann", "worker", "here", "boot", 1, "0", ["default"], 1)
        await workers.register_process(db, me, holds_name_lock=True, silence_limit=LEASE)


async def replace_a_silent_one(db: Database, stage: Stage) -> None:
    for what in ("there", "here"):
        me = ProcessRegistration(stage.id(f"bob {what}"), "bob", "worker", what, "boot", 1, "0", ["default"], 1)
        await workers.register_process(db, me, holds_name_lock=True, silence_limit=timedelta())


async def live_and_leave(db: Database, stage: Stage) -> None:
    id = stage.id("a second life")
    await workers.record_heartbeat(db, id)
    await workers.mark_draining(db, id)
    await workers.deregister_process(db, id)


async def queues(db: Database, stage: Stage) -> None:
    await workers.limit_queue(db, "default", 5)
    await workers.pause_queue(db, "default", by="somebody", reason=None)
    await workers.resume_queue(db, "default")


async def bury(db: Database, stage: Stage) -> None:
    await workers.end_silent_processes(db, timedelta(hours=1))
    await workers.delete_ended_processes(db, db.clock.now() + LATER)


async def count_repair(connection: Connection, stage: Stage) -> None:
    await workers.count_repair(connection, "lease_expired", 1)


EXPIRED = sql("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running'")
SILENT = sql("UPDATE tenuto.workers SET seen_at = now() - interval '1 day'")
CLAIMS = (take, take_under_limits, stand_by)
TASKS: tuple[Step, ...] = (
        enqueue, enqueue_many, copy_many, promote, take, renew, let_go, one_ends, one_is_repeated, one_is_put_aside,
        one_is_put_back, one_is_told_to_stop, and_fails_instead, one_is_cancelled, take_under_limits, stand_by,
        a_seat_is_handed_on, another_is_handed_on, EXPIRED, sweeping, Calm(take), recovering,
    )  # fmt: skip
WORKERS: tuple[Step, ...] = (
    register, replace_a_silent_one, live_and_leave, queues, within(count_repair), SILENT, bury,
)  # fmt: skip
