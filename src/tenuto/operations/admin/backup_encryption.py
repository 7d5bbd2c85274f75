"""Encryption of backups with a passphrase: a stream of AES-256-GCM chunks under a key from scrypt.

Layout: a magic line, a JSON line with the parameters of scrypt and the salt, then chunks of 64 KiB, each with its tag.
The nonce of a chunk is its number and a mark on the last one (the STREAM construction), and the two lines are
authenticated with every chunk. Chunks that are changed, reordered, dropped or appended, and a file that was cut off,
are therefore detected. Every file has a new salt and so a new key; nonces never repeat. Chunks can be read in any
order, so no plain text is written to disk.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from pathlib import Path
from typing import IO, Any

from tenuto.errors import Invalid
from tenuto.extras import require_extra

MAGIC = b"tenuto encrypted backup 1\n"
CHUNK_BYTES = 64 * 1024
MIN_PASSPHRASE_CHARACTERS = 12
_TAG_BYTES = 16
_KEY_BYTES = 32
_SALT_BYTES = 16
_MAX_HEADER_BYTES = 1000
_SCRYPT = {"n": 2**17, "r": 8, "p": 1}
_MAX_SCRYPT_BYTES = 1024**3
"""Upper bound for the memory that the header of a file may ask for."""
_SCRYPT_OVERHEAD_BYTES = 1024**2


def is_encrypted(file: Path) -> bool:
    """Return whether a file begins like an encrypted backup."""
    with file.open("rb") as handle:
        return handle.read(len(MAGIC)) == MAGIC


def check_passphrase(passphrase: str) -> None:
    """Reject a passphrase that is too short for a new backup."""
    if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
        raise Invalid(
            f"the passphrase has {len(passphrase)} characters, fewer than {MIN_PASSPHRASE_CHARACTERS}",
            code="backup.passphrase.too_short",
            field="passphrase",
            remedy="use a longer one, such as five random words",
        )


class EncryptingWriter(io.RawIOBase):
    """A file that encrypts what is written to it. It cannot seek. `finish` writes the last chunk."""

    def __init__(self, target: IO[bytes], passphrase: str) -> None:
        check_passphrase(passphrase)
        header = {**_SCRYPT, "salt": secrets.token_hex(_SALT_BYTES)}
        self._target = target
        self._header = MAGIC + json.dumps(header).encode("ascii") + b"\n"
        self._cipher = _Cipher(passphrase, header, self._header)
        self._waiting = bytearray()
        self._count = 0
        self._position = 0
        target.write(self._header)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        self._waiting += data
        # The last chunk is marked, so a full one is held back until there is more.
        while len(self._waiting) > CHUNK_BYTES:
            self._write_chunk(bytes(self._waiting[:CHUNK_BYTES]), is_last=False)
            del self._waiting[:CHUNK_BYTES]
        self._position += len(data)
        return len(data)

    def finish(self) -> None:
        """Write the last chunk. Without it, the file is refused."""
        self._write_chunk(bytes(self._waiting), is_last=True)
        self._waiting.clear()

    def _write_chunk(self, chunk: bytes, *, is_last: bool) -> None:
        self._target.write(self._cipher.encrypt(self._count, chunk, is_last=is_last))
        self._count += 1


class DecryptingReader(io.RawIOBase):
    """The plain content of an encrypted backup; it can seek."""

    def __init__(self, file: Path, passphrase: str) -> None:
        self._file = file
        self._source = file.open("rb")
        try:
            magic, line = self._source.readline(len(MAGIC)), self._source.readline(_MAX_HEADER_BYTES)
            self._start = self._source.tell()
            self._cipher = _Cipher(passphrase, _read_header(line, file), magic + line)
            size = os.fstat(self._source.fileno()).st_size - self._start
            self._count = -(-size // (CHUNK_BYTES + _TAG_BYTES))
            self._size = size - self._count * _TAG_BYTES
            self._position = 0
            self._loaded: tuple[int, bytes] | None = None
            if size < _TAG_BYTES or self._size < 0:
                raise damaged_backup(file)
            try:
                self._load(0)
            except Invalid as error:
                raise Invalid(
                    f"{file} cannot be decrypted: the passphrase is wrong, or the file was changed",
                    code="backup.passphrase.wrong",
                    field="passphrase",
                ) from error
        except BaseException:
            self._source.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        number, offset = divmod(self._position, CHUNK_BYTES)
        part = self._load(number)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        self._source.close()
        super().close()

    def _load(self, number: int) -> bytes:
        if self._loaded is None or self._loaded[0] != number:
            self._source.seek(self._start + number * (CHUNK_BYTES + _TAG_BYTES))
            sealed = self._source.read(CHUNK_BYTES + _TAG_BYTES)
            plain = self._cipher.decrypt(number, sealed, self._file, is_last=number == self._count - 1)
            self._loaded = number, plain
        return self._loaded[1]


class _Cipher:
    """The key of one file, with the header as authenticated data."""

    def __init__(self, passphrase: str, header: dict[str, Any], authenticated: bytes) -> None:
        require_extra("secrets", "encryption of backups")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = hashlib.scrypt(
            passphrase.encode(),
            salt=bytes.fromhex(header["salt"]),
            n=header["n"],
            r=header["r"],
            p=header["p"],
            maxmem=_MAX_SCRYPT_BYTES + _SCRYPT_OVERHEAD_BYTES,
            dklen=_KEY_BYTES,
        )
        self._cipher = AESGCM(key)
        self._authenticated = authenticated

    def encrypt(self, number: int, chunk: bytes, *, is_last: bool) -> bytes:
        return self._cipher.encrypt(_nonce(number, is_last=is_last), chunk, self._authenticated)

    def decrypt(self, number: int, sealed: bytes, file: Path, *, is_last: bool) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(number, is_last=is_last), sealed, self._authenticated)
        except InvalidTag as error:
            raise damaged_backup(file) from error


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _read_header(line: bytes, file: Path) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(line)
        n, r, p, salt = header["n"], header["r"], header["p"], bytes.fromhex(header["salt"])
        if len(salt) != _SALT_BYTES or not all(isinstance(each, int) and each > 0 for each in (n, r, p)):
            raise ValueError("the header has unknown values")
        if n < 2 or n & (n - 1) or p > 16 or 128 * r * (n + p) > _MAX_SCRYPT_BYTES:
            raise ValueError("the header asks for too much memory")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_backup(file) from error
    return header


def damaged_backup(file: Path) -> Invalid:
    return Invalid(
        f"{file} is damaged: part of it was changed or cut off",
        code="backup.damaged",
        field="FILE",
        remedy="use another backup",
    )
