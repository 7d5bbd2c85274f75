"""Strict parsing of YAML and TOML text to plain data: JSON types only, with the line of each value.

YAML parsers disagree about some unquoted scalars (``on``, ``18:30``, ``0755``). Ambiguous scalars, tags, merge keys and
duplicate names are rejected. Size, depth and the copies made by aliases are bounded. The module opens no files.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

import yaml

from tenuto.errors import Invalid, quoted

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 200_000
"""Per document, including copies made by aliases."""
SUFFIXES = (".yaml", ".yml", ".toml")

_DEPTH_REMEDY = f"use at most {MAX_DEPTH} levels"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOLEANS = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,100})")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,100}")
_FRACTION = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
# Scalars that one parser takes for a boolean or number, and another for text or for another number.
_AMBIGUOUS_BOOLEAN = re.compile(r"(?:yes|Yes|YES|on|On|ON)|(?:no|No|NO|off|Off|OFF)")
_AMBIGUOUS_BASE_60 = re.compile(r"([-+]?)([1-9][0-9]*(?::[0-5]?[0-9])+)(?:\.[0-9]*)?")
_AMBIGUOUS_NUMBER = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*_[0-9_]*|0o[0-7]+|[-+]?0b[01_]+")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file."""

    name: str
    value: Any
    line_numbers: Mapping[str, int] = field(default_factory=dict)
    """The first line of each value by its path; empty for TOML."""

    def location(self, path: str) -> str:
        """Return the file and the line of a value or of its nearest parent."""
        while path not in self.line_numbers and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return f"{self.name}, line {self.line_numbers[path]}" if path in self.line_numbers else self.name


