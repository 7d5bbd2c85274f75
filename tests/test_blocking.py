"""Portal: blocking code in any thread runs the operations of an app."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenuto import Actor, Tenuto
from tenuto.blocking import Portal
from tenuto.errors import Conflict, Invalid
from tests.support.errors import raises_code


@pytest.fixture
def plain_app(url: str, tmp_path: Path) -> Tenuto:
    app = Tenuto(url, home=tmp_path)

    @app.job
    async def bake(n: int) -> int:
        return n

    return app


def test_portal_runs_operations_in_blocking_code(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get_job("bake")
    with Portal(plain_app) as portal:
        task = portal.run(plain_app.enqueue(bake, 21))
        assert portal.run(plain_app.task(task.id)).input == {"n": 21}
        with pytest.raises(Invalid):
            portal.run(plain_app.enqueue(bake, "many"))
    with Portal(plain_app) as portal:
        assert len(portal.run(plain_app.tasks())) == 1


def test_portal_serves_many_threads(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get_job("bake")
    with Portal(plain_app) as portal, ThreadPoolExecutor(8) as threads:
        tasks = list(threads.map(lambda n: portal.run(plain_app.enqueue(bake, n)), range(40)))
        assert len({task.id for task in tasks}) == 40
        assert sorted(portal.run(plain_app.task(task.id)).input["n"] for task in tasks) == list(range(40))


def test_portal_keeps_the_actor_of_the_caller(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get_job("bake")
    with Portal(plain_app) as portal:
        task = portal.run(plain_app.acting_as(Actor.user("ana", "Ana")).enqueue(bake, 1))
        assert portal.run(plain_app.task(task.id)).initiator_name == "Ana"


def test_closed_portal_raises_an_error_and_leaves_no_thread(plain_app: Tenuto) -> None:
    portal = Portal(plain_app)
    with raises_code("app.portal.closed", Conflict):
        portal.run(plain_app.tasks())
    with portal:
        portal.run(plain_app.tasks())
    with raises_code("app.portal.closed", Conflict):
        portal.run(plain_app.tasks())
    portal.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tenuto-portal"]


def test_portal_call_from_its_own_loop_is_an_error(plain_app: Tenuto) -> None:
    with Portal(plain_app) as portal:

        async def inside() -> None:
            portal.run(plain_app.tasks())

        with raises_code("app.portal.own_loop", Conflict):
            portal.run(inside())


def test_portal_call_ends_at_its_timeout(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get_job("bake")
    with Portal(plain_app) as portal:
        task = portal.run(plain_app.enqueue(bake, 1))
        with pytest.raises(TimeoutError):
            portal.run(plain_app.wait(task), timeout=0.05)
        assert len(portal.run(plain_app.tasks())) == 1, "the portal still works"


def portal_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tenuto-portal"]


def test_pending_calls_fail_when_the_portal_is_closed(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get_job("bake")
    portal = Portal(plain_app).open()
    task = portal.run(plain_app.enqueue(bake, 1))
    started = threading.Barrier(3)

    async def wait_forever() -> None:
        await asyncio.to_thread(started.wait)
        await plain_app.wait(task)

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(portal.run, wait_forever()) for _ in range(2)]
        started.wait()
        portal.close()
        for caller in waiting:
            with raises_code("app.portal.closed", Conflict):
                caller.result(timeout=10)
    assert not portal_threads()
    with Portal(plain_app) as again:
        assert len(again.run(plain_app.tasks())) == 1, "the app can be used again"


def test_portal_stops_its_thread_even_if_closing_the_app_fails(url: str, tmp_path: Path) -> None:
    class UnclosableApp(Tenuto):
        async def close(self) -> None:
            await super().close()
            raise OSError("socket is stuck")

    app = UnclosableApp(url, home=tmp_path)
    with pytest.raises(OSError, match="socket is stuck"), Portal(app) as portal:
        portal.run(app.tasks())
    assert not portal_threads()
    portal.close()
