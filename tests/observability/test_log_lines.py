"""Every line of a log says of which attempt it comes, for people and as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from tenuto import Context, PermanentFailure, Step, Tenuto, cron
from tenuto.logs import configure
from tests.support.engine_fixtures import WorkerFactory


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What is written to stderr; afterwards logging is as it was."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = before
    root.setLevel(level)


async def run_jobs(app: Tenuto, worker: WorkerFactory) -> tuple[str, str]:
    @app.job
    async def talks(ctx: Context) -> None:
        ctx.log.info("by its own log")
        logging.getLogger("some.library").warning("by %s", "standard logging")

    @app.job
    async def fails() -> None:
        raise PermanentFailure("no")

    app.schedule("daily", cron("0 2 * * *"), [Step.job(talks)])
    await app.schedules.deploy()
    execution = (await app.schedules.run("daily")).execution_id
    assert execution is not None
    async with worker():
        await app.executions.wait(execution, timeout=20)
        failed = await app.enqueue(fails)
        await app.wait(failed, timeout=20)
    return str(execution), str(failed.id)


async def test_as_json_every_line_names_task_attempt_and_execution(
    app: Tenuto, worker: WorkerFactory, written: Callable[[], str]
) -> None:
    configure("json", "debug")
    execution, failed = await run_jobs(app, worker)
    lines = [json.loads(line) for line in written().splitlines()]
    by_event = {line["event"]: line for line in lines}
    (step,) = {line["task"] for line in lines if line.get("execution") == execution}
    for event in ("by its own log", "by standard logging", "attempt ended"):
        line = by_event[event]
        assert (line["task"], line["execution"], line["attempt"], line["job"]) == (step, execution, 1, "talks")
    assert by_event["by standard logging"]["logger"] == "some.library"
    assert by_event["by standard logging"]["level"] == "warning"
    told = by_event["attempt failed"]
    assert (told["task"], told["level"], told["reason"], told["again"]) == (failed, "warning", "error", False)
    assert "execution" not in told
    assert "task" not in by_event["worker ready"]


async def test_for_people_a_line_names_them_too_and_success_is_not_told_of_each(
    app: Tenuto, worker: WorkerFactory, written: Callable[[], str]
) -> None:
    configure("console", "info")
    execution, failed = await run_jobs(app, worker)
    said = written()
    (line,) = [line for line in said.splitlines() if "by its own log" in line]
    assert f"execution={execution}" in line
    assert "attempt=1" in line
    assert "attempt ended" not in said
    (line,) = [line for line in said.splitlines() if "attempt failed" in line]
    assert f"task={failed}" in line
