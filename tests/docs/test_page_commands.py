"""The commands on the page about manifests work with the jobs of that page."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands_of_block, python_blocks
from tests.docs.test_examples import isolated_environment, run_python
from tests.support.temp_dirs import new_temp_dir

PAGE = ROOT / "docs" / "how-to" / "manifests.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    created = new_temp_dir("tenuto-commands-")
    yield created
    shutil.rmtree(created, ignore_errors=True)


@pytest.mark.slow
def test_commands_of_manifest_page_succeed_with_the_jobs_of_the_page(url: str, folder: Path) -> None:
    jobs = python_blocks(PAGE)[0].text.partition("app.manifest(")[0]
    (folder / "tasks.py").write_text(jobs, encoding="utf-8")
    console = next(block for block in blocks(PAGE) if "$ tenuto manifest add" in block.text)
    lines = commands_of_block(console)
    request = json.dumps({"commands": [shlex.split(line)[1:] for line in lines], "last_id": ""})
    environment = {**isolated_environment(folder), "TENUTO_DATABASE": url}
    program = str(Path(__file__).with_name("command_runner.py"))
    output = run_python([program], folder, environment, request, "the commands")
    exit_codes = json.loads(output.splitlines()[-1])["exit_codes"]
    assert [line for line, code in zip(lines, exit_codes, strict=True) if code] == [], output
    assert len(lines) > 5
