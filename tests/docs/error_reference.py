"""Generates the reference of error codes from the source: code, class and message of every error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.test_error_codes import DECLARED_ERRORS, PACKAGE, parse_modules

CODE = re.compile(r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$")
API = PACKAGE / "api"
OTHER_SOURCES = {"Refused": "HTTP API only", "print_error": "CLI only"}


@dataclass(frozen=True, order=True)
class ErrorCode:
    """One place in the source that creates an error with a code."""

    code: str
    kind: str
    message: str


def errors_page(header: str) -> str:
    by_code: dict[str, list[ErrorCode]] = {}
    for error in error_codes():
        by_code.setdefault(error.code, []).append(error)
    lines = [
        "# Error codes",
        "",
        header,
        "Every error has a stable code. The HTTP API returns it as `code` in problem+json, the CLI prints it with",
        "`-o json`, and `TenutoError.code` holds it in Python. Match on codes: messages may be reworded at any time.",
        "`…` is a value.",
        "",
    ]
    for resource in dict.fromkeys(code.split(".")[0] for code in by_code):
        lines += [f"## {resource}", "", "| code | class | message |", "|---|---|---|"]
        for code, errors in by_code.items():
            if code.split(".")[0] == resource:
                kinds = ", ".join(dict.fromkeys(error.kind for error in errors))
                messages = "<br>".join(dict.fromkeys(error.message for error in errors if error.message))
                lines.append(f"| `{code}` | {kinds} | {messages} |")
        lines.append("")
    return "\n".join(lines)


def error_codes() -> list[ErrorCode]:
    """Return every error code with its messages, sorted by code."""
    base_classes = _base_classes()
    return sorted({error for path, tree in parse_modules() for error in _errors_of(path, tree, base_classes)})


def _base_classes() -> dict[str, list[str]]:
    classes = [node for _, tree in parse_modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases] for node in classes}


def _errors_of(path: Path, tree: ast.Module, base_classes: Mapping[str, list[str]]) -> Iterator[ErrorCode]:
    factories = {
        node.name: ast.unparse(node.returns).strip("'\"").rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns
    }
    factories |= {"invalid_value": "Invalid", "invalid": "Invalid"}
    problems = dict(_assigned_problems(tree))
    enclosing_class = {
        call: node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for call in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and CODE.match(code.value):
                name = ast.unparse(node.func).rpartition(".")[2]
                name = enclosing_class[node] if name == "__init__" else factories.get(name, name)
                arguments = [_value_before(each, problems) for each in node.args]
                texts = list(filter(None, map(_template, arguments)))
                message = " … ".join(texts) if "invalid_value" in ast.unparse(node.func) else "".join(texts[:1])
                kind = _public_class(name, base_classes) or ("HTTP API only" if path.is_relative_to(API) else "")
                yield ErrorCode(code.value, kind, message)


def _assigned_problems(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Yield line and value of every assignment to a variable named ``problem``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                target, value = target.elts[0], value.elts[0]
            if isinstance(target, ast.Name) and target.id == "problem":
                yield node.lineno, value


def _value_before(argument: ast.expr, problems: Mapping[int, ast.expr]) -> ast.expr:
    """Return the last value of the variable ``problem`` before its use; other arguments unchanged."""
    if isinstance(argument, ast.Name) and argument.id == "problem" and problems:
        return problems[max((line for line in problems if line <= argument.lineno), default=min(problems))]
    return argument


def _public_class(name: str, base_classes: Mapping[str, list[str]]) -> str:
    """Return the error class of `tenuto.errors` that a class is or derives from."""
    pending = [part.strip() for part in name.split("|")]
    while pending:
        name = pending.pop(0)
        if name in DECLARED_ERRORS or name == "PermanentFailure":
            return f"`{name}`"
        if name in OTHER_SOURCES:
            return OTHER_SOURCES[name]
        pending += base_classes.get(name, [])
    return ""


def _template(node: ast.expr) -> str:
    """Return a message with ``…`` in place of its values; empty for anything else than a text."""
    match node:
        case ast.Constant(value=str() as text):
            template = text
        case ast.JoinedStr(values=values):
            template = "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.BinOp(left=left, right=right):
            template = f"{_template(left)}{_template(right)}"
        case ast.IfExp(body=body, orelse=orelse):
            return "<br>".join(filter(None, (_template(body), _template(orelse))))
        case _:
            return ""
    return " ".join(template.replace("|", "\\|").split())
