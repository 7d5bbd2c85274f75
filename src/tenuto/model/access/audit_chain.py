"""The audit chain: each seal covers the previous seal and the complete entry in canonical form.

The first byte of a seal names its method: 0 for plain SHA-256, which any reader can recompute; 1, followed by the key
id, for HMAC-SHA256, which only a holder of the key can recompute.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

GENESIS_SEAL = b""
"""The previous seal of the first entry."""
_PLAIN, _KEYED = b"\x00", b"\x01"
_ID_BYTES, _KEY_BYTES = 8, 32


@dataclass(frozen=True, slots=True)
class AuditKey:
    """A key for seals and its id."""

    id: str
    bytes: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(bytes.fromhex(self.id)) != _ID_BYTES or len(self.bytes) != _KEY_BYTES:
            raise ValueError(f"an audit key has {_KEY_BYTES} bytes and an id of {_ID_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """An audit entry in the form that is sealed: all values are texts, ``before`` and ``after`` are JSON texts.

    The seal covers the names and values of all fields: another field would invalidate every seal.
    """

    id: str
    at: str
    actor_type: str
    actor_id: str | None
    actor_name: str
    source: str | None
    request_id: str | None
    action: str
    target: str | None
    reason: str | None
    before: str | None
    after: str | None

    def to_fields(self) -> dict[str, str | None]:
        """Return the sealed values by name."""
        return {name: getattr(self, name) for name in SEALED_FIELDS}


SEALED_FIELDS = tuple(field.name for field in fields(SealedEntry))


def canonical_bytes(entry: SealedEntry) -> bytes:
    """Return the sealed form: JSON in UTF-8, keys sorted, no blanks."""
    return json.dumps(entry.to_fields(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def make_seal(previous: bytes, entry: SealedEntry, key: AuditKey | None) -> bytes:
    """Return the seal of an entry that follows the seal ``previous``."""
    if key is None:
        return _PLAIN + hashlib.sha256(previous + canonical_bytes(entry)).digest()
    proof = hmac.digest(key.bytes, previous + canonical_bytes(entry), "sha256")  # guard: audit.seal_covers_previous
    return _KEYED + bytes.fromhex(key.id) + proof


def is_keyed_seal(seal: bytes) -> bool:
    return seal[:1] == _KEYED


def seal_key_id(seal: bytes) -> str | None:
    """Return the id of the key that made the seal; None if it was made without a key."""
    return seal[1 : 1 + _ID_BYTES].hex() if is_keyed_seal(seal) else None


class UnknownAuditKey(Exception):
    """The key that made a seal is not available."""


class AuditKeys:
    """The available keys: the current one seals, all of them verify. Of two keys with the same id the later one counts,
    and the current one before all."""

    def __init__(self, current: AuditKey | None = None, older: Sequence[AuditKey] = ()) -> None:
        self.current = current
        self._by_id = {key.id: key for key in [*older, *([current] if current else [])]}

    def is_valid_seal(self, seal: bytes, previous: bytes, entry: SealedEntry) -> bool:
        """Return whether this is the seal of the entry after ``previous``; raise `UnknownAuditKey` without its key."""
        id = seal_key_id(seal)
        if id is not None and id not in self._by_id:
            raise UnknownAuditKey(id)
        return hmac.compare_digest(seal, make_seal(previous, entry, None if id is None else self._by_id[id]))
