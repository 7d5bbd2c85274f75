"""What an attempt says, kept with its record: its log, what it prints, what it logs the ordinary way.

Kept within a cap: the beginning and the end stay, the middle is cut and counted. The streams and the log handler know
whose words they hear by a context variable, so attempts that run side by side do not mix.
"""

from __future__ import annotations

import io
import logging
import sys
from collections import deque
from contextvars import ContextVar
from typing import TextIO

from tenuto.clock import SystemClock
from tenuto.model import payloads
from tenuto.model.tasks import Task

CAP = 256 * 1024
_LINE_CAP = 8 * 1024

speaking: ContextVar[AttemptLog | None] = ContextVar("tenuto_attempt_log", default=None)
"""The log of the attempt whose code is running, if any."""

_clock = SystemClock()
_EMPTY: deque[str] = deque(maxlen=0)
_logger = logging.getLogger("tenuto.job")


class AttemptLog:
    """The log of one attempt: `debug`, `info`, `warning`, `error`, and whatever it prints."""

    __slots__ = ("_cut", "_head", "_partial", "_size", "_tail", "_task")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._head: list[str] | None = None
        self._tail: deque[str] = _EMPTY
        self._size = 0
        self._cut = 0
        self._partial = ""

    def debug(self, message: str, *values: object) -> None:
        self._say(logging.DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        self._say(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._say(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        self._say(logging.ERROR, message, values)

    def _say(self, level: int, message: str, values: tuple[object, ...]) -> None:
        text = message % values if values else message
        self.line(logging.getLevelName(level), text)
        _logger.log(level, text, extra={"task": str(self._task.id), "job": self._task.name, "captured": True})

    def line(self, level: str, text: str) -> None:
        """Add a line, with the time and where it came from."""
        clean = payloads.kept_text(text.rstrip("\n"), _LINE_CAP)
        line = f"{_clock.now():%H:%M:%S.%f} {level.lower():7} {clean}\n"
        if self._head is None:
            self._head, self._tail = [], deque()
        self._size += len(line)
        if not self._tail and self._size <= CAP // 2:
            self._head.append(line)
            return
        self._tail.append(line)
        while self._size > CAP:
            self._size -= len(self._tail.popleft())
            self._cut += 1

    def printed(self, level: str, text: str) -> None:
        """Add what was printed, line by line; a line that is not ended yet waits for its end."""
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            if line.strip():
                self.line(level, line)
        if len(self._partial) > _LINE_CAP:
            self.line(level, self._partial)
            self._partial = ""

    def text(self) -> str | None:
        """All that was kept, or None if nothing was said."""
        if self._partial:
            self.printed("print", "\n")
        if self._head is None:
            return None
        cut = f"… {self._cut} lines cut …\n" if self._cut else ""
        return "".join(self._head) + cut + "".join(self._tail)


class CapturingHandler(logging.Handler):
    """Hears the standard logging of code that runs inside an attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        log = speaking.get()
        if log is not None and not hasattr(record, "captured"):
            log.line(record.levelname, self.format(record))


class CapturingStream(io.TextIOBase):
    """Stands in for stdout or stderr: passes everything on, and keeps what an attempt printed."""

    def __init__(self, beneath: TextIO, level: str) -> None:
        self._beneath = beneath
        self._level = level

    def write(self, text: str) -> int:
        log = speaking.get()
        if log is not None:
            log.printed(self._level, text)
        return self._beneath.write(text)

    def flush(self) -> None:
        self._beneath.flush()

    def isatty(self) -> bool:
        return self._beneath.isatty()

    def fileno(self) -> int:
        return self._beneath.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._beneath.encoding


class Capture:
    """Listening, from `start` to `stop`."""

    def __init__(self) -> None:
        self._handler = CapturingHandler(logging.DEBUG)
        self._handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self._streams: tuple[TextIO, TextIO] | None = None

    def start(self) -> None:
        logging.getLogger().addHandler(self._handler)
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout = CapturingStream(sys.stdout, "print")
        sys.stderr = CapturingStream(sys.stderr, "stderr")

    def stop(self) -> None:
        logging.getLogger().removeHandler(self._handler)
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            self._streams = None
