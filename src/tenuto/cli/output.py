"""Output of the commands without a terminal's features: JSON, CSV, plain text, messages, write errors.

Control characters in data are removed or escaped. Tables are in `tables`, which needs rich; help, health checks and
JSON output do without it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tenuto.errors import TenutoError
from tenuto.presentation.columns import ResourceView, csv_line, json_value
from tenuto.presentation.text_formats import escape_control_characters, safe_text


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print one JSON document: instants in ISO 8601, ids as text, durations in seconds."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=json_value)
    write(escape_control_characters(text) + "\n")


def csv_writer(view: ResourceView, *, raw: bool = False) -> Callable[[Any], None]:
    """Print the header of a CSV document, and return a function that prints a record."""
    write(csv_line(view.csv_header()))
    return lambda record: write(csv_line(view.csv_row(record, raw=raw)))


def print_text(text: str) -> None:
    """Print untrusted text without control characters."""
    write(safe_text(text).rstrip("\n") + "\n")


def print_message(text: str) -> None:
    with suppress(OSError):  # a closed stderr or a full disk must not stop the command
        sys.stderr.write(safe_text(text) + "\n")


@contextmanager
def reporting_write_errors() -> Iterator[None]:
    """Turn a failed write to stdout (full disk, closed stream) into an error with a remedy; a closed pipe is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise TenutoError(
            f"the output cannot be written to stdout: {error.strerror or error}",
            code="cli.stdout.not_writable",
            remedy="redirect stdout or free disk space; changes that the command made remain in effect",
        ) from error


def discard_stdout() -> None:
    """Send buffered output to the null device, so that the interpreter does not fail on it at exit."""
    with suppress(OSError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)


def write(text: str) -> None:
    with reporting_write_errors():
        sys.stdout.write(text)
        sys.stdout.flush()  # a pipe may have a reader that waits for lines


class ProgressLine:
    """A line on stderr that is replaced by the next one; only on a terminal, and erased before results are printed."""

    def __init__(self, *, quiet: bool) -> None:
        self.is_enabled = not quiet and sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.is_enabled:
            width = shutil.get_terminal_size().columns - 1  # a longer line would wrap, and its beginning remain
            sys.stderr.write(f"\r\x1b[K{safe_text(text)[:width]}")
            sys.stderr.flush()

    def clear(self) -> None:
        self.show("")
