"""How often somebody may ask: so many requests a second for each caller, and few guesses at keys for each address.

Kept in this process only: it protects the process, and is no account of anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.api.problems import Refused
from tenuto.clock import steady

_GUESSES = 20
_GUESSES_WITHIN = 60.0
_LOOKUPS_PER_SECOND = 5.0
_MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Rates:
    """The buckets of everybody who asked lately."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: dict[str, _Bucket] = {}
        self._guesses: dict[str, _Bucket] = {}
        self._lookups: dict[str, _Bucket] = {}

    def count(self, who: str) -> None:
        """One more request; refused if it is too many."""
        if self._per_second <= 0:
            return
        bucket = _filled(self._buckets, who, self._per_second, most=2 * self._per_second)
        if bucket.left < 1:
            raise Refused(
                429,
                f"more than {self._per_second:g} requests a second",
                remedy="ask less often",
                headers={"Retry-After": "1"},
            )
        bucket.left -= 1

    def has_guessed_enough(self, address: str) -> bool:
        """Whether too many wrong keys came from there."""
        if address not in self._guesses:
            return False
        return _filled(self._guesses, address, _GUESSES / _GUESSES_WITHIN, most=_GUESSES).left < 1

    def refuse_guessers(self, address: str) -> None:
        """Whoever showed too many wrong keys waits."""
        if self.has_guessed_enough(address):
            raise _guesser()

    def look_up(self, address: str) -> None:
        """Somebody nobody knows wants to be looked up in the database. From where too many wrong keys came only a few
        are, each second: it costs the same whether the key is right, and a neighbour's may be."""
        if not self.has_guessed_enough(address):
            return
        bucket = _filled(self._lookups, address, _LOOKUPS_PER_SECOND, most=_LOOKUPS_PER_SECOND)
        if bucket.left < 1:
            raise _guesser()
        bucket.left -= 1

    def guessed(self, address: str) -> None:
        """A wrong key was shown."""
        _filled(self._guesses, address, _GUESSES / _GUESSES_WITHIN, most=_GUESSES).left -= 1


def _guesser() -> Refused:
    return Refused(429, "too many keys that are not valid", remedy="wait a minute", headers={"Retry-After": "60"})


def _filled(buckets: dict[str, _Bucket], who: str, rate: float, *, most: float) -> _Bucket:
    now = steady()
    bucket = buckets.get(who)
    if bucket is None:
        if len(buckets) >= _MOST_REMEMBERED:
            buckets.clear()  # whoever floods us with names gains one bucket more; nobody loses anything
        bucket = buckets[who] = _Bucket(most, now)
    bucket.left = min(most, bucket.left + (now - bucket.at) * rate)
    bucket.at = now
    return bucket
