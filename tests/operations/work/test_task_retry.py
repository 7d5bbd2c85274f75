"""Dead letters of tasks without a manifest, and their retry (J4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Context, RetryPolicy, Step, Tenuto, manual
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.maintenance.recovery import recover_lost_tasks
from tenuto.model.access.actors import Actor
from tenuto.store.work import dead_letters, tasks
from tenuto.store.work.dead_letters import DeadLetterRecord
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

ONCE = RetryPolicy(max_attempts=1)


async def run_to_failure(app: Tenuto, worker: WorkerFactory, task: Any) -> DeadLetterRecord:
    async with worker():
        record = await app.wait(task, timeout=10)
    assert record.state == "failed"
    (found,) = await app.dead_letters.list()
    return found


async def test_failed_task_becomes_a_dead_letter_and_is_retried(app: Tenuto, worker: WorkerFactory) -> None:
    broken = True

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0), queue="mail", priority=7, tags=["a", "b"], limit=3)
    async def send(to: str) -> str:
        if broken:
            raise ConnectionError("smtp said 451")
        return to

    async with worker(queues=["mail"]):
        task = await app.enqueue(send.using(unique_key="ann"), "ann")
        assert (await app.wait(task, timeout=10)).attempt == 2
        (found,) = await app.dead_letters.list()
        assert (found.task_id, found.name, found.kind, found.external_id) == (task.id, "send", "job", "")
        assert (found.manifest_id, found.attempt_count) == (None, 2)
        assert "smtp said 451" in found.reason
        details = await app.dead_letters.get(found.id)
        assert (details.input, len(details.attempts)) == ({"to": "ann"}, 2)
        (group,) = await app.dead_letters.groups()
        assert (group.name, group.job_count, group.manifest_count, group.external_id) == ("send", 1, 0, "")
        assert "tenuto_dead_letters_open 1.0" in await app.status.metrics()
        broken = False
        retried = await app.tasks.retry(task.id, note="it is back")
        ended = await app.wait(retried, timeout=10)
    assert (ended.state, ended.output, ended.attempt) == ("completed", "ann", 1)
    assert (ended.queue, ended.priority, ended.tags, ended.limit_key) == ("mail", 7, ["a", "b"], "job:send")
    assert ended.unique_key == "ann"
    resolved = await app.dead_letters.get(found.id)
    assert (resolved.state, resolved.note, resolved.retry_task_id) == ("retried", "it is back", retried)
    with raises_code("dead_letter.already_resolved", Conflict):
        await app.tasks.retry(task.id)


@pytest.mark.parametrize("limit", [None, 3])
async def test_retried_task_keeps_its_rate_and_does_not_expire(
    app: Tenuto, worker: WorkerFactory, limit: int | None
) -> None:
    @app.job(retry=ONCE, rate_key="shop", rate_limit="9/s burst 5", limit=limit, expires_in="1h")
    async def fail() -> None:
        raise ValueError

    found = await run_to_failure(app, worker, await app.enqueue(fail))
    database, retried = await app.open(), await app.tasks.retry(found.task_id)
    row = await database.fetch_one(
        "SELECT rate_key, rate_limit, expires_at, limit_key FROM tenuto.tasks WHERE id = $1", retried
    )
    assert row is not None
    assert tuple(row) == ("shop", "9/s burst 5", None, "rate:shop" if limit is None else "job:fail")


async def test_retry_of_a_task_checks_edited_input(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def halve(n: int) -> float:
        if n == 0:
            raise ValueError("zero")
        return n / 2

    found = await run_to_failure(app, worker, await app.enqueue(halve, 0))
    with raises_code("job.input.invalid", Invalid):
        await app.tasks.retry(found.task_id, input={"n": "many"})
    (still_open,) = await app.dead_letters.list()
    assert still_open.id == found.id
    async with worker():
        assert (await app.wait(await app.tasks.retry(found.task_id, input={"n": 8}), timeout=10)).output == 4.0


async def test_retried_task_that_fails_again_gets_a_dead_letter_of_its_own(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail() -> None:
        raise ValueError

    first = await run_to_failure(app, worker, await app.enqueue(fail))
    second = await run_to_failure(app, worker, await app.tasks.retry(first.task_id))
    assert second.id != first.id
    assert (await app.dead_letters.get(first.id)).state == "retried", "a resolved one never reopens"


async def test_concurrent_retries_of_a_task_create_one_task(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail() -> None:
        raise ValueError

    found = await run_to_failure(app, worker, await app.enqueue(fail))
    results = await asyncio.gather(*(app.tasks.retry(found.task_id) for _ in range(8)), return_exceptions=True)
    assert len([each for each in results if isinstance(each, UUID)]) == 1
    assert all(isinstance(each, UUID | Conflict) for each in results)
    assert len(await app.tasks()) == 1
    request = new_id()
    async with worker():
        (retried,) = [each for each in results if isinstance(each, UUID)]
        await app.wait(retried, timeout=10)
    assert await app.tasks.retry(retried, request_id=request) == request
    assert await app.tasks.retry(retried, request_id=request) == request, "a repeated request has no effect"


async def test_retry_of_a_task_is_refused_with_the_reason(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE, dead_letter=False)
    async def forget() -> None:
        raise ValueError

    @app.job
    async def succeed() -> None: ...

    @app.job(retry=ONCE)
    async def fail() -> None:
        raise ValueError

    app.schedule("s", manual(), [Step.job(fail)])
    await app.schedules.deploy()
    later = await app.enqueue(succeed.using(delay=3600))
    async with worker():
        forgotten, succeeded = await app.enqueue(forget), await app.enqueue(succeed)
        run = await app.schedules.run("s")
        assert run.execution_id is not None
        for task in (forgotten, succeeded):
            await app.wait(task, timeout=10)
        execution = await app.executions.wait(run.execution_id, timeout=10)
    assert not await app.dead_letters.list()
    step = execution.steps[0].task_id
    for id, text in ((forgotten.id, "dead_letter=False"), (succeeded.id, "completed"), (later.id, "has not ended")):
        with raises_code("task.not_retryable", Conflict) as refused:
            await app.tasks.retry(id)
        assert text in refused.value.message
    assert step is not None
    with raises_code("task.not_retryable", Conflict) as refused:
        await app.tasks.retry(step)
    assert f"tenuto execution retry {run.execution_id}" in (refused.value.remedy or "")
    with raises_code("task.not_found", NotFound):
        await app.tasks.retry(new_id())


async def test_retry_with_a_key_that_is_in_use_leaves_the_dead_letter_open(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail() -> None:
        raise ValueError

    found = await run_to_failure(app, worker, await app.enqueue(fail.using(unique_key="k")))
    await app.enqueue(fail.using(unique_key="k"))
    with raises_code("task.key.in_use", Conflict):
        await app.tasks.retry(found.task_id)
    assert [each.id for each in await app.dead_letters.list()] == [found.id]


async def test_poison_task_becomes_a_dead_letter(app: Tenuto, register_worker: Callable[[], Awaitable[UUID]]) -> None:
    @app.job
    async def crash() -> None: ...

    task, database = await app.enqueue(crash), await app.open()
    for _ in range(3):
        await database.fetch_all("UPDATE tenuto.tasks SET state = 'queued' WHERE state = 'scheduled'")
        await tasks.claim_limited_tasks(database, await register_worker(), ["default"], 1, timedelta(seconds=30))
        await database.fetch_all("UPDATE tenuto.tasks SET lease_until = now() - interval '1 s'")
        await recover_lost_tasks(database, database.clock.now())
    (found,) = await app.dead_letters.list()
    assert (found.task_id, found.attempt_count) == (task.id, 3)
    assert "set aside" in found.reason
    retried = await app.task(await app.tasks.retry(task.id))
    assert (retried.limit_key, retried.loss_count) == (None, 0)


async def test_dead_letters_of_tasks_are_resolved_in_bulk(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail(n: int) -> None:
        raise ValueError

    async with worker():
        await app.enqueue_many(fail, range(20))

        async def ended() -> bool:
            return not await app.tasks(limit=1)

        await eventually(ended, timeout=20)
    assert (await app.dead_letters.count()).count == 20
    assert len(await app.dead_letters.list("name:fail", limit=5)) == 5
    assert await app.dead_letters.retry_all(note="again") == 20
    assert len(await app.tasks(limit=50)) == 20
    assert not await app.dead_letters.list()


async def test_retried_chain_continues_after_last_finished_step(app: Tenuto, worker: WorkerFactory) -> None:
    ran: list[str] = []
    broken = True

    async def first(n: int) -> str:
        ran.append("first")
        return str(n)

    async def second(text: str) -> str:
        ran.append("second")
        if broken:
            raise ValueError
        return text

    both = app.chain("both", first, second, retry=ONCE)
    found = await run_to_failure(app, worker, await app.enqueue(both, 7))
    broken = False
    async with worker():
        assert (await app.wait(await app.tasks.retry(found.task_id), timeout=10)).state == "completed"
    assert ran == ["first", "second", "second"]


async def test_dead_letter_of_a_task_expires_with_its_activity(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail(ctx: Context) -> None:
        raise ValueError

    await run_to_failure(app, worker, await app.enqueue(fail))
    database = await app.open()
    later = database.clock.now() + timedelta(days=1)
    assert await dead_letters.delete_resolved_dead_letters(database, later, 10) == 0, "its activity exists"
    async with database.connection() as connection:
        await connection.execute("ALTER TABLE tenuto.activities DISABLE TRIGGER ALL; DELETE FROM tenuto.activities")
    assert await dead_letters.delete_resolved_dead_letters(database, later, 10) == 1
    async with database.connection() as connection:
        await connection.execute("ALTER TABLE tenuto.activities ENABLE TRIGGER ALL")


async def test_retry_of_a_task_is_audited(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=ONCE)
    async def fail() -> None:
        raise ValueError

    found = await run_to_failure(app, worker, await app.enqueue(fail))
    await app.acting_as(Actor.user("ana", "Ana")).tasks.retry(found.task_id, note="again")
    entry = (await app.audit.list(limit=1))[0]
    assert (entry.action, entry.target, entry.actor_name, entry.reason) == (
        "task.retry",
        str(found.task_id),
        "Ana",
        "again",
    )
