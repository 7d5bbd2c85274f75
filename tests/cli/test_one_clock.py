"""Lists compute ages and waiting times with the clock of the database, not of the local machine."""

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
from tenuto.settings import load_settings


class FastDatetime(datetime):
    """The clock of a machine that is two hours fast."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> FastDatetime:
        return cls.fromtimestamp((datetime.now(tz) + timedelta(hours=2)).timestamp(), tz)


@pytest.fixture
async def task(url: str, tmp_path: Path, register_worker: Callable[[str], Awaitable[UUID]]) -> UUID:
    """One row of everything that has an age: a queued task, a worker, a log entry, a secret."""
    await register_worker("one")
    async with Tenuto(
        settings=load_settings(database=url, home=tmp_path, master_key=base64.b64encode(b"k" * 32).decode())
    ) as app:

        @app.job
        async def double(n: int) -> int:
            return 2 * n

        await app.logs.append("orders", "counted")
        await app.secrets.set("token", "s3cret")
        return (await app.enqueue(double, 1)).id


def test_lists_compute_ages_with_the_clock_of_the_database(
    url: str, tmp_path: Path, task: UUID, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENUTO_DATABASE", url)
    monkeypatch.setenv("TENUTO_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(clock, "datetime", FastDatetime)
    assert clock.SystemClock().now() - datetime.now().astimezone() > timedelta(hours=1)
    for arguments in (
        ("task", "list"), ("task", "show", str(task)), ("task", "why", str(task)), ("activity", "list"),
        ("activity", "show", str(task)), ("queue", "list"), ("worker", "list"), ("log", "list"), ("secret", "list"),
    ):  # fmt: skip
        assert command_tree.run([*arguments]) == 0, arguments
        output = capsys.readouterr().out
        assert not re.search(r"\b\d+ h\b", output), (arguments, output)
        if arguments[1:] == ("list",) and output:  # there are no activities yet
            assert re.search(r"\d+ m?s\b|just now", output), (arguments, output)
