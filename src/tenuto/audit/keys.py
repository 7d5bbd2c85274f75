"""The keys of the audit trail: derived from the master keys, so that there is one thing to keep safe.

A master key that Tenuto made itself is dropped when it is replaced. What it sealed of the trail must be checked for
years to come, so what was derived from it stays in a file in the home, where the key itself was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenuto import secret_encryption
from tenuto.audit.checkpoints import append_line, read_lines
from tenuto.errors import Invalid
from tenuto.model.audit_chain import AuditKey, AuditKeys
from tenuto.settings import Settings

KEPT = "audit.keys"
_PURPOSE = b"tenuto audit chain"


def at_hand(settings: Settings) -> AuditKeys:
    """The keys that seal and check; without a master key there are none."""
    found = secret_encryption.find(settings)
    derived = [] if found is None else [_derived(key) for key in found]
    to_be_kept = derived if found is not None and found.ours is not None else []
    kept = _kept(settings.home / KEPT, to_be_kept)
    return AuditKeys(derived[0] if derived else None, [*kept, *derived[1:]])  # what we know ourselves is not read


def _derived(key: secret_encryption.Key) -> AuditKey:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AuditKey(key.id, HKDF(SHA256(), length=32, salt=None, info=_PURPOSE).derive(key.bytes))


def _kept(file: Path, to_be_kept: Sequence[AuditKey]) -> list[AuditKey]:
    kept = {key.id: key for key in _read(file)}
    for key in to_be_kept:
        if key.id not in kept:
            append_line(file, f"{key.id} {key.bytes.hex()}", _parsed)
            kept[key.id] = key
    return list(kept.values())


def _read(file: Path) -> list[AuditKey]:
    try:
        return read_lines(file, _parsed)
    except ValueError as error:  # not repeated: it may be part of a key
        raise Invalid(f"{file} holds a line that is no key", remedy="restore the file from a backup") from error


def _parsed(line: bytes) -> AuditKey:
    id, key = line.decode("ascii").split()
    return AuditKey(id, bytes.fromhex(key))
