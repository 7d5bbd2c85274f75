"""Which objects an import has seen: one bit for each object id."""

from __future__ import annotations


class SeenObjects:
    """A set of object ids as a bitmap: 125 KB for a million objects."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, id: int) -> bool:
        """Add an id; return whether it was there before."""
        index, bit = id >> 3, 1 << (id & 7)
        if index >= len(self._bits):
            self._bits.extend(bytes(max(index + 1 - len(self._bits), 4096)))
        was_there = bool(self._bits[index] & bit)
        self._bits[index] |= bit
        return was_there

    def __contains__(self, id: int) -> bool:
        index = id >> 3
        return index < len(self._bits) and bool(self._bits[index] & (1 << (id & 7)))
