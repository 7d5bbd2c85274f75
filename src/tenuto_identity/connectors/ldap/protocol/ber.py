"""BER, as far as the values of LDAP controls need it: definite lengths, one byte tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

BOOLEAN, INTEGER, OCTETS, ENUMERATED, SEQUENCE, SET = 0x01, 0x02, 0x04, 0x0A, 0x30, 0x31


class BerError(ValueError):
    """Bytes are not BER, or not the structure that is expected."""


class Element(NamedTuple):
    """A tag and its content."""

    tag: int
    content: bytes

    def children(self) -> list[Element]:
        """Return the elements within."""
        return list(decode(self.content))

    def integer(self) -> int:
        return int.from_bytes(self.content, "big", signed=True)

    def boolean(self) -> bool:
        return any(self.content)


def encode(tag: int, content: bytes) -> bytes:
    """Return an element."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def integer(value: int, tag: int = INTEGER) -> bytes:
    """Return an integer or an enumerated value."""
    return encode(tag, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def octets(value: bytes | str, tag: int = OCTETS) -> bytes:
    return encode(tag, value.encode() if isinstance(value, str) else value)


def boolean(value: bool) -> bytes:
    return encode(BOOLEAN, b"\xff" if value else b"\x00")


def sequence(*parts: bytes, tag: int = SEQUENCE) -> bytes:
    return encode(tag, b"".join(parts))


def sequence_of(values: Iterable[str]) -> bytes:
    """Return a sequence of texts."""
    return sequence(*(octets(each) for each in values))


def decode(data: bytes) -> Iterator[Element]:
    """Yield the elements of bytes; raise `BerError`."""
    position, end = 0, len(data)
    while position < end:
        if position + 2 > end:
            raise BerError("an element is cut off")
        tag, size = data[position], data[position + 1]
        position += 2
        if size >= 0x80:
            count = size & 0x7F
            if not 0 < count <= 8 or position + count > end:
                raise BerError("the length of an element is not valid")
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > end:
            raise BerError("an element is cut off")
        yield Element(tag, data[position : position + size])
        position += size


def decode_one(data: bytes, tag: int) -> Element:
    """Return the only element of bytes; raise `BerError` if it has another tag."""
    found = list(decode(data))
    if len(found) != 1 or found[0].tag != tag:
        raise BerError(f"one element with the tag {tag:#x} was expected")
    return found[0]
