"""SQL scripts: the interface of script drivers, and splitting a script into statements.

A driver is an async generator function that takes a `Script` and yields a `StatementResult` after every statement. When
it is closed or cancelled, the statement in progress must stop. The splitter knows PostgreSQL syntax: all kinds of
quotes, nested comments, parentheses and function bodies of statements (``BEGIN ATOMIC … END``).
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
    """A script to run, and its database."""

    url: str = field(repr=False)
    """The URL of the database, with credentials."""
    text: str = field(repr=False)
    parameters: Mapping[str, ParameterValue] = field(repr=False)
    """The values of ``:name`` in the text."""
    secret_parameters: frozenset[str]
    """The parameters that must not appear in the activity views of the database."""
    timeout_seconds: float
    """The time limit of each statement."""
    in_transaction: bool
    """Whether the whole script runs in one transaction."""
    on_notice: Callable[[str, str], None] = field(repr=False)
    """Receives notices of the database: a level (debug, info, warning) and a text."""
    forbidden_login: str | None = ""
    """The login of Tenuto in its own database. Scripts must use another login that is not a superuser. None if the
    settings allow any login."""


@dataclass(frozen=True, slots=True)
class StatementResult:
    """A finished statement."""

    command: str
    """The first keyword in upper case."""
    row_count: int | None
    """The number of rows written or found; None if the statement does neither."""


ScriptDriver = Callable[[Script], AsyncIterator[StatementResult]]


class ScriptFailed(StoreError):
    """A statement of a script was rejected or took too long."""


ParameterValue = str | int | float | bool | None

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
    | (?P<parameter>:[A-Za-z_]\w* )
    | (?P<word>     [A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]* )
    | (?P<number>   [0-9]+[\w.]* | \$[0-9]+ )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Matched piece by piece: a single expression would store hundreds of bytes for every repetition in the script.
_IN_QUOTES = {
    "escaped": re.compile(r"[^'\\]+|''|\\.|(?P<end>')", re.DOTALL),
    "quoted": re.compile(r"[^']+|''|(?P<end>')"),
    "named": re.compile(r'[^"]+|""|(?P<end>")'),
}
_IN_COMMENTS = re.compile(r"/\*|\*/")
_TRANSACTION_COMMANDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE TRANSACTION"})
_CLIENT_COPY = re.compile(r"\b(?:FROM STDIN|TO STDOUT)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script."""

    text: str
    line: int
    """The line of the script on which it begins."""
    keywords: str
    """Its words in upper case, without comments and quoted parts."""

    @property
    def command(self) -> str:
        """The first keyword."""
        return self.keywords.partition(" ")[0]

    @property
    def controls_transaction(self) -> bool:
        """Whether it begins or ends a transaction. Savepoints do neither."""
        words = self.keywords.split(" ")
        if words[0] == "ROLLBACK":
            return "TO" not in words[1:3]
        return words[0] in _TRANSACTION_COMMANDS or " ".join(words[:2]) in _TRANSACTION_COMMANDS


def split_statements(script: str, parameters: Mapping[str, str]) -> list[Statement]:
    """Return the statements of a script, with ``:name`` replaced by the literal of each parameter."""
    splitter = _StatementSplitter(script, parameters)
    found = list(splitter.split())
    if not found:
        raise Invalid("the SQL script contains no statement", code="step.sql.script.empty", field="script")
    if unused := parameters.keys() - splitter.used:
        raise Invalid(
            f"the SQL script does not use the parameter {min(unused)!r}",
            code="step.sql.parameter.unused",
            field=f"parameters.{min(unused)}",
            remedy=f"write it as :{min(unused)}, outside of quotes",
        )
    return found


def sql_literal(value: ParameterValue, *, field: str) -> str:
    """Return a value as a PostgreSQL literal that is valid under every setting for string literals."""
    if value is None:
        return " NULL "
    if isinstance(value, bool):
        return f" {str(value).upper()} "
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise Invalid(f"{field} {value} is not a finite number", code="step.sql.parameter.invalid", field=field)
        return f" ({json.dumps(value)}) "
    if "\0" in value:
        raise Invalid(
            f"{field} contains a NUL character",
            code="value.nul_character",
            field=field,
            remedy="remove it, or pass base64",
        )
    doubled = value.replace("'", "''")
    return f" E'{doubled.replace(chr(92), chr(92) * 2)}' " if "\\" in value else f" '{doubled}' "


