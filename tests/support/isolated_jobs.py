"""Isolated jobs for tests; a child process imports them, so they are defined at the top level of a module."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tenuto import Context, PermanentFailure, RetryLater, Tenuto, tracing
from tenuto.errors import Invalid

app = Tenuto("postgresql://nobody@nowhere.invalid/none", home="/tmp/tenuto-never-made")


@app.job(isolated=True)
def double(n: int) -> int:
    return 2 * n


@app.job(isolated=True)
def report_trace() -> str | None:
    return tracing.current_traceparent()


def resize(width: int) -> int:
    return width // 2


halved = app.job(name="halve", isolated=True)(resize)
resized = app.job(isolated=True)(resize)
squared = app.job(name="square", isolated=True)(lambda n: n * n)
cubed = app.job(name="cube", isolated=True)(lambda n: n * n * n)


class Kitchen:
    @staticmethod
    @app.job(isolated=True)
    def stir(times: int) -> int:
        return times

    @staticmethod
    def knead(times: int) -> int:
        return -times


kneading = app.job(isolated=True)(Kitchen.knead)
unnamed = {"job": app.job(name="unnamed", isolated=True)(resize)}


@app.job(isolated=True)
def fail_with_secret_class(ctx: Context) -> None:
    ctx.redact("secret-value-in-a-name")
    raise type("Error_secret-value-in-a-name", (Exception,), {})("no")


@app.job(isolated=True)
def leak_secret(ctx: Context, value: str) -> str:
    """Report a redacted value in every way a child process has. The input is reversed, so that it has no secret."""
    value = value[::-1]
    ctx.redact(value)
    print(f"printed {value}")
    ctx.log.info("said %s", value)
    ctx.progress(1, 1, value)
    ctx.warn(f"warned of {value}")
    if value.startswith("fail"):
        raise ValueError(f"failed with {value}")
    return value


@app.job(isolated=True)
async def triple(n: int) -> int:
    await asyncio.sleep(0)
    return 3 * n


@app.job(isolated=True)
def process_id() -> int:
    return os.getpid()


@app.job(isolated=True)
def describe_attempt(ctx: Context) -> dict[str, Any]:
    return {"key": ctx.idempotency_key, "attempt": ctx.attempt, "fence": ctx.fence, "by": ctx.initiator.name}


@app.job(isolated=True)
def print_and_log(ctx: Context) -> None:
    print("printed")
    ctx.log.info("logged")
    logging.getLogger("mine").warning("loudly")
    print("to stderr", file=sys.stderr)
    ctx.progress(3, 10, "kneading")
    print("unfinished", end="")


@app.job(isolated=True)
def warn(ctx: Context) -> int:
    ctx.warn("low on flour")
    return 7


class RetryLaterWithoutDelay(RetryLater):
    def __init__(self) -> None:
        """Leaves the attribute ``after`` undefined."""


class ErrorWithoutModule(Exception):
    __module__ = None  # type: ignore[assignment]


class ErrorThatExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit


@app.job(isolated=True)
def fail(how: str) -> None:
    match how:
        case "value":
            raise ValueError("no flour")
        case "permanent":
            raise PermanentFailure("burnt")
        case "later":
            raise RetryLater("hot", after=90)
        case "invalid":
            raise Invalid("no such bread", code="test.error")
        case "no_delay":
            raise RetryLaterWithoutDelay
        case "no_module":
            raise ErrorWithoutModule("no module")
        case "exits_when_printed":
            raise ErrorThatExitsWhenPrinted
        case _:
            raise SystemExit(3)


@app.job(isolated=True)
def unstorable() -> Any:
    return object()


async def set_down(n: int) -> int:
    return n


@app.job(isolated=True)
def unawaited(n: int) -> Any:
    return set_down(n)


@app.job(isolated=True)
def configure_streams() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return sys.stdout.buffer.write(b"bytes\n")


@app.job(isolated=True)
def die_with_fork(file: Path, *, escapes: bool) -> None:
    """Die while a fork lives, which holds all open descriptors and prints without end."""
    grandchild = multiprocessing.get_context("fork").Process(target=_print_for_ever, args=(escapes,))
    grandchild.start()
    file.write_text(f"{os.getpid()} {grandchild.pid}")
    os.kill(os.getpid(), signal.SIGKILL)


def _print_for_ever(escapes: bool) -> None:
    if escapes:
        os.setsid()
    while True:
        print("still here")
        time.sleep(0.01)


@app.job(isolated=True)
def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.string_at(0)
        case _:
            os.kill(os.getpid(), int(how))
            time.sleep(60)


@app.job(isolated=True)
def hang(file: Path) -> None:
    """Ignore SIGTERM and exceptions; start a process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    file.write_text(f"{os.getpid()} {grandchild.pid}")
    while True:
        try:
            time.sleep(600)
        except BaseException as error:
            print(error)


@app.job(isolated=True)
def die_and_leave(file: Path) -> None:
    """End at once and leave a process running."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    file.write_text(f"{os.getpid()} {grandchild.pid}")
    os._exit(3)


@app.job(isolated=True)
def print_much(times: int) -> int:
    """Print from several threads at once."""

    def print_lines(name: str) -> None:
        for n in range(times):
            print(f"{name} {n}", file=sys.stderr)

    threads = [threading.Thread(target=print_lines, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(times):
        print("line", n)
    return times
