"""Structured logging of services: one line per event on stderr, as text or JSON.

Events go through standard logging under ``tenuto.…``, so a program that embeds Tenuto controls them. An event is a
constant text; its data is in fields.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

_FIELDS_ATTRIBUTE = "tenuto_fields"
_redact: Callable[[str], str] | None = None

_UNSAFE_CHARACTERS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Line breaks, and characters that move the cursor, change colours or reverse text in a terminal."""
_CONTINUATION = "  | "
"""Begins the further lines of an event and the output of jobs, so that no text can pass for an event."""

_MAX_SHOWN_STACKS = 1000
_shown_stacks: set[tuple[str, ...]] = set()

ATTEMPT_ATTRIBUTE = "tenuto_about"
"""Attribute of a log record with the attempt it belongs to: task id, execution id, attempt number."""
_attempt_fields: Callable[[], Mapping[str, str | int]] = dict


def set_attempt_fields(fields_of_attempt: Callable[[], Mapping[str, str | int]]) -> None:
    """Add the fields of the current attempt, if any, to every line from now on."""
    global _attempt_fields
    _attempt_fields = fields_of_attempt


def set_redaction(redact: Callable[[str], str]) -> None:
    """Apply this function, which removes secrets, to all text fields from now on."""
    global _redact
    _redact = redact


class Log:
    """Logger of one component."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    @property
    def is_debug_enabled(self) -> bool:
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **fields: Any) -> None:
        self._report(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._report(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._report(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._report(logging.ERROR, event, fields)

    def critical(self, event: str, **fields: Any) -> None:
        self._report(logging.CRITICAL, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._report(logging.ERROR, event, fields, trace=True)

    def _report(self, level: int, event: str, fields: dict[str, Any], *, trace: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            if _redact is not None:
                fields = {name: _redact(value) if isinstance(value, str) else value for name, value in fields.items()}
            text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
            self._logger.log(
                level, "%s", text, extra={_FIELDS_ATTRIBUTE: (event, fields), "captured": True}, exc_info=trace
            )


def configure(output_format: Literal["console", "json"] = "console", level: str = "info") -> None:
    """Set up logging for a service process."""
    _shown_stacks.clear()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if output_format == "json" else _ConsoleFormatter(sys.stderr.isatty()))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # The pool of the driver logs a traceback whenever it cannot reconnect; services log the lost connection themselves.
    logging.getLogger("asyncpg.pool").setLevel(logging.DEBUG if level == "debug" else logging.ERROR)


def is_new_stack(stack: str) -> bool:
    """Return whether a failed attempt shows its stack trace: in the text log of a service, once for each place in code.

    Further failures at the same place have one line. The JSON log has one line for every failure; stack traces are in
    the record of the attempt, and in the log at debug level.
    """
    if not isinstance(_service_formatter(), _ConsoleFormatter):
        return False
    place = tuple(line for line in stack.splitlines() if line.startswith("  File "))
    if place in _shown_stacks:
        return False
    if len(_shown_stacks) >= _MAX_SHOWN_STACKS:
        _shown_stacks.clear()
    _shown_stacks.add(place)
    return True


def escape_line(text: str) -> str:
    """Return the text on one line, with escapes such as ``\\x1b`` in place of characters that a terminal obeys."""
    return _UNSAFE_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _continue_event(text: str) -> str:
    return "\n".join(_CONTINUATION + escape_line(line) for line in text.split("\n"))


def _record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event and the fields of a log record; a foreign record has the name of its logger as a field."""
    packed = getattr(record, _FIELDS_ATTRIBUTE, None)
    event, fields = (record.getMessage(), {"logger": record.name}) if packed is None else packed
    attempt = getattr(record, ATTEMPT_ATTRIBUTE, None) or _attempt_fields()
    return {"event": event, **fields, **{name: value for name, value in attempt.items() if name not in fields}}


def _format_timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class _JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _record_fields(record)
        line |= {"level": record.levelname.lower(), "timestamp": _format_timestamp(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=repr)


_BOLD, _FAINT, _CYAN, _MAGENTA, _BLUE = "\033[1m", "\033[2m", "\033[36m", "\033[35m", "\033[34m"
_LEVEL_STYLES = {"debug": "\033[32m", "info": "\033[32m", "warning": "\033[33m"}
_ERROR_STYLE = "\033[31m"
_NEEDS_QUOTES = frozenset(" \t=\r\n\"'")


class _ConsoleFormatter(logging.Formatter):
    """Formats a log record as text: time, level, event, logger of a foreign record, fields by name; then the stack.

    The stack shows no local variables: they may contain secrets.
    """

    def __init__(self, has_colors: bool) -> None:
        super().__init__()
        self._has_colors = has_colors

    def format(self, record: logging.LogRecord) -> str:
        fields = _record_fields(record)
        level = record.levelname.lower()
        event, _, more = str(fields.pop("event")).partition("\n")
        stack = str(fields.pop("stack", "")).rstrip()
        parts = [
            self._paint(_format_timestamp(record), _FAINT),
            f"[{self._paint(f'{level:9}', _LEVEL_STYLES.get(level, _ERROR_STYLE) + _BOLD)}]",
            self._paint(f"{escape_line(event):30}", _BOLD),
        ]
        if "logger" in fields:
            parts.append(f"[{self._paint(escape_line(str(fields.pop('logger'))), _BOLD + _BLUE)}]")
        for name, value in sorted(fields.items()):
            needs_quotes = not isinstance(value, str) or not _NEEDS_QUOTES.isdisjoint(value)
            text = escape_line(repr(value) if needs_quotes else value)
            parts.append(f"{self._paint(name, _CYAN)}={self._paint(text, _MAGENTA)}")
        lines = [" ".join(parts).rstrip()]
        if more:
            lines.append(_continue_event(more))
        if stack:
            lines.append(_continue_event(stack))
        if record.exc_info:
            lines.append(_continue_event(self.formatException(record.exc_info)))
        if record.stack_info:
            lines.append(_continue_event(self.formatStack(record.stack_info)))
        return "\n".join(lines)

    def _paint(self, text: str, style: str) -> str:
        return f"{style}{text}\033[0m" if self._has_colors else text


# --- output of jobs ---------------------------------------------------------------------------------------------------


def is_service_process() -> bool:
    """Return whether `configure` has set up the log of this process. In other programs output stays as it is."""
    return _service_formatter() is not None


def format_job_output(line: str, stream: str, attempt: Mapping[str, str | int]) -> str:
    """Return a line that a job printed, as the log of a service shows it."""
    if isinstance(_service_formatter(), _JsonFormatter):
        return json.dumps({"event": "job output", "stream": stream, "text": line, **attempt}, default=repr)
    return f"{_CONTINUATION}{escape_line(line)}"


def _service_formatter() -> logging.Formatter | None:
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((each for each in formatters if isinstance(each, _ConsoleFormatter | _JsonFormatter)), None)
