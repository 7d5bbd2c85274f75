"""Policies: the rules a task carries along from its creation, as they are stored and as they are read back.

What stands in a row may have been written by a later version, or by hand; reading it never fails.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

from tenuto.errors import Invalid
from tenuto.model.retries import RetryPolicy

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
