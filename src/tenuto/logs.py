"""Structured logging of services: one line per event on stderr, as text or JSON.

Events go through standard logging under ``tenuto.…``, so a program that embeds Tenuto controls them. An event is a
constant text; its data is in fields.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog

_FIELDS_ATTRIBUTE = "tenuto_fields"
_redact: Callable[[str], str] | None = None

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
    shared: list[structlog.typing.Processor] = [
        _unpack,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if output_format == "json":
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The pretty tracebacks show all local variables including secrets, and block the event loop for seconds.
        plain = structlog.dev.plain_traceback
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def _unpack(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Split an event of Tenuto into event and fields; a foreign record keeps the name of its logger."""
    record: logging.LogRecord = event["_record"]
    packed = getattr(record, _FIELDS_ATTRIBUTE, None)
    if packed is None:
        event["logger"] = record.name
    else:
        event["event"], fields = packed
        event.update(fields)
    for name, value in (getattr(record, ATTEMPT_ATTRIBUTE, None) or _attempt_fields()).items():
        event.setdefault(name, value)
    return event
