"""The jobs of these tests. Each says in the ledger when its code begins and ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tenuto import Context, Tenuto, stop
from tenuto.jobs.registry import Job
from tenuto.model.policies import RetryPolicy
from tests.races.effect_ledger import Ledger

LEDGER = "TENUTO_TEST_LEDGER"
AnyJob = Job[..., Any]

app = Tenuto("postgresql://nowhere", home="/nowhere")
_at_once = RetryPolicy(max_retries=5, base_seconds=0, jitter=0)
_ledgers: dict[str, Ledger] = {}


def effect(ctx: Context, group: str = "-") -> AbstractContextManager[None]:
    path = os.environ[LEDGER]
    if path not in _ledgers:
        _ledgers[path] = Ledger(Path(path))
    return _ledgers[path].effect(ctx.task_id, ctx.attempt, ctx.fence, group)


async def _until(flag: Path) -> None:
    while not flag.exists():  # noqa: ASYNC110 — told by another process
        await asyncio.sleep(0.01)


@app.job(retry=_at_once)
async def touch(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    """Takes as long as it is told, and can be stopped."""
    with effect(ctx, group):
        await asyncio.sleep(seconds)
    return number


@app.job(retry=_at_once)
def touch_in_thread(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    with effect(ctx, group):
        ctx.wait(seconds)
        ctx.raise_if_cancelled()
    return number


@app.job(retry=_at_once, isolated=True)
def touch_in_child(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    with effect(ctx, group):
        time.sleep(seconds)
    return number


@app.job(retry=_at_once)
async def fail_once(number: int, ctx: Context) -> int:
    with effect(ctx):
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
    return number


@app.job(retry=_at_once)
async def fail_once_then_last(ctx: Context, seconds: float) -> None:
    with effect(ctx):
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
        await asyncio.sleep(seconds)


@app.job(retry=RetryPolicy(max_retries=3, base_seconds=3600, jitter=0))
async def fail_when_told(ctx: Context, flag: str) -> None:
    """Fails as soon as a file is there; its next attempt would be an hour later."""
    with effect(ctx):
        await _until(Path(flag))
        raise ValueError("told to fail")


@app.job(retry=_at_once)
async def stay_until_told(ctx: Context, flag: str) -> None:
    """Keeps its slot until a file is there."""
    with effect(ctx):
        await _until(Path(flag))


@app.job(retry=_at_once)
async def say_much_when_told(ctx: Context, flag: str) -> str:
    """An outcome that takes up room."""
    with effect(ctx):
        await _until(Path(flag))
    return os.urandom(50_000).hex()


@app.job(retry=_at_once)
async def block_the_loop(ctx: Context, seconds: float) -> None:
    """What an `async def` must not do."""
    with effect(ctx):
        time.sleep(seconds)


@app.job(retry=_at_once)
async def clean_up_slowly(ctx: Context, seconds: float) -> None:
    """Told to stop, it needs a while to put things in order."""
    try:
        with effect(ctx):
            await asyncio.sleep(60)
    finally:
        with effect(ctx, "cleaning"):
            await asyncio.sleep(seconds)


@app.job(retry=_at_once)
def sleep_in_c(ctx: Context, seconds: float) -> None:
    """Cannot be stopped by any exception for as long as it sleeps, but only in its first attempt."""
    with effect(ctx):
        if ctx.attempt == 1:
            time.sleep(seconds)


@app.job(retry=_at_once)
def end_the_process(ctx: Context) -> None:
    """Poison: takes its whole worker down."""
    with effect(ctx):
        os._exit(86)


@app.job(retry=_at_once, isolated=True)
def linger_in_child(ctx: Context, seconds: float) -> None:
    """A child with a child of its own."""
    with effect(ctx):
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=False)


# --- chains ---------------------------------------------------------------------------------------------------------


def _step(ctx: Context, name: str) -> AbstractContextManager[None]:
    """One run of a step; the ledger's group says which."""
    return effect(ctx, name)


async def chain_first(number: int, ctx: Context) -> list[int]:
    with _step(ctx, "first"):
        return [number]


def chain_second(numbers: list[int], ctx: Context) -> str:
    with _step(ctx, "second"):
        return f"{numbers}"


async def chain_sleeps(text: str, ctx: Context) -> bool:
    with _step(ctx, "sleeps"):
        await ctx.sleep(0.05)
    return True


async def chain_last(text: str, ctx: Context) -> dict[str, str]:
    with _step(ctx, "last"):
        return {"text": text}


async def chain_stop(result: dict[str, str], ctx: Context) -> None:
    with _step(ctx, "stop"):
        return stop(result["text"])  # type: ignore[no-any-return]


async def chain_never() -> None:
    raise AssertionError("the chain was stopped")


chained = app.chain(
    "chained", chain_first, chain_second, chain_sleeps, chain_last, chain_stop, chain_never, retry=_at_once
)


async def hold_until_told(flag: str, ctx: Context) -> str:
    with _step(ctx, "before"):
        return flag


def wait_for_it(flag: str, ctx: Context) -> int:
    with _step(ctx, "held"):
        while not Path(flag).exists():
            ctx.wait(0.01)
            ctx.raise_if_cancelled()
        return 7


held_chain = app.chain("held_chain", hold_until_told, wait_for_it, retry=_at_once)
