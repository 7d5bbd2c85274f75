"""Pinned copies of programs: they cannot be changed through a descriptor or by a file in their place."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tenuto.steps.programs.executable import create_pinned_copy

CONTENT = b"#!/bin/sh\necho checked\n"


def reject_memfd(*_: object) -> int:
    raise PermissionError


def test_pinned_copy_in_memory_cannot_be_changed(tmp_path: Path) -> None:
    with create_pinned_copy(CONTENT, "mine", lambda: nullcontext(str(tmp_path))) as copy:
        if copy.descriptor is None:
            pytest.skip("memfd is not available")
        with pytest.raises(PermissionError):
            os.pwrite(copy.descriptor, b"evil", 0)
        for length in (0, 3000):
            with pytest.raises(PermissionError):
                os.ftruncate(copy.descriptor, length)
        assert Path(copy.path).read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_pinned_copy_in_a_folder_is_executable_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", reject_memfd)
    with create_pinned_copy(CONTENT, "mine", lambda: nullcontext(str(tmp_path))) as copy:
        assert (copy.descriptor, Path(copy.path).read_bytes()) == (None, CONTENT)
        assert Path(copy.path).stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("existing", ["file", "link"])
def test_pinned_copy_does_not_overwrite_an_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: str
) -> None:
    monkeypatch.setattr(os, "memfd_create", reject_memfd)
    (tmp_path / "theirs").write_text("theirs")
    if existing == "file":
        (tmp_path / "mine").write_text("theirs")
    else:
        (tmp_path / "mine").symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError), create_pinned_copy(CONTENT, "mine", lambda: nullcontext(str(tmp_path))):
        pass
    assert (tmp_path / "mine").read_text() == "theirs"
