"""Which objects an import has seen: one bit for each object id."""

from __future__ import annotations

from collections.abc import Sequence


class SeenObjects:
    """A set of object ids as a bitmap: 125 KB for a million objects."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self.count = 0

    def add_all(self, ids: Sequence[int]) -> None:
        """Add ids; ``count`` grows by those that were not there before."""
        if not ids:
            return
        bits, last = self._bits, max(ids) >> 3
        if last >= len(bits):
            bits.extend(bytes(max(last + 1 - len(bits), 4096)))
        added = 0
        for id in ids:
            index, bit = id >> 3, 1 << (id & 7)
            if not bits[index] & bit:
                bits[index] |= bit
                added += 1
        self.count += added

    def __contains__(self, id: int) -> bool:
        index = id >> 3
        return index < len(self._bits) and bool(self._bits[index] & (1 << (id & 7)))

    def without_seen(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are not in the set, in order."""
        bits, end = self._bits, len(self._bits) << 3
        return [id for id in ids if id >= end or not bits[id >> 3] & (1 << (id & 7))]
