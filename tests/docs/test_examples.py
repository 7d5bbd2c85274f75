"""Every Python block in the documentation is run, and prints what it says it prints."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, name, pages
from tests.support import warm_process
from tests.support.temp_dirs import new_temp_dir

PATIENCE = 40.0


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


EMBEDDED = ROOT / "README.md"
WALKED = ROOT / "docs" / "tutorial.md"  # by test_tutorial, with a worker beside
PAGES = [page for page in pages() if page != WALKED and any(block.reason is None for block in python_blocks(page))]


def runnable(page: Path) -> list[Block]:
    return [block for block in python_blocks(page) if block.reason is None]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder to run in and to be the home, which the server's own account can reach too."""
    made = new_temp_dir("tenuto-docs-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page: Path, url: str, folder: Path) -> None:
    environment = surroundings(folder)
    if page != EMBEDDED:
        environment["TENUTO_DATABASE"] = url
    run_files_and_programs(page, folder, environment)
    fragments = [block for block in runnable(page) if block.file is None and not block.is_program]
    if fragments:
        given = json.dumps([(block.line, block.text) for block in fragments])
        promised = [line for block in fragments for line in block.promised]
        arguments = [str(Path(__file__).with_name("code_fragments.py")), name(page)]
        said = finished(arguments, folder, environment, given, f"the fragments of {name(page)}")
        assert missing(promised, said) is None, f"{name(page)}\n{said}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_what_is_not_run_is_python_at_least(page: Path) -> None:
    for block in python_blocks(page):
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def run_files_and_programs(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Each file as it stands at its place in the page; tests all together, by pytest, at the end."""
    tests: list[str] = []
    for block in runnable(page):
        if block.file is None and not block.is_program:
            continue
        program = folder / (block.file or f"program_{block.line}.py")
        with program.open("a" if block.continues else "w", encoding="utf-8") as file:
            file.write(block.text)
        if program.name.startswith("test_"):
            tests.append(program.name)
            continue
        said = finished([program.name], folder, environment, "", str(block))
        assert missing(block.promised, said) is None, f"{block}\n{said}"
    if tests:
        arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *tests]
        finished(arguments, folder, environment, "", f"the tests of {name(page)}")


def surroundings(folder: Path) -> dict[str, str]:
    """The environment without settings of the caller's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENUTO_")}
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    alone = {"TENUTO_HOME": str(folder / "home"), "TENUTO_WEB_PORT": "0"}  # several may be up at once
    return {**kept, **alone, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def finished(arguments: list[str], folder: Path, environment: dict[str, str], given: str, what: str) -> str:
    """What a Python process prints; it must end well."""
    done = warm_process.run(arguments, cwd=folder, env=environment, input=given, timeout=PATIENCE)
    assert done.returncode == 0, f"{what} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def missing(promised: list[str], said: str) -> str | None:
    """The first promised line that was not printed, in order; other lines (a worker's log) may stand between."""
    lines = iter(said.splitlines())
    return next((words for words in promised if words not in (line.strip() for line in lines)), None)
