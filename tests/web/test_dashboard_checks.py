"""The acceptance checks of the dashboard: each has a test of its name, or the page about them names what covers it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "dashboard-checks.md"
CHECK_COUNT = 74


def test_every_check_has_a_test_or_an_entry_that_names_one() -> None:
    tests = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", tests))
    tested = {int(found[1]) for name in defined if (found := re.match(r"test_c(\d+)_", name))}
    rows = re.findall(r"^\| C(\d+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    entries = {int(number): text for number, text in rows}
    assert set(range(1, CHECK_COUNT + 1)) - tested - set(entries) == set()
    for number, text in entries.items():
        unknown = set(re.findall(r"`(test_\w+)`", text)) - defined
        assert unknown == set(), f"C{number}"
