"""The tutorial is walked from its first command to its last, in order: with `tenuto up` in the first terminal, which is
killed, restarted and stopped where the page says so, and with a scheduler and two workers of their own at the end. What
is up knows the jobs that stood on the page when it was started, and no others."""

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
from tests.docs.pages import ROOT, blocks, lines_typed, passages, typed
from tests.docs.test_examples import finished, missing, python_blocks, surroundings
from tests.support import warm_process
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually_blocking

PAGE = ROOT / "docs" / "tutorial.md"
AROUND = ("scripts/setup", ". .venv/bin/activate", "mkdir ", "export ")
"""What makes the surroundings: here the fixtures do."""
UP = "tenuto up"
RESTARTED = re.compile(r"\bRestart\b")
STOPPED = re.compile(r"\bStop `tenuto up`")
PATIENCE = 60.0
TOGETHER = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    made = new_temp_dir("tenuto-tutorial-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Walk:
    """Somebody who types what the page says."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._services: dict[str, warm_process.Process] = {}
        self._ahead: list[str] = []
        self._last = ""
        self.followed: list[str] = []

    def type(self, line: str) -> None:
        if is_service(line):
            self._catch_up()
            self._start(line)
        elif line == "kill -9 PID":
            self._catch_up()
            self._services[UP].kill()
            self._services[UP].wait()
        elif line.startswith("python "):
            self._catch_up()
            self._run_program(line.split()[1])
        elif line.startswith("printf "):
            subprocess.run(["bash", "-c", line], cwd=self._folder, check=True)
        elif line.startswith("tenuto "):
            self._ahead.append(line)  # an interpreter is started once for several
            if len(self._ahead) == TOGETHER:
                self._catch_up()
        else:
            assert line.startswith(AROUND), f"nobody has typed {line!r}"
        self.followed.append(line)

    def read(self, words: str) -> None:
        """Do what the page says between two blocks."""
        if RESTARTED.search(words) or STOPPED.search(words):
            self._catch_up()
            self._stop([UP])
        if RESTARTED.search(words):
            self._start(UP, "--no-web")  # loading that takes a second, and it has been seen

    def end(self) -> None:
        self._catch_up()
        self._stop(list(self._services))

    def _stop(self, lines: list[str]) -> None:
        """What was started is stopped as Ctrl-C would, and leaves in good order."""
        services = {line: self._services.pop(line) for line in lines}
        for line, service in services.items():
            assert service.poll() is None, f"{line} has ended\n{self._log(line)}"
            service.send_signal(signal.SIGINT)
        for line, service in services.items():
            assert service.wait(timeout=PATIENCE) == 0, f"{line}\n{self._log(line)}"

    def give_up(self) -> None:
        for service in self._services.values():
            if service.poll() is None:
                service.kill()
                service.wait()

    def _start(self, line: str, *more: str) -> None:
        running = self._services.get(line)
        if running is None or running.poll() is not None:
            with self._path(line).open("w", encoding="utf-8") as log:
                self._services[line] = warm_process.start(
                    ["-m", *shlex.split(line), *more],
                    cwd=self._folder,
                    env=self._environment,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                )
            ready = "scheduler started" if line == "tenuto scheduler" else "worker ready"
            eventually_blocking(lambda: ready in self._log(line) or self._services[line].poll(), timeout=PATIENCE)

    def _run_program(self, name: str) -> None:
        (block,) = [block for block in python_blocks(PAGE) if block.file == name]
        (self._folder / name).write_text(block.text, encoding="utf-8")
        said = finished([name], self._folder, self._environment, "", str(block))
        assert missing(block.promised, said) is None, said

    def _catch_up(self) -> None:
        lines, self._ahead = self._ahead, []
        if lines:
            given = json.dumps({"lines": [shlex.split(line)[1:] for line in lines], "last": self._last})
            program = str(Path(__file__).with_name("commands.py"))
            said = finished([program], self._folder, self._environment, given, "the commands")
            told = json.loads(said.splitlines()[-1])
            self._last = told["last"]
            ends = zip(lines, told["codes"], strict=True)
            assert [end for end in ends if not is_expected(*end)] == [], said

    def _path(self, line: str) -> Path:
        return self._folder / f"{line.replace(' ', '-')}.log"

    def _log(self, line: str) -> str:
        return self._path(line).read_text(encoding="utf-8")


def test_the_tutorial_can_be_followed_line_by_line(url: str, folder: Path) -> None:
    environment = {**surroundings(folder), "TENUTO_DATABASE": url, "TENUTO_APP": "shop:app"}
    environment["TENUTO_WORKER_GRACE_SECONDS"] = "0"
    walk = Walk(folder, environment)
    try:
        for passage in passages(PAGE):
            if isinstance(passage, str):
                walk.read(passage)
                continue
            if passage.file == "shop.py":
                with (folder / "shop.py").open("a", encoding="utf-8") as shop:
                    shop.write(passage.text + "\n")
            for line in lines_typed(passage):
                walk.type(line)
        walk.end()
    finally:
        walk.give_up()
    assert walk.followed == typed(PAGE)
    assert asyncio.run(refused(url)) == [], "a worker did not know the job: the page does not say Restart"


def test_the_tutorial_shows_every_way_to_look_at_work() -> None:
    shown = {" ".join(line.split()[1:3]) for line in typed(PAGE) if line.startswith("tenuto ")}
    assert {"task list", "task show", "task cancel", "activity list", "activity show", "worker list"} <= shown
    assert any(block.language == "console" for block in blocks(PAGE))


async def refused(url: str) -> list[str]:
    async with Tenuto(url) as app:
        failed = await app.activities(state="failed", limit=500)
    return [record["name"] for record in failed if record["reason"] == "refused"]


def is_service(line: str) -> bool:
    return line in (UP, "tenuto scheduler") or line.startswith("tenuto worker --name")


def is_expected(line: str, code: int) -> bool:
    """A job that fails ends with 1 and is meant to; an input that is refused, with 2."""
    if '"price": "cheap"' in line:
        return code == 2
    fails = any(words in line for words in ('"order": -1', "ask_supplier", "batch submit"))
    return code == (1 if fails else 0)
