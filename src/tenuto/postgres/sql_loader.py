"""Named SQL statements, read once from the ``.sql`` file next to the module that uses them.

A file is a list of blocks: ``-- name: claim_tasks``, a comment that describes the statement, and the statement.
Comments are not sent to the database. A block ``-- fragment: claimed_task`` is a part that several statements share:
``{claimed_task}`` is replaced by it when the file is loaded. Fragments for several files are in ``fragments.sql``.
Nothing is assembled later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_COMMENT = re.compile(r"^\s*--.*\n|[ \t]+-- [^'\n]*$", re.MULTILINE)
_BLOCK = re.compile(r"^-- (name|fragment|columns): (\w+)\n", re.MULTILINE)
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
        blocks = list(_read_blocks(file))
        fragments = {**_shared_parts(), **{name: body for kind, name, body in blocks if kind == "fragment"}}
        self._by_name = {name: _expand(body, fragments) for kind, name, body in blocks if kind == "name"}
        if len({name for _, name, _ in blocks}) != len(blocks):
            raise ValueError(f"{file} contains two blocks with the same name")

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


def _read_blocks(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and text of the blocks of a file."""
    parts = _BLOCK.split(file.read_text(encoding="utf-8"))
    for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield kind, name, _without_comments(body)


def _expand(text: str, fragments: Mapping[str, str | ColumnList]) -> str:
    def replacement(match: re.Match[str]) -> str:
        name, form, first_parameter = match.groups()
        part = fragments.get(name)
        if part is None or isinstance(part, str) is not (form is None):
            raise ValueError(f"there is no fragment for {match[0]}")
        return _expand(part, fragments) if isinstance(part, str) else part.expand(form, int(first_parameter or 1))

    return _PLACEHOLDER.sub(replacement, text)


@cache
def _shared_parts() -> dict[str, str | ColumnList]:
    blocks = _read_blocks(_FRAGMENTS_FILE)
    return {name: body if kind == "fragment" else _parse_columns(body) for kind, name, body in blocks}


def _parse_columns(text: str) -> ColumnList:
    columns = []
    for line in text.splitlines():
        column, _, default = line.partition(" = ")
        name, type = column.split()
        columns.append(Column(name, type, default or None))
    return ColumnList(tuple(columns))
