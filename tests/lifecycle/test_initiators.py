"""Initiator, parent and correlation id (S7) of tasks and activities, also of tasks that jobs enqueue."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryLater, Tenuto
from tenuto.blocking import Portal
from tenuto.errors import Invalid
from tenuto.store.work.activities import ActivityRecord, TaskRecord
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


def initiator_of(record: TaskRecord | ActivityRecord) -> tuple[str, str | None, str]:
    return record.initiator_type, record.initiator_id, record.initiator_name


@pytest.mark.parametrize(
    "actor", [Actor.user("ana", "Ana"), Actor.api_key("k1", "nightly"), Actor.system("scheduler")], ids=str
)
async def test_tasks_and_activities_name_their_initiator(actor: Actor, app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake(ctx: Context) -> str:
        return ctx.initiator.name

    acting = app.acting_as(actor)
    task = await acting.enqueue(bake)
    await acting.enqueue_many(bake, [{}, {}])
    triad = (actor.type.value, actor.id, actor.name)
    assert [initiator_of(row) for row in await app.tasks()] == [triad] * 3
    async with worker() as one:
        record = await app.wait(task, timeout=10)
        await eventually(lambda: one.finished_count == 3)
    assert record.output == actor.name
    assert [initiator_of(row) for row in await app.activities()] == [triad] * 3


async def test_default_initiator_is_the_app(app: Tenuto, url: str) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    assert initiator_of(await app.task(task.id)) == ("system", None, "app")
    mine = Tenuto(url, home=app.settings.home, actor=Actor.user("ben", "Ben"))
    mine.jobs.add_job(bake)
    try:
        assert initiator_of(await mine.task((await mine.enqueue(bake)).id)) == ("user", "ben", "Ben")
    finally:
        await mine.close()


async def test_acting_as_is_limited_to_its_block_and_task(app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    async def enqueue_as(name: str) -> str:
        acting = app.acting_as(Actor.user(name))
        await asyncio.sleep(0)
        return str((await acting.task((await acting.enqueue(bake)).id)).initiator_id)

    names = [f"user-{n}" for n in range(5)]
    assert await asyncio.gather(*map(enqueue_as, names)) == names
    assert initiator_of(await app.task((await app.enqueue(bake)).id)) == ("system", None, "app")


async def test_child_task_has_parent_and_correlation_id(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def grandchild() -> None: ...

    @app.job
    async def child() -> str:
        return str((await app.enqueue(grandchild)).id)

    @app.job
    async def parent() -> str:
        return str((await app.enqueue(child)).id)

    async with worker():
        acting = app.acting_as(Actor.user("ana", "Ana"))
        first = await acting.wait(await acting.enqueue(parent), timeout=10)
        second = await app.wait(UUID(first.output), timeout=10)
        third = await app.wait(UUID(second.output), timeout=10)
    assert (first.parent_id, first.correlation_id) == (None, None)
    assert second.parent_id == first.id
    assert third.parent_id == second.id
    assert second.correlation_id == third.correlation_id == str(first.task_id)
    assert initiator_of(second) == initiator_of(third) == ("user", "ana", "Ana")


async def test_correlation_id_and_parent_survive_a_retry(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def child() -> None: ...

    @app.job
    async def parent(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RetryLater("not yet", after=0.01)
        return str((await app.enqueue(child.using(correlation_id=None))).id)

    async with worker():
        record = await app.wait(await app.enqueue(parent.using(correlation_id="order 17")), timeout=10)
        below = await app.wait(UUID(record.output), timeout=10)
    assert (record.attempt, record.correlation_id) == (2, "order 17")
    assert below.correlation_id == "order 17"
    assert below.parent_id == record.id, "the attempt that asked, not the task"
    assert below.parent_id != record.task_id


async def test_job_may_act_as_another_initiator(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def child() -> None: ...

    @app.job
    async def parent() -> str:
        return str((await app.acting_as(Actor.system("janitor")).enqueue(child)).id)

    async with worker():
        record = await app.wait(await app.enqueue(parent), timeout=10)
        below = await app.wait(UUID(record.output), timeout=10)
    assert initiator_of(below) == ("system", None, "janitor")
    assert below.parent_id == record.id


async def test_plain_job_enqueues_through_a_portal(app: Tenuto, worker: WorkerFactory) -> None:
    portal = Portal(app)

    @app.job
    async def child() -> None: ...

    @app.job
    def parent() -> str:
        with portal:
            return str(portal.run(app.enqueue(child), timeout=10).id)

    async with worker():
        acting = app.acting_as(Actor.user("ana", "Ana"))
        record = await acting.wait(await acting.enqueue(parent), timeout=20)
        assert record.state == "completed", record.error
        below = await app.wait(UUID(record.output), timeout=10)
    assert below.parent_id == record.id
    assert initiator_of(below) == ("user", "ana", "Ana")


async def test_many_child_tasks_are_completed(app: Tenuto, worker: WorkerFactory) -> None:
    """Many jobs on one event loop use the database of another one concurrently."""
    ran: list[int] = []

    @app.job
    async def leaf(n: int) -> None:
        ran.append(n)

    @app.job
    async def spread(n: int) -> int:
        return await app.enqueue_many(leaf, range(n * 10, n * 10 + 10))

    async with worker(slots=20) as one:
        await app.enqueue_many(spread, range(10))
        await eventually(lambda: one.finished_count == 110, timeout=30)
    assert sorted(ran) == list(range(100))


async def test_acting_as_refuses_a_name_instead_of_an_actor(app: Tenuto) -> None:
    with raises_code("actor.type.invalid", Invalid) as refused:
        app.acting_as("ana")  # type: ignore[arg-type]
    assert refused.value.field == "actor"
