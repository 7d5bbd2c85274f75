"""The acceptance checks of the dashboard: each has a test of its name, or the page about them names what covers it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "dashboard-checks.md"
BENCHMARK = ROOT / "benchmarks" / "dashboard.py"
CHECK_COUNT = 74


def benchmark_cases() -> list[re.Pattern[str]]:
    """Return patterns of the names of all cases of the benchmark `dashboard`; parts in braces stand for any text."""
    names: list[re.Pattern[str]] = []
    for node in ast.walk(ast.parse(BENCHMARK.read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Case"):
            continue
        match node.args[0]:
            case ast.Constant(value=str(text)):
                names.append(re.compile(re.escape(text)))
            case ast.JoinedStr(values=parts):
                texts = (re.escape(str(each.value)) if isinstance(each, ast.Constant) else ".+" for each in parts)
                names.append(re.compile("".join(texts)))
            case other:
                raise AssertionError(f"the name of a case cannot be read: {ast.unparse(other)}")
    return names


def test_every_check_has_a_test_or_an_entry_that_names_one() -> None:
    tests = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", tests))
    tested = {int(found[1]) for name in defined if (found := re.match(r"test_c(\d+)_", name))}
    rows = re.findall(r"^\| C(\d+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    entries = {int(number): text for number, text in rows}
    assert set(range(1, CHECK_COUNT + 1)) - tested - set(entries) == set()
    cases = benchmark_cases()
    for number, text in entries.items():
        named = re.findall(r"`([^`]+)`", text)
        covering = [each for each in named if each in defined or any(case.fullmatch(each) for case in cases)]
        assert covering, f"C{number} names no test and no case of the benchmark"
        assert set(named) - set(covering) == set(), f"C{number}"
