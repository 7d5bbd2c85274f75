"""How services speak: one line per event on stderr, for people or as JSON. Events are named where they happen."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(form: Literal["console", "json"] = "console", level: str = "info") -> None:
    """Set logging up for a process of ours. A program that embeds Tenuto keeps its own."""
    stderr = sys.stderr
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        processors += [structlog.dev.ConsoleRenderer(colors=stderr.isatty())]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=stderr, level=level.upper(), format="%(asctime)s [%(levelname)s] %(name)s: %(message)s")
