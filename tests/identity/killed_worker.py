"""A worker that kills or stops itself at a crash point: ``killed_worker.py URL HOME POINT COUNT [SIGNAL]``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tenuto import Tenuto
from tenuto_identity.runs.run_lifecycle import Run


async def main(url: str, home: str, point: str, count: int, sent: str = "KILL") -> None:
    left = count

    def observe(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.Signals[f"SIG{sent}"])

    Run.observe = staticmethod(observe)
    async with Tenuto(url, home=home) as app, app.worker(lease_seconds=1.5, name="killed"):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] if sys.argv[5:] else "KILL"))
