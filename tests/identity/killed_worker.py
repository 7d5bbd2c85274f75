"""A worker that kills or stops itself at a crash point.

``killed_worker.py URL HOME POINT COUNT [SIGNAL [KIND SYSTEMS]]``
With a kind of run and the names of systems, separated by commas, only runs of them count, and it runs one at a time.
It prints ``page refused`` when a page of a run is refused. TENUTO_TEST_LEASE_SECONDS sets its lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from tenuto import Tenuto
from tenuto.errors import StaleLease
from tenuto_identity.runs.run_lifecycle import Run
from tenuto_identity.store import runs


async def main(url: str, home: str, point: str, count: int, sent: str, kind: str = "", systems: str = "") -> None:
    left = count

    def at(run: Run, reached: str) -> None:
        nonlocal left
        if reached == point and (not kind or (run.profile.kind == kind and run.system.name in systems.split(","))):
            left -= 1
            if left == 0:
                print(run.system.name, flush=True)
                os.kill(os.getpid(), signal.Signals[f"SIG{sent}"])

    begin_page = runs.begin_fenced_page

    async def begin_and_report(*arguments: Any) -> bool:
        try:
            return await begin_page(*arguments)
        except StaleLease:
            print("page refused", flush=True)
            raise

    runs.begin_fenced_page = begin_and_report  # type: ignore[assignment]
    lease = float(os.environ.get("TENUTO_TEST_LEASE_SECONDS", "1.5"))
    Run.at = at  # type: ignore[assignment, method-assign]
    async with Tenuto(url, home=home) as app, app.worker(lease_seconds=lease, name="killed", slots=1 if kind else None):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    url, home, point, count, *more = sys.argv[1:]
    asyncio.run(main(url, home, point, int(count), *(more or ["KILL"])))
