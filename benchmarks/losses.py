"""Losses: tasks never done and tasks done twice when the worker is killed with SIGKILL and started again.

The whole worker is killed, with its children, as when a container or a machine ends: three times, whenever a further
quarter of the tasks is done. Then it may work until a time limit. A task is *lost* if it was never done and the store
no
longer has it; *stuck* if it was not done within the limit but is still there; done *twice* if it completed more than
once. No product can rule out the last, because the end of a task and its record are two events; the number differs.

All contenders run at the same time: their tasks only wait, and times are measured in seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.contender import START_TIMEOUT_SECONDS
from benchmarks.contenders.ledger import Ledger
from benchmarks.contenders.peer_protocol import URL
from benchmarks.measure import progress
from benchmarks.peer_entries import PeerEntry
from benchmarks.processes import ContenderFailed, start_process
from benchmarks.queue_benchmarks import Size

TASK_SECONDS = 0.2
KILLS = 3
STALL_SECONDS = 40.0
COMPLETION_TIMEOUT_SECONDS = 100.0
CONCURRENT_ENTRIES = 8

Prepared = Callable[[PeerEntry], AbstractAsyncContextManager[str]]


async def losses(entries: Sequence[PeerEntry], prepared: Prepared, size: Size) -> dict[str, dict[str, object]]:
    """Return for every entry: tasks, lost, stuck, twice, and the seconds from the last kill until all was done."""
    count = size.of(400, 240)
    progress(f"{count} tasks of {TASK_SECONDS} s each, the worker killed -9 {KILLS} times")
    places = asyncio.Semaphore(CONCURRENT_ENTRIES)

    async def one(entry: PeerEntry) -> dict[str, object]:
        async with places, prepared(entry) as url:
            found = await _measure_losses(entry, url, count)
            progress(f"  {entry.title}: {found}")
            return found

    async with asyncio.TaskGroup() as group:
        asked = {entry.name: group.create_task(one(entry)) for entry in entries}
    return {name: task.result() for name, task in asked.items()}


async def _measure_losses(entry: PeerEntry, url: str, count: int) -> dict[str, object]:
    dice = random.Random(entry.name)
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-") as folder:
        ledger = Ledger(Path(folder) / "ledger", count)
        verb = "bulk" if entry.has_bulk else "single"
        await entry.run_command(url, verb, "--count", str(count), limit=START_TIMEOUT_SECONDS + count / 5)
        arguments = ["work", "--ledger", str(ledger.path), "--folder", folder, "--nap", str(TASK_SECONDS)]
        running: list[int] = []
        for kill in range(1, KILLS + 2):
            async with start_process(entry.python, entry.module, arguments, entry.name, {URL: url}) as process:
                began = time.monotonic()
                if kill <= KILLS:
                    await _wait_for_done(ledger, count * kill // (KILLS + 1), STALL_SECONDS)
                    await asyncio.sleep(dice.uniform(0, TASK_SECONDS))
                    if not process.is_running():
                        raise ContenderFailed(f"the worker of {entry.title} exited by itself")
                    os.killpg(process.pid, signal.SIGKILL)
                    running.append(sum(ledger.starts()) - sum(ledger.ends()) - sum(running))
                    continue
                all_done = await _wait_for_done(ledger, count, COMPLETION_TIMEOUT_SECONDS)
                took = time.monotonic() - began
                await asyncio.sleep(2.0)  # tasks that still run a second time
                answer = await entry.run_command(url, "remembered", limit=START_TIMEOUT_SECONDS)
        ends = ledger.ends()
        undone = ends.count(0)
        stuck = min(undone, int(str(answer["remembered"])))
        return {
            "tasks": count,
            "kills": KILLS,
            "running at the kills": running,
            "lost": undone - stuck,
            "stuck": stuck,
            "twice": sum(times > 1 for times in ends),
            "seconds": round(took, 1) if all_done else None,
        }


async def _wait_for_done(ledger: Ledger, done: int, seconds: float) -> bool:
    """Wait until that many tasks are done, until a time limit, or until no progress is made."""
    limit = time.monotonic() + seconds
    while len(ends := ledger.ends()) - ends.count(0) < done:
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.02)
    return True
