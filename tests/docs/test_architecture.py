"""The house is as CONTRIBUTING and the page on architecture say: its rooms, their order, where errors are caught."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PACKAGE = ROOT / "src" / "tenuto"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def layers() -> list[set[str]]:
    """The rooms from the top down, as imports are checked by."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    drawn = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [{name.strip("() ") for name in layer.split("|")} - {"__main__"} for layer in drawn]


def blind_catches() -> Iterator[tuple[Path, str]]:
    """Every `except Exception` of the package, with its line."""
    for module in sorted(PACKAGE.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            caught = ast.unparse(node.type) if isinstance(node, ast.ExceptHandler) and node.type else ""
            if isinstance(node, ast.ExceptHandler) and re.search(r"\bException\b", caught):
                yield module, text.splitlines()[node.lineno - 1]


@pytest.mark.parametrize("page", [CONTRIBUTING, ARCHITECTURE], ids=lambda page: page.name)
def test_the_rooms_are_drawn_in_the_order_in_which_they_may_import(page: Path) -> None:
    drawing = next(block.text for block in blocks(page) if block.text.startswith("demo "))
    rows = [re.split(r" {2,}", line)[0].split(", ") for line in drawing.splitlines()]
    assert [set(row) for row in rows] == layers()


def test_every_room_has_a_line_in_the_table_of_modules() -> None:
    told = set(re.findall(r"\]\(\.\./src/tenuto/(\w+)", ARCHITECTURE.read_text(encoding="utf-8")))
    assert set().union(*layers()) - told == set()


def test_errors_are_caught_blindly_only_where_the_rules_say_and_each_time_with_a_reason() -> None:
    rule = re.search(
        r"`except Exception` is for .*?knows\s+the list", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL
    )
    assert rule
    found = list(blind_catches())
    assert {str(module.relative_to(PACKAGE)) for module, _ in found} == set(re.findall(r"`(\w+/\w+\.py)`", rule[0]))
    assert [line for _, line in found if not re.search(r"# (?:noqa: \w+ — )?\w.{15,}", line)] == []
