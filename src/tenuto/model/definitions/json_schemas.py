"""Comparison of JSON schemas, as far as it is certain: a part that cannot exist, a value that can never fit.

An empty schema stands for an unknown type. Whatever cannot be decided counts as fitting; the value itself is validated
when the step runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_MAX_DEPTH = 12
_UNKNOWN: Schema = {}
_WORDS = {
    "string": "a text", "number": "a number", "integer": "a whole number", "boolean": "a boolean", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip


class NoSuchPart(Exception):
    """The type has no such part."""

    def __init__(self, depth: int, problem: str) -> None:
        super().__init__(problem)
        self.depth = depth
        """Number of parts of the path that exist."""
        self.problem = problem


def find_part(schema: Schema, path: Sequence[str | int]) -> Schema:
    """Return the schema of a part of a value; empty if it is not known. Raise `NoSuchPart` if there is none."""
    current = schema
    for depth, part in enumerate(path):
        found: list[Schema] = []
        problems: list[str] = []
        for option in _options(current, schema):
            result = _find_in_option(option, part)
            if isinstance(result, str):
                problems.append(result)
            else:
                found.append(result)
        if not found:
            raise NoSuchPart(depth, problems[0] if problems else "has no parts")
        current = found[0] if len(found) == 1 else {"anyOf": found}
        if not current:
            return _UNKNOWN
        current = {**current, "$defs": schema.get("$defs", {})}
    return current


def _find_in_option(option: Schema, part: str | int) -> Schema | str:
    """Return the schema of a part, or why there is none."""
    kind = option.get("type")
    if kind is None:
        return _UNKNOWN
    if kind == "object" and isinstance(part, str):
        properties = option.get("properties", {})
        if part in properties:
            return properties[part]  # type: ignore[no-any-return]
        further = option.get("additionalProperties", not properties)
        if isinstance(further, Mapping):
            return further
        # A model that does not forbid further fields still returns only its own.
        return _UNKNOWN if further else f"has no field {part!r}; its fields: {', '.join(sorted(properties))}"
    if kind == "array" and isinstance(part, int):
        prefix = option.get("prefixItems", [])
        if part < len(prefix):
            return prefix[part]  # type: ignore[no-any-return]
        items = option.get("items", _UNKNOWN)
        return items if isinstance(items, Mapping) else "has no further entries"
    return f"is {_word(kind)} and has no part {part!r}"


def find_mismatch(given: Schema, wanted: Schema) -> str | None:
    """Return why a value of one type can never fit another; None if it may fit."""
    return _find_mismatch(given, given, wanted, wanted, 0)


def _find_mismatch(given: Schema, given_root: Schema, wanted: Schema, wanted_root: Schema, depth: int) -> str | None:
    if depth > _MAX_DEPTH:
        return None
    options, wanted_options = list(_options(given, given_root)), list(_options(wanted, wanted_root))
    first: str | None = None
    for option in options:
        for other in wanted_options:
            problem = _compare(option, given_root, other, wanted_root, depth)
            if problem is None:
                return None
            first = first or problem
    return first


def _compare(given: Schema, given_root: Schema, wanted: Schema, wanted_root: Schema, depth: int) -> str | None:
    kind, wanted_kind = given.get("type"), wanted.get("type")
    if kind is None or wanted_kind is None:
        return None
    if kind != wanted_kind and {kind, wanted_kind} != {"integer", "number"}:
        return f"{_word(kind)} is not {_word(wanted_kind)}"
    if kind == "array":
        items, wanted_items = given.get("items"), wanted.get("items")
        if isinstance(items, Mapping) and isinstance(wanted_items, Mapping):
            problem = _find_mismatch(items, given_root, wanted_items, wanted_root, depth + 1)
            return None if problem is None else f"in the list, {problem}"
    if kind == "object":
        return _compare_objects(given, given_root, wanted, wanted_root, depth)
    return None


def _compare_objects(given: Schema, given_root: Schema, wanted: Schema, wanted_root: Schema, depth: int) -> str | None:
    properties, wanted_properties = given.get("properties", {}), wanted.get("properties", {})
    is_closed = bool(properties) and not given.get("additionalProperties", False)
    for name in wanted.get("required", ()):
        if is_closed and name not in properties:
            return f"the object has no field {name!r}"
    for name in properties.keys() & wanted_properties.keys():
        problem = _find_mismatch(properties[name], given_root, wanted_properties[name], wanted_root, depth + 1)
        if problem is not None:
            return f"in the field {name!r}, {problem}"
    return None


def json_types(schema: Schema) -> set[str] | None:
    """Return the JSON types that a value may have; None if they are not known."""
    kinds = {option.get("type") for option in _options(schema, schema)}
    return None if None in kinds or not kinds else {str(kind) for kind in kinds}


def _options(schema: Schema, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """Yield the alternatives of a schema, each with at most one ``type``."""
    if depth > _MAX_DEPTH:
        yield _UNKNOWN
        return
    if isinstance(name := schema.get("$ref"), str):
        target = root.get("$defs", {}).get(name.rpartition("/")[2])
        yield from _options(target, root, depth + 1) if isinstance(target, Mapping) else (_UNKNOWN,)
        return
    for word in ("anyOf", "oneOf"):
        if isinstance(alternatives := schema.get(word), list):
            for each in alternatives:
                yield from _options(each, root, depth + 1) if isinstance(each, Mapping) else (_UNKNOWN,)
            return
    kind = schema.get("type")
    if isinstance(kind, list):
        for each in kind:
            yield {**schema, "type": each}
        return
    yield schema


def _word(kind: object) -> str:
    return _WORDS.get(str(kind), str(kind))
