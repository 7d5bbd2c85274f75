"""What several ask for at once is written at once; each has its own answer, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tenuto.errors import Invalid, Unavailable
from tenuto.postgres.write_coalescer import MAX_REQUESTS_PER_WRITE, WriteCoalescer


class Writing:
    """Doubles numbers, one write at a time; -13 cannot be written."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.may_go_on = asyncio.Event()

    async def __call__(self, asked: Sequence[int]) -> list[int]:
        self.writes.append(list(asked))
        await self.may_go_on.wait()
        if -13 in asked:
            raise Invalid("is unlucky", field="number")
        return [2 * number for number in asked]


@pytest.fixture
async def writing() -> Writing:
    return Writing()


async def test_coalescer_writes_the_first_request_at_once_and_later_ones_together(writing: Writing) -> None:
    together = WriteCoalescer(writing)
    asking = [asyncio.create_task(together(number)) for number in range(6)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(together(number)) for number in range(6, 200)]
    await asyncio.sleep(0)
    writing.may_go_on.set()
    assert await asyncio.gather(*asking, *later) == [2 * number for number in range(200)]
    assert [len(write) for write in writing.writes] == [6, MAX_REQUESTS_PER_WRITE, 200 - 6 - MAX_REQUESTS_PER_WRITE]
    assert await together(7) == 14


async def test_coalescer_reports_an_error_only_to_its_request(writing: Writing) -> None:
    writing.may_go_on.set()
    together = WriteCoalescer(writing)
    answers = await asyncio.gather(*(together(number) for number in (12, -13, 14)), return_exceptions=True)
    assert answers[0::2] == [24, 28]
    assert isinstance(answers[1], Invalid)


async def test_coalescer_serves_other_requests_after_a_cancelled_one(writing: Writing) -> None:
    together = WriteCoalescer(writing)
    one, two = asyncio.create_task(together(1)), asyncio.create_task(together(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.cancel()
    writing.may_go_on.set()
    assert await two == 4


async def test_coalescer_cancels_requests_when_its_writer_is_cancelled(writing: Writing) -> None:
    together = WriteCoalescer(writing)
    asking = [asyncio.create_task(together(1))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking += [asyncio.create_task(together(2))]
    await asyncio.sleep(0)
    (writer,) = [task for task in asyncio.all_tasks() if task.get_name() == "tenuto-together"]
    writer.cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError, asyncio.CancelledError]


async def test_coalescer_reports_an_unavailable_database_to_all_requests() -> None:
    tries = 0

    async def write(asked: Sequence[int]) -> list[int]:
        nonlocal tries
        tries += 1
        raise Unavailable("away")

    together = WriteCoalescer(write)
    answers = await asyncio.gather(*(together(number) for number in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 5
    assert tries == 1
