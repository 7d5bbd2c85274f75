"""Processes of one contender: started, controlled by lines, and always ended.

Every wait has a limit. A process that exceeds it is killed by its process group, which this module started.
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
"""Variable with the name under which a script was started, if it serves several."""


class ContenderFailed(RuntimeError):
    """A process of a contender failed, exceeded a limit, or did not do its work."""


class ContenderProcess:
    """A running process of a contender."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    async def read_answer(self, limit: float) -> dict[str, Any]:
        """Return the next line of JSON on its stdout; other lines are skipped."""
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

    async def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        await self._process.stdin.drain()

    async def wait_for_exit(self, limit: float) -> None:
        """Wait for its end, which must be successful."""
        try:
            async with asyncio.timeout(limit):
                code = await self._process.wait()
        except TimeoutError:
            raise ContenderFailed(f"{self.name} did not end within {limit:.0f} s") from None
        if code:
            raise ContenderFailed(f"{self.name} ended with exit code {code}")

    async def terminate(self, limit: float) -> None:
        """Send SIGTERM, as a supervisor does, and wait up to the limit."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._process.wait()

    def is_running(self) -> bool:
        return self._process.returncode is None


@contextlib.asynccontextmanager
async def start_process(
    python: Path,
    module: str,
    arguments: Sequence[str],
    name: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[ContenderProcess]:
    """Run `python -m module` from the root of the repository in its own session, which is killed at the end."""
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
        yield ContenderProcess(f"{name} {arguments[0]}", process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
