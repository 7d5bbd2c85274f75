"""Health files (W1, W9): the time, written while the loop goes round; too old or missing means unhealthy."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.clock import ManualClock
from tenuto.service.health_file import HealthFile, condition, look
from tests.support.engine_fixtures import Quick
from tests.support.model_values import NOON


def written(home: Path, service: str = "worker", name: str = "baker") -> HealthFile:
    file = HealthFile(home, service, lambda: name, ManualClock(NOON))
    file.beat()
    return file


def instant_in(file: HealthFile) -> datetime:
    return datetime.fromisoformat(file.path.read_text().splitlines()[0])


def test_the_file_holds_the_time_in_utc_and_the_host(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert instant_in(file) == NOON
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
def test_a_worker_is_stale_after_a_minute_and_a_scheduler_after_two(
    tmp_path: Path, service: str, age: int, healthy: bool
) -> None:
    written(tmp_path, service)
    (found,) = look(tmp_path, service, NOON + timedelta(seconds=age))
    assert (found.name, found.seen_at, found.healthy) == ("baker", NOON, healthy)


def test_no_file_is_no_health(tmp_path: Path) -> None:
    assert look(tmp_path, "worker", NOON) == []
    written(tmp_path).remove()
    assert look(tmp_path, "worker", NOON) == []


@pytest.mark.parametrize("content", ["", "yesterday", "\x00", "2031"])
def test_a_file_that_cannot_be_read_is_unhealthy(tmp_path: Path, content: str) -> None:
    written(tmp_path).path.write_text(content)
    (found,) = look(tmp_path, "worker", NOON)
    assert not found.healthy


@pytest.mark.parametrize("age", [0, 3600])
def test_what_another_host_left_in_the_same_home_is_no_sign_of_this_one(tmp_path: Path, age: int) -> None:
    """As in a new container on the volume of one that was killed, or on one that both share."""
    other = written(tmp_path, name="4f2a-1").path
    other.write_text(f"{(NOON - timedelta(seconds=age)).isoformat()}\n4f2a\n")
    assert look(tmp_path, "worker", NOON) == []
    written(tmp_path)
    assert [(found.name, found.healthy) for found in look(tmp_path, "worker", NOON)] == [("baker", True)]
    (named,) = look(tmp_path, "worker", NOON, name="4f2a-1")
    assert named.healthy == (age == 0)


def test_services_and_names_are_told_apart(tmp_path: Path) -> None:
    for service, name in [("worker", "a"), ("worker", "b.example/1"), ("scheduler", "a")]:
        written(tmp_path, service, name)
    assert [found.name for found in look(tmp_path, "worker", NOON)] == ["a", "b.example_1"]
    assert [found.name for found in look(tmp_path, "worker", NOON, name="b.example/1")] == ["b.example_1"]
    assert look(tmp_path, "worker", NOON, name="c") == []


def test_beating_often_writes_seldom(tmp_path: Path) -> None:
    clock = ManualClock(NOON)
    file = HealthFile(tmp_path, "worker", lambda: "baker", clock)
    file.beat()
    clock.advance(timedelta(seconds=30))
    file.beat()
    assert instant_in(file) == NOON


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    written(tmp_path)
    assert look(tmp_path, "worker", NOON) == []


async def test_the_register_tells_the_living_from_the_stale_and_the_gone(app: Tenuto, worker: Quick) -> None:
    async with worker(name="baker"):
        (row,) = await app.workers()
        assert condition(row) == "alive"
        assert condition({**row, "silent_for": timedelta(minutes=5)}) == "stale"
        assert condition({**row, "draining_at": datetime.now(UTC)}) == "draining"
    (row,) = await app.workers(ended=True)
    assert condition(row) == "ended"


def test_the_file_follows_the_name(tmp_path: Path) -> None:
    names = ["host-1"]
    file = HealthFile(tmp_path, "worker", lambda: names[-1], ManualClock(NOON))
    file.beat()
    names.append("host-2")
    file.beat()
    assert [found.name for found in look(tmp_path, "worker", NOON)] == ["host-2"]
    file.remove()
    assert look(tmp_path, "worker", NOON) == []
