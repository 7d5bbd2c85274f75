"""The embedded PostgreSQL after `kill -9`: no data is lost, no process is left, no other program is signalled."""

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
from tenuto.postgres.embedded_server import acquire_server
from tests.support.servers import (
    AS_ROOT,
    IMPORTS,
    assert_one_server_with_supervisor,
    commit_row,
    end_processes_of,
    find_postmaster,
    find_supervisor,
    has_row,
    is_locked,
    is_stopped,
    kill,
    processes_of,
    query,
    shared_memory_of,
    wait_for_url,
    wait_until,
)
from tests.support.waiting import eventually_blocking


def test_server_stops_after_its_holder_was_killed(
    home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start_server_holder()
    wait_for_url(process)
    process.kill()
    wait_until(lambda: is_stopped(home))


def test_killed_supervisor_is_replaced_by_the_next_holder(home: Path) -> None:
    with acquire_server(home, linger_seconds=0.1):
        first = find_supervisor(home)
        kill(first)
        wait_until(lambda: not is_locked(home, "supervisor"))
        with acquire_server(home, linger_seconds=0.1):
            assert find_supervisor(home) != first
    wait_until(lambda: is_stopped(home))


def test_supervisor_ignores_terminal_signals(home: Path) -> None:
    with acquire_server(home, linger_seconds=0.1):
        guard = find_supervisor(home)
        wait_until(lambda: any(Path(file.path).name == "postgres.holders" for file in guard.open_files()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(number)
        assert os.getsid(guard.pid) != os.getsid(0)
        assert find_supervisor(home) == guard
    wait_until(lambda: is_stopped(home))


def test_killed_postmaster_is_restarted_by_the_next_holder_without_loss(home: Path) -> None:
    with acquire_server(home, linger_seconds=0.1) as held:
        commit_row(held.url)
        kill(find_postmaster(home))
        with acquire_server(home, linger_seconds=0.1) as again:
            assert has_row(again.url)
    wait_until(lambda: is_stopped(home))


def test_server_restarts_without_loss_after_all_processes_were_killed(
    home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]
) -> None:
    holders = [start_server_holder(), start_server_holder()]
    urls = [wait_for_url(process) for process in holders]
    commit_row(urls[0])
    assert assert_one_server_with_supervisor(home)
    for process in [*(psutil.Process(holder.pid) for holder in holders), *processes_of(home)]:
        kill(process)
    wait_until(lambda: not is_locked(home, "supervisor"))  # a kill may take long on a busy machine
    with acquire_server(home, linger_seconds=0.1) as held:
        assert has_row(held.url)
        assert assert_one_server_with_supervisor(home)
    wait_until(lambda: is_stopped(home))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no files here")
def test_shared_memory_of_a_killed_server_is_removed(home: Path) -> None:
    def shared_memory_files(server: psutil.Process) -> set[Path]:
        return {path for one in (server, *server.children(recursive=True)) for path in shared_memory_of(one)}

    with acquire_server(home, linger_seconds=0):
        first = shared_memory_files(find_postmaster(home))
        assert first
        assert all(path.exists() for path in first)
        for process in processes_of(home):
            kill(process)
        wait_until(lambda: not embedded_supervisor.is_server_running(home))
    with acquire_server(home, linger_seconds=0):
        assert not any(path.exists() for path in first), (
            "the server removes it when it starts in the same data directory"
        )
        second = shared_memory_files(find_postmaster(home))
        for process in processes_of(home):
            kill(process)
    end_processes_of(home)
    assert not any(path.exists() for path in second)


@contextmanager
def other_program_with_pid_of(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run another program under the server's account, with its pid in the pid files of the dead server."""
    owner = (home / "postgres").stat()
    become: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if AS_ROOT else {}
    other_program = subprocess.Popen(["sleep", "60"], **become)
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = home / "postgres" / name
            lines = file.read_text().split("\n")
            file.write_text("\n".join([str(other_program.pid), *lines[1:]]))
        yield other_program
    finally:
        other_program.kill()
        other_program.wait()


def test_server_starts_despite_a_pid_file_of_another_program(home: Path) -> None:
    """As in a new container on an old volume: the pid belongs to another program of the same account."""
    with acquire_server(home, linger_seconds=0):
        for process in processes_of(home):
            kill(process)
        wait_until(lambda: not embedded_supervisor.is_server_running(home))
    with other_program_with_pid_of(home) as other_program:
        with acquire_server(home, linger_seconds=0) as held:
            assert query(held.url, "SELECT 1") == 1
        assert other_program.poll() is None


@pytest.mark.slow
def test_stop_signals_no_other_program_while_a_child_of_a_killed_server_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_supervisor, "_FAST_SHUTDOWN_SECONDS", 0.2)
    monkeypatch.setattr(embedded_supervisor, "_IMMEDIATE_SHUTDOWN_SECONDS", 0.2)
    find_busy_backend = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'"
    with ThreadPoolExecutor(1) as pool, acquire_server(home, linger_seconds=0.1) as held:
        endless = pool.submit(query, held.url, "DO 'BEGIN LOOP END LOOP; END'")
        busy = psutil.Process(eventually_blocking(lambda: query(held.url, find_busy_backend)))
        try:
            dead = [find_postmaster(home), find_supervisor(home)]
            for process in dead:
                kill(process)
            psutil.wait_procs(dead, timeout=20)
            with other_program_with_pid_of(home) as other_program:
                assert embedded_supervisor.is_server_running(home)
                assert not embedded_supervisor.stop_server(home)
                assert other_program.poll() is None
        finally:
            kill(busy)
        assert endless.exception(timeout=20) is not None
    wait_until(lambda: is_stopped(home))


@pytest.mark.slow
def test_incomplete_data_directory_is_created_again(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import sys, time
from pathlib import Path
from tenuto.postgres.embedded_server import acquire_server
Path.rename = lambda *_: time.sleep(60)  # never completes before the kill
acquire_server(Path(sys.argv[1]))
"""
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    creator = psutil.Popen([sys.executable, "-c", script, str(empty_home)])
    wait_until(lambda: any(empty_home.glob("postgres.making-*/base")))
    helpers = creator.children(recursive=True)
    creator.kill()
    creator.wait()
    assert not (empty_home / "postgres").exists()
    with acquire_server(empty_home) as held:
        assert query(held.url, "SELECT 1") == 1
    psutil.wait_procs(helpers, timeout=20)
