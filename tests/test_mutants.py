"""The list of guards is up to date: each still stands where the list says, and has been seen to be missed by a test."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import trymutants
from tests.mutants import MUTANTS, Mutant
from tests.trymutants import (
    PAGE,
    ROOT,
    Verdict,
    asked,
    digest,
    environment,
    known_verdicts,
    page,
    red_anyway,
    rows_of,
    tried,
    verdict_of,
)

ENOUGH = 25


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_guard_stands_where_the_list_says_and_its_tests_are_there(mutant: Mutant) -> None:
    source = (ROOT / "src" / "tenuto" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.passage) == mutant.times, "bring tests/mutants.py up to date"
    assert mutant.passage != mutant.becomes
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (f"def {name}(" if name else "def test_") in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_every_guard_was_tried_as_it_stands_and_caught() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert rows == {mutant.name: (digest(mutant), "caught") for mutant in MUTANTS}, "run scripts/mutants"
    assert len(MUTANTS) >= ENOUGH


@pytest.mark.parametrize(
    "change", [{"passage": "another"}, {"becomes": "else"}, {"tests": ("test_other.py",)}, {"file": "ids.py"}], ids=str
)
def test_a_guard_that_has_changed_under_its_name_counts_as_not_tried(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant = Mutant("the guard", "clock.py", "passage", "", ("test_some.py::test_it",))
    monkeypatch.setattr(trymutants, "MUTANTS", (mutant,))
    monkeypatch.setattr(trymutants, "PAGE", tmp_path / "guards.md")
    trymutants.PAGE.write_text(page({mutant.name: "caught"}))
    assert known_verdicts() == {mutant.name: "caught"}

    monkeypatch.setattr(trymutants, "MUTANTS", (replace(mutant, **change),))

    assert known_verdicts() == {}
    assert rows_of(page(known_verdicts()))[mutant.name][1] == "not tried"


SMALL = """
import time, pytest

def test_passes(): pass
def test_fails(): assert False
def test_takes_long(): time.sleep(60)
@pytest.fixture
def broken(): raise OSError
def test_is_ill(broken): pass
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_small.py").write_text(SMALL)
    return tmp_path


def test_a_test_that_is_red_anyway_or_takes_too_long_can_catch_nothing(small: Path) -> None:
    tests = [f"test_small.py::test_{name}" for name in ("passes", "fails", "takes_long", "is_ill")]
    red = red_anyway(tests, small, limit=1)
    assert red == {tests[1]: "fails", tests[2]: "runs out of time", tests[3]: "fails"}
    mutant = Mutant("the guard", "clock.py", "passage", "", (tests[0], tests[1]))
    assert tried(mutant, red) is Verdict.RED_ANYWAY


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("fails", Verdict.CAUGHT),
        ("passes", Verdict.NOT_CAUGHT),
        ("takes_long", Verdict.OUT_OF_TIME),
        ("is_ill", Verdict.ILL),
        ("is_gone", Verdict.ILL),
    ],
)
def test_only_a_test_that_fails_in_time_has_caught_something(name: str, verdict: Verdict, small: Path) -> None:
    answer = asked([f"test_small.py::test_{name}"], small, root=small, limit=1)
    assert verdict_of(answer) is verdict


def test_tests_that_do_not_come_to_an_end_at_all_have_caught_nothing(small: Path) -> None:
    assert verdict_of(asked(["test_small.py"], small, root=small, patience=0.1)) is Verdict.OUT_OF_TIME


def test_the_tests_of_a_mutant_are_given_the_copy_and_none_of_the_callers_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", "postgresql://somebody/else")
    given = environment(tmp_path)
    assert given["PYTHONPATH"] == str(tmp_path)
    assert [name for name in given if name.startswith("TENUTO_")] == []


def test_guards_have_names_of_their_own() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
