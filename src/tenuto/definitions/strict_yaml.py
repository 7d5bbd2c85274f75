"""Text of YAML or TOML becomes plain data: what JSON can say, and nothing else.

Readers of YAML disagree on what some words mean without quotes (``on``, ``18:30``, ``0755``). What would be one thing
here and another there is refused by name instead of guessed. Nothing is made from tags, nothing is merged, no name
stands twice, and size, depth and the copies aliases make are bounded. Nothing here opens a file or knows what the data
is for.
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

from tenuto.errors import Invalid

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 200_000
"""Of one document, copies made by aliases included."""
SUFFIXES = (".yaml", ".yml", ".toml")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")

_NULL = re.compile(r"|~|null|Null|NULL")
_TRUTH = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,100})")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,100}")
_FRACTION = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
# What one reader takes for a truth or a number, and another for text or for another number.
_TRUTH_TO_SOME = re.compile(r"(?:yes|Yes|YES|on|On|ON)|(?:no|No|NO|off|Off|OFF)")
_BASE_60_TO_SOME = re.compile(r"([-+]?)([1-9][0-9]*(?::[0-5]?[0-9])+)(?:\.[0-9]*)?")
_NUMBER_TO_SOME = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*_[0-9_]*|0o[0-7]+|[-+]?0b[01_]+")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Document:
    """A file that has been read."""

    name: str
    value: Any
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where each value begins, by its path, as far as the format tells."""

    def place(self, path: str) -> str:
        """The file, and the line of a value or of what it is part of."""
        while path not in self.lines and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return f"{self.name}, line {self.lines[path]}" if path in self.lines else self.name


def read(name: str, content: bytes) -> Document:
    """The plain data of a file, whose name says in which format it is."""
    suffix = f".{name.rpartition('.')[2].lower()}" if "." in name else ""
    if suffix not in SUFFIXES:
        raise Invalid(f"{name} is neither YAML nor TOML", field="FILE", remedy=f"name it *{', *'.join(SUFFIXES)}")
    if len(content) > MAX_BYTES:
        raise Invalid(f"is larger than {MAX_BYTES:,} bytes", field=name, remedy="spread it over several files")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"is not UTF-8: {error.reason} at byte {error.start}", field=name) from None
    return _toml(name, text) if suffix == ".toml" else _Reading(name, text).document()


def below(path: str, part: str | int) -> str:
    """The path of a part of what stands at a path."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    if not _PLAIN_NAME.fullmatch(part):
        return f"{path}[{part[:80]!r}]"
    return f"{path}.{part}" if path else part


# --- YAML -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet."""

    made: dict[str, Any] | list[Any]
    path: str
    anchor: str | None
    before: int
    """How many values there were when it began."""
    name: str | None = None
    """Of a mapping: the name whose value is to come."""
    named_on: dict[str, int] = field(default_factory=dict)


