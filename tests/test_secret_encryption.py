"""Sealing (B95, B96): what was changed does not open, what opens is what was sealed, and keys are found or refused."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tenuto import secret_encryption
from tenuto.errors import Forbidden, Invalid, TenutoError
from tenuto.secret_encryption import CannotOpen, Key, Keys, UnknownKey
from tenuto.settings import Settings, load

VALUE = "kanarie-7f3a-väl bevarad"


@pytest.fixture
def keys() -> Keys:
    return Keys([Key.new()], "here")


def given(tmp_path: Path, **more: object) -> Settings:
    return load(home=tmp_path, **more)


def test_what_is_sealed_opens_and_no_two_seals_are_alike(keys: Keys) -> None:
    first, second = keys.seal("a", 1, VALUE), keys.seal("a", 1, VALUE)
    assert keys.open(first) == keys.open(second) == VALUE
    assert first.sealed != second.sealed
    assert first.wrapped != second.wrapped
    assert VALUE.encode() not in first.sealed + first.wrapped
    assert VALUE not in repr((keys.__dict__, first, keys.current))


def test_a_row_that_was_exchanged_damaged_or_cut_does_not_open(keys: Keys) -> None:
    one, other = keys.seal("one", 1, VALUE), keys.seal("other", 1, "another value")
    wrong = [
        replace(other, name="one"),
        replace(one, version=2),
        replace(one, wrapped=other.wrapped),
        replace(one, sealed=other.sealed),
        replace(one, sealed=one.sealed[:-1]),
        replace(one, sealed=b""),
        replace(one, wrapped=b"\0" * 12),
        *(replace(one, sealed=_flipped(one.sealed, at)) for at in range(len(one.sealed))),
        *(replace(one, wrapped=_flipped(one.wrapped, at)) for at in range(len(one.wrapped))),
    ]
    for row in wrong:
        with pytest.raises(CannotOpen, match="is not as it was stored") as refusal:
            keys.open(row)
        assert VALUE not in repr(refusal.value)


def test_a_whole_row_that_was_put_back_opens_and_says_which_version_it_is(keys: Keys) -> None:
    """That is the limit of what a seal can tell; the audit knows of the newer one."""
    before, after = keys.seal("one", 1, "before"), keys.seal("one", 2, "after")
    assert (keys.open(before), keys.open(after)) == ("before", "after")
    for row in (replace(before, version=2), replace(after, sealed=before.sealed), replace(after, version=1)):
        with pytest.raises(CannotOpen):
            keys.open(row)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_an_old_key_opens_as_long_as_it_is_given_and_rewrapping_makes_it_needless() -> None:
    old, new = Key.new(), Key.new()
    row = Keys([old], "then").seal("a", 3, VALUE)
    with pytest.raises(UnknownKey, match=f"sealed with the master key {old.id}, which is not in now"):
        Keys([new], "now").open(row)
    both = Keys([new, old], "now")
    assert both.open(row) == VALUE
    again = both.rewrap(row)
    assert (again.sealed, again.key_id) == (row.sealed, new.id)
    assert Keys([new], "now").open(again) == VALUE


def test_for_the_embedded_database_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    settings = given(tmp_path)
    assert secret_encryption.find(settings) is None
    with pytest.raises(Invalid, match="is gone"):
        secret_encryption.find_or_refuse(settings)
    made = secret_encryption.find_or_make(settings)
    assert secret_encryption.find_or_make(settings).current.id == made.current.id
    assert [file.name for file in tmp_path.iterdir()] == ["master.key"]
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600
    more = secret_encryption.add_new(made)
    assert made.current.id in more
    assert secret_encryption.find_or_refuse(settings).current.id == more.current.id != made.current.id
    assert made.current.id in secret_encryption.drop_unused(more, [made.current.id])
    assert made.current.id not in secret_encryption.drop_unused(more, [])
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600


def test_a_key_may_be_given_by_setting_or_file_with_older_ones_behind_it(tmp_path: Path) -> None:
    new, old = Key.new(), Key.new()
    by_setting = secret_encryption.find_or_refuse(
        given(tmp_path, database="postgresql://x/y", master_key=f"{new.text}, {old.text}")
    )
    file = tmp_path / "keys"
    file.write_text(f"{new.text}\n{old.text}\n")
    file.chmod(0o640)
    by_file = secret_encryption.find_or_refuse(given(tmp_path, master_key_file=file))
    for found in (by_setting, by_file):
        assert found.current.id == new.id
        assert old.id in found
        assert found.ours is None


def test_keys_that_are_missing_wrong_or_open_to_others_are_refused_without_being_repeated(tmp_path: Path) -> None:
    short = base64.b64encode(os.urandom(31)).decode()
    readable = tmp_path / "readable"
    readable.write_text(Key.new().text)
    readable.chmod(0o644)
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    cases: list[tuple[dict[str, object], type[TenutoError], str]] = [
        ({"master_key": short}, Invalid, "not 32 bytes in base64"),
        ({"master_key": "no base64!"}, Invalid, "not 32 bytes in base64"),
        ({"master_key": " "}, Invalid, "holds no key"),
        ({"master_key": Key.new().text, "master_key_file": readable}, Invalid, "both a key and a file"),
        ({"master_key_file": readable}, Forbidden, "can be read or changed by others .its mode is 0644"),
        ({"master_key_file": empty}, Invalid, "holds no key"),
        ({"master_key_file": tmp_path}, Invalid, "is not a file"),
        ({"master_key_file": tmp_path / "none"}, Invalid, "cannot be read"),
        ({"database": "postgresql://x/y"}, Invalid, "none is given"),
    ]
    for settings, kind, words in cases:
        with pytest.raises(kind, match=words) as refusal:
            secret_encryption.find_or_make(given(tmp_path, **settings))
        assert refusal.value.field in ("master_key", "master_key_file")
        assert short not in repr(refusal.value)
        assert refusal.value.remedy
    assert not (tmp_path / "master.key").exists()


def test_settings_do_not_show_a_key(tmp_path: Path) -> None:
    key = Key.new().text
    settings = given(tmp_path, master_key=key, connections={"hr": {"url": "postgresql://u:hidden-word@h/d"}})
    assert not re.search(f"{re.escape(key)}|hidden-word", f"{settings!r} {settings}")
    with pytest.raises(Invalid) as refusal:
        given(tmp_path, connections={"hr": {"url": 5, "password": "hidden-word"}})
    assert "hidden-word" not in f"{refusal.value!r} {refusal.value.__cause__!r} {refusal.value.__cause__}"
