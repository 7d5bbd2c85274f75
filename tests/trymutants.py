"""Takes the guards away one by one and sees that a test notices each time: `scripts/mutants`.

The list is tests/mutants.py; what came of each is written into docs/guards.md. The source is copied to a temporary
folder, one passage is replaced there, and the tests that must notice are run against the copy (PYTHONPATH; the checkout
is not touched). Before that each of these tests is run once against a copy in which nothing is replaced: one that fails
there too has noticed nothing. Nor has one that ran out of time, which on a busy machine may happen to any; it is given
a second chance. Exit code 0: every mutant was caught.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guards.md"
PATIENCE = 300.0
"""How many seconds the tests of one mutant have together."""
LIMIT = 60.0
"""And one test by itself."""


class Verdict(StrEnum):
    """What came of a mutant. Only the first is good."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    GONE = "GONE"
    """The passage does not stand where the list says."""
    RED_ANYWAY = "RED ANYWAY"
    """A test of it fails with the guard in its place, too."""
    OUT_OF_TIME = "OUT OF TIME"
    """No test failed otherwise than by taking too long, twice."""
    ILL = "ILL"
    """The tests could not be run: the mutant breaks more than the guard."""
    NOT_TRIED = "not tried"


def main() -> int:
    words = sys.argv[1:]
    if words == ["--list"]:
        say("\n".join(mutant.name for mutant in MUTANTS))
        return 0
    if words == ["--new"]:
        known = known_verdicts()
        chosen = [mutant for mutant in MUTANTS if known.get(mutant.name) != Verdict.CAUGHT]
    else:
        chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if words == ["--new"] and not chosen:
        say("each was tried as it stands, and caught")
        return 0
    if not chosen:
        say(f"no mutant is named like {' or '.join(words)}; scripts/mutants --list shows what there is")
        return 2
    red = red_anyway(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    missed = 0
    for mutant in chosen:
        verdict = tried(mutant, red)
        missed += verdict is not Verdict.CAUGHT
        # Read anew: it takes an hour, and somebody else may have tried another one meanwhile.
        PAGE.write_text(page({**known_verdicts(), mutant.name: verdict}), encoding="utf-8")
    say(f"\n{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


def tried(mutant: Mutant, red: Mapping[str, str]) -> Verdict:
    began = time.monotonic()
    verdict, words = _tried(mutant, red)
    say(f"{verdict:11} {mutant.name} ({time.monotonic() - began:.0f} s; {words})")
    return verdict


def _tried(mutant: Mutant, red: Mapping[str, str]) -> tuple[Verdict, str]:
    if ill := [test for test in mutant.tests if test in red]:
        return Verdict.RED_ANYWAY, f"{ill[0]} {red[ill[0]]} with the guard in its place"
    with copied() as source:
        file = source / "tenuto" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.passage) != mutant.times:
            return Verdict.GONE, f"the passage stands {text.count(mutant.passage)} times in {mutant.file}"
        file.write_text(text.replace(mutant.passage, mutant.becomes), encoding="utf-8")
        answer = asked(mutant.tests, source, "-x")
        if answer.out_of_time and not answer.failed:
            answer = asked(mutant.tests, source, "-x")
    return verdict_of(answer), answer.words


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the source, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="tenuto-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


# --- running the tests ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What pytest says: tests by their ids, as the list of mutants names them."""

    ran: frozenset[str]
    failed: frozenset[str]
    out_of_time: frozenset[str]
    ill: frozenset[str]
    """Something beside the test went wrong: that is no answer of its own."""
    words: str


def verdict_of(answer: Answer) -> Verdict:
    if answer.ill:
        return Verdict.ILL
    if answer.failed:
        return Verdict.CAUGHT
    return Verdict.OUT_OF_TIME if answer.out_of_time else Verdict.NOT_CAUGHT


def red_anyway(tests: Iterable[str], root: Path = ROOT, *, limit: float = LIMIT) -> dict[str, str]:
    """Which of these tests can catch nothing, and why: run once, all together, with every guard in its place."""
    wanted = list(tests)
    say(f"{len(wanted)} tests with every guard in its place")
    began = time.monotonic()
    with copied() as source:
        answer = asked(wanted, source, root=root, limit=limit, patience=PATIENCE * len(wanted))
        late = [test for test in wanted if _is_among(answer.out_of_time, test)]
        again = asked(late, source, root=root, limit=limit, patience=PATIENCE * len(late)) if late else answer
    red = {test: why for test in wanted if (why := _why_red(test, again if test in late else answer))}
    say(f"{len(wanted) - len(red)} of them pass ({time.monotonic() - began:.0f} s; {answer.words})\n")
    return red


def _why_red(test: str, answer: Answer) -> str | None:
    if _is_among(answer.failed | answer.ill, test):
        return "fails"
    if _is_among(answer.out_of_time, test):
        return "runs out of time"
    return None if _is_among(answer.ran, test) else "does not run"


def _is_among(tests: frozenset[str], test: str) -> bool:
    """A whole file is if one of its tests is."""
    return any(each == test or each.startswith(f"{test}::") for each in tests)


def asked(
    tests: Sequence[str],
    source: Path,
    *options: str,
    root: Path = ROOT,
    limit: float = LIMIT,
    patience: float = PATIENCE,
) -> Answer:
    """Run these tests against this source."""
    nothing = frozenset[str]()
    with tempfile.TemporaryDirectory(prefix="tenuto-mutant-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", f"--timeout={limit:g}"),
            *(f"--junit-xml={report}", *options),
            *(f"tests/{test}" for test in tests),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=environment(source),
                capture_output=True,
                text=True,
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(nothing, nothing, frozenset(tests), nothing, f"no answer within {patience:.0f} s")
        lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no words"]
        words = lines[-1].strip("= ")
        if done.returncode in (0, 1) and report.exists():
            answer = _read(report, words)
        else:
            answer = Answer(nothing, nothing, nothing, frozenset(tests), words)
    if answer.ill:
        say(done.stdout[-2000:] + done.stderr[-2000:])
    return answer


def _read(report: Path, words: str) -> Answer:
    ran, failed, late, ill = set[str](), set[str](), set[str](), set[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        test = f"{file}.py::{case.get('name', '').partition('[')[0]}"
        ran.add(test)
        wrong = [each for each in case if each.tag in ("failure", "error")]
        if any("pytest-timeout" in f"{each.get('message')}{each.text}" for each in wrong):
            late.add(test)
        elif wrong:
            (ill if any(each.tag == "error" for each in wrong) else failed).add(test)
    return Answer(frozenset(ran), frozenset(failed), frozenset(late), frozenset(ill), words)


def environment(source: Path) -> dict[str, str]:
    """This process's, with the copy before the checkout, and none of the caller's settings: tests bring their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENUTO_")}
    return {**kept, "PYTHONPATH": str(source)}


# --- the page -------------------------------------------------------------------------------------------------------


def known_verdicts() -> dict[str, str]:
    """What the page says already, of mutants that are today what they were when they were tried."""
    found = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    same = (mutant for mutant in MUTANTS if mutant.name in found and found[mutant.name][0] == digest(mutant))
    return {mutant.name: found[mutant.name][1] for mutant in same}


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    """Of each guard on the page the digest of what was tried, and what came of it."""
    row = re.compile(r"^\| ([^|]+?) \| .* \| `([0-9a-f]+)` \| ([^|]+?) \|$", re.MULTILINE)
    return {name: (tried, verdict) for name, tried, verdict in row.findall(text)}


def digest(mutant: Mutant) -> str:
    """Stands for all that a verdict is about: what is replaced, where, by what, and who must notice."""
    about = [mutant.file, mutant.passage, mutant.becomes, mutant.times, *mutant.tests]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]


def page(verdicts: Mapping[str, str]) -> str:
    """The table as docs/guards.md."""
    rows = "\n".join(row(mutant, verdicts.get(mutant.name, Verdict.NOT_TRIED)) for mutant in MUTANTS)
    return f"""# Guards

<!-- Made by scripts/mutants from `tests/mutants.py`: change it there, and run it. -->

What keeps the [guarantees](guarantees.md) is some hundreds of conditions, locks and unique keys, most of them one line
long. Each of the {len(MUTANTS)} below was taken out of a copy of the source, and the tests named beside it were run
against that copy: *caught* means that one of them failed, as it must, and passes with the guard in its
place. So no guard is there that nobody would miss, and none can be lost unnoticed. The column before it
is a digest of what was tried (the passage, what took its place, the tests): if one of them changes, the
guard has to be tried again.

| guard | stands in | its test | tried | |
|---|---|---|---|---|
{rows}

To add one, see [`tests/mutants.py`](../tests/mutants.py). To try them: `scripts/mutants`, or `scripts/mutants renew`
for those with that word in their name.
"""


def row(mutant: Mutant, verdict: str) -> str:
    tests = ", ".join(f"[{words_of(test)}](../tests/{test.partition('::')[0]})" for test in mutant.tests)
    return (
        f"| {mutant.name} | [`{mutant.file}`](../src/tenuto/{mutant.file}) | {tests} | `{digest(mutant)}` | {verdict} |"
    )


def words_of(test: str) -> str:
    """A test's name as the sentence it is."""
    file, _, name = test.partition("::")
    return name.removeprefix("test_").replace("_", " ") if name else f"all of `{file}`"


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
