"""Process names (W1): exclusive per machine; the default is the first free name of the host."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.service.process_identity import ProcessIdentity
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory


def test_process_name_is_exclusive_until_released(tmp_path: Path) -> None:
    first = ProcessIdentity.acquire("worker", tmp_path, "baker")
    with raises_code("process.name.taken") as refusal:
        ProcessIdentity.acquire("worker", tmp_path, "baker")
    assert refusal.value.field == "name"
    other_service = ProcessIdentity.acquire("scheduler", tmp_path, "baker")
    first.release()
    second = ProcessIdentity.acquire("worker", tmp_path, "baker")
    assert second.id != first.id, "the name lasts, the id is new at each start"
    for identity in (second, other_service):
        identity.release()


def test_process_without_a_name_gets_the_first_free_one(tmp_path: Path) -> None:
    taken = [ProcessIdentity.acquire("worker", tmp_path) for _ in range(3)]
    assert [identity.name.rsplit("-", 1)[1] for identity in taken] == ["1", "2", "3"]
    taken[1].release()
    again = ProcessIdentity.acquire("worker", tmp_path)
    assert again.name == taken[1].name
    for identity in (taken[0], taken[2], again):
        identity.release()


def test_name_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, os, signal\nfrom tenuto.service.process_identity import Identity\n"
        "held = Identity.take('worker', pathlib.Path(sys.argv[1]), 'baker')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    ProcessIdentity.acquire("worker", tmp_path, "baker").release()


@pytest.mark.parametrize("name", ["", "a b", "../../etc/passwd", "x" * 101, "-rf", "a\x00"])
def test_invalid_process_name_is_rejected(tmp_path: Path, name: str) -> None:
    with raises_code("value.name.invalid"):
        ProcessIdentity.acquire("worker", tmp_path, name)
    assert not list(tmp_path.rglob("*.lock"))


def test_process_registration_contains_host_and_home(tmp_path: Path) -> None:
    identity = ProcessIdentity.acquire("worker", tmp_path, "baker")
    registration = identity.to_registration(["a"], 5)
    identity.release()
    assert socket.gethostname() in registration.host
    assert (registration.name, registration.service, registration.queues, registration.slots) == (
        "baker",
        "worker",
        ["a"],
        5,
    )
    assert registration.boot


def test_home_id_is_stable_and_unique(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def reach() -> str:
        identity = ProcessIdentity.acquire("worker", home, "baker")
        identity.release()
        return identity.to_registration([], 1).host

    first = reach()
    assert reach() == first
    assert [file.name for file in (home / "run").iterdir()].count("home.id") == 1
    home.rename(tmp_path / "of another container")
    assert reach() != first
    assert reach().partition("#")[0] == first.partition("#")[0], "host and path are the same"


def test_concurrent_processes_get_the_same_home_id(tmp_path: Path) -> None:
    everybody = threading.Barrier(8)

    def reach(number: int) -> str:
        identity = ProcessIdentity.acquire("worker", tmp_path, f"baker-{number}")
        everybody.wait()
        identity.release()
        return identity.to_registration([], 1).host

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(reach, range(8)))) == 1
    assert {file.suffix for file in (tmp_path / "run").iterdir()} == {".lock", ".id"}


async def test_worker_in_a_container_with_equal_host_and_path_is_not_ended(
    app: Tenuto, worker: WorkerFactory, sql: Any
) -> None:
    """Two containers with separate homes: each finds the name lock of the other one free."""
    async with worker(name="baker"):
        (elsewhere,) = await sql("SELECT id FROM tenuto.workers")
        app.settings.home.rename(app.settings.home.with_name("of the other container"))
        with raises_code("process.name.taken"):
            async with worker(name="baker"):
                pass
        assert await sql("SELECT id FROM tenuto.workers WHERE ended_at IS NULL") == [elsewhere]


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ("host = 'before' || substr(host, position(':' in host))", False),  # the host was renamed
        ("host = replace(host, '@', '0@')", True),  # another home
        ("host = host || '7'", True),  # a copy of the home
        ("host = 'before' || substr(host, position(':' in host)), boot = 'another'", True),  # another host, shared home
        ("boot = 'another'", False),  # the same host after a reboot
        ("host = host || '7', boot = 'another'", False),  # the same, and the device has another number now
    ],
)
async def test_free_name_lock_proves_the_end_of_the_predecessor(
    app: Tenuto, worker: WorkerFactory, sql: Any, change: str, is_taken: bool
) -> None:
    async with worker(name="baker"):
        pass
    await sql(f"UPDATE tenuto.workers SET ended_at = NULL, seen_at = now(), {change}")
    if is_taken:
        with raises_code("process.name.taken"):
            async with worker(name="baker"):
                pass
    else:
        async with worker(name="baker"):
            assert len(await sql("SELECT id FROM tenuto.workers WHERE ended_at IS NULL")) == 1


async def test_second_worker_with_the_same_name_is_rejected(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake() -> int:
        return 7

    async with worker(name="baker"):
        with raises_code("process.name.taken"):
            async with worker(name="baker"):
                pass
        assert (await app.wait(await app.enqueue(bake), timeout=10)).output == 7


async def test_worker_name_in_use_on_another_host_is_rejected(app: Tenuto, worker: WorkerFactory, sql: Any) -> None:
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), 'baker', 'worker', 'elsewhere', 'x', 1, '0', '{}', 1, now(), now())"
    )
    with raises_code("process.name.taken"):
        async with worker(name="baker"):
            pass
    ProcessIdentity.acquire("worker", app.settings.home, "baker").release()  # it has let the name go here
