"""The verbs of an app (S7, J9): what a program may ask for, and how it is answered or refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Context, Enqueued, Step, Tenuto, manual
from tenuto.errors import Conflict, Invalid, NotFound, SchemaMismatch
from tenuto.ids import new_id
from tenuto.postgres.database import Database
from tenuto.store import activities
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually


@pytest.fixture
async def mine(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the caller's own, with a table of theirs."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TEMP TABLE orders (id integer)")
    yield connection
    await connection.close()


# --- asking for work -----------------------------------------------------------------------------------------------


async def test_a_task_enqueued_within_a_transaction_is_there_if_and_only_if_the_transaction_is(
    app: Tenuto, worker: Quick, mine: asyncpg.Connection
) -> None:
    @app.job
    async def ship(order: int) -> int:
        return order

    async with worker():
        transaction = mine.transaction()
        await transaction.start()
        dropped = await app.enqueue_within(mine, ship, 1)
        await transaction.rollback()
        async with mine.transaction():
            await mine.execute("INSERT INTO orders VALUES (2)")
            kept = await app.enqueue_within(mine, ship, 2)
            with pytest.raises(NotFound):
                await app.activity(kept.id)
        record = await app.wait(kept, timeout=10)
    assert record["output"] == 2
    with pytest.raises(NotFound):
        await app.activity(dropped.id)
    assert await mine.fetchval("SELECT count(*) FROM orders") == 1


async def test_a_key_used_twice_within_one_transaction_is_one_task(app: Tenuto, mine: asyncpg.Connection) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    async with mine.transaction():
        first = await app.enqueue_within(mine, ship.using(key="order 17"), 17)
        second = await app.enqueue_within(mine, ship.using(key="order 17"), 17)
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert len(await app.tasks()) == 1


async def test_a_key_in_use_answers_with_the_task_that_has_it(app: Tenuto) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    first = await app.enqueue(ship.using(key="order 17"), 17)
    assert await app.enqueue(ship.using(key="order 17"), 17) == Enqueued(first.id, created=False)
    assert await app.enqueue_json(ship.using(key="order 17"), '{"order": 17}') == Enqueued(first.id, created=False)


async def test_what_is_enqueued_exists_even_if_the_holder_of_its_key_ends_at_that_moment(app: Tenuto, url: str) -> None:
    @app.job
    async def ship(order: int) -> None: ...

    await app.open()
    for _ in range(5):
        other = await asyncpg.connect(url)
        transaction = other.transaction()
        await transaction.start()
        holder = await app.enqueue_within(other, ship.using(key="order 17"), 17)
        asking = asyncio.create_task(app.enqueue(ship.using(key="order 17"), 17))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

        async def blocked(query: str = waits) -> bool:
            return bool(await (await app.open()).value(query))

        await eventually(blocked)
        # The holder is committed, which decides the race, and is gone before anybody can look.
        await other.execute("COMMIT; DELETE FROM tenuto.tasks WHERE unique_key = 'order 17'")
        answer = await asking
        assert answer.id == holder.id or (await app.task(answer.id))["unique_key"] == "order 17"
        assert answer.created == (answer.id != holder.id)
        await other.execute("DELETE FROM tenuto.tasks")
        await other.close()


async def test_input_from_outside_is_checked_before_anything_is_stored(app: Tenuto) -> None:
    @app.job
    async def ship(order: int, fast: bool = False) -> None: ...

    task = await app.enqueue_json(ship, '{"order": 17}')
    assert (await app.task(task.id))["input"] == {"order": 17, "fast": False}
    for text in ('{"order": "many"}', '{"order": 1, "colour": "red"}', "{", "[]"):
        with pytest.raises(Invalid):
            await app.enqueue_json(ship, text)
    with pytest.raises(Invalid):
        await app.enqueue(ship, "many")
    assert len(await app.tasks()) == 1


async def test_many_are_taken_in_as_they_come_and_what_went_before_a_refusal_stands(app: Tenuto) -> None:
    @app.job
    async def ship(order: int, fast: bool = False) -> None: ...

    assert await app.enqueue_many(ship, []) == 0
    assert await app.enqueue_many(ship, ({"order": n, "fast": True} for n in range(2500))) == 2500
    assert await app.enqueue_many(ship, [1, 2]) == 2
    with pytest.raises(Invalid):
        await app.enqueue_many(ship, [*range(1500), "many"])
    (counted,) = await app.queues()
    assert counted["queued"] == 2502 + 1000
    with pytest.raises(Invalid) as refusal:
        await app.enqueue_many(ship.using(key="k"), [1, 2])
    assert refusal.value.field == "key"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "a b"}, "queue"),
        ({"priority": 5000}, "priority"),
        ({"key": ""}, "unique_key"),
        ({"key": "x" * 201}, "unique_key"),
        ({"key": "a\x00"}, "unique_key"),
        ({"key": 5}, "unique_key"),
        ({"limit": 3}, "limit"),
        ({"limit_key": "gas", "limit": "three"}, "limit"),
        ({"tags": [str(n) for n in range(10_000)]}, "tags"),
        ({"correlation_id": "\ud800"}, "correlation_id"),
    ],
)
async def test_options_that_cannot_be_are_refused_before_anything_is_stored(
    options: dict[str, Any], field: str, app: Tenuto
) -> None:
    @app.job
    async def ship() -> None: ...

    for ask in (lambda: app.enqueue(ship.using(**options)), lambda: app.enqueue_many(ship.using(**options), [{}])):
        with pytest.raises(Invalid) as refusal:
            await ask()
        assert field.removeprefix("unique_") in str(refusal.value.field)
    assert await app.tasks() == []


async def test_text_that_looks_like_sql_or_markup_is_stored_and_shown_as_it_is(app: Tenuto, worker: Quick) -> None:
    nasty = "'; DROP TABLE tenuto.tasks;-- <script>alert(1)</script> {{7*7}} \x1b[31m \u202e"

    @app.job
    async def echo(text: str, ctx: Context) -> str:
        ctx.log.info(text)
        return text

    async with worker():
        task = await app.enqueue(echo.using(key=nasty[:200], tags=[nasty[:60]], correlation_id=nasty[:200]), nasty)
        record = await app.wait(task, timeout=10)
    assert (record["output"], record["input"]) == (nasty, {"text": nasty})
    assert (record["tags"], record["correlation_id"]) == ([nasty[:60]], nasty[:200])
    assert nasty in record["log"]


# --- asking about work ---------------------------------------------------------------------------------------------


async def test_waiting_for_an_execution_lasts_no_longer_than_was_said(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def never() -> None: ...

    app.schedule("s", manual(), [Step.job(never)])
    await app.schedules.deploy()
    run = (await app.schedules.run("s")).execution_id
    assert run is not None
    monkeypatch.setattr("tenuto.operations.execution_waiter._LONGEST_LOOK", 600.0)
    async with asyncio.timeout(60):
        for _ in range(2):  # by the second time there is somebody to tell
            with pytest.raises(Conflict, match=r"has not ended after 0\.3 s"):
                await app.executions.wait(run, 0.3)


async def test_waiting_ends_with_the_task_or_with_patience(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def ship() -> int:
        return 7

    task = await app.enqueue(ship)
    with pytest.raises(Conflict, match=r"has not ended after 0\.05 s"):
        await app.wait(task, timeout=0.05)
    with pytest.raises(NotFound, match="there is no task"):
        await app.wait(new_id(), timeout=1)
    waiting = asyncio.create_task(app.wait(task.id))
    async with worker():
        assert (await asyncio.wait_for(waiting, 10))["output"] == 7
    assert (await app.wait(task, timeout=0))["output"] == 7, "what has ended is answered at once"


async def test_waiting_for_a_task_reads_its_records_once(
    app: Tenuto, worker: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was logged, given and returned may be large; whether it has ended is not."""

    @app.job
    async def ship() -> int:
        return 7

    looks, reads = [], []
    has_ended, attempts = activities.has_ended, activities.attempts

    async def look(database: Database, task_id: UUID) -> bool | None:
        looks.append(task_id)
        return await has_ended(database, task_id)

    async def read(database: Database, task_id: UUID) -> list[dict[str, Any]]:
        reads.append(task_id)
        return await attempts(database, task_id)

    monkeypatch.setattr(activities, "has_ended", look)
    monkeypatch.setattr(activities, "attempts", read)
    task = await app.enqueue(ship)
    waiting = asyncio.create_task(app.wait(task, timeout=20))
    await eventually(lambda: len(looks) > 3)
    assert reads == []
    async with worker():
        assert (await waiting)["output"] == 7
    assert reads == [task.id]


