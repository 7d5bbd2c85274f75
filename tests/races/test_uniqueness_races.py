"""Unique keys, worker names and migrations under concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import asyncpg

from tenuto import Tenuto
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.lifecycle.completion import finish
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.store.work import task_creation
from tenuto.store.work import workers as register_of_workers
from tests.races import jobs
from tests.races.processes import Workers
from tests.races.proxy import Proxy
from tests.races.table_queries import Observer
from tests.races.task_actions import LEASE, claim, complete

RegisterWorker = Callable[..., Awaitable[UUID]]
ROUNDS = 25


async def test_eight_concurrent_enqueues_with_one_key_create_one_task(
    url: str, observer: Observer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(Tenuto(url, home=tmp_path)) for _ in range(8)]
        for number in range(ROUNDS):
            job = jobs.touch.using(unique_key=f"key {number}")
            gate = asyncio.Barrier(8)

            async def ask(app: Tenuto, job: jobs.AnyJob = job, gate: asyncio.Barrier = gate) -> tuple[UUID, bool]:
                await gate.wait()
                enqueued = await app.enqueue(job, 1)
                return enqueued.id, enqueued.created

            results = await asyncio.gather(*map(ask, apps))
            assert len({task_id for task_id, _ in results}) == 1
            assert sum(created for _, created in results) == 1
    assert await observer.count("tasks") == ROUNDS


async def test_key_released_during_an_enqueue_loses_no_task(
    db: Database, proxy: Proxy, tmp_path: Path, register_worker: RegisterWorker
) -> None:
    worker_id = await register_worker()
    job = jobs.touch.using(unique_key="a key")
    async with Tenuto(proxy.url, home=tmp_path) as app:
        first = await app.enqueue(job, 1)
        (task,) = await claim(db, worker_id)

        async def finish_first() -> None:
            assert await finish(db, [complete(db, task)])

        proxy.before_statement = (task_creation.SQL.find_existing_task, finish_first)
        second = await app.enqueue(job, 2)

        assert second.id != first.id
        assert second.created
        assert (await app.task(second.id)).unique_key == "a key"


async def test_key_used_twice_in_one_caller_transaction_creates_one_task(
    app: Tenuto, url: str, observer: Observer
) -> None:
    job = jobs.touch.using(unique_key="a key")
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        first = await app.enqueue_within(connection, job, 1)
        second = await app.enqueue_within(connection, job, 2)
    await connection.close()

    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert await observer.count("tasks") == 1


async def test_migrations_by_several_processes_are_applied_once(empty_url: str, workers: Workers) -> None:
    processes = [workers.start(f"migrating-{number}", url=empty_url, do="migrate") for number in range(6)]

    assert [await process.wait_for_exit(within=30) for process in processes] == [0] * 6

    observer = await Observer.at(empty_url)
    assert await observer.rows("SELECT number FROM tenuto.migrations ORDER BY number") == [
        (migration.number,) for migration in migrator.load_migrations()
    ]
    applied = [process.log.read_text(encoding="utf-8").count("applied ") for process in processes]
    assert sorted(applied) == [0] * 5 + [len(migrator.load_migrations())]
    await observer.close()


async def test_only_one_of_several_workers_registers_a_name(url: str, observer: Observer) -> None:
    async with AsyncExitStack() as stack:
        databases = [await Database.open(url) for _ in range(4)]
        for database in databases:
            stack.push_async_callback(database.close)
        for number in range(ROUNDS):
            results = await asyncio.gather(*_register_at_once(databases, f"name-{number}"))
            assert sorted(results) == ["accepted", "refused", "refused", "refused"]
    assert await observer.count("workers", "ended_at IS NULL") == ROUNDS


def _register_at_once(databases: list[Database], name: str) -> list[Awaitable[str]]:
    gate = asyncio.Barrier(len(databases))

    async def register(database: Database, host: int) -> str:
        registration = register_of_workers.ProcessRegistration(
            new_id(), name, "worker", f"host-{host}", "boot", 1, "0", ["default"], 10
        )
        await gate.wait()
        try:
            await register_of_workers.register_process(database, registration, holds_name_lock=True, reserved_for=LEASE)
        except Conflict:
            return "refused"
        return "accepted"

    return [register(database, host) for host, database in enumerate(databases)]


async def test_worker_name_in_use_on_the_host_is_refused_until_its_process_is_killed(
    observer: Observer, workers: Workers
) -> None:
    first = await workers.start("name").wait_until_ready()
    second = workers.start("name")
    assert await second.wait_for_exit(within=10) != 0
    assert second.has_logged("is already running on this machine")

    await workers.kill(first)

    await workers.start("name").wait_until_ready()
    assert await observer.count("workers", "ended_at IS NULL") == 1
