"""Shutdown (W7): a worker claims no more, running tasks may finish during the grace, then they are handed back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.errors import SchemaBehind, SchemaMismatch
from tenuto.jobs.attempts import StopReason
from tenuto.postgres.database import Database
from tenuto.processes import run_scheduler
from tenuto.service import health_file
from tenuto.service.process_identity import ProcessIdentity, _host_name
from tenuto.settings import load_settings
from tenuto.worker.worker import Worker
from tests.lifecycle.test_task_cancellation import is_process_alive
from tests.support import isolated_jobs
from tests.support.errors import raises_code
from tests.support.extension_registries import make_registry
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


async def test_draining_worker_finishes_running_tasks_and_claims_none(app: Tenuto, worker: WorkerFactory) -> None:
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
            return any(row.draining_at for row in await app.workers())

        await eventually(draining)
        go_on.set()
    assert (await app.activity(first.id)).output == 1
    assert (await app.task(second.id)).state == "queued"
    assert ran == [1]
    assert await app.workers() == []


@pytest.mark.slow
async def test_worker_that_is_cancelled_while_it_drains_renews_no_lease_and_leaves_no_thread(
    app: Tenuto, worker: WorkerFactory
) -> None:
    streams, started, go_on = (sys.stdout, sys.stderr), threading.Event(), threading.Event()

    @app.job
    def bake() -> None:
        started.set()
        go_on.wait(30)

    workers: list[Worker] = []

    async def work() -> None:
        async with worker(slots=1, grace_seconds=30, lease_seconds=12) as one:
            workers.append(one)
            await asyncio.get_running_loop().create_future()

    async def is_draining() -> bool:
        return any(row.draining_at for row in await app.workers())

    await app.enqueue(bake)
    caller = asyncio.create_task(work())
    try:
        await eventually(started.is_set)
        assert sys.stdout is not streams[0]
        caller.cancel()
        await eventually(is_draining)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (sys.stdout, sys.stderr) == streams
        (gone,) = workers
        (attempt,) = gone._slots.held.values()
        overdue_seconds = gone._watchdog._renew_seconds * 1.5
        await eventually(lambda: monotonic_seconds() > attempt.renewed_at + overdue_seconds, what="no lease is renewed")
        assert gone._watchdog._thread.is_alive(), "it still enforces the lease"
        assert attempt.stop_reason is StopReason.HANDED_BACK
    finally:
        go_on.set()
    threads = [gone._watchdog._thread, gone._executor._runner._loop_thread]  # type: ignore[attr-defined]
    await eventually(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.slow
@pytest.mark.usefixtures("with_isolated_jobs")
@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_stopped_worker_hands_back_tasks_without_a_failure(
    kind: str, app: Tenuto, worker: WorkerFactory, tmp_path: Path
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
    assert (past.state, past.reason, past.final) == ("cancelled", "handed_back", False)
    assert (past.failure_count, past.loss_count) == (0, 0)
    assert (ahead.state, ahead.attempt, ahead.failure_count, ahead.loss_count) == ("queued", 2, 0, 0)
    if kind == "process":
        pids = [int(pid) for pid in file.read_text().split()]
        await eventually(lambda: not any(is_process_alive(pid) for pid in pids))


async def test_handed_back_task_runs_on_another_worker_at_once(app: Tenuto, worker: WorkerFactory) -> None:
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
            assert (record.output, record.attempt, record.worker_id) == ("bread", 2, second.identity.id)


async def test_second_stop_request_skips_the_grace_period(app: Tenuto, worker: WorkerFactory) -> None:
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
    assert (await app.attempts(task.id))[0].reason == "handed_back"


async def test_worker_is_registered_while_it_runs(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker(name="baker", slots=7) as one:
        (listed,) = await app.workers()
        assert (listed.id, listed.name, listed.slots) == (one.identity.id, "baker", 7)
    (left,) = await app.workers(ended=True)
    assert left.ended_at is not None
    async with worker(name="baker"):
        assert [row.name for row in await app.workers()] == ["baker"]


async def test_worker_whose_registration_was_ended_raises(app: Tenuto, worker: WorkerFactory, sql: Any) -> None:
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
    with raises_code("worker.declared_dead"):
        await working.__aexit__(None, None, None)
    first = (await app.attempts(task.id))[0]
    assert first.state in ("running", "failed"), "the worker writes no outcome of a task that it lost"
    assert first.reason in (None, "lost")


async def test_worker_process_runs_until_a_signal_with_a_health_file(app: Tenuto, sql: Any) -> None:
    @app.job
    async def bake() -> int:
        return 7

    home = app.settings.home
    service = asyncio.create_task(app.run_worker(name="baker", slots=2, poll_seconds=60, grace_seconds=1))
    assert (await app.wait(await app.enqueue(bake), timeout=20)).output == 7
    (found,) = health_file.read_health(home, "worker", datetime.now(UTC))
    assert (found.name, found.healthy) == ("baker", True)
    (home / "run" / "worker-baker.health").unlink()

    async def written_again() -> bool:
        await app.wait(await app.enqueue(bake), timeout=20)  # the loop runs
        return bool(health_file.read_health(home, "worker", datetime.now(UTC)))

    await eventually(written_again)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(service, 20)
    assert health_file.read_health(home, "worker", datetime.now(UTC)) == []
    assert await app.workers() == []


async def test_combined_process_stops_at_once_on_a_second_signal(app: Tenuto) -> None:
    begun = threading.Event()

    @app.job
    async def bake() -> None:
        begun.set()
        await asyncio.sleep(60)

    service = asyncio.create_task(app.run(slots=2, poll_seconds=60, grace_seconds=3600))
    task = await app.enqueue(bake)
    await eventually(begun.is_set, timeout=20)

    async def both_are_there() -> bool:
        return {row.service for row in await app.workers()} == {"worker", "scheduler"}

    await eventually(both_are_there)
    assert [found.healthy for found in health_file.read_health(app.settings.home, "scheduler", datetime.now(UTC))] == [
        True
    ]
    os.kill(os.getpid(), signal.SIGTERM)

    async def draining() -> bool:
        return any(row.draining_at for row in await app.workers())

    await eventually(draining)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(service, 20)
    assert (await app.attempts(task.id))[0].reason == "handed_back"
    assert await app.workers() == []


async def test_scheduler_process_runs_the_recovery_sweep(
    app: Tenuto, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    await sql(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = gen_random_uuid(), fence = 1, claimed_at = now(),"
        " lease_until = now() - interval '1 s'"
    )
    service = asyncio.create_task(app.run_scheduler(name="keeper"))

    async def taken_back() -> bool:
        return bool((await app.task(task.id)).state == "queued")

    await eventually(taken_back, timeout=20)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(service, 20)


@asynccontextmanager
async def run_scheduler_process(url: str, home: Path, name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run a scheduler process with a poll interval of 0.1 s."""
    app = Tenuto(settings=load_settings(database=url, home=home, scheduler_poll_seconds=0.1))
    service = asyncio.create_task(app.run_scheduler(name=name))
    try:
        yield service
    finally:
        if not service.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(service, 20)
        await app.close()


