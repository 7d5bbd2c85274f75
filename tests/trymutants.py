"""Takes the guards away one by one and sees that a test notices each time: `scripts/mutants`.

The list is tests/mutants.py; what came of each is written into docs/guards.md. The source is copied to a temporary
folder, one passage is replaced there, and the tests that must notice are run against the copy (PYTHONPATH; the checkout
is not touched). Exit code 0: every mutant was caught.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guards.md"
PATIENCE = 300.0


def main() -> int:
    words = sys.argv[1:]
    if words == ["--list"]:
        say("\n".join(mutant.name for mutant in MUTANTS))
        return 0
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if not chosen:
        say(f"no mutant is named like {' or '.join(words)}; scripts/mutants --list shows what there is")
        return 2
    verdicts = known_verdicts()
    for mutant in chosen:
        verdicts[mutant.name] = "caught" if is_caught(mutant) else "NOT CAUGHT"
        PAGE.write_text(page(verdicts), encoding="utf-8")
    missed = [mutant for mutant in chosen if verdicts[mutant.name] != "caught"]
    say(f"\n{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


def is_caught(mutant: Mutant) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenuto-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "tenuto" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.passage) != mutant.times:
            say(f"GONE        {mutant.name}: the passage stands {text.count(mutant.passage)} times in {mutant.file}")
            return False
        file.write_text(text.replace(mutant.passage, mutant.becomes), encoding="utf-8")
        caught, words = run_tests(mutant, source)
    say(f"{'caught' if caught else 'NOT CAUGHT':11} {mutant.name} ({time.monotonic() - began:.0f} s; {words})")
    return caught


def run_tests(mutant: Mutant, source: Path) -> tuple[bool, str]:
    """Whether a test failed, and pytest's last words. An error beside the tests is no answer: the mutant is ill."""
    tests = [f"tests/{test}" for test in mutant.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--timeout=60", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(source),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {PATIENCE:.0f} s"
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no words"]
    failed = done.returncode == 1 and " failed" in lines[-1] and " error" not in lines[-1]
    if done.returncode != 0 and not failed:
        say(done.stdout[-2000:] + done.stderr[-2000:])
    return failed, lines[-1].strip("= ")


def environment(source: Path) -> dict[str, str]:
    """This process's, with the copy before the checkout, and none of the caller's settings: tests bring their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENUTO_")}
    return {**kept, "PYTHONPATH": str(source)}


# --- the page -------------------------------------------------------------------------------------------------------


def known_verdicts() -> dict[str, str]:
    """What the page says already."""
    if not PAGE.exists():
        return {}
    return dict(re.findall(r"^\| ([^|]+?) \| .* \| ([^|]+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def page(verdicts: dict[str, str]) -> str:
    """The table as docs/guards.md."""
    rows = "\n".join(row(mutant, verdicts.get(mutant.name, "not tried")) for mutant in MUTANTS)
    return f"""# Guards

<!-- Made by scripts/mutants from `tests/mutants.py`: change it there, and run it. -->

What keeps the [guarantees](guarantees.md) is a few dozen conditions, locks and unique keys, most of them one line long.
Each of the {len(MUTANTS)} below was taken out of a copy of the source, and the tests named beside it were run against
that copy: *caught* means that one of them failed, as it must. So no guard is there that nobody would miss, and none can
be lost unnoticed.

| guard | stands in | its test | |
|---|---|---|---|
{rows}

To add one, see [`tests/mutants.py`](../tests/mutants.py). To try them: `scripts/mutants`, or `scripts/mutants renew`
for those with that word in their name.
"""


def row(mutant: Mutant, verdict: str) -> str:
    tests = ", ".join(f"[{words_of(test)}](../tests/{test.partition('::')[0]})" for test in mutant.tests)
    return f"| {mutant.name} | [`{mutant.file}`](../src/tenuto/{mutant.file}) | {tests} | {verdict} |"


def words_of(test: str) -> str:
    """A test's name as the sentence it is."""
    file, _, name = test.partition("::")
    return name.removeprefix("test_").replace("_", " ") if name else f"all of `{file}`"


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
