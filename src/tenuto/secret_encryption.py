"""Sealing secrets: AES-256-GCM, a data key for every version of a secret, wrapped by the master key.

Name and version are bound into both seals, so a row under another name, or with another version's number, does not
open, nor one of which any byte was changed. Whoever can write the table can still put back a whole row as it once was,
its version with it: that opens as long as its key is at hand; that there was a newer one stands in the audit alone.
Where the master key comes from is decided here too: a setting, a file, or, for the embedded database, a file in the
home. This room never sees the database, and no error of it repeats a key or a value.
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
from tenuto.settings import Settings

KEY_BYTES = 32
_NONCE_BYTES = 12
_FILE_IN_HOME = "master.key"
_LARGEST_FILE = 64 * 1024
_OTHERS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
"""What a key file must not allow: a group may be let in to read it, nobody else."""
_HOW_TO_MAKE_ONE = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > master.key)"


class CannotOpen(StoreError):
    """A secret that is there cannot be read: its key is not at hand, or it is not what was stored."""


class UnknownKey(CannotOpen):
    """A secret is sealed with a key that was not given."""


@dataclass(frozen=True, slots=True)
class Key:
    """A master key. Its id tells which one it is and nothing about it."""

    bytes: bytes = field(repr=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(b"tenuto master key\0" + self.bytes).hexdigest()[:16])

    @classmethod
    def new(cls) -> Key:
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def text(self) -> str:
        """As it stands in a file."""
        return base64.b64encode(self.bytes).decode()


@dataclass(frozen=True, slots=True)
class Sealed:
    """A secret as it is stored."""

    name: str
    version: int
    key_id: str
    wrapped: bytes
    sealed: bytes


class Keys:
    """The master keys at hand: the first one seals, all of them open."""

    def __init__(self, keys: Sequence[Key], origin: str, *, ours: Path | None = None) -> None:
        self._by_id = {key.id: key for key in keys}
        self.current = keys[0]
        self.origin = origin
        """Where they were found, in words."""
        self.ours = ours
        """The file they are in, if it is Tenuto's own to change."""

    def __iter__(self) -> Iterator[Key]:
        """The current one first."""
        return iter(self._by_id.values())

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._by_id

    def seal(self, name: str, version: int, value: str) -> Sealed:
        """Lock a value away."""
        data_key = secrets.token_bytes(KEY_BYTES)
        sealed = _encrypt(data_key, value.encode(), _bound_to("value", name, version))
        return Sealed(name, version, self.current.id, self._wrap(data_key, name, version), sealed)

    def open(self, row: Sealed) -> str:
        """The value, or a refusal that says what is wrong with the row or the keys."""
        data_key = self._unwrap(row)
        value = _decrypt(data_key, row.sealed, _bound_to("value", row.name, row.version), row.name)
        return value.decode()

    def rewrap(self, row: Sealed) -> Sealed:
        """The same secret under the current key; the value is not touched."""
        data_key = self._unwrap(row)
        wrapped = self._wrap(data_key, row.name, row.version)
        return Sealed(row.name, row.version, self.current.id, wrapped, row.sealed)

    def _wrap(self, data_key: bytes, name: str, version: int) -> bytes:
        return _encrypt(self.current.bytes, data_key, _bound_to("key", name, version))

    def _unwrap(self, row: Sealed) -> bytes:
        key = self._by_id.get(row.key_id)
        if key is None:
            raise UnknownKey(
                f"secret {row.name!r} is sealed with the master key {row.key_id}, which is not in {self.origin}",
                remedy="give that key too (old keys after the current one); a lost key cannot be made again",
            )
        return _decrypt(key.bytes, row.wrapped, _bound_to("key", row.name, row.version), row.name)


def _bound_to(what: str, name: str, version: int) -> bytes:
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
    except (InvalidTag, ValueError):  # a wrong tag, or too short to have one
        raise CannotOpen(
            f"secret {name!r} is not as it was stored: its row was damaged or exchanged",
            remedy=f"set it anew: tenuto secret set {name}",
        ) from None


# --- where the keys come from ---------------------------------------------------------------------------------------


