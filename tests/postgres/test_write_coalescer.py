"""Concurrent requests are written together; each has its own result, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tenuto.errors import Invalid, Unavailable
from tenuto.postgres.write_coalescer import MAX_CHARACTERS_PER_WRITE, MAX_REQUESTS_PER_WRITE, WriteCoalescer


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


def is_unavailable(error: Exception) -> bool:
    return isinstance(error, Unavailable)


@pytest.fixture
async def writer() -> Writer:
    return Writer()


async def test_coalescer_writes_the_first_request_at_once_and_later_ones_together(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    requests = [asyncio.create_task(coalescer(number)) for number in range(6)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(coalescer(number)) for number in range(6, 400)]
    await asyncio.sleep(0)
    assert writer.writes == [[0]]
    writer.may_continue.set()
    assert await asyncio.gather(*requests, *later) == [2 * number for number in range(400)]
    assert [len(write) for write in writer.writes] == [1, MAX_REQUESTS_PER_WRITE, 399 - MAX_REQUESTS_PER_WRITE]
    assert await coalescer(7) == 14


async def test_coalescer_does_not_write_a_request_that_was_cancelled_while_it_waited(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    requests = [asyncio.create_task(coalescer(number)) for number in range(3)]
    await asyncio.sleep(0)
    requests[1].cancel()
    await asyncio.sleep(0)
    writer.may_continue.set()
    assert await requests[0] == 0
    assert await requests[2] == 4
    assert writer.writes == [[0], [2]]


async def test_coalescer_writes_waiting_requests_after_the_first_one_was_cancelled(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    requests = [asyncio.create_task(coalescer(number)) for number in range(3)]
    await asyncio.sleep(0)
    requests[0].cancel()
    writer.may_continue.set()
    assert await asyncio.gather(*requests[1:]) == [2, 4]
    assert writer.writes == [[0], [1, 2]]


async def test_coalescer_reports_an_error_only_to_its_request(writer: Writer) -> None:
    writer.may_continue.set()
    coalescer = WriteCoalescer(writer, is_unavailable)
    results = await asyncio.gather(*(coalescer(number) for number in (12, -13, 14)), return_exceptions=True)
    assert results[0::2] == [24, 28]
    assert isinstance(results[1], Invalid)


async def test_coalescer_serves_other_requests_after_a_cancelled_one(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    one, two = asyncio.create_task(coalescer(1)), asyncio.create_task(coalescer(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.cancel()
    writer.may_continue.set()
    assert await two == 4


async def test_coalescer_cancels_requests_when_its_writer_is_cancelled(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    requests = [asyncio.create_task(coalescer(1)), asyncio.create_task(coalescer(2))]
    await asyncio.sleep(0)
    requests[0].cancel()
    for _ in range(5):  # until the writer task has started
        await asyncio.sleep(0)
    requests += [asyncio.create_task(coalescer(3))]
    await asyncio.sleep(0)
    (writer_task,) = [task for task in asyncio.all_tasks() if task.get_name() == "tenuto-write-coalescer"]
    writer_task.cancel()
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3


async def test_coalescer_leaves_no_caller_waiting_if_it_is_cancelled_while_it_splits_a_write() -> None:
    writes: list[list[int]] = []

    async def write(numbers: Sequence[int]) -> list[int]:
        writes.append(list(numbers))
        await asyncio.sleep(0)
        if len(numbers) > 1:
            raise Invalid("one of them is not allowed", code="number.not_allowed", field="number")
        if len(writes) > 3:
            await asyncio.sleep(60)
        return list(numbers)

    coalescer = WriteCoalescer(write, is_unavailable)
    requests = [asyncio.create_task(coalescer(number)) for number in range(5)]
    while len(writes) < 4:  # noqa: ASYNC110 — the writer gives no signal
        await asyncio.sleep(0)
    (writer_task,) = [task for task in asyncio.all_tasks() if task.get_name() == "tenuto-write-coalescer"]
    writer_task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 5)
    assert results[0] == 0
    assert asyncio.CancelledError in [type(result) for result in results]


async def test_coalescer_bounds_the_text_of_a_write(writer: Writer) -> None:
    coalescer = WriteCoalescer(writer, is_unavailable)
    requests = [asyncio.create_task(coalescer(number, MAX_CHARACTERS_PER_WRITE // 2)) for number in range(6)]
    await asyncio.sleep(0)
    writer.may_continue.set()
    await asyncio.gather(*requests)
    assert writer.writes == [[0], [1, 2], [3, 4], [5]]


async def test_coalescer_passes_errors_of_single_requests_on(writer: Writer) -> None:
    async def write(numbers: Sequence[int]) -> list[int | Exception]:
        await asyncio.sleep(0)
        return [Unavailable("lost", code="database.connection_lost") if number == 2 else number for number in numbers]

    coalescer = WriteCoalescer(write, is_unavailable)
    results = await asyncio.gather(*(coalescer(number) for number in (1, 2, 3)), return_exceptions=True)
    assert [type(result) for result in results] == [int, Unavailable, int]
    with pytest.raises(Unavailable):
        await coalescer(2)


async def test_coalescer_reports_an_unavailable_database_to_all_requests() -> None:
    tries = 0

    async def write(numbers: Sequence[int]) -> list[int]:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        raise Unavailable("the database is away", code="database.unreachable")

    coalescer = WriteCoalescer(write, is_unavailable)
    results = await asyncio.gather(*(coalescer(number) for number in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 5
    assert tries == 2, "the first request alone, then all others together"
