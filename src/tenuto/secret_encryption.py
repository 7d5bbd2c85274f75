"""Encryption of secrets: AES-256-GCM with one data key per version of a secret, wrapped by the master key.

Name and version are authenticated data of both ciphertexts, so a changed row, or a row copied to another name or
version, cannot be decrypted. An attacker who can write the table can restore an old row as a whole; only the audit log
shows that a newer version existed. The master key comes from a setting, a file or, for the embedded database, a file in
the home directory. This module does not access the database, and its errors never contain a key or a value.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tenuto.errors import Forbidden, Invalid, StoreError
from tenuto.extras import require_extra
from tenuto.settings import Settings

KEY_BYTES = 32
_NONCE_BYTES = 12
_HOME_KEY_FILE = "master.key"
_MAX_FILE_BYTES = 64 * 1024
_FORBIDDEN_MODE_BITS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
"""Permissions that a key file must not have; read permission for the group is allowed."""
_KEY_CREATION_HINT = "create a key with: (umask 077; head -c 32 /dev/urandom | base64 > master.key)"


class UnreadableSecret(StoreError):
    """A stored secret cannot be decrypted: its key is missing, or its row was changed."""


class UnknownMasterKey(UnreadableSecret):
    """A secret is encrypted with a master key that is not configured."""


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A master key. Its id identifies the key and reveals nothing about it."""

    bytes: bytes = field(repr=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(b"tenuto master key\0" + self.bytes).hexdigest()[:16])

    @classmethod
    def new(cls) -> MasterKey:
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def text(self) -> str:
        """The key in the format of key files."""
        return base64.b64encode(self.bytes).decode()


@dataclass(frozen=True, slots=True)
class EncryptedSecret:
    """A secret as stored in the database."""

    name: str
    version: int
    key_id: str
    wrapped_key: bytes
    ciphertext: bytes


class MasterKeys:
    """The configured master keys. The first one encrypts, all of them decrypt."""

    def __init__(self, keys: Sequence[MasterKey], origin: str, *, managed_file: Path | None = None) -> None:
        self._by_id = {key.id: key for key in keys}
        self.current = keys[0]
        self.origin = origin
        """Variable or file that the keys come from, for messages."""
        self.managed_file = managed_file
        """Key file that Tenuto created and may change."""

    def __iter__(self) -> Iterator[MasterKey]:
        """Iterate over the keys, the current one first."""
        return iter(self._by_id.values())

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._by_id

    def encrypt(self, name: str, version: int, value: str) -> EncryptedSecret:
        """Encrypt a value with a new data key."""
        data_key = secrets.token_bytes(KEY_BYTES)
        sealed = _encrypt(data_key, value.encode(), _associated_data("value", name, version))
        return EncryptedSecret(name, version, self.current.id, self._wrap(data_key, name, version), sealed)

    def decrypt(self, row: EncryptedSecret) -> str:
        """Return the value of a stored secret."""
        data_key = self._unwrap(row)
        value = _decrypt(data_key, row.ciphertext, _associated_data("value", row.name, row.version), row.name)
        return value.decode()

    def rewrap(self, row: EncryptedSecret) -> EncryptedSecret:
        """Wrap the data key with the current master key; the encrypted value stays the same."""
        data_key = self._unwrap(row)
        wrapped = self._wrap(data_key, row.name, row.version)
        return EncryptedSecret(row.name, row.version, self.current.id, wrapped, row.ciphertext)

    def _wrap(self, data_key: bytes, name: str, version: int) -> bytes:
        return _encrypt(self.current.bytes, data_key, _associated_data("key", name, version))

    def _unwrap(self, row: EncryptedSecret) -> bytes:
        key = self._by_id.get(row.key_id)
        if key is None:
            raise UnknownMasterKey(
                f"secret {row.name!r} is encrypted with the master key {row.key_id}, which is not in {self.origin}",
                code="secret.master_key.unknown",
                remedy="add that key after the current one; a lost key cannot be recovered",
            )
        return _decrypt(key.bytes, row.wrapped_key, _associated_data("key", row.name, row.version), row.name)


def _associated_data(what: str, name: str, version: int) -> bytes:
    # guard: secrets.bound_to_name, secrets.bound_to_version
    return json.dumps(["tenuto", what, name, version]).encode()


def _encrypt(key: bytes, plain: bytes, bound: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, bound)


def _decrypt(key: bytes, sealed: bytes, bound: bytes, name: str) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
    except (InvalidTag, ValueError):  # ValueError: too short to contain a tag
        raise UnreadableSecret(
            f"the stored row of secret {name!r} is damaged or was replaced",
            code="secret.damaged",
            remedy=f"set the secret again: tenuto secret set {name}",
        ) from None


# --- sources of master keys -----------------------------------------------------------------------------------------


