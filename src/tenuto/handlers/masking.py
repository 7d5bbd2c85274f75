"""Masking: values that were shown to an attempt, and must not be seen in what it leaves behind.

A value is sought as it is and in the forms it commonly takes on its way out: base64 (also as part of something longer,
such as ``user:password``), URL-encoded, JSON-escaped, as Python shows it, and line by line. Knows nothing of where
values come from. Costs nothing while nothing is hidden.
"""

from __future__ import annotations

import base64
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from tenuto import logs

MASK = "***"
SHORTEST = 4
"""Anything shorter would be found everywhere."""
_SHORTEST_PART = 5
_MOST_SOUGHT = 50_000


class Mask:
    """What must not be seen."""

    __slots__ = ("_most", "_sought")

    def __init__(self, most: int | None = None) -> None:
        """``most``: how many forms are sought, if not all of them."""
        self._most = most
        self._sought: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._sought)

    def add(self, value: str) -> None:
        """Hide this value from now on."""
        known = dict.fromkeys([*_forms(value), *self._sought])
        kept = list(known)[: self._most]
        # The longest first, or the end of a value would stay where its beginning is a value, too.
        self._sought = tuple(sorted(kept, key=len, reverse=True))

    def text(self, text: str) -> str:
        """The text without them."""
        for value in self._sought:
            if value in text:
                text = text.replace(value, MASK)
        return text

    def json(self, text: str) -> str:
        """The JSON text without them, still JSON: names, texts and numbers are looked at one by one."""
        if not self._sought:
            return text
        return json.dumps(self._plain(json.loads(text)), ensure_ascii=False, separators=(",", ":"))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self._plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            written = json.dumps(value)
            return value if self.text(written) == written else MASK
        return value

    def stream(self, text: str) -> tuple[str, str]:
        """What may be passed on of a text that goes on, and what must wait: it could be the beginning of a value."""
        cut = len(text) - max((_common(text, value) for value in self._sought), default=0)
        while (whole := min((_across(text, value, cut) for value in self._sought), default=cut)) < cut:
            cut = whole  # "aaaa" ends with the beginning of itself, and must not be cut there
        return self.text(text[:cut]), text[cut:]


def _common(text: str, value: str) -> int:
    """How much of the end of the text is the beginning of the value, the whole of it excepted."""
    longest = min(len(text), len(value) - 1)
    at = text.find(value[0], len(text) - longest)
    while at != -1:
        if value.startswith(text[at:]):
            return len(text) - at
        at = text.find(value[0], at + 1)
    return 0


def _across(text: str, value: str, cut: int) -> int:
    """Where a value begins that a cut would go through; the cut itself if there is none."""
    at = text.find(value, max(0, cut - len(value) + 1), cut + len(value) - 1)
    return cut if at == -1 else min(at, cut)


def _forms(value: str) -> Iterator[str]:
    lines = [line for line in (each.strip() for each in value.splitlines()) if len(line) >= SHORTEST]
    for text in dict.fromkeys([value, value.strip(), *lines]):
        if len(text) < SHORTEST:
            continue
        raw = text.encode("utf-8", "surrogatepass")
        escaped = quote(text, safe="", errors="replace")
        yield from (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        yield from (escaped, quote(text, errors="replace"), quote_plus(text, errors="replace"), _lower(escaped))
        yield from (repr(text)[1:-1], repr(raw)[2:-1])
        yield from _base64_forms(raw)


def _lower(escaped: str) -> str:
    """With the letters of ``%2F`` small, as some write them."""
    head, *others = escaped.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in others)])


def _base64_forms(raw: bytes) -> Iterator[str]:
    """In base64 three bytes are four letters: within something longer a value may begin at each of the three."""
    for before in range(3):
        letters = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        first = -(-before * 8 // 6)  # the letters its neighbours have a share in are left out
        last = (before + len(raw)) * 8 // 6
        part = letters[first:last]
        if len(part) >= _SHORTEST_PART:
            yield part
            yield part.replace("+", "-").replace("/", "_")


# --- what this process says on its own account ----------------------------------------------------------------------

shown_here = Mask(_MOST_SOUGHT)  # a process that lives for months may have been shown many
"""Everything any attempt in this process was ever shown: hidden in what the process prints and logs."""


def hide_in_records(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Makes the records of standard logging as they were made before, without what must not be seen."""

    def make_hidden(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if shown_here:
            _hide(record)
        return record

    return make_hidden


def _hide(record: logging.LogRecord) -> None:
    try:
        said = record.getMessage()
    except Exception:  # noqa: BLE001 — words and values that do not fit are told of by whoever writes the record
        said = f"{record.msg} {record.args}"
    if record.exc_info and record.exc_info[0] is not None:
        # In the words, because every handler would write the exception anew, as it is.
        said += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        record.exc_info = None
    record.msg, record.args = shown_here.text(said), ()


def hide_for_process(value: str) -> None:
    """Hide a value in whatever this process prints and logs, for as long as it lives."""
    shown_here.add(value)
    logs.hide_with(shown_here.text)
