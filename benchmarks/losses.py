"""Losses: what is never done, and what is done twice, when the worker is killed -9 in the middle and started again.

The whole worker is killed, with its children, as when a container or a machine ends: three times, whenever a further
quarter of the tasks is done. Then it may work for as long as it needs, up to a limit. A task is *lost* if it was never
done and the store does not know of it any more; *stuck* if it was not done within the limit but is still there; done
*twice* if it came to its end more than once. Nobody can promise that the last never happens, because an end and its
record are two things; what differs is how many it concerns.

All contenders go at once: their tasks do nothing but wait, and nothing here is timed but in seconds.
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

from benchmarks.contenders.arena import URL
from benchmarks.contenders.ledger import Ledger
from benchmarks.contest import START_LIMIT
from benchmarks.figures import Size
from benchmarks.lineup import Entry
from benchmarks.measure import progress
from benchmarks.processes import ContenderFailed, started

NAP = 0.2
KILLS = 3
STALLED = 40.0
PATIENCE = 100.0
AT_ONCE = 8

Prepared = Callable[[Entry], AbstractAsyncContextManager[str]]


async def losses(entries: Sequence[Entry], prepared: Prepared, size: Size) -> dict[str, dict[str, object]]:
    """For every contender: tasks, lost, stuck, twice, and the seconds from the last kill until all was done."""
    count = size.of(400, 240)
    progress(f"{count} tasks of {NAP} s each, the worker killed -9 {KILLS} times")
    places = asyncio.Semaphore(AT_ONCE)

    async def one(entry: Entry) -> dict[str, object]:
        async with places, prepared(entry) as url:
            found = await _killed(entry, url, count)
            progress(f"  {entry.title}: {found}")
            return found

    async with asyncio.TaskGroup() as group:
        asked = {entry.name: group.create_task(one(entry)) for entry in entries}
    return {name: task.result() for name, task in asked.items()}


async def _killed(entry: Entry, url: str, count: int) -> dict[str, object]:
    dice = random.Random(entry.name)
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-") as folder:
        ledger = Ledger(Path(folder) / "ledger", count)
        verb = "bulk" if entry.bulk else "single"
        await entry.ask(url, verb, "--count", str(count), limit=START_LIMIT + count / 5)
        arguments = ["work", "--ledger", str(ledger.path), "--folder", folder, "--nap", str(NAP)]
        running: list[int] = []
        for kill in range(1, KILLS + 2):
            async with started(entry.python, entry.module, arguments, entry.name, {URL: url}) as process:
                began = time.monotonic()
                if kill <= KILLS:
                    await _until(ledger, count * kill // (KILLS + 1), STALLED)
                    await asyncio.sleep(dice.uniform(0, NAP))
                    if not process.running():
                        raise ContenderFailed(f"the worker of {entry.title} ended by itself")
                    os.killpg(process.pid, signal.SIGKILL)
                    running.append(sum(ledger.starts()) - sum(ledger.ends()) - sum(running))
                    continue
                all_done = await _until(ledger, count, PATIENCE)
                took = time.monotonic() - began
                await asyncio.sleep(2.0)  # whatever is still being done a second time
                answer = await entry.ask(url, "remembered", limit=START_LIMIT)
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


async def _until(ledger: Ledger, done: int, seconds: float) -> bool:
    """Wait until so many tasks are done; not longer than it is worth waiting for."""
    limit = time.monotonic() + seconds
    while len(ends := ledger.ends()) - ends.count(0) < done:
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.02)
    return True
