"""The pool lends each connection to one borrower, wastes no free one and lends no broken one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tenuto.postgres.pool import MAX_IDLE_CONNECTIONS, Pool
from tests.support.waiting import eventually

SIZE = 4


@pytest.fixture
async def driver(url: str) -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(url, min_size=1, max_size=SIZE) as pool:
        yield pool


@pytest.fixture
async def pool(driver: asyncpg.Pool) -> AsyncIterator[Pool]:
    pool = Pool(driver)
    yield pool
    await pool.close()


async def borrow_and_return_pid(pool: Pool) -> int:
    async with pool.borrow() as connection:
        found: int = await connection.fetchval("SELECT pg_backend_pid()")
        return found


async def test_pool_reuses_the_most_recent_connection(pool: Pool) -> None:
    assert len({await borrow_and_return_pid(pool) for _ in range(5)}) == 1


async def test_pool_lends_each_connection_to_one_borrower(pool: Pool) -> None:
    async def borrow() -> int:
        async with pool.borrow() as connection:
            await connection.execute("SELECT pg_sleep(0.05)")
            return connection.get_server_pid()

    for _ in range(3):
        assert len(set(await asyncio.gather(*(borrow() for _ in range(SIZE))))) == SIZE


async def test_pool_serves_more_borrowers_than_connections(pool: Pool, driver: asyncpg.Pool) -> None:
    async with asyncio.timeout(20):
        found = await asyncio.gather(*(borrow_and_return_pid(pool) for _ in range(200)))

    assert 1 <= len(set(found)) <= SIZE
    assert driver.get_size() - driver.get_idle_size() <= MAX_IDLE_CONNECTIONS, (
        "the others were returned to the driver's pool"
    )


async def test_pool_does_not_lend_a_broken_idle_connection(pool: Pool, url: str) -> None:
    broken = await borrow_and_return_pid(pool)
    other = await asyncpg.connect(url)
    await other.execute("SELECT pg_terminate_backend($1::integer)", broken)

    async def is_gone() -> bool:
        return not await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", broken)

    await eventually(is_gone)
    await other.close()

    assert await borrow_and_return_pid(pool) != broken


async def test_pool_resets_a_connection_with_an_open_transaction(pool: Pool) -> None:
    async with pool.borrow() as connection:
        await connection.transaction().start()
        await connection.execute("CREATE TABLE half_done ()")

    async with pool.borrow() as connection:
        assert not connection.is_in_transaction()
        assert await connection.fetchval("SELECT to_regclass('half_done')") is None


async def test_pool_lends_a_clean_connection_after_a_cancelled_borrower(pool: Pool) -> None:
    async def hang() -> None:
        async with pool.borrow() as connection:
            await connection.execute("SELECT pg_sleep(60)")

    async def is_hanging() -> bool:
        async with pool.borrow() as connection:
            return bool(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))

    hanging = asyncio.create_task(hang())
    await eventually(is_hanging)
    hanging.cancel()
    await asyncio.wait({hanging})

    async with asyncio.timeout(10):
        assert await asyncio.gather(*(borrow_and_return_pid(pool) for _ in range(SIZE * 2)))
