"""The built-in executor: code runs in the worker's process, on an event loop, in threads and in child processes."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Sequence

from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt
from tenuto.jobs.runner import Runner
from tenuto.logs import Log
from tenuto.worker.executors import ExecutorContext

STALL_SECONDS = 2.0

log = Log("tenuto.executor")


class NativeExecutor:
    """A runner with stall detection for its event loop."""

    def __init__(self, context: ExecutorContext) -> None:
        self._runner = Runner(context.jobs, context.clock, context.deliver, threads=context.slots)
        self._stalls = StallDetector(self._runner.loop)

    def start(self) -> None:
        self._runner.start()

    def launch(self, attempts: Sequence[Attempt]) -> None:
        self._runner.launch(attempts)

    def check_for_stalls(self) -> None:
        self._stalls.check(self._runner.loop_thread_id)

    def close(self) -> None:
        self._runner.close()


class StallDetector:
    """Detects an `async def` job that blocks its event loop: other jobs of that loop wait, and timeouts cannot stop it.

    Leases are safe meanwhile, because the watchdog has its own thread. The warning names the line that blocks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pinged_at: float | None = None
        self._reported = False
        self.stall_count = 0

    def check(self, thread: int | None) -> None:
        """Ping the loop, or report that the last ping is unanswered; called from another thread than the loop's."""
        if self._pinged_at is None:
            self._pinged_at = monotonic_seconds()
            self._reported = False
            self._loop.call_soon_threadsafe(self._on_ping_answered)
        elif not self._reported and monotonic_seconds() - self._pinged_at > STALL_SECONDS:
            self._reported = True
            self.stall_count += 1
            log.warning(
                "event loop blocked by a job",
                seconds=round(monotonic_seconds() - self._pinged_at, 1),
                where=_innermost_line(thread),
                remedy="make the job a plain def (it then runs in a thread), or isolated=True",
            )

    def _on_ping_answered(self) -> None:
        self._pinged_at = None


def _innermost_line(thread: int | None) -> str:
    frame = sys._current_frames().get(thread) if thread is not None else None
    if frame is None:
        return "unknown"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
