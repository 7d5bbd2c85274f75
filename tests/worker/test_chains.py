"""Chains (J10) on a worker: step results are stored, retries continue after the last one, sleep holds no slot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import Context, RetryPolicy, Step, Tenuto, manual, stop
from tenuto.clock import DatabaseClock
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.store.work.activities import ActivityDetails
from tenuto.testing import TimeMachine
from tenuto.worker.watchdog import WorkerTiming
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

IMMEDIATE_RETRIES = RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def calls() -> list[str]:
    """Which steps ran, in order."""
    return []


async def list_checkpoint_names(sql: Sql) -> list[str]:
    return [row["name"] for row in await sql("SELECT name FROM tenuto.chain_steps ORDER BY ended_at, name")]


async def end_all_sleeps(sql: Sql) -> None:
    """Set the end of every sleep to the past."""
    later = "'2020-01-01T00:00:00+00:00'"
    await sql(f"UPDATE tenuto.tasks SET run_at = {later}")
    await sql(
        f"UPDATE tenuto.chain_steps SET output = jsonb_set(output, '{{until}}', to_jsonb({later}::text))"
        " WHERE name LIKE 'sleep%'"
    )


# --- stored steps ------------------------------------------------------------------------------------------------


async def test_retried_chain_continues_after_the_last_finished_step(
    app: Tenuto, worker: WorkerFactory, calls: list[str], sql: Sql
) -> None:
    async def first(number: int) -> list[int]:
        calls.append("first")
        return [number]

    def second(numbers: list[int], number: int) -> str:
        calls.append("second")
        if calls.count("second") == 1:
            raise ConnectionError("not yet")
        return f"{numbers} of {number}"

    def third(text: str) -> str:
        calls.append("third")
        return text.upper()

    job = app.chain("abc", first, second, third, retry=IMMEDIATE_RETRIES)
    async with worker():
        task = await app.enqueue(job, 7)
        record = await app.wait(task, timeout=10)

    assert (record.state, record.output, record.attempt) == ("completed", "[7] OF 7", 2)
    assert calls == ["first", "second", "second", "third"]
    failed = (await app.attempts(task.id))[0]
    assert failed.error["step"] == "second"
    assert failed.error["type"] == "ConnectionError"
    assert failed.progress == {"done": 1, "total": 3, "message": "second"}
    assert record.progress == {"done": 3, "total": 3, "message": "done"}
    assert await list_checkpoint_names(sql) == ["1 first", "2 second", "3 third"]
    steps = await app.chain_steps(task.id)
    assert [(step.name, step.output, step.stopped) for step in steps] == [
        ("1 first", [7], False),
        ("2 second", "[7] of 7", False),
        ("3 third", "[7] OF 7", False),
    ]


async def test_chain_stop_is_stored_like_a_result(
    app: Tenuto, worker: WorkerFactory, calls: list[str], sql: Sql
) -> None:
    async def first(number: int) -> int:
        calls.append("first")
        return stop({"number": number}) if number else 1

    async def second(number: int) -> None:
        calls.append("second")

    job = app.chain("stops", first, second)
    async with worker():
        record = await app.wait(await app.enqueue(job, 7), timeout=10)

    assert (record.state, record.output) == ("completed", {"number": 7})
    assert record.progress == {"done": 1, "total": 2, "message": "stopped by first"}
    assert calls == ["first"]
    stored = await sql("SELECT output::text FROM tenuto.chain_steps")
    assert stored == [{"output": '{"stop": {"number": 7}}'}]


async def test_chain_warnings_survive_a_retry(app: Tenuto, worker: WorkerFactory) -> None:
    async def warns(number: int, ctx: Context) -> int:
        ctx.warn("a little odd")
        return number

    async def fails_once(number: int, ctx: Context) -> int:
        if ctx.attempt == 1:
            ctx.error("never seen again")
            raise ConnectionError("not yet")
        return number

    job = app.chain("warns", warns, fails_once, retry=IMMEDIATE_RETRIES)
    async with worker():
        record = await app.wait(await app.enqueue(job, 1), timeout=10)

    assert (record.state, record.error["message"]) == ("completed_with_warning", "a little odd")


async def test_chain_step_with_unstorable_result_fails_without_retry(
    app: Tenuto, worker: WorkerFactory, calls: list[str]
) -> None:
    def too_much() -> str:
        calls.append("too_much")
        return "x" * 1_100_000

    job = app.chain("large", too_much, retry=IMMEDIATE_RETRIES)
    async with worker():
        record = await app.wait(await app.enqueue(job), timeout=10)

    assert (record.state, record.attempt, record.error["step"]) == ("failed", 1, "too_much")
    assert "larger than 1,048,576 bytes" in record.error["message"]
    assert calls == ["too_much"]


async def test_chain_names_a_step_result_of_the_wrong_type(app: Tenuto, worker: WorkerFactory, sql: Sql) -> None:
    async def first() -> int:
        return 1

    async def second(number: int, ctx: Context) -> int:
        await ctx.sleep("30d")
        return number

    job = app.chain("changed", first, second, max_attempts=1)
    async with worker(slots=1):
        task = await app.enqueue(job)
        await eventually(lambda: sql("SELECT 1 FROM tenuto.tasks WHERE state = 'scheduled'"))
    await sql("""UPDATE tenuto.chain_steps SET output = '{"value": "one"}' WHERE name = '1 first'""")
    await sql("UPDATE tenuto.tasks SET run_at = now()")
    async with worker(slots=1):
        record = await app.wait(task, timeout=10)

    assert (record.state, record.error["step"]) == ("failed", "first")
    assert "the stored result of step first does not fit its return type int" in record.error["message"]


async def test_plain_chain_steps_use_one_thread_per_slot(app: Tenuto, worker: WorkerFactory) -> None:
    together = threading.Barrier(20)

    def meet() -> None:
        together.wait(timeout=10)

    job = app.chain("meet", meet, max_attempts=1)
    async with worker(slots=20):
        tasks = [await app.enqueue(job) for _ in range(20)]
        assert {(await app.wait(task, timeout=20)).state for task in tasks} == {"completed"}


# --- stopping -------------------------------------------------------------------------------------------------------


async def test_cancelled_plain_chain_step_keeps_its_slot_until_it_stops(
    app: Tenuto, worker: WorkerFactory, calls: list[str]
) -> None:
    go_on = threading.Event()

    def stubborn(ctx: Context) -> None:
        calls.append("began")
        while not go_on.is_set():
            try:
                ctx.wait(0.01)
                time.sleep(0.001)
            except BaseException as pressed:
                calls.append(type(pressed).__name__)
        ctx.raise_if_cancelled()

    @app.job
    async def other() -> str:
        return "other"

    job = app.chain("stubborn", stubborn)
    async with worker(slots=1, timing=WorkerTiming(stop_repeat_seconds=0.1)):
        task = await app.enqueue(job)
        await eventually(lambda: calls)
        behind = await app.enqueue(other)
        assert await app.cancel(task.id) == "stopping"
        try:
            await eventually(lambda: calls.count("Stopped") >= 3)  # the worker repeats the stop
            assert (await app.task(task.id)).state == "running"
            assert (await app.task(behind.id)).state == "queued"
        finally:
            go_on.set()
        record = await app.wait(task, timeout=10)
        assert (record.state, record.error["step"]) == ("cancelled", "stubborn")
        assert (await app.wait(behind, timeout=10)).output == "other"


async def test_chain_step_that_completes_despite_cancellation_is_stored(
    app: Tenuto, worker: WorkerFactory, calls: list[str], sql: Sql
) -> None:
    going = asyncio.Event()

    async def unmoved() -> int:
        going.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            calls.append("cancelled")
        return 5

    async def never(number: int) -> None:
        calls.append("never")

    job = app.chain("unmoved", unmoved, never)
    async with worker():
        task = await app.enqueue(job)
        await eventually(going.is_set)
        await app.cancel(task.id)
        record = await app.wait(task, timeout=10)

    assert record.state == "cancelled"
    assert calls == ["cancelled"]
    assert await list_checkpoint_names(sql) == ["1 unmoved"]


@pytest.mark.slow
async def test_chain_timeout_names_its_step(app: Tenuto, worker: WorkerFactory) -> None:
    async def quick() -> int:
        return 1

    async def slow(number: int) -> int:
        await asyncio.sleep(60)
        return number

    job = app.chain("slow", quick, slow, timeout=3.0, max_attempts=1)  # the quick step is stored well within it
    async with worker():
        record = await app.wait(await app.enqueue(job), timeout=20)
    assert (record.reason, record.error["step"]) == ("timed_out", "slow")


# --- sleeping -------------------------------------------------------------------------------------------------------


async def test_sleeping_chain_holds_no_slot(app: Tenuto, worker: WorkerFactory, calls: list[str], sql: Sql) -> None:
    async def first() -> int:
        calls.append("first")
        return 1

    async def sleeps(number: int, ctx: Context) -> int:
        calls.append("before")
        await ctx.sleep("30d")
        calls.append("after")
        return number + 1

    @app.job
    async def other() -> None:
        calls.append("other")

    job = app.chain("sleeps", first, sleeps)
    async with worker(slots=1):
        task = await app.enqueue(job)
        await eventually(lambda: "before" in calls)
        await app.wait(await app.enqueue(other), timeout=10)
        asleep = await app.task(task.id)
    await end_all_sleeps(sql)
    async with worker(slots=1):
        record = await app.wait(task, timeout=10)

    assert calls == ["first", "before", "other", "before", "after"]
    assert (asleep.state, asleep.progress["message"]) == ("scheduled", "sleeps")
    assert (record.state, record.output, record.attempt) == ("completed", 2, 1)


async def test_each_sleep_of_a_chain_step_passes_once(app: Tenuto, worker: WorkerFactory, calls: list[str]) -> None:
    async def sleeps(ctx: Context) -> int:
        for number in range(4):
            await ctx.sleep(0.5 if number else 0)
            calls.append(f"{number}")
        return 1

    job = app.chain("naps", sleeps)
    async with worker(slots=1):
        begun = time.monotonic()
        task = await app.enqueue(job)
        await app.wait(task, timeout=20)
        # More than one: the clock that counts them is behind by the time of a reply of the database.
        assert time.monotonic() - begun >= 0.6
        steps = await app.chain_steps(task.id)

    assert calls == ["0", "0", "1", "0", "1", "2", "0", "1", "2", "3"]
    assert [step.name for step in steps] == ["sleep in 1 sleeps", "1 sleeps"]  # one row, however often it slept
    assert steps[0].sleep_ends_at is not None


async def test_woken_chain_does_not_sleep_again_when_its_clock_is_behind(
    app: Tenuto, worker: WorkerFactory, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_time = DatabaseClock.now

    async def sleeps(ctx: Context) -> None:
        calls.append("called")
        if calls.count("called") == 2:  # a heartbeat has just been answered late
            monkeypatch.setattr(DatabaseClock, "now", lambda clock: on_time(clock) - timedelta(seconds=1))
        await ctx.sleep(0.1)
        calls.append("awake")

    job = app.chain("behind", sleeps)
    async with worker(slots=1):
        await app.wait(await app.enqueue(job), timeout=10)

    assert calls == ["called", "called", "awake"]


async def test_retried_chain_does_not_sleep_again(app: Tenuto, worker: WorkerFactory, calls: list[str]) -> None:
    async def sleeps(ctx: Context) -> None:
        calls.append(f"before {ctx.attempt}")
        await ctx.sleep(0.2)
        calls.append(f"after {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("not yet")

    job = app.chain("again", sleeps, retry=IMMEDIATE_RETRIES)
    async with worker(slots=1):
        record = await app.wait(await app.enqueue(job), timeout=10)

    assert record.attempt == 2
    assert calls == ["before 1", "before 1", "after 1", "before 2", "after 2"]


async def test_chain_sleep_survives_the_worker(app: Tenuto, worker: WorkerFactory, calls: list[str], sql: Sql) -> None:
    async def sleeps(ctx: Context) -> None:
        calls.append("before")
        await ctx.sleep("30d")
        calls.append("after")

    job = app.chain("long", sleeps)
    async with worker(slots=1):
        task = await app.enqueue(job)
        await eventually(lambda: sql("SELECT 1 FROM tenuto.tasks WHERE state = 'scheduled'"))
    asleep = await app.task(task.id)
    assert timedelta(days=29.9) < asleep.run_at - datetime.now(UTC) < timedelta(days=30.1)
    await end_all_sleeps(sql)
    async with worker(slots=1):
        assert (await app.wait(task, timeout=10)).state == "completed"
    assert calls == ["before", "before", "after"]


async def test_job_sleep_keeps_its_log(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=IMMEDIATE_RETRIES)
    async def nap(ctx: Context) -> int:
        print("up")
        await ctx.sleep(0.1)
        print("and away")
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.attempt

    async with worker(slots=1):
        task = await app.enqueue(nap)
        record = await app.wait(task, timeout=10)

    def said(attempt: ActivityDetails) -> list[str]:
        return [" ".join(line.split()[2:]) for line in known(attempt.log).splitlines()]

    assert said((await app.attempts(task.id))[0]) == ["up", "up", "and away"]
    assert said(record) == ["up", "and away"]


async def test_sleeping_task_is_cancelled_at_once(app: Tenuto, worker: WorkerFactory, sql: Sql) -> None:
    async def first() -> int:
        return 1

    async def sleeps(number: int, ctx: Context) -> None:
        await ctx.sleep("30d")

    job = app.chain("long", first, sleeps)
    async with worker(slots=1):
        task = await app.enqueue(job)
        await eventually(lambda: sql("SELECT 1 FROM tenuto.tasks WHERE state = 'scheduled'"))
        assert await app.cancel(task.id) == "cancelled"
        assert (await app.wait(task, timeout=1)).state == "cancelled"


@pytest.mark.slow
async def test_time_limit_does_not_count_sleep(app: Tenuto, worker: WorkerFactory) -> None:
    async def sleeps(ctx: Context) -> int:
        await ctx.sleep(4.5)
        return 1

    job = app.chain("patient", sleeps, timeout=4.0, max_attempts=1)
    async with worker(slots=1):
        assert (await app.wait(await app.enqueue(job), timeout=20)).state == "completed"


async def test_plain_job_cannot_sleep_without_a_slot(app: Tenuto, worker: WorkerFactory) -> None:
    def in_thread(ctx: Context) -> None:
        ctx.sleep("1d")  # type: ignore[unused-awaitable]

    async def too_long(ctx: Context) -> None:
        await ctx.sleep("400d")

    async with worker():
        plain = await app.wait(await app.enqueue(app.chain("plain", in_thread, max_attempts=1)), timeout=10)
        long = await app.wait(await app.enqueue(app.chain("long", too_long, max_attempts=1)), timeout=10)
    assert "only async code can sleep" in plain.error["message"]
    assert "between 0 s and 366 days" in long.error["message"]


# --- where chains are used ------------------------------------------------------------------------------------------


async def test_dead_letter_of_a_chain_is_retried_from_its_failed_step(
    app: Tenuto, worker: WorkerFactory, calls: list[str]
) -> None:
    healthy = False

    async def extract(table: str) -> list[int]:
        calls.append(f"extract {table}")
        return [1, 2]

    async def load(rows: list[int], table: str) -> int:
        calls.append(f"load {table}")
        if not healthy:
            raise ConnectionError("target is away")
        return len(rows)

    job = app.chain("replicate", extract, load, max_attempts=1)
    manifest = app.manifest("users", job, on_demand=True)
    async with worker():
        await app.manifests.deploy()
        batch = await app.bulk_enqueue(manifest, ["users"])
        await batch.wait(10)
        (dead_letter,) = await app.dead_letters.list()
        assert "target is away" in dead_letter.reason
        again = await app.dead_letters.retry(dead_letter.id)
        await app.wait(again, timeout=10)
        healthy = True
        (dead_letter,) = await app.dead_letters.list(state="awaiting_intervention")
        record = await app.wait(await app.dead_letters.retry(dead_letter.id), timeout=10)
        assert (record.state, record.output) == ("completed", 2)
        assert calls == ["extract users", "load users", "load users", "load users"]

        # With another input it is another run.
        healthy = False
        await (await app.bulk_enqueue(manifest, ["groups"])).wait(10)
        healthy = True
        (dead_letter,) = await app.dead_letters.list(state="awaiting_intervention")
        calls.clear()
        await app.wait(await app.dead_letters.retry(dead_letter.id, input={"table": "roles"}), timeout=10)
    assert calls == ["extract roles", "load roles"]


async def test_chain_runs_as_a_step_of_a_schedule(app: Tenuto, worker: WorkerFactory, calls: list[str]) -> None:
    async def first(number: int, ctx: Context) -> str:
        await ctx.sleep(0.1)
        calls.append("first")
        return f"{number}"

    def second(text: str) -> None:
        calls.append(f"second {text}")

    @app.job
    async def last() -> None:
        calls.append("last")

    job = app.chain("pair", first, second)
    app.schedule("Nightly", manual(), [Step.job(job, 5), Step.job(last)])
    async with worker(slots=1):
        await app.schedules.deploy()
        started = await app.schedules.run("Nightly")
        assert started.execution_id is not None
        assert (await app.executions.wait(started.execution_id, timeout=10)).state == "completed"
    assert calls == ["first", "second 5", "last"]


async def test_chain_sleep_follows_the_test_clock(url: str, app: Tenuto, calls: list[str]) -> None:
    async def asks(ctx: Context) -> int:
        calls.append("asked")
        return 1

    async def reminds(number: int, ctx: Context) -> int:
        for _ in range(3):
            await ctx.sleep("7d")
            calls.append("reminded")
        return number

    job = app.chain("reminders", asks, reminds)
    for start in (datetime(2001, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)):
        calls.clear()
        async with TimeMachine(app, start=start) as machine:
            task = await app.enqueue(job)
            await machine.advance(days=20)
            assert (await app.task(task.id)).state == "scheduled"
            await machine.advance(days=2)
            assert (await app.wait(task, timeout=1)).ended_at == start + timedelta(days=21)
        assert calls == ["asked"] + ["reminded"] * 6


async def test_housekeeping_deletes_checkpoints_of_ended_tasks(app: Tenuto, worker: WorkerFactory, sql: Sql) -> None:
    async def first() -> int:
        return 1

    async def second(number: int, ctx: Context) -> None:
        await ctx.sleep("90d")

    ends, stays = app.chain("ends", first), app.chain("stays", first, second)
    async with worker():
        await app.wait(await app.enqueue(ends), timeout=10)
        await app.enqueue(stays)
        await eventually(lambda: sql("SELECT 1 FROM tenuto.tasks WHERE state = 'scheduled'"))
    database = await app.open()
    now = database.clock.now()
    keeping = Housekeeping(database, database.clock, app.settings)

    await keeping.apply_retention(now)
    assert len(await list_checkpoint_names(sql)) == 3
    await keeping.apply_retention(now + timedelta(days=200))
    assert sorted(await list_checkpoint_names(sql)) == ["1 first", "sleep in 2 second"]
