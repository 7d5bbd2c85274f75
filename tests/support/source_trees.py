"""Syntax trees of source files for tests that read the source. Each file is parsed once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse_module(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), filename=str(module))


def last_name(node: ast.expr) -> str:
    """Return the name, or the attribute after the last dot; empty for other expressions.

    `ast.unparse` returns more, but takes longer than all other steps of a search through the source.
    """
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def last_two_names(node: ast.Attribute) -> str:
    """Return ``b.c`` for the expression ``a.b.c``."""
    return f"{last_name(node.value)}.{node.attr}"
