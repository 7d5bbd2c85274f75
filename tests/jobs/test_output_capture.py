"""The log of an attempt (W4, W5): output is captured line by line, limited, and separate for each attempt."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tenuto import Context, Job
from tenuto.jobs.attempt_log import MAX_LOG_CHARACTERS, AttemptLog
from tenuto.jobs.output_capture import OutputCapture
from tenuto.model.work.tasks import Outcome, OutcomeStatus
from tests.jobs.conftest import RunnerHarness
from tests.support.model_values import make_held_task


def parse_lines(outcome: Outcome) -> list[tuple[str, str]]:
    """Return (level, text) of every line."""
    found = []
    for line in (outcome.log or "").splitlines():
        _time, level, text = line.split(maxsplit=2)
        found.append((level, text))
    return found


@pytest.fixture
def info_level() -> Iterator[None]:
    """Set the level of the root logger: by default Python drops informational records before any handler."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


@pytest.mark.usefixtures("info_level")
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_capture_keeps_output_logging_and_context_log_in_order(harness: RunnerHarness, kind: str) -> None:
    def say(ctx: Context) -> None:
        print("printed")
        print("to stderr", file=sys.stderr)
        logging.getLogger("mine").info("logged %d", 1)
        ctx.log.debug("debug")
        ctx.log.info("info %s", "x")
        ctx.log.warning("warning")
        ctx.log.error("error")

    async def say_async(ctx: Context) -> None:
        say(ctx)

    job: Job[..., Any] = harness.app.job(say_async) if kind == "async" else harness.app.job(say)
    assert parse_lines(harness.run(job)) == [
        ("print", "printed"),
        ("stderr", "to stderr"),
        ("info", "mine: logged 1"),
        ("debug", "debug"),
        ("info", "info x"),
        ("warning", "warning"),
        ("error", "error"),
    ]


def test_capture_joins_a_line_printed_in_pieces(harness: RunnerHarness) -> None:
    @harness.app.job
    def say() -> None:
        print("one ", end="")
        print("line\nand ", end="")
        print("a rest", end="")

    assert parse_lines(harness.run(say)) == [("print", "one line"), ("print", "and a rest")]


def test_capture_of_blank_lines_records_no_log(harness: RunnerHarness) -> None:
    @harness.app.job
    def silent() -> None:
        print()
        print("   ")

    assert harness.run(silent).log is None


def test_capture_keeps_output_before_a_failure(harness: RunnerHarness) -> None:
    @harness.app.job
    def fail() -> None:
        print("so far so good")
        raise ValueError

    assert parse_lines(harness.run(fail)) == [("print", "so far so good")]


def test_log_call_with_wrong_arguments_does_not_fail_the_job(
    harness: RunnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    @harness.app.job
    def say(ctx: Context) -> int:
        logging.getLogger("mine").warning("%d apples", "many")
        ctx.log.warning("%d pears", "many")
        ctx.log.warning("100% sure")
        return 7

    outcome = harness.run(say)
    assert outcome.output == "7"
    assert "100% sure" in (outcome.log or "")


class UnprintableValue:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be printed")


@pytest.mark.parametrize(
    "arguments", [("%s", UnprintableValue()), ("%d %s", UnprintableValue()), (UnprintableValue(),), (5,), (None,)]
)
def test_log_call_with_unprintable_value_does_not_fail_the_job(
    harness: RunnerHarness, arguments: tuple[Any, ...]
) -> None:
    @harness.app.job
    def say(ctx: Context) -> int:
        ctx.log.info(*arguments)
        ctx.warn(arguments[0])
        return 7

    outcome = harness.run(say)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED_WITH_WARNING, "7")
    assert len(parse_lines(outcome)) == 2


def test_capture_separates_concurrent_attempts(harness: RunnerHarness) -> None:
    both = threading.Barrier(2)

    @harness.app.job
    def thread(name: str) -> None:
        for n in range(20):
            both.wait(10)
            print(f"{name} {n}")
            logging.getLogger("mine").warning("%s logs", name)

    @harness.app.job
    async def coroutine(name: str) -> None:
        for n in range(20):
            print(f"{name} {n}", end="")
            await asyncio.sleep(0)
            print()
            logging.getLogger("mine").warning("%s logs", name)

    for job in (thread, coroutine):
        attempts = {name: harness.start(job, name) for name in ("ana", "ben")}
        for name, attempt in attempts.items():
            outcome = harness.wait_for_outcome(attempt)
            assert outcome is not None
            texts = [text for _, text in parse_lines(outcome)]
            assert len(texts) == 40
            assert all(name in text for text in texts)


def test_capture_includes_tasks_and_threads_of_the_job(harness: RunnerHarness) -> None:
    @harness.app.job
    async def spread() -> None:
        async def inner(n: int) -> None:
            print(f"inner {n}")

        await asyncio.gather(*(inner(n) for n in range(3)))
        await asyncio.to_thread(print, "from a thread")

    assert sorted(text for _, text in parse_lines(harness.run(spread))) == [
        "from a thread",
        "inner 0",
        "inner 1",
        "inner 2",
    ]


