"""Workflows, chains, waits, rate limits, expiry, data between steps, approvals and backfills of the application under
test.

Each durable step returns a mark, and writes it to the ledger of steps when it ends. The output of a task consists of
the marks, so that the audit knows which run of each step was recorded.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tenuto import Context, RetryPolicy, Step, every
from tests.chaos.jobs import INTERVALS, app, item, step
from tests.races.jobs import LEDGER, effect

DURABLE = "durable"
"""Group of effects of tasks that give up their slot and continue under another claim."""
PAID, ANNOUNCED = "paid", "announced"
"""Names of events from outside."""
METER, METER_COUNT = "meter", 20
"""Rate key for at most twenty starts in a second."""
EXPIRES_SECONDS = 0.5
MANY = 5
"""Count from which the conditional step of the schedule with data runs."""
DATA, GATED, HISTORY = "data", "gated", "history"
"""Schedules with data between steps, with an approval, and with a backfill."""
HISTORY_SECONDS = 3600
APPROVER = "ana"
DURABLE_JOBS = ("deliver_order", "voyage", "listen")

_retry_patiently = RetryPolicy(max_attempts=1000, base_seconds=0.1, cap_seconds=0.5)


def step_ledger_path(ledger: Path) -> Path:
    """Return the path of the ledger of steps beside the ledger of effects."""
    return ledger.with_name("steps")


@contextmanager
def _recorded(ctx: Context, name: str, mark: str) -> Iterator[None]:
    """Record the run of a durable step. Each line is one short write, so that lines of processes never mix."""
    descriptor = os.open(step_ledger_path(Path(os.environ[LEDGER])), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for what in ("begins", "ends"):
            line = f"{ctx.task_id} {ctx.fence} {name} {mark} {what} {time.monotonic_ns()}\n"
            os.write(descriptor, line.encode())
            if what == "begins":
                yield
    finally:
        os.close(descriptor)


async def run_step(ctx: Context, name: str) -> str:
    """Return a new mark."""
    mark = str(uuid4())
    with _recorded(ctx, name, mark):
        await asyncio.sleep(0.01)
    return f"{name} {mark}"


# --- workflow, chain, wait ----------------------------------------------------------------------------------------


async def _branch(ctx: Context, name: str) -> str:
    await ctx.sleep("0.3s")
    return await ctx.step.using(name=name)(run_step, name=name)


@app.workflow(retry=_retry_patiently)
async def deliver_order(ctx: Context, key: str) -> list[str]:
    """A workflow with a loop, parallel branches that sleep, an event and a child task."""
    with effect(ctx, DURABLE):
        marks = []
        for number in range(3):
            marks.append(await ctx.step.using(name=f"round-{number}")(run_step, name=f"round-{number}"))
        marks += await ctx.gather(_branch(ctx, "left"), _branch(ctx, "right"))
        paid = await ctx.wait_for_event(PAID, str, key=key, timeout="1h")
        child = await ctx.run(app.jobs.get_job(item.name), 7)
        marks.append(await ctx.step.using(name="last")(run_step, name="last"))
        return [*marks, f"event {paid}", f"child {child}"]


@dataclass
class Departed:
    marks: list[str]


@dataclass
class Rested:
    marks: list[str]


async def depart(ctx: Context, key: str) -> Departed:
    with effect(ctx, f"{DURABLE}-depart"):
        return Departed([await run_step(ctx, "depart")])


async def rest(ctx: Context, departed: Departed) -> Rested:
    await ctx.sleep("0.5s")
    with effect(ctx, f"{DURABLE}-rest"):
        return Rested([*departed.marks, await run_step(ctx, "rest")])


async def arrive(ctx: Context, rested: Rested) -> list[str]:
    with effect(ctx, f"{DURABLE}-arrive"):
        return [*rested.marks, await run_step(ctx, "arrive")]


voyage = app.chain("voyage", depart, rest, arrive, retry=_retry_patiently)


@app.job(retry=_retry_patiently)
async def listen(key: str, ctx: Context) -> list[str]:
    """Wait for an event from outside."""
    with effect(ctx, DURABLE):
        return [f"event {await ctx.wait_for_event(ANNOUNCED, str, key=key, timeout='1h')}"]


# --- rate limit and expiry ----------------------------------------------------------------------------------------


@app.job(retry=_retry_patiently, rate_limit=f"{METER_COUNT}/s", rate_key=METER)
async def metered(number: int, ctx: Context) -> int:
    with effect(ctx, METER):
        return number


@app.job(retry=_retry_patiently, expires_in=EXPIRES_SECONDS)
async def hurried(number: int, ctx: Context) -> int:
    with effect(ctx, "hurried"):
        return number


# --- schedules ----------------------------------------------------------------------------------------------------


@dataclass
class Extracted:
    mark: str
    count: int


@app.job(retry=_retry_patiently)
async def extract(ctx: Context) -> Extracted:
    with effect(ctx, "extract"):
        return Extracted(str(uuid4()), uuid4().int % (2 * MANY))


@app.job(retry=_retry_patiently)
async def load(source: str, ctx: Context) -> str:
    with effect(ctx, "load"):
        return source


_extracted = Step.job(extract, name="extract")
_loaded = Step.job(load, name="load", source=_extracted.output["mark"])
app.schedule(
    DATA,
    every("2s"),
    [
        _extracted,
        [
            _loaded,
            Step.job(step, name="many", when=_extracted.output["count"] >= MANY),
            Step.job(step, name="slow", input={"seconds": 0.5}),
        ],
        Step.job(load, name="after", source=_loaded.output, needs=[_loaded]),
    ],
)
app.schedule(
    GATED,
    every("3s"),
    [
        Step.approval("Go on?", name="gate", approvers=[APPROVER], deadline="1h"),
        Step.job(step, name="behind"),
    ],
)
app.schedule(HISTORY, every(f"{HISTORY_SECONDS}s"), [Step.job(step, name="then")])
INTERVALS[DATA], INTERVALS[GATED] = 2, 3
TRIGGERS = {**INTERVALS, HISTORY: HISTORY_SECONDS}
"""Every schedule with its interval in seconds, also the one that seldom is due."""
