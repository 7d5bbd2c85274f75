"""Decode the cells of a connector into typed documents. Fingerprints let unchanged objects skip decoding."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tenuto_identity.model import dn
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import (
    BadValue,
    DataType,
    Document,
    Value,
    canonical_value,
    canonical_values,
    fold_key,
    normalize_anchor,
)

FINGERPRINT_BYTES = 16
_TEXT, _REFERENCE, _DATE = DataType.TEXT, DataType.REFERENCE, DataType.DATE
"""Names of the module are found faster than members of an enum, which is measurable here."""
MAX_ANCHOR_CHARACTERS = 1000
_TYPE_END = "\x1e"
"""Ends the name of the type in the description of an object."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Settings of a system that decide how its cells are read."""

    decimal_separator: str = "."
    thousands_separator: str = ""
    date_formats: tuple[str, ...] = ()
    """Formats of dates and times besides ISO, as `datetime.strptime` has them."""
    rejects_bad_values: bool = False
    """A value that does not fit rejects the whole object, instead of leaving the old value of the attribute."""
    source: tuple[tuple[str, str], ...] = ()
    """Further settings of the connector that decide how cells are split, such as the multi-value delimiter."""


@dataclass(frozen=True, slots=True)
class BadCell:
    """An attribute whose value could not be decoded."""

    attribute: str
    message: str


@value_class
class DecodedObject:
    """The typed values of an imported object."""

    attributes: Document
    references: Mapping[str, tuple[str, ...]]
    """Raw references by attribute, sorted and unique."""
    errors: tuple[BadCell, ...] = ()
    is_rejected: bool = False
    """The object is not imported, because a value is bad and the system says so."""


class DescribedCells(Mapping[str, Sequence[str | bytes]]):
    """Cells with a description from which the fingerprint of the object is computed without separating them."""

    __slots__ = ()

    @abstractmethod
    def describe(self) -> str:
        """Return a text that identifies anchor, address, container and cells of the object."""

    @abstractmethod
    def texts(self) -> Sequence[str] | None:
        """Return the cell of each attribute in the order of the object type, blank for an absent one; None if an
        attribute may have several cells."""


def decode_key(types: Iterable[ObjectType], decoding: Decoding) -> bytes:
    """Return the fingerprint of all settings that decide how cells are decoded. Another key has all objects decoded."""
    described = [
        [
            each.name,
            each.anchor,
            sorted((name, attribute.type.value, attribute.multi) for name, attribute in each.attributes.items()),
        ]
        for each in sorted(types, key=lambda each: each.name)
    ]
    settings = [
        decoding.decimal_separator,
        decoding.thousands_separator,
        list(decoding.date_formats),
        decoding.rejects_bad_values,
        [list(pair) for pair in decoding.source],
    ]
    return hashlib.blake2b(json.dumps([described, settings]).encode(), digest_size=FINGERPRINT_BYTES).digest()


def fingerprint(
    key: bytes, type_name: str, address: str, container: str, cells: Mapping[str, Sequence[str | bytes]]
) -> bytes:
    """Return the fingerprint of an object. It covers cells and not lines, so quoting and line ends do not matter."""
    return hash_content(key, describe_content(type_name, address, container, cells))


def describe_content(type_name: str, address: str, container: str, cells: Mapping[str, Sequence[str | bytes]]) -> str:
    """Return the text from which the fingerprint of an object is computed."""
    if type(cells) is not dict and isinstance(cells, DescribedCells):
        return f"{type_name}{_TYPE_END}{cells.describe()}"
    # repr is unambiguous for texts and bytes, and faster than JSON; order of attributes is that of the connector.
    return repr((type_name, address, container, cells))


