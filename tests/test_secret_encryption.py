"""Secret encryption (B95, B96): integrity of encrypted rows and sources of master keys."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tenuto import secret_encryption
from tenuto.errors import Forbidden, Invalid, TenutoError
from tenuto.secret_encryption import MasterKey, MasterKeys, UnknownMasterKey, UnreadableSecret
from tenuto.settings import Settings, load_settings
from tests.support.errors import raises_code

VALUE = "kanarie-7f3a-väl bevarad"


@pytest.fixture
def keys() -> MasterKeys:
    return MasterKeys([MasterKey.new()], "here")


def make_settings(tmp_path: Path, **more: object) -> Settings:
    return load_settings(home=tmp_path, **more)


def test_encrypted_secret_can_be_decrypted_and_ciphertexts_differ(keys: MasterKeys) -> None:
    first, second = keys.encrypt("a", 1, VALUE), keys.encrypt("a", 1, VALUE)
    assert keys.decrypt(first) == keys.decrypt(second) == VALUE
    assert first.ciphertext != second.ciphertext
    assert first.wrapped_key != second.wrapped_key
    assert VALUE.encode() not in first.ciphertext + first.wrapped_key
    assert VALUE not in repr((keys.__dict__, first, keys.current))


def test_changed_secret_row_cannot_be_decrypted(keys: MasterKeys) -> None:
    one, other = keys.encrypt("one", 1, VALUE), keys.encrypt("other", 1, "another value")
    wrong = [
        replace(other, name="one"),
        replace(one, version=2),
        replace(one, wrapped_key=other.wrapped_key),
        replace(one, ciphertext=other.ciphertext),
        replace(one, ciphertext=one.ciphertext[:-1]),
        replace(one, ciphertext=b""),
        replace(one, wrapped_key=b"\0" * 12),
        *(replace(one, ciphertext=_flip_bit(one.ciphertext, at)) for at in range(len(one.ciphertext))),
        *(replace(one, wrapped_key=_flip_bit(one.wrapped_key, at)) for at in range(len(one.wrapped_key))),
    ]
    for row in wrong:
        with raises_code("secret.damaged", UnreadableSecret) as refusal:
            keys.decrypt(row)
        assert VALUE not in repr(refusal.value)


def test_restored_old_secret_row_decrypts_with_its_old_version(keys: MasterKeys) -> None:
    """Encryption cannot detect this; the audit log shows that a newer version existed."""
    before, after = keys.encrypt("one", 1, "before"), keys.encrypt("one", 2, "after")
    assert (keys.decrypt(before), keys.decrypt(after)) == ("before", "after")
    for row in (replace(before, version=2), replace(after, ciphertext=before.ciphertext), replace(after, version=1)):
        with pytest.raises(UnreadableSecret):
            keys.decrypt(row)


def _flip_bit(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_old_master_key_is_needed_until_secrets_are_rewrapped() -> None:
    old, new = MasterKey.new(), MasterKey.new()
    row = MasterKeys([old], "then").encrypt("a", 3, VALUE)
    with raises_code("secret.master_key.unknown", UnknownMasterKey) as refusal:
        MasterKeys([new], "now").decrypt(row)
    assert f"the master key {old.id}, which is not in now" in refusal.value.message
    both = MasterKeys([new, old], "now")
    assert both.decrypt(row) == VALUE
    again = both.rewrap(row)
    assert (again.ciphertext, again.key_id) == (row.ciphertext, new.id)
    assert MasterKeys([new], "now").decrypt(again) == VALUE


def test_embedded_database_gets_one_private_key_file(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert secret_encryption.find_keys(settings) is None
    with raises_code("settings.master_key.missing", Invalid):
        secret_encryption.require_keys(settings)
    made = secret_encryption.find_or_create_keys(settings)
    assert secret_encryption.find_or_create_keys(settings).current.id == made.current.id
    assert [file.name for file in tmp_path.iterdir()] == ["master.key"]
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600
    more = secret_encryption.add_key(made)
    assert made.current.id in more
    assert secret_encryption.require_keys(settings).current.id == more.current.id != made.current.id
    assert made.current.id in secret_encryption.drop_unused_keys(more, [made.current.id])
    assert made.current.id not in secret_encryption.drop_unused_keys(more, [])
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_master_keys_come_from_setting_or_file_with_older_ones(tmp_path: Path) -> None:
    new, old = MasterKey.new(), MasterKey.new()
    by_setting = secret_encryption.require_keys(
        make_settings(tmp_path, database="postgresql://x/y", master_key=f"{new.text}, {old.text}")
    )
    file = tmp_path / "keys"
    file.write_text(f"{new.text}\n{old.text}\n")
    file.chmod(0o640)
    by_file = secret_encryption.require_keys(make_settings(tmp_path, master_key_file=file))
    for found in (by_setting, by_file):
        assert found.current.id == new.id
        assert old.id in found
        assert found.managed_file is None


def test_invalid_master_key_is_an_error_that_does_not_show_the_key(tmp_path: Path) -> None:
    short = base64.b64encode(os.urandom(31)).decode()
    readable = tmp_path / "readable"
    readable.write_text(MasterKey.new().text)
    readable.chmod(0o644)
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    key = MasterKey.new().text
    cases: list[tuple[dict[str, object], type[TenutoError], str]] = [
        ({"master_key": short}, Invalid, "settings.master_key.invalid"),
        ({"master_key": "no base64!"}, Invalid, "settings.master_key.invalid"),
        ({"master_key": " "}, Invalid, "settings.master_key.invalid"),
        ({"master_key": key, "master_key_file": readable}, Invalid, "settings.master_key.conflict"),
        ({"master_key_file": readable}, Forbidden, "settings.master_key_file.exposed"),
        ({"master_key_file": empty}, Invalid, "settings.master_key.invalid"),
        ({"master_key_file": tmp_path}, Invalid, "settings.master_key_file.unreadable"),
        ({"master_key_file": tmp_path / "none"}, Invalid, "settings.master_key_file.unreadable"),
        ({"database": "postgresql://x/y"}, Invalid, "settings.master_key.missing"),
    ]
    for settings, kind, code in cases:
        with raises_code(code, kind) as refusal:
            secret_encryption.find_or_create_keys(make_settings(tmp_path, **settings))
        assert refusal.value.field in ("master_key", "master_key_file")
        assert short not in repr(refusal.value)
        assert refusal.value.remedy
    assert not (tmp_path / "master.key").exists()


def test_settings_do_not_show_the_master_key(tmp_path: Path) -> None:
    key = MasterKey.new().text
    settings = make_settings(tmp_path, master_key=key, connections={"hr": {"url": "postgresql://u:hidden-word@h/d"}})
    assert not re.search(f"{re.escape(key)}|hidden-word", f"{settings!r} {settings}")
    with pytest.raises(Invalid) as refusal:
        make_settings(tmp_path, connections={"hr": {"url": 5, "password": "hidden-word"}})
    assert "hidden-word" not in f"{refusal.value!r} {refusal.value.__cause__!r} {refusal.value.__cause__}"
