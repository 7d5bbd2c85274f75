"""Runs the fragments of one page, given as JSON on stdin: in order, in one namespace, `await` allowed at the top."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from types import ModuleType
from typing import Any


async def run(page: str, fragments: list[tuple[int, str]]) -> None:
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    for line, text in fragments:
        # Moved down to its place in the page, so that a traceback names the page's own line.
        code = compile("\n" * (line - 1) + text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        result: Any = eval(code, module.__dict__)
        if inspect.isawaitable(result):
            await result
    for value in list(vars(module).values()):
        if type(value).__name__ == "Tenuto":
            await value.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], json.load(sys.stdin)))
