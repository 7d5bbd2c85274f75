"""The step kind log.append: a task adds one entry, however many attempts it takes."""

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
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.steps import log_append
from tenuto.steps.built_in_kinds import StepServices
from tests.races.processes import ROOT
from tests.support.tasks import create_task, read_rows
from tests.support.waiting import eventually

RETRY_AT_ONCE = TaskPolicy(RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)).to_json()


async def return_text(ctx: Context, text: Any) -> str:
    assert isinstance(text, str)
    return text


def create_log_append(app: Tenuto) -> Job[..., Any]:
    return log_append.create_job(StepServices(app.open, lambda: app.settings, return_text))


async def enqueue(app: Tenuto, **arguments: Any) -> Any:
    text = create_log_append(app).validate_input(json.dumps(arguments))
    return await create_task(
        await app.open(), kind=log_append.KIND, name=log_append.KIND, input=text, policy=RETRY_AT_ONCE
    )


async def test_log_append_adds_one_entry_for_several_attempts(app: Tenuto) -> None:
    real, database = create_log_append(app), await app.open()
    database_times: list[datetime] = []  # entries have the time of the database

    async def fails_twice(ctx: Context, message: str, log: str = "default", fields: Any = None) -> Any:
        database_times.append(await database.fetch_value("SELECT clock_timestamp()"))
        result = await real.function(ctx=ctx, message=message, log=log, fields=fields)
        database_times.append(await database.fetch_value("SELECT clock_timestamp()"))
        if ctx.attempt < 3:
            raise RuntimeError("after the entry was added")
        return result

    app.jobs.handlers_by_kind[log_append.KIND] = Job(
        fails_twice, log_append.KIND, TaskPolicy(), TaskOptions(), isolated=False
    )
    task_id = await enqueue(app, message="counted", log="orders", fields={"shelves": 12})
    async with app.worker(slots=2, poll_seconds=60, grace_seconds=0):
        ended = await app.wait(task_id, timeout=20)
    assert (ended.state, ended.attempt) == ("completed", 3)
    (entry,) = await app.logs.read("orders")
    assert ended.output == {"log": "orders", "entry": entry.id}
    assert (entry.message, entry.fields, entry.task_id) == ("counted", {"shelves": 12}, task_id)
    before, after = database_times[:2]
    assert before <= entry.at <= after, "the entry is that of the first attempt"


WORKER = """
import asyncio, sys
from pathlib import Path
from tenuto import Context, Tenuto
from tenuto.steps import log_append
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.definitions.policies import TaskPolicy
from tests.steps.test_log_append import create_log_append

url, home, flag = sys.argv[1:]
app = Tenuto(url, home=home)
real = create_log_append(app)

async def appends_and_hangs(ctx: Context, message: str, log: str = "default", fields: dict | None = None) -> None:
    await real.function(ctx=ctx, message=message, log=log, fields=fields)
    Path(flag).touch()
    await asyncio.sleep(600)

job = Job(appends_and_hangs, log_append.KIND, TaskPolicy(), TaskOptions(), isolated=False)
app.jobs.handlers_by_kind[job.name] = job
asyncio.run(app.run_worker(slots=1, name="first"))
"""


async def test_log_append_adds_one_entry_although_its_worker_was_killed(app: Tenuto, tmp_path: Path) -> None:
    app.jobs.handlers_by_kind[log_append.KIND] = create_log_append(app)
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
    assert ended.state == "completed"
    assert [each.reason for each in await app.attempts(task_id)] == ["lost", None]
    (entry,) = await read_rows(database, "log_entries")
    assert ended.output == {"log": "default", "entry": entry["id"]}


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
async def test_invalid_log_append_argument_is_rejected(app: Tenuto, arguments: Any, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        create_log_append(app).validate_input(json.dumps(arguments))
    assert caught.value.field == field
