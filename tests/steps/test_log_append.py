"""The step kind log.append: one entry for one task, whatever becomes of its attempts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import Context, Tenuto
from tenuto.errors import Invalid
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.steps import log_append as log
from tenuto.steps.step_kinds import Means
from tests.races.processes import ROOT
from tests.support.store_fixtures import swept, url, used_again
from tests.support.tasks import rows, start
from tests.support.waiting import eventually

__all__ = ["swept", "url", "used_again"]

AT_ONCE = Policy(RetryPolicy(max_retries=3, base_seconds=0, jitter=0)).to_json()


async def plain(ctx: Context, text: Any) -> str:
    assert isinstance(text, str)
    return text


def appending(app: Tenuto) -> Job[..., Any]:
    return log.job(Means(app.open, lambda: app.settings, plain))


async def enqueue(app: Tenuto, **arguments: Any) -> Any:
    text = appending(app).check_input(json.dumps(arguments))
    return await start(await app.open(), kind=log.KIND, name=log.KIND, input=text, policy=AT_ONCE)


async def test_an_entry_is_appended_once_however_often_the_task_is_tried(app: Tenuto) -> None:
    real, database = appending(app), await app.open()
    by_the_database: list[datetime] = []  # whose clock an entry is dated by

    async def fails_twice(ctx: Context, message: str, log: str = "default", fields: Any = None) -> Any:
        by_the_database.append(await database.value("SELECT clock_timestamp()"))
        given = await real.function(ctx=ctx, message=message, log=log, fields=fields)
        by_the_database.append(await database.value("SELECT clock_timestamp()"))
        if ctx.attempt < 3:
            raise RuntimeError("after the entry was made")
        return given

    app.jobs.by_kind[log.KIND] = Job(fails_twice, log.KIND, Policy(), Using(), isolated=False)
    task_id = await enqueue(app, message="counted", log="orders", fields={"shelves": 12})
    async with app.worker(slots=2, poll_seconds=60, grace_seconds=0):
        ended = await app.wait(task_id, timeout=20)
    assert (ended["status"], ended["attempt"]) == ("completed", 3)
    (entry,) = await app.logs.read("orders")
    assert ended["output"] == {"log": "orders", "entry": entry["id"]}
    assert (entry["message"], entry["fields"], entry["task_id"]) == ("counted", {"shelves": 12}, task_id)
    before, after = by_the_database[:2]
    assert before <= entry["at"] <= after, "it is that of the first attempt"


WORKER = """
import asyncio, sys
from pathlib import Path
from tenuto import Context, Tenuto
from tenuto.handlers import log
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy
from tests.steps.test_log_append import appending

url, home, flag = sys.argv[1:]
app = Tenuto(url, home=home)
real = appending(app)

async def appends_and_hangs(ctx: Context, message: str, log: str = "default", fields: dict | None = None) -> None:
    await real.function(ctx=ctx, message=message, log=log, fields=fields)
    Path(flag).touch()
    await asyncio.sleep(600)

app.jobs.by_kind[log.KIND] = Job(appends_and_hangs, log.KIND, Policy(), Using(), isolated=False)
asyncio.run(app.run_worker(slots=1, name="first"))
"""


async def test_an_entry_is_there_once_although_the_worker_was_killed_after_it_was_made(
    app: Tenuto, tmp_path: Path
) -> None:
    app.jobs.by_kind[log.KIND] = appending(app)
    task_id = await enqueue(app, message="counted")
    flag = tmp_path / "appended"
    database = await app.open()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, database.url, str(tmp_path), str(flag)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    ) as first:
        try:
            await eventually(flag.exists, timeout=30)
        finally:
            first.send_signal(signal.SIGKILL)
    async with app.worker(slots=1, poll_seconds=60, grace_seconds=0, name="first"):
        ended = await app.wait(task_id, timeout=30)
    assert ended["status"] == "completed"
    assert [each["reason"] for each in await app.attempts(task_id)] == ["lost", None]
    (entry,) = await rows(database, "log_entries")
    assert ended["output"] == {"log": "default", "entry": entry["id"]}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "message"),
        ({"message": ""}, "message"),
        ({"message": 7}, "message"),
        ({"message": "m" * 70_000}, "message"),
        ({"message": "m", "log": "a b"}, "log"),
        ({"message": "m", "log": "x" * 201}, "log"),
        ({"message": "m", "fields": [1]}, "fields"),
        ({"message": "m", "fields": {"x": "y" * 70_000}}, "fields"),
        ({"message": "m", "level": "info"}, "level"),
    ],
)
async def test_arguments_that_make_no_sense_are_refused_by_name(app: Tenuto, arguments: Any, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        appending(app).check_input(json.dumps(arguments))
    assert refusal.value.field == field