def hash_content(key: bytes, content: str) -> bytes:
    """Return the fingerprint of a text from `describe_content`."""
    return hashlib.blake2b(key + content.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()


def hash_descriptions(key: bytes, type_name: str, descriptions: Iterable[str]) -> list[bytes]:
    """Return the fingerprints of objects of one type from the descriptions of their cells (`DescribedCells.describe`).

    They equal the fingerprints that `hash_content` computes from `describe_content`.
    """
    start, blake2b = key + f"{type_name}{_TYPE_END}".encode(), hashlib.blake2b
    return [blake2b(start + each.encode(), digest_size=FINGERPRINT_BYTES).digest() for each in descriptions]


def canonical_anchor(anchor: str, object_type: ObjectType) -> str:
    """Return the stored form of an anchor; ``""`` if it is blank; raise `BadValue` if it does not fit its type."""
    found = normalize_anchor(anchor)
    if not found:
        return ""
    attribute = object_type.attributes.get(object_type.anchor)
    if attribute is not None and attribute.type is not DataType.TEXT:
        found = str(canonical_value(found, attribute.type))
    elif "\x00" in found:
        raise BadValue(f"{found!r:.60} contains a NUL character")
    if len(found) > MAX_ANCHOR_CHARACTERS:
        raise BadValue(f"the anchor has more than {MAX_ANCHOR_CHARACTERS} characters")
    return found


def address_key(address: str, object_type: ObjectType) -> str:
    """Return the key by which references find an address: a normalised DN, or folded text."""
    return dn.normalize_or_fold(address) if object_type.address_is_dn else fold_key(address)


def decode_object(
    object_type: ObjectType,
    cells: Mapping[str, Sequence[str | bytes]],
    decoding: Decoding,
    *,
    old: Document | None = None,
) -> DecodedObject:
    """Return the typed values of an object. An attribute with a bad value keeps its old values and is reported."""
    if type(cells) is not dict and isinstance(cells, DescribedCells) and (texts := cells.texts()) is not None:
        decoded = _decode_texts(object_type, texts, decoding)
        if decoded is not None:
            return decoded
    return _decode_cells(object_type, cells, decoding, old)


def _decode_cells(
    object_type: ObjectType, cells: Mapping[str, Sequence[str | bytes]], decoding: Decoding, old: Document | None
) -> DecodedObject:
    attributes: dict[str, list[Value]] = {}
    references: dict[str, tuple[str, ...]] = {}
    errors: list[BadCell] = []
    found_cells = cells if type(cells) is dict else dict(cells.items())
    for name, attribute in object_type.attributes.items():
        raw = found_cells.get(name)
        if not raw:
            continue
        data_type = attribute.type
        if len(raw) == 1 and isinstance(cell := raw[0], str):
            # The common cases; the code below gives the same result.
            if data_type is _TEXT or data_type is _REFERENCE:
                # No printable character needs a conversion; NUL and lone surrogates are not printable.
                if len(cell) < 1000 and cell.isprintable() and not cell.isspace() and cell:
                    if data_type is _TEXT:
                        attributes[name] = [cell]
                    else:
                        references[name] = (cell,)
                    continue
            elif data_type is _DATE and not decoding.date_formats and (known := _date_of(cell)) is not None:
                attributes[name] = [known]
                continue
        try:
            found = _decode_values(raw, attribute, decoding)
        except BadValue as error:
            errors.append(BadCell(name, f"{name}: {error}"))
            if old and name in old:
                attributes[name] = list(old[name])
            continue
        if not found:
            continue
        if attribute.is_reference:
            references[name] = tuple(str(value) for value in found)
        else:
            attributes[name] = found
    return DecodedObject(attributes, references, tuple(errors), bool(errors) and decoding.rejects_bad_values)


def _decode_texts(object_type: ObjectType, texts: Sequence[str], decoding: Decoding) -> DecodedObject | None:
    """Return the typed values of an object with one cell for each attribute; None if the general code must decide,
    with which `test_cells_of_a_row_are_decoded_like_other_cells` compares it."""
    joined = "".join(texts)
    if len(joined) > 1000 or not joined.isprintable():
        return None
    attributes: dict[str, list[Value]] = {}
    references: dict[str, tuple[str, ...]] = {}
    has_formats = bool(decoding.date_formats)
    for (name, attribute), cell in zip(object_type.attributes.items(), texts, strict=True):
        if not cell or cell.isspace():
            continue
        data_type = attribute.type
        if data_type is _TEXT:
            attributes[name] = [cell]
        elif data_type is _REFERENCE:
            references[name] = (cell,)
        elif data_type is _DATE and not has_formats and (known := _date_of(cell)) is not None:
            attributes[name] = [known]
        else:
            try:
                attributes[name] = _decode_values((cell,), attribute, decoding)
            except BadValue:
                return None
    return DecodedObject(attributes, references)


@lru_cache(maxsize=10_000)
def _date_of(text: str) -> Value | None:
    """Return a date in its stored form; None if it is no date, so that the caller reports the error.

    Cached, because the same dates occur in many rows (benchmark `identity`, import of new people).
    """
    try:
        return canonical_value(text, DataType.DATE)
    except BadValue:
        return None


def _decode_values(raw: Sequence[str | bytes], attribute: Attribute, decoding: Decoding) -> list[Value]:
    values = [value for each in raw if (value := _decode(each, attribute.type, decoding)) is not None]
    found = canonical_values(values)
    if len(found) > 1 and not attribute.multi:
        raise BadValue(f"{len(found)} values, and the attribute takes one")
    return found


def _decode(cell: str | bytes, data_type: DataType, decoding: Decoding) -> Value | None:
    if isinstance(cell, bytes):
        if data_type is DataType.BINARY:
            return canonical_value(cell, data_type)
        if data_type is DataType.GUID and len(cell) == 16:
            return canonical_value(_little_endian_guid(cell), data_type)
        try:
            text = cell.decode()
        except UnicodeDecodeError:
            raise BadValue("the value is not UTF-8") from None
    else:
        text = cell
    if not text.strip():
        return None
    value: Any = text
    match data_type:
        case DataType.INTEGER | DataType.DECIMAL:
            value = _plain_number(text, decoding)
        case DataType.DATE | DataType.DATETIME if decoding.date_formats:
            value = _parse_with_formats(text.strip(), decoding.date_formats)
        case _:
            pass
    return canonical_value(value, data_type)


def _little_endian_guid(data: bytes) -> str:
    """Return the text of an objectGUID, whose first three parts are little-endian."""
    parts = data[3::-1] + data[5:3:-1] + data[7:5:-1] + data[8:]
    return parts.hex()


def _plain_number(text: str, decoding: Decoding) -> str:
    found = text.strip()
    if decoding.thousands_separator:
        found = found.replace(decoding.thousands_separator, "")
    return found.replace(decoding.decimal_separator, ".") if decoding.decimal_separator != "." else found


def _parse_with_formats(text: str, formats: Sequence[str]) -> Any:
    for each in formats:
        try:
            found = datetime.strptime(text, each)  # noqa: DTZ007 - a format may have no zone; then it is UTC
        except ValueError:
            continue
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return text