def find(settings: Settings) -> Keys | None:
    """The keys that were given, or None if none were and none has been made."""
    if settings.master_key is not None:
        if settings.master_key_file is not None:
            raise Invalid("both a key and a file are given", field="master_key", remedy="give one of the two")
        return Keys(_read(settings.master_key.get_secret_value(), "master_key"), "TENUTO_MASTER_KEY")
    if settings.master_key_file is not None:
        return Keys(_read(_contents(settings.master_key_file), "master_key_file"), str(settings.master_key_file))
    ours = settings.home / _FILE_IN_HOME
    if settings.database is None and ours.exists():
        return Keys(_read(_contents(ours), "master_key_file"), str(ours), ours=ours)
    return None


def find_or_refuse(settings: Settings) -> Keys:
    """The keys, or what to do about it that there are none."""
    keys = find(settings)
    if keys is not None:
        return keys
    ours = settings.home / _FILE_IN_HOME
    missing = f"{ours} is gone" if settings.database is None else "no master key is given"
    raise Invalid(
        f"secrets are sealed with a master key, and {missing}",
        field="master_key",
        remedy="set TENUTO_MASTER_KEY_FILE (or TENUTO_MASTER_KEY) to the key they were sealed with",
    )


def find_or_make(settings: Settings) -> Keys:
    """The keys; for the embedded database, made now if there are none. Only for where no secret is stored yet."""
    keys = find(settings)
    if keys is not None:
        return keys
    if settings.database is not None:
        raise Invalid(
            "secrets need a master key, and none is given",
            field="master_key",
            remedy=f"set TENUTO_MASTER_KEY_FILE for every service; {_HOW_TO_MAKE_ONE}",
        )
    ours = settings.home / _FILE_IN_HOME
    ours.parent.mkdir(parents=True, exist_ok=True)
    with _beside(ours, [Key.new()]) as fresh, suppress(FileExistsError):
        os.link(fresh.path, ours)  # whoever comes second takes what the first has made
    return find_or_refuse(settings)


def add_new(keys: Keys) -> Keys:
    """A new key before those in our own file."""
    return _rewrite(keys, [Key.new(), *keys._by_id.values()])


def drop_unused(keys: Keys, used: Collection[str]) -> Keys:
    """In our own file only the current key stays, and those that are in use."""
    return _rewrite(keys, [key for key in keys._by_id.values() if key is keys.current or key.id in used])


def _rewrite(keys: Keys, ordered: Sequence[Key]) -> Keys:
    assert keys.ours is not None
    with _beside(keys.ours, ordered) as fresh:
        fresh.path.replace(keys.ours)
    return Keys(ordered, keys.origin, ours=keys.ours)


class _beside:  # noqa: N801 — reads as a sentence where it is used
    """A file next to another that is complete and on disk before it takes its place; gone afterwards."""

    def __init__(self, file: Path, keys: Sequence[Key]) -> None:
        self.path = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        self._text = "".join(f"{key.text}\n" for key in keys)

    def __enter__(self) -> _beside:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(self._text)
            file.flush()
            os.fsync(descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        if hasattr(os, "O_DIRECTORY"):  # the name of the file must outlast a power cut, too
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _contents(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise Invalid(
            f"{file} cannot be read: {error.strerror}",
            field="master_key_file",
            remedy="put the key where the setting says, or correct TENUTO_MASTER_KEY_FILE; a new key opens nothing",
        ) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise Invalid(f"{file} is not a file", field="master_key_file", remedy="name the file itself")
        if os.name == "posix" and state.st_mode & _OTHERS:
            raise Forbidden(
                f"{file} can be read or changed by others (its mode is {stat.S_IMODE(state.st_mode):04o})",
                field="master_key_file",
                remedy=f"chmod 600 {file}; if somebody may have seen it, make a new key and rotate",
            )
        return os.read(descriptor, _LARGEST_FILE).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def _read(text: str, field: str) -> list[Key]:
    keys: list[Key] = []
    for word in text.replace(",", " ").split():
        try:
            raw = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise Invalid(f"a key is not {KEY_BYTES} bytes in base64", field=field, remedy=_HOW_TO_MAKE_ONE)
        keys.append(Key(raw))
    if not keys:
        raise Invalid("holds no key", field=field, remedy=_HOW_TO_MAKE_ONE)
    return keys
