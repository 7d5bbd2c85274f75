"""The runner of mutants: only a test that fails in time, and passes with the guard in place, has caught a mutant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.guards import runner
from tests.guards.guard import Remove, Replace, guard
from tests.guards.runner import (
    Verdict,
    environment,
    failing_tests,
    known_verdicts,
    results_text,
    run_tests,
    stored_results,
    try_mutant,
    verdict_of,
)

ENTRY = guard("some.guard", "Words.", Remove(), "test_some.py::test_it")
SMALL = """
import time, pytest

def test_passes(): pass
def test_fails(): assert False
def test_takes_long(): time.sleep(60)
@pytest.fixture
def broken(): raise OSError
def test_has_broken_fixture(broken): pass
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_small.py").write_text(SMALL)
    return tmp_path


def test_guard_with_a_renamed_test_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(runner, "GUARDS", (ENTRY,))
    runner.RESULTS.write_text(results_text({ENTRY.id: "caught"}))
    monkeypatch.setattr(runner, "GUARDS", (replace(ENTRY, tests=("test_other.py",)),))
    assert known_verdicts() == {ENTRY.id: "caught"}


@pytest.mark.parametrize(
    "change",
    [{"mutations": (Replace("a", "b"),)}, {"places": 2}, {"schema": "index"}],
    ids=str,
)
def test_changed_guard_counts_as_not_tried(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "GUARDS", (ENTRY,))
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.json")
    assert known_verdicts() == {}
    runner.RESULTS.write_text(results_text({ENTRY.id: "caught"}))
    assert known_verdicts() == {ENTRY.id: "caught"}

    monkeypatch.setattr(runner, "GUARDS", (replace(ENTRY, **change),))

    assert known_verdicts() == {}
    runner.RESULTS.write_text(results_text(known_verdicts()))
    assert stored_results()[ENTRY.id]["verdict"] == "not tried"


@pytest.mark.parametrize(
    ("before", "after", "is_tried"),
    [
        ("if a and b:  # guard: some.guard\n    c()", "if a:  # guard: some.guard\n    c()", False),
        ("if a and b:  # guard: some.guard\n    c()", "if (\n    a and b  # guard: some.guard\n):\n    d()", True),
        ("a = 1\nb = 2  # guard: some.guard", "a = 3\n# guard: some.guard\nb = 2  # why", True),
        ("-- guard: some.guard\nAND a = 1", "AND a = 2  -- guard: some.guard", False),
        ("WHERE b\nAND a = 1  -- guard: some.guard", "WHERE c\n  AND  a = 1 -- guard: some.guard", True),
    ],
)
def test_guard_whose_marked_code_has_changed_counts_as_not_tried(
    before: str, after: str, is_tried: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "GUARDS", (ENTRY,))
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(runner, "SOURCE", tmp_path)
    file = tmp_path / ("module.py" if "#" in before else "module.sql")
    file.write_text(before, encoding="utf-8")
    runner.RESULTS.write_text(results_text({ENTRY.id: "caught"}))
    assert known_verdicts() == {ENTRY.id: "caught"}

    file.write_text(after, encoding="utf-8")

    assert known_verdicts() == ({ENTRY.id: "caught"} if is_tried else {})


@pytest.mark.parametrize("jobs", [1, 2])
def test_test_that_fails_anyway_or_times_out_catches_no_mutant(small: Path, jobs: int) -> None:
    tests = [f"test_small.py::test_{name}" for name in ("passes", "fails", "takes_long", "has_broken_fixture")]
    failing = failing_tests(tests, small, jobs=jobs, timeout=1)
    assert failing == {tests[1]: "fails", tests[2]: "times out", tests[3]: "fails"}
    assert try_mutant(replace(ENTRY, tests=(tests[0], tests[1])), failing) is Verdict.FAILS_ANYWAY


def test_guard_without_its_marker_is_stale() -> None:
    assert try_mutant(ENTRY, {}) is Verdict.STALE


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("fails", Verdict.CAUGHT),
        ("passes", Verdict.NOT_CAUGHT),
        ("takes_long", Verdict.TIMED_OUT),
        ("has_broken_fixture", Verdict.BROKEN),
        ("is_gone", Verdict.BROKEN),
    ],
)
def test_mutant_is_caught_only_by_a_test_that_fails_in_time(name: str, verdict: Verdict, small: Path) -> None:
    report = run_tests([f"test_small.py::test_{name}"], small, root=small, timeout=1)
    assert verdict_of(report) is verdict


def test_tests_that_do_not_end_catch_no_mutant(small: Path) -> None:
    assert verdict_of(run_tests(["test_small.py"], small, root=small, total_timeout=0.1)) is Verdict.TIMED_OUT


def test_runner_uses_the_copy_and_no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", "postgresql://elsewhere/database")
    variables = environment(tmp_path)
    assert variables["PYTHONPATH"] == str(tmp_path)
    assert [name for name in variables if name.startswith("TENUTO_")] == []


def test_runner_selects_guards_by_parts_of_their_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list", "claim.skip", "renew.fence"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["claim.skip_locked", "renew.fence"]
    assert runner.main(["no such guard"]) == 2
