"""From entries of a directory to objects of the contract, and from values to what a directory stores."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

from tenuto_identity.connectors.contract import ConnectorError, ImportedObject, ReadScope
from tenuto_identity.connectors.ldap.directory import attribute_values
from tenuto_identity.connectors.ldap.protocol.client import Entry
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.connectors.ldap.settings import LdapSettings
from tenuto_identity.model import dn
from tenuto_identity.model.containers import is_selected
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.values import DataType, Value

MEMBER_ATTRIBUTES = {"groupofnames": "member", "groupofuniquenames": "uniquemember"}
"""Object classes, in lower case, that need at least one value of this attribute."""
_RANGE = re.compile(r"(.+);range=(\d+)-(\d+|\*)\Z", re.IGNORECASE)
BINARY = ";binary"
"""Option of attributes that are transferred in their binary form (RFC 4522): another name of the same values."""


class EntryReader:
    """Turns entries of one object type into objects."""

    def __init__(self, object_type: ObjectType, settings: LdapSettings, schema: DirectorySchema) -> None:
        self.object_type = object_type
        self.type_name = object_type.name
        self.object_class = settings.object_class(object_type.name).lower()
        self._is_raw = {
            name: each.type in (DataType.BINARY, DataType.GUID) for name, each in object_type.attributes.items()
        }
        self._names: dict[str, str] = {}
        """Every name under which the server may deliver an attribute, in lower case → its name in the definition."""
        for name in object_type.attributes:
            known = schema.attribute(name)
            _, separator, options = name.partition(";")
            for alias in (name, *(f"{each}{separator}{options}" for each in (known.names if known else ()))):
                self._names.setdefault(alias.lower(), name)
                self._names.setdefault(f"{alias.lower()}{BINARY}", name)
            self._names[name.lower()] = name
        self._placeholder = settings.placeholder_member.lower()
        self.member = member_attribute(schema, self.object_class)
        """Attribute, in lower case, of which an entry needs at least one value."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that a search asks for."""
        return tuple(self.object_type.attributes)

    def read(self, entry: Entry) -> ImportedObject:
        """Return the object of an entry. Values are sorted, because a directory delivers them in any order."""
        found: dict[str, tuple[str | bytes, ...]] = {}
        for delivered, values in entry.attributes.items():
            # Values with other options, such as ``;lang-de``, are other attributes unless the definition names them.
            name = self._names.get(delivered.lower())
            if name is not None and values:
                found[name] = self._cells(name, values)
        cells = {name: found[name] for name in self._is_raw if found.get(name)}
        anchor = cells.get(self.object_type.anchor, ("",))[0]
        text = anchor if isinstance(anchor, str) else anchor.decode("utf-8", "replace")
        return ImportedObject(self.type_name, text, entry.dn, container_of(entry.dn), cells)

    def _cells(self, name: str, values: Sequence[bytes]) -> tuple[str | bytes, ...]:
        attribute = self.object_type.attributes[name]
        if self._is_raw[name]:
            if attribute.type is DataType.BINARY:
                return tuple(sorted(values))
            return tuple(sorted(_guid_text(each) for each in values))
        if len(values) == 1:
            cells: tuple[str | bytes, ...] = (_text(values[0]),)
        else:
            cells = tuple(sorted((_text(each) for each in values), key=_sort_key))
        if self.member is not None and name.lower() == self.member:
            return tuple(each for each in cells if not isinstance(each, str) or each.lower() != self._placeholder)
        return cells


def member_attribute(schema: DirectorySchema, class_name: str) -> str | None:
    """Return the attribute, in lower case, of which entries of a class need at least one value."""
    return next((MEMBER_ATTRIBUTES[each] for each in schema.ancestors(class_name) if each in MEMBER_ATTRIBUTES), None)


