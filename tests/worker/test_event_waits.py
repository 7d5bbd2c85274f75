"""Waits for events (J10) on a worker: no slot is held, what was received survives retries and crashes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Context, RetryPolicy, Tenuto
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
