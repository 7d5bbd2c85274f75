"""The application under test: its jobs, schedules and manifests. All code records in the ledger that it ran.

The intended outcome of an item is part of its input (`Fate`), so that the audit knows it independently.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from tenuto import Context, RetryPolicy, Step, Tenuto, every
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy
from tests.races.jobs import effect

SKEW, PORT = "TENUTO_TEST_SKEW", "TENUTO_TEST_PORT"
"""Environment variables: the clock error of a process in seconds, and its port."""
CANARY = "canary-f1d0-6b7e-never-to-be-seen"
"""Value of a secret that jobs use and print. It must not appear in any table or log."""
SECRET = "chaos-canary"
BULK = "bulk"
BULK_MAX = 20
NARROW_KEY, NARROW_MAX = "narrow", 3
"""A limit key for at most three tasks at the same time."""
SCHEDULES = 8


class Fate(StrEnum):
    """Intended outcome of an item, independent of faults."""

    FINE = "fine"
    FLAKY = "flaky"
    """The first attempt fails."""
    HOPELESS = "hopeless"
    """Every attempt fails, and the item becomes a dead letter."""


app = Tenuto("postgresql://nowhere", home="/nowhere")
_retry_soon = RetryPolicy(max_attempts=2, base_seconds=0.1, jitter=0.5)
_retry_patiently = RetryPolicy(max_attempts=1000, base_seconds=0.1, cap_seconds=0.5)


def _apply_fate(fate: Fate, ctx: Context) -> None:
    if fate is Fate.HOPELESS or (fate is Fate.FLAKY and ctx.attempt == 1):
        raise ValueError(f"{fate} in attempt {ctx.attempt}")


@app.job(retry=_retry_soon)
async def item(number: int, ctx: Context, fate: Fate = Fate.FINE, seconds: float = 0.0) -> int:
    """The most frequent job."""
    with effect(ctx, "item"):
        await asyncio.sleep(seconds)
        _apply_fate(fate, ctx)
    return number


@app.job(retry=_retry_soon)
def in_thread(number: int, ctx: Context, fate: Fate = Fate.FINE, seconds: float = 0.0) -> int:
    with effect(ctx, "thread"):
        ctx.wait(seconds)
        ctx.raise_if_cancelled()
        _apply_fate(fate, ctx)
    return number


@app.job(retry=_retry_soon, limit_key=NARROW_KEY, limit=NARROW_MAX)
async def narrow(number: int, ctx: Context, seconds: float = 0.0) -> int:
    """At most three at a time."""
    with effect(ctx, NARROW_KEY):
        await asyncio.sleep(seconds)
    return number


@app.job(retry=_retry_patiently)
async def whisper(number: int, ctx: Context) -> str:
    """Use a secret and leak it: to the log, the output and, in the first attempt, the error."""
    with effect(ctx, "whisper"):
        secret = await app.secrets.reveal(SECRET)
        print(f"number {number} knows {secret}")
        if ctx.attempt == 1:
            raise ValueError(f"cannot keep {secret} to itself")
    return secret


@app.job(retry=_retry_soon)
async def step(ctx: Context, seconds: float = 0.0, fate: Fate = Fate.FINE) -> None:
    with effect(ctx, "step"):
        await asyncio.sleep(seconds)
        _apply_fate(fate, ctx)


@app.job(retry=_retry_soon)
async def pulse(ctx: Context, fate: Fate = Fate.FINE) -> None:
    with effect(ctx, "pulse"):
        _apply_fate(fate, ctx)


def _create_plan(number: int) -> list[Step | list[Step]]:
    """Return three groups; some first steps last longer than the interval, some steps fail once, one permanently."""
    long = 1.5 if number % 3 == 0 else 0.05
    last = Step.job(step, name="last", input={"fate": Fate.HOPELESS if number == 5 else Fate.FINE})
    return [
        Step.job(step, name="first", input={"seconds": long}),
        [Step.job(step, name=name, input={"fate": Fate.FLAKY, "seconds": 0.05}) for name in ("left", "right")],
        last,
    ]


def _policies(number: int) -> tuple[OverlapPolicy, MisfirePolicy]:
    """Return each overlap policy with both of these misfire policies."""
    return list(OverlapPolicy)[number % 4], (MisfirePolicy.ALL, MisfirePolicy.ONCE)[number // 4 % 2]


INTERVALS = {f"schedule-{number}": 1 + number % 3 for number in range(SCHEDULES)}
"""Every schedule with its interval in seconds."""
for _number, (_name, _seconds) in enumerate(INTERVALS.items()):
    app.schedule(
        _name,
        every(f"{_seconds}s"),
        _create_plan(_number),
        overlap=_policies(_number)[0],
        misfire=Misfire(_policies(_number)[1]),
    )
CANCELLING = [name for number, name in enumerate(INTERVALS) if _policies(number)[0] is OverlapPolicy.CANCEL_PREVIOUS]
"""Schedules whose executions are cancelled by the next one; nothing else is cancelled."""
FIRE_ALL = [
    name for number, name in enumerate(INTERVALS) if _policies(number) == (OverlapPolicy.ALLOW, MisfirePolicy.ALL)
]
"""Schedules that run at every due instant, however late."""
INTERVALS["nested"] = 4
app.schedule(
    "inner", every("365d"), [Step.job(step, name="within", input={"seconds": 0.1})], overlap=OverlapPolicy.ALLOW
)
app.schedule("nested", every("4s"), [Step.schedule("inner"), Step.job(step, name="after")])

app.manifest(BULK, item, on_demand=True, max_active=BULK_MAX, retry=_retry_soon)
app.manifest("pulse", pulse, trigger=every("1s"), properties={"fate": Fate.FLAKY}, retry=_retry_soon)
app.manifest("after-pulse", pulse, after="pulse", retry=_retry_soon)
app.manifest("doomed", pulse, trigger=every("2s"), properties={"fate": Fate.HOPELESS}, retry=_retry_soon)
TRIGGERED_MANIFESTS = ("pulse", "after-pulse", "doomed")
