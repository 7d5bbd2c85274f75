"""Health files (W1, W9): a missing or old file means unhealthy."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Tenuto
from tenuto.clock import ManualClock
from tenuto.model.work.worker_states import WorkerState, silence_limit
from tenuto.postgres.database import Database
from tenuto.service.health_file import HealthFile, read_health
from tenuto.service.process_identity import ProcessIdentity
from tenuto.store.work import workers
from tests.support.model_values import NOON
from tests.support.service_fixtures import WorkerFactory


def write_health_file(home: Path, service: str = "worker", name: str = "baker") -> HealthFile:
    file = HealthFile(home, service, lambda: name, ManualClock(NOON))
    file.write()
    return file


def read_written_at(file: HealthFile) -> datetime:
    return datetime.fromisoformat(file.path.read_text().splitlines()[0])


def test_health_file_contains_utc_time_and_host(tmp_path: Path) -> None:
    file = write_health_file(tmp_path)
    assert read_written_at(file) == NOON
    assert file.path.read_text().splitlines()[1:] == [socket.gethostname()]
    assert file.path.parent == tmp_path / "run"
    assert [path.suffix for path in file.path.parent.iterdir()] == [".health"], "and nothing half written lies about"


@pytest.mark.parametrize(
    ("service", "age", "healthy"),
    [
        ("worker", 0, True),
        ("worker", 59, True),
        ("worker", 60, False),
        ("worker", 3600, False),
        ("scheduler", 60, True),
        ("scheduler", 119, True),
        ("scheduler", 120, False),
    ],
)
def test_health_is_stale_after_the_time_of_the_service(tmp_path: Path, service: str, age: int, healthy: bool) -> None:
    write_health_file(tmp_path, service)
    (found,) = read_health(tmp_path, service, NOON + timedelta(seconds=age))
    assert (found.name, found.written_at, found.healthy) == ("baker", NOON, healthy)


def test_missing_health_file_is_not_reported(tmp_path: Path) -> None:
    assert read_health(tmp_path, "worker", NOON) == []
    write_health_file(tmp_path).remove()
    assert read_health(tmp_path, "worker", NOON) == []


@pytest.mark.parametrize("content", ["", "yesterday", "\x00", "2031"])
def test_unreadable_health_file_is_unhealthy(tmp_path: Path, content: str) -> None:
    write_health_file(tmp_path).path.write_text(content)
    (found,) = read_health(tmp_path, "worker", NOON)
    assert not found.healthy


@pytest.mark.parametrize("age", [0, 3600])
def test_health_file_of_another_host_is_ignored(tmp_path: Path, age: int) -> None:
    """As in a new container on the volume of a killed one, or on a shared volume."""
    other = write_health_file(tmp_path, name="4f2a-1").path
    other.write_text(f"{(NOON - timedelta(seconds=age)).isoformat()}\n4f2a\n")
    assert read_health(tmp_path, "worker", NOON) == []
    write_health_file(tmp_path)
    assert [(found.name, found.healthy) for found in read_health(tmp_path, "worker", NOON)] == [("baker", True)]
    (named,) = read_health(tmp_path, "worker", NOON, name="4f2a-1")
    assert named.healthy == (age == 0)


def test_health_files_are_separate_by_service_and_name(tmp_path: Path) -> None:
    for service, name in [("worker", "a"), ("worker", "b.example/1"), ("scheduler", "a")]:
        write_health_file(tmp_path, service, name)
    assert [found.name for found in read_health(tmp_path, "worker", NOON)] == ["a", "b.example_1"]
    assert [found.name for found in read_health(tmp_path, "worker", NOON, name="b.example/1")] == ["b.example_1"]
    assert read_health(tmp_path, "worker", NOON, name="c") == []


def test_health_file_is_written_once_per_second(tmp_path: Path) -> None:
    clock = ManualClock(NOON)
    file = HealthFile(tmp_path, "worker", lambda: "baker", clock)
    file.write()
    clock.advance(timedelta(seconds=30))
    file.write()
    assert read_written_at(file) == NOON


def test_unwritable_health_directory_does_not_stop_the_service(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    write_health_file(tmp_path)
    assert read_health(tmp_path, "worker", NOON) == []


async def test_worker_is_alive_while_it_runs_and_then_ended(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker(name="baker"):
        (alive,) = await app.workers()
        assert alive.state is WorkerState.ALIVE
    (ended,) = await app.workers(ended=True)
    assert ended.state is WorkerState.ENDED


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("seen_at = now() - interval '29 s'", WorkerState.ALIVE),
        ("seen_at = now() - interval '31 s'", WorkerState.DEAD),
        ("seen_at = now() - interval '31 s', draining_at = now()", WorkerState.DEAD),
        ("draining_at = now()", WorkerState.DRAINING),
        ("ended_at = now(), draining_at = now()", WorkerState.ENDED),
    ],
)
async def test_worker_is_dead_after_its_own_silence_limit(
    db: Database, register_worker: Callable[[], Awaitable[UUID]], change: str, state: WorkerState
) -> None:
    await register_worker()
    await db.fetch_all(f"UPDATE tenuto.workers SET silence_limit = interval '30 s', {change}")
    (found,) = await workers.list_workers(db, ended=True)
    assert found.state is state


def test_silence_limit_is_three_heartbeats() -> None:
    assert silence_limit(10.0) == timedelta(seconds=30)
    assert silence_limit(0.2) == timedelta(seconds=5)


def test_health_file_follows_a_changed_name(tmp_path: Path) -> None:
    names = ["host-1"]
    file = HealthFile(tmp_path, "worker", lambda: names[-1], ManualClock(NOON))
    file.write()
    names.append("host-2")
    file.write()
    assert [found.name for found in read_health(tmp_path, "worker", NOON)] == ["host-2"]
    file.remove()
    assert read_health(tmp_path, "worker", NOON) == []


def test_recent_health_file_of_a_process_without_its_lock_is_unhealthy(tmp_path: Path) -> None:
    write_health_file(tmp_path)
    lock = ProcessIdentity.acquire("worker", tmp_path, "baker")
    (found,) = read_health(tmp_path, "worker", NOON)
    assert (found.healthy, found.has_ended) == (True, False)
    lock.release()
    (found,) = read_health(tmp_path, "worker", NOON)
    assert (found.healthy, found.has_ended) == (False, True)


def test_recent_health_file_of_another_host_is_healthy_without_its_lock(tmp_path: Path) -> None:
    ProcessIdentity.acquire("worker", tmp_path, "baker").release()
    write_health_file(tmp_path).path.write_text(f"{NOON.isoformat()}\n4f2a\n")
    (found,) = read_health(tmp_path, "worker", NOON, name="baker")
    assert (found.healthy, found.has_ended) == (True, False)


def test_name_can_be_locked_while_a_health_check_probes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ProcessIdentity.acquire("worker", tmp_path, "baker").release()
    probe = (tmp_path / "run" / "worker-baker.lock").open("rb")
    fcntl.flock(probe, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _seconds: probe.close())
    ProcessIdentity.acquire("worker", tmp_path, "baker").release()
    assert probe.closed
