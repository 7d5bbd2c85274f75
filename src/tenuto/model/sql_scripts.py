"""A SQL script that is to be run, and what became of each of its statements: what drivers are given, and give.

A driver is an async generator function: it takes a `Script` and yields a `Ran` after every statement. When it is closed
or cancelled, the statement under way must really stop.

SQL scripts as text: where a statement ends, what it does, where its parameters stand.

Reads PostgreSQL's way of writing: quotes of every sort, comments within comments, parentheses, and the bodies of
functions that are statements themselves (``BEGIN ATOMIC … END``). Pure; knows no database.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tenuto.errors import Invalid, StoreError


@dataclass(frozen=True, slots=True)
class Script:
    """What is to be run, and where."""

    url: str = field(repr=False)
    """The address of the database, with the login."""
    text: str = field(repr=False)
    parameters: Mapping[str, Value] = field(repr=False)
    """What stands for ``:name`` in the text."""
    secret: frozenset[str]
    """Which of them must not be seen by anybody who looks at what the database is doing."""
    timeout_seconds: float
    """How long one statement may take."""
    transaction: bool
    """Whether all of it counts, or nothing."""
    notice: Callable[[str, str], None] = field(repr=False)
    """Takes what the database says on the way: a level (debug, info, warning) and words."""
    forbidden_login: str | None = ""
    """Who Tenuto itself is in its own database: scripts log in as somebody else, and not as a superuser. None if the
    settings allow any login."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement that came to its end."""

    command: str
    """The word it begins with, in capitals."""
    rows: int | None
    """How many rows it wrote, or found; None if it does neither."""


Driver = Callable[[Script], AsyncIterator[Ran]]


class ScriptFailed(StoreError):
    """A statement of a script was refused or took too long."""


Value = str | int | float | bool | None

