"""LDAP messages (RFC 4511): write requests encoded, replies decoded.

Measured by the benchmark ``ldap``: ldap3 encodes an add in a third of a millisecond, and decodes an entry in two thirds
of its reading time. Both directions are compared with ldap3 by ``tests/identity/ldap/test_messages.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenuto_identity.connectors.ldap.protocol import ber
from tenuto_identity.connectors.ldap.protocol.client import Add, Control, Delete, Entry, Modify, ModifyDn

ENTRY, DONE, REFERENCE, INTERMEDIATE = 0x64, 0x65, 0x73, 0x79
_ADD, _MODIFY, _MODIFY_DN, _DELETE = 0x68, 0x66, 0x6C, 0x4A
_CONTROLS, _REFERRALS, _NEW_SUPERIOR, _NAME, _VALUE = 0xA0, 0xA3, 0x80, 0x80, 0x81


class Result(NamedTuple):
    """The end of a reply."""

    code: int
    matched_dn: str
    message: str
    referrals: tuple[str, ...]
    controls: dict[str, bytes]


class Intermediate(NamedTuple):
    """An intermediate response."""

    name: str
    value: bytes


class Referrals(NamedTuple):
    """Servers that have further entries of a search."""

    urls: tuple[str, ...]


MAX_KEPT_NAMES = 10_000
MAX_KEPT_NAME_BYTES = 200
_attribute_names: dict[bytes, str] = {}

Part = Entry | Referrals | Intermediate | Result


# --- requests -------------------------------------------------------------------------------------------------------


def encode_write(number: int, request: Add | Modify | ModifyDn | Delete) -> bytes:
    """Return the message of a write request."""
    match request:
        case Add():
            attributes = (_attribute(name, values) for name, values in request.attributes.items())
            operation = ber.sequence(ber.octets(request.dn), ber.sequence(*attributes), tag=_ADD)
        case Modify():
            changes = (
                ber.sequence(ber.integer(int(each.mod), ber.ENUMERATED), _attribute(each.attribute, each.values))
                for each in request.modifications
            )
            operation = ber.sequence(ber.octets(request.dn), ber.sequence(*changes), tag=_MODIFY)
        case ModifyDn():
            superior = b"" if request.new_superior is None else ber.octets(request.new_superior, _NEW_SUPERIOR)
            operation = ber.sequence(
                ber.octets(request.dn), ber.octets(request.new_rdn), ber.boolean(True), superior, tag=_MODIFY_DN
            )
        case Delete():
            operation = ber.octets(request.dn, _DELETE)
    return encode_message(number, operation, request.controls)


def encode_message(number: int, operation: bytes, controls: Iterable[Control]) -> bytes:
    """Return the message of an encoded request."""
    return ber.sequence(ber.integer(number), operation, _encode_controls(controls))


def _attribute(name: str, values: Iterable[bytes]) -> bytes:
    return ber.sequence(ber.octets(name), ber.sequence(*map(ber.octets, values), tag=ber.SET))


def _encode_controls(controls: Iterable[Control]) -> bytes:
    encoded = [
        ber.sequence(
            ber.octets(each.oid),
            ber.boolean(True) if each.is_critical else b"",
            b"" if each.value is None else ber.octets(each.value),
        )
        for each in controls
    ]
    return ber.sequence(*encoded, tag=_CONTROLS) if encoded else b""


# --- replies --------------------------------------------------------------------------------------------------------


def message_end(data: bytes | bytearray, start: int) -> int:
    """Return where the message at a position ends; 0 if its length has not arrived yet."""
    left = len(data) - start
    if left < 2:
        return 0
    if data[start] != ber.SEQUENCE:
        raise ber.BerError("the server sent something that is not a message")
    size = data[start + 1]
    if size < 0x80:
        return start + 2 + size
    count = size & 0x7F
    if not 0 < count <= 8:
        raise ber.BerError("the length of a message is not valid")
    if left < 2 + count:
        return 0
    return start + 2 + count + int.from_bytes(data[start + 2 : start + 2 + count], "big")


def decode_message(data: bytes, start: int = 0) -> tuple[int, Part]:
    """Return the number of the message at a position and what it says; raise `BerError`."""
    try:
        _, start, end = _header(data, start)
        _, content, after = _header(data, start)
        number = int.from_bytes(data[content:after], "big")
        tag, content, after = _header(data, after)
        if after > end:
            raise ValueError("the operation is cut off")
        controls = _decode_controls(data, after, end) if after < end else {}
        if tag == ENTRY:
            return number, _entry(data, content, after, controls)
        return number, _other(data, tag, content, after, controls)
    except (IndexError, ValueError) as error:
        raise ber.BerError(f"the server sent a message that is not valid: {error}") from None


def _header(data: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of an element, and where its content begins and ends; raise `ValueError` if it is cut off."""
    size = data[position + 1]
    if size < 0x80:
        start = position + 2
        end = start + size
    else:
        start = position + 2 + (size & 0x7F)
        end = start + int.from_bytes(data[position + 2 : start], "big")
    if end > len(data):
        raise ValueError("an element is cut off")
    return data[position], start, end


