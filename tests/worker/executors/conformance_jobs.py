"""Jobs of the conformance tests: at the top of a module, so that any process can import them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from tenuto import Context, PermanentFailure, RetryLater, RetryPolicy, Tenuto

app = Tenuto("postgresql://nobody@nowhere.invalid/none", home="/tmp/tenuto-never-made")
_at_once = RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)


@app.job
async def double(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


@app.job
def double_in_thread(n: int) -> int:
    return 2 * n


@app.job
async def return_nothing() -> None:
    """Return nothing."""


@app.job
def describe_attempt(ctx: Context) -> dict[str, Any]:
    return {"key": ctx.idempotency_key, "attempt": ctx.attempt, "fence": ctx.fence, "by": ctx.initiator.name}


@app.job
async def fail() -> None:
    raise ValueError("no flour")


@app.job
def fail_for_good() -> None:
    raise PermanentFailure("no oven")


@app.job
def fail_until_later() -> None:
    raise RetryLater("no heat yet", after=90)


@app.job
def exit_process() -> None:
    raise SystemExit(3)


@app.job(retry=_at_once)
async def fail_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@app.job
def record_warning(ctx: Context) -> int:
    ctx.warn("low on flour")
    return 7


@app.job
async def record_error(ctx: Context) -> int:
    ctx.error("one loaf is burnt")
    return 7


@app.job
def return_unstorable() -> object:
    return object()


@app.job
async def report_progress(flag: Path, ctx: Context) -> None:
    """Report progress, then wait for the flag."""
    ctx.log.info("kneading")
    ctx.progress(3, 10, "kneading")
    while not flag.exists():  # noqa: ASYNC110 — created by another process
        await asyncio.sleep(0.01)


def _tick(file: Path, number: int) -> None:
    with file.open("a", encoding="ascii") as ticks:
        ticks.write(f"{os.getpid()} {number}\n")


@app.job
async def repeat(text: str, count: int) -> str:
    return text * count


@app.job(retry=_at_once)
async def tick(file: Path) -> None:
    """Run until stopped, and write a line for every iteration."""
    number = 0
    while True:
        _tick(file, number := number + 1)
        await asyncio.sleep(0.005)


@app.job(retry=_at_once)
def tick_in_thread(file: Path) -> None:
    number = 0
    while True:
        _tick(file, number := number + 1)
        time.sleep(0.005)


@app.job(retry=_at_once)
def block(file: Path) -> None:
    """Block the thread where no exception interrupts it."""
    _tick(file, 0)
    time.sleep(600)


@app.job(retry=_at_once)
def wait_for_others(folder: Path, name: str, count: int) -> None:
    """Return when this many attempts run at the same time."""
    (folder / name).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.005)


@app.job(retry=_at_once, limit=2)
def count_concurrent_runs(folder: Path, name: str) -> int:
    """Return how many attempts run at the same time, this one included; the first waits for a second."""
    mine = folder / name
    mine.touch()
    most = checks = 0
    while checks < 20 or (name == "0" and most < 2):
        most = max(most, len(list(folder.iterdir())))
        checks += 1
        time.sleep(0.005)
    mine.unlink()
    return most


async def _first(n: int) -> int:
    return n + 1


def _second(n: int, ctx: Context) -> str:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return f"{n}"


chained = app.chain("chained", _first, _second, retry=_at_once)


@app.job(max_attempts=1)
async def wait_for_greeting(ctx: Context) -> str:
    return str(await ctx.wait_for_event("greeting", key="a"))


def _triple(n: int) -> int:
    return 3 * n


async def _add(ctx: Context, first: int, second: int) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return first + second


@app.workflow(retry=_at_once)
async def flow(ctx: Context, n: int) -> int:
    first, second = await ctx.gather(ctx.step(_first, n), ctx.step(_triple, n))
    await ctx.sleep("0.01s")
    return await ctx.step(_add, first, second)


@app.workflow(max_attempts=1)
async def parent(ctx: Context, n: int) -> int:
    return await ctx.run(double, n)
