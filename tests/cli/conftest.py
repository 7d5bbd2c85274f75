"""The command line from outside: real processes, a folder with an app in it, an environment of nothing but ours.

The processes begin warm (see `tests.support.warm_process`). What depends on how an interpreter starts is run `cold`.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenuto.postgres import embedded_server
from tests.support import warm_process
from tests.support.warm_process import Process

TASKS = '''
"""An app, as somebody might write it."""

import time

from tenuto import Context, PermanentFailure, RetryPolicy, Tenuto

app = Tenuto()
not_an_app = 42


@app.job
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@app.job(retry=RetryPolicy(max_retries=3, base_seconds=0))
async def third_time(ctx: Context) -> str:
    print(f"this is attempt {ctx.task.attempt}")
    if ctx.task.attempt < 3:
        raise ValueError("not yet")
    return "done"


@app.job(queue="slow")
def last(ctx: Context) -> None:
    ctx.log.info("under way")
    while not ctx.cancelled:
        time.sleep(0.02)


@app.job
async def hopeless() -> None:
    raise PermanentFailure("this \\x1b[31mcannot\\x1b[0m be \\x9bdone")
'''


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Service:
    """A command that goes on until it is told to stop."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, words: str) -> str:
        """Wait until it says this; the line."""
        while (line := self._lines.get(timeout=60)) is not None:
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"it ended without saying {words!r}: {''.join(self.said)}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to stop; its exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout=60)

    def end(self) -> None:
        """Leave nothing of it behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class Shell:
    """Somebody's terminal: a working folder and an environment."""

    folder: Path
    environment: dict[str, str]
    services: list[Service]

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> Ended:
        """Run a command to its end."""
        surroundings = {**self.environment, **environment}
        done = warm_process.run(["-m", "tenuto", *words], cwd=self.folder, env=surroundings, input=stdin, timeout=100)
        assert "Traceback" not in done.stderr or "TENUTO_DEBUG" in environment, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def cold(self, *words: str, stdin: str = "", **environment: str) -> Ended:
        """Run a command to its end, in an interpreter that starts for it."""
        done = subprocess.run(
            [sys.executable, "-m", "tenuto", *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def begin(self, *words: str, environment: Mapping[str, str] | None = None, **streams: int) -> Process:
        """Begin a command and leave it to the test."""
        surroundings = {**self.environment, **(environment or {})}
        return warm_process.start(["-m", "tenuto", *words], cwd=self.folder, env=surroundings, **streams)

    def start(self, *words: str) -> Service:
        """Run a command that does not end by itself."""
        self.services.append(Service(self.begin(*words)))
        return self.services[-1]


def bare_environment(**more: str) -> dict[str, str]:
    """Ours without anything that would steer Tenuto or colour its words; several may be up at once, each at a port of
    its own."""
    kept: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TENUTO_", "PG")) and name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")
    }
    return {**kept, "TENUTO_WEB_PORT": "0", **more}


@pytest.fixture
def open_shell(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    """A terminal in a folder with ``tasks.py``; its services are ended with the test."""
    (tmp_path / "tasks.py").write_text(TASKS)
    services: list[Service] = []

    def open_one(**environment: str) -> Shell:
        return Shell(tmp_path, bare_environment(**environment), services)

    yield open_one
    for service in services:
        service.end()


@pytest.fixture
def shell(open_shell: Callable[..., Shell], url: str, tmp_path: Path) -> Shell:
    """A terminal whose database is the test's, with the app at hand."""
    return open_shell(TENUTO_DATABASE=url, TENUTO_HOME=str(tmp_path / "home"), TENUTO_APP="tasks:app")


@pytest.fixture
def embedded_home() -> Iterator[Path]:
    """A home in which a server can run, also as root; nothing is left of it."""
    home = Path(tempfile.mkdtemp(prefix="tnt-cli-", dir="/tmp"))  # a disk, as everybody's
    home.chmod(0o755)
    yield home
    embedded_server.stop_now(home)
    shutil.rmtree(home, ignore_errors=True)
