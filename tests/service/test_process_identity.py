"""Names (W1): one holder each on a machine; without one given, the first that is free."""

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
from tenuto.errors import Conflict, Invalid
from tenuto.service.process_identity import Identity
from tests.support.engine_fixtures import Quick


def test_a_name_has_one_holder_at_a_time_and_is_free_again_when_let_go(tmp_path: Path) -> None:
    first = Identity.take("worker", tmp_path, "baker")
    with pytest.raises(Conflict, match="baker is running on this machine already") as refusal:
        Identity.take("worker", tmp_path, "baker")
    assert refusal.value.field == "name"
    other_service = Identity.take("scheduler", tmp_path, "baker")
    first.release()
    second = Identity.take("worker", tmp_path, "baker")
    assert second.id != first.id, "the name lasts, the id is new at each start"
    for identity in (second, other_service):
        identity.release()


def test_without_a_name_the_first_free_one_of_the_host_is_taken(tmp_path: Path) -> None:
    taken = [Identity.take("worker", tmp_path) for _ in range(3)]
    assert [identity.name.rsplit("-", 1)[1] for identity in taken] == ["1", "2", "3"]
    taken[1].release()
    again = Identity.take("worker", tmp_path)
    assert again.name == taken[1].name
    for identity in (taken[0], taken[2], again):
        identity.release()


def test_the_name_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, os, signal\nfrom tenuto.service.process_identity import Identity\n"
        "held = Identity.take('worker', pathlib.Path(sys.argv[1]), 'baker')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    Identity.take("worker", tmp_path, "baker").release()


@pytest.mark.parametrize("name", ["", "a b", "../../etc/passwd", "x" * 101, "-rf", "a\x00"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid):
        Identity.take("worker", tmp_path, name)
    assert not list(tmp_path.rglob("*.lock"))


def test_an_incarnation_tells_where_it_lives(tmp_path: Path) -> None:
    identity = Identity.take("worker", tmp_path, "baker")
    incarnation = identity.incarnation(["a"], 5)
    identity.release()
    assert socket.gethostname() in incarnation.host
    assert (incarnation.name, incarnation.service, incarnation.queues, incarnation.slots) == (
        "baker",
        "worker",
        ["a"],
        5,
    )
    assert incarnation.boot


def test_a_home_keeps_its_id_and_no_other_home_has_it_even_at_the_same_path(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def reach() -> str:
        identity = Identity.take("worker", home, "baker")
        identity.release()
        return identity.incarnation([], 1).host

    first = reach()
    assert reach() == first
    assert [file.name for file in (home / "run").iterdir()].count("home.id") == 1
    home.rename(tmp_path / "of another container")
    assert reach() != first
    assert reach().partition("#")[0] == first.partition("#")[0], "host and path are the same"


def test_of_many_that_need_the_id_of_a_new_home_at_once_all_get_the_same(tmp_path: Path) -> None:
    everybody = threading.Barrier(8)

    def reach(number: int) -> str:
        identity = Identity.take("worker", tmp_path, f"baker-{number}")
        everybody.wait()
        identity.release()
        return identity.incarnation([], 1).host

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(reach, range(8)))) == 1
    assert {file.suffix for file in (tmp_path / "run").iterdir()} == {".lock", ".id"}


async def test_a_worker_in_a_container_with_the_same_hostname_and_path_is_not_declared_dead(
    app: Tenuto, worker: Quick, sql: Any
) -> None:
    """Two containers, each with a home of its own: to the one, the lock of the other's name looks free."""
    async with worker(name="baker"):
        (elsewhere,) = await sql("SELECT id FROM tenuto.workers")
        app.settings.home.rename(app.settings.home.with_name("of the other container"))
        with pytest.raises(Conflict, match="baker is alive on"):
            async with worker(name="baker"):
                pass
        assert await sql("SELECT id FROM tenuto.workers WHERE ended_at IS NULL") == [elsewhere]


async def test_a_second_worker_of_a_name_is_refused_and_the_first_works_on(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake() -> int:
        return 7

    async with worker(name="baker"):
        with pytest.raises(Conflict, match="baker"):
            async with worker(name="baker"):
                pass
        assert (await app.wait(await app.enqueue(bake), timeout=10))["output"] == 7


async def test_a_name_that_lives_on_another_machine_is_refused_too(app: Tenuto, worker: Quick, sql: Any) -> None:
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), 'baker', 'worker', 'elsewhere', 'x', 1, '0', '{}', 1, now(), now())"
    )
    with pytest.raises(Conflict, match="alive on elsewhere"):
        async with worker(name="baker"):
            pass
    Identity.take("worker", app.settings.home, "baker").release()  # it has let the name go here