def parse_document(name: str, content: bytes) -> Document:
    """Parse the content of a file; the suffix of its name selects the format."""
    suffix = f".{name.rpartition('.')[2].lower()}" if "." in name else ""
    if suffix not in SUFFIXES:
        raise Invalid(
            f"{name} is neither YAML nor TOML",
            code="definition_file.format.unknown",
            field="FILE",
            remedy=f"name it *{', *'.join(SUFFIXES)}",
        )
    if len(content) > MAX_BYTES:
        raise Invalid(
            f"{name} is larger than {MAX_BYTES:,} bytes",
            code="definition_file.too_large",
            field=name,
            remedy="split it into several files",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(
            f"{name} is not UTF-8: {error.reason} at byte {error.start}",
            code="definition_file.encoding.invalid",
            field=name,
        ) from None
    return _parse_toml(name, text) if suffix == ".toml" else _YamlParser(name, text).parse()


def child_path(path: str, part: str | int) -> str:
    """Return the path of a part of the value at a path."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    if not _PLAIN_NAME.fullmatch(part):
        return f"{path}[{part[:80]!r}]"
    return f"{path}.{part}" if path else part


# --- YAML -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _OpenCollection:
    """A mapping or list that is being parsed."""

    value: dict[str, Any] | list[Any]
    path: str
    anchor: str | None
    value_count_before: int
    name: str | None = None
    """Of a mapping: the name whose value follows."""
    name_lines: dict[str, int] = field(default_factory=dict)


class _YamlParser:
    """Parses YAML by events, without a node graph, so that only aliases can make the result larger than the text."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._lines: dict[str, int] = {}
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._value_count = 0
        self._root: Any = None
        self._document_count = 0
        self._handlers: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.DocumentStartEvent: self._start_document,
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: lambda event: self._start_collection(event, {}),
            yaml.SequenceStartEvent: lambda event: self._start_collection(event, []),
            yaml.MappingEndEvent: self._end_collection,
            yaml.SequenceEndEvent: self._end_collection,
        }

    def parse(self) -> Document:
        try:
            for event in yaml.parse(self._text, Loader=_LOADER):
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(event)
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except yaml.YAMLError as error:
            problem = getattr(error, "reason", None) or str(error)
            line = self._text.count("\n", 0, getattr(error, "position", 0)) + 1
            field = f"{self._name}, line {line}"
            raise Invalid(f"{field}: not valid YAML: {problem}", code="definition_file.syntax", field=field) from None
        return Document(self._name, self._root, self._lines)

    def _start_document(self, event: Any) -> None:
        self._document_count += 1
        if self._document_count > 1:
            raise self._error(
                "a second document begins here",
                event,
                "",
                "put it into a separate file",
                code="definition_file.yaml.unsupported",
            )

    def _start_collection(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        path = self._value_path(event)
        if event.tag not in (None, "!"):
            raise self._error(
                f"tag {event.tag:.80} is not supported",
                event,
                path,
                "remove it",
                code="definition_file.yaml.unsupported",
            )
        if len(self._open) >= MAX_DEPTH:
            raise self._error("nested too deeply", event, path, _DEPTH_REMEDY, code="definition_file.too_deep")
        self._open.append(_OpenCollection(value, path, event.anchor, self._value_count))

    def _end_collection(self, _event: Any) -> None:
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = (ended.value, self._value_count - ended.value_count_before + 1)
        self._add_value(ended.value)

    def _alias(self, event: Any) -> None:
        path = self._value_path(event)
        if event.anchor not in self._anchors:
            raise self._error(
                f"alias *{event.anchor:.80} has no anchor before it",
                event,
                path,
                "put a text that begins with * in quotes",
                code="definition_file.alias.unknown",
            )
        value, size = self._anchors[event.anchor]
        self._value_count += size - 1
        self._add_value(value)
        if self._value_count > MAX_VALUES:
            raise self._too_many(event)

    def _scalar(self, event: Any) -> None:
        within = self._open[-1] if self._open else None
        if within is not None and isinstance(within.value, dict) and within.name is None:
            self._add_name(event, within)
            return
        path = self._value_path(event)
        if event.tag not in _TEXT_TAGS:
            raise self._error(
                f"tag {event.tag:.80} is not supported",
                event,
                path,
                "remove it",
                code="definition_file.yaml.unsupported",
            )
        plain = not event.style and event.tag is None
        value = self._plain_scalar(event, path) if plain else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        self._add_value(value)
        if self._value_count > MAX_VALUES:
            raise self._too_many(event)

    def _add_name(self, event: Any, within: _OpenCollection) -> None:
        """Set the name of the next value. Every name is text, even if it looks like a number."""
        name: str = event.value
        path = child_path(within.path, name)
        line = event.start_mark.line + 1
        if name == "<<" and not event.style:
            raise self._error(
                "merge keys are not supported",
                event,
                path,
                "write the fields out",
                code="definition_file.yaml.unsupported",
            )
        if not name:
            raise self._error(
                "a field has no name", event, within.path, "name or remove it", code="definition_file.name.invalid"
            )
        if name in within.name_lines:
            raise self._error(
                f"{quoted(name)} is given twice, first on line {within.name_lines[name]}",
                event,
                path,
                "remove one of them",
                code="definition_file.name.duplicate",
            )
        within.name, within.name_lines[name] = name, line
        self._lines[path] = line

    def _add_value(self, value: Any) -> None:
        self._value_count += 1
        if not self._open:
            self._root = value
            return
        within = self._open[-1]
        if isinstance(within.value, list):
            within.value.append(value)
        elif within.name is not None:
            within.value[within.name] = value
            within.name = None

    def _value_path(self, event: Any) -> str:
        """Return the path of the value that begins with this event."""
        if not self._open:
            return ""
        within = self._open[-1]
        if isinstance(within.value, list):
            path = child_path(within.path, len(within.value))
            self._lines[path] = event.start_mark.line + 1
            return path
        if within.name is None:
            raise self._error(
                "a name is a mapping or a list",
                event,
                within.path,
                "use plain names",
                code="definition_file.name.invalid",
            )
        return child_path(within.path, within.name)

    def _plain_scalar(self, event: Any, path: str) -> Any:
        text: str = event.value
        if _NULL.fullmatch(text):
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        if _FRACTION.fullmatch(text) and math.isfinite(number := float(text)):
            return number
        if (ambiguity := _find_ambiguity(text)) is not None:
            problem, remedy = ambiguity
            raise self._error(problem, event, path, remedy, code="definition_file.scalar.ambiguous")
        return text

    def _too_many(self, event: Any) -> Invalid:
        return self._error(
            f"the file has more than {MAX_VALUES:,} values",
            event,
            "",
            "split it into several files, without aliases",
            code="definition_file.too_many_values",
        )

    def _error(self, problem: str, event: Any, path: str, remedy: str, *, code: str) -> Invalid:
        location = f"{self._name}, line {event.start_mark.line + 1}"
        field = f"{location}: {path}" if path else location
        return Invalid(f"{field}: {problem}", code=code, field=field, remedy=remedy)

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> Invalid:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line
        rows = self._text.splitlines() or [""]
        row = rows[min(line, len(rows) - 1)]
        start = error.context_mark if error.context and "alias" in error.context else mark
        character = row[start.column : start.column + 1] if start is not None else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
        field = f"{self._name}, line {line + 1}"
        remedy = _suggest_remedy(character, row, problem)
        return Invalid(f"{field}: not valid YAML: {problem}", code="definition_file.syntax", field=field, remedy=remedy)


def _find_ambiguity(text: str) -> tuple[str, str] | None:
    """Return why an unquoted scalar is ambiguous, and how to write it instead."""
    quoted = f'in quotes: "{text:.80}"'
    if _AMBIGUOUS_BOOLEAN.fullmatch(text):
        meant = "true" if text.lower() in ("yes", "on") else "false"
        return (
            f"{text} without quotes is {meant} in some YAML parsers and text in others",
            f"write {meant}, or the text {quoted}",
        )
    if base_60 := _AMBIGUOUS_BASE_60.fullmatch(text):
        number = 0
        for digits in base_60[2][:80].split(":"):
            number = number * 60 + int(digits or 0)
        return (
            f"{text:.80} without quotes is the number {base_60[1]}{number} in some YAML parsers and text in others",
            f"write it {quoted}",
        )
    if _AMBIGUOUS_NUMBER.fullmatch(text):
        return (
            f"{text:.80} without quotes is a different number in different YAML parsers",
            f"write the number plainly, or the text {quoted}",
        )
    if _NOT_FINITE.fullmatch(text) or _FRACTION.fullmatch(text):
        return f"{text:.80} is not a number that can be stored", f"give a number, or the text {quoted}"
    return None


def _suggest_remedy(character: str, row: str, problem: str) -> str:
    if character in ("*", "&", "@", "`", "%", "!"):
        return f"put a text that begins with {character} in quotes, such as a cron line"
    if character == "\t" or row[: len(row) - len(row.lstrip())].count("\t"):
        return "indent with blanks instead of tabs"
    if "mapping values" in problem:
        return "put a text that contains a colon in quotes, and indent the fields of a mapping alike"
    return "check the quotes, brackets and indentation up to this line"


# --- TOML -----------------------------------------------------------------------------------------------------------


def _parse_toml(name: str, text: str) -> Document:
    try:
        return Document(name, _to_plain(tomllib.loads(text), name, "", 0))
    except RecursionError:
        raise _toml_error("nested too deeply", name, "", _DEPTH_REMEDY, code="definition_file.too_deep") from None
    except tomllib.TOMLDecodeError as error:
        remedy = "put texts in quotes; see toml.io"
        raise _toml_error(f"not valid TOML: {error}", name, "", remedy, code="definition_file.syntax") from None


def _toml_error(problem: str, name: str, path: str, remedy: str, *, code: str) -> Invalid:
    field = f"{name}: {path}" if path else name
    return Invalid(f"{field}: {problem}", code=code, field=field, remedy=remedy)


def _to_plain(value: Any, name: str, path: str, depth: int) -> Any:
    """Return the value with dates and times as text, as in YAML files."""
    if depth > MAX_DEPTH:
        raise _toml_error("nested too deeply", name, path, _DEPTH_REMEDY, code="definition_file.too_deep")
    if isinstance(value, dict):
        return {key: _to_plain(part, name, child_path(path, key), depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_to_plain(part, name, child_path(path, index), depth + 1) for index, part in enumerate(value)]
    if isinstance(value, time):
        return value.isoformat("auto" if value.second or value.microsecond else "minutes")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise _toml_error(
            f"{value} is not a number that can be stored",
            name,
            path,
            "give a number, or a text",
            code="definition_file.number.invalid",
        )
    return value
