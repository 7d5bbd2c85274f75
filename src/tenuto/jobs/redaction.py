"""Redaction: replace secret values in everything an attempt or this process leaves behind.

A value is found as it is and in the forms in which it commonly leaves a program: base64 (also inside a longer text such
as ``user:password``), hex, URL-encoded, escaped for JSON and HTML, as Python repr, misread as Latin-1, and line by
line. Without values redaction costs nothing. Many forms are indexed by their first characters, so that ten thousand
values cost hardly more than a hundred.
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

REPLACEMENT = "***"
MIN_LENGTH = 4
"""Shorter values would be found everywhere."""
_MIN_BASE64_LENGTH = 5
_MAX_SEQUENTIAL_FORMS = 100
"""Measured: up to so many forms `str.find` for each is faster than an index lookup at every position."""
_MAX_PROCESS_VALUES = 20_000

_log = logs.Log("tenuto.redaction")


class _Bucket:
    """Forms with the same first characters."""

    __slots__ = ("_forms", "lengths")

    def __init__(self) -> None:
        self._forms: list[str] = []
        self.lengths: tuple[int, ...] = ()
        """Distinct lengths of the forms."""

    def add(self, form: str) -> None:
        insort(self._forms, form)
        if len(form) not in self.lengths:
            self.lengths += (len(form),)

    def remove(self, form: str) -> bool:
        """Remove a form; return whether the bucket is empty now."""
        del self._forms[bisect_left(self._forms, form)]
        return not self._forms

    def has_longer_form(self, text: str) -> bool:
        """Whether the text is a proper prefix of a form."""
        candidates = self._forms[(position := bisect_left(self._forms, text)) : position + 2]
        return any(len(form) > len(text) and form.startswith(text) for form in candidates)


class Redactor:
    """Replaces a set of values in texts."""

    __slots__ = (
        "_buckets",
        "_change_lock",
        "_evicted_count",
        "_forms",
        "_longest",
        "_max_values",
        "_prefixes",
        "_values",
    )

    def __init__(self, max_values: int | None = None) -> None:
        """``max_values``: beyond it the least recently added value is evicted, and a warning is logged."""
        self._max_values = max_values
        self._change_lock = threading.Lock()
        self._values: dict[str, None] = {}
        """Ordered: the most recently added value is the last."""
        self._forms: dict[str, int] = {}
        """Every form with the number of values that have it."""
        self._buckets: dict[str, _Bucket] = {}
        """The forms by their first `MIN_LENGTH` characters."""
        self._prefixes: dict[str, int] = {}
        """Shorter prefixes of the forms, with the number of forms that have them."""
        self._longest = 0
        self._evicted_count = 0

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, value: str) -> None:
        """Redact this value from now on."""
        with self._change_lock:
            if value in self._values:
                del self._values[value]  # guard: redaction.renewed_value
                self._values[value] = None  # guard: redaction.renewed_value
                return
            # The forms first: a concurrent reader must not find the value registered before its forms are.
            for form in dict.fromkeys(_forms(value)):
                self._add_form(form)
            self._values[value] = None
            is_warning_due = self._evict_oldest()
        if is_warning_due:
            _log.warning(
                "redaction value evicted",
                evicted_count=self._evicted_count,
                max_values=self._max_values,
                remedy="redact fewer different values in jobs, or restart this process regularly",
            )

    def _add_form(self, form: str) -> None:
        count = self._forms.get(form, 0)
        self._forms[form] = count + 1
        if count:
            return
        self._longest = max(self._longest, len(form))
        self._buckets.setdefault(form[:MIN_LENGTH], _Bucket()).add(form)
        for length in range(1, MIN_LENGTH):
            self._prefixes[form[:length]] = self._prefixes.get(form[:length], 0) + 1

    def _evict_oldest(self) -> bool:
        """Forget the oldest value if there are too many; return whether a warning is due."""
        if self._max_values is None or len(self._values) <= self._max_values:
            return False
        oldest = next(iter(self._values))
        del self._values[oldest]
        for form in dict.fromkeys(_forms(oldest)):
            self._remove_form(form)
        self._evicted_count += 1
        return self._evicted_count == 1 or self._evicted_count % 1000 == 0

    def _remove_form(self, form: str) -> None:
        self._forms[form] -= 1
        if self._forms[form]:  # guard: redaction.shared_form
            return
        del self._forms[form]
        if self._buckets[form[:MIN_LENGTH]].remove(form):
            del self._buckets[form[:MIN_LENGTH]]
        for length in range(1, MIN_LENGTH):
            self._prefixes[form[:length]] -= 1
            if not self._prefixes[form[:length]]:
                del self._prefixes[form[:length]]

    def redact_text(self, text: str) -> str:
        return _replace(text, self._find_spans(text)) if self._forms else text

    def redact_json(self, text: str) -> str:
        """Redact a JSON text, which stays JSON: names, strings and numbers are checked one by one."""
        if not self._forms:
            return text
        return json.dumps(self._redact_value(json.loads(text)), ensure_ascii=False, separators=(",", ":"))

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            # guard: redaction.field_names
            return {self.redact_text(name): self._redact_value(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._redact_value(each) for each in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = json.dumps(value)
            return value if self.redact_text(text) == text else REPLACEMENT  # guard: redaction.numbers
        return value

    def redact_stream(self, text: str) -> tuple[str, str]:
        """Split a text that continues: return the redacted part to pass on, and the rest that may begin a value."""
        if not self._forms:
            return text, ""
        cut = self._find_unfinished_form(text)  # guard: redaction.partial_value
        spans = self._find_spans(text)
        for begin, end in spans:
            if begin < cut < end:  # "aaaa" ends with its own prefix and must not be cut there
                cut = begin
        return _replace(text[:cut], [span for span in spans if span[1] <= cut]), text[cut:]

    def _find_unfinished_form(self, text: str) -> int:
        """Return the first position from which the rest of the text is a proper prefix of a form."""
        end = len(text)
        first = max(0, end - self._longest + 1)
        for position in range(first, end - MIN_LENGTH + 1):
            bucket = self._buckets.get(text[position : position + MIN_LENGTH])
            if bucket is not None and bucket.has_longer_form(text[position:]):
                return position
        for position in range(max(first, end - MIN_LENGTH + 1), end):
            if text[position:] in self._prefixes:
                return position
        return end

    def _find_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the (begin, end) spans to replace, in order; overlapping ones are merged."""
        matches = self._find_each_form(text) if len(self._forms) <= _MAX_SEQUENTIAL_FORMS else self._find_by_index(text)
        spans: list[tuple[int, int]] = []
        for begin, end in matches:
            if spans and begin < spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((begin, end))
        return spans

    def _find_each_form(self, text: str) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        for form in tuple(self._forms):
            begin = text.find(form)
            while begin != -1:
                spans.append((begin, begin + len(form)))
                begin = text.find(form, begin + 1)
        return sorted(spans)

    def _find_by_index(self, text: str) -> Iterator[tuple[int, int]]:
        forms, buckets = self._forms, self._buckets
        for begin in range(len(text) - MIN_LENGTH + 1):
            bucket = buckets.get(text[begin : begin + MIN_LENGTH])
            if bucket is not None:
                longest = max((size for size in bucket.lengths if text[begin : begin + size] in forms), default=0)
                if longest:
                    yield begin, begin + longest


