"""Prints ended attempts on the terminal of a developer: a line with the result, and the traceback of a failure."""

from __future__ import annotations

import json
import linecache
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from tenuto.model.work.tasks import Outcome, OutcomeReason, Settlement
from tenuto.presentation.state_symbols import state_colour, state_symbol
from tenuto.presentation.text_formats import compact_json, error_summary, format_duration, one_line, safe_text
from tenuto.worker import attempt_log_writer

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(, in (?P<function>.+))?$')
_PACKAGE = Path(__file__).parents[1]
_CONTEXT_LINES = 2
_MAX_FRAMES = 30
_AT_ONCE = timedelta(milliseconds=10)
_COLOURS = "ansi_dark"
_ATTEMPT_FAILED = "attempt failed"
"""Event of the service log that says the same as the printed attempt."""


class AttemptPrinter(logging.Handler):
    """Receives the ended attempts of this process and prints them on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(logging.INFO)
        self._console = console or Console(file=sys.stderr, soft_wrap=False, highlight=False)

    def emit(self, record: logging.LogRecord) -> None:
        settlement = getattr(record, attempt_log_writer.SETTLEMENT_ATTRIBUTE, None)
        if settlement is not None:
            try:
                self._console.print(render_attempt(settlement, self._console.width))
            except Exception:  # noqa: BLE001 — what cannot be printed must not stop the worker
                self.handleError(record)


def print_attempts() -> None:
    """Print the attempts that end in this process from now on, and leave out the log lines that say the same."""
    attempt_log_writer.logger.addHandler(AttemptPrinter())
    attempt_log_writer.logger.setLevel(logging.INFO)
    logging.getLogger("tenuto.completer").addFilter(_is_not_a_failed_attempt)


def _is_not_a_failed_attempt(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ATTEMPT_FAILED)


def render_attempt(settlement: Settlement, width: int) -> RenderableType:
    """Return the line of an attempt, cut at the width of the terminal, with the traceback of a failure."""
    task, outcome, retry = settlement.task, settlement.outcome, settlement.retry
    state = str(outcome.status)
    line = Text(f"{state_symbol(state)} ", style=state_colour(state))
    line.append(safe_text(task.name), style="bold")
    line.append(_details(settlement), style="dim")
    if retry is not None and outcome.ended_at is not None:
        delay = max(retry.run_at - outcome.ended_at, timedelta())
        line.append(f"  next attempt in {format_duration(delay)}" if delay >= _AT_ONCE else "  back in the queue")
    error = json.loads(outcome.error) if outcome.error else None
    # The input of a refused attempt does not fit; the stack would only show how Tenuto found out.
    stack = None if error is None or outcome.reason is OutcomeReason.REFUSED else error.get("stack")
    if outcome.output is not None:
        line.append(f"  → {one_line(compact_json(json.loads(outcome.output)), 2000)}")
    elif error is not None and not stack:
        line.append(f"  {one_line(error_summary(error) or '', 2000)}", style=state_colour(state))
    line.truncate(max(width, 20), overflow="ellipsis")
    return Group(line, *render_traceback(stack)) if stack else line


def _details(settlement: Settlement) -> str:
    task = settlement.task
    parts = [f" {_run_time(settlement.outcome)}"]
    if task.attempt > 1 or settlement.outcome.error:
        parts.append(f"attempt {task.attempt} of {task.policy.retry.max_attempts}")
    parts.append(str(task.id)[:13])
    return "  ".join(parts)


def _run_time(outcome: Outcome) -> str:
    if outcome.started_at is None or outcome.ended_at is None:
        return "not started"
    return format_duration(outcome.ended_at - outcome.started_at)


def print_exception(error: BaseException) -> None:
    """Print the traceback of an exception, without the frames of the import system and of Tenuto."""
    stack = "".join(traceback.format_exception(error))
    console = Console(file=sys.stderr, highlight=False)
    console.print(Group(*render_traceback(_without_import_frames(stack))))


def _without_import_frames(stack: str) -> str:
    kept: list[str] = []
    is_left_out = False
    for line in stack.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            file = Path(frame["file"])
            is_left_out = "importlib" in file.parts or file.name.startswith("<") or file.name == "app_import.py"
        elif not line.startswith("    "):
            is_left_out = False
        if not is_left_out:
            kept.append(line)
    return "\n".join(kept)


def render_error(error: Mapping[str, Any]) -> RenderableType:
    """Return the traceback of a recorded error, or its summary."""
    stack = error.get("stack")
    return Group(*render_traceback(stack)) if stack else Text(safe_text(error_summary(error) or ""), style="red")


def render_traceback(stack: str) -> Iterator[RenderableType]:
    """Yield the parts of a recorded traceback: code of the program with the lines around, code of libraries dimmed."""
    lines = stack.rstrip("\n").split("\n")
    lines = _without_first_own_frames(lines)
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    cut = set(frames[_MAX_FRAMES // 2 : len(frames) - _MAX_FRAMES // 2]) if len(frames) > _MAX_FRAMES else set()
    if cut:
        yield Text(f"    ({len(cut)} frames in the middle are left out)", style="dim")
    number = 0
    while number < len(lines):
        frame = _FRAME.match(lines[number])
        if frame is None:
            if not lines[number].startswith("Traceback "):
                yield Text(f"  {safe_text(lines[number])}", style="red")
            number += 1
            continue
        code = lines[number + 1] if number + 1 < len(lines) and lines[number + 1].startswith("    ") else ""
        if number not in cut:
            yield from _render_frame(Path(frame["file"]), int(frame["line"]), frame["function"] or "", code)
        number += 1
        while number < len(lines) and lines[number].startswith("    "):
            number += 1


def _without_first_own_frames(lines: Sequence[str]) -> list[str]:
    """Leave out the frames of Tenuto before the first one of other code."""
    frames = [(number, frame) for number, line in enumerate(lines) if (frame := _FRAME.match(line))]
    others = [number for number, frame in frames if not Path(frame["file"]).is_relative_to(_PACKAGE)]
    return [*lines[: frames[0][0]], *lines[others[0] :]] if others else list(lines)


def _render_frame(file: Path, line: int, function: str, code: str) -> Iterator[RenderableType]:
    own = _is_own_code(file)
    place = Text("  ", style="" if own else "dim")
    place.append(f"{safe_text(_short_path(file))}:{line}", style="cyan" if own else "")
    place.append(f" in {safe_text(function)}" if function else "")
    yield place
    if not own:
        yield Text(f"    {safe_text(code.strip())}", style="dim")
        return
    linecache.checkcache(str(file))
    source = linecache.getlines(str(file))
    if line <= len(source) and source[line - 1].strip() == code.strip():
        first = max(1, line - _CONTEXT_LINES)
        shown = "".join(safe_text(each) for each in source[first - 1 : line + _CONTEXT_LINES])
    else:  # the file has changed since
        first, shown = line, safe_text(code.strip())
    syntax = Syntax(
        shown, "python", theme=_COLOURS, line_numbers=True, start_line=first, highlight_lines={line}, dedent=False
    )
    yield Padding(syntax, (0, 0, 0, 2))


def _is_own_code(file: Path) -> bool:
    return file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts


def _short_path(file: Path) -> str:
    parts = file.parts
    if "site-packages" in parts:
        return str(Path(*parts[parts.index("site-packages") + 1 :]))
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
