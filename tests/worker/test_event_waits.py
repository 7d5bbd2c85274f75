"""Waits for events (J10) on a worker: no slot is held, what was received survives retries and crashes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Context, EventTimeout, RetryPolicy, Step, Tenuto, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.store.events import external_events
from tenuto.testing import TimeMachine
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

IMMEDIATE_RETRIES = RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


class Payment(BaseModel):
    amount: int


@pytest.fixture
def calls() -> list[str]:
    """Which steps ran, in order."""
    return []


async def until_waiting(app: Tenuto, count: int = 1) -> None:
    """Return when so many tasks have given up their slots to wait."""

    async def are_parked() -> bool:
        waits = await app.events.waits()
        return len(waits) == count and all([(await app.task(each.task_id)).state == "scheduled" for each in waits])

    await eventually(are_parked)


async def test_waiting_chain_holds_no_slot_and_continues_with_the_payload(
    app: Tenuto, worker: WorkerFactory, calls: list[str]
) -> None:
    async def first(number: int) -> int:
        calls.append("first")
        return number

    async def waits(number: int, ctx: Context) -> Payment:
        calls.append("waits")
        return await ctx.wait_for_event("paid", Payment, key=f"order-{number}", timeout="2d")

    async def last(payment: Payment) -> int:
        return payment.amount

    async def other() -> str:
        return "ran"

    job, plain = app.chain("order", first, waits, last), app.job(other)
    async with worker(slots=1):
        task = await app.enqueue(job, 17)
        await until_waiting(app)
        waiting = await app.task(task.id)
        assert (await app.wait(await app.enqueue(plain), timeout=10)).output == "ran"  # the only slot is free
        sent = await app.events.send("paid", {"amount": 120}, key="order-17")
        record = await app.wait(task, timeout=10)

    assert waiting.progress == {"done": 1, "total": 3, "message": "waits for event paid (key order-17)"}
    assert (record.state, record.output, record.attempt) == ("completed", 120, 1)
    assert sent.delivery_count == 1
    assert calls == ["first", "waits", "waits"]


async def test_event_that_arrives_before_its_wait_is_received(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def waits(ctx: Context) -> list[int]:
        return [await ctx.wait_for_event("paid", int), await ctx.wait_for_event("paid", int)]

    for number in (1, 2, 3):
        assert (await app.events.send("paid", number)).delivery_count == 0
    async with worker():
        record = await app.wait(await app.enqueue(waits), timeout=10)

    assert record.output == [1, 2], "the oldest first, one by each wait"
    assert [each.payload for each in await app.events.list(delivered=False)] == [3]


async def test_one_event_wakes_all_tasks_that_wait_for_it(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("opened", key="shop")

    async with worker():
        tasks = [await app.enqueue(waits) for _ in range(3)]
        await until_waiting(app, 3)
        assert (await app.events.send("opened", "now", key="other")).delivery_count == 0
        assert (await app.events.send("opened", "now", key="shop")).delivery_count == 3
        records = [await app.wait(task, timeout=10) for task in tasks]
    assert [each.output for each in records] == ["now"] * 3


async def test_same_id_is_sent_once_and_another_payload_is_refused(app: Tenuto) -> None:
    first = await app.events.send("paid", {"amount": 1}, id="evt_1")
    assert (await app.events.send("paid", {"amount": 1}, id="evt_1")).id == first.id
    for other in ({"payload": {"amount": 2}}, {"payload": {"amount": 1}, "key": "x"}):
        with raises_code("event.id.reused"):
            await app.events.send("paid", id="evt_1", **other)
    assert len(await app.events.list()) == 1


async def test_received_payload_survives_a_retry(app: Tenuto, worker: WorkerFactory, calls: list[str]) -> None:
    async def waits(ctx: Context) -> int:
        ctx.log.info("begun")
        amount: int = await ctx.wait_for_event("paid", int)
        ctx.log.info("received")
        calls.append(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return amount

    job = app.chain("again", waits, retry=IMMEDIATE_RETRIES)
    async with worker():
        task = await app.enqueue(job)
        await until_waiting(app)
        await app.events.send("paid", 7)
        record = await app.wait(task, timeout=10)

    assert (record.output, record.attempt) == (7, 2)
    assert calls == ["attempt 1", "attempt 2"]
    first = (await app.attempts(task.id))[0]
    assert first.log is not None
    assert [line.split()[-1] for line in first.log.splitlines()] == ["begun", "begun", "received"]


async def test_wait_that_timed_out_is_permanent(app: Tenuto) -> None:
    @app.job(retry=IMMEDIATE_RETRIES)
    async def waits(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("never", timeout="1h")
        except EventTimeout:
            await ctx.wait_for_event("other", timeout="2h")
        return "unreachable"

    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        task = await app.enqueue(waits)
        await time.advance("1h")
        await time.send_event("never", 1)  # too late: it is kept
        assert (await app.task(task.id)).state == "scheduled"
        await time.advance("2h")
        record = await app.wait(task, timeout=5)

    assert (record.state, record.attempt) == ("failed", 1)
    assert "event other did not arrive" in record.error["message"]
    assert [each.delivered_at for each in await app.events.list()] == [None]


async def test_payload_of_another_type_fails_without_retry(app: Tenuto) -> None:
    @app.job(retry=IMMEDIATE_RETRIES)
    async def waits(ctx: Context) -> int:
        return (await ctx.wait_for_event("paid", Payment)).amount

    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        task = await app.enqueue(waits)
        await time.run_until_idle()
        await time.send_event("paid", {"amount": "much"})
        record = await app.wait(task, timeout=5)
    assert (record.state, record.attempt) == ("failed", 1)
    assert "payload of event paid is not acceptable" in record.error["message"]


async def test_cancelled_wait_ends_at_once_and_receives_nothing(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("paid")

    async with worker():
        task = await app.enqueue(waits)
        await until_waiting(app)
        await app.cancel(task.id)
        assert (await app.wait(task, timeout=5)).state == "cancelled"
    assert await app.events.waits() == []
    assert (await app.events.send("paid")).delivery_count == 0


async def test_event_for_a_paused_execution_waits_until_it_is_resumed(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("paid")

    await app.schedules.apply([schedule_definition("paying", manual(), [Step.job(waits)])])
    async with worker():
        started = (await app.schedules.run("paying")).execution_id
        assert started is not None
        await until_waiting(app)
        await app.executions.pause(started)
        assert (await app.events.send("paid", 1)).delivery_count == 1
        (task,) = await app.tasks()
        assert task.state == "waiting"
        await app.executions.resume(started)
        assert (await app.executions.wait(started, timeout=10)).state == "completed"


async def test_why_names_the_event_its_deadline_and_the_command(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("invoice.paid", key="order 17", timeout="2d")

    async with worker():
        task = await app.enqueue(waits)
        await until_waiting(app)
        (reason,) = (await app.why(task.id)).reasons
    assert reason.code == "waits_for_event"
    assert "event invoice.paid (key order 17) until" in reason.message
    assert reason.command == "tenuto event send invoice.paid --key 'order 17'"


async def test_names_keys_and_sizes_are_checked(app: Tenuto) -> None:
    for code, given in {
        "event.name.reserved": {"name": "tenuto.approval"},
        "value.name.invalid": {"name": "no spaces"},
        "value.too_large": {"name": "paid", "payload": "x" * 300_000},
        "event.keep.out_of_range": {"name": "paid", "keep": "500d"},
    }.items():
        with raises_code(code):
            await app.events.send(**given)


async def test_expired_events_and_orphaned_waits_are_deleted(app: Tenuto, worker: WorkerFactory, sql: Sql) -> None:
    @app.job
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_event("paid")

    async with worker():
        task, open_task = await app.enqueue(waits), await app.enqueue(waits)
        await until_waiting(app, 2)
        await app.cancel(task.id)
    await app.events.send("kept", keep="1s")
    await app.events.send("kept", keep="1d")
    database = await app.open()
    later = database.clock.now() + timedelta(seconds=2)
    assert await external_events.delete_expired_events(database, later, 10) == 1
    assert await external_events.delete_orphaned_waits(database, later, 10) == 1
    assert [each.task_id for each in await app.events.waits()] == [open_task.id]
    await sql("UPDATE tenuto.sent_events SET expires_at = now() - interval '1 s'")
    async with worker():
        await app.cancel(open_task.id)
        second = await app.enqueue(app.job(wait_for_kept))
        await until_waiting(app)  # the expired event is not received
        await app.cancel(second.id)


async def wait_for_kept(ctx: Context) -> Any:
    return await ctx.wait_for_event("kept")