def _text(value: bytes) -> str | bytes:
    """Return text; bytes that are not UTF-8 stay as they are, and the import reports them."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _sort_key(cell: str | bytes) -> tuple[bool, str | bytes]:
    return isinstance(cell, bytes), cell


def _guid_text(value: bytes) -> str:
    """Return the text of an objectGUID (16 bytes, the first three parts little-endian) or an entryUUID (text)."""
    if len(value) == 16:
        return str(UUID(bytes_le=bytes(value)))
    return value.decode("utf-8", "replace").lower()


@lru_cache(maxsize=10_000)
def _parent(rest: str) -> str:
    return dn.build(dn.parse(rest))


def container_of(address: str) -> str:
    """Return the DN of the container of an entry, in the form that `model.dn` builds."""
    _, comma, rest = address.partition(",")
    if comma and "\\" not in address and '"' not in address:  # measured: most DNs have nothing escaped
        return _parent(rest)
    try:
        return dn.parent(address)
    except dn.InvalidDn:
        return ""


class ScopeFilter:
    """Decides whether an entry is in one of the selected containers, with a memory of the containers seen."""

    def __init__(self, scope: ReadScope) -> None:
        self._selections = scope.containers
        self._partition = scope.partition
        self._known: dict[str, bool] = {}

    def includes(self, container: str) -> bool:
        found = self._known.get(container)
        if found is None:
            found = is_selected(container, self._selections)
            if found and self._partition:
                found = dn.is_below(container, self._partition)
            if len(self._known) < 100_000:
                self._known[container] = found
        return found


class TypeResolver:
    """Finds the selected object type of an entry: the most specific of those whose class it has."""

    def __init__(self, readers: Iterable[EntryReader], schema: DirectorySchema) -> None:
        self._readers = sorted(readers, key=lambda each: -len(schema.ancestors(each.object_class)))
        self._schema = schema

    def find(self, entry: Entry) -> EntryReader | None:
        """Return the reader of an entry; the entry must have been read with ``objectClass``."""
        classes = {each.decode("utf-8", "replace").lower() for each in attribute_values(entry, "objectClass")}
        every = {ancestor for each in classes for ancestor in self._schema.ancestors(each)}
        return next((each for each in self._readers if each.object_class in every), None)


# --- ranged values of Active Directory ------------------------------------------------------------------------------


def merge_ranges(entry: Entry, read_more: Callable[[str], Mapping[str, Sequence[bytes]]]) -> Entry:
    """Return an entry whose ranged attributes (``member;range=0-1499``) are complete.

    ``read_more`` reads one attribute of the entry, such as ``member;range=1500-*``."""
    if not any(";range=" in name.lower() for name in entry.attributes):
        return entry
    merged: dict[str, Sequence[bytes]] = {}
    for name, values in entry.attributes.items():
        ranged = _RANGE.match(name)
        if ranged is None:
            merged.setdefault(name, values)
            continue
        base, _, last = ranged.groups()
        collected = list(values)
        while last != "*":
            more = read_more(f"{base};range={int(last) + 1}-*")
            following = next(((found, more[each]) for each in more if (found := _RANGE.match(each))), None)
            if following is None or not following[1] or following[0].group(1).lower() != base.lower():
                raise ConnectorError(
                    "incomplete", f"the server sent {len(collected)} values of {base} of {entry.dn!r} and then no more"
                )
            collected += following[1]
            last = following[0].group(3)
        merged[base] = collected
    return Entry(entry.dn, merged, entry.controls)


# --- values for the server ------------------------------------------------------------------------------------------


def encode_value(value: Value, attribute: Attribute | None) -> bytes:
    """Return a stored value as a directory has it."""
    data_type = attribute.type if attribute else DataType.TEXT
    if isinstance(value, bool):
        return b"TRUE" if value else b"FALSE"
    text = str(value)
    match data_type:
        case DataType.BINARY:
            return base64.b64decode(text)
        case DataType.GUID if attribute is not None and attribute.name.lower() == "objectguid":
            return UUID(text).bytes_le
        case DataType.DATETIME:
            return _generalized_time(text).encode()
        case _:
            return text.encode("utf-8", "surrogatepass")


def _generalized_time(text: str) -> str:
    instant = datetime.fromisoformat(text).astimezone(UTC)
    fraction = f".{instant.microsecond:06}".rstrip("0") if instant.microsecond else ""
    return f"{instant:%Y%m%d%H%M%S}{fraction}Z"


def merge_masked(current: int, sent: int, bits: int) -> int:
    """Return a number such as userAccountControl with only the compared bits changed; the server keeps the others."""
    return (current & ~bits) | (sent & bits)
