"""Values in the words of a person: safe text, spans, instants."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from tenuto.model.stored_values import UNSEEN

# A whole sequence goes at once, so that no half of it is left to read: colours, cursor (CSI), titles, links (OSC).
_SEQUENCE = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?")


def plain(text: object) -> str:
    """Text from elsewhere without anything a terminal would obey."""
    return UNSEEN.sub("", _SEQUENCE.sub("", str(text).replace("\r\n", "\n")))


def one_line(text: object, limit: int = 200) -> str:
    """The same as a single line of bounded length."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def escaped(json_text: str) -> str:
    """JSON in which whatever a terminal would obey is written as an escape: it says the same."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", json_text)


def span(value: timedelta | float) -> str:
    """How long: ``12 ms``, ``3.4 s``, ``5 min 12 s``, ``2 h 5 min``, ``3 d 4 h``."""
    seconds = max(value.total_seconds() if isinstance(value, timedelta) else value, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def ago(instant: datetime | None, now: datetime) -> str:
    """When, seen from now."""
    if instant is None:
        return ""
    seconds = (now - instant).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    rough = span(round(abs(seconds)) if abs(seconds) < 60 else abs(seconds)).replace(".0 s", " s")
    return f"{rough} ago" if seconds > 0 else f"in {rough}"


def local(instant: datetime | None) -> str:
    """When, on the clock on the wall."""
    return "" if instant is None else instant.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
