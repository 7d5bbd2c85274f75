"""The embedded PostgreSQL after `kill -9`: whoever died, nothing is lost, nobody is left behind, no stranger is met."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto.postgres import embedded_supervisor
from tenuto.postgres.embedded_server import hold
from tests.support.servers import (
    AS_ROOT,
    IMPORTS,
    commit_a_row,
    end_processes_of,
    is_locked,
    is_stopped,
    keeper_of,
    kill,
    one_server_runs_and_is_kept,
    postmaster,
    processes_of,
    query,
    row_is_there,
    shared_memory_of,
    until,
    url_of,
)
from tests.support.waiting import eventually_here


def test_a_killed_holder_does_not_keep_the_server_up(home: Path, holder: Callable[..., subprocess.Popen[str]]) -> None:
    process = holder()
    url_of(process)
    process.kill()
    until(lambda: is_stopped(home))


def test_a_killed_keeper_is_replaced_at_the_next_hold(home: Path) -> None:
    with hold(home, linger=0.1):
        first = keeper_of(home)
        kill(first)
        until(lambda: not is_locked(home, "keeper"))
        with hold(home, linger=0.1):
            assert keeper_of(home) != first
    until(lambda: is_stopped(home))


def test_the_keeper_pays_no_heed_to_signals_meant_for_the_terminal(home: Path) -> None:
    with hold(home, linger=0.1):
        guard = keeper_of(home)
        until(lambda: any(Path(file.path).name == "postgres.holders" for file in guard.open_files()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(number)
        assert os.getsid(guard.pid) != os.getsid(0)
        assert keeper_of(home) == guard
    until(lambda: is_stopped(home))


def test_a_killed_postmaster_is_replaced_at_the_next_hold_and_nothing_is_lost(home: Path) -> None:
    with hold(home, linger=0.1) as held:
        commit_a_row(held.url)
        kill(postmaster(home))
        with hold(home, linger=0.1) as again:
            assert row_is_there(again.url)
    until(lambda: is_stopped(home))


def test_when_everything_is_killed_at_once_nothing_is_lost(
    home: Path, holder: Callable[..., subprocess.Popen[str]]
) -> None:
    holders = [holder(), holder()]
    urls = [url_of(process) for process in holders]
    commit_a_row(urls[0])
    assert one_server_runs_and_is_kept(home)
    for process in [*(psutil.Process(holder.pid) for holder in holders), *processes_of(home)]:
        kill(process)
    until(lambda: not is_locked(home, "keeper"))  # a busy machine takes its time over a kill
    with hold(home, linger=0.1) as held:
        assert row_is_there(held.url)
        assert one_server_runs_and_is_kept(home)
    until(lambda: is_stopped(home))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no files here")
def test_the_shared_memory_of_a_killed_server_goes_with_the_next_start_or_with_the_test(home: Path) -> None:
    def left_of(server: psutil.Process) -> set[Path]:
        return {path for one in (server, *server.children(recursive=True)) for path in shared_memory_of(one)}

    with hold(home, linger=0):
        first = left_of(postmaster(home))
        assert first
        assert all(path.exists() for path in first)
        for process in processes_of(home):
            kill(process)
        until(lambda: not embedded_supervisor.server_lives(home))
    with hold(home, linger=0):
        assert not any(path.exists() for path in first), "the server itself sees to it, on the same data folder"
        second = left_of(postmaster(home))
        for process in processes_of(home):
            kill(process)
    end_processes_of(home)
    assert not any(path.exists() for path in second)


@contextmanager
def a_stranger_in(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Some other program of the server's account, which has the number that stands in the files of a dead server."""
    owner = (home / "postgres").stat()
    become: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if AS_ROOT else {}
    stranger = subprocess.Popen(["sleep", "60"], **become)
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = home / "postgres" / name
            words = file.read_text().split("\n")
            file.write_text("\n".join([str(stranger.pid), *words[1:]]))
        yield stranger
    finally:
        stranger.kill()
        stranger.wait()


def test_a_pid_file_that_names_a_stranger_does_not_keep_the_server_down(home: Path) -> None:
    """As in a new container on an old volume: the number belongs to some other program of the same account."""
    with hold(home, linger=0):
        for process in processes_of(home):
            kill(process)
        until(lambda: not embedded_supervisor.server_lives(home))
    with a_stranger_in(home) as stranger:
        with hold(home, linger=0) as held:
            assert query(held.url, "SELECT 1") == 1
        assert stranger.poll() is None


def test_a_stop_signals_no_stranger_though_a_busy_process_of_a_killed_server_lives_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_supervisor, "_FAST_PATIENCE", 0.2)
    monkeypatch.setattr(embedded_supervisor, "_IMMEDIATE_PATIENCE", 0.2)
    at_it = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
    with ThreadPoolExecutor(1) as aside, hold(home, linger=0.1) as held:
        endless = aside.submit(query, held.url, "DO 'BEGIN LOOP END LOOP; END'")
        busy = psutil.Process(eventually_here(lambda: query(held.url, at_it)))
        try:
            dead = [postmaster(home), keeper_of(home)]
            for process in dead:
                kill(process)
            psutil.wait_procs(dead, timeout=20)
            with a_stranger_in(home) as stranger:
                assert embedded_supervisor.server_lives(home)
                assert not embedded_supervisor.stop_server(home)
                assert stranger.poll() is None
        finally:
            kill(busy)
        assert endless.exception(timeout=20) is not None
    until(lambda: is_stopped(home))


def test_a_data_folder_whose_making_was_cut_short_is_made_again(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import sys, time
from pathlib import Path
from tenuto.postgres.embedded_server import hold
Path.rename = lambda *_: time.sleep(60)  # however long it takes until it is killed, it does not come to the end
hold(Path(sys.argv[1]))
"""
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    maker = psutil.Popen([sys.executable, "-c", script, str(empty_home)])
    until(lambda: any(empty_home.glob("postgres.making-*/base")))
    helpers = maker.children(recursive=True)
    maker.kill()
    maker.wait()
    assert not (empty_home / "postgres").exists()
    with hold(empty_home) as held:
        assert query(held.url, "SELECT 1") == 1
    psutil.wait_procs(helpers, timeout=20)
