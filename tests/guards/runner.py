"""Removes the guards one by one and checks that a test fails each time: `scripts/mutants`.

For each guard the source is copied to a temporary folder, the mutation of the guard is applied to the copy, and the
tests of the guard run against it (PYTHONPATH; the checkout is not changed). Each pytest process starts its own embedded
database server, so that several mutants can run at the same time. Before that the tests run once against an unchanged
copy: a test that fails there proves nothing. A test that exceeds its time limit proves nothing either, and gets a
second try. The verdicts are stored in results.json. Exit code 0: every mutant was caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from tests.guards.guard import Guard
from tests.guards.mutation import Place, StaleGuard, marked_places, mutate, places_of, text_of
from tests.guards.table import GUARDS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
RESULTS = Path(__file__).with_name("results.json")
MUTANT_TIMEOUT_SECONDS = 300.0
"""Time limit for the tests of one mutant together."""
TEST_TIMEOUT_SECONDS = 60.0
DEFAULT_JOBS = 2


class Verdict(StrEnum):
    """Result of one mutant. Only CAUGHT is good."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    STALE = "STALE"
    """The table entry does not fit the source."""
    FAILS_ANYWAY = "FAILS ANYWAY"
    """One of the tests fails without the mutation, too."""
    TIMED_OUT = "TIMED OUT"
    """No test failed, and one exceeded its time limit twice."""
    BROKEN = "BROKEN"
    """The tests could not run: the mutation breaks more than the guard."""
    NOT_TRIED = "not tried"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    selected = _selected(options.words, only_new=options.new)
    if options.list:
        _print("\n".join(f"{guard.id:48} {guard.description}" for guard in selected))
        return 0
    if not selected and options.new and not options.words:
        _print("every guard has been tried as it is, and caught")
        return 0
    if not selected:
        _print(f"no guard matches {' or '.join(options.words)}; scripts/mutants --list shows all")
        return 2
    missed = 0
    failing = failing_tests(dict.fromkeys(test for guard in selected for test in guard.tests), jobs=options.jobs)
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(try_mutant, guard, failing): guard for guard in selected}
        for done in as_completed(running):
            verdict = done.result()
            missed += verdict is not Verdict.CAUGHT
            # Read again: a run takes long, and another process may have stored verdicts meanwhile.
            RESULTS.write_text(results_text({**known_verdicts(), running[done].id: verdict}), encoding="utf-8")
    _print(f"\n{len(selected) - missed} of {len(selected)} caught")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/mutants", description="Remove the guards one by one and check that a test fails each time."
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only guards whose id contains one of these words")
    parser.add_argument("--new", action="store_true", help="only guards without the verdict 'caught' in results.json")
    parser.add_argument("--list", action="store_true", help="print the guards instead of trying them")
    parser.add_argument("--jobs", type=int, default=DEFAULT_JOBS, metavar="N", help="mutants to run at the same time")
    return parser


def _selected(words: Sequence[str], *, only_new: bool) -> list[Guard]:
    known = known_verdicts() if only_new else {}
    return [
        guard
        for guard in GUARDS
        if known.get(guard.id) != Verdict.CAUGHT and (not words or any(word in guard.id for word in words))
    ]


def try_mutant(guard: Guard, failing: Mapping[str, str]) -> Verdict:
    """Run the tests of a guard without it; `failing` are tests that prove nothing, with the reason."""
    began = time.monotonic()
    verdict, summary = _try_mutant(guard, failing)
    _print(f"{verdict:12} {guard.id} ({time.monotonic() - began:.0f} s; {summary})")
    return verdict


def _try_mutant(guard: Guard, failing: Mapping[str, str]) -> tuple[Verdict, str]:
    if useless := [test for test in guard.tests if test in failing]:
        return Verdict.FAILS_ANYWAY, f"{useless[0]} {failing[useless[0]]} without the mutation"
    with source_copy() as source:
        try:
            changed = mutate(guard, source)
        except StaleGuard as error:
            return Verdict.STALE, str(error)
        for file, text in changed.items():
            file.write_text(text, encoding="utf-8")
        report = run_tests(guard.tests, source, "-x")
        if report.timed_out and not report.failed:
            report = run_tests(guard.tests, source, "-x")
    return verdict_of(report), report.summary


@contextmanager
def source_copy() -> Iterator[Path]:
    """Copy the source to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tenuto-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


# --- running the tests ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one pytest process; tests by their ids as in the table."""

    ran: frozenset[str]
    failed: frozenset[str]
    timed_out: frozenset[str]
    broken: frozenset[str]
    """Tests with an error outside of the test itself, such as in a fixture."""
    summary: str


def verdict_of(report: Report) -> Verdict:
    if report.broken:
        return Verdict.BROKEN
    if report.failed:
        return Verdict.CAUGHT
    return Verdict.TIMED_OUT if report.timed_out else Verdict.NOT_CAUGHT


