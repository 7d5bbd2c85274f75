"""Workflows on a worker: branches, loops and parallel steps continue after the last stored result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from tenuto import Context, EventTimeout, RetryPolicy, StepFailed, Tenuto
from tenuto.testing import TimeMachine
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

IMMEDIATE_RETRIES = RetryPolicy(max_attempts=4, base_seconds=0, jitter=0)
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


class Order(BaseModel):
    number: int
    lines: list[str]


@pytest.fixture
def calls() -> Counter[str]:
    """How often each function was called."""
    return Counter()


@pytest.fixture
def fails(calls: Counter[str]) -> Callable[[str, int], None]:
    """Fail the first calls of a function."""

    def fail(name: str, count: int = 1) -> None:
        calls[name] += 1
        if calls[name] <= count:
            raise ConnectionError(f"{name} is not ready")

    return fail


async def list_rows(sql: Sql) -> list[str]:
    return sorted(row["name"] for row in await sql("SELECT name FROM tenuto.chain_steps"))


async def is_parked(app: Tenuto, task: UUID) -> bool:
    return (await app.task(task)).state == "scheduled"


# --- steps, branches and loops ----------------------------------------------------------------------------------------


async def test_workflow_with_branches_and_loops_continues_after_its_last_stored_step(
    app: Tenuto, worker: WorkerFactory, calls: Counter[str], fails: Any, sql: Sql
) -> None:
    async def look_up(number: int) -> Order:
        calls["look_up"] += 1
        return Order(number=number, lines=["a", "b", "c"])

    def pack(ctx: Context, line: str, *, box: str) -> str:
        fails("pack", 2 if line == "b" else 0)
        return f"{line}{ctx.attempt} in {box}"

    async def is_gift(order: Order) -> bool:
        return order.number > 5

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def ship(ctx: Context, number: int) -> list[str]:
        order = await ctx.step(look_up, number)
        packed = [await ctx.step(pack, line, box="box") for line in order.lines]
        if await ctx.step(is_gift, order):
            packed.append(await ctx.step.using(name="wrap")(pack, "paper", box="gift"))
        return packed

    async with worker():
        task = await ship.enqueue(7)
        record = await app.wait(task, timeout=20)
        other = await app.wait(await ship.enqueue(1), timeout=20)

    assert record.output == ["a1 in box", "b2 in box", "c2 in box", "paper2 in gift"]
    assert other.output == ["a1 in box", "b1 in box", "c1 in box"]
    assert record.attempt == 2
    failed = (await app.attempts(task.id))[0]
    assert (failed.error["type"], failed.error["step"]) == ("ConnectionError", "pack")
    assert calls["look_up"] == 2, "once in each task"
    steps = await app.chain_steps(task.id)
    assert [(each.name, each.output) for each in steps][1:] == [
        ("2 pack", "a1 in box"), ("3 pack", "b2 in box"), ("4 pack", "c2 in box"), ("5 is_gift", True),
        ("6 wrap", "paper2 in gift"),
    ]  # fmt: skip


async def test_failed_step_is_raised_again_in_later_attempts_once_the_workflow_has_handled_it(
    app: Tenuto, worker: WorkerFactory, calls: Counter[str], fails: Any
) -> None:
    async def charge(number: int) -> None:
        calls["charge"] += 1
        raise ValueError("no funds")

    async def refund() -> str:
        calls["refund"] += 1
        return "refunded"

    async def notify(text: str) -> None:
        fails("notify")

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def pay(ctx: Context, number: int, ends: bool) -> str:
        try:
            await ctx.step(charge, number)
        except StepFailed as failed:
            (text,) = await ctx.gather(ctx.step(refund))
            await ctx.gather(ctx.step(notify, failed.text))
            if ends:
                raise
            return f"{text}: {failed.error_type}: {failed.text}"
        return "paid"

    async with worker():
        record = await app.wait(await pay.enqueue(1, ends=False), timeout=20)
        assert (record.output, record.attempt) == ("refunded: ValueError: no funds", 2)
        assert calls == {"charge": 1, "refund": 1, "notify": 2}
        failed = await app.wait(await pay.enqueue(1, ends=True), timeout=20)
        assert (failed.state, failed.attempt) == ("failed", 1), "a retry would raise the stored failure again"
        assert failed.error["type"] == "tenuto.StepFailed"
        assert calls == {"charge": 2, "refund": 2, "notify": 3}
        await app.wait(await app.tasks.retry(failed.task_id), timeout=20)
    assert calls == {"charge": 3, "refund": 3, "notify": 4}, "an operator's retry runs the failed step again"


async def test_step_is_retried_within_its_attempt(app: Tenuto, worker: WorkerFactory, fails: Any) -> None:
    def flaky() -> int:
        fails("flaky", 3)
        return 7

    @app.workflow(max_attempts=1)
    async def patient(ctx: Context) -> int:
        return await ctx.step.using(retry=IMMEDIATE_RETRIES)(flaky)

    async with worker():
        record = await app.wait(await patient.enqueue(), timeout=20)
    assert (record.output, record.attempt) == (7, 1)
    assert "step 1 flaky failed and is retried" in (record.log or "")


async def test_values_made_once_stay_the_same(app: Tenuto, worker: WorkerFactory, fails: Any) -> None:
    seen: list[tuple[datetime, float, UUID]] = []

    async def flaky() -> None:
        fails("flaky", 2)

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def dated(ctx: Context) -> None:
        seen.append((await ctx.now(), await ctx.random(), await ctx.uuid()))
        await ctx.step(flaky)

    async with worker():
        await app.wait(await dated.enqueue(), timeout=20)
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_warnings_of_stored_steps_are_reported_once(app: Tenuto, worker: WorkerFactory, fails: Any) -> None:
    async def warns(ctx: Context, text: str) -> None:
        ctx.warn(text)

    async def flaky() -> None:
        fails("flaky")

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def odd(ctx: Context) -> None:
        await ctx.gather(ctx.step(warns, "one"), ctx.step(warns, "two"))
        await ctx.step(flaky)

    async with worker():
        record = await app.wait(await odd.enqueue(), timeout=20)
    assert (record.state, record.error["message"]) == ("completed_with_warning", "one; two")


# --- parallel branches ------------------------------------------------------------------------------------------------


async def test_parallel_branches_keep_their_keys_whatever_order_they_end_in(
    app: Tenuto, worker: WorkerFactory, calls: Counter[str], fails: Any, sql: Sql
) -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def begin(number: int) -> int:
        calls[f"begin {number}"] += 1
        if number:  # the later branches end first
            gates[number].set()
            await gates[number - 1].wait()
        return number

    async def end(number: int) -> str:
        fails(f"end {number}", 1 if number == 1 else 0)
        return f"ended {number}"

    async def branch(ctx: Context, number: int) -> str:
        begun = await ctx.step(begin, number)
        gates[begun].set()
        return await ctx.step(end, begun)

    @app.workflow(retry=IMMEDIATE_RETRIES)
    async def fan_out(ctx: Context) -> Any:
        first = await ctx.gather(*(branch(ctx, number) for number in range(3)))
        nested = await ctx.gather(ctx.gather(ctx.step(begin, 0), ctx.step(begin, 0)), ctx.step(end, 9))
        return first, nested

    async with worker():
        record = await app.wait(await fan_out.enqueue(), timeout=20)
    assert record.output == [["ended 0", "ended 1", "ended 2"], [[0, 0], "ended 9"]]
    assert calls == {
        "begin 0": 3, "begin 1": 1, "begin 2": 1, "end 0": 1, "end 1": 2, "end 2": 1, "end 9": 1,
    }  # fmt: skip
    assert await list_rows(sql) == [
        "1.1.1 begin", "1.1.2 end", "1.2.1 begin", "1.2.2 end", "1.3.1 begin", "1.3.2 end",
        "2.1.1.1.1 begin", "2.1.1.2.1 begin", "2.2.1 end",
    ]  # fmt: skip


async def test_failed_branch_lets_the_others_end(app: Tenuto, worker: WorkerFactory, calls: Counter[str]) -> None:
    failed = asyncio.Event()

    async def fails() -> None:
        calls["fails"] += 1
        failed.set()
        raise ValueError("broken")

    async def works(number: int) -> int:
        await failed.wait()
        calls["works"] += 1
        return number

    async def branch(ctx: Context) -> int:
        return await ctx.step(works, 1) + await ctx.step(works, 2)

    @app.workflow(max_attempts=1)
    async def either(ctx: Context, caught: bool) -> Any:
        if caught:
            found = await ctx.gather(ctx.step(fails), branch(ctx), return_exceptions=True)
            return await ctx.step(works, 3), str(found[0]), found[1]
        return await ctx.gather(ctx.step(fails), branch(ctx))

    async with worker():
        caught = await app.wait(await either.enqueue(True), timeout=20)
        raised = await app.wait(await either.enqueue(False), timeout=20)
    assert caught.output == [3, "step fails failed: ValueError: broken", 3]
    assert (raised.state, raised.error["type"], raised.error["step"]) == ("failed", "ValueError", "fails")
    assert calls == {"fails": 2, "works": 5}


async def test_branches_sleep_and_wait_without_a_slot(app: Tenuto, calls: Counter[str]) -> None:
    async def note(what: str) -> str:
        calls[what] += 1
        return what

    async def broken() -> None:
        calls["broken"] += 1
        if calls["broken"] < 3:
            raise ConnectionError("not ready")

    async def sleeper(ctx: Context, days: int) -> str:
        for _ in range(2):
            await ctx.sleep(f"{days}d")
            await ctx.step(note, f"slept {days}")
        return f"{days} days"

    async def waiter(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("paid", int, key="7", timeout="10d")
        except EventTimeout:
            return "timeout"

    @app.workflow(retry=RetryPolicy(max_attempts=5, base_seconds=60, jitter=0))
    async def slow(ctx: Context) -> Any:
        ctx.log.info("called")
        return await ctx.gather(sleeper(ctx, 3), sleeper(ctx, 5), waiter(ctx), ctx.step(broken))

    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        task = await slow.enqueue()
        await time.run_until_idle()
        assert calls == {"broken": 1}, "the failure waits for the other branches"
        for _ in range(2):
            await time.advance(days=4)
        assert calls == {"slept 3": 2, "slept 5": 1, "broken": 1}
        await time.send_event("paid", 120, key="7")
        await time.advance(days=30)
        record = await app.wait(task, timeout=1)
    assert record.output == ["3 days", "5 days", 120, None]
    assert calls == {"slept 3": 2, "slept 5": 2, "broken": 3}, "and then is retried"
    assert record.attempt == 3
    first = (await app.attempts(task.id))[0]
    assert first.error["message"].endswith("not ready")


async def test_durable_call_outside_of_a_branch_is_refused(app: Tenuto, worker: WorkerFactory) -> None:
    async def one() -> int:
        return 1

    @app.workflow(max_attempts=1)
    async def spawns(ctx: Context) -> Any:
        return await asyncio.gather(ctx.step(one), ctx.step(one))

    async def nested(ctx: Context) -> int:
        return await ctx.step(one)

    @app.workflow(max_attempts=1)
    async def nests(ctx: Context) -> int:
        return await ctx.step(nested)

    @app.job(max_attempts=1)
    async def plain(ctx: Context) -> int:
        return await ctx.step(one)

    async with worker():
        for job, text in (
            (spawns, "an asyncio task that is no branch"),
            (nests, "makes a durable call itself"),
            (plain, "only a workflow has durable steps"),
        ):
            record = await app.wait(await app.enqueue(job), timeout=20)
            assert record.state == "failed"
            assert text in record.error["message"]


async def test_workflow_that_gave_up_its_slot_makes_no_call_in_its_clean_up(
    app: Tenuto, worker: WorkerFactory, calls: Counter[str]
) -> None:
    async def clean_up() -> None:
        calls["clean_up"] += 1

    @app.workflow(max_attempts=1)
    async def tidy(ctx: Context) -> int:
        try:
            return await ctx.wait_for_event("go", int)
        finally:
            await ctx.step(clean_up)

    async with worker():
        task = await tidy.enqueue()
        await eventually(lambda: is_parked(app, task.id))
        assert not calls
        await app.events.send("go", 1)
        assert (await app.wait(task, timeout=20)).output == 1
    assert calls == {"clean_up": 1}


def test_function_that_is_no_workflow_is_refused(app: Tenuto) -> None:
    def plain(ctx: Context) -> None: ...

    async def without_context() -> None: ...

    with raises_code("workflow.function.not_async"):
        app.workflow(plain)
    with raises_code("workflow.context.missing"):
        app.workflow(without_context)
    with raises_code("workflow.option.unknown"):
        app.workflow(isolated=True)  # type: ignore[call-overload]
