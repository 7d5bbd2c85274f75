"""Jobs of the race tests. Each records in the ledger when its code begins and ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tenuto import Context, StepFailed, Tenuto, stop
from tenuto.jobs.registry import Job
from tenuto.model.definitions.policies import RetryPolicy
from tests.races.effect_ledger import Ledger

LEDGER = "TENUTO_TEST_LEDGER"
AnyJob = Job[..., Any]

app = Tenuto("postgresql://nowhere", home="/nowhere")
_retry_immediately = RetryPolicy(max_attempts=5, base_seconds=0, jitter=0)
_ledgers: dict[str, Ledger] = {}


def effect(ctx: Context, group: str = "-") -> AbstractContextManager[None]:
    path = os.environ[LEDGER]
    if path not in _ledgers:
        _ledgers[path] = Ledger(Path(path))
    return _ledgers[path].effect(ctx.task_id, ctx.attempt, ctx.fence, group)


async def _wait_for_file(flag: Path) -> None:
    while not flag.exists():  # noqa: ASYNC110 — signalled by another process
        await asyncio.sleep(0.01)


@app.job(retry=_retry_immediately)
async def touch(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    """Run for that long; can be cancelled."""
    with effect(ctx, group):
        await asyncio.sleep(seconds)
    return number


@app.job(retry=_retry_immediately)
def touch_in_thread(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    with effect(ctx, group):
        ctx.wait(seconds)
        ctx.raise_if_cancelled()
    return number


@app.job(retry=_retry_immediately, isolated=True)
def touch_in_child(number: int, ctx: Context, seconds: float = 0.0, group: str = "-") -> int:
    with effect(ctx, group):
        time.sleep(seconds)
    return number


@app.job(retry=_retry_immediately)
async def fail_once(number: int, ctx: Context) -> int:
    with effect(ctx):
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
    return number


@app.job(retry=_retry_immediately)
async def fail_once_then_last(ctx: Context, seconds: float) -> None:
    with effect(ctx):
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
        await asyncio.sleep(seconds)


@app.job(retry=RetryPolicy(max_attempts=3, base_seconds=3600, jitter=0))
async def fail_after_signal(ctx: Context, flag: str) -> None:
    """Fail as soon as a file exists; the next attempt would start an hour later."""
    with effect(ctx):
        await _wait_for_file(Path(flag))
        raise ValueError("the signal file exists")


@app.job(retry=_retry_immediately)
async def hold_slot_until_signal(ctx: Context, flag: str) -> None:
    """Keep a slot until a file exists."""
    with effect(ctx):
        await _wait_for_file(Path(flag))


@app.job(retry=_retry_immediately)
async def return_large_result_after_signal(ctx: Context, flag: str) -> str:
    """Return a large result as soon as a file exists."""
    with effect(ctx):
        await _wait_for_file(Path(flag))
    return os.urandom(50_000).hex()


@app.job(retry=_retry_immediately)
async def block_event_loop(ctx: Context, seconds: float) -> None:
    """Block the event loop, which async code must not do."""
    with effect(ctx):
        time.sleep(seconds)


@app.job(retry=_retry_immediately)
async def clean_up_slowly(ctx: Context, seconds: float) -> None:
    """Need a while to clean up after a cancellation."""
    try:
        with effect(ctx):
            await asyncio.sleep(60)
    finally:
        with effect(ctx, "cleaning"):
            await asyncio.sleep(seconds)


@app.job(retry=_retry_immediately)
def sleep_in_c(ctx: Context, seconds: float) -> None:
    """Block uninterruptibly in C code, but only in the first attempt."""
    with effect(ctx):
        if ctx.attempt == 1:
            time.sleep(seconds)


@app.job(retry=_retry_immediately)
def crash_worker(ctx: Context) -> None:
    """Poison task: end the whole worker process."""
    with effect(ctx):
        os._exit(86)


@app.job(retry=_retry_immediately, isolated=True)
def linger_in_child(ctx: Context, seconds: float) -> None:
    """Run in a child process that starts another process."""
    with effect(ctx):
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=False)


# --- chains ---------------------------------------------------------------------------------------------------------


def _step(ctx: Context, name: str) -> AbstractContextManager[None]:
    """Record one run of a step; the ledger's group names the step."""
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
    "chained", chain_first, chain_second, chain_sleeps, chain_last, chain_stop, chain_never, retry=_retry_immediately
)


async def chain_waits(numbers: list[int], ctx: Context) -> int:
    with _step(ctx, "waits"):
        amount: int = await ctx.wait_for_event("paid", int, key=str(ctx.task_id), timeout="1h")
    return amount


async def chain_ships(amount: int, ctx: Context) -> int:
    with _step(ctx, "ships"):
        return amount


waiting_chain = app.chain("waiting_chain", chain_first, chain_waits, chain_ships, retry=_retry_immediately)


async def pass_signal_path(flag: str, ctx: Context) -> str:
    with _step(ctx, "before"):
        return flag


def wait_for_signal(flag: str, ctx: Context) -> int:
    with _step(ctx, "held"):
        while not Path(flag).exists():
            ctx.wait(0.01)
            ctx.raise_if_cancelled()
        return 7


signalled_chain = app.chain("held_chain", pass_signal_path, wait_for_signal, retry=_retry_immediately)


# --- workflows ------------------------------------------------------------------------------------------------------


async def workflow_step(ctx: Context, name: str) -> str:
    with _step(ctx, name):
        return name


def workflow_plain_step(ctx: Context, name: str) -> str:
    with _step(ctx, name):
        return name


async def workflow_refused(ctx: Context) -> None:
    with _step(ctx, "refused"):
        raise ValueError("refused")


async def _sleeping_branch(ctx: Context) -> str:
    before = await ctx.step(workflow_step, "before-sleep")
    await ctx.sleep(0.05)
    return before + await ctx.step(workflow_plain_step, "after-sleep")


@app.job(retry=_retry_immediately)
async def workflow_child(ctx: Context, name: str) -> str:
    with _step(ctx, "child"):
        return name


@app.workflow(retry=_retry_immediately)
async def ordered(ctx: Context, number: int) -> str:
    """Every kind of durable call."""
    done = [await ctx.step(workflow_step, f"loop-{each}") for each in range(2)]
    try:
        await ctx.step(workflow_refused)
    except StepFailed as failed:
        done.append(failed.text)
    if ctx.patched("new"):
        done.append(await ctx.step(workflow_plain_step, "patched"))
    done += await ctx.gather(ctx.step(workflow_step, "alone"), _sleeping_branch(ctx))
    done.append(await ctx.run(workflow_child.using(queue=ctx.task.queue), "child"))
    return ",".join(done)
