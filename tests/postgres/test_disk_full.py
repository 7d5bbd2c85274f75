"""A full disk of the embedded server: the error says what helps, and does not suggest an empty database."""

from __future__ import annotations

import errno
from pathlib import Path

from tenuto.errors import Unavailable
from tenuto.postgres.embedded_server import _platform_errors_translated, _startup_error
from tests.support.errors import raises_code


def test_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    def fail() -> None:
        with _platform_errors_translated(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")

    with raises_code("embedded.disk_full", Unavailable) as refusal:
        fail()
    assert refusal.value.message == f"the disk of {tmp_path} is full"
    assert "would start with an empty database" in (refusal.value.remedy or "")


def test_full_disk_in_the_log_of_the_server_is_recognised(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text("PANIC:  could not write to file: No space left on device\n")
    assert _startup_error(log, 0, "does not start", code="embedded.does_not_start").code == "embedded.disk_full"
    log.write_text("FATAL:  something else\n")
    assert _startup_error(log, 0, "does not start", code="embedded.does_not_start").code == "embedded.does_not_start"
