"""How a command ends: the one table of exit codes, and how an error becomes a line and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tenuto.cli.formatting import plain
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, StoreError, TenutoError, UnknownJob

OK = 0
FAILED = 1
USAGE = 2
WOULD_CHANGE = 2
"""Of `tenuto plan`, as of other tools that plan; what is not understood ends with FAILED there."""
NOT_FOUND = 3
NOT_ALLOWED = 4
CONFLICT = 7
DATABASE = 8
INTERRUPTED = 130

MEANINGS = {
    OK: "it is done, or all is well",
    FAILED: "it failed, or something is unhealthy",
    USAGE: "the command was not understood, or a value is not valid (of `plan`: something would change)",
    NOT_FOUND: "there is no such thing",
    NOT_ALLOWED: "this account may not",
    CONFLICT: "the state of things does not allow it",
    DATABASE: "the database cannot be reached or used",
    INTERRUPTED: "interrupted with Ctrl-C",
}

_CODES: tuple[tuple[type[TenutoError], int], ...] = (
    (Invalid, USAGE),
    (NotFound, NOT_FOUND),
    (UnknownJob, NOT_FOUND),
    (Forbidden, NOT_ALLOWED),
    (Conflict, CONFLICT),
    (StoreError, DATABASE),
)


def code_of(error: TenutoError) -> int:
    """The exit code an error ends in."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def of_command(code: int, command_path: str) -> int:
    """The code as a command uses it: `tenuto plan` keeps 2 for what would change."""
    return FAILED if code == USAGE and command_path == "tenuto plan" else code


def in_words(work: Callable[[], int | None], command_path: str) -> int:
    """Do it; what it raises becomes a line on stderr and a code."""
    try:
        return work() or OK
    except TenutoError as error:
        if debugging():
            raise
        message = f"{error.field}: {error.message}" if error.field else error.message
        complain(message, error.remedy or f"{command_path} --help")
        return of_command(code_of(error), command_path)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the answer has enough of it
        let_go_of_stdout()
        return FAILED


@contextmanager
def answering() -> Iterator[None]:
    """While an answer is written: a full disk or a closed stdout is told of in a line. A closed pipe is not."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        let_go_of_stdout()
        raise TenutoError(
            f"the answer cannot be written to stdout: {error.strerror or error}",
            remedy="lead stdout elsewhere, or make room; what the command has changed stays changed",
        ) from error


def let_go_of_stdout() -> None:
    """What is still to be written goes nowhere: the interpreter must not try it once more, and fail, as it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def complain(message: str, remedy: str) -> None:
    """Say on stderr what went wrong and what to do about it."""
    with suppress(OSError):
        print(f"error: {plain(message)}", file=sys.stderr)  # noqa: T201 (this is where the command line speaks)
        print(f"  try: {plain(remedy)}", file=sys.stderr)  # noqa: T201


def debugging() -> bool:
    """Whether a traceback is wanted instead of a line."""
    return os.environ.get("TENUTO_DEBUG", "") not in ("", "0")
