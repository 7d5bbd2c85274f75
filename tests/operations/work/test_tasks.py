"""Task and queue operations of an app (S7, J9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Context, Enqueued, Step, Tenuto, manual
from tenuto.errors import Conflict, Invalid, NotFound, SchemaMismatch
from tenuto.ids import new_id
from tenuto.operations.work import executions
from tenuto.postgres.database import Database
from tenuto.store.work import activities
from tenuto.store.work.workers import QueueRecord
from tests.support.errors import raises_code
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


@pytest.fixture
async def caller_connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the calling program, with a temporary table."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TEMP TABLE orders (id integer)")
    yield connection
    await connection.close()


# --- enqueue --------------------------------------------------------------------------------------------------------


async def test_enqueue_within_commits_and_rolls_back_with_the_transaction(
    app: Tenuto, worker: WorkerFactory, caller_connection: asyncpg.Connection
) -> None:
    @app.job
    async def ship(order: int) -> int:
        return order

    async with worker():
        transaction = caller_connection.transaction()
        await transaction.start()
        dropped = await app.enqueue_within(caller_connection, ship, 1)
        await transaction.rollback()
        async with caller_connection.transaction():
            await caller_connection.execute("INSERT INTO orders VALUES (2)")
            kept = await app.enqueue_within(caller_connection, ship, 2)
            with pytest.raises(NotFound):
                await app.activity(kept.id)
        record = await app.wait(kept, timeout=10)
    assert record.output == 2
    with pytest.raises(NotFound):
        await app.activity(dropped.id)
    assert await caller_connection.fetchval("SELECT count(*) FROM orders") == 1


async def test_enqueue_within_with_same_key_creates_one_task(
    app: Tenuto, caller_connection: asyncpg.Connection
) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    async with caller_connection.transaction():
        first = await app.enqueue_within(caller_connection, ship.using(unique_key="order 17"), 17)
        second = await app.enqueue_within(caller_connection, ship.using(unique_key="order 17"), 17)
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert len(await app.tasks()) == 1


async def test_enqueue_with_key_in_use_returns_the_existing_task(app: Tenuto) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    first = await app.enqueue(ship.using(unique_key="order 17"), 17)
    assert await app.enqueue(ship.using(unique_key="order 17"), 17) == Enqueued(first.id, created=False)
    assert await app.enqueue_json(ship.using(unique_key="order 17"), '{"order": 17}') == Enqueued(
        first.id, created=False
    )


async def test_enqueue_creates_a_task_if_the_owner_of_its_key_ends_concurrently(app: Tenuto, url: str) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    await app.open()
    for _ in range(5):
        other = await asyncpg.connect(url)
        transaction = other.transaction()
        await transaction.start()
        first = await app.enqueue_within(other, ship.using(unique_key="order 17"), 17)
        second = asyncio.create_task(app.enqueue(ship.using(unique_key="order 17"), 17))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

        async def blocked(query: str = waits) -> bool:
            return bool(await (await app.open()).fetch_value(query))

        await eventually(blocked)
        # The first task is committed, which decides the race, and deleted before it can be found.
        await other.execute("COMMIT; DELETE FROM tenuto.tasks WHERE unique_key = 'order 17'")
        result = await second
        assert result.id == first.id or (await app.task(result.id)).unique_key == "order 17"
        assert result.created == (result.id != first.id)
        await other.execute("DELETE FROM tenuto.tasks")
        await other.close()


async def test_enqueue_json_checks_input_before_storing(app: Tenuto) -> None:
    @app.job
    async def ship(order: int, fast: bool = False) -> None: ...

    task = await app.enqueue_json(ship, '{"order": 17}')
    assert (await app.task(task.id)).input == {"order": 17, "fast": False}
    for text in ('{"order": "many"}', '{"order": 1, "colour": "red"}', "{", "[]"):
        with pytest.raises(Invalid):
            await app.enqueue_json(ship, text)
    with pytest.raises(Invalid):
        await app.enqueue(ship, "many")
    assert len(await app.tasks()) == 1


async def test_enqueue_many_keeps_the_chunks_before_an_invalid_input(app: Tenuto) -> None:
    @app.job
    async def ship(order: int, fast: bool = False) -> None: ...

    assert await app.enqueue_many(ship, []) == 0
    assert await app.enqueue_many(ship, ({"order": n, "fast": True} for n in range(2500))) == 2500
    assert await app.enqueue_many(ship, [1, 2]) == 2
    with pytest.raises(Invalid):
        await app.enqueue_many(ship, [*range(1500), "many"])
    (counted,) = await app.queues()
    assert counted.queued_count == 2502 + 1000
    with pytest.raises(Invalid) as refusal:
        await app.enqueue_many(ship.using(unique_key="k"), [1, 2])
    assert (refusal.value.code, refusal.value.field) == ("task.key.not_allowed", "key")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "a b"}, "queue"),
        ({"priority": 5000}, "priority"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "x" * 201}, "unique_key"),
        ({"unique_key": "a\x00"}, "unique_key"),
        ({"unique_key": 5}, "unique_key"),
        ({"limit": 3}, "limit"),
        ({"limit_key": "gas", "limit": "three"}, "limit"),
        ({"tags": [str(n) for n in range(10_000)]}, "tags"),
        ({"correlation_id": "\ud800"}, "correlation_id"),
    ],
)
async def test_enqueue_with_invalid_options_stores_nothing(options: dict[str, Any], field: str, app: Tenuto) -> None:
    @app.job
    async def ship() -> None: ...

    for enqueue in (lambda: app.enqueue(ship.using(**options)), lambda: app.enqueue_many(ship.using(**options), [{}])):
        with pytest.raises(Invalid) as refusal:
            await enqueue()
        assert field in str(refusal.value.field)
    assert await app.tasks() == []


async def test_task_keeps_text_that_looks_like_sql_or_markup(app: Tenuto, worker: WorkerFactory) -> None:
    nasty = "'; DROP TABLE tenuto.tasks;-- <script>alert(1)</script> {{7*7}} \x1b[31m \u202e"

    @app.job
    async def echo(text: str, ctx: Context) -> str:
        ctx.log.info(text)
        return text

    async with worker():
        task = await app.enqueue(
            echo.using(unique_key=nasty[:200], tags=[nasty[:60]], correlation_id=nasty[:200]), nasty
        )
        record = await app.wait(task, timeout=10)
    assert (record.output, record.input) == (nasty, {"text": nasty})
    assert (record.tags, record.correlation_id) == ([nasty[:60]], nasty[:200])
    assert nasty in known(record.log)


# --- wait and inspect ----------------------------------------------------------------------------------------------


async def test_execution_wait_ends_at_its_timeout(app: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    async def never() -> None: ...

    app.schedule("s", manual(), [Step.job(never)])
    await app.schedules.deploy()
    run = (await app.schedules.run("s")).execution_id
    assert run is not None
    intervals = replace(executions.POLL_INTERVALS, max_seconds=600.0)
    monkeypatch.setattr(executions, "POLL_INTERVALS", intervals)
    async with asyncio.timeout(60):
        for _ in range(2):  # the second call finds a connected listener
            with raises_code("execution.wait.timeout", Conflict):
                await app.executions.wait(run, 0.3)


async def test_task_wait_ends_with_the_task_or_its_timeout(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def ship() -> int:
        return 7

    task = await app.enqueue(ship)
    with raises_code("task.wait.timeout", Conflict):
        await app.wait(task, timeout=0.05)
    with raises_code("task.not_found", NotFound):
        await app.wait(new_id(), timeout=1)
    waiting = asyncio.create_task(app.wait(task.id))
    async with worker():
        assert (await asyncio.wait_for(waiting, 10)).output == 7
    assert (await app.wait(task, timeout=0)).output == 7, "an ended task is returned at once"


async def test_task_wait_reads_the_activities_once(
    app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs, inputs and outputs may be large; the polled state is small."""

    @app.job
    async def ship() -> int:
        return 7

    polls, reads = [], []
    has_ended, attempts = activities.has_task_ended, activities.list_attempts

    async def poll(database: Database, task_id: UUID) -> bool | None:
        polls.append(task_id)
        return await has_ended(database, task_id)

    async def read(database: Database, task_id: UUID) -> list[activities.ActivityDetails]:
        reads.append(task_id)
        return await attempts(database, task_id)

    monkeypatch.setattr(activities, "has_task_ended", poll)
    monkeypatch.setattr(activities, "list_attempts", read)
    task = await app.enqueue(ship)
    waiting = asyncio.create_task(app.wait(task, timeout=20))
    await eventually(lambda: len(polls) > 3)
    assert reads == []
    async with worker():
        assert (await waiting).output == 7
    assert reads == [task.id]


