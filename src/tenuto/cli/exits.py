"""How a command ends: the one table of exit codes, and how an error becomes a line and a code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tenuto.cli.words import plain
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


def complain(message: str, remedy: str) -> None:
    """Say on stderr what went wrong and what to do about it."""
    with suppress(BrokenPipeError):
        print(f"error: {plain(message)}", file=sys.stderr)  # noqa: T201 (this is where the command line speaks)
        print(f"  try: {plain(remedy)}", file=sys.stderr)  # noqa: T201


def debugging() -> bool:
    """Whether a traceback is wanted instead of a line."""
    return os.environ.get("TENUTO_DEBUG", "") not in ("", "0")
