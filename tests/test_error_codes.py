"""Every error of the package is constructed with a literal, stable code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

from tenuto import errors
from tenuto.errors import TenutoError

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "tenuto"
CODE = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")
DECLARED_ERRORS = {
    name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TenutoError)
}


@cache
def error_classes() -> frozenset[str]:
    """Return the names of all error classes of the package, found by their base classes."""
    trees = [ast.parse(module.read_text(encoding="utf-8")) for module in PACKAGE.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = set(DECLARED_ERRORS)
    while more := {node.name for node in classes if _base_names(node) & found} - found:
        found |= more
    return frozenset(found)


def _base_names(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def constructions(tree: ast.AST, classes: Set[str]) -> Iterator[ast.Call]:
    """Yield the calls that construct an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in classes:
            yield node


def codes_of(call: ast.Call) -> list[str] | None:
    """Return the literal codes of a construction (a conditional expression has two), or None."""
    for keyword in call.keywords:
        if keyword.arg == "code":
            return _literals(keyword.value)
    return None


def _literals(value: ast.expr) -> list[str] | None:
    match value:
        case ast.Constant(value=str(code)):
            return [code]
        case ast.IfExp(body=body, orelse=orelse):
            first, second = _literals(body), _literals(orelse)
            return None if first is None or second is None else first + second
        case _:
            return None


def test_every_error_has_a_literal_code() -> None:
    classes = error_classes()
    faults = []
    for module in sorted(PACKAGE.rglob("*.py")):
        for call in constructions(ast.parse(module.read_text(encoding="utf-8")), classes):
            codes = codes_of(call)
            if codes is None or not all(CODE.fullmatch(code) for code in codes):
                faults.append(f"{module.relative_to(PACKAGE)}:{call.lineno}: {ast.unparse(call.func)} code={codes}")
    assert faults == []


def test_error_subclasses_outside_the_errors_module_are_found() -> None:
    assert error_classes() >= {"Invalid", "NotFound", "UnreadableSecret", "UnknownMasterKey"}


def test_missing_computed_and_malformed_codes_are_not_literal_codes() -> None:
    source = (
        'Invalid("x"), Invalid("x", code=f"{a}.b"), Invalid("x", code="a.b" if c else "a.c"), Invalid("x", code="A")'
    )
    found = [codes_of(call) for call in constructions(ast.parse(source), {"Invalid"})]
    assert found == [None, None, ["a.b", "a.c"], ["A"]]
    assert CODE.fullmatch("schedule.trigger.never_fires")
    assert not CODE.fullmatch("A")
