"""Leaving (W7): no more is taken, running work may end for a grace, then it is stopped and handed back unblamed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.errors import Conflict, EngineError, SchemaBehind, SchemaMismatch
from tenuto.postgres.database import Database
from tenuto.processes import run_scheduler
from tenuto.service import health_file
from tenuto.service.process_identity import Identity, _host
from tenuto.settings import load
from tests.lifecycle.test_task_cancellation import runs
from tests.support import isolated_jobs
from tests.support.engine_fixtures import Quick
from tests.support.waiting import eventually


async def test_running_work_may_end_within_the_grace_and_nothing_more_is_taken(app: Tenuto, worker: Quick) -> None:
    go_on, ran = threading.Event(), []

    @app.job
    def bake(n: int) -> int:
        ran.append(n)
        go_on.wait(30)
        return n

    async with worker(slots=1, grace_seconds=30) as one:
        first, second = await app.enqueue(bake, 1), await app.enqueue(bake, 2)
        await eventually(lambda: ran)
        one.stop()

        async def draining() -> bool:
            return any(row["draining_at"] for row in await app.workers())

        await eventually(draining)
        go_on.set()
    assert (await app.activity(first.id))["output"] == 1
    assert (await app.task(second.id))["state"] == "queued"
    assert ran == [1]
    assert await app.workers() == []


@pytest.mark.usefixtures("with_isolated_jobs")
@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_after_the_grace_work_is_stopped_and_handed_back_and_is_no_failed_attempt(
    kind: str, app: Tenuto, worker: Quick, tmp_path: Path
) -> None:
    begun = threading.Event()

    @app.job
    async def on_the_loop() -> None:
        begun.set()
        await asyncio.sleep(60)

    @app.job
    def in_a_thread() -> None:
        begun.set()
        while True:
            pass

    file = tmp_path / "pids"
    async with worker(grace_seconds=0):
        match kind:
            case "async":
                task = await app.enqueue(on_the_loop)
            case "thread":
                task = await app.enqueue(in_a_thread)
            case _:
                task = await app.enqueue(isolated_jobs.hang, file)
                await eventually(lambda: file.exists() and file.read_text(), timeout=30)
                begun.set()
        await eventually(begun.is_set)
    past, ahead = await app.attempts(task.id)
    assert (past["status"], past["reason"], past["final"]) == ("cancelled", "handed_back", False)
    assert (past["failures"], past["losses"]) == (0, 0)
    assert (ahead["status"], ahead["attempt"], ahead["failures"], ahead["losses"]) == ("queued", 2, 0, 0)
    if kind == "process":
        pids = [int(pid) for pid in file.read_text().split()]
        await eventually(lambda: not any(runs(pid) for pid in pids))


async def test_what_was_handed_back_goes_on_elsewhere_at_once(app: Tenuto, worker: Quick) -> None:
    stop_here = threading.Event()

    @app.job
    async def bake() -> str:
        if not stop_here.is_set():
            stop_here.set()
            await asyncio.sleep(60)
        return "bread"

    async with worker(name="first") as first:
        task = await app.enqueue(bake)
        await eventually(stop_here.is_set)
        async with worker(name="second") as second:
            first.stop()
            record = await app.wait(task, timeout=10)
            assert (record["output"], record["attempt"], record["worker_id"]) == ("bread", 2, second.identity.id)


async def test_a_second_word_does_not_wait_for_the_grace(app: Tenuto, worker: Quick) -> None:
    begun = threading.Event()

    @app.job
    async def bake() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with worker(grace_seconds=3600) as one:
        task = await app.enqueue(bake)
        await eventually(begun.is_set)
        one.stop()
        one.stop_now()
    assert (await app.attempts(task.id))[0]["reason"] == "handed_back"


async def test_a_worker_is_on_the_register_while_it_works_and_leaves_it(app: Tenuto, worker: Quick) -> None:
    async with worker(name="baker", slots=7) as one:
        (listed,) = await app.workers()
        assert (listed["id"], listed["name"], listed["slots"]) == (one.identity.id, "baker", 7)
    (left,) = await app.workers(ended=True)
    assert left["ended_at"] is not None
    async with worker(name="baker"):
        assert [row["name"] for row in await app.workers()] == ["baker"]


async def test_a_worker_that_somebody_declared_dead_gives_up_and_says_so(app: Tenuto, worker: Quick, sql: Any) -> None:
    begun = threading.Event()

    @app.job
    async def bake() -> None:
        begun.set()
        await asyncio.sleep(60)

    working = worker(lease_seconds=1.5)
    one = await working.__aenter__()
    task = await app.enqueue(bake)
    await eventually(begun.is_set)
    await sql("UPDATE tenuto.workers SET ended_at = now()")
    await eventually(lambda: one.stopping)
    with pytest.raises(EngineError, match="declared dead by another"):
        await working.__aexit__(None, None, None)
    first = (await app.attempts(task.id))[0]
    assert first["status"] in ("in_progress", "failed"), "it says nothing about what is no longer its own"
    assert first["reason"] in (None, "lost")


async def test_a_service_runs_until_a_signal_and_keeps_a_health_file_meanwhile(app: Tenuto, sql: Any) -> None:
    @app.job
    async def bake() -> int:
        return 7

    home = app.settings.home
    service = asyncio.create_task(app.run_worker(name="baker", slots=2, poll_seconds=60, grace_seconds=1))
    assert (await app.wait(await app.enqueue(bake), timeout=20))["output"] == 7
    (found,) = health_file.look(home, "worker", datetime.now(UTC))
    assert (found.name, found.healthy) == ("baker", True)
    (home / "run" / "worker-baker.health").unlink()

    async def written_again() -> bool:
        await app.wait(await app.enqueue(bake), timeout=20)  # the loop goes round
        return bool(health_file.look(home, "worker", datetime.now(UTC)))

    await eventually(written_again)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(service, 20)
    assert health_file.look(home, "worker", datetime.now(UTC)) == []
    assert await app.workers() == []


async def test_scheduler_and_worker_live_in_one_process_and_a_second_signal_ends_it_now(app: Tenuto) -> None:
    begun = threading.Event()

    @app.job
    async def bake() -> None:
        begun.set()
        await asyncio.sleep(60)

    service = asyncio.create_task(app.run(slots=2, poll_seconds=60, grace_seconds=3600))
    task = await app.enqueue(bake)
    await eventually(begun.is_set, timeout=20)

    async def both_are_there() -> bool:
        return {row["service"] for row in await app.workers()} == {"worker", "scheduler"}

    await eventually(both_are_there)
    assert [found.healthy for found in health_file.look(app.settings.home, "scheduler", datetime.now(UTC))] == [True]
    os.kill(os.getpid(), signal.SIGTERM)

    async def draining() -> bool:
        return any(row["draining_at"] for row in await app.workers())

    await eventually(draining)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(service, 20)
    assert (await app.attempts(task.id))[0]["reason"] == "handed_back"
    assert await app.workers() == []


async def test_a_scheduler_alone_sweeps_too(app: Tenuto, sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = gen_random_uuid(), fence = 1, claimed_at = now(),"
        " lease_until = now() - interval '1 s'"
    )
    service = asyncio.create_task(app.run_scheduler(name="keeper"))

    async def taken_back() -> bool:
        return bool((await app.task(task.id))["state"] == "queued")

    await eventually(taken_back, timeout=20)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(service, 20)


@asynccontextmanager
async def scheduler(url: str, home: Path, name: str) -> AsyncIterator[asyncio.Task[None]]:
    """One that looks every tenth of a second."""
    app = Tenuto(settings=load(database=url, home=home, scheduler_poll_seconds=0.1))
    service = asyncio.create_task(app.run_scheduler(name=name))
    try:
        yield service
    finally:
        if not service.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(service, 20)
        await app.close()


async def test_a_scheduler_that_somebody_declared_dead_enters_anew(app: Tenuto, url: str, sql: Any) -> None:
    async with scheduler(url, app.settings.home, "keeper"):
        (first,) = await eventually(app.workers)
        await sql("UPDATE tenuto.workers SET ended_at = now()")
        (second,) = await eventually(app.workers)
        assert (second["name"], second["id"] != first["id"]) == ("keeper", True)


async def test_a_scheduler_whose_name_somebody_else_has_taken_leaves_with_an_error(
    app: Tenuto, url: str, sql: Any
) -> None:
    async with scheduler(url, app.settings.home, "keeper") as service:
        await eventually(app.workers)
        await sql("UPDATE tenuto.workers SET id = gen_random_uuid(), host = 'elsewhere', boot = 'another'")
        with pytest.raises(Conflict, match="alive on elsewhere"):
            await asyncio.wait_for(service, 20)
    assert health_file.look(app.settings.home, "scheduler", datetime.now(UTC)) == []


@pytest.mark.parametrize("service", ["worker", "scheduler", "all"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_before_the_database_is_there_ends_the_start(
    number: signal.Signals, service: str, tmp_path: Path
) -> None:
    app = Tenuto("postgresql://127.0.0.1:1/none", home=tmp_path)

    @app.job
    async def bake() -> None: ...

    run = {"worker": app.run_worker, "scheduler": app.run_scheduler, "all": app.run}[service]
    running = asyncio.create_task(run())
    await eventually(lambda: list((tmp_path / "run").glob("*.health")))
    os.kill(os.getpid(), number)
    ended, _ = await asyncio.wait([running], timeout=15)
    assert ended
    await running
    assert list((tmp_path / "run").glob("*.health")) == []
    Identity.take("worker", tmp_path, f"{_host()}-1").release()
    await app.close()


async def test_a_schema_that_will_never_fit_ends_a_service_and_one_to_come_is_waited_for(tmp_path: Path) -> None:
    asked = []

    async def connect() -> Database:
        asked.append(1)
        assert len(asked) <= 2, "it asks no more"
        if len(asked) == 1:
            raise SchemaBehind("not migrated yet")
        raise SchemaMismatch("migration 0001 was changed after it had been applied")

    with pytest.raises(SchemaMismatch, match="was changed"):
        await run_scheduler(connect, load(home=tmp_path))
    assert len(asked) == 2


async def test_the_health_file_goes_by_the_name_the_worker_has_come_to(app: Tenuto, sql: Any) -> None:
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), $1, 'worker', 'elsewhere', '', 1, '', '{}', 0, now(), now())",
        f"{_host()}-1",
    )
    service = asyncio.create_task(app.run_worker(slots=1, grace_seconds=0))
    try:
        await eventually(
            lambda: (
                [f.name for f in health_file.look(app.settings.home, "worker", datetime.now(UTC))] == [f"{_host()}-2"]
            )
        )
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(service, 20)
    assert health_file.look(app.settings.home, "worker", datetime.now(UTC)) == []
