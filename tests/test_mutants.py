"""The list of guards is up to date: each still stands where the list says, and has been seen to be missed by a test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.trymutants import environment

ROOT = Path(__file__).resolve().parent.parent
ENOUGH = 25


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_guard_stands_where_the_list_says_and_its_tests_are_there(mutant: Mutant) -> None:
    source = (ROOT / "src" / "tenuto" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.passage) == mutant.times, "bring tests/mutants.py up to date"
    assert mutant.passage != mutant.becomes
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (f"def {name}(" if name else "def test_") in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_every_guard_was_tried_and_caught() -> None:
    page = (ROOT / "docs" / "guards.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert {row[0]: row[-1] for row in rows} == {mutant.name: "caught" for mutant in MUTANTS}, "run scripts/mutants"
    assert len(MUTANTS) >= ENOUGH


def test_the_tests_of_a_mutant_are_given_the_copy_and_none_of_the_callers_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", "postgresql://somebody/else")
    given = environment(tmp_path)
    assert given["PYTHONPATH"] == str(tmp_path)
    assert [name for name in given if name.startswith("TENUTO_")] == []


def test_guards_have_names_of_their_own() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
