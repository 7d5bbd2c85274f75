"""A worker dies before or after any statement of a workflow: the result is that of an uninterrupted run.

No step whose result is stored runs again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from tenuto import Tenuto
from tests.races import jobs
from tests.races.crash_points import EXIT_CODE
from tests.races.effect_ledger import Ledger
from tests.races.invariants import assert_invariants_hold
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.races.test_crash_points import expire_leases_soon, wait_for_crash_or_stop

pytestmark = pytest.mark.slow
STATEMENTS = {"load_checkpoints": 3, "record_checkpoint": 8, "record_sleep": 1, "insert_wait": 1, "enqueue_tasks": 1,
              "commit of enqueue_tasks": 1, "lock_open_waits": 2, "defer_tasks": 2, "commit of defer_tasks": 2,
              "end_child_waits": 1, "wake_tasks": 1, "commit of wake_tasks": 1, "finish_tasks": 2}  # fmt: skip
"""How often an uninterrupted run sends each statement."""
RESULT = "loop-0,loop-1,refused,patched,alone,before-sleepafter-sleep,child"
GROUPS = {"loop-0", "loop-1", "refused", "patched", "alone", "before-sleep", "after-sleep"}
DOOMED: dict[str, Any] = {"lease_seconds": 30.0, "poll_seconds": 10.0, "slots": 1}
BATCH_SIZE = 10


async def test_worker_that_crashes_at_any_point_of_a_workflow_repeats_no_stored_step(
    app: Tenuto, url: str, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    points = [
        f"{when} {statement} {number}"
        for statement, count in STATEMENTS.items()
        for number in range(1, count + 1)
        for when in ("before", "after")
    ]
    tasks: dict[UUID, str] = {}
    for start in range(0, len(points), BATCH_SIZE):
        some = points[start : start + BATCH_SIZE]
        queues = [point.replace(" ", "-") for point in some]
        for point, queue in zip(some, queues, strict=True):
            tasks[(await app.enqueue(jobs.ordered.using(queue=queue), 7)).id] = point
        doomed = [
            workers.start(f"doomed-{queue}", queues=(queue,), crash_at=point, **DOOMED)
            for queue, point in zip(queues, some, strict=True)
        ]
        pairs = zip(doomed, queues, strict=True)
        await asyncio.gather(*(wait_for_crash_or_stop(observer, worker, queue) for worker, queue in pairs))
        assert {worker.exit_code for worker in doomed} == {EXIT_CODE}, "every point is reached"
        await expire_leases_soon(observer)
        healthy = await workers.start("healthy", queues=tuple(queues), slots=10).wait_until_ready()
        await observer.until_all_ended(within=40)
        await workers.stop(healthy)

    await assert_invariants_hold(url, 2 * len(tasks))
    assert await observer.count("activities", f"final AND status = 'completed' AND output = '\"{RESULT}\"'") == len(
        tasks
    )
    stored = {
        (task, step): fence
        for task, step, fence in await observer.rows(
            "SELECT task_id, output ->> 'value', fence FROM tenuto.chain_steps WHERE output ? 'value'"
        )
    }
    waits = await observer.rows("SELECT task_id, key::uuid FROM tenuto.event_waits")
    children = dict(waits)
    assert len(waits) == len(children) == len(tasks)
    assert await observer.count("activities", "final AND name = 'workflow_child'") == len(tasks), "one child each"
    for task, point in tasks.items():
        runs = Counter(effect.group for effect in ledger.effects_of(task))
        child = children[task]
        assert 1 <= len(ledger.effects_of(child)) <= 2, f"{point}: the child ran again although it had ended"
        assert runs.keys() == GROUPS, point
        repeated = runs.total() - len(GROUPS)
        assert repeated <= 2, f"{point}: {runs}"  # the steps of both branches may have been interrupted
        for effect in ledger.effects_of(task):
            fence = stored.get((task, effect.group), effect.fence)
            assert effect.fence <= fence, f"{point}: {effect.group} ran after its result was stored"
