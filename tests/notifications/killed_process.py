"""A scheduler and worker that kills itself at a point: ``killed_process.py URL HOME POINT``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tenuto import Tenuto
from tenuto_notifications.collection import collector
from tenuto_notifications.delivery import delivery_step


def kill_after(module: Any, name: str) -> None:
    """End the process with SIGKILL after the function has returned."""
    original = getattr(module, name)

    async def run(*args: Any, **kwargs: Any) -> Any:
        await original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, run)


POINTS = {
    "messages_created": (collector, "dispatch"),  # before the commit
    "webhook_sent": (delivery_step, "send_webhook"),  # before the outcome is recorded
    "email_sent": (delivery_step, "send_email"),
}


def add_pager(app: Tenuto, file: Path, *, kills: bool) -> None:
    """Add the job of a channel, which writes the ids of messages to a file."""

    @app.job(name="pager")
    async def page(notification: dict[str, Any]) -> None:
        with file.open("a") as lines:
            lines.write(f"{notification['id']}\n")
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)  # before the outcome is recorded


async def main(url: str, home: str, point: str) -> None:
    if point in POINTS:
        kill_after(*POINTS[point])
    killed = Tenuto(url, home=home)
    add_pager(killed, Path(home) / "paged", kills=point == "job_ran")
    async with (
        killed as app,
        app.worker(lease_seconds=1.5, name="killed"),
        app.scheduler(name="killed"),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
