"""Steps: single pieces of work in a plan, of whichever kind.

A step is a value: it is checked when it is made, and goes to plain data and back. Here it is checked that it is a step
at all; its arguments are the business of its kind, which looks at them when the schedule is saved. For each kind that
comes with Tenuto there is a way to write a step of it in code, with names and types to go by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal, Protocol, TypedDict, Unpack

from tenuto.errors import Invalid
from tenuto.model import stored_values
from tenuto.model.policies import Policy, RetryPolicy, policy_from_json
from tenuto.model.secrets import SecretRef
from tenuto.model.tasks import MAX_PRIORITY, seconds

JOB = "job"
SCHEDULE = "schedule"
EXECUTABLE = "executable"
POWERSHELL = "powershell"
HTTP_CALL = "http.call"
LOG_APPEND = "log.append"
SQL = "sql"
MANIFEST = "manifest"

Given = str | SecretRef | Mapping[str, str]
"""A text, or the secret that stands for it: ``{"secret": "NAME"}``."""


class StepOptions(TypedDict, total=False):
    """What may be said of any step. What is left out is as with its job."""

    name: str | None
    continue_on_failure: bool
    timeout: float | str | timedelta | None
    retry: RetryPolicy | Mapping[str, Any] | None
    max_retries: int | None
    on_lost: Literal["retry", "fail"] | None
    queue: str | None
    priority: int | None


class ProgramOptions(StepOptions, total=False):
    """What may be said of a step that runs a program."""

    env: Mapping[str, Given]
    folder: str | None
    stdin: Given | None
    success_codes: Sequence[int]
    warning_codes: Sequence[int]
    output_limit: int
    grace_seconds: float
    sha256: str | None


class PowerShellOptions(ProgramOptions, total=False):
    """What may be said of a step that runs a PowerShell script."""

    program: str | None


class HttpOptions(StepOptions, total=False):
    """What may be said of a step that sends an HTTP request; ``timeout`` is the request's."""

    headers: Mapping[str, Given]
    body: Any
    expected_status: Sequence[int | str]
    response_limit: int
    follow_redirects: bool


