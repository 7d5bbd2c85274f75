"""Strict parsing of YAML 1.2 and TOML text to plain data: JSON types only, with the line of each value.

Tags, merge keys and duplicate names are rejected. Size, depth and the copies made by aliases are bounded. The module
opens no files.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, ClassVar

import yaml

from tenuto.errors import Invalid, quoted

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 200_000
"""Per document, including copies made by aliases."""
MAX_PATH_LENGTH = 500
"""Lines of values with longer paths are not noted: many values below long names would fill the memory."""
SUFFIXES = (".yaml", ".yml", ".toml")

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
        raise _too_large(name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} at byte {error.start}"
        raise _error(problem, name, "save the file as UTF-8", code="definition_file.encoding.invalid") from None
    return _parse_toml(name, text) if suffix == ".toml" else _parse_yaml(name, text)


def child_path(path: str, part: str | int) -> str:
    """Return the path of a part of the value at a path."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    if not _PLAIN_NAME.fullmatch(part):
        return f"{path}[{part[:80]!r}]"
    return f"{path}.{part}" if path else part


def _error(problem: str, location: str, remedy: str | None = None, *, code: str) -> Invalid:
    return Invalid(f"{location}: {problem}", code=code, field=location, remedy=remedy)


def _too_deep(location: str) -> Invalid:
    return _error("nested too deeply", location, f"use at most {MAX_DEPTH} levels", code="definition_file.too_deep")


def _too_large(name: str) -> Invalid:
    remedy = "split it into several files, without aliases"
    return _error(f"the file is larger than {MAX_BYTES:,} bytes", name, remedy, code="definition_file.too_large")


def _too_many(name: str) -> Invalid:
    remedy = "split it into several files, without aliases"
    return _error(f"the file has more than {MAX_VALUES:,} values", name, remedy, code="definition_file.too_many_values")


# --- YAML -----------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_MAX_DIGITS = 1000


