"""Workers claim only the jobs and step kinds that they know (W3); other tasks wait, and reports name them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Step, Tenuto, manual
from tenuto.ids import new_id
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.postgres.database import Database
from tenuto.presentation.overview_views import describe_attention
from tenuto.store.work import task_creation, workers
from tenuto.store.work import tasks as store
from tests.support.model_values import make_new_task
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

LEASE = timedelta(seconds=30)
BAKER = KnownHandlers({"bake": None, "mix": "2"}, {"sql": None})


@pytest.fixture
async def elsewhere(app: Tenuto, url: str) -> AsyncIterator[Tenuto]:
    """Another program on the same database, with other jobs."""
    other = Tenuto(url, home=app.settings.home)
    yield other
    await other.close()


@pytest.fixture
async def me(register_worker: Callable[[], Awaitable[UUID]]) -> UUID:
    return await register_worker()


async def enqueue(db: Database, *names: str, **fields: Any) -> list[UUID]:
    tasks = [make_new_task(id=new_id(), name=name, **fields) for name in names]
    await task_creation.enqueue_tasks(db, tasks)
    return [task.id for task in tasks]


@pytest.mark.parametrize("limited", [False, True])
async def test_claim_takes_only_known_jobs_and_step_kinds(db: Database, me: UUID, limited: bool) -> None:
    limits: dict[str, Any] = {"limit_key": "oven", "limit_max": 9} if limited else {}
    bake, _wash, mix = await enqueue(db, "bake", "wash", "mix", **limits)
    (script,) = await enqueue(db, "monthly", kind="sql", **limits)
    await enqueue(db, "bake", kind="powershell", **limits)  # the name of another kind of task is no job
    claim = store.claim_limited_tasks if limited else store.claim_tasks
    claimed = await claim(db, me, ["default"], 10, LEASE, known=BAKER)
    assert {task.id for task in claimed} == {bake, mix, script}
    assert len(await claim(db, me, ["default"], 10, LEASE)) == 2, "without a restriction"


async def test_standby_claim_takes_only_known_jobs(db: Database, me: UUID) -> None:
    await enqueue(db, "bake", limit_key="oven", limit_max=1)
    (first,) = await store.claim_limited_tasks(db, me, ["default"], 10, LEASE, known=BAKER)
    assert first.limit_slot is not None
    _unknown, known = await enqueue(db, "wash", "mix", limit_key="oven", limit_max=1)
    start = {first.limit_slot: (-first.priority, first.run_at, first.id)}
    standby = await store.claim_standby_tasks(db, me, start, 10, LEASE, known=BAKER)
    assert [task.id for task in standby] == [known]


async def test_worker_registers_its_jobs_and_those_added_later(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(version="2.1")
    async def bake() -> None: ...

    async with worker():
        (registered,) = await app.workers()
        assert registered.jobs == {"bake": "2.1"}
        assert {"sql", "schedule", "manifest"} <= set(registered.kinds or {})

        @app.job
        async def wash() -> str:
            return "clean"

        assert (await app.wait(await app.enqueue(wash), timeout=10)).output == "clean"
        (registered,) = await app.workers()
        assert registered.jobs == {"bake": "2.1", "wash": None}


async def test_task_of_an_unknown_job_waits_and_reports_name_it(
    app: Tenuto, elsewhere: Tenuto, worker: WorkerFactory
) -> None:
    @app.job
    async def known() -> None: ...

    @elsewhere.job(max_attempts=1)
    async def fresh() -> str:
        return "done"

    async with worker(name="old"):
        task = await elsewhere.enqueue(fresh)
        assert (await app.wait(await app.enqueue(known), timeout=10)).state == "completed"
        why = await app.why(task.id)
        assert [reason.code for reason in why.reasons] == ["unknown_job"]
        assert "no live worker of queue default knows job fresh (old)" in why.reasons[0].message
        assert "tenuto worker --app" in (why.reasons[0].command or "")
        (queue,) = await app.queues()
        assert (queue.queued_count, queue.unknown_jobs) == (1, ["fresh"])
        assert 'tenuto_unknown_job_tasks{kind="job",name="fresh",queue="default"} 1.0' in await app.status.metrics()
        overview = await app.reports.overview()
        assert [(job.queue, job.name, job.task_count) for job in overview.unknown_jobs] == [("default", "fresh", 1)]
        assert any("knows job fresh: 1 task waiting" in text for text in describe_attention(overview))
        findings = {finding.name: finding for finding in await app.doctor()}
        (detail,) = findings["job_without_worker"].details
        assert detail.startswith("no live worker of queue default knows job fresh: 1 task waiting")
        async with elsewhere.worker(name="new", slots=1):
            ended = await app.wait(task, timeout=10)
        assert (ended.state, ended.attempt, ended.output) == ("completed", 1, "done")
    assert [attempt.state for attempt in await app.attempts(task.id)] == ["completed"]


@pytest.mark.usefixtures("both_completion_paths")
async def test_step_of_an_unknown_job_waits_for_a_worker_that_knows_it(
    app: Tenuto, elsewhere: Tenuto, worker: WorkerFactory
) -> None:
    """The worker that ends a group does not claim the next one for itself."""

    @app.job
    async def first() -> None: ...

    elsewhere.jobs.add_job(first)

    @elsewhere.job
    async def second() -> None: ...

    elsewhere.schedule("s", manual(), [Step.job(first), Step.job(second)])
    await elsewhere.schedules.deploy()
    async with worker(name="old"):
        run = await elsewhere.schedules.run("s")
        assert run.execution_id is not None

        async def waits() -> bool:
            tasks = await app.tasks()
            return [(task.name, task.state) for task in tasks] == [("second", "queued")]

        await eventually(waits)
        async with elsewhere.worker(name="new", slots=1):
            assert (await app.executions.wait(run.execution_id, timeout=10)).state == "completed"


async def test_dead_worker_does_not_count_as_knowing_a_job(db: Database, app: Tenuto) -> None:
    for name, known in (("baker", "bake"), ("washer", "wash")):
        registration = workers.ProcessRegistration(
            new_id(), name, "worker", "here", "boot", 1, "0", ["default"], 1, LEASE, KnownHandlers({known: None}, {})
        )
        await workers.register_process(db, registration, holds_name_lock=True, reserved_for=LEASE)
    (task,) = await enqueue(db, "bake")
    assert [reason.code for reason in (await app.why(task)).reasons] == ["free"]
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '31 s' WHERE name = 'baker'")
    assert [reason.code for reason in (await app.why(task)).reasons] == ["unknown_job"]
    await db.fetch_all("UPDATE tenuto.workers SET jobs = NULL WHERE name = 'washer'")  # a process of an earlier release
    assert [reason.code for reason in (await app.why(task)).reasons] == ["free"]
