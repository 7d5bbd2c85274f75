"""From entries of a directory to objects of the contract, and from values to what a directory stores."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
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


MAX_DELIVERED_NAMES = 10_000


class _Form(Enum):
    """How the values of an attribute are read."""

    TEXTS = auto()
    BYTES = auto()
    GUIDS = auto()
    MEMBERS = auto()
    """Texts, of which one may be the placeholder."""


_TEXTS = _Form.TEXTS
"""A name of the module is found faster than a member of an enum."""


class EntryReader:
    """Turns entries of one object type into objects."""

    def __init__(self, object_type: ObjectType, settings: LdapSettings, schema: DirectorySchema) -> None:
        self.object_type = object_type
        self.type_name = object_type.name
        self.object_class = settings.object_class(object_type.name).lower()
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
        self._order = tuple(object_type.attributes)
        self._delivered: dict[str, tuple[str, _Form] | None] = {}
        """Names that the server has delivered → name in the definition and form of the values; None: not selected."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that a search asks for."""
        return tuple(self.object_type.attributes)

    def read(self, entry: Entry) -> ImportedObject:
        """Return the object of an entry. Values are sorted, because a directory delivers them in any order."""
        found: dict[str, tuple[str | bytes, ...]] = {}
        known = self._delivered
        for delivered, values in entry.attributes.items():
            attribute = known[delivered] if delivered in known else self._recognize(delivered)
            if attribute is None or not values:
                continue
            name, form = attribute
            if form is _TEXTS and len(values) == 1:  # the usual case; `_cells` gives the same result
                try:
                    found[name] = (values[0].decode(),)
                except UnicodeDecodeError:
                    found[name] = (values[0],)
            else:
                found[name] = self._cells(form, values)
        # In the order of the definition, because a server may deliver the attributes in another one each time.
        cells = {name: found[name] for name in self._order if found.get(name)}
        anchor = cells.get(self.object_type.anchor, ("",))[0]
        text = anchor if isinstance(anchor, str) else anchor.decode("utf-8", "replace")
        return ImportedObject(self.type_name, text, entry.dn, container_of(entry.dn), cells)

    def _recognize(self, delivered: str) -> tuple[str, _Form] | None:
        """Return the attribute that the server delivers under a name; None if it is not selected."""
        # Values with other options, such as ``;lang-de``, are other attributes unless the definition names them.
        name = self._names.get(delivered.lower())
        found = None if name is None else (name, self._form(name))
        if len(self._delivered) < MAX_DELIVERED_NAMES:
            self._delivered[delivered] = found
        return found

    def _form(self, name: str) -> _Form:
        match self.object_type.attributes[name].type:
            case DataType.BINARY:
                return _Form.BYTES
            case DataType.GUID:
                return _Form.GUIDS
            case _:
                return _Form.MEMBERS if name.lower() == self.member else _TEXTS

    def _cells(self, form: _Form, values: Sequence[bytes]) -> tuple[str | bytes, ...]:
        if form is _Form.BYTES:
            return tuple(sorted(values))
        if form is _Form.GUIDS:
            return tuple(sorted(map(_guid_text, values)))
        cells = tuple(sorted(map(_text, values), key=_sort_key)) if len(values) > 1 else (_text(values[0]),)
        if form is _Form.MEMBERS:
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
    if ";range=" not in "\n".join(entry.attributes).lower():
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
                    "incomplete",
                    f"attribute {base} of {entry.dn!r} is incomplete: "
                    f"the server returned {len(collected)} values and then none",
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