def _replace(text: str, spans: list[tuple[int, int]]) -> str:
    parts, done = [], 0
    for begin, end in spans:
        parts += [text[done:begin], REPLACEMENT]
        done = end
    return "".join([*parts, text[done:]])


def _forms(value: str) -> Iterator[str]:
    lines = [line for line in (each.strip() for each in value.splitlines()) if len(line) >= MIN_LENGTH]
    for plain in dict.fromkeys([value, value.strip(), *lines]):  # guard: redaction.lines
        if len(plain) < MIN_LENGTH:
            continue
        raw = plain.encode("utf-8", "surrogatepass")
        yield from _escaped_forms(plain)
        if not plain.isascii():  # guard: redaction.wrong_encoding
            yield from _escaped_forms(raw.decode("latin-1"))  # many programs read request headers as Latin-1
        yield from (repr(raw)[2:-1], raw.hex(), raw.hex().upper())
        yield from _base64_forms(raw)


def _escaped_forms(text: str) -> Iterator[str]:
    escaped = quote(text, safe="", errors="replace")
    yield from (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    yield from (escaped, quote(text, errors="replace"), quote_plus(text, errors="replace"), _lower_escapes(escaped))
    yield from (html.escape(text), html.escape(text, quote=False))


def _lower_escapes(escaped: str) -> str:
    """Return a URL-encoded text with lower-case escapes (``%2f``), as some programs write them."""
    head, *others = escaped.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in others)])


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Base64 turns three bytes into four characters: inside a longer text a value has one of three alignments."""
    for offset in range(3):  # guard: redaction.base64
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        first = -(-offset * 8 // 6)  # characters that also depend on neighbouring bytes are left out
        last = (offset + len(raw)) * 8 // 6
        part = encoded[first:last]
        if len(part) >= _MIN_BASE64_LENGTH:
            yield part
            yield part.replace("+", "-").replace("/", "_")


# --- output of this process -----------------------------------------------------------------------------------------

process_redactor = Redactor(_MAX_PROCESS_VALUES)  # limited, because a process may run for months
"""Holds the values of all attempts of this process; redacts what the process prints and logs."""


def redacting_record_factory(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """Wrap a factory of log records, so that redacted values do not get into records."""

    def make_redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if process_redactor:
            _redact_record(record)
        return record

    return make_redacted


def _redact_record(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 — the handler reports format errors
        message = f"{record.msg} {record.args}"
    if record.exc_info and record.exc_info[0] is not None:
        # Part of the message, because every handler would format the exception itself, unredacted.
        message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        record.exc_info = None  # guard: redaction.exceptions
    record.msg, record.args = process_redactor.redact_text(message), ()


def redact_in_process(value: str) -> None:
    """Redact a value in everything this process prints and logs, for as long as it runs."""
    process_redactor.add(value)
    logs.set_redaction(process_redactor.redact_text)
