"""Finds the marked places of guards in the source and applies mutations to them.

A marker is a comment: `# guard: claim.too_late` in Python, `-- guard: claim.skip_locked` in SQL; several ids are
separated by commas. At the end of a line it marks that line. On a separate line it marks the next line of code.
In Python the place is the innermost statement that contains the marked line, and of a compound statement only the
header, unless the whole statement is removed. In SQL the place is the marked line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.guards.guard import Condition, Guard, Insert, Mutation, Remove, Replace, Value

_MARKER = re.compile(r"(?:#|--) guard: (?P<ids>[a-z0-9_.]+(?:, [a-z0-9_.]+)*)$")
_MARKER_LIKE = re.compile(r"(?:#|--)\s*guard\b")
_SQL_PARTS = re.compile(r"(?P<code>(?:[^'\-]|'[^']*'|-(?!-))*)(?P<comment>--.*)?")
_SQL_CONDITION = re.compile(r"\b(?:WHERE|AND|OR|ON|WHEN|HAVING|IF|CHECK)\s+", re.IGNORECASE)
_SQL_TOKEN = re.compile(r"'[^']*'|\w+|\S")

_Statement = ast.stmt | ast.ExceptHandler


class StaleGuard(Exception):
    """The table entry of a guard does not fit the source."""


@dataclass(frozen=True, slots=True)
class Place:
    """A marked line of a source file; lines count from 1."""

    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


# --- finding places -------------------------------------------------------------------------------------------------


def marked_places(source: Path) -> dict[str, list[Place]]:
    """Return the marked places of every guard below this folder, in the order of files and lines."""
    found: dict[str, list[Place]] = defaultdict(list)
    for file in _source_files(source):
        text = file.read_text(encoding="utf-8")
        if not _MARKER_LIKE.search(text):
            continue
        for id, line in _markers(file, text):
            found[id].append(Place(file, line))
    return dict(found)


def places_of(guard: Guard, source: Path, marked: dict[str, list[Place]] | None = None) -> list[Place]:
    """Return the places of one guard; `marked` saves a second search."""
    if guard.schema is not None:
        return _migration_lines(source, guard.schema)
    return (marked_places(source) if marked is None else marked).get(guard.id, [])


def _source_files(source: Path) -> list[Path]:
    return sorted(file for file in source.rglob("*") if file.suffix in (".py", ".sql"))


def _migration_lines(source: Path, text: str) -> list[Place]:
    return [
        Place(file, number)
        for file in _source_files(source)
        if file.suffix == ".sql" and file.parent.name == "migrations"
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1)
        if re.search(rf"{re.escape(text)}(?!\w)", _sql_code(line))
    ]


def _markers(file: Path, text: str) -> Iterator[tuple[str, int]]:
    """Yield guard ids with the line that they mark."""
    waiting: list[str] = []
    lines = _python_lines(text) if file.suffix == ".py" else _sql_lines(text)
    for number, has_code, comment in lines:
        if comment and _MARKER_LIKE.search(comment):
            marker = _MARKER.search(comment)
            if marker is None:
                raise StaleGuard(f"{file}:{number}: not a marker: {comment!r}; write `guard: component.invariant`")
            waiting += marker["ids"].split(", ")
        if has_code:
            yield from ((id, number) for id in waiting)
            waiting = []
    if waiting:
        raise StaleGuard(f"{file}: no code follows the marker of {waiting}")


def _sql_lines(text: str) -> Iterator[tuple[int, bool, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        code = _sql_code(line)
        yield number, bool(code.strip()), line[len(code) :].strip()


def _sql_code(line: str) -> str:
    """Return the line without its comment."""
    parts = _SQL_PARTS.match(line)
    return parts["code"] if parts is not None and parts["comment"] else line


def _python_lines(text: str) -> Iterator[tuple[int, bool, str]]:
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    comments: dict[int, str] = {}
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string
        elif token.type not in no_code:
            with_code.update(range(token.start[0], token.end[0] + 1))
    for number in sorted(comments.keys() | with_code):
        yield number, number in with_code, comments.get(number, "")


def text_of(place: Place) -> str:
    """Return the marked code without comments and formatting. Two places with the same text have the same code."""
    text = place.file.read_text(encoding="utf-8")
    if place.file.suffix == ".sql":
        return " ".join(_sql_code(text.split("\n")[place.line - 1]).split())
    statement = _innermost_statement(ast.parse(text), place.line)
    for part in ("body", "orelse", "finalbody", "handlers"):
        if hasattr(statement, part):
            setattr(statement, part, [])
    return ast.dump(statement)


# --- applying mutations ---------------------------------------------------------------------------------------------


def mutate(guard: Guard, source: Path, marked: dict[str, list[Place]] | None = None) -> dict[Path, str]:
    """Return the new text of each file that the mutation of a guard changes."""
    places = places_of(guard, source, marked)
    if len(places) != guard.places:
        where = f"lines with {guard.schema!r} in the migrations" if guard.schema is not None else "markers"
        raise StaleGuard(f"{guard.id}: {len(places)} {where} instead of {guard.places}")
    if len(guard.mutations) not in (1, guard.places):
        raise StaleGuard(f"{guard.id}: {len(guard.mutations)} mutations for {guard.places} places")
    mutations = guard.mutations * guard.places if len(guard.mutations) == 1 else guard.mutations
    by_file: dict[Path, list[tuple[Place, Mutation]]] = defaultdict(list)
    for place, mutation in zip(places, mutations, strict=True):
        by_file[place.file].append((place, mutation))
    try:
        return {file: _mutated(file, changes) for file, changes in by_file.items()}
    except StaleGuard as error:
        raise StaleGuard(f"{guard.id}: {error}") from None


def _mutated(file: Path, changes: list[tuple[Place, Mutation]]) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        tree = ast.parse(text)
        edits = [_python_edit(text, tree, place.line, mutation) for place, mutation in changes]
    else:
        edits = [_sql_edit(text, place.line, mutation) for place, mutation in changes]
    mutated = text
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        mutated = mutated[: edit.start] + edit.text + mutated[edit.end :]
    if mutated == text:
        raise StaleGuard(f"the mutation changes nothing in {file}")
    if file.suffix == ".py":
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise StaleGuard(f"the mutated {file} is no Python: {error}") from None
    return mutated


def _replacement(text: str, start: int, end: int, mutation: Replace) -> _Edit:
    """Replace the only occurrence of a fragment between two offsets."""
    tokens = _SQL_TOKEN.findall(mutation.old)
    pattern = r"\s*".join(re.escape(token) for token in tokens)
    before = r"(?<!\w)" if re.match(r"\w", mutation.old) else ""
    after = r"(?!\w)" if re.search(r"\w$", mutation.old) else ""
    found = list(re.compile(f"{before}{pattern}{after}").finditer(text, start, end))
    if len(found) != 1:
        place = " ".join(text[start:end].split())
        raise StaleGuard(f"{mutation.old!r} occurs {len(found)} times in the marked place: {place}")
    return _Edit(found[0].start(), found[0].end(), mutation.new)


# --- Python


def _python_edit(text: str, tree: ast.Module, line: int, mutation: Mutation) -> _Edit:
    node = _innermost_statement(tree, line)
    starts = _line_starts(text)
    start, end = _span(text, starts, node)
    match mutation:
        case Remove():
            return _Edit(start, end, "pass")
        case Insert(code):
            indent = " " * node.col_offset
            return _Edit(start, start, "".join(f"{each}\n{indent}" for each in code.split("\n")))
        case Replace():
            return _replacement(_without_comments(text), start, _header_end(text, starts, node), mutation)
        case Condition(becomes):
            target: ast.expr | None = node.test if isinstance(node, ast.If | ast.While) else None
        case Value(becomes):
            target = _value_of(node)
    if target is None:
        raise StaleGuard(f"line {line} is the place of a {type(node).__name__}, which has no {type(mutation).__name__}")
    return _Edit(*_span(text, starts, target), becomes)


def _value_of(node: _Statement) -> ast.expr | None:
    if isinstance(node, ast.With | ast.AsyncWith):
        return node.items[0].context_expr
    value = getattr(node, "iter" if isinstance(node, ast.For | ast.AsyncFor) else "value", None)
    return value if isinstance(value, ast.expr) else None


def _innermost_statement(tree: ast.Module, line: int) -> _Statement:
    containing = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Statement) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not containing:
        raise StaleGuard(f"no statement contains line {line}")
    return max(containing, key=lambda node: (node.lineno, -(node.end_lineno or 0), node.col_offset))


def _header_end(text: str, starts: list[int], node: _Statement) -> int:
    """Return the offset at which the header of a compound statement ends, or the whole of another."""
    body = getattr(node, "body", None)
    return _span(text, starts, body[0])[0] if body else _span(text, starts, node)[1]


def _without_comments(text: str) -> str:
    """Return the text with blanks instead of comments, so that offsets stay the same."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + " " * len(token.string)
    return "\n".join(lines)


