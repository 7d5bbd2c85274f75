"""The server is killed while a workflow runs a step, waits for an event and a child, and while a backfill runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import date
from pathlib import Path

import asyncpg

from tenuto import Context, Step, Tenuto, cron
from tests.support.repetition_counts import times
from tests.support.replication import Cluster, Server
from tests.support.waiting import eventually

DAYS = 12
CRASHES = times(2, in_a_proof=6)


async def start_again(server: Server) -> None:
    """Start a killed server. It does not start while a process of the killed one still uses its shared memory."""

    async def is_answering() -> bool:
        if server.process is None or server.process.poll() is not None:
            server.start()
        with suppress(OSError, asyncpg.PostgresError):
            return await server.value("SELECT pg_is_in_recovery()", "postgres") is False
        return False

    await eventually(is_answering, timeout=30, what="the killed server answers again")


async def test_workflow_wait_and_backfill_continue_after_the_server_was_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    primary, _ = await cluster.start(standby=False)
    calls: Counter[str] = Counter()
    released = asyncio.Event()
    app = Tenuto(primary.url, home=tmp_path / "home")

    async def mark(name: str) -> str:
        calls[name] += 1
        return name

    async def hold() -> str:
        calls["hold"] += 1
        await released.wait()
        return "hold"

    @app.job
    async def pack() -> str:
        return await mark("pack")

    async def wait_for_order(ctx: Context) -> str:
        await ctx.step.using(name="before")(mark, "before")
        order = await ctx.wait_for_event("ordered", key="7")
        return await ctx.step.using(name="after")(mark, f"after {order}")

    @app.workflow
    async def ship(ctx: Context) -> list[str]:
        return list(await ctx.gather(wait_for_order(ctx), ctx.run(pack), ctx.step(hold)))

    @app.job
    async def load(ctx: Context) -> None:
        calls[f"load {ctx.scheduled_for:%d}"] += 1
        await asyncio.sleep(0.05)

    async def has_progress(count: int) -> bool:
        return sum(calls[f"load {day:02}"] for day in range(1, DAYS + 1)) >= count

    async with app:
        app.schedule("daily", cron("0 2 * * *"), [Step.job(load)])
        await app.schedules.deploy()
        async with app.worker(slots=4, poll_seconds=0.5), app.scheduler():
            task = await app.enqueue(ship)
            started = await app.schedules.backfill("daily", date(2025, 3, 1), date(2025, 3, DAYS), parallel=2)
            await eventually(lambda: calls["hold"] == calls["before"] == 1, timeout=30)
            for number in range(CRASHES):
                await eventually(lambda number=number: has_progress(3 * number + 2), timeout=60)  # type: ignore[misc]
                await asyncio.to_thread(primary.kill)
                released.set()  # the step ends while there is no server that stores its result
                await start_again(primary)
            await app.events.send("ordered", payload="book", key="7")
            record = await app.wait(task, timeout=60)
            ended = await app.bulk_operations.wait(started.id, timeout=60)
    assert (record.state, record.output) == ("completed", ["after book", "pack", "hold"])
    assert (ended.succeeded_count, ended.failed_count) == (DAYS, 0)
    days = {f"load {day:02}" for day in range(1, DAYS + 1)}
    assert calls == {**dict.fromkeys(days, 1), "before": 1, "hold": 1, "pack": 1, "after book": 1}
