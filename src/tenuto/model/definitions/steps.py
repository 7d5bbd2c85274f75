"""Steps of a plan, with one constructor per built-in step kind.

A step is an immutable value that converts to plain data and back. It validates its own fields when it is made; its step
kind validates the arguments when the schedule is saved.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from pydantic import BaseModel

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.access.secrets import SecretRef
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy, policy_from_json
from tenuto.model.definitions.step_expressions import (
    Condition,
    StatusTest,
    StepOutput,
    StepStatus,
    find_references,
    has_references,
    replace_outputs,
    to_condition,
)
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import (
    MAX_PRIORITY,
    check_rate_key,
    parse_duration_seconds,
    parse_expires_in,
    priority_error,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JOB = "job"
SCHEDULE = "schedule"
EXECUTABLE = "executable"
POWERSHELL = "powershell"
HTTP_CALL = "http.call"
LOG_APPEND = "log.append"
SQL = "sql"
MANIFEST = "manifest"
APPROVAL = "approval"

TextArgument = str | SecretRef | Mapping[str, str]
"""A text, or a secret reference: ``{"secret": "NAME"}``."""


class StepOptions(TypedDict, total=False):
    """Options of every step. An option that is left out is taken from the job."""

    name: str | None
    continue_on_failure: bool
    timeout: float | str | timedelta | None
    retry: RetryPolicy | Mapping[str, Any] | None
    max_attempts: int | None
    on_lost: Literal["retry", "fail"] | None
    queue: str | None
    priority: int | None
    needs: Sequence[Step | str]
    """Earlier steps after which it may start, although others of their groups still run."""
    when: Condition | StepOutput | str | None
    """The condition on earlier steps under which it runs; otherwise it is skipped."""


class ProgramOptions(StepOptions, total=False):
    """Options of a step that runs a program."""

    env: Mapping[str, TextArgument]
    folder: str | None
    stdin: TextArgument | None
    success_codes: Sequence[int]
    warning_codes: Sequence[int]
    output_limit: int
    grace_seconds: float
    sha256: str | None


class PowerShellOptions(ProgramOptions, total=False):
    """Options of a step that runs a PowerShell script."""

    program: str | None


class HttpOptions(StepOptions, total=False):
    """Options of a step that sends an HTTP request; ``timeout`` bounds the request."""

    headers: Mapping[str, TextArgument]
    body: Any
    expected_status: Sequence[int | str]
    response_limit: int
    follow_redirects: bool


class RegisteredJob(Protocol):
    """A registered job, as far as a step needs it."""

    @property
    def name(self) -> str: ...

    def dump_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str: ...

    def name_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]: ...

    def validate_partial_input(self, values: Mapping[str, Any]) -> dict[str, Any]: ...


def not_a_job_error(given: object) -> Invalid:
    """Return the error for a value that was given instead of a job: what it is, and what to write instead."""
    if inspect.iscoroutine(given):
        given.close()  # it would never be awaited
        problem, remedy = "the job was called instead of passed", "give the job, then its arguments: enqueue(job, 1, 2)"
    elif isinstance(given, str):
        problem, remedy = f"{quoted(given, 60)} is a text, not a job", "give the function with @app.job, not its name"
    elif callable(given):
        problem, remedy = f"{getattr(given, '__name__', quoted(given, 60))}() is not a job", "put @app.job above it"
    else:
        problem, remedy = f"{quoted(given, 60)} is not a job", "give a function with @app.job above it"
    return Invalid(problem, code="job.type.invalid", field="job", remedy=remedy)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan. Fields that are None are taken from the job when the schedule is saved."""

    kind: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    continue_on_failure: bool = False
    policy: TaskPolicy | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the job's policy: timeout, retry, max_attempts, on_lost. Merged into ``policy`` when it is saved."""
    queue: str | None = None
    priority: int | None = None
    limit_key: str | None = None
    limit_max: int | None = None
    rate_key: str | None = None
    rate_limit: str | None = None
    expires_seconds: float | None = None
    """Time after the start of its group after which it ends as expired if it has not started."""
    needs: tuple[str, ...] = ()
    """Names of earlier steps after which it may start, although others of their groups still run."""
    when: str | None = None
    """The condition on earlier steps under which it runs; otherwise it is skipped."""

    def __post_init__(self) -> None:
        override_policy(TaskPolicy(), **self.rules)
        validation.check_name(self.kind, field="kind", limit=64)
        validation.check_label(self.target, field="target")
        object.__setattr__(self, "name", self.name or self.target)
        validation.check_label(self.name, field="name")
        if not isinstance(self.arguments, Mapping):
            raise Invalid(
                f"the arguments of step {quoted(self.name, 60)} are not a mapping",
                code="step.arguments.invalid",
                field="arguments",
                remedy="give a mapping of names to values",
            )
        if not isinstance(self.continue_on_failure, bool):
            raise Invalid(
                f"continue_on_failure {quoted(self.continue_on_failure, 60)} is neither true nor false",
                code="step.continue_on_failure.invalid",
                field="continue_on_failure",
            )
        if self.queue is not None:
            validation.check_name(self.queue, field="queue", limit=64)
        if self.priority is not None and (
            isinstance(self.priority, bool)
            or not isinstance(self.priority, int)
            or not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY
        ):
            raise priority_error(self.priority)
        if self.rate_key is not None or self.rate_limit is not None:
            check_rate_key(self.rate_key, parse_rate_limit(self.rate_limit))
        if self.expires_seconds is not None:
            parse_expires_in(self.expires_seconds)
        if self.needs != ():
            object.__setattr__(self, "needs", _to_step_names(self.needs))
        if self.when is not None:
            object.__setattr__(self, "when", str(to_condition(self.when)))

    # --- expressions ------------------------------------------------------------------------------------------------

    @property
    def output(self) -> StepOutput:
        """The output of the step, for arguments and conditions of later steps: ``extract.output["rows"]``."""
        return StepOutput(self.name)

    @property
    def succeeded(self) -> Condition:
        """The condition that the step completed, with or without a warning."""
        return StatusTest(self.name, StepStatus.SUCCEEDED)

    @property
    def failed(self) -> Condition:
        """The condition that the step failed, completed with an error or was cancelled."""
        return StatusTest(self.name, StepStatus.FAILED)

    @property
    def skipped(self) -> Condition:
        """The condition that the step was skipped."""
        return StatusTest(self.name, StepStatus.SKIPPED)

    @property
    def condition(self) -> Condition | None:
        return None if self.when is None else to_condition(self.when)

    @property
    def depends_on_steps(self) -> bool:
        """Whether it takes values from earlier steps, has a condition, or names the steps that it needs."""
        return bool(self.needs) or self.when is not None or has_references(self.arguments)

    @property
    def sources(self) -> set[str]:
        """Names of the steps from which it takes values."""
        return {place.output.step for place in find_references(self.arguments)}

    @property
    def predecessors(self) -> set[str]:
        """Names of the earlier steps that it names in any way."""
        condition = self.condition
        return {*self.needs, *self.sources, *(() if condition is None else condition.steps)}

    # --- constructors -----------------------------------------------------------------------------------------------

    @classmethod
    def job(
        cls,
        job: RegisteredJob,
        *args: Any,
        input: Mapping[str, Any] | None = None,
        name: str | None = None,
        continue_on_failure: bool = False,
        timeout: float | str | timedelta | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        on_lost: Literal["retry", "fail"] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        needs: Sequence[Step | str] = (),
        when: Condition | StepOutput | str | None = None,
        **arguments: Any,
    ) -> Step:
        """A step that runs a Python job with these arguments. ``extract.output`` stands for the output of a step.

        An argument with the name of an option, such as ``timeout``, is given in ``input``.
        """
        if not hasattr(job, "dump_input"):
            raise not_a_job_error(job)
        options = StepOptions(
            name=name, continue_on_failure=continue_on_failure, timeout=timeout, retry=retry,
            max_attempts=max_attempts, on_lost=on_lost, queue=queue, priority=priority, needs=needs, when=when,
        )  # fmt: skip
        given = {**(input or {}), **arguments}
        if not _contains_output([*args, *given.values()]):
            return cls(JOB, job.name, json.loads(job.dump_input(args, given)), **_step_options(dict(options)))
        plain = {each: replace_outputs(value) for each, value in job.name_arguments(args, given).items()}
        fixed = {each: value for each, value in plain.items() if not has_references(value)}
        checked = job.validate_partial_input(fixed)
        return cls(JOB, job.name, {**plain, **checked}, **_step_options(dict(options)))

    @classmethod
    def schedule(cls, schedule: str, /, **options: Unpack[StepOptions]) -> Step:
        """A step that runs another schedule and ends when that execution ends."""
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
        """A step that runs a manifest once with its properties and this input. It ends when the run ends, or
        immediately with ``wait=False``."""
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
        """A step that runs a PowerShell script: a file on the worker's machine, or None and its ``text``."""
        arguments = {"script": script, "text": text, "args": list(args)}
        named = (script or POWERSHELL).rpartition("/")[2]
        return cls._with_arguments(POWERSHELL, arguments, {"name": named, **options})

    @classmethod
    def http(cls, url: TextArgument, /, method: str = "POST", **options: Unpack[HttpOptions]) -> Step:
        """A step that sends an HTTP request. ``timeout`` bounds the whole request."""
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
        """A step that appends a message, with optional ``fields``, to a named log."""
        arguments = {"message": message, "log": log, "fields": fields}
        return cls._with_arguments(LOG_APPEND, arguments, {"name": f"log {log}", **options})

    @classmethod
    def sql(
        cls,
        connection: str,
        script: str | None = None,
        *,
        script_file: str | None = None,
        parameters: Mapping[str, TextArgument | float | None] | None = None,
        statement_timeout: float | str | None = None,
        transaction: bool | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step that runs a SQL script (text, or ``script_file``) on a connection from the worker's settings or on
        ``sqlite:///FILE``. ``statement_timeout`` bounds each statement, ``timeout`` the whole script."""
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
    def approval(
        cls,
        message: str,
        /,
        *,
        role: str | None = None,
        approvers: Sequence[str] | None = None,
        count: int | None = None,
        deadline: float | str | None = None,
        on_deadline: Literal["fail", "approve", "reject", "skip"] | None = None,
        context: Mapping[str, Any] | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step that waits until persons approve, without holding a slot. A rejection fails it.

        ``approvers`` may decide, and callers with the ``role`` or a higher one; operators if neither is given.
        ``count`` persons must approve before the ``deadline``.
        """
        arguments = {
            "message": message,
            "role": role,
            "approvers": None if approvers is None else list(approvers),
            "count": count,
            "deadline": deadline,
            "on_deadline": on_deadline,
            "context": context,
        }
        return cls._with_arguments(APPROVAL, arguments, {"name": APPROVAL, **options})

    @classmethod
    def _with_arguments(cls, kind: str, arguments: dict[str, Any], options: dict[str, Any]) -> Step:
        """Make a step. Options that are not step options become arguments of the kind; None means not given."""
        own = {name: options.pop(name) for name in _STEP_OPTIONS if name in options}
        given = {name: value for name, value in {**arguments, **options}.items() if value is not None}
        return cls.of(kind, {name: _to_plain_argument(value) for name, value in given.items()}, **own)

    @classmethod
    def of(
        cls,
        kind: str,
        arguments: Mapping[str, Any] | BaseModel | DataclassInstance | None = None,
        *,
        target: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """A step of any kind that has a handler; a dataclass or a pydantic model may hold its arguments."""
        return cls(kind, target or kind, _to_plain_arguments(arguments), **_step_options(dict(options)))

    def to_fields(self) -> dict[str, Any]:
        """Return plain data; optional fields that are not set are left out."""
        stored: dict[str, Any] = {"name": self.name, "kind": self.kind, "target": self.target}
        if self.arguments:
            stored["arguments"] = dict(self.arguments)
        if self.continue_on_failure:
            stored["continue_on_failure"] = True
        if self.policy is not None:
            stored["policy"] = json.loads(self.policy.to_json())
        if self.rules:
            stored["rules"] = {name: _to_plain_rule(value) for name, value in self.rules.items()}
        for option in ("queue", "priority", "limit_key", "limit_max", "rate_key", "rate_limit", "expires_seconds"):
            if getattr(self, option) is not None:
                stored[option] = getattr(self, option)
        if self.needs:
            stored["needs"] = list(self.needs)
        if self.when is not None:
            stored["when"] = self.when
        return stored


_STEP_FIELDS = {each.name for each in fields(Step)}
_RULES = ("timeout", "retry", "max_attempts", "on_lost")
_STEP_OPTIONS = ("name", "continue_on_failure", *_RULES, "queue", "priority", "needs", "when")


def _step_options(options: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - set(_STEP_OPTIONS))
    if unknown:
        raise Invalid(
            f"a step has no option {quoted(unknown[0], 60)}",
            code="step.option.unknown",
            field=unknown[0],
            remedy=f"use one of {', '.join(_STEP_OPTIONS)}",
        )
    rules = {name: options.pop(name) for name in _RULES if options.get(name) is not None}
    return {**{name: value for name, value in options.items() if value is not None}, "rules": rules}


def _to_plain_arguments(arguments: Mapping[str, Any] | BaseModel | DataclassInstance | None) -> Mapping[str, Any]:
    if isinstance(arguments, BaseModel):
        return arguments.model_dump(mode="json", exclude_none=True)
    if is_dataclass(arguments) and not isinstance(arguments, type):
        return {name: value for name, value in asdict(arguments).items() if value is not None}
    return replace_outputs(arguments or {})  # type: ignore[no-any-return]


def _to_step_names(needs: object) -> tuple[str, ...]:
    if not isinstance(needs, list | tuple) or not all(isinstance(each, Step | str) for each in needs):
        raise Invalid(
            f"needs {quoted(needs, 60)} is not a list of steps",
            code="step.needs.invalid",
            field="needs",
            remedy="write needs: [extract], or needs=[extract] in Python",
        )
    return tuple(dict.fromkeys(each.name if isinstance(each, Step) else each for each in needs))


def _contains_output(value: Any) -> bool:
    if isinstance(value, StepOutput):
        return True
    if isinstance(value, str):
        return has_references(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_contains_output(part) for part in parts)


def _to_plain_argument(value: Any) -> Any:
    if isinstance(value, StepOutput | Condition):
        return replace_outputs(value)
    if isinstance(value, SecretRef):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping):
        return {name: _to_plain_argument(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_argument(each) for each in value]
    return value


def _to_plain_rule(value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return asdict(value)
    return value.total_seconds() if isinstance(value, timedelta) else value


def override_policy(
    policy: TaskPolicy, timeout: Any = None, retry: Any = None, max_attempts: int | None = None, on_lost: Any = None
) -> TaskPolicy:
    """Return the policy with the given rules replaced."""
    if retry is not None and max_attempts is not None:
        raise Invalid(
            "max_attempts is given twice: directly and as part of retry",
            code="retry.max_attempts.conflict",
            field="max_attempts",
            remedy="give it within retry",
        )
    if isinstance(retry, Mapping):
        unknown = sorted(str(name) for name in retry.keys() - {each.name for each in fields(RetryPolicy)})
        if unknown:
            raise Invalid(
                f"a retry policy has no field {quoted(unknown[0], 60)}",
                code="retry.field.unknown",
                field=f"retry.{unknown[0]}",
            )
        retry = replace(policy.retry, **retry)
    if retry is None:
        retry = policy.retry if max_attempts is None else replace(policy.retry, max_attempts=max_attempts)
    if not isinstance(retry, RetryPolicy):
        raise Invalid(
            f"retry {quoted(retry, 60)} is not a retry policy",
            code="retry.invalid",
            field="retry",
            remedy="write {max_attempts: 5, base_seconds: 10}",
        )
    limit = policy.timeout_seconds if timeout is None else parse_duration_seconds(timeout, field="timeout")
    return TaskPolicy(retry, limit, on_lost or policy.on_lost, policy.dead_letter)


def step_from_fields(stored: object) -> Step:
    """Return the step that `Step.to_fields` wrote."""
    if not isinstance(stored, Mapping):
        raise Invalid(f"step {quoted(stored, 60)} is not a mapping", code="step.invalid", field="step")
    given = {str(name): value for name, value in stored.items()}
    unknown = sorted(given.keys() - _STEP_FIELDS)
    if unknown:
        field = unknown[0][:80]
        raise Invalid(f"a step has no field {field!r}", code="step.field.unknown", field=field)
    if "policy" in given:
        given["policy"] = policy_from_json(json.dumps(given["policy"]))
    return Step(**given)
