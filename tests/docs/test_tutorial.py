"""The tutorial works from its first command to its last, in order.

`tenuto up` runs in the first terminal. It is killed, restarted and stopped where the page says so; a scheduler and two
workers follow at the end. A service knows the jobs that the page showed before the service started, and no others.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto import Tenuto
from tests.docs.pages import ROOT, blocks, commands_of_block, console_commands, parts, python_blocks
from tests.docs.test_examples import first_missing_line, isolated_environment, run_python
from tests.support import warm_process
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually_blocking

PAGE = ROOT / "docs" / "tutorial.md"
SETUP_COMMANDS = ("scripts/setup", ". .venv/bin/activate", "mkdir ", "export ")
"""Commands that prepare the environment; the fixtures do it here."""
UP = "tenuto up"
RESTART = re.compile(r"\bRestart\b")
STOP = re.compile(r"\bStop `tenuto up`")
TIMEOUT_SECONDS = 60.0
COMMANDS_PER_PROCESS = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    created = new_temp_dir("tenuto-tutorial-")
    yield created
    shutil.rmtree(created, ignore_errors=True)


class TutorialReader:
    """Types the commands of the page and follows its instructions."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._services: dict[str, warm_process.Process] = {}
        self._pending: list[str] = []
        self._last_id = ""
        self.typed: list[str] = []

    def type(self, line: str) -> None:
        if is_service(line):
            self._run_pending()
            self._start(line)
        elif line == "kill -9 PID":
            self._run_pending()
            self._services[UP].kill()
            self._services[UP].wait()
        elif line.startswith("python "):
            self._run_pending()
            self._run_program(line.split()[1])
        elif line.startswith("printf "):
            subprocess.run(["bash", "-c", line], cwd=self._folder, check=True)
        elif line.startswith("tenuto "):
            self._pending.append(line)  # several commands share one process, which is faster
            if len(self._pending) == COMMANDS_PER_PROCESS:
                self._run_pending()
        else:
            assert line.startswith(SETUP_COMMANDS), f"the test cannot run {line!r}"
        self.typed.append(line)

    def read(self, text: str) -> None:
        """Follow the instructions in the text between two blocks."""
        if RESTART.search(text) or STOP.search(text):
            self._run_pending()
            self._stop([UP])
        if RESTART.search(text):
            self._start(UP, "--no-web")  # the web service takes a second to load and was shown before

    def finish(self) -> None:
        self._run_pending()
        self._stop(list(self._services))

    def kill_services(self) -> None:
        for service in self._services.values():
            if service.poll() is None:
                service.kill()
                service.wait()

    def _stop(self, lines: list[str]) -> None:
        """Stop services as Ctrl-C does; each must end with exit code 0."""
        services = {line: self._services.pop(line) for line in lines}
        for line, service in services.items():
            assert service.poll() is None, f"{line} has ended\n{self._read_log(line)}"
            service.send_signal(signal.SIGINT)
        for line, service in services.items():
            assert service.wait(timeout=TIMEOUT_SECONDS) == 0, f"{line}\n{self._read_log(line)}"

    def _start(self, line: str, *options: str) -> None:
        running = self._services.get(line)
        if running is None or running.poll() is not None:
            with self._log_path(line).open("w", encoding="utf-8") as log:
                self._services[line] = warm_process.start(
                    ["-m", *shlex.split(line), *options],
                    cwd=self._folder,
                    env=self._environment,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                )
            started = "scheduler started" if line == "tenuto scheduler" else "worker started"
            eventually_blocking(
                lambda: started in self._read_log(line) or self._services[line].poll(), timeout=TIMEOUT_SECONDS
            )

    def _run_program(self, name: str) -> None:
        (block,) = [block for block in python_blocks(PAGE) if block.file == name]
        (self._folder / name).write_text(block.text, encoding="utf-8")
        output = run_python([name], self._folder, self._environment, "", str(block))
        assert first_missing_line(block.expected_lines, output) is None, output

    def _run_pending(self) -> None:
        lines, self._pending = self._pending, []
        if lines:
            commands = [shlex.split(line)[1:] for line in lines]
            request = json.dumps({"commands": commands, "last_id": self._last_id})
            program = str(Path(__file__).with_name("command_runner.py"))
            output = run_python([program], self._folder, self._environment, request, "the commands")
            result = json.loads(output.splitlines()[-1])
            self._last_id = result["last_id"]
            exits = zip(lines, result["exit_codes"], strict=True)
            assert [(line, code) for line, code in exits if code != expected_exit_code(line)] == [], output

    def _log_path(self, line: str) -> Path:
        return self._folder / f"{line.replace(' ', '-')}.log"

    def _read_log(self, line: str) -> str:
        return self._log_path(line).read_text(encoding="utf-8")


@pytest.mark.slow
def test_tutorial_works_line_by_line(url: str, folder: Path) -> None:
    environment = {**isolated_environment(folder), "TENUTO_DATABASE": url, "TENUTO_APP": "shop:app"}
    environment["TENUTO_WORKER_GRACE_SECONDS"] = "0"
    reader = TutorialReader(folder, environment)
    try:
        for part in parts(PAGE):
            if isinstance(part, str):
                reader.read(part)
                continue
            if part.file == "shop.py":
                with (folder / "shop.py").open("a", encoding="utf-8") as shop:
                    shop.write(part.text + "\n")
            for line in commands_of_block(part):
                reader.type(line)
        reader.finish()
    finally:
        reader.kill_services()
    assert reader.typed == console_commands(PAGE)
    assert asyncio.run(list_refused_tasks(url)) == [], "a worker did not know a job: the page does not say Restart"


def test_tutorial_shows_the_commands_that_inspect_tasks() -> None:
    shown = {" ".join(line.split()[1:3]) for line in console_commands(PAGE) if line.startswith("tenuto ")}
    assert {"task list", "task show", "task cancel", "activity list", "activity show", "worker list"} <= shown
    assert any(block.language == "console" for block in blocks(PAGE))


async def list_refused_tasks(url: str) -> list[str]:
    async with Tenuto(url) as app:
        failed = await app.activities(state="failed", limit=500)
    return [record.name for record in failed if record.reason == "refused"]


def is_service(line: str) -> bool:
    return line in (UP, "tenuto scheduler") or line.startswith("tenuto worker --name")


def expected_exit_code(line: str) -> int:
    """Return 2 for a command with invalid input, 1 for a job that fails on purpose, otherwise 0.

    The doctor warns, because the server of the tests runs without fsync.
    """
    if line == "tenuto doctor":
        return 5
    if '"price": "cheap"' in line:
        return 2
    return 1 if any(text in line for text in ('"order": -1', "ask_supplier", "batch submit")) else 0
