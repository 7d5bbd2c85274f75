"""The table of scenarios: it has all of them, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROWS = re.findall(r"^\| (A\d\d) \| (.*?) \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_table_has_every_scenario_once() -> None:
    assert [name for name, _ in ROWS] == [f"A{number:02}" for number in range(1, 69)]


def test_every_named_test_exists() -> None:
    for scenario, tests in ROWS:
        for path, name in re.findall(r"`([^`:]+)::(\w+)`", tests):
            assert f"def {name}(" in (FOLDER.parent / path).read_text(encoding="utf-8"), (scenario, path, name)
