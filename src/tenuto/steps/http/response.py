"""What a called server answered, read within bounds and kept as data: what is expected, what is stored of it.

Sends nothing. Of the headers only those are kept that tell of the answer; cookies and whatever else might open a door
are not.
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
from tenuto.errors import Invalid
from tenuto.model import stored_values

if TYPE_CHECKING:
    import httpx2

MAX_KEPT = 512 * 1024
"""How much of a body a result can hold."""
MAX_READ = 1024 * 1024
"""How much is read, unpacked: so that a server may end its answer although not all of it is kept. Then we hang up."""
LONGEST_RETRY_AFTER = timedelta(hours=1)
_SHORTEST_RETRY_AFTER = timedelta(seconds=1)
_MAX_ENCODINGS = 2
_MAX_PIECES = 10_000
"""A body sent byte by byte costs its reader a thousand times as much: everybody on the same loop would wait."""
_MAX_VALUE = 1000
_MAX_STORED = stored_values.MAX_OUTPUT - 64 * 1024  # beside it stand the headers
_BEGINNING = 2000
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({408, 425, 429})
_RANGE = re.compile(r"([1-5][0-9]{2})-([1-5][0-9]{2})|([1-5])xx")
_KEPT = frozenset({
    "age", "allow", "cache-control", "content-disposition", "content-encoding", "content-language", "content-length",
    "content-location", "content-type", "correlation-id", "date", "deprecation", "etag", "expires", "last-modified",
    "location", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "request-id", "retry-after", "server",
    "sunset", "x-correlation-id", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id",
})  # fmt: skip


def _bounds(given: int | str) -> tuple[int, int]:
    if isinstance(given, int) and not isinstance(given, bool) and 100 <= given <= 599:
        return given, given
    found = _RANGE.fullmatch(str(given)) if isinstance(given, str) else None
    if found is None:
        raise Invalid(f"{given!r:.40} is not a status", field="expected_status", remedy="write 204, '200-299' or '2xx'")
    low, high, hundreds = found.groups()
    return (int(hundreds) * 100, int(hundreds) * 100 + 99) if hundreds else (int(low), int(high))


def _expected(given: list[int | str]) -> list[int | str]:
    if not 1 <= len(given) <= 50:
        raise Invalid("must name 1 to 50 codes or ranges", field="expected_status")
    for each in given:
        low, high = _bounds(each)
        if low > high:
            raise Invalid(f"{each!r} ends before it begins", field="expected_status")
    return given


ExpectedStatus = Annotated[list[int | str], AfterValidator(_expected)]
"""Codes and ranges of codes."""


def expects(expected: Sequence[int | str], status: int) -> bool:
    """Whether a status is among those that were expected."""
    return any(low <= status <= high for low, high in map(_bounds, expected))


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool

    @property
    def location(self) -> str | None:
        """Where it leads to, if it is a redirect."""
        return self.headers.get("location") if self.status in _REDIRECTS else None

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered otherwise later."""
        return self.status in _PASSING or self.status >= 500

    def retry_after(self) -> timedelta | None:
        """How long the server asks to wait, within reason."""
        given = self.headers.get("retry-after", "").strip()
        if given.isascii() and given.isdigit():
            wait = timedelta(seconds=min(int(given[:9]), LONGEST_RETRY_AFTER.total_seconds()))
        else:
            until, now = _instant(given), _instant(self.headers.get("date", ""))
            if until is None:
                return None
            wait = until - (now or SystemClock().now())  # by the clock of the server, if it tells
        return max(_SHORTEST_RETRY_AFTER, min(wait, LONGEST_RETRY_AFTER))

    def beginning(self) -> str:
        """The first words of the body, for people."""
        return stored_values.kept_text(self._text()[:_BEGINNING], _BEGINNING)

    def result(self, duration: float) -> dict[str, Any]:
        """As the output of a step."""
        body = self._data()
        text = "" if body is not None else stored_values.kept_text(self._text(), len(self.body))
        fits = _size(text) <= _MAX_STORED
        return {
            "status": self.status,
            "headers": {name: _told(name, value) for name, value in self.headers.items()},
            "body": body if body is not None else text if fits else text[: _MAX_STORED // 6],
            "truncated": self.truncated or not fits,
            "duration": duration,
        }

    def _text(self) -> str:
        charset = re.search(r"charset=\"?([A-Za-z0-9_.:-]{1,40})", self.headers.get("content-type", ""))
        try:
            return self.body.decode(charset[1] if charset else "utf-8", "replace")
        except (LookupError, ValueError):  # no such charset, or one that is not for text
            return self.body.decode("utf-8", "replace")

    def _data(self) -> Any:
        """The body as data, if it is JSON, whole, and can be stored."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.truncated or not (kind == "application/json" or kind.endswith("+json")):
            return None
        try:
            data = from_json(
                stored_values.storable_json(self._text(), field="body", limit=MAX_READ), allow_inf_nan=False
            )
        except (Invalid, ValueError):  # then as the text it came as
            return None
        return data if _size(data) <= _MAX_STORED else None


def _size(value: Any) -> int:
    """How long it is when it is stored: a control character grows six-fold, and 1e15 is written out."""
    return len(to_json(value))


async def read(response: httpx2.Response, keep: int) -> Answer:
    """What a response holds, up to so many bytes of its body."""
    import httpx2

    packed = response.headers.get("content-encoding", "")
    if packed.count(",") >= _MAX_ENCODINGS:
        raise httpx2.DecodingError("its body is packed many times over")
    body, seen, pieces, ended = bytearray(), 0, 0, True
    async for piece in response.aiter_bytes():
        body += piece[: max(keep - len(body), 0)]
        seen += len(piece)
        pieces += 1
        if seen > MAX_READ or response.num_bytes_downloaded > MAX_READ or pieces >= _MAX_PIECES:
            ended = False
            break
    kept = {name.lower(): value for name, value in response.headers.items() if name.lower() in _KEPT}
    return Answer(response.status_code, kept, bytes(body), not ended or seen > len(body))


def _told(name: str, value: str) -> str:
    """A header as it is stored; where a redirect leads to may carry a token after the question mark."""
    if name in ("location", "content-location"):
        value = re.sub(r"[?#].*", "?…", re.sub(r"//[^/?#]*@", "//", value), flags=re.DOTALL)
    return stored_values.kept_text(value, _MAX_VALUE)


def _instant(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
