"""Processes of one contender: started, spoken to in lines, and never left behind.

Every wait has a limit. What overstays is killed by its own process group, which this module started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.peers import ROOT

CONTENDER = "BENCH_CONTENDER"
"""Tells a script under which name it was started, if it serves several."""


class ContenderFailed(RuntimeError):
    """A contender's process failed, overstayed, or did not do what it says it did."""


class Talking:
    """A contender's process that is running."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    async def answer(self, limit: float) -> dict[str, Any]:
        """The next line of JSON on its stdout; lines that are not JSON objects are skipped."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                while line := await self._process.stdout.readline():
                    with contextlib.suppress(ValueError):
                        found = json.loads(line)
                        if isinstance(found, dict):
                            return found
        except TimeoutError:
            raise ContenderFailed(f"{self.name} did not answer within {limit:.0f} s") from None
        raise ContenderFailed(f"{self.name} ended without an answer (exit code {await self._process.wait()})")

    async def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def end(self, limit: float) -> None:
        """Wait for it to end by itself, with success."""
        try:
            async with asyncio.timeout(limit):
                code = await self._process.wait()
        except TimeoutError:
            raise ContenderFailed(f"{self.name} did not end within {limit:.0f} s") from None
        if code:
            raise ContenderFailed(f"{self.name} ended with exit code {code}")

    async def leave(self, limit: float) -> None:
        """Ask it to end, with the signal a supervisor sends; whether it does is its own affair."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._process.wait()

    def running(self) -> bool:
        return self._process.returncode is None


@contextlib.asynccontextmanager
async def started(
    python: Path,
    module: str,
    arguments: Sequence[str],
    name: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Talking]:
    """Run `python -m module` from the repository's root in a session of its own; on leaving, nothing of it remains."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        module,
        *arguments,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "PYTHONUNBUFFERED": "1",
            CONTENDER: name,
            **environment,
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        start_new_session=True,
    )
    try:
        yield Talking(f"{name} {arguments[0]}", process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
