"""Type checkers accept the intended uses of jobs and reject the mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED, REJECTED = "tests/typing/accepted.py", "tests/typing/rejected.py"


def run(*arguments: str) -> str:
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy_lines(file: str) -> set[int]:
    """Return the lines with errors of mypy."""
    output = run(sys.executable, "-m", "mypy", "--strict", file)
    return {int(line) for line in re.findall(rf"^{re.escape(file)}:(\d+): error: ", output, re.MULTILINE)}


def pyright_lines(file: str) -> set[int]:
    """Return the lines with errors of pyright."""
    output = run(sys.executable, "-m", "basedpyright", "--level", "error", "--outputjson", file)
    found = json.loads(output)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found}


CHECKERS = pytest.mark.parametrize("find_errors", [mypy_lines, pyright_lines], ids=["mypy", "pyright"])


@pytest.mark.slow
@CHECKERS
def test_type_checker_accepts_the_intended_uses_of_jobs(find_errors: Callable[[str], set[int]]) -> None:
    assert find_errors(ACCEPTED) == set()


@pytest.mark.slow
@CHECKERS
def test_type_checker_rejects_every_mistake(find_errors: Callable[[str], set[int]]) -> None:
    lines = (ROOT / REJECTED).read_text(encoding="utf-8").splitlines()
    assert find_errors(REJECTED) == {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}
