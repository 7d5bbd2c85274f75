"""Enqueueing in a transaction of the caller, with the real drivers (transactional enqueue)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import ConnectionHandler, connections, transaction
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine

from tenuto import Actor, Enqueued, Job, Tenuto
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory

Orders = Callable[[], Awaitable[list[int]]]


def make_job(app: Tenuto) -> Job[..., Any]:
    @app.job(queue="default")
    async def ship(order: int) -> int:
        return order

    return ship


@pytest.fixture
async def orders(url: str) -> AsyncIterator[Orders]:
    """A table of the caller, in the same database; returns its rows."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE IF NOT EXISTS public.orders (id integer); TRUNCATE public.orders")

    async def read() -> list[int]:
        return [row["id"] for row in await connection.fetch("SELECT id FROM public.orders ORDER BY id")]

    yield read
    await connection.execute("DROP TABLE public.orders")
    await connection.close()


def sqlalchemy_url(url: str, driver: str) -> URL:
    """The URL for SQLAlchemy; asyncpg takes the socket directory as a query parameter."""
    return make_url(url).set(drivername=f"postgresql+{driver}")


# --- callers with an event loop --------------------------------------------------------------------------------------


@asynccontextmanager
async def open_asyncpg(url: str) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    connection = await asyncpg.connect(url)
    current = connection.transaction()
    await current.start()
    yield connection, connection.execute, current.commit, current.rollback
    await connection.close()


@asynccontextmanager
async def open_asyncpg_pool(url: str) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        current = connection.transaction()
        await current.start()
        yield connection, connection.execute, current.commit, current.rollback


@asynccontextmanager
async def open_psycopg(url: str) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
    yield connection, connection.execute, connection.commit, connection.rollback
    await connection.close()


