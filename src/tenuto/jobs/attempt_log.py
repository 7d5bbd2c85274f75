"""The log of one attempt, limited in size: the beginning and the end are kept, the middle is dropped and counted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from tenuto.clock import SystemClock
from tenuto.jobs.redaction import Redactor
from tenuto.logs import ATTEMPT_ATTRIBUTE
from tenuto.model import validation
from tenuto.model.work.tasks import Task

MAX_LOG_CHARACTERS = 256 * 1024
_MAX_LINE_CHARACTERS = 8 * 1024
_MAX_LIVE_LINES = 10_000
_EMPTY: deque[str] = deque(maxlen=0)
_NO_LINES: dict[int, str] = {}

_clock = SystemClock()
_logger = logging.getLogger("tenuto.job")


class AttemptLog:
    """The log of one attempt: calls of `debug`, `info`, `warning`, `error`, and captured output."""

    __slots__ = (
        "_cut_characters", "_cut_count", "_head", "_live", "_partial_line", "_sent_at_start", "_size", "_tail", "_task",
        "redactor",
    )  # fmt: skip

    def __init__(self, task: Task) -> None:
        self._task = task
        self._head: list[str] | None = None
        self._tail: deque[str] = _EMPTY
        self._size = 0
        self._cut_count = self._cut_characters = 0
        self._live: deque[str] | None = None
        """New lines for the watchdog, which sends them to clients that watch the log."""
        self._sent_at_start = _NO_LINES
        """The lines that `start_live` returned, by identity."""
        self._partial_line = ""
        self.redactor: Redactor | None = None
        """Redacts secret values in every line, if the attempt has any."""

    def debug(self, message: str, *values: object) -> None:
        self._write(logging.DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        self._write(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._write(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        self._write(logging.ERROR, message, values)

    def _write(self, level: int, message: str, values: tuple[object, ...]) -> None:
        try:
            text = str(message % values if values else message)
        except Exception:  # noqa: BLE001 — a wrong format string must not fail the job
            text = f"{to_text(message)} ({', '.join(to_text(value, repr) for value in values)})"
        text = self._redact(text)
        self.add_line(logging.getLevelName(level), text)
        if _logger.isEnabledFor(level):
            line = validation.truncate_text(text, _MAX_LINE_CHARACTERS)
            _logger.log(level, "%s", line, extra={ATTEMPT_ATTRIBUTE: self._task.log_fields, "captured": True})

    def add_line(self, level: str, text: str) -> None:
        """Add a line with the current time and its level or source."""
        clean = validation.truncate_text(self._redact(text).rstrip("\n"), _MAX_LINE_CHARACTERS)
        line = f"{_clock.now():%H:%M:%S.%f} {level.lower():7} {clean}\n"
        if self._head is None:
            self._head, self._tail = [], deque()
        self._size += len(line)
        if not self._tail and self._size <= MAX_LOG_CHARACTERS // 2:
            self._head.append(line)
        else:
            self._tail.append(line)
            self._drop_excess_lines()
        if self._live is not None:
            self._live.append(line)

    def _drop_excess_lines(self) -> None:
        """Drop the oldest lines of the tail. The newest line is always kept."""
        while self._size > MAX_LOG_CHARACTERS and len(self._tail) > 1:
            cut = len(self._tail.popleft())
            self._size -= cut
            self._cut_characters += cut
            self._cut_count += 1

    def add_output(self, level: str, text: str) -> None:
        """Add printed text line by line; an incomplete last line waits for its end."""
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            if line.strip():
                self.add_line(level, line)
        if len(self._partial_line) > _MAX_LINE_CHARACTERS:
            line, self._partial_line = (
                (self._partial_line, "") if self.redactor is None else self.redactor.redact_stream(self._partial_line)
            )
            self.add_line(level, line)

    def _redact(self, text: str) -> str:
        return text if self.redactor is None else self.redactor.redact_text(text)

    def prepend(self, earlier: str) -> None:
        """Add the log that the same attempt had before it was deferred, as far as it fits in front."""
        if self._head is None:
            self._head, self._tail = [], deque()
        free = MAX_LOG_CHARACTERS // 2 - sum(map(len, self._head))
        text = validation.truncate_text(earlier, max(free, _MAX_LINE_CHARACTERS))
        self._head.insert(0, text)
        self._size += len(text)
        self._drop_excess_lines()

    def start_live(self) -> tuple[int, list[str]]:
        """Collect new lines for `take_live_lines` from now on. Return the lines of the end of the log, and the number
        of characters before them. The watchdog calls it on its own thread.

        There is no lock: an interruption of the code could leave it locked. A line that is added meanwhile may be both
        among the returned lines and the new ones, at once or when its thread continues. It is the same object, and is
        therefore removed from one of them.
        """
        self._live = live = deque[str](maxlen=_MAX_LIVE_LINES)
        lines = [*self._tail] if self._cut_count else [*(self._head or ()), *self._tail]
        before = sum(map(len, self._head or ())) + self._cut_characters if self._cut_count else 0
        new = {id(line) for line in [*live]}
        lines = [line for line in lines if id(line) not in new]
        self._sent_at_start = {id(line): line for line in lines}
        return before, lines

    def take_live_lines(self) -> list[str]:
        """Return the lines that were added since the previous call."""
        lines: list[str] = []
        while self._live:
            line = self._live.popleft()
            if self._sent_at_start.pop(id(line), None) is None:
                lines.append(line)
        return lines

    def stop_live(self) -> None:
        self._live = None
        self._sent_at_start = _NO_LINES

    def text(self) -> str | None:
        """Return the whole log, or None if it is empty."""
        if self._partial_line:
            self.add_output("print", "\n")
        if self._head is None:
            return None
        cut = f"… {self._cut_count} lines cut …\n" if self._cut_count else ""
        return "".join(self._head) + cut + "".join(self._tail)


def to_text(value: object, convert: Callable[[object], str] = str) -> str:
    """Convert a value to text, even if its own conversion fails."""
    try:
        return convert(value)
    except Exception:  # noqa: BLE001 — user code converts the value, and a log call must not fail a job
        return f"<{type(value).__name__} that cannot be shown>"
