"""Command lines of pages other than the tutorial, typed for real."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, typed
from tests.docs.test_examples import finished, python_blocks, surroundings
from tests.support.temp_dirs import new_temp_dir

PAGE = ROOT / "docs" / "how-to" / "manifests.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = new_temp_dir("tenuto-walks-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_the_commands_of_the_page_about_manifests_work_with_the_jobs_of_that_page(url: str, folder: Path) -> None:
    jobs = python_blocks(PAGE)[0].text.partition("app.manifest(")[0]
    (folder / "tasks.py").write_text(jobs, encoding="utf-8")
    console = next(block.text for block in blocks(PAGE) if "$ tenuto manifest add" in block.text)
    lines = [line for line in typed(PAGE) if f"$ {line}" in console]
    given = json.dumps({"lines": [shlex.split(line)[1:] for line in lines], "last": ""})
    environment = {**surroundings(folder), "TENUTO_DATABASE": url}
    said = finished([str(Path(__file__).with_name("commands.py"))], folder, environment, given, "the commands")
    codes = json.loads(said.splitlines()[-1])["codes"]
    assert [line for line, code in zip(lines, codes, strict=True) if code] == [], said
    assert len(lines) > 5