async def test_scheduler_registers_again_after_its_registration_was_ended(app: Tenuto, url: str, sql: Any) -> None:
    async with run_scheduler_process(url, app.settings.home, "keeper"):
        (first,) = await eventually(app.workers)
        await sql("UPDATE tenuto.workers SET ended_at = now()")
        (second,) = await eventually(app.workers)
        assert (second.name, second.id != first.id) == ("keeper", True)


async def test_scheduler_whose_name_was_taken_raises(app: Tenuto, url: str, sql: Any) -> None:
    async with run_scheduler_process(url, app.settings.home, "keeper") as service:
        await eventually(app.workers)
        await sql("UPDATE tenuto.workers SET id = gen_random_uuid(), host = 'elsewhere', boot = 'another'")
        with raises_code("process.name.taken"):
            await asyncio.wait_for(service, 20)
    assert health_file.read_health(app.settings.home, "scheduler", datetime.now(UTC)) == []


@pytest.mark.parametrize("service", ["worker", "scheduler", "all"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_before_the_database_is_reachable_aborts_the_start(
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
    ProcessIdentity.acquire("worker", tmp_path, f"{_host_name()}-1").release()
    await app.close()


@pytest.mark.slow
async def test_service_waits_for_a_migration_and_rejects_a_changed_schema(tmp_path: Path) -> None:
    asked = []

    async def connect(**options: Any) -> Database:
        asked.append(1)
        assert len(asked) <= 2, "no further query"
        if len(asked) == 1:
            raise SchemaBehind("not migrated yet", code="test.error")
        raise SchemaMismatch("migration 0001 was changed", code="schema.migration.changed")

    with raises_code("schema.migration.changed"):
        await run_scheduler(connect, load_settings(home=tmp_path), make_registry())
    assert len(asked) == 2


async def test_health_file_of_a_worker_follows_its_final_name(app: Tenuto, sql: Any) -> None:
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES (gen_random_uuid(), $1, 'worker', 'elsewhere', '', 1, '', '{}', 0, now(), now())",
        f"{_host_name()}-1",
    )
    service = asyncio.create_task(app.run_worker(slots=1, grace_seconds=0))
    try:
        await eventually(
            lambda: (
                [f.name for f in health_file.read_health(app.settings.home, "worker", datetime.now(UTC))]
                == [f"{_host_name()}-2"]
            )
        )
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(service, 20)
    assert health_file.read_health(app.settings.home, "worker", datetime.now(UTC)) == []
