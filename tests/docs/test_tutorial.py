"""The tutorial is walked from its first command to its last, with `tenuto up` in the first terminal."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, typed
from tests.docs.test_examples import finished, missing, python_blocks, surroundings
from tests.folders import new_folder

PAGE = ROOT / "docs" / "tutorial.md"
SERVICES = ("up", "worker --name", "scheduler")
PLACEHOLDERS = {"ID", "PID"}


@pytest.fixture
def folder() -> Iterator[Path]:
    made = new_folder("tenuto-tutorial-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_the_tutorial_can_be_followed(url: str, folder: Path) -> None:
    environment = {**surroundings(folder), "TENUTO_DATABASE": url, "TENUTO_APP": "shop:app"}
    parts = [block.text for block in python_blocks(PAGE) if block.file == "shop.py"]
    (folder / "shop.py").write_text("\n".join(parts), encoding="utf-8")
    with first_terminal(folder, environment):
        for block in python_blocks(PAGE):
            if block.is_program and block.file is not None:
                (folder / block.file).write_text(block.text, encoding="utf-8")
                said = finished([block.file], folder, environment, "", str(block))
                assert missing(block.promised, said) is None, said
        lines = [line for line in typed(PAGE) if is_followed(line)]
        given = json.dumps([shlex.split(line)[1:] for line in lines])
        said = finished([str(Path(__file__).with_name("commands.py"))], folder, environment, given, "the commands")
        ends = [int(end) for end in said.splitlines()[-1].split()]
        assert [end for end in zip(lines, ends, strict=True) if not is_expected(*end)] == [], said


def test_the_tutorial_shows_every_way_to_look_at_work() -> None:
    shown = {" ".join(line.split()[1:3]) for line in typed(PAGE) if line.startswith("tenuto ")}
    assert {"task list", "task show", "task cancel", "activity list", "activity show", "worker list"} <= shown
    assert any(block.language == "console" for block in blocks(PAGE))


def is_followed(line: str) -> bool:
    words = shlex.split(line)
    is_service = line.removeprefix("tenuto ").startswith(SERVICES)
    return words[0] == "tenuto" and not is_service and not PLACEHOLDERS & set(words)


def is_expected(line: str, code: int) -> bool:
    """A job that fails ends with 1 and is meant to; an input that is refused, with 2."""
    if '"price": "cheap"' in line:
        return code == 2
    return code == (1 if '"order": -1' in line or "ask_supplier" in line else 0)


@contextmanager
def first_terminal(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """`tenuto up`, from its first word to its last."""
    with (folder / "up.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenuto", "up", "--grace", "0"], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        yield
        assert process.poll() is None, (folder / "up.log").read_text(encoding="utf-8")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
