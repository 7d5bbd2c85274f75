"""A worker dies before or after the n-th statement it sends, for every n: the work is done all the same."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from tenuto import Tenuto
from tests.races import work
from tests.races.audit import assert_sound
from tests.races.crashing import EXIT_CODE
from tests.races.ledger import Ledger, overlaps
from tests.races.observing import Observer
from tests.races.processes import WorkerProcess, Workers, eventually

AT_ONCE = 12
TASKS = 5
DOOMED = {"lease_seconds": 1.5, "grace_seconds": 0.0, "poll_seconds": 10.0}


async def test_a_worker_that_dies_at_any_statement_leaves_nothing_undone_and_nothing_done_twice(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    """Each death has a queue to itself, with work that is claimed with and without a limit, ended, tried again,
    renewed, cancelled and handed back; several deaths are looked at side by side."""
    crash_at = 0
    untouched = False
    while not untouched:
        queues = [f"queue-{crash_at + number}" for number in range(1, AT_ONCE + 1)]
        for queue in queues:
            await give_work(app, queue)
        doomed = [
            workers.start(f"doomed-{queue}", queues=(queue,), crash_at=crash_at + number, **DOOMED)
            for number, queue in enumerate(queues, 1)
        ]
        crash_at += AT_ONCE
        await asyncio.gather(*(until_dead_or_done(observer, worker, queue) for worker, queue in zip(doomed, queues, strict=True)))
        untouched = any(worker.exit_code == 0 for worker in doomed)
        assert {worker.exit_code for worker in doomed} <= {0, EXIT_CODE}

        healthy = await workers.start(f"healthy-{crash_at}", queues=tuple(queues), slots=50).is_ready()
        await observer.until_all_ended(within=40)
        await workers.stop(healthy)

    died = {process.pid: 0 for process in workers.started if process.exit_code == EXIT_CODE}
    assert overlaps([effect for effect in ledger.effects() if effect.pid not in died or effect.ended], died) == []
    await assert_sound(url, crash_at * TASKS)
    assert await observer.count("activities", "final AND status = 'completed'") >= crash_at * (TASKS - 1)
    points = Counter((workers.folder / "points").read_text(encoding="utf-8").splitlines())
    print(f"{crash_at} runs, died {dict(points)}")
    for statement in ("claim", "claim_under_limits", "renew", "end_tasks", "repeat_tasks", "commit"):
        assert points[f"before {statement}"] > 0
        assert points[f"after {statement}"] > 0


async def give_work(app: Tenuto, queue: str) -> None:
    await app.enqueue(work.touch.using(queue=queue), 1)
    await app.enqueue(work.touch.using(queue=queue, limit_key=queue, limit=1), 2)
    await app.enqueue(work.fail_once.using(queue=queue), 3)
    await app.enqueue(work.touch_in_thread.using(queue=queue), 4, seconds=0.8)
    await app.enqueue(work.touch.using(queue=queue), 5)


async def until_dead_or_done(observer: Observer, worker: WorkerProcess, queue: str) -> None:
    """Wait for its death; if it has done everything first, have it leave."""

    async def dead_or_done() -> bool:
        return worker.has_ended() or await observer.value(
            "SELECT NOT EXISTS (SELECT FROM tenuto.tasks WHERE queue = $1)", queue
        )

    await eventually("it is dead or done", dead_or_done, within=30)
    if not worker.has_ended():
        worker.signal(signal.SIGTERM)
        await worker.end(within=20)
