"""Masking: values that were shown to an attempt, and must not be seen in what it leaves behind.

A value is sought as it is and in the forms it commonly takes on its way out: base64 (also as part of something longer,
such as ``user:password``), hex, URL-encoded, escaped for JSON and HTML, as Python shows it, misread as Latin-1, and
line by line. Knows nothing of where values come from. Costs nothing while nothing is hidden, and hardly more for ten
thousand values than for a hundred: many forms are not sought one by one, but looked up by how they begin.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import threading
import traceback
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from tenuto import logs

MASK = "***"
SHORTEST = 4
"""Anything shorter would be found everywhere."""
_SHORTEST_PART = 5
_FEW = 100
"""So many forms are found sooner one by one than by looking up every place of a text."""
_MOST_REMEMBERED = 20_000

_log = logs.Log("tenuto.masking")


class _Bucket:
    """Forms that begin alike."""

    __slots__ = ("_forms", "lengths")

    def __init__(self) -> None:
        self._forms: list[str] = []
        self.lengths: tuple[int, ...] = ()
        """How long they are; no length stands there twice."""

    def put(self, form: str) -> None:
        insort(self._forms, form)
        if len(form) not in self.lengths:
            self.lengths += (len(form),)

    def take_out(self, form: str) -> bool:
        """Whether nothing is left."""
        del self._forms[bisect_left(self._forms, form)]
        return not self._forms

    def has_more_of(self, text: str) -> bool:
        """Whether the text is the beginning of one of them, and not all of it."""
        candidates = self._forms[(place := bisect_left(self._forms, text)) : place + 2]
        return any(len(form) > len(text) and form.startswith(text) for form in candidates)


class Mask:
    """What must not be seen."""

    __slots__ = ("_beginnings", "_buckets", "_changing", "_forgotten", "_forms", "_longest", "_most", "_values")

    def __init__(self, most: int | None = None) -> None:
        """``most``: how many values are remembered, if not all of them. Beyond it the one that was last shown the
        longest time ago goes, and that is said aloud."""
        self._most = most
        self._changing = threading.Lock()
        self._values: dict[str, None] = {}
        """The one shown last stands last."""
        self._forms: dict[str, int] = {}
        """Every form, with how many values take it."""
        self._buckets: dict[str, _Bucket] = {}
        """The forms by their first `SHORTEST` characters."""
        self._beginnings: dict[str, int] = {}
        """What fewer characters than that a form may begin with."""
        self._longest = 0
        self._forgotten = 0

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, value: str) -> None:
        """Hide this value from now on."""
        with self._changing:
            if value in self._values:
                del self._values[value]
                self._values[value] = None
                return
            # First its forms, then its name: whoever looks meanwhile must not take it for known and find nothing.
            for form in dict.fromkeys(_forms(value)):
                self._seek(form)
            self._values[value] = None
            forgotten = self._forget_beyond_the_most()
        if forgotten:
            _log.warning(
                "masking.forgot",
                values=self._forgotten,
                remembered=self._most,
                remedy="let jobs conceal fewer different values, or restart this process now and then",
            )

    def _seek(self, form: str) -> None:
        known = self._forms.get(form, 0)
        self._forms[form] = known + 1
        if known:
            return
        self._longest = max(self._longest, len(form))
        self._buckets.setdefault(form[:SHORTEST], _Bucket()).put(form)
        for length in range(1, SHORTEST):
            self._beginnings[form[:length]] = self._beginnings.get(form[:length], 0) + 1

    def _forget_beyond_the_most(self) -> bool:
        """Let the oldest go, if there are too many; whether it is time to speak of it."""
        if self._most is None or len(self._values) <= self._most:
            return False
        oldest = next(iter(self._values))
        del self._values[oldest]
        for form in dict.fromkeys(_forms(oldest)):
            self._seek_no_longer(form)
        self._forgotten += 1
        return self._forgotten == 1 or self._forgotten % 1000 == 0

    def _seek_no_longer(self, form: str) -> None:
        self._forms[form] -= 1
        if self._forms[form]:
            return
        del self._forms[form]
        if self._buckets[form[:SHORTEST]].take_out(form):
            del self._buckets[form[:SHORTEST]]
        for length in range(1, SHORTEST):
            self._beginnings[form[:length]] -= 1
            if not self._beginnings[form[:length]]:
                del self._beginnings[form[:length]]

    def text(self, text: str) -> str:
        """The text without them."""
        return _without(text, self._found(text)) if self._forms else text

    def json(self, text: str) -> str:
        """The JSON text without them, still JSON: names, texts and numbers are looked at one by one."""
        if not self._forms:
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
        if not self._forms:
            return text, ""
        cut = self._beginning_at_the_end(text)
        found = self._found(text)
        for begin, end in found:
            if begin < cut < end:  # "aaaa" ends with the beginning of itself, and must not be cut there
                cut = begin
        return _without(text[:cut], [each for each in found if each[1] <= cut]), text[cut:]

    def _beginning_at_the_end(self, text: str) -> int:
        """The first place from which on the rest of the text is the beginning of a value, and not yet all of it."""
        end = len(text)
        first = max(0, end - self._longest + 1)
        for place in range(first, end - SHORTEST + 1):
            bucket = self._buckets.get(text[place : place + SHORTEST])
            if bucket is not None and bucket.has_more_of(text[place:]):
                return place
        for place in range(max(first, end - SHORTEST + 1), end):
            if text[place:] in self._beginnings:
                return place
        return end

    def _found(self, text: str) -> list[tuple[int, int]]:
        """Where something stands that must not be seen: (begin, end) in order; what overlaps is one."""
        places = self._one_by_one(text) if len(self._forms) <= _FEW else self._looked_up(text)
        found: list[tuple[int, int]] = []
        for begin, end in places:
            if found and begin < found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((begin, end))
        return found

    def _one_by_one(self, text: str) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        for form in tuple(self._forms):
            begin = text.find(form)
            while begin != -1:
                places.append((begin, begin + len(form)))
                begin = text.find(form, begin + 1)
        return sorted(places)

    def _looked_up(self, text: str) -> Iterator[tuple[int, int]]:
        forms, buckets = self._forms, self._buckets
        for begin in range(len(text) - SHORTEST + 1):
            bucket = buckets.get(text[begin : begin + SHORTEST])
            if bucket is not None:
                longest = max((size for size in bucket.lengths if text[begin : begin + size] in forms), default=0)
                if longest:
                    yield begin, begin + longest


def _without(text: str, found: list[tuple[int, int]]) -> str:
    """The text with the mask in these places."""
    parts, done = [], 0
    for begin, end in found:
        parts += [text[done:begin], MASK]
        done = end
    return "".join([*parts, text[done:]])


def _forms(value: str) -> Iterator[str]:
    lines = [line for line in (each.strip() for each in value.splitlines()) if len(line) >= SHORTEST]
    for plain in dict.fromkeys([value, value.strip(), *lines]):
        if len(plain) < SHORTEST:
            continue
        raw = plain.encode("utf-8", "surrogatepass")
        yield from _written_forms(plain)
        if not plain.isascii():
            yield from _written_forms(raw.decode("latin-1"))  # as many read the headers of a request
        yield from (repr(raw)[2:-1], raw.hex(), raw.hex().upper())
        yield from _base64_forms(raw)


def _written_forms(text: str) -> Iterator[str]:
    escaped = quote(text, safe="", errors="replace")
    yield from (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    yield from (escaped, quote(text, errors="replace"), quote_plus(text, errors="replace"), _lower(escaped))
    yield from (html.escape(text), html.escape(text, quote=False))


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

shown_here = Mask(_MOST_REMEMBERED)  # a process that lives for months may have been shown many
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
