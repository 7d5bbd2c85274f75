"""Which objects an import has seen: one bit for each object id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ALL = 0xFF


class SeenObjects:
    """A set of object ids as a bitmap: 125 KB for a million objects.

    Ids mostly come in order and without gaps. Bytes whose ids are all of one kind are then handled at once, and only
    the ids of the first and of the last byte one by one. `test_seen_objects_equal_a_set_of_ids` compares it with a set.
    """

    def __init__(self) -> None:
        self._bits = bytearray()
        self.count = 0

    def add_all(self, ids: Sequence[int]) -> None:
        """Add ids; ``count`` grows by those that were not there before."""
        if not ids:
            return
        bits, first, end = self._bits, min(ids), max(ids) + 1
        if end >> 3 >= len(bits):
            bits.extend(bytes(max((end >> 3) + 1 - len(bits), 4096)))
        start_byte, end_byte = (first + 7) >> 3, end >> 3
        remaining: Iterable[int] = ids
        if end - first == len(ids) == len(set(ids)) and start_byte < end_byte and not any(bits[start_byte:end_byte]):
            bits[start_byte:end_byte] = bytes([_ALL]) * (end_byte - start_byte)
            self.count += (end_byte - start_byte) << 3
            remaining = (*range(first, start_byte << 3), *range(end_byte << 3, end))
        added = 0
        for id in remaining:
            index, bit = id >> 3, 1 << (id & 7)
            if not bits[index] & bit:
                bits[index] |= bit
                added += 1
        self.count += added

    def __contains__(self, id: int) -> bool:
        index = id >> 3
        return index < len(self._bits) and bool(self._bits[index] & (1 << (id & 7)))

    def among(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are in the set; ``ids`` are in ascending order."""
        return [id for id in self._uncertain(ids, 0) if id in self]

    def without_seen(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are not in the set; ``ids`` are in ascending order."""
        return [id for id in self._uncertain(ids, _ALL) if id not in self]

    def _uncertain(self, ids: Sequence[int], byte: int) -> Sequence[int]:
        """Return the ids that must be looked up one by one: only those of the first and last bytes if all bytes
        between them have this value, otherwise all."""
        if len(ids) < 16:
            return ids
        first, last = (ids[0] >> 3) + 1, ids[-1] >> 3
        is_uniform = (last <= len(self._bits) or byte == 0) and self._bits.count(byte, first, last) == max(
            min(last, len(self._bits)) - first, 0
        )
        return [*ids[:8], *ids[-8:]] if is_uniform else ids