class _Reading:
    """One YAML text, event by event: no graph of nodes is made, so nothing can be larger than the text but by alias."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._lines: dict[str, int] = {}
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._whole: Any = None
        self._documents = 0
        self._take: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.DocumentStartEvent: self._begin_document,
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: lambda event: self._begin(event, {}),
            yaml.SequenceStartEvent: lambda event: self._begin(event, []),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
        }

    def document(self) -> Document:
        try:
            for event in yaml.parse(self._text, Loader=_LOADER):
                take = self._take.get(type(event))
                if take is not None:
                    take(event)
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except yaml.YAMLError as error:
            why = getattr(error, "reason", None) or str(error)
            line = self._text.count("\n", 0, getattr(error, "position", 0)) + 1
            raise Invalid(f"is not YAML: {why}", field=f"{self._name}, line {line}") from None
        return Document(self._name, self._whole, self._lines)

    def _begin_document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._refused(event, "", "a second document begins", "put it into a file of its own")

    def _begin(self, event: Any, made: dict[str, Any] | list[Any]) -> None:
        path = self._path(event)
        if event.tag not in (None, "!"):
            raise self._refused(event, path, f"has the tag {event.tag:.80}", "leave the tag out")
        if len(self._open) >= MAX_DEPTH:
            raise self._refused(event, path, "is nested too deeply", f"keep to {MAX_DEPTH} levels")
        self._open.append(_Open(made, path, event.anchor, self._values))

    def _end(self, _event: Any) -> None:
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = (ended.made, self._values - ended.before + 1)
        self._put(ended.made)

    def _alias(self, event: Any) -> None:
        path = self._path(event)
        if event.anchor not in self._anchors:
            raise self._refused(
                event, path, f"points at &{event.anchor:.80}, which does not stand before it",
                "put a text that begins with * in quotes",
            )  # fmt: skip
        value, size = self._anchors[event.anchor]
        self._values += size - 1
        self._put(value)
        if self._values > MAX_VALUES:
            raise self._too_many(event)

    def _scalar(self, event: Any) -> None:
        within = self._open[-1] if self._open else None
        if within is not None and isinstance(within.made, dict) and within.name is None:
            self._name_of(event, within)
            return
        path = self._path(event)
        if event.tag not in _TEXT_TAGS:
            raise self._refused(event, path, f"has the tag {event.tag:.80}", "leave the tag out")
        plain = not event.style and event.tag is None
        value = self._unquoted(event, path) if plain else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        self._put(value)
        if self._values > MAX_VALUES:
            raise self._too_many(event)

    def _name_of(self, event: Any, within: _Open) -> None:
        """A name is text, whatever it looks like."""
        name: str = event.value
        path = below(within.path, name)
        line = event.start_mark.line + 1
        if name == "<<" and not event.style:
            raise self._refused(event, path, "merging is not supported", "write the fields out")
        if not name:
            raise self._refused(event, within.path, "has a field without a name", "name it, or take it out")
        if name in within.named_on:
            raise self._refused(
                event, path, f"is given twice, first on line {within.named_on[name]}", "take one of them out"
            )
        within.name, within.named_on[name] = name, line
        self._lines[path] = line

    def _put(self, value: Any) -> None:
        self._values += 1
        if not self._open:
            self._whole = value
            return
        within = self._open[-1]
        if isinstance(within.made, list):
            within.made.append(value)
        elif within.name is not None:
            within.made[within.name] = value
            within.name = None

    def _path(self, event: Any) -> str:
        """Where the value that begins with this event belongs."""
        if not self._open:
            return ""
        within = self._open[-1]
        if isinstance(within.made, list):
            path = below(within.path, len(within.made))
            self._lines[path] = event.start_mark.line + 1
            return path
        if within.name is None:
            raise self._refused(event, within.path, "has a name that is not text", "use plain names")
        return below(within.path, within.name)

    def _unquoted(self, event: Any, path: str) -> Any:
        text: str = event.value
        if _NULL.fullmatch(text):
            return None
        if text in _TRUTH:
            return _TRUTH[text]
        if _WHOLE.fullmatch(text):
            return int(text)
        if _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        if _FRACTION.fullmatch(text) and math.isfinite(number := float(text)):
            return number
        if (trap := _trap(text)) is not None:
            raise self._refused(event, path, *trap)
        return text

    def _too_many(self, event: Any) -> Invalid:
        return self._refused(
            event, "", f"it comes to more than {MAX_VALUES:,} values", "spread it over several files, without aliases"
        )

    def _refused(self, event: Any, path: str, why: str, remedy: str) -> Invalid:
        place = f"{self._name}, line {event.start_mark.line + 1}"
        return Invalid(why, field=f"{place}: {path}" if path else place, remedy=remedy)

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> Invalid:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line
        rows = self._text.splitlines() or [""]
        row = rows[min(line, len(rows) - 1)]
        begin = error.context_mark if error.context and "alias" in error.context else mark
        character = row[begin.column : begin.column + 1] if begin is not None else ""
        why = ", ".join(filter(None, (error.context, error.problem)))
        return Invalid(f"is not YAML: {why}", field=f"{self._name}, line {line + 1}", remedy=_hint(character, row, why))


def _trap(text: str) -> tuple[str, str] | None:
    """Why a text without quotes is not to be trusted, and how to write it instead."""
    quoted = f'in quotes: "{text:.80}"'
    if _TRUTH_TO_SOME.fullmatch(text):
        meant = "true" if text.lower() in ("yes", "on") else "false"
        return f"{text} without quotes is {meant} to some readers of YAML and a word to others", (
            f"write {meant}, or the word {quoted}"
        )
    if base_60 := _BASE_60_TO_SOME.fullmatch(text):
        number = 0
        for digits in base_60[2][:80].split(":"):
            number = number * 60 + int(digits or 0)
        return (
            f"{text:.80} without quotes is the number {base_60[1]}{number} to some readers of YAML and text to others",
            f"write it {quoted}",
        )
    if _NUMBER_TO_SOME.fullmatch(text):
        return (
            f"{text:.80} without quotes is a different number to different readers of YAML",
            f"write the number plainly, or the text {quoted}",
        )
    if _NO_NUMBER.fullmatch(text) or _FRACTION.fullmatch(text):
        return f"{text:.80} is no number that can be stored", f"give a number, or the text {quoted}"
    return None


def _hint(character: str, row: str, why: str) -> str:
    if character in ("*", "&", "@", "`", "%", "!"):
        return f"put a text that begins with {character} in quotes, such as a line of cron"
    if character == "\t" or row[: len(row) - len(row.lstrip())].count("\t"):
        return "indent with blanks: YAML knows no tabs there"
    if "mapping values" in why:
        return "put a text with a colon in it in quotes, and indent fields of one thing alike"
    return "look at the quotes, brackets and indents up to this line"


# --- TOML -----------------------------------------------------------------------------------------------------------


def _toml(name: str, text: str) -> Document:
    try:
        return Document(name, _plain(tomllib.loads(text), "", 0))
    except RecursionError:
        raise Invalid("is nested too deeply", field=name, remedy=f"keep to {MAX_DEPTH} levels") from None
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"is not TOML: {error}", field=name, remedy="texts stand in quotes; see toml.io") from None
    except Invalid as error:
        raise Invalid(error.message, field=f"{name}: {error.field}", remedy=error.remedy) from None


def _plain(value: Any, path: str, depth: int) -> Any:
    """The same with dates and times as text, as everything else here writes them."""
    if depth > MAX_DEPTH:
        raise Invalid("is nested too deeply", field=path, remedy=f"keep to {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _plain(part, below(path, key), depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, below(path, place), depth + 1) for place, part in enumerate(value)]
    if isinstance(value, time):
        return value.isoformat("auto" if value.second or value.microsecond else "minutes")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"{value} is no number that can be stored", field=path, remedy="give a number, or a text")
    return value