def test_capture_excludes_output_of_other_code(harness: RunnerHarness) -> None:
    started, done = threading.Event(), threading.Event()

    @harness.app.job
    def quiet() -> None:
        started.set()
        done.wait(10)

    attempt = harness.start(quiet)
    started.wait(10)
    print("I am the test")
    logging.getLogger("mine").warning("so am I")
    done.set()
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert outcome.log is None


def test_capture_passes_output_on(harness: RunnerHarness, capsys: pytest.CaptureFixture[str]) -> None:
    @harness.app.job
    def say() -> None:
        print("hello")
        print("trouble", file=sys.stderr)

    harness.run(say)
    out, err = capsys.readouterr()
    assert "hello\n" in out
    assert "trouble\n" in err


def test_capture_keeps_and_passes_on_bytes(harness: RunnerHarness, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    @harness.app.job
    def say(ctx: Context) -> bool:
        sys.stdout.buffer.write(b"h\xc3\xa4llo\n\xff\x00\n")
        sys.stdout.buffer.write(bytearray(b"more\n"))
        sys.stdout.flush()
        sys.stderr.buffer.writelines([b"trouble ", b"ahead\n"])
        sys.stderr.flush()
        return sys.stdout.buffer.writable()

    outcome = harness.run(say)
    assert outcome.output == "true", outcome.error
    assert parse_lines(outcome) == [("print", "hällo"), ("print", "�␀"), ("print", "more"),
                              ("stderr", "trouble ahead")]  # fmt: skip
    out, err = capfdbinary.readouterr()
    assert b"h\xc3\xa4llo\n\xff\x00\nmore\n" in out
    assert b"trouble ahead\n" in err


def test_capture_stream_delegates_to_the_original_stream(
    harness: RunnerHarness, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @harness.app.job
    def say() -> list[Any]:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        print("\ud800")
        sys.stdout.flush()
        return [sys.stdout.errors, sys.stdout.writable(), hasattr(sys.stdout, "line_buffering")]

    outcome = harness.run(say)
    assert json.loads(outcome.output or "null") == ["backslashreplace", True, True], outcome.error
    assert b"\\ud800\n" in capfdbinary.readouterr()[0]


def test_capture_replaces_unstorable_characters(harness: RunnerHarness) -> None:
    @harness.app.job
    def say(ctx: Context) -> None:
        ctx.log.info("a\x00b\ud800")

    assert parse_lines(harness.run(say)) == [("info", "a␀b\\ud800")]


# --- limits ----------------------------------------------------------------------------------------------------------


def create_log() -> AttemptLog:
    return AttemptLog(make_held_task())


def test_long_log_keeps_its_beginning_and_end() -> None:
    log = create_log()
    total = 50_000
    for n in range(total):
        log.add_line("info", f"line {n}")
    text = log.text()
    assert text is not None
    assert len(text) <= MAX_LOG_CHARACTERS + 100
    kept = text.splitlines()
    (note,) = [line for line in kept if line.startswith("…")]
    assert kept[0].endswith("line 0")
    assert kept[-1].endswith(f"line {total - 1}")
    assert int(note.split()[1]) == total - (len(kept) - 1)


@pytest.mark.parametrize("width", [20, 33, 60, 333])
@pytest.mark.parametrize(("before", "again"), [(200, 200), (256, 0), (300, 300), (1, 200), (200, 1)])
def test_long_log_after_a_sleep_is_limited_and_keeps_its_newest_lines(width: int, before: int, again: int) -> None:
    def write_lines(kilobytes: int) -> AttemptLog:
        log = create_log()
        for _ in range(kilobytes * 1024 // (width + 26)):
            log.add_line("info", "x" * width)
        return log

    log = write_lines(again)
    log.prepend("the very first\n" + (write_lines(before).text() or ""))
    for n in range(3):
        log.add_line("info", f"after the sleep {n}")
    text = log.text() or ""
    assert len(text) <= MAX_LOG_CHARACTERS + 200
    assert text.startswith("the very first")
    assert [line.split(maxsplit=2)[2] for line in text.splitlines()[-3:]] == [f"after the sleep {n}" for n in range(3)]


def test_long_line_is_cut_in_its_middle() -> None:
    log = create_log()
    log.add_line("info", "a" * 10_000_000 + "END")
    text = log.text()
    assert text is not None
    assert len(text) < 20_000
    assert "characters cut" in text
    assert text.endswith("END\n")


def test_endless_line_is_limited() -> None:
    log = create_log()
    for _ in range(100_000):
        log.add_output("print", "x" * 100)
    text = log.text()
    assert text is not None
    assert len(text) <= MAX_LOG_CHARACTERS + 100


def test_log_of_a_job_with_much_output_is_limited(harness: RunnerHarness) -> None:
    @harness.app.job
    def shout() -> None:
        for n in range(30_000):
            print("shouting", n)

    outcome = harness.run(shout)
    assert outcome.log is not None
    assert len(outcome.log) <= MAX_LOG_CHARACTERS + 100
    assert "lines cut" in outcome.log


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_last_stop_of_capture_restores_the_streams() -> None:
    before: list[Any] = [sys.stdout, sys.stderr, list(logging.getLogger().handlers)]
    OutputCapture.start()
    OutputCapture.start()
    OutputCapture.stop()
    assert sys.stdout is not before[0]
    OutputCapture.stop()
    assert [sys.stdout, sys.stderr, logging.getLogger().handlers] == before
