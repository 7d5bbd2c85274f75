"""Keys of the audit chain, derived from the master keys, so that only the master keys must be kept safe.

A master key that Tenuto created itself may be removed after a rotation. Seals made with it must stay verifiable for
years, so the keys derived from it are stored in a file in the home directory.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from tenuto import secret_encryption
from tenuto.audit.checkpoints import append_line, read_lines
from tenuto.errors import Invalid
from tenuto.model.access.audit_chain import AuditKey, AuditKeys
from tenuto.settings import Settings

FILE_NAME = "audit.keys"
_PURPOSE = b"tenuto audit chain"


def load_audit_keys(settings: Settings) -> AuditKeys:
    """Return the keys for sealing and verifying; without a master key there are none."""
    found = secret_encryption.find_keys(settings)
    derived = [] if found is None else [_derive_key(key) for key in found]
    managed = derived if found is not None and found.managed_file is not None else []
    stored = _store_keys(settings.home / FILE_NAME, managed)
    return AuditKeys(
        derived[0] if derived else None, [*stored, *derived[1:]]
    )  # the current key is not read from the file


def _derive_key(key: secret_encryption.MasterKey) -> AuditKey:
    """Derive a key by HKDF (RFC 5869) with SHA-256, no salt and 32 bytes of output, which are one block."""
    pseudo_random_key = hmac.digest(bytes(hashlib.sha256().digest_size), key.bytes, hashlib.sha256)
    return AuditKey(key.id, hmac.digest(pseudo_random_key, _PURPOSE + b"\x01", hashlib.sha256))


def _store_keys(file: Path, managed: Sequence[AuditKey]) -> list[AuditKey]:
    stored = {key.id: key for key in _read_keys(file)}
    for key in managed:
        if key.id not in stored:
            append_line(file, f"{key.id} {key.bytes.hex()}", _parse_key)
            stored[key.id] = key
    return list(stored.values())


def _read_keys(file: Path) -> list[AuditKey]:
    try:
        return read_lines(file, _parse_key)
    except ValueError as error:  # the line is not quoted: it may be part of a key
        raise Invalid(
            f"{file} contains a line that is not an audit key",
            code="audit.keys.unreadable",
            remedy="restore the file from a backup",
        ) from error


def _parse_key(line: bytes) -> AuditKey:
    id, key = line.decode("ascii").split()
    return AuditKey(id, bytes.fromhex(key))