def find_keys(settings: Settings) -> MasterKeys | None:
    """Return the configured keys, or None."""
    if settings.master_key is not None:
        if settings.master_key_file is not None:
            raise Invalid(
                "the settings master_key and master_key_file are both set",
                code="settings.master_key.conflict",
                field="master_key",
                remedy="set only one of them",
            )
        return MasterKeys(parse_keys(settings.master_key.get_secret_value(), "master_key"), "TENUTO_MASTER_KEY")
    if settings.master_key_file is not None:
        return MasterKeys(
            parse_keys(read_key_file(settings.master_key_file), "master_key_file"), str(settings.master_key_file)
        )
    key_file = settings.home / _HOME_KEY_FILE
    if settings.database is None and key_file.exists():
        return MasterKeys(parse_keys(read_key_file(key_file), "master_key_file"), str(key_file), managed_file=key_file)
    return None


def require_keys(settings: Settings) -> MasterKeys:
    """Return the configured keys; without any, raise an error."""
    require_extra("secrets", "the encryption of secrets")
    keys = find_keys(settings)
    if keys is not None:
        return keys
    key_file = settings.home / _HOME_KEY_FILE
    missing = f"the key file {key_file} does not exist" if settings.database is None else "no master key is configured"
    raise Invalid(
        f"stored secrets are encrypted with a master key, but {missing}",
        code="settings.master_key.missing",
        field="master_key",
        remedy="set TENUTO_MASTER_KEY_FILE or TENUTO_MASTER_KEY to the key that encrypted the secrets",
    )


def find_or_create_keys(settings: Settings) -> MasterKeys:
    """Return the configured keys; for the embedded database, create one. Call only while no secret is stored."""
    require_extra("secrets", "the encryption of secrets")
    keys = find_keys(settings)
    if keys is not None:
        return keys
    if settings.database is not None:
        raise Invalid(
            "secrets require a master key, but none is configured",
            code="settings.master_key.missing",
            field="master_key",
            remedy=f"set TENUTO_MASTER_KEY_FILE for every service; {_KEY_CREATION_HINT}",
        )
    key_file = settings.home / _HOME_KEY_FILE
    key_file.parent.mkdir(parents=True, exist_ok=True)
    with _ReplacementFile(key_file, [MasterKey.new()]) as replacement, suppress(FileExistsError):
        os.link(replacement.path, key_file)  # if another process was faster, its key is used
    return require_keys(settings)


def add_key(keys: MasterKeys) -> MasterKeys:
    """Add a new current key to the managed key file."""
    return _rewrite(keys, [MasterKey.new(), *keys._by_id.values()])


def drop_unused_keys(keys: MasterKeys, used: Collection[str]) -> MasterKeys:
    """Remove all keys from the managed key file except the current one and those in use."""
    return _rewrite(keys, [key for key in keys._by_id.values() if key is keys.current or key.id in used])


def _rewrite(keys: MasterKeys, ordered: Sequence[MasterKey]) -> MasterKeys:
    assert keys.managed_file is not None
    with _ReplacementFile(keys.managed_file, ordered) as replacement:
        replacement.path.replace(keys.managed_file)
    return MasterKeys(ordered, keys.origin, managed_file=keys.managed_file)


class _ReplacementFile:
    """Temporary file beside a key file, complete and on disk before it takes its place; removed afterwards."""

    def __init__(self, file: Path, keys: Sequence[MasterKey]) -> None:
        self.path = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        self._text = "".join(f"{key.text}\n" for key in keys)

    def __enter__(self) -> _ReplacementFile:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(self._text)
            file.flush()
            os.fsync(descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        if hasattr(os, "O_DIRECTORY"):  # the directory entry must survive a power failure too
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def read_key_file(file: Path) -> str:
    """Return the text of a key file; reject one that other accounts can read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise Invalid(
            f"the key file {file} cannot be read: {error.strerror}",
            code="settings.master_key_file.unreadable",
            field="master_key_file",
            remedy="restore the key file or correct TENUTO_MASTER_KEY_FILE; a new key cannot decrypt old secrets",
        ) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise Invalid(
                f"the key file {file} is not a regular file",
                code="settings.master_key_file.unreadable",
                field="master_key_file",
                remedy="set TENUTO_MASTER_KEY_FILE to a regular file",
            )
        if os.name == "posix" and state.st_mode & _FORBIDDEN_MODE_BITS:
            raise Forbidden(
                f"the key file {file} is accessible to other users (mode {stat.S_IMODE(state.st_mode):04o})",
                code="settings.master_key_file.exposed",
                field="master_key_file",
                remedy=f"run chmod 600 {file}; if another user may have read the key, add a new one and rotate",
            )
        return os.read(descriptor, _MAX_FILE_BYTES).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def parse_keys(text: str, field: str) -> list[MasterKey]:
    """Return the keys of a setting or file, the current one first."""
    keys: list[MasterKey] = []
    for encoded in text.replace(",", " ").split():
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise Invalid(
                f"a key in {field} is not {KEY_BYTES} bytes in base64",
                code="settings.master_key.invalid",
                field=field,
                remedy=_KEY_CREATION_HINT,
            )
        keys.append(MasterKey(raw))
    if not keys:
        raise Invalid(
            f"{field} contains no key", code="settings.master_key.invalid", field=field, remedy=_KEY_CREATION_HINT
        )
    return keys
