"""Every Python block in the documentation runs and prints the expected output."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, page_name, pages, python_blocks
from tests.support import warm_process
from tests.support.temp_dirs import new_temp_dir

TIMEOUT_SECONDS = 40.0
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"


def runnable_blocks(page: Path) -> list[Block]:
    return [block for block in python_blocks(page) if block.reason is None]


PAGES = [page for page in pages() if page != TUTORIAL and runnable_blocks(page)]
"""The pages with code, except the tutorial, which has its own test."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A working directory and home that the account of the embedded server can reach."""
    created = new_temp_dir("tenuto-docs-")
    yield created
    shutil.rmtree(created, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_blocks_of_page_print_the_expected_output(page: Path, url: str, folder: Path) -> None:
    environment = isolated_environment(folder)
    if page != README:  # the README uses the embedded server
        environment["TENUTO_DATABASE"] = url
    run_files_and_programs(page, folder, environment)
    fragments = [block for block in runnable_blocks(page) if block.file is None and not block.is_program]
    if fragments:
        request = json.dumps([(block.line, block.text) for block in fragments])
        expected = [line for block in fragments for line in block.expected_lines]
        arguments = [str(Path(__file__).with_name("code_fragments.py")), page_name(page)]
        output = run_python(arguments, folder, environment, request, f"the fragments of {page_name(page)}")
        assert first_missing_line(expected, output) is None, f"{page_name(page)}\n{output}"


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_python_blocks_of_page_compile(page: Path) -> None:
    for block in python_blocks(page):
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def run_files_and_programs(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Write and run the files of a page in order; run its test modules together at the end."""
    test_modules: list[str] = []
    for block in runnable_blocks(page):
        if block.file is None and not block.is_program:
            continue
        program = folder / (block.file or f"program_{block.line}.py")
        with program.open("a" if block.continues_file else "w", encoding="utf-8") as file:
            file.write(block.text)
        if program.name.startswith("test_"):
            test_modules.append(program.name)
            continue
        output = run_python([program.name], folder, environment, "", str(block))
        assert first_missing_line(block.expected_lines, output) is None, f"{block}\n{output}"
    if test_modules:
        arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *test_modules]
        run_python(arguments, folder, environment, "", f"the tests of {page_name(page)}")


def isolated_environment(folder: Path) -> dict[str, str]:
    """Return the environment without the Tenuto settings of the caller."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TENUTO_")}
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    settings = {"TENUTO_HOME": str(folder / "home"), "TENUTO_WEB_PORT": "0"}  # several web services may run at once
    return {**inherited, **settings, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run_python(arguments: list[str], folder: Path, environment: dict[str, str], stdin: str, description: str) -> str:
    """Run a Python process that must succeed, and return its output."""
    done = warm_process.run(arguments, cwd=folder, env=environment, input=stdin, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, f"{description} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def first_missing_line(expected: list[str], output: str) -> str | None:
    """Return the first expected line that was not printed in this order; other lines, such as logs, are ignored."""
    lines = iter(output.splitlines())
    return next((text for text in expected if text not in (line.strip() for line in lines)), None)
