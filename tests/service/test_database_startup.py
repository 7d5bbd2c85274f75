"""A service that has found its database begins when it answers again, should it go away a moment later."""

from __future__ import annotations

import pytest

from tenuto.errors import Conflict, Unavailable
from tenuto.logs import Log
from tenuto.service import polling_loop
from tenuto.service.polling_loop import once_the_database_answers


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    monkeypatch.setattr(polling_loop, "_AGAIN_SECONDS", 0.0)
    return []


async def test_a_service_begins_once_the_database_answers(tries: list[Exception | None]) -> None:
    tries += [Unavailable("away"), Unavailable("still away"), None]

    async def begin() -> None:
        if (problem := tries.pop(0)) is not None:
            raise problem

    assert await once_the_database_answers(begin, lambda: False, Log("test"))
    assert tries == []


async def test_it_ends_quietly_when_told_to_before_the_database_has_answered() -> None:
    async def begin() -> None:
        raise Unavailable("away")

    assert not await once_the_database_answers(begin, lambda: True, Log("test"))


async def test_it_gives_up_when_waiting_would_not_help() -> None:
    async def begin() -> None:
        raise Conflict("the name is taken")

    with pytest.raises(Conflict):
        await once_the_database_answers(begin, lambda: False, Log("test"))
