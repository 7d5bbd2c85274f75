"""Copies of checked programs: nobody changes one, be it through its descriptor or by a file put in its place."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tenuto.steps.programs.pinned_executable import copy_of

CONTENT = b"#!/bin/sh\necho checked\n"


def _forbidden(*_: object) -> int:
    raise PermissionError


def test_a_copy_in_memory_cannot_be_changed_even_by_who_holds_it_open(tmp_path: Path) -> None:
    with copy_of(CONTENT, "mine", lambda: nullcontext(str(tmp_path))) as copy:
        if copy.descriptor is None:
            pytest.skip("nothing is kept in memory here")
        with pytest.raises(PermissionError):
            os.pwrite(copy.descriptor, b"evil", 0)
        for length in (0, 3000):
            with pytest.raises(PermissionError):
                os.ftruncate(copy.descriptor, length)
        assert Path(copy.path).read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_a_folder_is_its_owners_to_run_and_nobodys_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", _forbidden)
    with copy_of(CONTENT, "mine", lambda: nullcontext(str(tmp_path))) as copy:
        assert (copy.descriptor, Path(copy.path).read_bytes()) == (None, CONTENT)
        assert Path(copy.path).stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("put_there", ["a file", "a link"])
def test_a_copy_is_not_written_to_where_something_lies_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_there: str
) -> None:
    monkeypatch.setattr(os, "memfd_create", _forbidden)
    (tmp_path / "theirs").write_text("theirs")
    if put_there == "a file":
        (tmp_path / "mine").write_text("theirs")
    else:
        (tmp_path / "mine").symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError), copy_of(CONTENT, "mine", lambda: nullcontext(str(tmp_path))):
        pass
    assert (tmp_path / "mine").read_text() == "theirs"
