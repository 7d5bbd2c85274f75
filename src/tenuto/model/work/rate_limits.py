"""Rate limits: a maximum number of starts per second, minute or hour, enforced by a token bucket.

A bucket is stored as one instant, at which its next token comes. A start takes a token and moves the instant by one
interval. An unused bucket holds at most ``burst`` tokens. In every span of one period at most ``count + burst - 1``
tasks start; with the default burst of 1 that is ``count``. Claims use SQL functions with the same rules (migration
0035); tests/store/work/test_rate_limits.py compares both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenuto.errors import Invalid, quoted

MAX_RATE = 100_000
_PERIODS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}
_PERIOD_NAMES = {"s": "second", "m": "minute", "h": "hour"}
_TEXT = re.compile(
    r"(?P<count>[0-9]{1,6})\s*/\s*(?P<unit>s|m|h|sec|second|min|minute|hour)(?:\s+burst\s+(?P<burst>[0-9]{1,6}))?"
)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` starts per ``unit`` (``s``, ``m`` or ``h``); an unused bucket allows ``burst`` at once."""

    count: int
    unit: str
    burst: int = 1

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}" + (f" burst {self.burst}" if self.burst > 1 else "")

    @property
    def description(self) -> str:
        """The limit in words, such as ``100 per minute``."""
        burst = f", at most {self.burst} at once" if self.burst > 1 else ""
        return f"{self.count:,} per {_PERIOD_NAMES[self.unit]}{burst}"

    @property
    def interval(self) -> timedelta:
        """Time between two tokens, rounded up, so that a period never has one token too many."""
        return -(-(_PERIODS[self.unit] // _MICROSECOND) // self.count) * _MICROSECOND

    def tokens_at(self, next_at: datetime | None, now: datetime) -> int:
        """Return how many tasks may start now. ``next_at``: when the next token comes; None for an unused bucket."""
        if next_at is None:
            return self.burst
        return 0 if next_at > now else min(self.burst, (now - next_at) // self.interval + 1)

    def next_after(self, next_at: datetime | None, now: datetime, taken: int) -> datetime:
        """Return when the next token comes after ``taken`` tokens are taken now."""
        full_since = now - self.interval * (self.burst - 1)
        return (full_since if next_at is None else max(next_at, full_since)) + self.interval * taken


def parse_rate_limit(value: str | None, *, field: str = "rate_limit") -> RateLimit | None:
    """Parse text such as ``100/m``, ``5/s`` or ``100/minute burst 20``; None is no limit."""
    if value is None:
        return None
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise Invalid(
            f"rate limit {quoted(value, 60)} is not a number of starts per second, minute or hour",
            code="rate_limit.text.invalid",
            field=field,
            remedy="write it like '100/m', '5/s' or '1000/h burst 20'",
        )
    count, burst = int(match["count"]), int(match["burst"] or 1)
    if not 1 <= count <= MAX_RATE or not 1 <= burst <= count:
        raise Invalid(
            f"rate limit {quoted(value, 60)} needs a count from 1 to {MAX_RATE:,} and a burst from 1 to the count",
            code="rate_limit.value.out_of_range",
            field=field,
        )
    return RateLimit(count, match["unit"][0], burst)