class _CoreLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML with the core schema of YAML 1.2 (§10.3.2) in place of the types of YAML 1.1.

    Other readers for YAML 1.2 were compared: ruamel.yaml is written in Python and takes six times as long; py-yaml12
    and yaml-rs do not report the lines of values.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _kind, _pattern, _first in (
    ("null", r"|~|null|Null|NULL", ["", "~", "n", "N"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _CoreLoader.add_implicit_resolver(_TAG + _kind, re.compile(rf"^(?:{_pattern})$"), _first)


def core_resolvers() -> Mapping[str, Any]:
    """Return the patterns of plain texts that are not strings, by first character, in the form of PyYAML."""
    return _CoreLoader.yaml_implicit_resolvers


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _parse_fraction(text: str) -> float:
    if not math.isfinite(number := float(text)):  # also fails for .inf and .nan, which Python spells differently
        raise ValueError
    return number


_PLAIN_VALUES: Mapping[str, Callable[[str], Any]] = {
    f"{_TAG}null": lambda _: None,
    f"{_TAG}bool": lambda text: text.lower() == "true",
    f"{_TAG}int": _parse_integer,
    f"{_TAG}float": _parse_fraction,
}


def _parse_yaml(name: str, text: str) -> Document:
    try:
        _check_yaml_size(name, text)
        root = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        raise _yaml_syntax_error(name, text, error) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise _error(
            f"not valid YAML: {getattr(error, 'reason', error)}", f"{name}, line {line}", code="definition_file.syntax"
        ) from None
    converter = _NodeConverter(name)
    return Document(name, None if root is None else converter.convert(root, "", 0), converter.lines)


def _check_yaml_size(name: str, text: str) -> None:
    """Check depth and number of nodes by events: composing the nodes of a very deep document would crash Python."""
    depth = count = 0
    for event in yaml.parse(text, Loader=_CoreLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        count += isinstance(event, yaml.NodeEvent)
        if depth > MAX_DEPTH:
            raise _too_deep(f"{name}, line {event.start_mark.line + 1}")
        if count > 2 * MAX_VALUES:  # of names and values
            raise _too_many(name)


class _NodeConverter:
    """Converts the nodes of a YAML document to plain data, and notes the lines of the values."""

    def __init__(self, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._name = name
        self._value_count = 0
        self._text_length = 0

    def convert(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._value_count += 1
        if depth > MAX_DEPTH:  # an alias to a collection around it
            raise _too_deep(self._location(node, path))
        if self._value_count > MAX_VALUES:  # copies made by aliases
            raise _too_many(self._name)
        if isinstance(node, yaml.ScalarNode):
            self._count_text(node.value)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._convert_mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [
                self._convert_part(part, child_path(path, index), depth, part.start_mark.line)
                for index, part in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str":
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN_VALUES and not node.style:
            try:
                return _PLAIN_VALUES[node.tag](node.value)
            except ValueError:
                raise _error(
                    f"{node.value:.80} is not a number that can be stored",
                    self._location(node, path),
                    f'give a number, or the text in quotes: "{node.value:.80}"',
                    code="definition_file.number.invalid",
                ) from None
        raise _error(
            f"tag {node.tag:.80} is not supported",
            self._location(node, path),
            "remove it",
            code="definition_file.yaml.unsupported",
        )

    def _convert_mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        """Convert a mapping. Every name is text, even if it looks like a number."""
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(key, yaml.ScalarNode) or not name:
                location = self._location(key, path)
                raise _error(
                    "a name is empty, a mapping or a list",
                    location,
                    "use plain names",
                    code="definition_file.name.invalid",
                )
            part_path = child_path(path, name)
            location = self._location(key, part_path)
            if name == "<<" and not key.style:
                raise _error(
                    "merge keys are not supported",
                    location,
                    "write the fields out",
                    code="definition_file.yaml.unsupported",
                )
            if name in found:
                first = f", first on line {self.lines[part_path]}" if part_path in self.lines else ""
                problem = f"{quoted(name)} is given twice{first}"
                raise _error(problem, location, "remove one of them", code="definition_file.name.duplicate")
            self._count_text(name)
            found[name] = self._convert_part(value, part_path, depth, key.start_mark.line)
        return found

    def _convert_part(self, node: yaml.Node, path: str, depth: int, line: int) -> Any:
        if len(path) <= MAX_PATH_LENGTH:
            self.lines[path] = line + 1
        return self.convert(node, path, depth + 1)

    def _count_text(self, text: str) -> None:
        self._text_length += len(text)
        if self._text_length > MAX_BYTES:  # copies made by aliases
            raise _too_large(self._name)

    def _location(self, node: yaml.Node, path: str) -> str:
        location = f"{self._name}, line {node.start_mark.line + 1}"
        return f"{location}: {path}" if path else location


def _yaml_syntax_error(name: str, text: str, error: yaml.MarkedYAMLError) -> Invalid:
    mark = error.problem_mark or error.context_mark
    line = 0 if mark is None else mark.line
    rows = text.splitlines() or [""]
    row = rows[min(line, len(rows) - 1)]
    start = error.context_mark if error.context and "alias" in error.context else mark
    character = row[start.column : start.column + 1] if start is not None else ""
    problem = ", ".join(filter(None, (error.context, error.problem)))
    remedy = _suggest_remedy(character, row, problem)
    return _error(f"not valid YAML: {problem}", f"{name}, line {line + 1}", remedy, code="definition_file.syntax")


def _suggest_remedy(character: str, row: str, problem: str) -> str:
    if character in ("*", "&", "@", "`", "%", "!"):
        return f"put a text that begins with {character} in quotes, such as a cron line"
    if character == "\t" or row[: len(row) - len(row.lstrip())].count("\t"):
        return "indent with blanks instead of tabs"
    if "mapping values" in problem:
        return "put a text that contains a colon in quotes, and indent the fields of a mapping alike"
    if "another document" in problem:
        return "put it into a separate file"
    return "check the quotes, brackets and indentation up to this line"


# --- TOML -----------------------------------------------------------------------------------------------------------


def _parse_toml(name: str, text: str) -> Document:
    try:
        return Document(name, _to_plain(tomllib.loads(text), name, "", 0))
    except RecursionError:
        raise _too_deep(name) from None
    except tomllib.TOMLDecodeError as error:
        raise _error(
            f"not valid TOML: {error}", name, "put texts in quotes; see toml.io", code="definition_file.syntax"
        ) from None


def _to_plain(value: Any, name: str, path: str, depth: int) -> Any:
    """Return the value with dates and times as text, as in YAML files."""
    if depth > MAX_DEPTH:
        raise _too_deep(f"{name}: {path}")
    if isinstance(value, dict):
        return {key: _to_plain(part, name, child_path(path, key), depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_to_plain(part, name, child_path(path, index), depth + 1) for index, part in enumerate(value)]
    if isinstance(value, time):
        return value.isoformat("auto" if value.second or value.microsecond else "minutes")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        problem = f"{value} is not a number that can be stored"
        raise _error(problem, f"{name}: {path}", "give a number, or a text", code="definition_file.number.invalid")
    return value
