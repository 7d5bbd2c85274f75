"""Ages and waits are told by the database's clock, whatever the machine at hand takes the time to be."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from uuid import UUID

import pytest

from tenuto import Tenuto, clock
from tenuto.cli import command_tree
from tenuto.settings import load


class Wrong(datetime):
    """A machine's clock that is two hours fast."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Wrong:
        return cls.fromtimestamp((datetime.now(tz) + timedelta(hours=2)).timestamp(), tz)


@pytest.fixture
async def task(url: str, tmp_path: Path, register_worker: Callable[[str], Awaitable[UUID]]) -> UUID:
    """Something of everything that has an age: a task that waits, a worker, an entry of a log, a secret."""
    await register_worker("one")
    async with Tenuto(
        settings=load(database=url, home=tmp_path, master_key=base64.b64encode(b"k" * 32).decode())
    ) as app:

        @app.job
        async def double(n: int) -> int:
            return 2 * n

        await app.logs.append("orders", "counted")
        await app.secrets.set("token", "s3cret")
        return (await app.enqueue(double, 1)).id


def test_lists_tell_ages_by_the_databases_clock(
    url: str, tmp_path: Path, task: UUID, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", url)
    monkeypatch.setenv("TENUTO_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(clock, "datetime", Wrong)
    assert clock.SystemClock().now() - datetime.now().astimezone() > timedelta(hours=1)
    for words in (
        ("task", "list"), ("task", "show", str(task)), ("task", "why", str(task)), ("activity", "list"),
        ("activity", "show", str(task)), ("queue", "list"), ("worker", "list"), ("log", "list"), ("secret", "list"),
    ):  # fmt: skip
        assert command_tree.run([*words]) == 0, words
        said = capsys.readouterr().out
        assert not re.search(r"\b\d+ h\b", said), (words, said)
        if words[1:] == ("list",) and said:  # of activities there are none yet
            assert re.search(r"\d+ m?s\b|just now", said), (words, said)
