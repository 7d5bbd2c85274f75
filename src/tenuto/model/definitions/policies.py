"""Retry policy and task policy: the rules that a task carries from its creation.

`max_attempts` is the number of attempts: with 3 the third failure is final, with 1 the first. Delays grow as
base × factor^n up to a cap. Jitter shortens them by a fraction derived from a seed, so that a repeated decision gives
the same result. Reading a stored policy never fails, although a later version or an operator may have written it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, TypeVar

from tenuto.errors import Invalid, quoted

LAST_CHANCE_KEY = "tenuto:last-chance"
"""Limit key of a task without one that runs alone; see the statements in `store/work/tasks.sql`."""
MAX_WORKER_LOSSES = 3
"""A task whose workers died this often while running it is a poison task: it fails instead of being retried."""
MAX_TIMEOUT_SECONDS = 30 * 86_400.0
MAX_ATTEMPTS = 1000
DEFAULT_MAX_ATTEMPTS = 15
"""With the default delays, the last attempt follows more than five hours after the first."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number and delay of the retries of a failed task. The defaults spread the attempts over hours."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    base_seconds: float = 10.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _check_range("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if not isinstance(self.max_attempts, int):
            raise Invalid(
                f"max_attempts {self.max_attempts} is not a whole number",
                code="retry.value.invalid",
                field="max_attempts",
            )
        _check_range("retry.base_seconds", self.base_seconds, 0, 86_400 * 30)
        _check_range("retry.factor", self.factor, 1, 100)
        _check_range("retry.cap_seconds", self.cap_seconds, 0, 86_400 * 366)
        _check_range("retry.jitter", self.jitter, 0, 1)

    def is_final_failure(self, failures: int) -> bool:
        """Return whether the n-th failure is the last one allowed."""
        return failures >= self.max_attempts

    def delay_after(self, failures: int, seed: str) -> timedelta:
        """Return the delay after the n-th failure (1, 2, …)."""
        try:
            delay = min(self.base_seconds * self.factor ** (failures - 1), self.cap_seconds)
        except OverflowError:
            delay = self.cap_seconds if self.base_seconds else 0.0
        # Jitter shortens the delay, so that the cap holds. The same seed gives the same delay in every process.
        fraction = random.Random(f"{seed}:{failures}").random()
        return timedelta(seconds=delay * (1 - self.jitter * fraction))

    def next_attempt_at(self, failures: int, now: datetime, seed: str) -> datetime | None:
        """Return the instant of the next attempt; None if this failure is final."""
        if self.is_final_failure(failures):
            return None
        return now + self.delay_after(failures, seed)


def resolve_retry_policy(max_attempts: int | None, retry: RetryPolicy | None) -> RetryPolicy:
    """Return the declared policy, given as a whole or as its ``max_attempts`` alone."""
    if retry is None:
        return RetryPolicy() if max_attempts is None else RetryPolicy(max_attempts=max_attempts)
    if not isinstance(retry, RetryPolicy):
        raise Invalid(
            f"retry {quoted(retry, 60)} is not a RetryPolicy",
            code="retry.type.invalid",
            field="retry",
            remedy="write it like RetryPolicy(max_attempts=5), or give max_attempts alone",
        )
    if max_attempts is not None:
        raise Invalid(
            "max_attempts is given twice: directly and as part of retry",
            code="retry.max_attempts.conflict",
            field="max_attempts",
            remedy=f"give it once: retry=RetryPolicy(max_attempts={max_attempts}, …)",
        )
    return retry


def resolve_max_retries(
    max_retries: int | None, *, max_attempts: int | None, retry: RetryPolicy | Mapping[str, Any] | None
) -> int | None:
    """Return the ``max_attempts`` of a manifest definition that may call it ``max_retries``.

    Only manifest definitions have this second name. The number means the same; 0 means 1.
    """
    if max_retries is None:
        return max_attempts
    other = "max_attempts" if max_attempts is not None else "retry" if retry is not None else None
    if other is not None:
        raise Invalid(
            f"max_retries is given beside {other}",
            code="retry.max_attempts.conflict",
            field="max_retries",
            remedy="keep one of them; max_retries is the number of attempts",
        )
    _check_range("max_retries", max_retries, 0, MAX_ATTEMPTS)
    if not isinstance(max_retries, int):
        raise Invalid(
            f"max_retries {max_retries} is not a whole number", code="retry.value.invalid", field="max_retries"
        )
    return max(max_retries, 1)


def delay_after_loss(losses: int) -> timedelta:
    """Return the delay after the n-th lost worker: none after the first, which is rarely the task's fault."""
    return timedelta(seconds=0 if losses <= 1 else 5.0 * 2 ** (losses - 2))


def _check_range(field: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{field} {quoted(value, 60)} is not a number", code="retry.value.invalid", field=field)
    if not low <= value <= high:  # false for NaN too
        raise Invalid(f"{field} {value} is not between {low} and {high}", code="retry.value.out_of_range", field=field)


_RETRY_FIELDS = ("max_attempts", "base_seconds", "factor", "cap_seconds", "jitter")
PolicyT = TypeVar("PolicyT", RetryPolicy, "TaskPolicy")


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """The rules of a task, fixed at its creation."""

    retry: RetryPolicy = RetryPolicy()
    timeout_seconds: float | None = None
    on_lost: Literal["retry", "fail"] = "retry"
    dead_letter: bool = True
    """Whether a task without a manifest becomes a dead letter when it fails for good. Runs of manifests always do."""

    def __post_init__(self) -> None:
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise Invalid(
                f"timeout {self.timeout_seconds:g} s is not more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} s",
                code="task.timeout.out_of_range",
                field="timeout",
            )
        if self.on_lost not in ("retry", "fail"):
            raise Invalid(
                f"on_lost {self.on_lost!r} is neither 'retry' nor 'fail'", code="task.on_lost.unknown", field="on_lost"
            )
        if not isinstance(self.dead_letter, bool):
            raise Invalid(
                f"dead_letter {quoted(self.dead_letter, 60)} is neither True nor False",
                code="task.dead_letter.invalid",
                field="dead_letter",
            )

    def to_json(self) -> str:
        """Return the stored form: only the fields that differ from the defaults."""
        return _dump_policy(self)


STEP_RETRY = RetryPolicy(max_attempts=3)
"""For a step whose job sets no policy: the other steps of an execution wait for it."""


def default_step_policy(policy: TaskPolicy) -> TaskPolicy:
    """Return the policy of a step without rules, given the policy of its job."""
    return replace(policy, retry=STEP_RETRY) if policy.retry == RetryPolicy() else policy


@lru_cache(maxsize=1024)
def _dump_policy(policy: TaskPolicy) -> str:
    """Cached: most tasks share a few policies."""
    retry, default = policy.retry, RetryPolicy()
    stored: dict[str, Any] = {
        field: getattr(retry, field) for field in _RETRY_FIELDS if getattr(retry, field) != getattr(default, field)
    }
    if policy.timeout_seconds is not None:
        stored["timeout_seconds"] = policy.timeout_seconds
    if policy.on_lost != "retry":
        stored["on_lost"] = policy.on_lost
    if not policy.dead_letter:
        stored["dead_letter"] = False
    return json.dumps(stored)


@lru_cache(maxsize=1024)
def policy_from_json(text: str) -> TaskPolicy:
    """Return a stored policy. Cached: most tasks share a few policies.

    Unknown fields are ignored and unreadable ones get their default, so that one row cannot prevent the settlement of
    other attempts. An unreadable ``on_lost`` becomes ``fail``: a task is not repeated unless that is known to be safe.
    """
    try:
        stored: Any = json.loads(text)
    except ValueError:
        stored = {}
    if not isinstance(stored, dict):
        stored = {}
    if "max_attempts" not in stored and isinstance(stored.get("max_retries"), int):
        stored["max_attempts"] = max(stored["max_retries"], 1)  # the name before version 0.1.0
    retry = _apply_valid_fields(RetryPolicy(), {name: stored[name] for name in _RETRY_FIELDS if name in stored})
    on_lost: Literal["retry", "fail"] = "retry" if stored.get("on_lost", "retry") == "retry" else "fail"
    policy = TaskPolicy(retry, on_lost=on_lost, dead_letter=stored.get("dead_letter") is not False)
    return _apply_valid_fields(policy, {"timeout_seconds": stored.get("timeout_seconds")})


def _apply_valid_fields(policy: PolicyT, stored: dict[str, Any]) -> PolicyT:
    for name, value in stored.items():
        with suppress(TypeError, ValueError, Invalid):
            policy = replace(policy, **{name: value})
    return policy
