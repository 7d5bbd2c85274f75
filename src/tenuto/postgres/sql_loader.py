"""Named SQL statements, read once from the ``.sql`` file next to the module that uses them.

A file is a list of blocks: ``-- name: claim_tasks``, a comment that describes the statement, and the statement.
Comments are not sent to the database; nothing else is changed or assembled at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|[ \t]+-- [^'\n]*$", re.MULTILINE)


class SqlStatements:
    """The statements of one file, as attributes."""

    def __init__(self, file: Path) -> None:
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        names, bodies = parts[1::2], parts[2::2]
        self._by_name = {
            name: _COMMENT.sub("", body).strip().removesuffix(";") for name, body in zip(names, bodies, strict=True)
        }
        if len(self._by_name) != len(names):
            raise ValueError(f"{file} contains two statements with the same name")

    def __getattr__(self, name: str) -> str:
        try:
            return self._by_name[name]
        except KeyError:
            raise AttributeError(f"no statement named {name}") from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._by_name.items())


def load_statements(module_file: str) -> SqlStatements:
    """Load the statements of ``x.sql`` for the module ``x.py``."""
    return SqlStatements(Path(module_file).with_suffix(".sql"))
