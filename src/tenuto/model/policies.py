"""Policies: the rules a task carries along from its creation, as they are stored and as they are read back.

What stands in a row may have been written by a later version, or by hand; reading it never fails.

When a failed attempt is tried again.

`max_retries` counts failed attempts: with 3 the third failure is final, with 0 or 1 the first. Waits grow as
base × factor^n up to a cap, spread by jitter so that a thousand failures do not come back as one wave. The spread is
derived from a seed instead of drawn, so that a repeated decision is the same decision.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, TypeVar

from tenuto.errors import Invalid

LOSSES_BEFORE_SET_ASIDE = 3
"""A task whose workers died this often while running it is set aside instead of tried again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and after what wait, failed work is tried again."""

    max_retries: int = 3
    base_seconds: float = 10.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _check("max_retries", self.max_retries, 0, 1000)
        if not isinstance(self.max_retries, int):
            raise Invalid(f"{self.max_retries} is not a whole number", field="max_retries")
        _check("retry.base_seconds", self.base_seconds, 0, 86_400 * 30)
        _check("retry.factor", self.factor, 1, 100)
        _check("retry.cap_seconds", self.cap_seconds, 0, 86_400 * 366)
        _check("retry.jitter", self.jitter, 0, 1)

    def is_final(self, failures: int) -> bool:
        """Whether the n-th failure is the last one allowed."""
        return failures >= max(self.max_retries, 1)

    def wait_after(self, failures: int, seed: str) -> timedelta:
        """How long to wait after the n-th failure (1, 2, …)."""
        try:
            wait = min(self.base_seconds * self.factor ** (failures - 1), self.cap_seconds)
        except OverflowError:
            wait = self.cap_seconds if self.base_seconds else 0.0
        # Spread downwards, so that the cap stays a cap. The seed makes the same failure wait the same time everywhere.
        spread = random.Random(f"{seed}:{failures}").random()
        return timedelta(seconds=wait * (1 - self.jitter * spread))

    def next_run(self, failures: int, now: datetime, seed: str) -> datetime | None:
        """The instant of the next attempt, or None if this failure is final."""
        if self.is_final(failures):
            return None
        return now + self.wait_after(failures, seed)


def retry_policy(max_retries: int | None, retry: RetryPolicy | None) -> RetryPolicy:
    """The policy somebody declared: a whole one, or its number of retries alone. Both would contradict each other."""
    if retry is None:
        return RetryPolicy() if max_retries is None else RetryPolicy(max_retries=max_retries)
    if max_retries is not None:
        raise Invalid(
            "is given beside retry, which has a number of its own",
            field="max_retries",
            remedy=f"say it once: retry=RetryPolicy(max_retries={max_retries}, …)",
        )
    return retry


def wait_after_loss(losses: int) -> timedelta:
    """The first loss is tried again at once: mostly the worker is to blame; after that, ever more slowly."""
    return timedelta(seconds=0 if losses <= 1 else 5.0 * 2 ** (losses - 2))


def _check(field: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{value!r:.60} is not a number", field=field)
    if not low <= value <= high:  # false for NaN too
        raise Invalid(f"must be between {low} and {high}, not {value}", field=field)


MAX_TIMEOUT_SECONDS = 30 * 86_400.0
_RETRY_FIELDS = ("max_retries", "base_seconds", "factor", "cap_seconds", "jitter")
Rules = TypeVar("Rules", RetryPolicy, "Policy")


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules a task carries along, fixed when it was created."""

    retry: RetryPolicy = RetryPolicy()
    timeout_seconds: float | None = None
    on_lost: Literal["retry", "fail"] = "retry"

    def __post_init__(self) -> None:
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise Invalid(f"must be more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} s", field="timeout")
        if self.on_lost not in ("retry", "fail"):
            raise Invalid(f"{self.on_lost!r} is neither 'retry' nor 'fail'", field="on_lost")

    def to_json(self) -> str:
        """As stored: only what differs from the defaults, so that most rows say nothing."""
        return _policy_as_json(self)


@lru_cache(maxsize=1024)
def _policy_as_json(policy: Policy) -> str:
    """Few differ, so each is written once."""
    retry, default = policy.retry, RetryPolicy()
    stored: dict[str, Any] = {
        field: getattr(retry, field) for field in _RETRY_FIELDS if getattr(retry, field) != getattr(default, field)
    }
    if policy.timeout_seconds is not None:
        stored["timeout_seconds"] = policy.timeout_seconds
    if policy.on_lost != "retry":
        stored["on_lost"] = policy.on_lost
    return json.dumps(stored)


@lru_cache(maxsize=1024)
def policy_from_json(text: str) -> Policy:
    """A policy as stored. Few differ, so each text is read once.

    A rule this version does not know is passed over, and one nobody can read is the default one: whatever stands in one
    row, the attempts of all the others must still be settled. But what is not surely to be repeated is not.
    """
    try:
        stored: Any = json.loads(text)
    except ValueError:
        stored = {}
    if not isinstance(stored, dict):
        stored = {}
    retry = _as_far_as_it_can_be_read(RetryPolicy(), {name: stored[name] for name in _RETRY_FIELDS if name in stored})
    on_lost: Literal["retry", "fail"] = "retry" if stored.get("on_lost", "retry") == "retry" else "fail"
    return _as_far_as_it_can_be_read(Policy(retry, on_lost=on_lost), {"timeout_seconds": stored.get("timeout_seconds")})


def _as_far_as_it_can_be_read(rules: Rules, stored: dict[str, Any]) -> Rules:
    for name, value in stored.items():
        with suppress(TypeError, ValueError, Invalid):
            rules = replace(rules, **{name: value})
    return rules
