"""The attempt log: one JSON line for each ended attempt, written beside the work."""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tenuto import Context, PermanentFailure, RetryPolicy, Tenuto
from tenuto.jobs.redaction import redact_in_process
from tenuto.settings import load_settings
from tenuto.worker import attempt_log_writer
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

OpenApp: TypeAlias = Callable[..., AbstractAsyncContextManager[Tenuto]]


@pytest.fixture
def app_writing_to(url: str, tmp_path: Path) -> OpenApp:
    @asynccontextmanager
    async def open_app(**settings: object) -> AsyncIterator[Tenuto]:
        async with Tenuto(settings=load_settings(database=url, home=tmp_path, **settings)) as app:
            yield app

    return open_app


def register_jobs(app: Tenuto) -> None:
    @app.job(tags=["nightly"])
    async def talks(ctx: Context) -> str:
        ctx.log.info("rows read: %d", 7)
        return "secret output"

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def fails(ctx: Context) -> None:
        ctx.redact("hunter2-hunter2")
        raise ValueError(f"attempt {ctx.attempt}: hunter2-hunter2, s3cret-of-the-process")


async def run_both(app: Tenuto) -> None:
    register_jobs(app)
    async with app.worker(slots=5, poll_seconds=60, name="w1"):
        for name in ("talks", "fails"):
            await app.wait(await app.enqueue(app.jobs.get_job(name)), timeout=20)


async def test_attempt_log_has_a_line_for_every_ended_attempt(app_writing_to: OpenApp, tmp_path: Path) -> None:
    file = tmp_path / "attempts.jsonl"
    redact_in_process("s3cret-of-the-process")
    async with app_writing_to(attempt_log="all", attempt_log_file=file) as app:
        await run_both(app)
    text = file.read_text("utf-8")
    talked, first, second = [json.loads(line) for line in text.splitlines()]
    assert "secret output" not in text
    assert "hunter2" not in text
    assert "s3cret" not in text
    assert talked["log"].endswith("info    rows read: 7\n")
    assert (talked["level"], talked["status"], talked["job"], talked["queue"], talked["worker"], talked["tags"]) == (
        "info", "completed", "talks", "default", "w1", ["nightly"],
    )  # fmt: skip
    assert talked["run_seconds"] >= 0
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["task_id"] == second["task_id"]
    assert "retry_at" in first
    assert "retry_at" not in second
    assert (second["level"], second["status"], second["reason"]) == ("warning", "failed", "error")
    assert second["error"]["message"] == "attempt 2: ***, ***"
    assert "Traceback" in second["error"]["stack"]
    assert not attempt_log_writer.logger.isEnabledFor(logging.ERROR), "the log is silent after the last worker"


async def test_attempt_log_of_failures_continues_in_a_new_file_after_rotation(
    app_writing_to: OpenApp, tmp_path: Path
) -> None:
    file = tmp_path / "attempts.jsonl"
    async with app_writing_to(attempt_log="failed", attempt_log_file=file) as app:

        @app.job(max_attempts=1)
        async def fails(number: int) -> None:
            raise PermanentFailure(f"number {number}")

        @app.job
        async def fine() -> None: ...

        # Two workers of a process share the file.
        async with app.worker(slots=5, poll_seconds=60), app.worker(slots=5, poll_seconds=60):
            await app.wait(await app.enqueue(fine), timeout=20)
            await app.wait(await app.enqueue(fails, 1), timeout=20)
            await _until_written(file, 1)
            file.rename(tmp_path / "attempts.jsonl.1")
            await app.wait(await app.enqueue(fails, 2), timeout=20)
    old, new = [(tmp_path / name).read_text("utf-8").splitlines() for name in ("attempts.jsonl.1", "attempts.jsonl")]
    assert [json.loads(line)["error"]["message"] for line in (*old, *new)] == ["number 1", "number 2"]
    assert (len(old), len(new)) == (1, 1)


async def _until_written(file: Path, line_count: int) -> None:
    await eventually(lambda: file.exists() and file.read_text("utf-8").count("\n") == line_count)


async def test_handler_of_the_program_receives_attempts_without_a_setting(app: Tenuto, worker: WorkerFactory) -> None:
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    collector = Collector()
    register_jobs(app)
    attempt_log_writer.logger.addHandler(collector)
    attempt_log_writer.logger.setLevel(logging.INFO)
    try:
        async with worker():
            await app.wait(await app.enqueue(app.jobs.get_job("talks")), timeout=20)
    finally:
        attempt_log_writer.logger.removeHandler(collector)
        attempt_log_writer.logger.setLevel(logging.CRITICAL + 1)
    assert [json.loads(line)["job"] for line in lines] == ["talks"]


def test_slow_file_drops_lines_and_counts_them() -> None:
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(1)
    handler = attempt_log_writer._BoundedQueueHandler(waiting)
    for _ in range(3):
        handler.handle(logging.LogRecord("tenuto.attempts", logging.INFO, "", 0, "line", None, None))
    assert (waiting.qsize(), handler.dropped_count) == (1, 2)
