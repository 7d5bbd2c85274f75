"""The SQL function `tenuto.enqueue`: the same rules as in Python, for triggers and for programs in any language."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, check_new_task
from tenuto.store.work import caller_transactions

NOW = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(url)
    yield opened
    await opened.close()


async def call(connection: asyncpg.Connection, arguments: str) -> UUID:
    task_id: UUID = await connection.fetchval(f"SELECT tenuto.enqueue({arguments})")
    return task_id


async def load(connection: asyncpg.Connection, task_id: UUID) -> asyncpg.Record:
    row = await connection.fetchrow("SELECT * FROM tenuto.tasks WHERE id = $1", task_id)
    assert row is not None
    return row


async def test_enqueue_function_needs_only_the_job(connection: asyncpg.Connection) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    row = await load(connection, await call(connection, "'ship'"))
    assert (row["state"], row["queue"], row["rank"], row["kind"], row["name"]) == (
        "queued",
        "default",
        0,
        "job",
        "ship",
    )
    assert (row["input"], row["policy"], row["attempt"], row["activity_id"]) == ("{}", "{}", 1, row["id"])
    assert (row["initiator_type"], row["initiator_name"]) == (
        "system",
        await connection.fetchval("SELECT session_user"),
    )
    assert row["id"].version == 7
    assert before < datetime.fromtimestamp((row["id"].int >> 80) / 1000, UTC) <= datetime.now(UTC)
    assert row["run_at"] == row["created_at"]


async def test_enqueue_function_makes_ids_in_the_order_of_time(connection: asyncpg.Connection) -> None:
    first = await connection.fetchval("SELECT tenuto.new_id()")
    second = await connection.fetchval("SELECT tenuto.new_id() FROM pg_sleep(0.002)")
    assert first < second


async def test_enqueue_function_is_usable_in_a_trigger(connection: asyncpg.Connection) -> None:
    await connection.execute("""
        CREATE TEMP TABLE orders (id integer);
        CREATE FUNCTION pg_temp.enqueue_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM tenuto.enqueue(
                'ship', jsonb_build_object('order', NEW.id), priority => 5, unique_key => 'order-' || NEW.id,
                tags => ARRAY['shop', 'mail', 'shop'], delay => '1 hour'
            );
            RETURN NEW;
        END
        $$;
        CREATE TRIGGER orders_are_shipped AFTER INSERT ON orders
            FOR EACH ROW EXECUTE FUNCTION pg_temp.enqueue_order();
    """)
    await connection.execute("INSERT INTO orders VALUES (1), (1), (2)")
    rows = await connection.fetch("SELECT * FROM tenuto.tasks ORDER BY unique_key")
    assert [(row["unique_key"], json.loads(row["input"]), row["rank"], row["tags"]) for row in rows] == [
        ("order-1", {"order": 1}, -5, ["shop", "mail"]),
        ("order-2", {"order": 2}, -5, ["shop", "mail"]),
    ]
    assert {(row["state"], row["run_at"] - row["created_at"]) for row in rows} == {("scheduled", timedelta(hours=1))}


@pytest.mark.parametrize(
    ("arguments", "notification"),
    [
        ("'ship', queue => 'mail', priority => 3", "queued mail -3"),
        ("'ship', queue => 'mail', limit_key => 'k', limit_max => 1", "limited mail 0"),
        ("'ship', queue => 'mail', run_at => '2100-01-01Z', limit_key => 'k', limit_max => 1", "scheduled mail 0"),
    ],
)
async def test_enqueue_function_notifies_at_commit(
    connection: asyncpg.Connection, url: str, arguments: str, notification: str
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(url)
    await listener.add_listener("tenuto", lambda *given: heard.put_nowait(given[-1]))
    async with connection.transaction():
        await call(connection, arguments)
        await connection.execute("SELECT pg_notify('tenuto', 'end')")
        await listener.execute("SELECT 1")
        assert heard.empty()
    assert [await asyncio.wait_for(heard.get(), 5), await asyncio.wait_for(heard.get(), 5)] == [notification, "end"]
    await listener.close()


async def test_enqueue_function_waits_for_a_concurrent_task_with_the_same_key(
    connection: asyncpg.Connection, url: str
) -> None:
    other = await asyncpg.connect(url)
    for end in ("COMMIT", "ROLLBACK", "COMMIT; DELETE FROM tenuto.tasks"):
        await other.execute("BEGIN")
        first = await call(other, "'ship', unique_key => 'k'")
        second = asyncio.create_task(call(connection, "'ship', unique_key => 'k'"))
        done, _ = await asyncio.wait([second], timeout=0.2)
        assert not done
        await other.execute(end)
        found = await asyncio.wait_for(second, 5)
        if end == "COMMIT":
            assert found == first
        elif end == "ROLLBACK":
            assert found != first
        rows = await connection.fetch("SELECT id FROM tenuto.tasks")
        assert {row["id"] for row in rows} <= {found}
        await other.execute("DELETE FROM tenuto.tasks")
    await other.close()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("NULL", "value.name.invalid"),
        ("'ship', run_at => 'infinity'", "task.run_at.out_of_range"),
        ("'ship', run_at => now(), delay => '1 s'", "task.run_at.conflict"),
        ("'ship', delay => '-1 s'", "job.delay.out_of_range"),
        ("'ship', delay => '367 days'", "job.delay.out_of_range"),
        ("'ship', '[]'", "job.input.invalid"),
        ("'ship', NULL", "job.input.invalid"),
        ("'ship', policy => '3'", "task.policy.invalid"),
        ("'ship', priority => NULL", "task.priority.out_of_range"),
        ("'ship', initiator_type => 'robot'", "actor.name.invalid"),
        ("'ship', initiator_name => ''", "actor.name.invalid"),
        ("'ship', tags => ARRAY['a', NULL]", "task.tags.invalid"),
        ("'ship', id => gen_random_uuid()", "task.id.invalid"),
    ],
)
async def test_enqueue_function_refuses_what_only_sql_can_say(
    connection: asyncpg.Connection, arguments: str, code: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await call(connection, arguments)
    assert caught.value.detail == code


def nested(levels: int, innermost: str) -> str:
    """An input of this many levels, the outermost object included."""
    return '{"value":' + "[" * (levels - 1) + innermost + "]" * (levels - 1) + "}"


CASES: list[dict[str, Any]] = [
    *({"name": name} for name in ("ship", "a" * 200, "a" * 201, "", "-a", "a b", "a:/.-_9", "ähre", "a\n", "_x")),
    *({"queue": queue} for queue in ("q" * 64, "q" * 65, "", "a\nb")),
    *({"priority": priority} for priority in (-1000, 1000, -1001, 1001, 100_000)),
    *({"run_at": datetime(year, 1, 1, tzinfo=UTC)} for year in (1969, 1970, 9000, 9001, 2027)),
    *({field: text} for field in ("unique_key", "correlation_id") for text in ("", "k", "ü" * 200, "k" * 201)),
    *({"limit_key": key, "limit_max": limit} for key in (None, "k", "", "k" * 201) for limit in (None, 1, 0, 100_001)),
    {"limit_key": "k", "limit_max": 100_000},
    *({"tags": tags} for tags in ([], ["a"], ["a", "a"], ["b", "a", "b"], [""], ["t" * 64], ["t" * 65])),
    *({"tags": tags} for tags in ([str(n) for n in range(20)], [str(n) for n in range(21)], ["1"] * 21)),
    *({"tags": [f"a{character}b"]} for character in "\x01\t\n\x1b\x7f\x9f\u200e\u202a\u2066é\u2065\x0b"),
    *({"input": json.dumps({"value": "x" * size}, separators=(",", ":"))} for size in (262_132, 262_133)),
    *({"input": json.dumps({"v": ["x y", 1] * count}, separators=(",", ":"))} for count in (32_766, 32_767)),
    *({"input": nested(levels, innermost)} for levels in (2, 199, 200, 201, 202, 400) for innermost in ("", "1")),
]


@pytest.mark.parametrize("number", range(len(CASES)))
async def test_enqueue_function_accepts_what_python_accepts(connection: asyncpg.Connection, number: int) -> None:
    given: dict[str, Any] = {"name": "ship", "input": "{}", **CASES[number]}
    task = NewTask(id=new_id(), created_at=NOW, initiator=Actor.user("ana"), **given)
    statements = caller_transactions.enqueue(task, NOW, None, None)
    driver = caller_transactions.find_driver(connection)
    try:
        check_new_task(task)
    except Invalid as error:
        with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
            await caller_transactions.run_async(driver, connection, statements)
        codes = {error.code, "task.tags.invalid"} if error.field == "tags" else {error.code}
        assert caught.value.detail in codes
    else:
        await caller_transactions.run_async(driver, connection, statements)
        row = await load(connection, task.id)
        assert (row["state"], -row["rank"], row["run_at"]) == (task.state, task.priority, task.run_at or NOW)
        assert (row["name"], row["queue"], row["tags"] or []) == (task.name, task.queue, task.tags or [])
        assert json.loads(row["input"]) == json.loads(task.input)
