"""Tenuto's claim alone, timed: `growth` compares it between a small database and large ones, `bulk` under limits of
several queues.

It uses the store directly, because the public API has no claim. Every claimed task is finished and replaced by a new
one outside the timing, so the number of waiting tasks stays constant.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from datetime import timedelta

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import make_payload
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, Outcome, OutcomeStatus, Settlement
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation, tasks
from tenuto.store.work.tasks import ClaimCursor
from tenuto.store.work.workers import ProcessRegistration, register_process

WARM_UP = 3
TASKS_UNDER_LIMIT = 10
LEASE = timedelta(seconds=60)
ACTOR = Actor.system("benchmark")


async def time_claims(url: str, times: int, *, fresh: bool) -> None:
    """Claim 100 at a time as a worker that has been running, or as one that has just started each time."""
    database = await Database.open(url, max_connections=1, generic_plans=True)
    worker = new_id()
    me = ProcessRegistration(worker, str(worker), "benchmark", "", "", 0, "", ["default"], contender_protocol.BATCH)
    await register_process(database, me, holds_name_lock=True, reserved_for=LEASE)
    bounds = ClaimCursor()
    taken: list[float] = []
    for _ in range(WARM_UP + times):
        if fresh:
            bounds = ClaimCursor()
        began = time.monotonic_ns()
        claimed = await tasks.claim_tasks(database, worker, ["default"], contender_protocol.BATCH, LEASE, bounds)
        taken.append((time.monotonic_ns() - began) / 1e6)
        if len(claimed) != contender_protocol.BATCH:
            raise SystemExit(f"a claim of {contender_protocol.BATCH} returned {len(claimed)}")
        bounds.advance_past(claimed)
        now = database.clock.now()
        done = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now)
        await finish(database, [Settlement(task, done) for task in claimed])
        await task_creation.enqueue_tasks(
            database, [_new_task(number, database) for number in range(contender_protocol.BATCH)]
        )
    await database.close()
    contender_protocol.print_answer(milliseconds=taken[WARM_UP:])


async def count_claims(url: str, queues: list[str], seconds: float, *, limited: bool) -> None:
    """Claim, finish and replace ten tasks at a time for that long, under the limits of the queues or without; answer
    with the milliseconds of each claim and how long all of it took.
    """
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    database = await Database.open(url, max_connections=1, generic_plans=True)
    worker = new_id()
    me = ProcessRegistration(worker, str(worker), "benchmark", "", "", 0, "", queues, TASKS_UNDER_LIMIT)
    await register_process(database, me, holds_name_lock=True, reserved_for=LEASE)
    taken: list[float] = []

    async def claim() -> None:
        began = time.monotonic_ns()
        if limited:
            claimed = await tasks.claim_limited_tasks(database, worker, queues, TASKS_UNDER_LIMIT, LEASE)
        else:
            claimed = await tasks.claim_tasks(database, worker, queues, TASKS_UNDER_LIMIT, LEASE)
        taken.append((time.monotonic_ns() - began) / 1e6)
        now = database.clock.now()
        done = Outcome(OutcomeStatus.COMPLETED, started_at=now, ended_at=now)
        await finish(database, [Settlement(task, done) for task in claimed])
        again = [replace(_new_task(number, database), queue=task.queue) for number, task in enumerate(claimed)]
        await task_creation.enqueue_tasks(database, again)

    for _ in range(WARM_UP):
        await claim()
    taken.clear()
    await gate.ready()
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < seconds * 1e9:
        await claim()
    contender_protocol.print_answer(milliseconds=taken, seconds=(time.monotonic_ns() - began) / 1e9)
    await database.close()


async def fill_queues(url: str, queues: list[str], count: int) -> None:
    """Set a limit of each queue, which is never reached, and enqueue that many tasks into each."""
    database = await Database.open(url, max_connections=1)
    for queue in queues:
        await database.fetch_all("INSERT INTO tenuto.queues (name, max_running) VALUES ($1, 1000)", queue)
        made = [replace(_new_task(number, database), queue=queue) for number in range(count)]
        await task_creation.enqueue_tasks(database, made)
    await database.close()
    contender_protocol.print_answer(filled=count * len(queues))


def _new_task(number: int, database: Database) -> NewTask:
    return NewTask(new_id(), "noop", make_payload(number), database.clock.now(), ACTOR)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["claims", "fill", "queues"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--queues", nargs="+", default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--limited", action="store_true")
    asked = parser.parse_args()
    match asked.verb:
        case "claims":
            contender_protocol.run(time_claims(asked.url, asked.times, fresh=asked.fresh))
        case "fill":
            contender_protocol.run(fill_queues(asked.url, asked.queues, asked.times))
        case _:
            contender_protocol.run(count_claims(asked.url, asked.queues, asked.seconds, limited=asked.limited))


if __name__ == "__main__":
    main()
