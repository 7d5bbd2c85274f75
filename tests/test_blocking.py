"""The portal: plain code, from any thread, asks for the same verbs and waits for the answer."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenuto import Actor, Tenuto
from tenuto.blocking import Portal
from tenuto.errors import Conflict, Invalid


@pytest.fixture
def plain_app(url: str, tmp_path: Path) -> Tenuto:
    app = Tenuto(url, home=tmp_path)

    @app.job
    async def bake(n: int) -> int:
        return n

    return app


def test_plain_code_enqueues_and_asks(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get("bake")
    with Portal(plain_app) as portal:
        task = portal.run(plain_app.enqueue(bake, 21))
        assert portal.run(plain_app.task(task.id))["input"] == {"n": 21}
        with pytest.raises(Invalid):
            portal.run(plain_app.enqueue(bake, "many"))
    with Portal(plain_app) as portal:
        assert len(portal.run(plain_app.tasks())) == 1


def test_any_number_of_threads_may_call_in(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get("bake")
    with Portal(plain_app) as portal, ThreadPoolExecutor(8) as threads:
        tasks = list(threads.map(lambda n: portal.run(plain_app.enqueue(bake, n)), range(40)))
        assert len({task.id for task in tasks}) == 40
        assert sorted(portal.run(plain_app.task(task.id))["input"]["n"] for task in tasks) == list(range(40))


def test_who_acts_is_known_through_the_portal_too(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get("bake")
    with Portal(plain_app) as portal:
        with plain_app.acting_as(Actor.user("ana", "Ana")):
            task = portal.run(plain_app.enqueue(bake, 1))
        assert portal.run(plain_app.task(task.id))["initiator_name"] == "Ana"


def test_a_closed_portal_says_so_and_leaves_no_loose_ends(plain_app: Tenuto) -> None:
    portal = Portal(plain_app)
    with pytest.raises(Conflict, match="closed"):
        portal.run(plain_app.tasks())
    with portal:
        portal.run(plain_app.tasks())
    with pytest.raises(Conflict, match="closed"):
        portal.run(plain_app.tasks())
    portal.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tenuto-portal"]


def test_calling_in_from_the_portals_own_loop_is_refused_instead_of_hanging(plain_app: Tenuto) -> None:
    with Portal(plain_app) as portal:

        async def inside() -> None:
            portal.run(plain_app.tasks())

        with pytest.raises(Conflict, match="inside the portal's own loop"):
            portal.run(inside())


def test_an_answer_that_takes_too_long_is_given_up(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get("bake")
    with Portal(plain_app) as portal:
        task = portal.run(plain_app.enqueue(bake, 1))
        with pytest.raises(TimeoutError):
            portal.run(plain_app.wait(task), timeout=0.05)
        assert len(portal.run(plain_app.tasks())) == 1, "and the portal goes on"


def portal_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tenuto-portal"]


def test_whoever_still_waits_when_the_portal_is_closed_is_told_so(plain_app: Tenuto) -> None:
    bake = plain_app.jobs.get("bake")
    portal = Portal(plain_app).open()
    task = portal.run(plain_app.enqueue(bake, 1))
    begun = threading.Barrier(3)

    async def for_ever() -> None:
        await asyncio.to_thread(begun.wait)
        await plain_app.wait(task)

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(portal.run, for_ever()) for _ in range(2)]
        begun.wait()
        portal.close()
        for caller in waiting:
            with pytest.raises(Conflict, match="closed before the answer came"):
                caller.result(timeout=10)
    assert not portal_threads()
    with Portal(plain_app) as again:
        assert len(again.run(plain_app.tasks())) == 1, "the app can be used again"


def test_a_portal_ends_its_thread_even_if_the_app_cannot_be_closed(url: str, tmp_path: Path) -> None:
    class Stuck(Tenuto):
        async def close(self) -> None:
            await super().close()
            raise OSError("the socket does not let go")

    app = Stuck(url, home=tmp_path)
    with pytest.raises(OSError, match="does not let go"), Portal(app) as portal:
        portal.run(app.tasks())
    assert not portal_threads()
    portal.close()
