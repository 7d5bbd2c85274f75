"""Capture of output: text that an attempt prints or logs is added to its own log as well.

Streams and log handler find the running attempt by a context variable, so concurrent attempts do not mix. The workers
of a process share one capture; the last one to stop ends it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO
from uuid import UUID

from tenuto import logs
from tenuto.jobs.context import Context, current_context
from tenuto.jobs.redaction import process_redactor, redacting_record_factory

_MAX_UNFINISHED_LINES = 1000


class CaptureHandler(logging.Handler):
    """Adds records of standard logging to the log of the running attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current_context.get()
        if context is not None and not hasattr(record, "captured"):
            try:
                context.log.add_line(record.levelname, self.format(record))
            except Exception:  # noqa: BLE001 — a log call with wrong arguments must not fail the job
                self.handleError(record)


class CaptureStream(io.TextIOBase):
    """Replaces stdout or stderr: passes everything on and adds the output of attempts to their logs."""

    def __init__(self, target: TextIO, level: str) -> None:
        self._target = target
        self._level = level
        self._pending = ""
        self._unfinished_lines: dict[UUID, str] = {}
        """The beginning of a line that an attempt prints, by activity."""
        self._bytes: _CaptureBytes | None = None

    def write(self, text: str) -> int:
        context = current_context.get()
        if context is not None:
            context.log.add_output(self._level, text)
            if logs.is_service_process():
                self._target.write(self._render_lines(context, text))
                return len(text)
        if not process_redactor:
            return self._target.write(text)
        # The end of the text may begin a secret: it waits for the next text or for `write_pending`.
        redacted, self._pending = process_redactor.redact_stream(self._pending + text)
        self._target.write(redacted)
        return len(text)

    def _render_lines(self, context: Context, text: str) -> str:
        """Return the complete lines of an attempt as the log of the service shows them. The rest of the text, and an
        end that may begin a secret, wait for the end of their line."""
        text, may_be_secret = process_redactor.redact_stream(self._unfinished_lines.pop(context.activity_id, "") + text)
        *lines, rest = text.split("\n")
        if rest or may_be_secret:
            self._unfinished_lines[context.activity_id] = rest + may_be_secret
        if len(self._unfinished_lines) > _MAX_UNFINISHED_LINES:  # of attempts that ended within a line
            del self._unfinished_lines[next(iter(self._unfinished_lines))]
        fields = context.task.log_fields
        return "".join(f"{logs.format_job_output(line, self._level, fields)}\n" for line in lines)

    def write_pending(self) -> None:
        """Write the pending text."""
        pending, self._pending = self._pending, ""
        if pending:
            self._target.write(process_redactor.redact_text(pending))
        if self._bytes is not None:
            self._bytes.write_pending()

    def flush(self) -> None:
        self._target.flush()

    def writable(self) -> bool:
        return self._target.writable()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._target.errors

    @property
    def buffer(self) -> BinaryIO:
        """The binary stream, for code that writes bytes."""
        if self._bytes is None:
            self._bytes = _CaptureBytes(self._target.buffer, self._level)
        return self._bytes  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else, such as `reconfigure`."""
        return getattr(self._target, name)


class _CaptureBytes(io.BufferedIOBase):
    """The binary stream of a `CaptureStream`."""

    def __init__(self, target: BinaryIO, level: str) -> None:
        self._target = target
        self._level = level
        self._pending = ""

    def write(self, data: Any) -> int:
        content = memoryview(data).tobytes()
        context = current_context.get()
        if context is not None:
            context.log.add_output(self._level, content.decode("utf-8", "replace"))
        if not process_redactor:
            self._target.write(content)
        else:  # every byte is a Latin-1 character, and redaction finds values in that form too
            redacted, self._pending = process_redactor.redact_stream(self._pending + content.decode("latin-1"))
            self._target.write(redacted.encode("latin-1"))
        return len(content)

    def write_pending(self) -> None:
        """Write the pending text."""
        pending, self._pending = self._pending, ""
        if pending:
            self._target.write(process_redactor.redact_text(pending).encode("latin-1"))

    def flush(self) -> None:
        self._target.flush()

    def writable(self) -> bool:
        return self._target.writable()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class OutputCapture:
    """The capture of this process, from the first `start` to the last `stop`."""

    _lock = threading.Lock()
    user_count = 0
    """Number of starts without a stop."""
    _original_streams: tuple[TextIO, TextIO] | None = None
    _handler: CaptureHandler | None = None
    _original_record_factory: Callable[..., logging.LogRecord] | None = None
    _record_factory: Callable[..., logging.LogRecord] | None = None

    @classmethod
    def start(cls) -> None:
        with cls._lock:
            cls.user_count += 1
            if cls.user_count > 1:
                return
            cls._handler = CaptureHandler(logging.DEBUG)
            cls._handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logging.getLogger().addHandler(cls._handler)
            cls._original_record_factory = logging.getLogRecordFactory()
            cls._record_factory = redacting_record_factory(cls._original_record_factory)
            logging.setLogRecordFactory(cls._record_factory)
            cls._original_streams = (sys.stdout, sys.stderr)
            sys.stdout = CaptureStream(sys.stdout, "print")
            sys.stderr = CaptureStream(sys.stderr, "stderr")

    @classmethod
    def stop(cls) -> None:
        with cls._lock:
            cls.user_count -= 1
            if cls.user_count or cls._handler is None or cls._original_streams is None:
                return
            logging.getLogger().removeHandler(cls._handler)
            # A factory that other code has installed meanwhile stays, and wraps ours.
            if logging.getLogRecordFactory() is cls._record_factory and cls._original_record_factory is not None:
                logging.setLogRecordFactory(cls._original_record_factory)
            # A stream that other code has installed meanwhile stays as well.
            if isinstance(sys.stdout, CaptureStream):
                sys.stdout.write_pending()
                sys.stdout = cls._original_streams[0]
            if isinstance(sys.stderr, CaptureStream):
                sys.stderr.write_pending()
                sys.stderr = cls._original_streams[1]


@contextlib.contextmanager
def capture_output() -> Iterator[None]:
    """Capture the output of attempts until the block ends, however it ends."""
    OutputCapture.start()
    try:
        yield
    finally:
        OutputCapture.stop()