class _StatementSplitter:
    """Splits a script in one pass."""

    def __init__(self, script: str, parameters: Mapping[str, str]) -> None:
        self._script = script
        self._parameters = parameters
        self.used: set[str] = set()
        self._last_counted = (0, 1)
        self._reset()

    def _reset(self) -> None:
        self._parts: list[str] = []
        self._keywords: list[str] = []
        self._start: int | None = None
        self._parenthesis_depth = 0
        self._block_depth = 0

    def split(self) -> Iterator[Statement]:
        place = 0
        while place < len(self._script):
            token = _TOKEN.match(self._script, place)
            assert token is not None
            kind, text = token.lastgroup or "", token.group()
            if kind == "block":
                text = self._read_comment(place)
            elif kind == "dollar":
                text = self._read_dollar_quote(text, place)
            elif kind in _IN_QUOTES:
                text = self._read_quote(place, token.end(), _IN_QUOTES[kind])
            if kind == "other" and text == "\\":
                raise self._syntax_error(place, "psql commands (with a backslash) are not SQL", "remove them")
            if kind == "other" and text == ";" and not self._parenthesis_depth and not self._block_depth:
                yield from self._finish_statement()
            else:
                self._add_token(kind, text, place)
            place += len(text)
        yield from self._finish_statement()

    def _add_token(self, kind: str, text: str, place: int) -> None:
        if kind in ("space", "comment", "block"):
            self._parts.append(text if self._start is not None else "")
            return
        if self._start is None:
            self._start = place
        if kind == "parameter" and text[1:] in self._parameters:
            self.used.add(text[1:])
            self._parts.append(self._parameters[text[1:]])
            return
        self._parts.append(text)
        if kind == "word":
            self._keywords.append(text.upper())
            self._track_block(text.upper())
        elif text in ("(", ")"):
            self._parenthesis_depth = max(0, self._parenthesis_depth + (1 if text == "(" else -1))

    def _track_block(self, word: str) -> None:
        """Track a function body of statements: it ends at the END of its BEGIN."""
        if self._block_depth:
            self._block_depth += {"CASE": 1, "END": -1}.get(word, 0)
        elif word == "ATOMIC" and self._keywords[-2:-1] == ["BEGIN"] and self._keywords[0] == "CREATE":
            self._block_depth = 1

    def _finish_statement(self) -> Iterator[Statement]:
        if self._start is not None:
            found = Statement("".join(self._parts).strip(), self._line(self._start), " ".join(self._keywords))
            if found.command == "COPY" and _CLIENT_COPY.search(found.keywords):
                raise self._syntax_error(
                    self._start, "COPY FROM STDIN and TO STDOUT are not supported", "use INSERT, or COPY a query"
                )
            yield found
        self._reset()

    def _read_comment(self, place: int) -> str:
        depth, at = 1, place + 2
        for mark in _IN_COMMENTS.finditer(self._script, at):
            depth += 1 if mark.group() == "/*" else -1
            if depth == 0:
                return self._script[place : mark.end()]
        raise self._syntax_error(place, "the comment that begins here does not end")

    def _read_quote(self, place: int, inside: int, pieces: re.Pattern[str]) -> str:
        for piece in pieces.finditer(self._script, inside):
            if piece.lastgroup == "end":
                return self._script[place : piece.end()]
        raise self._syntax_error(place, "the quote that begins here does not end")

    def _read_dollar_quote(self, tag: str, place: int) -> str:
        end = self._script.find(tag, place + len(tag))
        if end == -1:
            raise self._syntax_error(place, f"the text that begins here with {tag} does not end")
        return self._script[place : end + len(tag)]

    def _line(self, place: int) -> int:
        """Return the line number, counted from the last known one: scripts may be long."""
        before, line = self._last_counted
        self._last_counted = place, line + self._script.count("\n", before, place)
        return self._last_counted[1]

    def _syntax_error(self, place: int, problem: str, remedy: str | None = None) -> Invalid:
        return Invalid(
            f"line {self._line(place)} of the SQL script: {problem}",
            code="step.sql.script.invalid",
            field="script",
            remedy=remedy,
        )
