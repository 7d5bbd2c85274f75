"""Drained workers: they claim nothing more, running tasks continue, and a resumed worker claims again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.worker.worker import Worker
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


class Gate:
    """Lets jobs end."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.started_count = 0


@pytest.fixture
def gate(app: Tenuto) -> Iterator[Gate]:
    gate = Gate()

    @app.job
    def wait_for_gate() -> None:
        gate.started_count += 1
        gate.opened.wait(60)

    @app.job
    async def hello() -> None: ...

    yield gate
    gate.opened.set()


async def worker_state(app: Tenuto, name: str) -> str:
    (found,) = [each for each in await app.workers() if each.name == name]
    return str(found.state)


async def wait_until_drained(worker: Worker) -> None:
    await eventually(lambda: worker._is_draining)


async def test_drained_worker_claims_nothing_and_finishes_what_runs(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    async with worker(slots=10) as running:
        first = await app.enqueue(app.jobs.get_job("wait_for_gate"))
        await eventually(lambda: gate.started_count == 1)
        await app.drain_worker(running.identity.name, "new kernel")
        await wait_until_drained(running)
        assert await worker_state(app, running.identity.name) == "draining"
        (record,) = await app.workers()
        assert (record.drained_by, record.drain_reason) == ("app", "new kernel")
        second = await app.enqueue(app.jobs.get_job("hello"))
        gate.opened.set()
        await app.wait(first, 10)
        running._fetcher.rescan()
        assert await running._claim() is None
        assert (await app.task(second.id)).state == "queued"
        await app.resume_worker(running.identity.name)
        assert (await app.wait(second, 10)).state == "completed"
        assert await worker_state(app, running.identity.name) == "alive"


async def test_drained_worker_does_not_claim_the_next_step_group(
    app: Tenuto, worker: WorkerFactory, gate: Gate
) -> None:
    steps = [Step.job(app.jobs.get_job("wait_for_gate"), name="one"), Step.job(app.jobs.get_job("hello"), name="two")]
    app.schedule("Greeting", manual(), steps)
    await app.schedules.deploy()
    async with worker(slots=10) as running:
        run = await app.schedules.run("Greeting")
        assert run.execution_id is not None
        execution_id = run.execution_id
        await eventually(lambda: gate.started_count == 1)
        await app.drain_worker(running.identity.name)
        await wait_until_drained(running)
        gate.opened.set()

        async def is_in_second_group() -> bool:
            return (await app.executions.get(execution_id)).current_group == 1

        await eventually(is_in_second_group)
        assert (await app.executions.get(execution_id)).steps[1].state == "queued"
        await app.resume_worker(running.identity.name)
        assert (await app.executions.wait(execution_id, 10)).state == "completed"


async def test_drained_worker_prefetches_no_standby_tasks(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    async with worker() as running:
        await app.limit_queue("default", 1)
        await eventually(lambda: running._fetcher.policy.is_limited)
        await app.drain_worker(running.identity.name)
        await wait_until_drained(running)
        claims = 0

        async def count_claim() -> None:
            nonlocal claims
            claims += 1

        running._claim_standby = count_claim  # type: ignore[method-assign]
        await running._seconds_until_next_claim(None)
        assert claims == 0


async def test_drain_and_resume_of_unknown_workers_are_refused(app: Tenuto) -> None:
    await app.migrate()
    with raises_code("worker.not_found"):
        await app.drain_worker("box-99")
    with raises_code("worker.not_found"):
        await app.resume_worker("box-99")


async def test_worker_drained_twice_keeps_the_first_reason(app: Tenuto, worker: WorkerFactory, gate: Gate) -> None:
    async with worker() as running:
        await app.drain_worker(running.identity.name, "first")
        await app.drain_worker(running.identity.name, "second")
        (record,) = await app.workers()
        assert record.drain_reason == "first"
        await app.resume_worker(running.identity.name)
        await app.resume_worker(running.identity.name)
        (record,) = await app.workers()
        assert (record.draining_at, record.drained_by) == (None, None)
