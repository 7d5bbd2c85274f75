"""Every claim of the page about many machines names a test that exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "how-to" / "scaling.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", TEXT)


def _tests_of(file: str) -> set[str]:
    """Return the tests of a module, those of classes as CLASS::NAME."""
    found = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
        elif isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef)):
            found.add(node.name)
    return found


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_scaling_page_names_existing_tests(file: str, name: str) -> None:
    assert name.rpartition("::")[2].startswith("test_")
    assert name in _tests_of(file)


def test_every_report_on_the_scaling_page_has_a_test() -> None:
    reports = TEXT.partition("## Reports of users of other schedulers")[2]
    rows = [line for line in reports.splitlines() if line.startswith("| ") and not line.startswith("| report |")]
    assert len(rows) >= 15
    assert not [row for row in rows if "`tests/" not in row]
