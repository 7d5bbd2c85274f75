"""Concurrent requests are written together; each has its own result, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tenuto.errors import Invalid, Unavailable
from tenuto.postgres.write_coalescer import MAX_REQUESTS_PER_WRITE, WriteCoalescer


class Writer:
    """Doubles numbers; rejects -13. Waits until `may_continue` is set."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.may_continue = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.writes.append(list(numbers))
        await self.may_continue.wait()
        if -13 in numbers:
            raise Invalid("the number is not allowed", code="number.not_allowed", field="number")
        return [2 * number for number in numbers]


@pytest.fixture
async def writer() -> Writer:
    return Writer()


async def test_coalescer_writes_the_first_request_at_once_and_later_ones_together(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer)
    requests = [asyncio.create_task(coalescer(number)) for number in range(6)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(coalescer(number)) for number in range(6, 200)]
    await asyncio.sleep(0)
    writer.may_continue.set()
    assert await asyncio.gather(*requests, *later) == [2 * number for number in range(200)]
    assert [len(write) for write in writer.writes] == [6, MAX_REQUESTS_PER_WRITE, 200 - 6 - MAX_REQUESTS_PER_WRITE]
    assert await coalescer(7) == 14


async def test_coalescer_reports_an_error_only_to_its_request(writer: Writer) -> None:
    writer.may_continue.set()
    coalescer = WriteCoalescer(writer)
    results = await asyncio.gather(*(coalescer(number) for number in (12, -13, 14)), return_exceptions=True)
    assert results[0::2] == [24, 28]
    assert isinstance(results[1], Invalid)


async def test_coalescer_serves_other_requests_after_a_cancelled_one(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer)
    one, two = asyncio.create_task(coalescer(1)), asyncio.create_task(coalescer(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.cancel()
    writer.may_continue.set()
    assert await two == 4


async def test_coalescer_cancels_requests_when_its_writer_is_cancelled(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer)
    requests = [asyncio.create_task(coalescer(1))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    requests += [asyncio.create_task(coalescer(2))]
    await asyncio.sleep(0)
    (writer_task,) = [task for task in asyncio.all_tasks() if task.get_name() == "tenuto-write-coalescer"]
    writer_task.cancel()
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, asyncio.CancelledError]


async def test_coalescer_reports_an_unavailable_database_to_all_requests() -> None:
    tries = 0

    async def write(numbers: Sequence[int]) -> list[int]:
        nonlocal tries
        tries += 1
        raise Unavailable("the database is away", code="database.unreachable")

    coalescer = WriteCoalescer(write)
    results = await asyncio.gather(*(coalescer(number) for number in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 5
    assert tries == 1
