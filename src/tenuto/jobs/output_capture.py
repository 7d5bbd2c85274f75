"""Listening to attempts: what they print and what they log the ordinary way goes into their own log as well.

The streams and the log handler know whose words they hear by a context variable, so attempts that run side by side do
not mix. Several workers in one process share the listening; the last one to stop ends it.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TextIO

from tenuto.jobs.context import current
from tenuto.jobs.redaction import hide_in_records, shown_here


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
        self._held = ""
        self._bytes: _CapturingBytes | None = None

    def write(self, text: str) -> int:
        context = current.get()
        if context is not None:
            context.log.printed(self._level, text)
        if not shown_here:
            return self._beneath.write(text)
        # The end of it may be the beginning of a secret: it waits for what comes next, or for `let_go`.
        shown, self._held = shown_here.stream(self._held + text)
        self._beneath.write(shown)
        return len(text)

    def let_go(self) -> None:
        """Pass on what waits."""
        held, self._held = self._held, ""
        if held:
            self._beneath.write(shown_here.text(held))
        if self._bytes is not None:
            self._bytes.let_go()

    def flush(self) -> None:
        self._beneath.flush()

    def writable(self) -> bool:
        return self._beneath.writable()

    def isatty(self) -> bool:
        return self._beneath.isatty()

    def fileno(self) -> int:
        return self._beneath.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._beneath.errors

    @property
    def buffer(self) -> BinaryIO:
        """For code that writes bytes."""
        if self._bytes is None:
            self._bytes = _CapturingBytes(self._beneath.buffer, self._level)
        return self._bytes  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        """Whatever else the stream beneath can do, such as `reconfigure`."""
        return getattr(self._beneath, name)


class _CapturingBytes(io.BufferedIOBase):
    """The bytes of such a stream."""

    def __init__(self, beneath: BinaryIO, level: str) -> None:
        self._beneath = beneath
        self._level = level
        self._held = ""

    def write(self, data: Any) -> int:
        given = memoryview(data).tobytes()
        context = current.get()
        if context is not None:
            context.log.printed(self._level, given.decode("utf-8", "replace"))
        if not shown_here:
            self._beneath.write(given)
        else:  # as Latin-1 any bytes are text and come out again as they were; values are sought in that form too
            shown, self._held = shown_here.stream(self._held + given.decode("latin-1"))
            self._beneath.write(shown.encode("latin-1"))
        return len(given)

    def let_go(self) -> None:
        """Pass on what waits."""
        held, self._held = self._held, ""
        if held:
            self._beneath.write(shown_here.text(held).encode("latin-1"))

    def flush(self) -> None:
        self._beneath.flush()

    def writable(self) -> bool:
        return self._beneath.writable()

    def isatty(self) -> bool:
        return self._beneath.isatty()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class Capture:
    """Listening, from `start` to `stop`."""

    _lock = threading.Lock()
    _users = 0
    _before: tuple[TextIO, TextIO] | None = None
    _handler: CapturingHandler | None = None
    _records_before: Callable[..., logging.LogRecord] | None = None
    _hiding: Callable[..., logging.LogRecord] | None = None

    @classmethod
    def start(cls) -> None:
        with cls._lock:
            cls._users += 1
            if cls._users > 1:
                return
            cls._handler = CapturingHandler(logging.DEBUG)
            cls._handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logging.getLogger().addHandler(cls._handler)
            cls._records_before = logging.getLogRecordFactory()
            cls._hiding = hide_in_records(cls._records_before)
            logging.setLogRecordFactory(cls._hiding)
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
            # What somebody else has put on top of ours meanwhile stays, and ours beneath it.
            if logging.getLogRecordFactory() is cls._hiding and cls._records_before is not None:
                logging.setLogRecordFactory(cls._records_before)
            # A stream of theirs is left alone, too.
            if isinstance(sys.stdout, CapturingStream):
                sys.stdout.let_go()
                sys.stdout = cls._before[0]
            if isinstance(sys.stderr, CapturingStream):
                sys.stderr.let_go()
                sys.stderr = cls._before[1]
