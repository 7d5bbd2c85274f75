"""The chain of the audit trail: each seal is made over the seal before it and the whole entry, in one canonical form.

Pure: what an entry looks like, how a seal is made and checked. A seal begins with how it was made: a zero byte for
plain SHA-256, which anybody can make anew; a one and the id of the key for HMAC-SHA256, which only who has the key can.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BEGINNING = b""
"""What stands in the place of the seal before the first one."""
_PLAIN, _KEYED = b"\x00", b"\x01"
_ID_BYTES, _KEY_BYTES = 8, 32


@dataclass(frozen=True, slots=True)
class AuditKey:
    """A key for seals, and the id it is known by."""

    id: str
    bytes: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.id)) != _ID_BYTES or len(self.bytes) != _KEY_BYTES:
            raise ValueError("an audit key has another length, or its id has")


def canonical(entry: Mapping[str, Any]) -> bytes:
    """An entry as it is sealed: JSON in UTF-8, names in order, no blanks; before and after are texts of JSON."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def seal(previous: bytes, entry: Mapping[str, Any], key: AuditKey | None) -> bytes:
    """The seal of an entry that follows another."""
    if key is None:
        return _PLAIN + hashlib.sha256(previous + canonical(entry)).digest()
    proof = hmac.digest(key.bytes, previous + canonical(entry), "sha256")
    return _KEYED + bytes.fromhex(key.id) + proof


def is_keyed(of: bytes) -> bool:
    """Whether a seal was made with a key."""
    return of[:1] == _KEYED


def key_id(of: bytes) -> str | None:
    """The id of the key a seal was made with."""
    return of[1 : 1 + _ID_BYTES].hex() if is_keyed(of) else None


class UnknownAuditKey(Exception):
    """A seal was made with a key that is not at hand."""


class AuditKeys:
    """The keys at hand: the current one seals, all of them check. There may be none. Of two with the same id the later
    one counts, and the current one before all."""

    def __init__(self, current: AuditKey | None = None, older: Sequence[AuditKey] = ()) -> None:
        self.current = current
        self._by_id = {key.id: key for key in [*older, *([current] if current else [])]}

    def is_right(self, found: bytes, previous: bytes, entry: Mapping[str, Any]) -> bool:
        """Whether this is the seal of the entry after that one; `UnknownAuditKey` if nobody here can tell."""
        id = key_id(found)
        if id is not None and id not in self._by_id:
            raise UnknownAuditKey(id)
        return hmac.compare_digest(found, seal(previous, entry, None if id is None else self._by_id[id]))
