"""Every action that an operation records in the audit log is declared, with a sentence, and documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenuto
from tenuto.audit.actions import CORE_ACTIONS
from tenuto.extension import AuditAction, Extension
from tenuto.operations.built_in_extensions import BUILT_IN
from tests.support.extension_registries import make_registry
from tests.support.source_trees import parse_module

SOURCE = Path(tenuto.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "how-to" / "audit.md"
DEFINITION_KINDS = ("schedule", "manifest")


def declared_actions() -> list[AuditAction]:
    return [*CORE_ACTIONS, *(action for extension in BUILT_IN for action in extension.audit_actions())]


def recorded_actions() -> Iterator[str]:
    """Yield the actions with which operations call `_begin`."""
    for path in SOURCE.rglob("*.py"):
        module = parse_module(path)
        for function in ast.walk(module):
            if isinstance(function, ast.AsyncFunctionDef):
                for argument in first_arguments(function, "_begin"):
                    yield from values_of(argument, function, module)


def first_arguments(tree: ast.AST, name: str) -> list[ast.expr]:
    """Return the first arguments of the calls ``self.name(…)``."""
    return [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    ]


def values_of(expression: ast.expr, function: ast.AsyncFunctionDef, module: ast.Module) -> list[str]:
    """Return the values of the expression for an action: a text, a local variable, or the first parameter."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            texts = [""]
            for part in parts:
                texts = [before + after for before in texts for after in values_of(part, function, module)]
            return texts
        case ast.FormattedValue(value=ast.IfExp(body=body, orelse=orelse)):
            return values_of(body, function, module) + values_of(orelse, function, module)
        case ast.FormattedValue(value=ast.Attribute(attr="kind")):
            return list(DEFINITION_KINDS)
        case ast.Name(id=name):
            assigned = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
            ]
            found = assigned or first_arguments(module, function.name)
            return [value for each in found for value in values_of(each, function, module)]
        case _:
            raise AssertionError(f"the action {ast.unparse(expression)} of {function.name} cannot be determined")


def test_operations_record_exactly_the_declared_actions() -> None:
    assert set(recorded_actions()) == {action.name for action in declared_actions()}


def test_actions_are_declared_once_with_a_sentence() -> None:
    actions = declared_actions()
    assert len({action.name for action in actions}) == len(actions)
    assert [action for action in actions if not re.fullmatch(r"[a-z_]+\.[a-z_]+", action.name)] == []
    assert [action for action in actions if not re.fullmatch(r"[A-Z].+\.", action.help)] == []


def test_page_about_the_audit_log_lists_all_actions() -> None:
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(action.name, action.help) for action in declared_actions()]


def test_actions_of_built_in_extensions_have_a_prefix_of_their_own() -> None:
    prefixes = {
        extension.name: {action.name.partition(".")[0] for action in extension.audit_actions()}
        for extension in BUILT_IN
    }
    assert prefixes == {
        "one_shots": {"one_shot"}, "bulk_operations": {"operation"}, "logs": {"log"}, "events": {"event"},
        "approvals": {"approval"}, "doctor": set(),
    }  # fmt: skip
    own = {"one_shot", "operation", "log", "event", "approval"}
    assert not {action.name.partition(".")[0] for action in CORE_ACTIONS} & own


def test_registry_returns_the_actions_of_extensions_after_those_of_tenuto() -> None:
    class Stock(Extension):
        name = "stock"

        def audit_actions(self) -> list[AuditAction]:
            return [AuditAction("stock.item.add", "An item was added.")]

    registry = make_registry([Stock()], built_in=BUILT_IN)
    own = declared_actions()[len(CORE_ACTIONS) :]
    assert registry.audit_actions() == [*own, AuditAction("stock.item.add", "An item was added.")]
    assert registry.failures == []


@pytest.mark.parametrize("action", ["task.create", "stocks.change", "stock."])
def test_registry_rejects_actions_without_the_prefix_of_their_extension(action: str) -> None:
    class Stock(Extension):
        name = "stock"

        def audit_actions(self) -> list[AuditAction]:
            return [AuditAction("stock.change", "A row was changed."), AuditAction(action, "A row was changed.")]

    registry = make_registry([Stock()])
    assert registry.audit_actions() == []
    (failure,) = registry.failures
    assert (failure.extension, failure.part) == ("stock", "audit actions")
    assert repr(action) in failure.problem