async def test_unknown_tasks_and_activities_are_not_found(app: Tenuto) -> None:
    for load, code in (
        (app.activity, "activity.not_found"),
        (app.attempts, "task.not_found"),
        (app.task, "task.not_found"),
    ):
        with raises_code(code, NotFound):
            await load(new_id())


async def test_find_resolves_a_unique_id_prefix(app: Tenuto) -> None:
    @app.job
    async def ship() -> None: ...

    first, second = await app.enqueue(ship), await app.enqueue(ship)
    assert await app.find(str(first.id)) == first.id
    assert await app.find(str(second.id).replace("-", "")) == second.id
    with raises_code("id.prefix.ambiguous", Conflict):
        await app.find(str(first.id)[:2])
    with raises_code("id.prefix.not_found", NotFound):
        await app.find("ffff")
    with pytest.raises(Invalid):
        await app.find("zz")


async def test_activity_record_is_json_serialisable(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def ship(order: int) -> dict[str, int]:
        return {"order": order}

    async with worker():
        record = await app.wait(await app.enqueue(ship, 17), timeout=10)
    assert json.loads(json.dumps(asdict(record), default=str))["output"] == {"order": 17}


# --- queues --------------------------------------------------------------------------------------------------------


async def test_queue_can_be_limited_paused_and_resumed(app: Tenuto) -> None:
    async def queue() -> QueueRecord:
        (found,) = await app.queues()
        return found

    await app.limit_queue("mail", 3)
    await app.pause_queue("mail", reason="moving")
    found = await queue()
    assert (found.max_running, found.paused_by, found.reason) == (3, "app", "moving")
    await app.limit_queue("mail", None)
    assert (await queue()).max_running is None
    assert (await queue()).paused_at is not None
    await app.resume_queue("mail")
    found = await queue()
    assert (found.paused_at, found.paused_by, found.reason) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "limit"), [("a b", 1), ("", 1), ("x" * 65, 1), ("mail", 0), ("mail", -1), ("mail", 2**63)]
)
async def test_invalid_queue_name_or_limit_is_an_error(name: str, limit: int, app: Tenuto) -> None:
    with pytest.raises(Invalid):
        await app.limit_queue(name, limit)
    assert await app.queues() == []


