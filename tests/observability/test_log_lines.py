"""Log lines of a running task name its task, attempt and execution, on the console and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from tenuto import Context, PermanentFailure, RetryPolicy, Step, Tenuto, cron
from tenuto.jobs.redaction import redact_in_process
from tenuto.logs import Log, configure
from tests.support.service_fixtures import WorkerFactory


@pytest.fixture
def read_stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Return the text written to stderr; restore the logging configuration afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = before
    root.setLevel(level)


async def run_jobs(app: Tenuto, worker: WorkerFactory) -> tuple[str, str]:
    @app.job
    async def talks(ctx: Context) -> None:
        ctx.log.info("by the job log")
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


async def test_json_log_lines_name_task_attempt_and_execution(
    app: Tenuto, worker: WorkerFactory, read_stderr: Callable[[], str]
) -> None:
    configure("json", "debug")
    execution, failed = await run_jobs(app, worker)
    lines = [json.loads(line) for line in read_stderr().splitlines()]
    by_event = {line["event"]: line for line in lines}
    (step,) = {line["task_id"] for line in lines if line.get("execution_id") == execution}
    for event in ("by the job log", "by standard logging", "attempt ended"):
        line = by_event[event]
        assert (line["task_id"], line["execution_id"], line["attempt"], line["job"]) == (step, execution, 1, "talks")
    assert by_event["by standard logging"]["logger"] == "some.library"
    assert by_event["by standard logging"]["level"] == "warning"
    failure = by_event["attempt failed"]
    assert (failure["task_id"], failure["level"], failure["reason"], failure["retried"]) == (
        failed,
        "warning",
        "error",
        False,
    )
    assert failure["error"] == "tenuto.PermanentFailure: no"
    assert "stack" in failure, "at debug level"
    assert "execution_id" not in failure
    assert "task_id" not in by_event["worker started"]


async def test_console_log_lines_name_task_and_execution_and_omit_successes(
    app: Tenuto, worker: WorkerFactory, read_stderr: Callable[[], str]
) -> None:
    configure("console", "info")
    execution, failed = await run_jobs(app, worker)
    output = read_stderr()
    (line,) = [line for line in output.splitlines() if "by the job log" in line]
    assert f"execution_id={execution}" in line
    assert "attempt=1" in line
    assert "attempt ended" not in output
    (line,) = [line for line in output.splitlines() if "attempt failed" in line]
    assert f"task_id={failed}" in line
    assert "[warning" in line
    assert "error='tenuto.PermanentFailure: no'" in line
    assert "max_attempts=" in line


def write_samples() -> None:
    log = Log("tenuto.sample")
    log.info("task recovered", worker="a b", task_id="t1", count=3, note="")
    logging.getLogger("some.library").warning("by %s", "standard logging")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("sweep failed")


def test_console_log_line_has_sorted_fields_and_plain_traceback(read_stderr: Callable[[], str]) -> None:
    configure("console", "info")
    write_samples()
    lines = read_stderr().splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line[:27]) for line in lines[:3])
    assert [line[28:] for line in lines[:3]] == [
        "[info     ] task recovered                 count=3 note= task_id=t1 worker='a b'",
        "[warning  ] by standard logging            [some.library]",
        "[error    ] sweep failed",
    ]
    assert (lines[3], lines[-1]) == ("  | Traceback (most recent call last):", "  | ValueError: no")


def test_console_log_line_has_colors_on_a_terminal(
    read_stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure("console", "info")
    Log("tenuto.sample").error("task lost", task_id="t1")
    line = read_stderr()
    assert "[\033[31m\033[1merror    \033[0m] \033[1mtask lost" in line
    assert "\033[36mtask_id\033[0m=\033[35mt1\033[0m" in line


def test_json_log_line_has_all_fields_and_values_of_any_type(read_stderr: Callable[[], str]) -> None:
    configure("json", "info")
    write_samples()
    Log("tenuto.sample").info("value logged", value={"kind": int})
    first, second, third, last = (json.loads(line) for line in read_stderr().splitlines())
    assert list(first) == ["event", "worker", "task_id", "count", "note", "level", "timestamp"]
    assert (first["event"], first["count"], first["level"]) == ("task recovered", 3, "info")
    assert second["logger"] == "some.library"
    assert third["exception"].endswith("ValueError: no")
    assert last["value"] == {"kind": "<class 'int'>"}


UNSAFE = "\x1b[31mred \x9b2J \u202e \r \x07\n2030-01-01T00:00:00.000000Z [info     ] forged"
SAFE = r"\x1b[31mred \x9b2J \u202e \r \x07"


def test_console_log_line_escapes_what_a_terminal_obeys(read_stderr: Callable[[], str]) -> None:
    configure("console", "info")
    Log("tenuto.sample").warning("attempt failed", error=UNSAFE)
    logging.getLogger("some.library").warning(UNSAFE)
    logging.getLogger("evil\n\x1b[0m").warning("by a logger")
    try:
        raise ValueError(UNSAFE)
    except ValueError:
        Log("tenuto.sample").exception("sweep failed")
    output = read_stderr()
    assert not set(output) & {"\x1b", "\x9b", "\u202e", "\r", "\x07"}
    events = [line for line in output.splitlines() if re.match(r"\d{4}-", line)]
    assert len(events) == 4, "no text begins a new line"
    assert SAFE in events[1]
    assert all(line.startswith("  | ") for line in output.splitlines() if line not in events)


@pytest.mark.parametrize("output_format", ["console", "json"])
async def test_output_of_jobs_cannot_pass_for_log_lines_and_is_redacted(
    app: Tenuto,
    worker: WorkerFactory,
    capsys: pytest.CaptureFixture[str],
    read_stderr: Callable[[], str],
    output_format: Literal["console", "json"],
) -> None:
    @app.job
    async def prints(ctx: Context) -> None:
        ctx.redact("first line\nsecond line")
        print(UNSAFE, "first line", sep="\n", file=sys.stderr)
        print("second line", end=" ", file=sys.stderr)
        print("and more", file=sys.stderr)

    configure(output_format, "info")
    async with worker():
        record = await app.wait(await app.enqueue(prints), timeout=20)
    output = read_stderr()
    assert record.state == "completed"
    assert "second line" not in output
    shown = [line for line in output.splitlines() if "forged" in line or "and more" in line]
    if output_format == "console":
        assert shown == ["  | 2030-01-01T00:00:00.000000Z [info     ] forged", "  | *** and more"]
        assert f"  | {SAFE}" in output.splitlines()
    else:
        lines = [json.loads(line) for line in output.splitlines()]
        printed = [line for line in lines if line["event"] == "job output"]
        assert [line["text"] for line in printed] == [*UNSAFE.split("\n"), "*** and more"]
        assert {line["task_id"] for line in printed} == {str(record.task_id)}


async def test_log_line_of_a_retried_attempt_has_the_error_and_the_next_try(
    app: Tenuto, worker: WorkerFactory, read_stderr: Callable[[], str]
) -> None:
    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0.2, jitter=0))
    async def send_mail() -> None:
        raise ConnectionError("smtp said 451")

    configure("json", "info")
    async with worker():
        await app.wait(await app.enqueue(send_mail), timeout=20)
    lines = [line for line in map(json.loads, read_stderr().splitlines()) if line["event"] == "attempt failed"]
    shown = [(each["level"], each["attempt"], each["max_attempts"], each["error"]) for each in lines]
    assert shown == [("warning", number, 3, "ConnectionError: smtp said 451") for number in (1, 2, 3)]
    assert [0 <= each["next_try_seconds"] <= longest for each, longest in zip(lines, (0.2, 0.4), strict=False)] == [
        True,
        True,
    ]
    assert "next_try_seconds" not in lines[2]
    assert all("stack" not in each for each in lines)


async def test_console_log_shows_the_stack_of_a_failure_once_and_redacted(
    app: Tenuto, worker: WorkerFactory, read_stderr: Callable[[], str]
) -> None:
    redact_in_process("open-sesame-7381")

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0))
    async def send_mail() -> None:
        raise ConnectionError("no answer with password " + "-".join(("open", "sesame", "7381")))

    configure("console", "info")
    async with worker():
        await app.wait(await app.enqueue(send_mail), timeout=20)
    text = read_stderr()
    assert text.count("attempt failed ") == 3
    assert text.count("  |   File ") == 1
    assert "in send_mail" in text
    assert "open-sesame" not in text
    assert "tenuto/worker" not in text, "frames of Tenuto are left out"


def test_tracebacks_of_the_pool_of_the_driver_are_not_logged(read_stderr: Callable[[], str]) -> None:
    configure("console", "info")
    try:
        raise OSError("refused")
    except OSError:
        logging.getLogger("asyncpg.pool").warning("Failed to restore the pool connection floor", exc_info=True)
    assert read_stderr() == ""
