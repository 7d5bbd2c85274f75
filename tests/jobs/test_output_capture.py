"""What an attempt says (W4, W5): kept with its record, line by line, within a cap, never mixed with its neighbours'."""

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
from tenuto.jobs.attempt_log import CAP, AttemptLog
from tenuto.jobs.output_capture import Capture
from tenuto.model.tasks import Outcome, Status
from tests.jobs.conftest import Bench
from tests.support.model_values import a_held_task


def lines(outcome: Outcome) -> list[tuple[str, str]]:
    """(level, words) of every line."""
    found = []
    for line in (outcome.log or "").splitlines():
        _time, level, words = line.split(maxsplit=2)
        found.append((level, words))
    return found


@pytest.fixture
def informative() -> Iterator[None]:
    """Python drops informational records before any handler sees them, unless told otherwise."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


@pytest.mark.usefixtures("informative")
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_prints_logging_and_the_contexts_own_log_are_kept_in_order(bench: Bench, kind: str) -> None:
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

    job: Job[..., Any] = bench.app.job(say_async) if kind == "async" else bench.app.job(say)
    assert lines(bench.run(job)) == [
        ("print", "printed"),
        ("stderr", "to stderr"),
        ("info", "mine: logged 1"),
        ("debug", "debug"),
        ("info", "info x"),
        ("warning", "warning"),
        ("error", "error"),
    ]


def test_a_line_printed_in_pieces_is_one_line_and_the_last_piece_is_not_lost(bench: Bench) -> None:
    @bench.app.job
    def say() -> None:
        print("one ", end="")
        print("line\nand ", end="")
        print("a rest", end="")

    assert lines(bench.run(say)) == [("print", "one line"), ("print", "and a rest")]


def test_saying_nothing_is_recorded_as_nothing(bench: Bench) -> None:
    @bench.app.job
    def silent() -> None:
        print()
        print("   ")

    assert bench.run(silent).log is None


def test_what_was_said_before_a_failure_is_kept(bench: Bench) -> None:
    @bench.app.job
    def fail() -> None:
        print("so far so good")
        raise ValueError

    assert lines(bench.run(fail)) == [("print", "so far so good")]


def test_a_log_call_with_the_wrong_arguments_does_not_fail_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    @bench.app.job
    def say(ctx: Context) -> int:
        logging.getLogger("mine").warning("%d apples", "many")
        ctx.log.warning("%d pears", "many")
        ctx.log.warning("100% sure")
        return 7

    outcome = bench.run(say)
    assert outcome.output == "7"
    assert "100% sure" in (outcome.log or "")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("I have no words")


@pytest.mark.parametrize("words", [("%s", Unshowable()), ("%d %s", Unshowable()), (Unshowable(),), (5,), (None,)])
def test_nothing_that_is_said_fails_the_job_that_says_it(bench: Bench, words: tuple[Any, ...]) -> None:
    @bench.app.job
    def say(ctx: Context) -> int:
        ctx.log.info(*words)
        ctx.warn(words[0])
        return 7

    outcome = bench.run(say)
    assert (outcome.status, outcome.output) == (Status.COMPLETED_WITH_WARNING, "7")
    assert len(lines(outcome)) == 2


def test_two_attempts_side_by_side_do_not_mix(bench: Bench) -> None:
    both = threading.Barrier(2)

    @bench.app.job
    def thread(name: str) -> None:
        for n in range(20):
            both.wait(10)
            print(f"{name} {n}")
            logging.getLogger("mine").warning("%s logs", name)

    @bench.app.job
    async def coroutine(name: str) -> None:
        for n in range(20):
            print(f"{name} {n}", end="")
            await asyncio.sleep(0)
            print()
            logging.getLogger("mine").warning("%s logs", name)

    for job in (thread, coroutine):
        attempts = {name: bench.begin(job, name) for name in ("ana", "ben")}
        for name, attempt in attempts.items():
            outcome = bench.outcome(attempt)
            assert outcome is not None
            said = [words for _, words in lines(outcome)]
            assert len(said) == 40
            assert all(name in words for words in said)


def test_tasks_and_threads_that_a_job_starts_speak_for_it(bench: Bench) -> None:
    @bench.app.job
    async def spread() -> None:
        async def inner(n: int) -> None:
            print(f"inner {n}")

        await asyncio.gather(*(inner(n) for n in range(3)))
        await asyncio.to_thread(print, "from a thread")

    assert sorted(words for _, words in lines(bench.run(spread))) == ["from a thread", "inner 0", "inner 1", "inner 2"]


def test_what_others_print_meanwhile_is_not_the_attempts(bench: Bench) -> None:
    begun, done = threading.Event(), threading.Event()

    @bench.app.job
    def quiet() -> None:
        begun.set()
        done.wait(10)

    attempt = bench.begin(quiet)
    begun.wait(10)
    print("I am the test")
    logging.getLogger("mine").warning("so am I")
    done.set()
    outcome = bench.outcome(attempt)
    assert outcome is not None
    assert outcome.log is None


def test_everything_said_is_passed_on_to_where_it_would_have_gone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    @bench.app.job
    def say() -> None:
        print("hello")
        print("trouble", file=sys.stderr)

    bench.run(say)
    out, err = capsys.readouterr()
    assert "hello\n" in out
    assert "trouble\n" in err


def test_bytes_that_are_written_are_kept_and_passed_on_as_they_are(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @bench.app.job
    def say(ctx: Context) -> bool:
        sys.stdout.buffer.write(b"h\xc3\xa4llo\n\xff\x00\n")
        sys.stdout.buffer.write(bytearray(b"more\n"))
        sys.stdout.flush()
        sys.stderr.buffer.writelines([b"trouble ", b"ahead\n"])
        sys.stderr.flush()
        return sys.stdout.buffer.writable()

    outcome = bench.run(say)
    assert outcome.output == "true", outcome.error
    assert lines(outcome) == [("print", "hällo"), ("print", "�␀"), ("print", "more"),
                              ("stderr", "trouble ahead")]  # fmt: skip
    out, err = capfdbinary.readouterr()
    assert b"h\xc3\xa4llo\n\xff\x00\nmore\n" in out
    assert b"trouble ahead\n" in err


def test_a_stream_can_be_set_up_and_asked_as_the_one_beneath(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @bench.app.job
    def say() -> list[Any]:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        print("\ud800")
        sys.stdout.flush()
        return [sys.stdout.errors, sys.stdout.writable(), hasattr(sys.stdout, "line_buffering")]

    outcome = bench.run(say)
    assert json.loads(outcome.output or "null") == ["backslashreplace", True, True], outcome.error
    assert b"\\ud800\n" in capfdbinary.readouterr()[0]


def test_unstorable_characters_are_kept_in_another_form(bench: Bench) -> None:
    @bench.app.job
    def say(ctx: Context) -> None:
        ctx.log.info("a\x00b\ud800")

    assert lines(bench.run(say)) == [("info", "a␀b\\ud800")]


# --- the cap -------------------------------------------------------------------------------------------------------


def a_log() -> AttemptLog:
    return AttemptLog(a_held_task())


def test_a_long_log_keeps_its_beginning_and_its_end_and_counts_what_was_cut() -> None:
    log = a_log()
    total = 50_000
    for n in range(total):
        log.line("info", f"line {n}")
    text = log.text()
    assert text is not None
    assert len(text) <= CAP + 100
    kept = text.splitlines()
    (note,) = [line for line in kept if line.startswith("…")]
    assert kept[0].endswith("line 0")
    assert kept[-1].endswith(f"line {total - 1}")
    assert int(note.split()[1]) == total - (len(kept) - 1)


@pytest.mark.parametrize("width", [20, 33, 60, 333])
@pytest.mark.parametrize(("before", "again"), [(200, 200), (256, 0), (300, 300), (1, 200), (200, 1)])
def test_after_a_sleep_a_long_log_stays_within_the_cap_and_keeps_its_newest_lines(
    width: int, before: int, again: int
) -> None:
    def said(kilobytes: int) -> AttemptLog:
        log = a_log()
        for _ in range(kilobytes * 1024 // (width + 26)):
            log.line("info", "x" * width)
        return log

    log = said(again)
    log.goes_on_from("the very first\n" + (said(before).text() or ""))
    for n in range(3):
        log.line("info", f"after the sleep {n}")
    text = log.text() or ""
    assert len(text) <= CAP + 200
    assert text.startswith("the very first")
    assert [line.split(maxsplit=2)[2] for line in text.splitlines()[-3:]] == [f"after the sleep {n}" for n in range(3)]


def test_one_endless_line_is_cut_in_its_middle() -> None:
    log = a_log()
    log.line("info", "a" * 10_000_000 + "END")
    text = log.text()
    assert text is not None
    assert len(text) < 20_000
    assert "characters cut" in text
    assert text.endswith("END\n")


def test_printing_without_ever_ending_the_line_stays_within_the_cap() -> None:
    log = a_log()
    for _ in range(100_000):
        log.printed("print", "x" * 100)
    text = log.text()
    assert text is not None
    assert len(text) <= CAP + 100


def test_a_job_that_shouts_without_end_ends_with_a_capped_record(bench: Bench) -> None:
    @bench.app.job
    def shout() -> None:
        for n in range(30_000):
            print("shouting", n)

    outcome = bench.run(shout)
    assert outcome.log is not None
    assert len(outcome.log) <= CAP + 100
    assert "lines cut" in outcome.log


# --- starting and stopping -----------------------------------------------------------------------------------------


def test_the_last_to_stop_listening_puts_the_streams_back() -> None:
    before: list[Any] = [sys.stdout, sys.stderr, list(logging.getLogger().handlers)]
    Capture.start()
    Capture.start()
    Capture.stop()
    assert sys.stdout is not before[0]
    Capture.stop()
    assert [sys.stdout, sys.stderr, logging.getLogger().handlers] == before