def failing_tests(
    tests: Iterable[str], root: Path = ROOT, *, jobs: int = 1, timeout: float = TEST_TIMEOUT_SECONDS
) -> dict[str, str]:
    """Run these tests once with every guard in place; return those that prove nothing, with the reason."""
    wanted = list(tests)
    _print(f"{len(wanted)} tests with every guard in place")
    began = time.monotonic()
    spread = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ()
    with source_copy() as source:
        total = MUTANT_TIMEOUT_SECONDS * len(wanted)
        report = run_tests(wanted, source, *spread, root=root, timeout=timeout, total_timeout=total)
        late = [test for test in wanted if _contains(report.timed_out, test)]
        again = run_tests(late, source, root=root, timeout=timeout, total_timeout=total) if late else report
    reasons = {test: _failure(test, again if test in late else report) for test in wanted}
    failing = {test: reason for test, reason in reasons.items() if reason is not None}
    seconds = time.monotonic() - began
    _print(f"{len(wanted) - len(failing)} of them pass ({seconds:.0f} s; {report.summary})\n")
    return failing


def _failure(test: str, report: Report) -> str | None:
    if _contains(report.failed | report.broken, test):
        return "fails"
    if _contains(report.timed_out, test):
        return "times out"
    return None if _contains(report.ran, test) else "does not run"


def _contains(tests: frozenset[str], test: str) -> bool:
    """A file is contained if one of its tests is."""
    return any(each == test or each.startswith(f"{test}::") for each in tests)


def run_tests(
    tests: Sequence[str],
    source: Path,
    *options: str,
    root: Path = ROOT,
    timeout: float = TEST_TIMEOUT_SECONDS,
    total_timeout: float = MUTANT_TIMEOUT_SECONDS,
) -> Report:
    """Run tests of the checkout against this source."""
    none = frozenset[str]()
    with tempfile.TemporaryDirectory(prefix="tenuto-mutant-") as folder:
        junit = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", f"--timeout={timeout:g}"),
            *(f"--junit-xml={junit}", *options),
            *(f"tests/{test}" for test in tests),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment(source),
                capture_output=True,
                text=True,
                timeout=total_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Report(none, none, frozenset(tests), none, f"no result within {total_timeout:.0f} s")
        lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
        summary = lines[-1].strip("= ")
        if done.returncode in (0, 1) and junit.exists():
            report = _read_report(junit, summary)
        else:
            report = Report(none, none, none, frozenset(tests), summary)
    if report.broken:
        _print(done.stdout[-2000:] + done.stderr[-2000:])
    return report


def _read_report(junit: Path, summary: str) -> Report:
    ran, failed, timed_out, broken = set[str](), set[str](), set[str](), set[str]()
    for case in ElementTree.parse(junit).iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        test = f"{file}.py::{case.get('name', '').partition('[')[0]}"
        ran.add(test)
        errors = [each for each in case if each.tag in ("failure", "error")]
        if any("pytest-timeout" in f"{each.get('message')}{each.text}" for each in errors):
            timed_out.add(test)
        elif errors:
            (broken if any(each.tag == "error" for each in errors) else failed).add(test)
    return Report(frozenset(ran), frozenset(failed), frozenset(timed_out), frozenset(broken), summary)


def environment(source: Path) -> dict[str, str]:
    """Return the environment of this process with the copy first, and without settings of Tenuto."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENUTO_")}
    return {**kept, "PYTHONPATH": str(source)}


# --- results --------------------------------------------------------------------------------------------------------


def known_verdicts() -> dict[str, str]:
    """Return the stored verdicts of guards whose mutation and marked code are the same as when they were tried."""
    stored = stored_results()
    marked = marked_places(SOURCE)
    return {
        guard.id: stored[guard.id]["verdict"]
        for guard in GUARDS
        if guard.id in stored and stored[guard.id]["digest"] == digest(guard, marked)
    }


def stored_results() -> dict[str, dict[str, str]]:
    """Return digest and verdict of each guard in results.json."""
    if not RESULTS.exists():
        return {}
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def results_text(verdicts: Mapping[str, str]) -> str:
    """Return the contents of results.json: one line for each guard of the table, sorted, so that changes merge."""
    marked = marked_places(SOURCE)
    lines = (
        f"{json.dumps(guard.id)}: {json.dumps(_result(guard, verdicts, marked))}"
        for guard in sorted(GUARDS, key=lambda guard: guard.id)
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _result(guard: Guard, verdicts: Mapping[str, str], marked: dict[str, list[Place]]) -> dict[str, str]:
    return {"digest": digest(guard, marked), "verdict": verdicts.get(guard.id, Verdict.NOT_TRIED)}


def digest(guard: Guard, marked: dict[str, list[Place]]) -> str:
    """Return a short digest of the mutation and of the marked code.

    The code around it and the tests are left out: otherwise most changes would make many verdicts outdated.
    """
    mutations = [[type(mutation).__name__, asdict(mutation)] for mutation in guard.mutations]
    code = [text_of(place) for place in places_of(guard, SOURCE, marked)]
    about = [guard.id, mutations, guard.places, guard.schema, code]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
