"""Encryption of backups: every change of the file is detected, and content is read in any order."""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path

import pytest

from tenuto.errors import Invalid
from tenuto.operations.admin import backup_encryption
from tenuto.operations.admin.backup_encryption import CHUNK_BYTES, DecryptingReader, EncryptingWriter, is_encrypted
from tests.support.errors import raises_code

PASSPHRASE = "five random words are enough"


@pytest.fixture(autouse=True)
def _cheap_key_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_encryption, "_SCRYPT", {"n": 2, "r": 8, "p": 1})


def encrypt(file: Path, content: bytes) -> Path:
    with file.open("wb") as raw:
        writer = EncryptingWriter(raw, PASSPHRASE)
        for start in range(0, len(content), 50_000):
            writer.write(content[start : start + 50_000])
        writer.finish()
    return file


def decrypt(file: Path, passphrase: str = PASSPHRASE) -> bytes:
    with io.BufferedReader(DecryptingReader(file, passphrase), CHUNK_BYTES) as reader:
        return reader.read()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 1_000_000])
def test_encrypted_content_is_read_back(tmp_path: Path, size: int) -> None:
    content = random.Random(7).randbytes(size)
    file = encrypt(tmp_path / "file", content)
    assert is_encrypted(file)
    assert decrypt(file) == content
    assert size < 20 or content[:20] not in file.read_bytes()


def test_encrypted_archive_is_written_and_read_without_plain_text_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = random.Random(7).randbytes(300_000)
    with file.open("wb") as raw:
        writer = EncryptingWriter(raw, PASSPHRASE)
        with zipfile.ZipFile(writer, "w") as archive:
            archive.writestr("first", content)
            archive.writestr("second", b"secret")
        writer.finish()
    with zipfile.ZipFile(io.BufferedReader(DecryptingReader(file, PASSPHRASE))) as archive:
        assert archive.testzip() is None
        assert (archive.read("second"), archive.read("first")) == (b"secret", content)
    assert b"second" not in file.read_bytes(), "names of files are encrypted too"


def test_every_file_has_another_key(tmp_path: Path) -> None:
    one, two = (encrypt(tmp_path / name, b"the same").read_bytes() for name in ("one", "two"))
    assert one.split(b"\n", 2)[2] != two.split(b"\n", 2)[2]


def test_wrong_passphrase_is_refused(tmp_path: Path) -> None:
    file = encrypt(tmp_path / "file", b"content")
    with raises_code("backup.passphrase.wrong", Invalid):
        decrypt(file, PASSPHRASE + " ")


@pytest.mark.parametrize("size", [100, 3 * CHUNK_BYTES + 5])
def test_every_changed_byte_is_detected(tmp_path: Path, size: int) -> None:
    file = encrypt(tmp_path / "file", random.Random(7).randbytes(size))
    sealed = file.read_bytes()
    places = range(len(sealed)) if size == 100 else random.Random(3).sample(range(len(sealed)), 40)
    for place in places:
        changed = bytearray(sealed)
        changed[place] ^= 1
        file.write_bytes(changed)
        if is_encrypted(file):  # otherwise it is not read as an encrypted backup at all
            with pytest.raises(Invalid):
                decrypt(file)


def test_file_that_was_cut_off_extended_or_reordered_is_refused(tmp_path: Path) -> None:
    file = encrypt(tmp_path / "file", os.urandom(3 * CHUNK_BYTES))
    sealed = file.read_bytes()
    start = len(sealed) - 3 * (CHUNK_BYTES + 16)
    size = CHUNK_BYTES + 16
    first, second, third = (sealed[start + number * size : start + (number + 1) * size] for number in range(3))
    for parts in ((first, second), (first,), (first, second, third[:-1]), (first, third, second), (), (first, third)):
        file.write_bytes(sealed[:start] + b"".join(parts))
        with pytest.raises(Invalid):
            decrypt(file)
    file.write_bytes(sealed + b"more")
    with pytest.raises(Invalid):
        decrypt(file)
    writer = EncryptingWriter(file.open("wb"), PASSPHRASE)
    writer.write(b"x" * CHUNK_BYTES * 2)
    writer._target.close()
    with pytest.raises(Invalid):
        decrypt(file)


@pytest.mark.parametrize(
    "header",
    [
        b"[]", b"nothing", b'{"n": 3, "r": 8, "p": 1, "salt": "00112233445566778899aabbccddeeff"}',
        b'{"n": 1073741824, "r": 8, "p": 1, "salt": "00112233445566778899aabbccddeeff"}',
        b'{"n": 2, "r": 8, "p": 1, "salt": "00"}',
        b'{"n": 2, "r": 8, "p": 100000, "salt": "00112233445566778899aabbccddeeff"}',
    ],
)  # fmt: skip
def test_header_with_absurd_parameters_is_refused(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(backup_encryption.MAGIC + header + b"\n" + bytes(100))
    with raises_code("backup.damaged", Invalid):
        decrypt(file)


def test_short_passphrase_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as raw, raises_code("backup.passphrase.too_short", Invalid):
        EncryptingWriter(raw, "short")