_TOKEN = re.compile(
    r"""
      (?P<space>    \s+ )
    | (?P<comment>  --[^\n]* )
    | (?P<block>    /\* )
    | (?P<escaped>  [eE]' )
    | (?P<quoted>   ' )
    | (?P<named>    " )
    | (?P<dollar>   \$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$ )
    | (?P<cast>     :: | := )
    | (?P<wanted>   :[A-Za-z_]\w* )
    | (?P<word>     [A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]* )
    | (?P<number>   [0-9]+[\w.]* | \$[0-9]+ )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Piece by piece: in one expression every repetition would be remembered, at hundreds of bytes for two of the script's.
_IN_QUOTES = {
    "escaped": re.compile(r"[^'\\]+|''|\\.|(?P<end>')", re.DOTALL),
    "quoted": re.compile(r"[^']+|''|(?P<end>')"),
    "named": re.compile(r'[^"]+|""|(?P<end>")'),
}
_IN_COMMENTS = re.compile(r"/\*|\*/")
_ENDS_A_TRANSACTION = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE TRANSACTION"})
_OVER_THE_WIRE = re.compile(r"\b(?:FROM STDIN|TO STDOUT)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script."""

    text: str
    line: int
    """The line of the script it begins on."""
    bare: str
    """Its words in capitals, without comments and quoted parts."""

    @property
    def command(self) -> str:
        """The word it begins with."""
        return self.bare.partition(" ")[0]

    @property
    def touches_the_transaction(self) -> bool:
        """Whether it begins or ends a transaction; savepoints do neither."""
        words = self.bare.split(" ")
        if words[0] == "ROLLBACK":
            return "TO" not in words[1:3]
        return words[0] in _ENDS_A_TRANSACTION or " ".join(words[:2]) in _ENDS_A_TRANSACTION


def statements(script: str, parameters: Mapping[str, str]) -> list[Statement]:
    """The statements of a script, with ``:name`` replaced by what stands for each parameter."""
    reader = _Reader(script, parameters)
    found = list(reader.read())
    if not found:
        raise Invalid("holds no statement", field="script")
    if unused := parameters.keys() - reader.used:
        raise Invalid(
            "does not stand in the script",
            field=f"parameters.{min(unused)}",
            remedy=f"write it as :{min(unused)}, outside of quotes",
        )
    return found


def literal(value: Value, *, field: str) -> str:
    """A value as PostgreSQL writes it, whatever is in it and however strings are set to be read."""
    if value is None:
        return " NULL "
    if isinstance(value, bool):
        return f" {str(value).upper()} "
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise Invalid("is not a finite number", field=field)
        return f" ({json.dumps(value)}) "
    if "\0" in value:
        raise Invalid("contains a NUL character", field=field, remedy="remove it, or pass base64")
    doubled = value.replace("'", "''")
    return f" E'{doubled.replace(chr(92), chr(92) * 2)}' " if "\\" in value else f" '{doubled}' "


class _Reader:
    """Goes through a script once."""

    def __init__(self, script: str, parameters: Mapping[str, str]) -> None:
        self._script = script
        self._parameters = parameters
        self.used: set[str] = set()
        self._counted = (0, 1)
        self._clear()

    def _clear(self) -> None:
        self._out: list[str] = []
        self._bare: list[str] = []
        self._began: int | None = None
        self._parentheses = 0
        self._blocks = 0

    def read(self) -> Iterator[Statement]:
        place = 0
        while place < len(self._script):
            token = _TOKEN.match(self._script, place)
            assert token is not None
            kind, text = token.lastgroup or "", token.group()
            if kind == "block":
                text = self._comment_from(place)
            elif kind == "dollar":
                text = self._quoted_by(text, place)
            elif kind in _IN_QUOTES:
                text = self._quote_from(place, token.end(), _IN_QUOTES[kind])
            if kind == "other" and text == "\\":
                raise self._wrong(
                    place, "commands of psql (with a backslash) are not SQL", "leave them out: only SQL is understood"
                )
            if kind == "other" and text == ";" and not self._parentheses and not self._blocks:
                yield from self._statement()
            else:
                self._take(kind, text, place)
            place += len(text)
        yield from self._statement()

    def _take(self, kind: str, text: str, place: int) -> None:
        if kind in ("space", "comment", "block"):
            self._out.append(text if self._began is not None else "")
            return
        if self._began is None:
            self._began = place
        if kind == "wanted" and text[1:] in self._parameters:
            self.used.add(text[1:])
            self._out.append(self._parameters[text[1:]])
            return
        self._out.append(text)
        if kind == "word":
            self._bare.append(text.upper())
            self._nest(text.upper())
        elif text in ("(", ")"):
            self._parentheses = max(0, self._parentheses + (1 if text == "(" else -1))

    def _nest(self, word: str) -> None:
        """A function whose body is statements: it ends where its BEGIN does."""
        if self._blocks:
            self._blocks += {"CASE": 1, "END": -1}.get(word, 0)
        elif word == "ATOMIC" and self._bare[-2:-1] == ["BEGIN"] and self._bare[0] == "CREATE":
            self._blocks = 1

    def _statement(self) -> Iterator[Statement]:
        if self._began is not None:
            found = Statement("".join(self._out).strip(), self._line(self._began), " ".join(self._bare))
            if found.command == "COPY" and _OVER_THE_WIRE.search(found.bare):
                raise self._wrong(
                    self._began, "COPY FROM STDIN and TO STDOUT have nobody to talk to", "INSERT, or COPY a query"
                )
            yield found
        self._clear()

    def _comment_from(self, place: int) -> str:
        depth, at = 1, place + 2
        for mark in _IN_COMMENTS.finditer(self._script, at):
            depth += 1 if mark.group() == "/*" else -1
            if depth == 0:
                return self._script[place : mark.end()]
        raise self._wrong(place, "a comment that begins here does not end")

    def _quote_from(self, place: int, inside: int, pieces: re.Pattern[str]) -> str:
        for piece in pieces.finditer(self._script, inside):
            if piece.lastgroup == "end":
                return self._script[place : piece.end()]
        raise self._wrong(place, "a quote that begins here does not end")

    def _quoted_by(self, tag: str, place: int) -> str:
        end = self._script.find(tag, place + len(tag))
        if end == -1:
            raise self._wrong(place, f"a text that begins here with {tag} does not end")
        return self._script[place : end + len(tag)]

    def _line(self, place: int) -> int:
        """Counted from where it was counted last: scripts may be long."""
        before, line = self._counted
        self._counted = place, line + self._script.count("\n", before, place)
        return self._counted[1]

    def _wrong(self, place: int, why: str, remedy: str | None = None) -> Invalid:
        return Invalid(f"line {self._line(place)}: {why}", field="script", remedy=remedy)