async def test_what_is_not_there_is_told_as_not_found(app: Tenuto) -> None:
    for ask in (app.activity, app.attempts, app.task):
        with pytest.raises(NotFound, match="there is no"):
            await ask(new_id())


async def test_a_few_letters_name_a_task_unless_several_begin_so(app: Tenuto) -> None:
    @app.job
    async def ship() -> None: ...

    first, second = await app.enqueue(ship), await app.enqueue(ship)
    assert await app.find(str(first.id)) == first.id
    assert await app.find(str(second.id).replace("-", "")) == second.id
    with pytest.raises(Conflict, match="several ids"):
        await app.find(str(first.id)[:2])
    with pytest.raises(NotFound, match="no id begins"):
        await app.find("ffff")
    with pytest.raises(Invalid):
        await app.find("zz")


async def test_records_can_be_sent_on_as_json(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def ship(order: int) -> dict[str, int]:
        return {"order": order}

    async with worker():
        record = await app.wait(await app.enqueue(ship, 17), timeout=10)
    assert json.loads(json.dumps(record, default=str))["output"] == {"order": 17}


# --- queues --------------------------------------------------------------------------------------------------------


async def test_a_queue_may_be_limited_paused_and_freed_again(app: Tenuto) -> None:
    async def queue() -> dict[str, Any]:
        (found,) = await app.queues()
        return found

    await app.limit_queue("mail", 3)
    await app.pause_queue("mail", reason="moving")
    found = await queue()
    assert (found["max_running"], found["paused_by"], found["reason"]) == (3, "app", "moving")
    await app.limit_queue("mail", None)
    assert (await queue())["max_running"] is None
    assert (await queue())["paused_at"] is not None
    await app.resume_queue("mail")
    assert [(await queue())[field] for field in ("paused_at", "paused_by", "reason")] == [None] * 3


@pytest.mark.parametrize(
    ("name", "limit"), [("a b", 1), ("", 1), ("x" * 65, 1), ("mail", 0), ("mail", -1), ("mail", 2**63)]
)
async def test_a_queue_or_a_limit_that_is_none_is_refused(name: str, limit: int, app: Tenuto) -> None:
    with pytest.raises(Invalid):
        await app.limit_queue(name, limit)
    assert await app.queues() == []


async def test_who_paused_a_queue_first_and_why_stays_on_record(app: Tenuto) -> None:
    await app.pause_queue("mail", reason="moving")
    await app.pause_queue("mail", reason="something else")
    (queue,) = await app.queues()
    assert queue["reason"] == "moving"
    for reason in ("a\x00b", "x" * 1001):
        with pytest.raises(Invalid):
            await app.pause_queue("other", reason=reason)


async def test_limiting_and_pausing_at_the_same_moment_do_both(app: Tenuto) -> None:
    for n in range(10):
        name = f"queue-{n}"
        await asyncio.gather(app.limit_queue(name, 3), app.pause_queue(name))
    assert {(queue["max_running"], queue["paused_at"] is not None) for queue in await app.queues()} == {(3, True)}


# --- opening and closing -------------------------------------------------------------------------------------------


async def test_an_app_opens_when_first_asked_and_may_be_opened_again_after_closing(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:

        @app.job
        async def ship() -> None: ...

        await asyncio.gather(*(app.enqueue(ship) for _ in range(10)))
        assert len(await app.tasks()) == 10
    await app.close()
    assert len(await app.tasks()) == 10
    await app.close()


async def test_a_database_without_our_schema_is_refused_and_left_as_it_is(empty_url: str, tmp_path: Path) -> None:
    app = Tenuto(empty_url, home=tmp_path)
    with pytest.raises(SchemaMismatch, match="tenuto migrate"):
        await app.tasks()
    connection = await asyncpg.connect(empty_url)
    assert await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'tenuto'") == 0
    await connection.close()
    await app.close()


async def test_an_app_used_from_another_loop_serves_it_too(app: Tenuto) -> None:
    @app.job
    async def ship(n: int) -> None: ...

    await app.enqueue(ship, 1)
    await asyncio.to_thread(lambda: asyncio.run(_enqueue(app, ship)))
    assert sorted(task["name"] for task in await app.tasks()) == ["ship", "ship"]
    await app.enqueue(ship.using(delay=timedelta(hours=1)), 3)


async def _enqueue(app: Tenuto, job: Any) -> None:
    await app.enqueue(job, 2)
