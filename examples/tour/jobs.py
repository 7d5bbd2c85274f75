"""What the tour runs: jobs, the schedule Nightly HR Sync, and two manifests. Worker processes load the same module.

The systems the jobs speak of are simulated: code waits a little and says how far it is. Nothing here knows the tour.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tenuto import Context, PermanentFailure, RetryPolicy, Step, Tenuto, cron
from tenuto.settings import load_settings

PACE = float(os.environ.get("TENUTO_DEMO_PACE", "1"))
"""How slowly the jobs work, so that one can watch: 1 for people, less for tests."""

SCHEDULE = "Nightly HR Sync"
PEOPLE = 60
PAGES = 30
_LONG_ENOUGH = 2.5
"""A report takes so many seconds at least, at any pace: it must still be running when its worker is killed."""
TRIES = 4

# Always the embedded server in a folder of its own, whatever database the environment or a settings file names.
app = Tenuto(settings=load_settings(home=os.environ.get("TENUTO_DEMO_HOME")).model_copy(update={"database": None}))


async def work(ctx: Context, seconds: float, total: int, doing: str) -> None:
    """Take some time, and say how far it has come."""
    for done in range(1, total + 1):
        await asyncio.sleep(seconds * PACE / total)
        ctx.progress(done, total, doing)


# --- the night: people from the HR system to two directories, and a look whether they arrived -------------------------


@app.job
async def full_import(ctx: Context, system: str) -> int:
    """Read everybody the source system knows."""
    await work(ctx, 1.4, PEOPLE, f"reading {system}")
    return PEOPLE


@app.job
async def full_sync(ctx: Context, system: str) -> int:
    """Work out what every target system should hold."""
    await work(ctx, 1.2, PEOPLE, "matching people")
    return PEOPLE


@app.job
async def export(ctx: Context, system: str) -> int:
    """Bring a target system to what it should hold."""
    await work(ctx, 1.4 if system == "AD" else 2.2, PEOPLE, f"writing to {system}")
    return PEOPLE


@app.job
async def confirming_import(ctx: Context, system: str) -> int:
    """Read a target system back and compare."""
    await work(ctx, 1.0 if system == "AD" else 1.8, PEOPLE, f"reading {system} back")
    return PEOPLE


app.schedule(
    SCHEDULE,
    cron("0 2 * * *", zone="Europe/London"),
    [
        Step.job(full_import, "HR", name="HR System - Full Import"),
        Step.job(full_sync, "HR", name="HR System - Full Sync"),
        [Step.job(export, "AD", name="AD - Export"), Step.job(export, "LDAP", name="LDAP - Export")],
        [
            Step.job(confirming_import, "AD", name="AD - Confirming Import", continue_on_failure=True),
            Step.job(confirming_import, "LDAP", name="LDAP - Confirming Import", continue_on_failure=True),
        ],
    ],
    overlap="allow",  # a tour that was broken off in a kept folder does not stand in the way of the next
)
STEPS = 6


# --- what goes wrong --------------------------------------------------------------------------------------------------


@app.job(retry=RetryPolicy(max_retries=TRIES, base_seconds=PACE, cap_seconds=4, jitter=0))
async def fetch_rates(bank: str, ctx: Context) -> float:
    """Fails twice before it works, like anything on a network."""
    await asyncio.sleep(0.3 * PACE)
    if ctx.attempt <= 2:
        raise ConnectionError(f"{bank} does not answer")
    return 1.17


@app.job
async def bill_customer(number: int, address: str = "") -> str:
    """Fails for good without an address: trying again would not help."""
    if not address:
        raise PermanentFailure(f"customer {number} has no address")
    return f"bill sent to {address}"


bills = app.manifest("bills", bill_customer, on_demand=True)


# --- a lot of it ------------------------------------------------------------------------------------------------------


@app.job
async def thumbnail(picture: int) -> str:
    """Small and quick: what queues are full of."""
    await asyncio.sleep(0.02 * PACE)
    return f"picture-{picture:05}.webp"


thumbnails = app.manifest("thumbnails", thumbnail, on_demand=True)


# --- what is under way when something breaks --------------------------------------------------------------------------


@app.job
async def nightly_report(region: str, ctx: Context) -> dict[str, Any]:
    """Takes a few seconds and says how far it is: what a worker holds when it is killed."""
    await work(ctx, max(3, _LONG_ENOUGH / PACE), PAGES, region)
    return {"region": region, "pages": PAGES}


@app.job
async def send_invoice(number: int) -> int:
    """Half a second each: what is under way when the database goes."""
    await asyncio.sleep(0.5 * PACE)
    return number
