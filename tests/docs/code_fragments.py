"""Runs the Python fragments of one page, given as JSON on stdin: in order, in one namespace, with top-level `await`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from types import ModuleType
from typing import Any


async def run_fragments(page: str, fragments: list[tuple[int, str]]) -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    for line, text in fragments:
        # Blank lines in front make a traceback show the line number of the page.
        code = compile("\n" * (line - 1) + text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        result: Any = eval(code, module.__dict__)
        if inspect.isawaitable(result):
            await result
    for value in list(vars(module).values()):
        if type(value).__name__ == "Tenuto":
            await value.close()


if __name__ == "__main__":
    asyncio.run(run_fragments(sys.argv[1], json.load(sys.stdin)))
