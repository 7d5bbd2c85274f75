"""Every error of the package is constructed with a stable code.

A code is a literal where the error is constructed. Three other forms are allowed: an error that is wrapped keeps its
code (``code=error.code``), a factory function takes the code as parameter (``code=code``), and an f-string inserts the
resource before a literal problem (``f"{kind}.not_found"``).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest

from tenuto import errors
from tenuto.errors import TenutoError
from tests.support.source_trees import last_name, parse_module

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "tenuto"
CODE = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")
DECLARED_ERRORS = {
    name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TenutoError)
}


@cache
def parse_modules() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((module, parse_module(module)) for module in sorted(PACKAGE.rglob("*.py")))


@cache
def error_classes() -> frozenset[str]:
    """Return the names of all error classes of the package, found by their base classes."""
    classes = [node for _, tree in parse_modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: set[str] = set(DECLARED_ERRORS)
    while more := {node.name for node in classes if _base_names(node) & found} - found:
        found |= more
    return frozenset(found)


def _base_names(node: ast.ClassDef) -> set[str]:
    return {last_name(base) for base in node.bases}


@cache
def classes_with_own_code() -> frozenset[str]:
    """Return the error classes whose constructor sets a default code."""
    return frozenset(
        node.name
        for _, tree in parse_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in error_classes() - {"TenutoError"} and _sets_code(node)
    )


def _sets_code(node: ast.ClassDef) -> bool:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            defaults = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
            by_default = any(argument.arg == "code" and default is not None for argument, default in defaults)
            calls = (call for call in ast.walk(method) if isinstance(call, ast.Call))
            return by_default or any(is_valid(code_of(call)) for call in calls if "__init__" in ast.unparse(call.func))
    return False


def constructions(tree: ast.AST, classes: Set[str]) -> Iterator[ast.Call]:
    """Yield the calls that construct an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in classes:
            yield node


def code_of(call: ast.Call) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)


def is_valid(code: ast.expr | None) -> bool:
    """Return whether the value of ``code=`` is a literal code or one of the allowed forms."""
    match code:
        case ast.Constant(value=str(text)):
            return CODE.fullmatch(text) is not None
        case ast.IfExp(body=body, orelse=orelse):
            return is_valid(body) and is_valid(orelse)
        case ast.Attribute(attr="code") | ast.Name(id="code"):
            return True
        case ast.JoinedStr(values=values):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in values)
            return CODE.fullmatch(text) is not None and isinstance(values[-1], ast.Constant)
        case _:
            return False


def test_every_error_has_a_stable_code() -> None:
    faults = []
    for module, tree in parse_modules():
        for call in constructions(tree, error_classes()):
            name, code = last_name(call.func), code_of(call)
            if not is_valid(code) and not (code is None and name in classes_with_own_code()):
                shown = None if code is None else ast.unparse(code)
                faults.append(f"{module.relative_to(PACKAGE)}:{call.lineno}: {name} code={shown}")
    assert faults == []


def test_codes_given_to_factories_are_well_formed() -> None:
    faults = [
        f"{module.relative_to(PACKAGE)}:{node.lineno}: {code.value}"
        for module, tree in parse_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(code := code_of(node), ast.Constant)
        and isinstance(code.value, str)
        and not is_valid(code)
    ]
    assert faults == []


def test_error_subclasses_outside_the_errors_module_are_found() -> None:
    assert error_classes() >= {"Invalid", "NotFound", "UnreadableSecret", "UnknownMasterKey"}
    assert "PermanentFailure" in classes_with_own_code()
    assert "Invalid" not in classes_with_own_code()


@pytest.mark.parametrize(
    ("source", "valid"),
    [
        ('Invalid("x")', False),
        ('Invalid("x", code="task.not_found")', True),
        ('Invalid("x", code="Task")', False),
        ('Invalid("x", code="task")', False),
        ('Invalid("x", code="a.b" if c else "a.c")', True),
        ('Invalid("x", code="a.b" if c else "A")', False),
        ('Invalid("x", code=error.code)', True),
        ('Invalid("x", code=code)', True),
        ('Invalid("x", code=f"{kind}.not_found")', True),
        ('Invalid("x", code=f"task.{problem}")', False),
        ('Invalid("x", code=CODES[0])', False),
    ],
)
def test_code_of_a_construction_is_literal_or_an_allowed_form(source: str, valid: bool) -> None:
    (call,) = constructions(ast.parse(source), {"Invalid"})
    assert is_valid(code_of(call)) is valid
