"""The embedded PostgreSQL: one server for all holders, running while a holder is alive.

Every test has its own home directory with a real server (`tests/support/store_fixtures.py`).
"""

from __future__ import annotations

import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto.postgres.embedded_server import acquire_server, stop_server
from tests.support.servers import (
    HOLD_UNTIL_EOF,
    assert_one_server_with_supervisor,
    commit_row,
    find_postmaster,
    has_row,
    is_locked,
    is_stopped,
    kill,
    query,
    wait_for_url,
    wait_until,
)

# ---- starting and sharing


def test_first_holder_creates_the_server_and_the_next_finds_it_running(empty_home: Path) -> None:
    with acquire_server(empty_home / "new" / "home") as first, acquire_server(empty_home / "new" / "home") as second:
        assert first.url == second.url
        assert assert_one_server_with_supervisor(empty_home)
        assert query(first.url, "SELECT current_user || '/' || current_database()") == "tenuto/tenuto"
    data = empty_home / "new" / "home" / "postgres"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stop_server(empty_home / "new" / "home")


def test_concurrent_holders_create_the_server_once(empty_home: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        holds = list(threads.map(lambda _: acquire_server(empty_home / "new"), range(4)))
    assert len({held.url for held in holds}) == 1
    assert query(holds[0].url, "SELECT 1") == 1
    for held in holds:
        held.release()
    assert stop_server(empty_home / "new")


def test_server_has_durable_private_and_requested_settings(home: Path) -> None:
    def setting(name: str) -> Any:
        return query(held.url, f"SELECT current_setting('{name}')")

    with acquire_server(home, settings={"work_mem": "7MB", "max_connections": "50", "port": "1"}) as held:
        assert [setting(name) for name in ("fsync", "synchronous_commit", "data_checksums")] == ["on"] * 3
        assert [setting(name) for name in ("listen_addresses", "unix_socket_permissions")] == ["", "0700"]
        assert [setting(name) for name in ("work_mem", "max_connections", "shared_buffers")] == ["7MB", "50", "128MB"]
        assert query(held.url, "SELECT string_agg(type || auth_method, ',') FROM pg_hba_file_rules") == (
            "localpeer,localscram-sha-256"
        )
        assert query(held.url, "SELECT datlocale FROM pg_database WHERE datname = 'tenuto'") == "C.UTF-8"


def test_committed_data_survives_a_restart_of_the_server(home: Path) -> None:
    with acquire_server(home) as held:
        commit_row(held.url)
        assert stop_server(home)
        assert not stop_server(home)
        with acquire_server(home) as again:
            assert has_row(again.url)


def test_processes_share_one_server(home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]) -> None:
    one, other = start_server_holder(), start_server_holder()
    commit_row(wait_for_url(one))
    assert has_row(wait_for_url(other))
    assert assert_one_server_with_supervisor(home)


@pytest.mark.slow
def test_concurrent_short_lived_holders_leave_no_server_running(
    home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]
) -> None:
    acquire_and_release = """
import asyncio, asyncpg, random, sys, time
from pathlib import Path
from tenuto.postgres.embedded_server import acquire_server
async def ask(url):
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
for _ in range(5):
    with acquire_server(Path(sys.argv[1]), linger_seconds=float(sys.argv[2])) as held:
        asyncio.run(ask(held.url))
    time.sleep(random.random() / 5)
"""
    processes = [start_server_holder(linger=0.0, script=acquire_and_release) for _ in range(8)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 8
    wait_until(lambda: is_stopped(home))


# ---- releasing


def test_server_outlives_its_last_holder_by_the_linger_period(home: Path) -> None:
    held, other = acquire_server(home, linger_seconds=0.7), acquire_server(home, linger_seconds=0.1)
    held.release()
    held.release()
    left = time.monotonic()  # before the release of the last holder
    other.release()
    wait_until(lambda: is_stopped(home))
    assert 0.7 <= time.monotonic() - left < 15


@pytest.mark.slow
def test_new_holder_during_the_linger_period_starts_a_new_one(home: Path) -> None:
    with acquire_server(home, linger_seconds=3):
        server = find_postmaster(home)
    time.sleep(0.5)  # part of the first linger period
    with acquire_server(home, linger_seconds=3):
        assert find_postmaster(home) == server
        left = time.monotonic()
    wait_until(lambda: is_stopped(home))
    assert time.monotonic() - left >= 3


def test_holder_that_arrives_during_a_stop_gets_a_new_server(home: Path) -> None:
    pid_file = home / "postgres" / "postmaster.pid"
    for moment in ("at once", "stopping", "gone"):
        with acquire_server(home, linger_seconds=0):
            server = find_postmaster(home)
        if moment == "stopping":
            wait_until(lambda: not pid_file.exists() or pid_file.read_text().endswith("stopping\n"))
        elif moment == "gone":
            wait_until(lambda: not pid_file.exists())
        with acquire_server(home, linger_seconds=0) as held:
            assert query(held.url, "SELECT 1") == 1
            assert moment == "at once" or find_postmaster(home) != server
    wait_until(lambda: is_stopped(home))


def test_server_without_linger_limit_keeps_running(home: Path) -> None:
    acquire_server(home, linger_seconds=None).release()
    server = find_postmaster(home)
    acquire_server(home, linger_seconds=0).release()
    assert not is_locked(home, "supervisor")
    assert find_postmaster(home) == server
    assert stop_server(home)


def test_fork_keeps_the_server_of_its_parent_running(
    home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]
) -> None:
    fork = HOLD_UNTIL_EOF.replace("print(", "import os; os.fork() and os._exit(0)\nprint(os.getpid(),")
    parent = start_server_holder(linger=0.0, script=fork)
    child = psutil.Process(int(wait_for_url(parent).split()[0]))
    wait_until(lambda: parent.poll() is not None)
    with pytest.raises(AssertionError):
        wait_until(lambda: is_stopped(home), seconds=0.5)
    kill(child)
    wait_until(lambda: is_stopped(home))


def test_forks_during_a_server_start_do_not_count_as_the_server(
    home: Path, start_server_holder: Callable[..., subprocess.Popen[str]]
) -> None:
    fork_during_start = """
import os, signal, sys, threading, time
from pathlib import Path
from tenuto.postgres import embedded_supervisor
from tenuto.postgres.embedded_server import acquire_server, stop_server
home, forks = Path(sys.argv[1]), []
def acquire_and_release():
    for _ in range(5):
        with acquire_server(home, linger_seconds=0):
            stop_server(home)
thread = threading.Thread(target=acquire_and_release)
thread.start()
while thread.is_alive() and len(forks) < 200:
    forks.append(os.fork())
    if not forks[-1]:
        time.sleep(30)
        os._exit(0)
    time.sleep(0.005)
thread.join()
print(embedded_supervisor.is_server_running(home))
for fork in forks:
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
"""
    assert start_server_holder(script=fork_during_start).communicate(timeout=60) == ("False\n", "")
