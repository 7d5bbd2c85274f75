"""Fixtures that run the command line in real processes, in a folder with an app and a clean environment.

Processes are forked from one with preloaded modules (see `tests.support.warm_process`); tests of the start of an
interpreter use `Shell.run_in_fresh_interpreter`.
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
"""An app as a user might write it."""

import time

from tenuto import Context, PermanentFailure, RetryPolicy, Tenuto

app = Tenuto()
not_an_app = 42


@app.job
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0))
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
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a command with ``-o json``."""
        error: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return error


class Service:
    """A command that runs until it is stopped."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def _read_lines(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, text: str) -> str:
        """Wait for a line on stderr that contains this text; return the line."""
        while (line := self._lines.get(timeout=60)) is not None:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the service ended without a line that contains {text!r}: {''.join(self.lines)}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout=60)

    def clean_up(self) -> None:
        """Kill the process and close its streams."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class Shell:
    """A working folder and an environment in which commands run."""

    folder: Path
    environment: dict[str, str]
    services: list[Service]

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> CommandResult:
        """Run a command to its end."""
        variables = {**self.environment, **environment}
        done = warm_process.run(["-m", "tenuto", *arguments], cwd=self.folder, env=variables, input=stdin, timeout=100)
        assert "Traceback" not in done.stderr or "TENUTO_DEBUG" in environment, done.stderr
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def run_in_fresh_interpreter(self, *arguments: str, stdin: str = "", **environment: str) -> CommandResult:
        """Run a command to its end in a new interpreter, without preloaded modules."""
        done = subprocess.run(
            [sys.executable, "-m", "tenuto", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def start_process(self, *arguments: str, environment: Mapping[str, str] | None = None, **streams: int) -> Process:
        """Start a command and return its process."""
        variables = {**self.environment, **(environment or {})}
        return warm_process.start(["-m", "tenuto", *arguments], cwd=self.folder, env=variables, **streams)

    def start_service(self, *arguments: str) -> Service:
        """Start a service; it is killed after the test."""
        self.services.append(Service(self.start_process(*arguments)))
        return self.services[-1]


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without variables that change Tenuto or its output; web services use any free port.

    The extension that is installed with Tenuto is enabled by a test that uses it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TENUTO_", "PG")) and name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")
    }
    return {**kept, "TENUTO_WEB_PORT": "0", "TENUTO_DISABLED_EXTENSIONS": "identity,notifications", **more}


@pytest.fixture
def open_shell(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    """Factory of shells in a folder with ``tasks.py``; their services are killed after the test."""
    (tmp_path / "tasks.py").write_text(TASKS)
    services: list[Service] = []

    def open_one(**environment: str) -> Shell:
        return Shell(tmp_path, clean_environment(**environment), services)

    yield open_one
    for service in services:
        service.clean_up()


@pytest.fixture
def shell(open_shell: Callable[..., Shell], url: str, tmp_path: Path) -> Shell:
    """A shell with the test database and the app of ``tasks.py``."""
    return open_shell(TENUTO_DATABASE=url, TENUTO_HOME=str(tmp_path / "home"), TENUTO_APP="tasks:app")


@pytest.fixture
def embedded_home() -> Iterator[Path]:
    """A home folder in which an embedded server can run, also as root; it is removed after the test."""
    home = Path(tempfile.mkdtemp(prefix="tnt-cli-", dir="/tmp"))  # on disk
    home.chmod(0o755)
    yield home
    embedded_server.stop_server(home)
    shutil.rmtree(home, ignore_errors=True)
