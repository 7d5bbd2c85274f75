"""Named SQL statements, read once from the ``.sql`` file beside the module that uses them.

A file is a list of blocks: ``-- name: claim``, a comment that says what it is for, the statement. Nothing is put
together at run time: what stands in the file is what the database gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Statements:
    """The statements of one file, as attributes."""

    def __init__(self, file: Path) -> None:
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        names, bodies = parts[1::2], parts[2::2]
        self._by_name = {name: body.strip().removesuffix(";") for name, body in zip(names, bodies, strict=True)}
        if len(self._by_name) != len(names):
            raise ValueError(f"{file} names a statement twice")

    def __getattr__(self, name: str) -> str:
        try:
            return self._by_name[name]
        except KeyError:
            raise AttributeError(f"no statement named {name}") from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._by_name.items())


def beside(module_file: str) -> Statements:
    """The statements of ``x.sql`` for the module ``x.py``."""
    return Statements(Path(module_file).with_suffix(".sql"))
