"""The reference page of error codes, read from the source: code, class and message of every error that is raised."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tenuto"
CODE = re.compile(r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$")


@dataclass(frozen=True, order=True)
class ErrorCode:
    code: str
    kind: str
    message: str
    remedy: str


def error_codes() -> list[ErrorCode]:
    """Return every error code with the messages that carry it, sorted by code."""
    return sorted({error for module in PACKAGE.rglob("*.py") for error in _errors_of(module)})


def errors_page(header: str) -> str:
    by_code: dict[str, list[ErrorCode]] = {}
    for error in error_codes():
        by_code.setdefault(error.code, []).append(error)
    lines = [
        "# Error codes",
        "",
        header,
        "Every error has a stable code. The HTTP API returns it as `code` in problem+json, the CLI prints it with `--json`, and",
        "`TenutoError.code` holds it in Python. Match on codes: messages may be reworded at any time. `…` is a value.",
        "",
    ]
    for resource in dict.fromkeys(code.split(".")[0] for code in by_code):
        lines += [f"## {resource}", "", "| code | class | message |", "|---|---|---|"]
        for code, errors in by_code.items():
            if code.split(".")[0] == resource:
                kinds = ", ".join(dict.fromkeys(f"`{error.kind}`" for error in errors))
                messages = "<br>".join(dict.fromkeys(error.message for error in errors if error.message))
                lines.append(f"| `{code}` | {kinds} | {messages} |")
        lines.append("")
    return "\n".join(lines)


def _errors_of(module: Path) -> Iterator[ErrorCode]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            code = options.get("code")
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and CODE.match(code.value):
                kind = ast.unparse(node.func).split(".")[-1]
                message = _template(node.args[0]) if node.args else ""
                yield ErrorCode(code.value, kind, message, _template(options.get("remedy")))


def _template(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as text):
            parts = text
        case ast.JoinedStr(values=values):
            parts = "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in values)
        case _:
            return ""
    return " ".join(parts.replace("|", "\\|").split())
