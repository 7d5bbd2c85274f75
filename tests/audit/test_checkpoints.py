"""Checkpoint file of the audit log: complete lines survive crashes, other lines are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tenuto.audit import checkpoints
from tests.support.errors import raises_code


def test_checkpoint_line_is_appended_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "heads"
    line = json.dumps({"database": "d", "position": 1, "seal": "00", "at": "2031-01-01T00:00:00+00:00"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    checkpoints.append_line(file, line, checkpoints.parse_checkpoint)
    assert file.read_text() == f"{line}\n"

    def write_until_full(handle: int, data: bytes) -> int:
        if file.stat().st_size > len(line) + 20:
            raise OSError(28, "No space left on device")
        return write(handle, data[:30])

    monkeypatch.setattr(os, "write", write_until_full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.append_line(file, line, checkpoints.parse_checkpoint)
    assert file.read_text() == f"{line}\n"
    monkeypatch.setattr(os, "write", write)
    file.write_text(f"{line}\n{line[:20]}")  # as after a crash during the write
    checkpoints.append_line(file, line, checkpoints.parse_checkpoint)
    assert file.read_text() == f"{line}\n{line}\n"
    (tmp_path / checkpoints.FILE_NAME).write_text(f"{line}\n{line[:20]}")
    assert [checkpoint.position for checkpoint in checkpoints.read_checkpoints(tmp_path, "d")] == [1]


def test_checkpoint_line_without_line_end_is_read_and_kept(tmp_path: Path) -> None:
    file = tmp_path / checkpoints.FILE_NAME
    first, second, third = (
        json.dumps({"database": "d", "position": position, "seal": "00", "at": "2031-01-01T00:00:00+00:00"})
        for position in (1, 2, 3)
    )
    file.write_text(f"{first}\n{second}")  # as saved by an editor
    assert [checkpoint.position for checkpoint in checkpoints.read_checkpoints(tmp_path, "d")] == [1, 2]
    checkpoints.append_line(file, third, checkpoints.parse_checkpoint)
    assert file.read_text() == f"{first}\n{second}\n{third}\n"


@pytest.mark.parametrize(
    "line", [b"5", b"{}", b'{"database": "d", "position": 1, "seal": "0", "at": "x"}', b"\xff", b""]
)
def test_invalid_checkpoint_line_is_refused_with_a_remedy(line: bytes, tmp_path: Path) -> None:
    (tmp_path / checkpoints.FILE_NAME).write_bytes(line + b"\n")
    with raises_code("audit.checkpoints.unreadable") as refusal:
        checkpoints.read_checkpoints(tmp_path, "d")
    assert refusal.value.remedy
