"""Jobs of the tour and two manifests. Worker processes load this module too.

Jobs wait and report progress. The schedule Nightly HR Sync is that of the example of the same name.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tenuto import Context, PermanentFailure, RetryPolicy, Tenuto
from tenuto.settings import load_settings

PACE = float(os.environ.get("TENUTO_DEMO_PACE", "1"))
"""Factor for the duration of jobs: 1 for viewers, less for tests."""

SCHEDULE = "Nightly HR Sync"
STEP_COUNT = 6
PAGES = 30
_MIN_REPORT_SECONDS = 2.5
"""Minimum duration of a report at any pace, so that it is running when its worker is killed."""
MAX_ATTEMPTS = 4

# Always the embedded server and identity synchronisation, whatever the environment or a settings file configures.
_OVERRIDES = {"database": None, "disabled_extensions": (), "files_directory": None}
app = Tenuto(settings=load_settings(home=os.environ.get("TENUTO_DEMO_HOME")).model_copy(update=_OVERRIDES))


async def simulate_work(ctx: Context, seconds: float, total: int, message: str) -> None:
    """Wait in steps and report progress."""
    for done in range(1, total + 1):
        await asyncio.sleep(seconds * PACE / total)
        ctx.progress(done, total, message)


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