def sqlalchemy_connection(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def open_it(url: str) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
        engine = create_async_engine(sqlalchemy_url(url, driver))
        async with engine.connect() as connection:
            assert isinstance(connection, AsyncConnection)
            yield (
                connection,
                lambda sql: connection.execute(sqlalchemy.text(sql)),
                connection.commit,
                connection.rollback,
            )
        await engine.dispose()

    return open_it


def sqlalchemy_session(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def open_it(url: str) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
        engine = create_async_engine(sqlalchemy_url(url, driver))
        async with async_sessionmaker(engine)() as session:
            assert isinstance(session, AsyncSession)
            yield session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback
        await engine.dispose()

    return open_it


ASYNC_CALLERS = {
    "asyncpg": open_asyncpg,
    "asyncpg pool": open_asyncpg_pool,
    "psycopg": open_psycopg,
    "sqlalchemy connection on psycopg": sqlalchemy_connection("psycopg"),
    "sqlalchemy connection on asyncpg": sqlalchemy_connection("asyncpg"),
    "sqlalchemy session on psycopg": sqlalchemy_session("psycopg"),
    "sqlalchemy session on asyncpg": sqlalchemy_session("asyncpg"),
}


@pytest.mark.parametrize("open_caller", ASYNC_CALLERS.values(), ids=list(ASYNC_CALLERS))
async def test_enqueue_within_async_transaction_commits_and_rolls_back_with_it(
    app: Tenuto, url: str, worker: WorkerFactory, orders: Orders, open_caller: Callable[[str], Any]
) -> None:
    ship = make_job(app)
    async with open_caller(url) as (connection, execute, commit, _):
        await execute("INSERT INTO public.orders VALUES (1)")
        kept = await app.enqueue_within(connection, ship, 1)
        assert await app.tasks() == [], "not visible before the commit"
        await commit()
    async with open_caller(url) as (connection, execute, _, roll_back):
        await execute("INSERT INTO public.orders VALUES (2)")
        dropped = await app.enqueue_within(connection, ship, order=2)
        await roll_back()

    assert [task.id for task in await app.tasks()] == [kept.id]
    assert kept.created
    assert kept.id != dropped.id
    assert await orders() == [1]
    async with worker():
        assert (await app.wait(kept, timeout=10)).output == 1


@pytest.mark.parametrize("open_caller", ASYNC_CALLERS.values(), ids=list(ASYNC_CALLERS))
async def test_enqueue_within_keeps_options_and_audit_entry(
    app: Tenuto, url: str, orders: Orders, open_caller: Callable[[str], Any]
) -> None:
    ship, later = make_job(app), datetime(2100, 1, 1, tzinfo=UTC)
    job = ship.using(
        queue="mail",
        priority=7,
        run_at=later,
        unique_key="order 1: 100 %",
        limit_key="key",
        limit=2,
        tags=["a", 'b"\\,{}'],
    )
    async with open_caller(url) as (connection, _, commit, _roll_back):
        task = await app.acting_as(Actor.user("ana")).enqueue_within(connection, job, 1)
        again = await app.enqueue_within(connection, job, 2)
        await commit()
    stored = await app.task(task.id)
    assert again == Enqueued(task.id, created=False)
    assert (stored.queue, stored.priority, stored.run_at, stored.state) == ("mail", 7, later, "scheduled")
    assert (stored.unique_key, stored.limit_key, stored.limit_max) == ("order 1: 100 %", "key", 2)
    assert (stored.tags, stored.initiator_name, stored.input) == (["a", 'b"\\,{}'], "ana", {"order": 1})
    entries = await app.audit.list()
    assert [(entry.action, entry.actor_name, entry.after) for entry in entries] == [
        ("task.create", "ana", {"task_id": str(task.id)})
    ]


# --- callers without an event loop ----------------------------------------------------------------------------------


def psycopg_caller(url: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection, connection.execute, connection.commit, connection.rollback


def sqlalchemy_caller(url: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    with engine.connect() as connection:
        yield (
            connection,
            lambda sql: connection.execute(sqlalchemy.text(sql)),
            connection.commit,
            connection.rollback,
        )
    engine.dispose()


def session_caller(url: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    with orm.Session(engine) as session:
        yield session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback
    engine.dispose()


def scoped_session_caller(url: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    session = orm.scoped_session(orm.sessionmaker(engine))
    yield session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback
    session.remove()
    engine.dispose()


def django_caller(url: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    handler = django_connections(url)
    connection = handler["default"]
    connection.set_autocommit(False)
    yield connection, lambda sql: connection.cursor().execute(sql), connection.commit, connection.rollback
    connection.close()


def django_connections(url: str) -> ConnectionHandler:
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    given = make_url(url)
    options = {"NAME": given.database, "USER": given.username, "HOST": given.query.get("host", given.host)}
    return ConnectionHandler(
        {"default": {"ENGINE": "django.db.backends.postgresql", "PORT": given.port or "", **options}}
    )


SYNC_CALLERS = {
    "psycopg": psycopg_caller,
    "sqlalchemy connection": sqlalchemy_caller,
    "sqlalchemy session": session_caller,
    "sqlalchemy scoped session": scoped_session_caller,
    "django": django_caller,
}


@pytest.mark.parametrize("open_caller", SYNC_CALLERS.values(), ids=list(SYNC_CALLERS))
async def test_enqueue_within_sync_transaction_needs_no_event_loop(
    app: Tenuto, url: str, worker: WorkerFactory, orders: Orders, open_caller: Callable[[str], Iterator[Any]]
) -> None:
    ship = make_job(app)

    def place_orders() -> tuple[Enqueued[Any], Enqueued[Any]]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        for connection, execute, commit, roll_back in open_caller(url):
            execute("INSERT INTO public.orders VALUES (1)")
            kept = app.enqueue_within(connection, ship.using(unique_key="first"), 1)
            again = app.enqueue_within(connection, ship.using(unique_key="first"), 1)
            assert again == Enqueued(kept.id, created=False)
            commit()
            execute("INSERT INTO public.orders VALUES (2)")
            dropped = app.enqueue_within(connection, ship, 2)
            roll_back()
            audited = app.acting_as(Actor.user("ana")).enqueue_within(connection, ship.using(delay="1h"), 3)
            commit()
            assert dropped.created
        return kept, audited

    kept, audited = await asyncio.to_thread(place_orders)
    assert {task.id for task in await app.tasks()} == {kept.id, audited.id}
    assert await orders() == [1]
    assert [entry.actor_name for entry in await app.audit.list()] == ["ana"]
    late = await app.task(audited.id)
    assert (late.state, late.run_at - late.created_at) == ("scheduled", timedelta(hours=1))
    async with worker():
        assert (await app.wait(kept, timeout=10)).output == 1


def test_enqueue_within_django_atomic_block_commits_and_rolls_back_with_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection  # the proxy of the default connection

    handler = django_connections(url)
    monkeypatch.setattr(connections, "settings", handler.settings)
    app = Tenuto(url)
    ship = make_job(app)
    with transaction.atomic():
        kept = app.enqueue_within(connection, ship, 1)
        savepoint = transaction.savepoint()
        app.enqueue_within(connection, ship, 2)
        transaction.savepoint_rollback(savepoint)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM tenuto.tasks")
        assert cursor.fetchall() == [(kept.id,)]
    connections.close_all()
    assert not app.is_open


def test_enqueue_within_does_not_import_drivers_of_others() -> None:
    script = (
        "import sys, tenuto.store.work.caller_transactions as used\n"
        "try:\n    used.find_driver(object())\nexcept Exception as error:\n    print(error.code)\n"
        "print([name for name in ('psycopg', 'sqlalchemy', 'django') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["task.connection.unknown", "[]"]


# --- errors and wake-up ---------------------------------------------------------------------------------------------


async def test_enqueue_within_refuses_an_unknown_connection_by_name(app: Tenuto) -> None:
    with raises_code("task.connection.unknown") as caught:
        app.enqueue_within(object(), make_job(app), 1)
    assert "builtins.object" in str(caught.value)
    assert "tenuto.enqueue" in str(caught.value)


async def test_enqueue_within_refuses_another_database_system(app: Tenuto) -> None:
    engine, ship = sqlalchemy.create_engine("sqlite://"), make_job(app)
    with engine.connect() as connection, raises_code("task.connection.not_postgresql"):
        app.enqueue_within(connection, ship, 1)
    with orm.Session(engine) as session, raises_code("task.connection.not_postgresql"):
        app.enqueue_within(session, ship, 1)
    engine.dispose()


async def test_enqueue_within_checks_the_input_before_it_uses_the_connection(app: Tenuto, url: str) -> None:
    with psycopg.connect(url) as connection:
        with raises_code("job.input.invalid"):
            app.enqueue_within(connection, make_job(app), "many")
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


async def test_enqueue_within_sync_transaction_wakes_a_worker_at_commit(
    app: Tenuto, url: str, worker: WorkerFactory
) -> None:
    ship = make_job(app)
    async with worker():
        await app.wait(await app.enqueue(ship, 0), timeout=10)

        def place_order() -> UUID:
            with psycopg.connect(url) as connection:
                return app.enqueue_within(connection, ship, 1).id

        async with asyncio.timeout(1.5):  # workers poll every 2 s
            await app.wait(await asyncio.to_thread(place_order))