def _line_starts(text: str) -> list[int]:
    return [0, *(found.end() for found in re.finditer("\n", text))]


def _span(text: str, starts: list[int], node: ast.stmt | ast.expr | ast.ExceptHandler) -> tuple[int, int]:
    """Return the offsets of a node in the text; `ast` counts columns in bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def offset(line: int, column: int) -> int:
        begin = starts[line - 1]
        encoded = text[begin : begin + column].encode()[:column]
        return begin + len(encoded.decode(errors="ignore"))

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


# --- SQL


def _sql_edit(text: str, line: int, mutation: Mutation) -> _Edit:
    lines = text.split("\n")
    begin = sum(len(each) + 1 for each in lines[: line - 1])
    code = _sql_code(lines[line - 1]).rstrip()
    start, end = begin + len(code) - len(code.lstrip()), begin + len(code)
    match mutation:
        case Remove():
            return _Edit(start, end, ";" if code.endswith(";") else "")
        case Insert(inserted):
            return _Edit(start, start, f"{inserted}\n")
        case Replace():
            return _replacement(text, start, end, mutation)
        case Condition(becomes):
            first, last = _sql_condition(code)
            return _Edit(begin + first, begin + last, becomes)
        case Value():
            raise StaleGuard("Value is for Python only")


def _sql_condition(code: str) -> tuple[int, int]:
    """Return where the first condition of a line begins and ends: before THEN, a comma, `;` or an extra parenthesis."""
    keyword = _SQL_CONDITION.search(code)
    if keyword is None:
        raise StaleGuard(f"the marked line has no condition: {code.strip()}")
    depth, end = 0, keyword.end()
    for token in _SQL_TOKEN.finditer(code, keyword.end()):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth < 0 or token[0] == ";" or (depth == 0 and token[0].upper() in ("THEN", ",")):
            break
        end = token.end()
    return keyword.end(), end