class Runnable(Protocol):
    """What a step of Python code is made from."""

    @property
    def name(self) -> str: ...

    def dump_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work in a plan. What is None is taken from the job when the schedule is saved."""

    kind: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    continue_on_failure: bool = False
    policy: Policy | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)
    """What is otherwise than with its job: timeout, retry, max_retries, on_lost. Part of the policy once saved."""
    queue: str | None = None
    priority: int | None = None
    limit_key: str | None = None
    limit_max: int | None = None

    def __post_init__(self) -> None:
        policy_of(Policy(), **self.rules)
        stored_values.name(self.kind, field="kind", limit=64)
        stored_values.label(self.target, field="target")
        object.__setattr__(self, "name", self.name or self.target)
        stored_values.label(self.name, field="name")
        if not isinstance(self.arguments, Mapping):
            raise Invalid("are not a set of named values", field="arguments", remedy="give a mapping")
        if not isinstance(self.continue_on_failure, bool):
            raise Invalid("must be true or false", field="continue_on_failure")
        if self.queue is not None:
            stored_values.name(self.queue, field="queue", limit=64)
        if self.priority is not None and (
            isinstance(self.priority, bool)
            or not isinstance(self.priority, int)
            or not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY
        ):
            raise Invalid(f"must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="priority")

    @classmethod
    def job(
        cls, job: Runnable, *args: Any, input: Mapping[str, Any] | None = None, **options: Unpack[StepOptions]
    ) -> Step:
        """A step that runs a Python job with these arguments; named ones go into ``input``, to keep them apart from
        the step's own options."""
        arguments = json.loads(job.dump_input(args, dict(input or {})))
        return cls(JOB, job.name, arguments, **_step_options(dict(options)))

    @classmethod
    def schedule(cls, schedule: str, /, **options: Unpack[StepOptions]) -> Step:
        """A step that runs another schedule and ends when that has ended."""
        return cls(SCHEDULE, schedule, **_step_options(dict(options)))

    @classmethod
    def manifest(
        cls,
        manifest: str,
        /,
        input: Mapping[str, Any] | None = None,
        wait: bool | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step that runs a manifest once, with its properties and this input, and ends when that run has ended (or at
        once, if it is not to ``wait``)."""
        arguments = {"manifest": manifest, "input": input, "wait": wait}
        return cls._with_arguments(MANIFEST, arguments, {"name": manifest, **options})

    @classmethod
    def executable(cls, program: str, /, *args: str, **options: Unpack[ProgramOptions]) -> Step:
        """A step that runs a program, never through a shell."""
        arguments = {"program": program, "args": list(args)}
        return cls._with_arguments(EXECUTABLE, arguments, {"name": program.rpartition("/")[2], **options})

    @classmethod
    def powershell(
        cls, script: str | None, /, *args: str, text: str | None = None, **options: Unpack[PowerShellOptions]
    ) -> Step:
        """A step that runs a PowerShell script: a file of the machine, or (None and) its text; else as `executable`."""
        arguments = {"script": script, "text": text, "args": list(args)}
        named = (script or POWERSHELL).rpartition("/")[2]
        return cls._with_arguments(POWERSHELL, arguments, {"name": named, **options})

    @classmethod
    def http(cls, url: Given, /, method: str = "POST", **options: Unpack[HttpOptions]) -> Step:
        """A step that sends an HTTP request. ``timeout`` is how long that may take, all in all."""
        named = f"{method} {url.partition('?')[0]}"[:200] if isinstance(url, str) else HTTP_CALL
        arguments = {"url": url, "method": method, "timeout": options.pop("timeout", None)}
        return cls._with_arguments(HTTP_CALL, arguments, {"name": named, **options})

    @classmethod
    def log(
        cls,
        message: str,
        /,
        log: str = "default",
        fields: Mapping[str, Any] | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step that appends to a named log, with data in ``fields`` if there is any."""
        arguments = {"message": message, "log": log, "fields": fields}
        return cls._with_arguments(LOG_APPEND, arguments, {"name": f"log {log}", **options})

    @classmethod
    def sql(
        cls,
        connection: str,
        script: str | None = None,
        *,
        script_file: str | None = None,
        parameters: Mapping[str, Given | float | None] | None = None,
        statement_timeout: float | str | None = None,
        transaction: bool | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step that runs a SQL script (its text, or ``script_file``) on a connection of the worker's settings, or on
        ``sqlite:///FILE``. ``statement_timeout`` bounds each statement, ``timeout`` the whole."""
        arguments = {
            "connection": connection,
            "script": script,
            "script_file": script_file,
            "parameters": parameters,
            "timeout": statement_timeout,
            "transaction": transaction,
        }
        named = script_file.rpartition("/")[2] if script_file else f"sql on {connection}"[:200]
        return cls._with_arguments(SQL, arguments, {"name": named, **options})

    @classmethod
    def _with_arguments(cls, kind: str, arguments: dict[str, Any], options: dict[str, Any]) -> Step:
        """What is None was not said; what is no option of a step is one more argument of its kind."""
        own = {name: options.pop(name) for name in _STEP_OPTIONS if name in options}
        said = {name: value for name, value in {**arguments, **options}.items() if value is not None}
        return cls.of_kind(kind, {name: _plain_argument(value) for name, value in said.items()}, **own)

    @classmethod
    def of_kind(
        cls, kind: str, arguments: Mapping[str, Any], *, target: str | None = None, **options: Unpack[StepOptions]
    ) -> Step:
        """A step of any kind there is a handler for."""
        return cls(kind, target or kind, arguments, **_step_options(dict(options)))

    def to_fields(self) -> dict[str, Any]:
        """As plain data; what was not said is left out."""
        stored: dict[str, Any] = {"name": self.name, "kind": self.kind, "target": self.target}
        if self.arguments:
            stored["arguments"] = dict(self.arguments)
        if self.continue_on_failure:
            stored["continue_on_failure"] = True
        if self.policy is not None:
            stored["policy"] = json.loads(self.policy.to_json())
        if self.rules:
            stored["rules"] = {name: _plain_rule(value) for name, value in self.rules.items()}
        for option in ("queue", "priority", "limit_key", "limit_max"):
            if getattr(self, option) is not None:
                stored[option] = getattr(self, option)
        return stored


_STEP_FIELDS = {each.name for each in fields(Step)}
_RULES = ("timeout", "retry", "max_retries", "on_lost")
_STEP_OPTIONS = ("name", "continue_on_failure", *_RULES, "queue", "priority")


def _step_options(options: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - set(_STEP_OPTIONS))
    if unknown:
        raise Invalid("a step has no such option", field=unknown[0], remedy=f"use one of {', '.join(_STEP_OPTIONS)}")
    rules = {name: options.pop(name) for name in _RULES if options.get(name) is not None}
    return {**{name: value for name, value in options.items() if value is not None}, "rules": rules}


def _plain_argument(value: Any) -> Any:
    if isinstance(value, SecretRef):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping):
        return {name: _plain_argument(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _plain_rule(value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return asdict(value)
    return value.total_seconds() if isinstance(value, timedelta) else value


def policy_of(
    policy: Policy, timeout: Any = None, retry: Any = None, max_retries: int | None = None, on_lost: Any = None
) -> Policy:
    """A policy with some rules changed, as people write them."""
    if retry is not None and max_retries is not None:
        raise Invalid("is given beside retry", field="max_retries", remedy="say it within retry")
    if isinstance(retry, Mapping):
        unknown = sorted(str(name) for name in retry.keys() - {each.name for each in fields(RetryPolicy)})
        if unknown:
            raise Invalid("is no rule of a retry", field=f"retry.{unknown[0]}")
        retry = replace(policy.retry, **retry)
    if retry is None:
        retry = policy.retry if max_retries is None else replace(policy.retry, max_retries=max_retries)
    if not isinstance(retry, RetryPolicy):
        raise Invalid("is not a set of rules", field="retry", remedy="write {max_retries: 5, base_seconds: 10}")
    limit = policy.timeout_seconds if timeout is None else seconds(timeout, field="timeout")
    return Policy(retry, limit, on_lost or policy.on_lost)


def step_from_fields(stored: object) -> Step:
    """A step as `Step.to_fields` gives it."""
    if not isinstance(stored, Mapping):
        raise Invalid("is not a set of named fields", field="step")
    given = {str(name): value for name, value in stored.items()}
    unknown = sorted(given.keys() - _STEP_FIELDS)
    if unknown:
        raise Invalid("a step has no such field", field=unknown[0][:80])
    if "policy" in given:
        given["policy"] = policy_from_json(json.dumps(given["policy"]))
    return Step(**given)
