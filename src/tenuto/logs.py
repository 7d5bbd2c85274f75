"""How services speak: one line per event, on stderr, for people or as JSON. Events are named where they happen.

Everything goes through standard logging, under ``tenuto.…``: a program that embeds Tenuto decides what becomes of it.
The data of an event stands in fields, not in its name.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog

_FIELDS = "tenuto_fields"
_hide: Callable[[str], str] | None = None


ABOUT = "tenuto_about"
"""Under this name a record carries of which attempt it speaks: the ids of task and execution, and which try it is."""
_about: Callable[[], Mapping[str, str | int]] = dict


def tell_about(attempt: Callable[[], Mapping[str, str | int]]) -> None:
    """From now on let every line say of which attempt it comes, if it comes of one."""
    global _about
    _about = attempt


def hide_with(hide: Callable[[str], str]) -> None:
    """From now on let what is reported go through this first: it takes secrets out."""
    global _hide
    _hide = hide


class Log:
    """Where one room reports its events."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    @property
    def tells_all(self) -> bool:
        """Whether anybody wants to hear of what happens to each single task."""
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
        """An error, with the exception that is being handled."""
        self._report(logging.ERROR, event, fields, trace=True)

    def _report(self, level: int, event: str, fields: dict[str, Any], *, trace: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            if _hide is not None:
                fields = {name: _hide(value) if isinstance(value, str) else value for name, value in fields.items()}
            text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
            self._logger.log(level, "%s", text, extra={_FIELDS: (event, fields), "captured": True}, exc_info=trace)


def configure(form: Literal["console", "json"] = "console", level: str = "info") -> None:
    """Set logging up for a process of ours."""
    shared: list[structlog.typing.Processor] = [
        _unpack,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain traces: the pretty ones show every local value, secrets included, and stop the loop for seconds.
        plain = structlog.dev.plain_traceback
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def _unpack(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An event of ours in its parts; a record of somebody else's keeps the name of its logger."""
    record: logging.LogRecord = event["_record"]
    packed = getattr(record, _FIELDS, None)
    if packed is None:
        event["logger"] = record.name
    else:
        event["event"], fields = packed
        event.update(fields)
    for name, value in (getattr(record, ABOUT, None) or _about()).items():
        event.setdefault(name, value)
    return event
