"""Listening to attempts: what they print and what they log the ordinary way goes into their own log as well.

The streams and the log handler know whose words they hear by a context variable, so attempts that run side by side do
not mix. Several workers in one process share the listening; the last one to stop ends it.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import TextIO

from tenuto.handlers.context import current


class CapturingHandler(logging.Handler):
    """Hears the standard logging of code that runs inside an attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        if context is not None and not hasattr(record, "captured"):
            try:
                context.log.line(record.levelname, self.format(record))
            except Exception:  # noqa: BLE001 — as every handler: a log call with wrong arguments must not fail the job
                self.handleError(record)


class CapturingStream(io.TextIOBase):
    """Stands in for stdout or stderr: passes everything on, and keeps what an attempt printed."""

    def __init__(self, beneath: TextIO, level: str) -> None:
        self._beneath = beneath
        self._level = level

    def write(self, text: str) -> int:
        context = current.get()
        if context is not None:
            context.log.printed(self._level, text)
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

    _lock = threading.Lock()
    _users = 0
    _before: tuple[TextIO, TextIO] | None = None
    _handler: CapturingHandler | None = None

    @classmethod
    def start(cls) -> None:
        with cls._lock:
            cls._users += 1
            if cls._users > 1:
                return
            cls._handler = CapturingHandler(logging.DEBUG)
            cls._handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logging.getLogger().addHandler(cls._handler)
            cls._before = (sys.stdout, sys.stderr)
            sys.stdout = CapturingStream(sys.stdout, "print")
            sys.stderr = CapturingStream(sys.stderr, "stderr")

    @classmethod
    def stop(cls) -> None:
        with cls._lock:
            cls._users -= 1
            if cls._users or cls._handler is None or cls._before is None:
                return
            logging.getLogger().removeHandler(cls._handler)
            # Somebody else may have put their own stream on top of ours meanwhile; theirs is left alone.
            if isinstance(sys.stdout, CapturingStream):
                sys.stdout = cls._before[0]
            if isinstance(sys.stderr, CapturingStream):
                sys.stderr = cls._before[1]
