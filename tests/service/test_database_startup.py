"""Start of a service while the database is unavailable."""

from __future__ import annotations

from tenuto.errors import Conflict, Unavailable
from tenuto.logs import Log
from tenuto.service.polling_loop import retry_until_database_answers
from tests.support.errors import raises_code

LOG = Log("test")


async def test_service_starts_once_the_database_answers() -> None:
    results = [Unavailable("away", code="test.error"), Unavailable("still away", code="test.error"), None]

    async def start() -> None:
        if (error := results.pop(0)) is not None:
            raise error

    assert await retry_until_database_answers(start, lambda: False, LOG, retry_seconds=0)
    assert results == []


async def test_service_stopped_before_the_database_answers_does_not_start() -> None:
    async def start() -> None:
        raise Unavailable("away", code="test.error")

    assert not await retry_until_database_answers(start, lambda: True, LOG)


async def test_service_start_raises_errors_that_do_not_go_away() -> None:
    async def start() -> None:
        raise Conflict("the name is taken", code="process.name.taken")

    with raises_code("process.name.taken"):
        await retry_until_database_answers(start, lambda: False, LOG)
