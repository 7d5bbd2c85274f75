"""What is done to tasks and workers, for `tests.races.scenarios.all_scenarios`."""

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
from tests.races.scenarios.scenario import LATER, Calm, Scenario, Step, sql, within
from tests.races.task_actions import LEASE, ACTOR, claim, completed, failed


async def enqueue(db: Database, scenario: Scenario) -> None:
    await store.enqueue_or_find(db, scenario.task("one"))


async def enqueue_many(db: Database, scenario: Scenario) -> None:
    later = {"run_at": db.clock.now() - timedelta(hours=1)}
    many = [scenario.task(f"many {number}") for number in range(4)]
    limited = [scenario.task(f"limited {number}", limit_key="two", limit_max=2) for number in range(6)]
    await store.enqueue_tasks(db, [*many, *limited, scenario.task("later", **later)])


async def copy_many(db: Database, scenario: Scenario) -> None:
    """Their ids are made on the way: who was interrupted looks first what is there."""
    if not await scenario.db.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE name = 'copied'"):
        await store.enqueue_bulk(db, replace(scenario.task("like"), name="copied"), ["{}"] * 2)


async def promote(db: Database, scenario: Scenario) -> None:
    await store.promote_due_tasks(db, db.clock.now(), ["default"])


async def take(db: Database, scenario: Scenario) -> None:
    scenario.held = sorted(await claim(db, scenario.worker, 20), key=lambda task: task.id) or scenario.held


async def comes_back(scenario: Scenario) -> None:
    """What was taken by who died before he knew of it: its lease runs out."""
    known = [task.id for task in scenario.held]
    await scenario.db.fetch_all(
        "UPDATE tenuto.tasks SET lease_until = now() - interval '1 s' WHERE state = 'running' AND id <> ALL ($1)", known
    )
    await recover_lost_tasks(scenario.db, scenario.db.clock.now())


async def renew(db: Database, scenario: Scenario) -> None:
    await store.renew_leases(db, scenario.worker, [(task.id, task.fence, None) for task in scenario.held], LEASE)


async def let_go(db: Database, scenario: Scenario) -> None:
    await store.mark_overrun(db, scenario.worker, [(task.id, task.fence) for task in scenario.held])


async def one_ends(db: Database, scenario: Scenario) -> None:
    await finish(db, [completed(db, scenario.held[0])])


async def one_is_repeated(db: Database, scenario: Scenario) -> None:
    await finish(db, [failed(db, scenario.held[1])])


async def one_is_put_aside(db: Database, scenario: Scenario) -> None:
    now = db.clock.now()
    aside = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now, deferral=Deferral(resume_at=now + timedelta(hours=1)))
    await finish(db, [settle(scenario.held[2], aside, now, new_id)])


async def one_is_put_back(db: Database, scenario: Scenario) -> None:
    await store.return_tasks_to_queue(db, scenario.worker, [scenario.held[3]])


async def one_is_told_to_stop(db: Database, scenario: Scenario) -> None:
    await task_cancellation.cancel_task(db, scenario.held[4].id, ACTOR)


async def and_fails_instead(db: Database, scenario: Scenario) -> None:
    await finish(db, [failed(db, scenario.held[4])])


async def one_is_cancelled(db: Database, scenario: Scenario) -> None:
    await task_cancellation.cancel_task(db, scenario.held[3].id, ACTOR)


async def take_under_limits(db: Database, scenario: Scenario) -> None:
    scenario.held += await store.claim_limited_tasks(db, scenario.worker, ["default"], 2, LEASE)


async def stand_by(db: Database, scenario: Scenario) -> None:
    seats = {task.limit_slot: QUEUE_START for task in _seated(scenario)[:1]}
    scenario.held += await store.claim_standby_tasks(db, scenario.worker, seats, 2, LEASE)


async def a_seat_is_handed_on(db: Database, scenario: Scenario) -> None:
    first, _, heir, *_ = _seated(scenario)
    await finish(db, [_with_heir(completed(db, first), heir)])


async def another_is_handed_on(db: Database, scenario: Scenario) -> None:
    """By one that does not end, but will be tried again."""
    _, second, _, heir = _seated(scenario)
    await finish(db, [_with_heir(failed(db, second), heir)])


def _seated(scenario: Scenario) -> list[Any]:
    return [task for task in scenario.held if task.limit_slot is not None]


def _with_heir(settlement: Settlement, heir: Task) -> Settlement:
    settlement.successor = heir.id
    return settlement


async def sweeping(db: Database, scenario: Scenario) -> None:
    await recover_lost_tasks(db, db.clock.now())


async def recovering(db: Database, scenario: Scenario) -> None:
    await recover_tasks_of_worker(db, scenario.worker, db.clock.now())


async def register(db: Database, scenario: Scenario) -> None:
    for what in ("a first life", "a second life"):
        me = ProcessRegistration(scenario.id(what), "ann", "worker", "here", "boot", 1, "0", ["default"], 1)
        await workers.register_process(db, me, holds_name_lock=True, silence_limit=LEASE)


async def replace_a_silent_one(db: Database, scenario: Scenario) -> None:
    for what in ("there", "here"):
        me = ProcessRegistration(scenario.id(f"bob {what}"), "bob", "worker", what, "boot", 1, "0", ["default"], 1)
        await workers.register_process(db, me, holds_name_lock=True, silence_limit=timedelta())


async def live_and_leave(db: Database, scenario: Scenario) -> None:
    id = scenario.id("a second life")
    await workers.record_heartbeat(db, id)
    await workers.mark_draining(db, id)
    await workers.deregister_process(db, id)


async def queues(db: Database, scenario: Scenario) -> None:
    await workers.limit_queue(db, "default", 5)
    await workers.pause_queue(db, "default", by="tester", reason=None)
    await workers.resume_queue(db, "default")


async def bury(db: Database, scenario: Scenario) -> None:
    await workers.end_silent_processes(db, timedelta(hours=1))
    await workers.delete_ended_processes(db, db.clock.now() + LATER)


async def count_repair(connection: Connection, scenario: Scenario) -> None:
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
