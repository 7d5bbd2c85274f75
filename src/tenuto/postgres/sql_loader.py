"""Named SQL statements, read once from the ``.sql`` file next to the module that uses them.

A file is a list of blocks: ``-- name: claim_tasks``, a comment that describes the statement, and the statement.
Comments are not sent to the database. Parts that several statements share are in ``fragments.sql``: ``{claimed_task}``
is replaced by the fragment of that name when the file is loaded. Nothing is assembled later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|[ \t]+-- [^'\n]*$", re.MULTILINE)
_SHARED_BLOCK = re.compile(r"^-- (fragment|columns): (\w+)\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{([a-z_]+)(?:\.([a-z]+)(?: (\d+))?)?\}")
_FRAGMENTS_FILE = Path(__file__).with_name("fragments.sql")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list in ``fragments.sql``."""

    name: str
    type: str
    default: str | None
    """The default of the table, as text."""


@dataclass(frozen=True, slots=True)
class ColumnList:
    """The columns of a row that statements receive as parameters."""

    columns: tuple[Column, ...]

    def expand(self, form: str, first_parameter: int) -> str:
        """Return the list as names, values of an alias ``new``, or typed parameters from the given number.

        An array within an array is sent as text, because the driver cannot send it.
        """
        numbered = list(enumerate(self.columns, first_parameter))
        match form:
            case "names":
                return ", ".join(column.name for column in self.columns)
            case "values":
                return ", ".join(
                    f"new.{column.name}::{column.type}" if column.type.endswith("[]") else f"new.{column.name}"
                    for column in self.columns
                )
            case "scalars":
                return ", ".join(f"${number}::{column.type}" for number, column in numbered)
            case "arrays":
                return ", ".join(f"${number}::{column.type.removesuffix('[]')}[]" for number, column in numbered)
            case _:
                raise ValueError(f"columns have no form {form}")


class SqlStatements:
    """The statements of one file, as attributes."""

    def __init__(self, file: Path) -> None:
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        names, bodies = parts[1::2], parts[2::2]
        self._by_name = {name: _expand(_without_comments(body)) for name, body in zip(names, bodies, strict=True)}
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


def load_columns(name: str) -> tuple[Column, ...]:
    """Return the columns of a list in ``fragments.sql``."""
    found = _shared_parts()[name]
    assert isinstance(found, ColumnList)
    return found.columns


def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text).strip().removesuffix(";")


def _expand(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        name, form, first_parameter = match.groups()
        part = _shared_parts().get(name)
        if part is None or isinstance(part, str) is not (form is None):
            raise ValueError(f"fragments.sql has nothing for {match[0]}")
        return _expand(part) if isinstance(part, str) else part.expand(form, int(first_parameter or 1))

    return _PLACEHOLDER.sub(replacement, text)


@cache
def _shared_parts() -> dict[str, str | ColumnList]:
    parts = _SHARED_BLOCK.split(_FRAGMENTS_FILE.read_text(encoding="utf-8"))
    return {
        name: _without_comments(body) if kind == "fragment" else _parse_columns(_without_comments(body))
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def _parse_columns(text: str) -> ColumnList:
    columns = []
    for line in text.splitlines():
        column, _, default = line.partition(" = ")
        name, type = column.split()
        columns.append(Column(name, type, default or None))
    return ColumnList(tuple(columns))
