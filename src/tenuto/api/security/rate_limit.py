"""Rate limits: requests per second for each caller, and failed authentications for each address and
each key prefix from an address.

The counts live in this process only. They protect the process and are not an accounting.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.api.problems import Refused
from tenuto.clock import monotonic_seconds

_MAX_FAILURES = 20
_FAILURE_WINDOW_SECONDS = 60.0
_LOOKUPS_PER_SECOND = 5.0
_MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _Bucket:
    """Token bucket."""

    tokens: float
    filled_at: float


class RateLimiter:
    """Token buckets of the callers and addresses seen recently."""

    def __init__(self, requests_per_second: float) -> None:
        self._requests_per_second = requests_per_second
        self._requests: dict[str, _Bucket] = {}
        self._failures: dict[str, _Bucket] = {}
        self._lookups: dict[str, _Bucket] = {}

    def count_request(self, caller: str) -> None:
        """Count a request of a caller; refuse it above the limit."""
        rate = self._requests_per_second
        if rate <= 0:
            return
        bucket = _refill(self._requests, caller, rate, capacity=2 * rate)
        if bucket.tokens < 1:
            raise Refused(
                429,
                f"the caller sent more than {rate:g} requests per second",
                code="rate_limit.exceeded",
                remedy="send fewer requests per second",
                headers={"Retry-After": "1"},
            )
        bucket.tokens -= 1

    def has_too_many_failures(self, address: str, prefix: str = "") -> bool:
        """Return whether too many authentications from this address, or of this key prefix from it, failed recently."""
        scope = f"{address} {prefix}"
        return scope in self._failures and self._refill_failures(scope).tokens < 1

    def refuse_after_failures(self, address: str) -> None:
        """Refuse an address with too many failed authentications."""
        if self.has_too_many_failures(address):
            raise too_many_failures()

    def count_lookup(self, address: str, prefix: str = "") -> None:
        """Count a lookup of unknown credentials in the database; refuse it above the limit.

        The limit applies after too many failures only. It does not depend on whether the credentials are valid, because
        callers behind one proxy share an address.
        """
        if not self.has_too_many_failures(address, prefix):
            return
        bucket = _refill(self._lookups, f"{address} {prefix}", _LOOKUPS_PER_SECOND, capacity=_LOOKUPS_PER_SECOND)
        if bucket.tokens < 1:
            raise too_many_failures()
        bucket.tokens -= 1

    def count_failure(self, address: str, prefix: str = "") -> None:
        """Count a failed authentication from an address, or with a key prefix from it."""
        self._refill_failures(f"{address} {prefix}").tokens -= 1

    def _refill_failures(self, scope: str) -> _Bucket:
        return _refill(self._failures, scope, _MAX_FAILURES / _FAILURE_WINDOW_SECONDS, capacity=_MAX_FAILURES)


def too_many_failures() -> Refused:
    return Refused(
        429,
        "too many authentications from this address failed",
        code="rate_limit.failed_authentications",
        remedy="wait a minute",
        headers={"Retry-After": "60"},
    )


def _refill(buckets: dict[str, _Bucket], name: str, rate: float, *, capacity: float) -> _Bucket:
    now = monotonic_seconds()
    bucket = buckets.get(name)
    if bucket is None:
        if len(buckets) >= _MAX_BUCKETS:
            buckets.clear()  # bounds the memory; a flood of names gains each of them one full bucket
        bucket = buckets[name] = _Bucket(capacity, now)
    bucket.tokens = min(capacity, bucket.tokens + (now - bucket.filled_at) * rate)
    bucket.filled_at = now
    return bucket
