"""The table of scenarios: it has all of them, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TABLE = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (A\d\d) \| (.*?) \|", TABLE, re.MULTILINE)
SIZES = re.findall(r"^\| (A\d\d) \| (.*?) \| ([^|]*)with `scripts/proofs` \|$", TABLE, re.MULTILINE)
"""Scenarios whose tests are smaller in the suite than in `scripts/proofs`."""


def test_table_has_every_scenario_once() -> None:
    assert [name for name, _ in ROWS] == [f"A{number:02}" for number in range(1, 69)]


def test_every_named_test_exists() -> None:
    for scenario, tests in ROWS:
        for path, name in re.findall(r"`([^`:]+)::(\w+)`", tests):
            assert f"def {name}(" in (FOLDER.parent / path).read_text(encoding="utf-8"), (scenario, path, name)


def test_sizes_of_scenarios_are_those_of_their_tests() -> None:
    assert {scenario for scenario, _, _ in SIZES} == {"A54", "A59"}
    for scenario, tests, part in SIZES:
        files = {path for path, _ in re.findall(r"`([^`:]+)::(\w+)`", tests)}
        source = "".join((FOLDER.parent / path).read_text(encoding="utf-8") for path in files)
        pairs = re.findall(r"times\(([\d_]+), in_a_proof=([\d_]+)\)", source)
        found = [int(number) for pair in zip(*pairs, strict=True) for number in pair]
        assert [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", part)] == found, scenario
