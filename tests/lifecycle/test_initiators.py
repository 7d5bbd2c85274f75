"""Who wanted it, and what led to it (S7): carried by every task and record, also into tasks that tasks ask for."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Context, RetryLater, Tenuto
from tenuto.blocking import Portal
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually


def initiator(record: dict[str, Any]) -> tuple[str, str | None, str]:
    return record["initiator_type"], record["initiator_id"], record["initiator_name"]


@pytest.mark.parametrize(
    "actor", [Actor.user("ana", "Ana"), Actor.api_key("k1", "nightly"), Actor.system("scheduler")], ids=str
)
async def test_every_task_and_every_record_names_who_asked_for_it(actor: Actor, app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake(ctx: Context) -> str:
        return ctx.initiator.name

    with app.acting_as(actor):
        task = await app.enqueue(bake)
        await app.enqueue_many(bake, [{}, {}])
    triad = (actor.type.value, actor.id, actor.name)
    assert [initiator(row) for row in await app.tasks()] == [triad] * 3
    async with worker() as one:
        record = await app.wait(task, timeout=10)
        await eventually(lambda: one.finished == 3)
    assert record["output"] == actor.name
    assert [initiator(row) for row in await app.activities()] == [triad] * 3


async def test_without_anybody_named_it_is_the_app_itself(app: Tenuto, url: str) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    assert initiator(await app.task(task.id)) == ("system", None, "app")
    mine = Tenuto(url, home=app.settings.home, actor=Actor.user("ben", "Ben"))
    mine.jobs.add(bake)
    try:
        assert initiator(await mine.task((await mine.enqueue(bake)).id)) == ("user", "ben", "Ben")
    finally:
        await mine.close()


async def test_acting_as_somebody_ends_with_the_block_and_does_not_reach_others(app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    async def enqueue_as(name: str) -> str:
        with app.acting_as(Actor.user(name)):
            await asyncio.sleep(0)
            return str((await app.task((await app.enqueue(bake)).id))["initiator_id"])

    names = [f"user-{n}" for n in range(5)]
    assert await asyncio.gather(*map(enqueue_as, names)) == names
    assert initiator(await app.task((await app.enqueue(bake)).id)) == ("system", None, "app")


async def test_a_task_asked_for_by_a_task_names_its_parent_and_belongs_to_the_same_story(
    app: Tenuto, worker: Quick
) -> None:
    @app.job
    async def grandchild() -> None: ...

    @app.job
    async def child() -> str:
        return str((await app.enqueue(grandchild)).id)

    @app.job
    async def parent() -> str:
        return str((await app.enqueue(child)).id)

    async with worker():
        with app.acting_as(Actor.user("ana", "Ana")):
            first = await app.wait(await app.enqueue(parent), timeout=10)
        second = await app.wait(UUID(first["output"]), timeout=10)
        third = await app.wait(UUID(second["output"]), timeout=10)
    assert (first["parent_id"], first["correlation_id"]) == (None, None)
    assert second["parent_id"] == first["id"]
    assert third["parent_id"] == second["id"]
    assert second["correlation_id"] == third["correlation_id"] == str(first["task_id"])
    assert initiator(second) == initiator(third) == ("user", "ana", "Ana")


async def test_a_story_that_was_given_a_name_keeps_it_and_a_later_attempt_is_the_parent_it_was(
    app: Tenuto, worker: Quick
) -> None:
    @app.job
    async def child() -> None: ...

    @app.job
    async def parent(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RetryLater("not yet", after=0.01)
        return str((await app.enqueue(child.using(correlation_id=None))).id)

    async with worker():
        record = await app.wait(await app.enqueue(parent.using(correlation_id="order 17")), timeout=10)
        below = await app.wait(UUID(record["output"]), timeout=10)
    assert (record["attempt"], record["correlation_id"]) == (2, "order 17")
    assert below["correlation_id"] == "order 17"
    assert below["parent_id"] == record["id"], "the attempt that asked, not the task"
    assert below["parent_id"] != record["task_id"]


async def test_inside_a_job_somebody_else_may_be_named(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def child() -> None: ...

    @app.job
    async def parent() -> str:
        with app.acting_as(Actor.system("janitor")):
            return str((await app.enqueue(child)).id)

    async with worker():
        record = await app.wait(await app.enqueue(parent), timeout=10)
        below = await app.wait(UUID(record["output"]), timeout=10)
    assert initiator(below) == ("system", None, "janitor")
    assert below["parent_id"] == record["id"]


async def test_a_plain_function_may_ask_for_work_through_a_portal(app: Tenuto, worker: Quick) -> None:
    portal = Portal(app)

    @app.job
    async def child() -> None: ...

    @app.job
    def parent() -> str:
        with portal:
            return str(portal.run(app.enqueue(child), timeout=10).id)

    async with worker():
        with app.acting_as(Actor.user("ana", "Ana")):
            record = await app.wait(await app.enqueue(parent), timeout=20)
        assert record["status"] == "completed", record["error"]
        below = await app.wait(UUID(record["output"]), timeout=10)
    assert below["parent_id"] == record["id"]
    assert initiator(below) == ("user", "ana", "Ana")


async def test_a_flood_of_tasks_asked_for_by_tasks_gets_done(app: Tenuto, worker: Quick) -> None:
    """Many jobs on one loop use the database of another at once."""
    ran: list[int] = []

    @app.job
    async def leaf(n: int) -> None:
        ran.append(n)

    @app.job
    async def spread(n: int) -> int:
        return await app.enqueue_many(leaf, range(n * 10, n * 10 + 10))

    async with worker(slots=20) as one:
        await app.enqueue_many(spread, range(10))
        await eventually(lambda: one.finished == 110, timeout=30)
    assert sorted(ran) == list(range(100))
