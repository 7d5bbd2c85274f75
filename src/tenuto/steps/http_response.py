"""Responses of HTTP calls: read within limits, compared with the expected status, and stored.

Of the headers only those that describe the response are stored; cookies and other possible credentials are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator
from pydantic_core import from_json, to_json

from tenuto.clock import SystemClock
from tenuto.errors import Invalid, quoted
from tenuto.model import validation

if TYPE_CHECKING:
    import httpx2

MAX_STORED_BODY_BYTES = 512 * 1024
"""How much of a body can be stored as a result."""
MAX_READ_BYTES = 1024 * 1024
"""How much of a decompressed body is read, so that the server can complete it; then the connection is closed."""
MAX_RETRY_AFTER = timedelta(hours=1)
_MIN_RETRY_AFTER = timedelta(seconds=1)
_MAX_ENCODINGS = 2
_MAX_CHUNKS = 10_000
"""A body in one-byte chunks costs a thousand times as much and would delay everything on the event loop."""
_MAX_HEADER_CHARACTERS = 1000
_MAX_RESULT_BYTES = validation.MAX_OUTPUT_BYTES - 64 * 1024  # leaves space for the headers
_EXCERPT_CHARACTERS = 2000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 425, 429})
_RANGE = re.compile(r"([1-5][0-9]{2})-([1-5][0-9]{2})|([1-5])xx")
_STORED_HEADERS = frozenset({
    "age", "allow", "cache-control", "content-disposition", "content-encoding", "content-language", "content-length",
    "content-location", "content-type", "correlation-id", "date", "deprecation", "etag", "expires", "last-modified",
    "location", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "request-id", "retry-after", "server",
    "sunset", "x-correlation-id", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id",
})  # fmt: skip


def _parse_range(status: int | str) -> tuple[int, int]:
    if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
        return status, status
    found = _RANGE.fullmatch(str(status)) if isinstance(status, str) else None
    if found is None:
        raise Invalid(
            f"{quoted(status, 40)} is not an HTTP status or a range",
            code="step.http.expected_status.invalid",
            field="expected_status",
            remedy="write 204, '200-299' or '2xx'",
        )
    low, high, hundreds = found.groups()
    return (int(hundreds) * 100, int(hundreds) * 100 + 99) if hundreds else (int(low), int(high))


def _check_expected(expected: list[int | str]) -> list[int | str]:
    if not 1 <= len(expected) <= 50:
        raise Invalid(
            f"expected_status has {len(expected)} entries, not 1 to 50",
            code="step.http.expected_status.count",
            field="expected_status",
        )
    for each in expected:
        low, high = _parse_range(each)
        if low > high:
            raise Invalid(
                f"the range {each!r} of expected_status ends before it begins",
                code="step.http.expected_status.invalid",
                field="expected_status",
            )
    return expected


ExpectedStatus = Annotated[list[int | str], AfterValidator(_check_expected)]
"""Status codes and ranges."""


def is_expected(expected: Sequence[int | str], status: int) -> bool:
    return any(low <= status <= high for low, high in map(_parse_range, expected))


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response with the stored part of its headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool

    @property
    def location(self) -> str | None:
        """The target of a redirect."""
        return self.headers.get("location") if self.status in _REDIRECTS else None

    @property
    def is_transient(self) -> bool:
        """Whether the same request may get another status later."""
        return self.status in _TRANSIENT or self.status >= 500

    def retry_after(self) -> timedelta | None:
        """Return the delay that the server asks for, within limits."""
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            delay = timedelta(seconds=min(int(text[:9]), MAX_RETRY_AFTER.total_seconds()))
        else:
            until, server_time = _parse_http_date(text), _parse_http_date(self.headers.get("date", ""))
            if until is None:
                return None
            delay = until - (server_time or SystemClock().now())
        return max(_MIN_RETRY_AFTER, min(delay, MAX_RETRY_AFTER))

    def excerpt(self) -> str:
        """Return the beginning of the body as text."""
        return validation.truncate_text(self._text()[:_EXCERPT_CHARACTERS], _EXCERPT_CHARACTERS)

    def to_output(self, duration: float) -> dict[str, Any]:
        """Return the response as the output of a step."""
        body = self._parse_json()
        text = "" if body is not None else validation.truncate_text(self._text(), len(self.body))
        fits = _size(text) <= _MAX_RESULT_BYTES
        return {
            "status": self.status,
            "headers": {name: _redact_header(name, value) for name, value in self.headers.items()},
            "body": body if body is not None else text if fits else text[: _MAX_RESULT_BYTES // 6],
            "truncated": self.truncated or not fits,
            "duration": duration,
        }

    def _text(self) -> str:
        charset = re.search(r"charset=\"?([A-Za-z0-9_.:-]{1,40})", self.headers.get("content-type", ""))
        try:
            return self.body.decode(charset[1] if charset else "utf-8", "replace")
        except (LookupError, ValueError):  # unknown charset, or not a text encoding
            return self.body.decode("utf-8", "replace")

    def _parse_json(self) -> Any:
        """Return the body as data, if it is complete JSON that can be stored."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.truncated or not (media_type == "application/json" or media_type.endswith("+json")):
            return None
        try:
            data = from_json(
                validation.check_json_text(self._text(), field="body", limit=MAX_READ_BYTES), allow_inf_nan=False
            )
        except (Invalid, ValueError):  # stored as text instead
            return None
        return data if _size(data) <= _MAX_RESULT_BYTES else None


def _size(value: Any) -> int:
    """Return the stored size: a control character takes six bytes, and 1e15 is written out."""
    return len(to_json(value))


async def read_response(response: httpx2.Response, body_limit: int) -> HttpResponse:
    """Read a response and keep up to ``body_limit`` bytes of its body."""
    import httpx2  # belongs to an extra, without which this module must load

    encodings = response.headers.get("content-encoding", "")
    if encodings.count(",") >= _MAX_ENCODINGS:
        raise httpx2.DecodingError("the body of the response is compressed several times")
    body, read_count, chunk_count, is_complete = bytearray(), 0, 0, True
    async for chunk in response.aiter_bytes():
        body += chunk[: max(body_limit - len(body), 0)]
        read_count += len(chunk)
        chunk_count += 1
        # guard: http_call.bounded_body
        if read_count > MAX_READ_BYTES or response.num_bytes_downloaded > MAX_READ_BYTES or chunk_count >= _MAX_CHUNKS:
            is_complete = False
            break
    stored = {name.lower(): value for name, value in response.headers.items() if name.lower() in _STORED_HEADERS}
    return HttpResponse(response.status_code, stored, bytes(body), not is_complete or read_count > len(body))


def _redact_header(name: str, value: str) -> str:
    """Return a header as it is stored: the query of a redirect may contain a token."""
    if name in ("location", "content-location"):
        value = re.sub(r"[?#].*", "?…", re.sub(r"//[^/?#]*@", "//", value), flags=re.DOTALL)
    return validation.truncate_text(value, _MAX_HEADER_CHARACTERS)


def _parse_http_date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
