"""Jobs of the tour, the schedule Nightly HR Sync and two manifests. Worker processes load this module too.

The connected systems are simulated: jobs wait and report progress.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tenuto import Context, PermanentFailure, RetryPolicy, Step, Tenuto, cron
from tenuto.settings import load_settings

PACE = float(os.environ.get("TENUTO_DEMO_PACE", "1"))
"""Factor for the duration of jobs: 1 for viewers, less for tests."""

SCHEDULE = "Nightly HR Sync"
PEOPLE = 60
PAGES = 30
_MIN_REPORT_SECONDS = 2.5
"""Minimum duration of a report at any pace, so that it is running when its worker is killed."""
MAX_ATTEMPTS = 4

# Always the embedded server, whatever database the environment or a settings file configures.
app = Tenuto(settings=load_settings(home=os.environ.get("TENUTO_DEMO_HOME")).model_copy(update={"database": None}))


async def simulate_work(ctx: Context, seconds: float, total: int, message: str) -> None:
    """Wait in steps and report progress."""
    for done in range(1, total + 1):
        await asyncio.sleep(seconds * PACE / total)
        ctx.progress(done, total, message)


# --- schedule: people from the HR system to two directories, with confirmation ----------------------------------------


@app.job
async def full_import(ctx: Context, system: str) -> int:
    """Read all people from the source system."""
    await simulate_work(ctx, 1.4, PEOPLE, f"reading {system}")
    return PEOPLE


@app.job
async def full_sync(ctx: Context, system: str) -> int:
    """Compute the wanted state of every target system."""
    await simulate_work(ctx, 1.2, PEOPLE, "matching people")
    return PEOPLE


@app.job
async def export(ctx: Context, system: str) -> int:
    """Write the wanted state to a target system."""
    await simulate_work(ctx, 1.4 if system == "AD" else 2.2, PEOPLE, f"writing to {system}")
    return PEOPLE


@app.job
async def confirming_import(ctx: Context, system: str) -> int:
    """Read a target system back and compare."""
    await simulate_work(ctx, 1.0 if system == "AD" else 1.8, PEOPLE, f"reading {system} back")
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
    overlap="allow",  # an interrupted tour in a kept directory does not block the next one
)
STEP_COUNT = 6


# --- failures ---------------------------------------------------------------------------------------------------------


@app.job(retry=RetryPolicy(max_attempts=MAX_ATTEMPTS, base_seconds=PACE, cap_seconds=4, jitter=0))
async def fetch_rates(bank: str, ctx: Context) -> float:
    """Fail twice, then succeed, like many network calls."""
    await asyncio.sleep(0.3 * PACE)
    if ctx.attempt <= 2:
        raise ConnectionError(f"{bank} does not answer")
    return 1.17


@app.job
async def bill_customer(number: int, address: str = "") -> str:
    """Fail permanently without an address, because a retry would not help."""
    if not address:
        raise PermanentFailure(f"customer {number} has no address")
    return f"bill sent to {address}"


bills = app.manifest("bills", bill_customer, on_demand=True)


# --- batch ------------------------------------------------------------------------------------------------------------


@app.job
async def thumbnail(picture: int) -> str:
    """A short task of a large batch."""
    await asyncio.sleep(0.02 * PACE)
    return f"picture-{picture:05}.webp"


thumbnails = app.manifest("thumbnails", thumbnail, on_demand=True)


# --- running while a process is killed --------------------------------------------------------------------------------


@app.job
async def nightly_report(region: str, ctx: Context) -> dict[str, Any]:
    """Run for a few seconds with progress; some of these tasks lose their worker."""
    await simulate_work(ctx, max(3, _MIN_REPORT_SECONDS / PACE), PAGES, region)
    return {"region": region, "pages": PAGES}


@app.job
async def send_invoice(number: int) -> int:
    """Run for half a second; some of these tasks run while the database restarts."""
    await asyncio.sleep(0.5 * PACE)
    return number
