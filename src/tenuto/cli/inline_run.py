"""``tenuto run --inline``: run the code of a job in this process, and print its log, its result or its traceback."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console

from tenuto.cli import exit_codes
from tenuto.cli.attempt_printer import render_error
from tenuto.cli.command import Session
from tenuto.cli.output import print_json, print_text
from tenuto.clock import monotonic_seconds
from tenuto.jobs.context import Context, Stopped, TaskDeferred
from tenuto.jobs.direct_call import call_with_input
from tenuto.jobs.outcomes import error_to_json
from tenuto.jobs.registry import Job
from tenuto.presentation.state_symbols import state_label
from tenuto.presentation.text_formats import compact_json, error_summary, format_duration


async def run_inline(session: Session, job: Job[..., Any], text: str) -> int:
    """Run a job with JSON input; return the exit code."""
    contexts: list[Context] = []
    started_at = monotonic_seconds()
    error: dict[str, Any] | None = None
    output: Any = None
    with _printed_log(session):
        try:
            value = call_with_input(job, text, contexts.append)
            output = to_jsonable_python(await value if inspect.isawaitable(value) else value)
        except (Exception, Stopped, TaskDeferred) as problem:  # every error of the code is the result
            if not contexts:  # the input is invalid: an error of the caller
                raise
            error = json.loads(error_to_json(problem, job.name, contexts[0].redact_text))
    (context,) = contexts
    state = "completed_with_error" if context.errors else "completed_with_warning" if context.warnings else "completed"
    state = "failed" if error is not None else state
    seconds = monotonic_seconds() - started_at
    if session.as_json:
        print_json({"state": state, "output": output, "error": error, "log": context.log_text, "run_seconds": seconds})
    elif output is not None:
        print_text(compact_json(output) or "")
    if error is not None and not session.as_json:
        Console(file=sys.stderr, highlight=False).print(render_error(error))
    session.print_message(f"{state_label(state)} after {format_duration(seconds)}")
    if error is not None:
        session.print_message(f"  {error_summary(error)}")
    return exit_codes.OK if state in ("completed", "completed_with_warning") else exit_codes.FAILED


@contextmanager
def _printed_log(session: Session) -> Iterator[None]:
    """Print what the job logs by its context on stderr."""

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            session.print_message(f"{record.levelname.lower():7} {record.getMessage()}")

    logger = logging.getLogger("tenuto.job")
    printer, level, propagate = Printer(), logger.level, logger.propagate
    logger.addHandler(printer)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(level)
        logger.propagate = propagate