def _attribute_name(encoded: bytes) -> str:
    """Return the name of an attribute, and keep it for the next entries: all have the same few names."""
    name = encoded.decode("utf-8", "replace")
    if len(_attribute_names) < MAX_KEPT_NAMES and len(encoded) <= MAX_KEPT_NAME_BYTES:
        _attribute_names[encoded] = name
    return name


def _entry(data: bytes, position: int, limit: int, controls: dict[str, bytes]) -> Entry:
    """Return an entry of a search. Written out, because it is the inner loop of every import."""
    _, start, position = _header(data, position)
    name = data[start:position].decode("utf-8", "replace")
    attributes: dict[str, list[bytes]] = {}
    names = _attribute_names
    _, position, end = _header(data, position)
    if end > limit:
        raise ValueError("the attributes of an entry are cut off")
    while position < end:
        # An attribute is its name and the set of its values; short lengths, the usual case, are read in place. A length
        # that is too large does not meet the end of what contains it.
        size = data[position + 1]
        if size < 0x80:
            position += 2
            after = position + size
        else:
            _, position, after = _header(data, position)
        size = data[position + 1]
        if size < 0x80:
            start = position + 2
            stop = start + size
        else:
            _, start, stop = _header(data, position)
        encoded = data[start:stop]
        attribute = names.get(encoded) or _attribute_name(encoded)
        size = data[stop + 1]
        if size < 0x80:
            position = stop + 2
            stop = position + size
        else:
            _, position, stop = _header(data, stop)
        if stop != after:
            raise ValueError("the values of an attribute are cut off")
        attributes[attribute] = values = []
        while position < after:
            size = data[position + 1]
            if size < 0x80:
                start = position + 2
                position = start + size
            else:
                _, start, position = _header(data, position)
            values.append(data[start:position])
        if position != after:
            raise ValueError("the values of an attribute are cut off")
    if position != end:
        raise ValueError("the attributes of an entry are cut off")
    return Entry(name, attributes, controls)


def _other(data: bytes, tag: int, position: int, end: int, controls: dict[str, bytes]) -> Part:
    elements = list(ber.decode(data[position:end]))
    if tag == REFERENCE:
        return Referrals(tuple(_text(each.content) for each in elements))
    if tag == INTERMEDIATE:
        found = {each.tag: each.content for each in elements}
        return Intermediate(_text(found.get(_NAME, b"")), found.get(_VALUE, b""))
    code, matched, message, *further = elements
    referrals = next((each.children() for each in further if each.tag == _REFERRALS), [])
    return Result(
        code.integer(),
        _text(matched.content),
        _text(message.content),
        tuple(_text(each.content) for each in referrals),
        controls,
    )


def _decode_controls(data: bytes, position: int, end: int) -> dict[str, bytes]:
    """Return the values of controls by name."""
    found: dict[str, bytes] = {}
    for element in ber.decode(data[position:end]):
        if element.tag == _CONTROLS:
            for each in element.children():
                name, *parts = each.children()
                found[_text(name.content)] = next((part.content for part in parts if part.tag == ber.OCTETS), b"")
    return found


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