async def test_queue_keeps_actor_and_reason_of_the_first_pause(app: Tenuto) -> None:
    await app.pause_queue("mail", reason="moving")
    await app.pause_queue("mail", reason="something else")
    (queue,) = await app.queues()
    assert queue.reason == "moving"
    for reason in ("a\x00b", "x" * 1001):
        with pytest.raises(Invalid):
            await app.pause_queue("other", reason=reason)


async def test_concurrent_limit_and_pause_of_a_queue_both_take_effect(app: Tenuto) -> None:
    for n in range(10):
        name = f"queue-{n}"
        await asyncio.gather(app.limit_queue(name, 3), app.pause_queue(name))
    assert {(queue.max_running, queue.paused_at is not None) for queue in await app.queues()} == {(3, True)}


# --- opening and closing -------------------------------------------------------------------------------------------


async def test_app_opens_on_first_use_and_can_be_reopened(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:

        @app.job
        async def ship() -> None: ...

        await asyncio.gather(*(app.enqueue(ship) for _ in range(10)))
        assert len(await app.tasks()) == 10
    await app.close()
    assert len(await app.tasks()) == 10
    await app.close()


async def test_app_rejects_a_database_without_schema_and_leaves_it_unchanged(empty_url: str, tmp_path: Path) -> None:
    app = Tenuto(empty_url, home=tmp_path)
    with pytest.raises(SchemaMismatch, match="tenuto migrate"):
        await app.tasks()
    connection = await asyncpg.connect(empty_url)
    assert await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'tenuto'") == 0
    await connection.close()
    await app.close()


async def test_app_can_be_used_from_another_event_loop(app: Tenuto) -> None:
    @app.job
    async def ship(n: int) -> None: ...

    await app.enqueue(ship, 1)
    await asyncio.to_thread(lambda: asyncio.run(_enqueue(app, ship)))
    assert sorted(task.name for task in await app.tasks()) == ["ship", "ship"]
    await app.enqueue(ship.using(delay=timedelta(hours=1)), 3)


async def _enqueue(app: Tenuto, job: Any) -> None:
    await app.enqueue(job, 2)
