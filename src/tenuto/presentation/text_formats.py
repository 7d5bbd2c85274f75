"""Formatting of values for people: text without control characters, durations, instants."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tenuto.model.validation import INVISIBLE_CHARACTERS

# Complete sequences are removed, so that no part remains visible: colours, cursor (CSI), titles, links (OSC).
_ESCAPE_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"
)


def safe_text(text: object) -> str:
    """Remove terminal escape sequences and control characters from untrusted text."""
    return INVISIBLE_CHARACTERS.sub("", _ESCAPE_SEQUENCE.sub("", str(text).replace("\r\n", "\n")))


def one_line(text: object, limit: int = 200) -> str:
    """Return safe text as one line of limited length."""
    line = " ".join(safe_text(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def escape_control_characters(json_text: str) -> str:
    """Write control characters in JSON text as JSON escapes; the meaning is unchanged."""
    return INVISIBLE_CHARACTERS.sub(lambda found: f"\\u{ord(found.group()):04x}", json_text)


def format_duration(value: timedelta | float) -> str:
    """Format a duration: ``12 ms``, ``3.4 s``, ``5 min 12 s``, ``2 h 5 min``, ``3 d 4 h``."""
    seconds = max(value.total_seconds() if isinstance(value, timedelta) else value, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def format_relative(instant: datetime | None, now: datetime) -> str:
    """Format an instant relative to now: ``5 min ago``, ``in 2 h``."""
    if instant is None:
        return ""
    seconds = (now - instant).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    rough = format_duration(round(abs(seconds)) if abs(seconds) < 60 else abs(seconds)).replace(".0 s", " s")
    return f"{rough} ago" if seconds > 0 else f"in {rough}"


def format_local_time(instant: datetime | None) -> str:
    return "" if instant is None else instant.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_with_age(instant: datetime | None, now: datetime, by: str | None = None) -> str | None:
    """Return the local time, the distance from the current time, and the actor if given."""
    if instant is None:
        return None
    return f"{format_local_time(instant)} ({format_relative(instant, now)}){'' if by is None else f' by {by}'}"


def compact_json(value: Any) -> str | None:
    """Return a stored value as JSON on one line."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def error_summary(error: Any) -> str | None:
    """Return the error of an attempt, an object with type and message, as one line."""
    if error is None:
        return None
    read = error.get if isinstance(error, Mapping) else partial(getattr, error)
    return one_line(f"{read('type', 'error')}: {read('message', '')}")


def count_noun(count: int, noun: str) -> str:
    """Return ``1 attempt`` or ``5 attempts``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
