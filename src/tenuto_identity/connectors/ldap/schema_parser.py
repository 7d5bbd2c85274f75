"""Attribute types and object classes of a directory (RFC 4512): parsed as far as the connector needs them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tenuto_identity.model.values import DataType

_TOKENS = re.compile(r"'((?:[^'\\]|\\.)*)'|([()$])|([^\s()$']+)")
_SYNTAX = "1.3.6.1.4.1.1466.115.121.1."
_DATA_TYPES: Mapping[str, DataType] = {
    _SYNTAX + "7": DataType.BOOLEAN,
    _SYNTAX + "27": DataType.INTEGER,
    _SYNTAX + "24": DataType.DATETIME,
    _SYNTAX + "53": DataType.DATETIME,
    _SYNTAX + "12": DataType.REFERENCE,
    _SYNTAX + "4": DataType.BINARY,
    _SYNTAX + "5": DataType.BINARY,
    _SYNTAX + "8": DataType.BINARY,
    _SYNTAX + "9": DataType.BINARY,
    _SYNTAX + "10": DataType.BINARY,
    _SYNTAX + "23": DataType.BINARY,
    _SYNTAX + "28": DataType.BINARY,
    _SYNTAX + "40": DataType.BINARY,
    "1.3.6.1.1.16.1": DataType.GUID,
    "1.2.840.113556.1.4.906": DataType.INTEGER,
    "1.2.840.113556.1.4.907": DataType.BINARY,
}
_NEEDS_BINARY = tuple(_SYNTAX + each for each in ("8", "9", "10", "49"))
"""Certificates, lists and pairs of them, supported algorithms."""


@dataclass(frozen=True, slots=True)
class AttributeType:
    """An attribute type of a directory, with what it inherits."""

    names: tuple[str, ...]
    data_type: DataType = DataType.TEXT
    is_single: bool = False
    is_writable: bool = True
    ignores_case: bool = False
    needs_binary: bool = False
    """Values are written with the option ``;binary`` (RFC 4523)."""

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class ObjectClass:
    """An object class of a directory, without what it inherits."""

    names: tuple[str, ...]
    superiors: tuple[str, ...] = ()
    kind: str = "STRUCTURAL"
    attributes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


class DirectorySchema:
    """The schema of a directory. Names are compared ignoring case."""

    def __init__(self, attribute_types: Iterable[str], object_classes: Iterable[str]) -> None:
        self._attributes = _parse_attributes(attribute_types)
        self._classes: dict[str, ObjectClass] = {}
        for each in object_classes:
            fields = _parse(each)
            if "NAME" in fields:
                found = ObjectClass(
                    tuple(fields["NAME"]),
                    tuple(fields.get("SUP", ())),
                    next((kind for kind in ("ABSTRACT", "AUXILIARY") if kind in fields), "STRUCTURAL"),
                    (*fields.get("MUST", ()), *fields.get("MAY", ())),
                )
                self._classes.update(dict.fromkeys((name.lower() for name in found.names), found))

    def attribute(self, name: str) -> AttributeType | None:
        """Return an attribute type by one of its names; options such as ``;binary`` are ignored."""
        return self._attributes.get(name.partition(";")[0].lower())

    def object_class(self, name: str) -> ObjectClass | None:
        return self._classes.get(name.lower())

    def structural_classes(self) -> Iterator[ObjectClass]:
        """Yield the structural classes once each."""
        yield from {each.name: each for each in self._classes.values() if each.kind == "STRUCTURAL"}.values()

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Return the names of a class and of the classes above it, in lower case, the class first."""
        found: dict[str, None] = {}
        waiting = [name.lower()]
        while waiting:
            current = waiting.pop(0)
            if current not in found:
                found[current] = None
                known = self._classes.get(current)
                waiting += [each.lower() for each in known.superiors] if known else []
        return tuple(found)

    def attributes_of(self, name: str) -> list[AttributeType]:
        """Return the attribute types that entries of a class may have."""
        names = [
            each
            for ancestor in self.ancestors(name)
            if (known := self._classes.get(ancestor))
            for each in known.attributes
        ]
        allowed = (self.attribute(each) for each in names)
        return list({each.name: each for each in allowed if each is not None}.values())


def _parse_attributes(texts: Iterable[str]) -> dict[str, AttributeType]:
    parsed: dict[str, dict[str, list[str]]] = {}
    for each in texts:
        fields = _parse(each)
        for name in fields.get("NAME", ()):
            parsed[name.lower()] = fields
    found: dict[str, AttributeType] = {}
    for name, fields in parsed.items():
        syntax = _inherited(parsed, fields, "SYNTAX").partition("{")[0]
        found[name] = AttributeType(
            tuple(fields["NAME"]),
            _DATA_TYPES.get(syntax, DataType.TEXT),
            is_single="SINGLE-VALUE" in fields,
            is_writable="NO-USER-MODIFICATION" not in fields,
            needs_binary=syntax in _NEEDS_BINARY,
            ignores_case=_inherited(parsed, fields, "EQUALITY").lower().startswith("caseignore"),
        )
    return found


def _inherited(parsed: Mapping[str, dict[str, list[str]]], fields: dict[str, list[str]], name: str) -> str:
    for _ in range(20):  # a chain of superiors is short; a cycle would never end
        if fields.get(name):
            return fields[name][0]
        superior = parsed.get(next(iter(fields.get("SUP", ())), "").lower())
        if superior is None:
            break
        fields = superior
    return ""


def _parse(text: str) -> dict[str, list[str]]:
    """Return the fields of a definition: keyword → values. A keyword without values has none."""
    fields: dict[str, list[str]] = {}
    current: list[str] = []
    for quoted, mark, word in _TOKENS.findall(text):
        if mark:
            continue
        if word and word.isupper() and not word[0].isdigit():
            current = fields.setdefault(word, [])
        else:
            current.append(quoted or word)
    return fields
