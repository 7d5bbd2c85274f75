"""Exit codes of the command line, and the report of an error on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from tenuto.cli.output import discard_stdout
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, StoreError, TenutoError, UnknownJob
from tenuto.presentation.text_formats import escape_control_characters, safe_text

OK = 0
FAILED = 1
USAGE = 2
WOULD_CHANGE = 2
"""Only `tenuto plan`, like other tools with a plan step; its usage errors end with FAILED."""
NOT_FOUND = 3
NOT_ALLOWED = 4
WARNINGS = 5
"""Only `tenuto doctor`: there are warnings, and no problem."""
UNVERIFIED = 6
"""Only `tenuto audit verify`: entries could not be checked, and there is no sign of tampering."""
CONFLICT = 7
DATABASE = 8
INTERRUPTED = 130

MEANINGS = {
    OK: "success, or healthy",
    FAILED: "failure, or unhealthy",
    USAGE: "usage error or invalid value (`plan`: there are changes)",
    NOT_FOUND: "the object does not exist",
    NOT_ALLOWED: "permission denied",
    WARNINGS: "warnings, but no problem (`doctor`)",
    UNVERIFIED: "entries could not be checked: a key is missing, or they are not sealed yet (`audit verify`)",
    CONFLICT: "the current state does not allow the operation",
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


def exit_code_of(error: TenutoError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def adjust_for_command(code: int, command_path: str) -> int:
    """Return FAILED instead of USAGE for `tenuto plan`, where 2 means that there are changes."""
    return FAILED if code == USAGE and command_path == "tenuto plan" else code


def run_reporting_errors(work: Callable[[], int | None], command_path: str, *, as_json: bool = False) -> int:
    """Run a command; report its error on stderr and return the exit code."""
    try:
        return work() or OK
    except TenutoError as error:
        if is_debug_enabled():
            raise
        remedy = error.remedy or f"{command_path} --help"
        print_error(error.message, remedy, code=error.code, field=error.field, as_json=as_json)
        return adjust_for_command(exit_code_of(error), command_path)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe has closed it
        discard_stdout()
        return FAILED


def print_error(
    message: str, remedy: str, *, code: str = "unspecified", field: str | None = None, as_json: bool = False
) -> None:
    """Print an error and its remedy on stderr, for programs as one JSON object."""
    if as_json:
        fields = {"code": code, "message": message, "field": field, "remedy": remedy}
        text = escape_control_characters(json.dumps({"error": fields}, ensure_ascii=False))
    else:
        text = f"error: {safe_text(message)}\n  try: {safe_text(remedy)}"
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201 (the command line reports errors here)


def is_debug_enabled() -> bool:
    """Return whether TENUTO_DEBUG asks for a traceback instead of an error message."""
    return os.environ.get("TENUTO_DEBUG", "") not in ("", "0")
