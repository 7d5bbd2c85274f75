"""A worker dies between the end of a step and the start of the steps that depend on it: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenuto import Step, Tenuto, manual
from tests.races import jobs
from tests.races.crash_points import EXIT_CODE
from tests.races.effect_ledger import Ledger
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.races.test_crash_points import DOOMED, expire_leases_soon, wait_for_crash_or_stop
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
POINTS = (
    "before finish_tasks 1", "after finish_tasks 1", "before list_step_progress 1", "before list_step_outputs 1",
    "before start_steps 1", "after start_steps 1", "before commit of move_execution 1",
    "after commit of move_execution 1", "before start_steps 2", "after move_execution 1", "before end_executions 1",
    "after end_executions 1",
)  # fmt: skip


async def test_worker_that_dies_while_it_advances_an_execution_loses_and_repeats_no_decision(
    app: Tenuto, observer: Observer, workers: Workers, ledger: Ledger
) -> None:
    app.jobs.add_job(jobs.touch)
    queues = [point.replace(" ", "-") for point in POINTS]
    executions = []
    for queue in queues:
        first = Step.job(jobs.touch, 7, name="first", queue=queue)
        early = Step.job(jobs.touch, first.output, name="early", queue=queue, needs=[first])
        skipped = Step.job(jobs.touch, 1, name="skipped", queue=queue, when=first.output > 7)
        last = Step.job(jobs.touch, early.output, name="last", queue=queue, when=early.succeeded & skipped.skipped)
        app.schedule(queue, manual(), [first, [early, skipped], last])
    await app.schedules.deploy()
    for queue in queues:
        started = await app.schedules.run(queue)
        assert started.execution_id is not None
        executions.append(started.execution_id)
    doomed = [
        workers.start(f"doomed-{queue}", queues=(queue,), crash_at=point, **DOOMED)
        for queue, point in zip(queues, POINTS, strict=True)
    ]
    await asyncio.gather(*(wait_for_crash_or_stop(observer, *pair) for pair in zip(doomed, queues, strict=True)))
    died = [point for point, worker in zip(POINTS, doomed, strict=True) if worker.exit_code == EXIT_CODE]
    assert set(died) == set(POINTS)

    await expire_leases_soon(observer)
    healthy = await workers.start("healthy", queues=tuple(queues), slots=50).wait_until_ready()
    await observer.until_all_ended(within=40)
    await workers.stop(healthy)

    async def all_ended() -> bool:
        return bool(await observer.value("SELECT bool_and(ended_at IS NOT NULL) FROM tenuto.executions"))

    await eventually(all_ended, timeout=20, what="all executions have ended")
    for id, queue in zip(executions, queues, strict=True):
        ended = await app.executions.get(id)
        states = {each.name: each.state for each in ended.steps}
        assert (ended.state, ended.failed_step_count) == ("completed", 0), queue
        assert states == {"first": "completed", "early": "completed", "skipped": "skipped", "last": "completed"}, queue
        final = await observer.value(
            "SELECT json_agg(input ->> 'number' ORDER BY step_index)::text FROM tenuto.activities"
            " WHERE execution_id = $1 AND final",
            id,
        )
        assert json.loads(final) == ["7", "7", "1", "7"], queue
    assert await observer.value("SELECT count(*) FROM tenuto.repairs WHERE net = 'execution_stuck'") == 0
