"""Jobs: registered Python callables with typed input, and the registry of this process.

The signature of a job is its contract: arguments are validated when a task is created, and again, from the stored JSON,
when it runs. The worker fills in a parameter annotated `Context`; it is not part of the input.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

import pydantic
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError

from tenuto.errors import Invalid, UnknownJob
from tenuto.ids import new_id
from tenuto.jobs.context import MAX_DELAY, Context, current_context
from tenuto.jobs.enqueued_task import Enqueued
from tenuto.jobs.step_kind import StepKind
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.steps import not_a_job_error
from tenuto.model.work.known_handlers import KnownHandlers
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import (
    NewTask,
    check_expires_in,
    check_expiry,
    check_rate_key,
    check_task_options,
    parse_duration_seconds,
    parse_expires_in,
    parse_instant,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

WORKFLOW = "tenuto_workflow"
"""Attribute of the function of a workflow."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of the tasks created from a job."""

    queue: str = "default"
    priority: int = 0
    run_at: datetime | None = None
    delay: timedelta | None = None
    unique_key: str | None = None
    limit_key: str | None = None
    limit: int | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    rate_limit: str | None = None
    """Starts per second, minute or hour, such as ``100/m``, of all tasks with the same ``rate_key``."""
    rate_key: str | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None
    """Time after the due instant at which a task that has not started ends as expired."""

    def __post_init__(self) -> None:
        rate = parse_rate_limit(self.rate_limit)
        object.__setattr__(self, "rate_limit", None if rate is None else str(rate))
        check_rate_key(self.rate_key, rate)
        check_expiry(self.expires_at, self.run_at)
        if self.expires_in is not None:
            check_expires_in(self.expires_in)
            if self.expires_at is not None:
                raise Invalid(
                    "both expires_at and expires_in are given",
                    code="task.expires_at.conflict",
                    field="expires_in",
                    remedy="give one of them",
                )
        check_task_options(
            self.queue, self.priority, self.run_at, self.unique_key, self.limit_key, self.limit, self.correlation_id
        )
        object.__setattr__(self, "tags", tuple(validation.check_tags(self.tags)))


class TaskOptionValues(TypedDict, total=False):
    """The options of `Job.using`."""

    queue: str
    priority: int
    run_at: datetime | str | None
    delay: float | str | timedelta | None
    unique_key: str | None
    limit_key: str | None
    limit: int | None
    tags: Iterable[str]
    correlation_id: str | None
    rate_limit: str | None
    rate_key: str | None
    expires_at: datetime | str | None
    expires_in: float | str | timedelta | None


class JobEnqueuer(Protocol):
    """Enqueues a task of a job."""

    def __call__(self, job: Job[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Enqueued[Any]]: ...


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Description of a job for lists."""

    name: str
    doc: str | None
    queue: str
    priority: int
    max_attempts: int
    timeout_seconds: float | None
    on_lost: str
    isolated: bool
    limit_key: str | None
    limit: int | None
    tags: tuple[str, ...]
    input_schema: Mapping[str, Any]
    version: str | None = None


class Job(Generic[P, R_co]):
    """A callable that can be enqueued. A direct call runs the function in the calling process."""

    def __init__(
        self,
        function: Callable[P, R_co],
        name: str,
        policy: TaskPolicy,
        options: TaskOptions,
        *,
        isolated: bool,
        arguments: type[Any] | None = None,
        version: str | None = None,
    ) -> None:
        """``arguments`` is the dataclass or pydantic model that the function takes as its first parameter; without it,
        the parameters of the function are the input."""
        self.function = function
        self.name = validation.check_name(name, field="job name")
        self.policy = policy
        self.policy_json = policy.to_json()
        self.options = options
        self.isolated = isolated
        self.version = None if version is None else validation.check_label(version, field="version")
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Invalid(
                f"job {name} is a generator function, so calling it runs none of its code",
                code="job.function.generator",
                field="job",
                remedy="remove the yield, and return a list instead",
            )
        if isolated and "<locals>" in function.__qualname__:
            raise Invalid(
                f"job {name} is isolated but defined inside a function, so a child process cannot import it",
                code="job.isolated.local_function",
                field="isolated",
                remedy="define it at the top level of a module",
            )
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self._input = _InputModel(function, name) if arguments is None else _TypedInput(function, name, arguments)
        self._output = _output_type(function)
        self.enqueuer: JobEnqueuer | None = None
        """The app that registered the job."""
        self.versions: dict[str | None, Job[..., Any]] | None = None
        """Of a workflow: its registered versions, this one included."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the job here and now, as a worker would: validated input, a context, a validated result.

        It needs no worker and no database. It is one attempt without retries and time limit, and leaves no record; an
        error is raised. ``ctx.sleep`` ends at once. Await the call of an ``async def`` job.
        """
        from tenuto.jobs.direct_call import call_job  # it needs this module

        result: R_co = call_job(self, args, kwargs)
        return result

    @overload
    async def enqueue(self: Job[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Enqueued[T]: ...

    @overload
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R_co]: ...

    async def enqueue(self, *args: Any, **kwargs: Any) -> Enqueued[Any]:
        """Enqueue a task with this input, in the database of the app that registered the job.

        A parameter annotated `Context` is filled in by the worker. Type checkers leave it out if it comes first, or if
        it has the default `injected`.
        """
        if self.enqueuer is None:
            raise Invalid(
                f"job {self.name} is not registered with an app",
                code="job.not_registered",
                field="job",
                remedy="make it with @app.job, or use app.enqueue",
            )
        return await self.enqueuer(self, *args, **kwargs)

    def _limits_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rate key and the time of expiry as they are stored, for options that set them."""
        found: dict[str, Any] = {}
        if values.get("rate_limit") is not None and not (values.get("rate_key") or self.options.rate_key):
            found["rate_key"] = f"job:{self.name}"
        elif "rate_limit" in values and values["rate_limit"] is None:
            found["rate_key"] = None
        if values.get("expires_in") is not None:
            found |= {"expires_in": parse_expires_in(values["expires_in"])}
            if "expires_at" not in values:
                found["expires_at"] = None
        elif values.get("expires_at") is not None:
            found["expires_in"] = None
        return found

    def using(self, **options: Unpack[TaskOptionValues]) -> Self:
        """Return the job with other options for its tasks: queue, priority, run_at, delay, unique_key, tags …"""
        values: dict[str, Any] = {**options}
        unknown = values.keys() - TaskOptions.__dataclass_fields__.keys()
        if unknown:
            raise Invalid(
                f"{min(unknown)!r} is not a task option",
                code="job.option.unknown",
                field="using",
                remedy=f"use one of {', '.join(TaskOptions.__dataclass_fields__)}",
            )
        if values.get("delay") is not None:
            values["delay"] = _parse_delay(values["delay"])
        for name in ("run_at", "expires_at"):
            if isinstance(values.get(name), str):
                values[name] = parse_instant(values[name], field=name)
        values |= self._limits_of(values)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.options = replace(self.options, **values)
        return other

    def new_task(self, input: str, now: datetime, actor: Actor, id: UUID | None = None) -> NewTask:
        """Build a task with the options of the job; link it to the running task that enqueues it."""
        options = self.options
        run_at = options.run_at if options.delay is None else now + options.delay
        task = NewTask(
            id or new_id(),
            self.name,
            input,
            now,
            actor,
            run_at,
            "job",
            options.queue,
            options.priority,
            self.policy_json,
            options.unique_key,
            options.limit_key,
            options.limit,
            tags=list(options.tags) or None,
            correlation_id=options.correlation_id,
            rate_key=options.rate_key,
            rate_limit=parse_rate_limit(options.rate_limit),
        )
        task.expires_at = options.expires_at if options.expires_in is None else task.due_at + options.expires_in
        context = current_context.get()
        if context is not None:
            task.parent_id = context.activity_id
            task.correlation_id = task.correlation_id or context.task.correlation_id or str(context.task.id)
        return task

    def dump_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Validate arguments against the signature and return them as JSON."""
        return validation.check_json_text(self._input.dump(args, kwargs), field="input")

    def name_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, without validating them."""
        return self._input.name_arguments(args, kwargs)

    def validate_input(self, text: str) -> str:
        """Validate JSON input against the signature and return it in normalized form."""
        return validation.check_json_text(self._input.normalize(text), field="input")

    def load_arguments(self, text: str) -> Any:
        """Return stored input as one value: the object of the ``arguments`` type, or a dictionary."""
        return self._input.load_arguments(text)

    def load_input(self, text: str) -> dict[str, Any]:
        """Return the arguments from stored JSON, converted to the types of the signature."""
        return self._input.load(text)

    def validate_partial_input(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validate some of the arguments one by one and return them as plain data."""
        return self._input.validate_partial(values)

    @property
    def shown_version(self) -> str | None:
        """The version as it is shown with a worker: of a workflow, all its versions, the current one first."""
        others = [each for each in self.versions or () if each is not None and each != self.version]
        return self.version if not others else ", ".join(filter(None, [self.version, *others]))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters and their annotations."""
        return self._input.annotations

    @property
    def required_parameters(self) -> set[str]:
        return self._input.required

    @property
    def context_parameter(self) -> str | None:
        return self._input.context_parameter

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the input."""
        return self._input.json_schema()

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the output; empty if the function does not declare what it returns."""
        try:
            return self._output.json_schema(mode="serialization")
        except pydantic.errors.PydanticInvalidForJsonSchema:
            return {}

    def describe(self) -> JobRecord:
        """Return the description of the job."""
        return JobRecord(
            name=self.name,
            doc=(self.__doc__ or "").strip() or None,
            queue=self.options.queue,
            priority=self.options.priority,
            max_attempts=self.policy.retry.max_attempts,
            timeout_seconds=self.policy.timeout_seconds,
            on_lost=self.policy.on_lost,
            isolated=self.isolated,
            limit_key=self.options.limit_key,
            limit=self.options.limit,
            tags=self.options.tags,
            input_schema=self.input_schema(),
            version=self.version,
        )

    def load_output(self, value: Any) -> Any:
        """Return a stored result as the type that the function returns; unchanged if it does not fit that type."""
        try:
            return self._output.validate_python(value)
        except pydantic.ValidationError:  # stored by an earlier version of the job
            return value

    def dump_output(self, value: Any) -> str | None:
        """Return a result as JSON; None stays None."""
        if value is None:
            return None
        dumped = self._output.dump_json(value)
        refuse_lost_numbers(self._output, value, dumped)
        return validation.check_json_text(dumped.decode("utf-8"), field="output", limit=validation.MAX_OUTPUT_BYTES)


class JobWithContext(Job[P, R_co]):
    """A job whose first parameter is a `Context`. Callers of the function give it, callers of `enqueue` do not."""

    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R_co:  # type: ignore[override]
        return self.function(context, *args, **kwargs)  # type: ignore[arg-type]


def job_class(function: Callable[..., Any]) -> type[Job[..., Any]]:
    """Return the class of the job that runs a function."""
    first = next(iter(inspect.signature(function).parameters), None)
    is_context = first is not None and typing.get_type_hints(function).get(first) is Context
    return JobWithContext if is_context else Job


def context_parameter_of(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that is annotated `Context`, if any."""
    hints = typing.get_type_hints(function)
    return next((name for name in inspect.signature(function).parameters if hints.get(name) is Context), None)


def _version_order(version: str | None) -> tuple[list[int], str]:
    """Return the sort key of a version: its numbers, then its text. A workflow without a version is the oldest."""
    return ([int(part) for part in re.findall(r"\d+", version)], version) if version is not None else ([], "")


def require_job(job: object) -> None:
    """Raise `Invalid` for anything but a job."""
    if not isinstance(job, Job):
        raise not_a_job_error(job)


def _parse_delay(delay: float | str | timedelta) -> timedelta:
    seconds = parse_duration_seconds(delay, field="delay")
    if seconds is None or not 0 <= seconds <= MAX_DELAY.total_seconds():
        raise Invalid(
            f"the delay {delay!r} is not between 0 s and {MAX_DELAY.days} days",
            code="job.delay.out_of_range",
            field="delay",
        )
    return timedelta(seconds=seconds)


class _InputModel:
    """The parameters of a function as one pydantic model."""

    def __init__(self, function: Callable[..., Any], job: str) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        self.context_parameter: str | None = None
        self._positional: list[str] = []
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            annotation = hints.get(name, Any)
            if annotation is Context:
                self.context_parameter = name
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise Invalid(
                    f"parameter {parameter} of job {job} cannot be passed by keyword",
                    code="job.parameter.unsupported",
                    field=name,
                    remedy="replace it by parameters that can be passed by keyword",
                )
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positional.append(name)
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"field_{name}"] = (annotation, pydantic.Field(default, alias=name))
        self._names = [name.removeprefix("field_") for name in fields]
        self.annotations = {name.removeprefix("field_"): annotation for name, (annotation, _) in fields.items()}
        self.required = {name.removeprefix("field_") for name, (_, given) in fields.items() if given.is_required()}
        self._attributes = list(zip(self._names, fields, strict=True))
        try:
            self.model: type[BaseModel] = pydantic.create_model(
                job,
                __config__=ConfigDict(
                    extra="forbid", arbitrary_types_allowed=False, allow_inf_nan=False, protected_namespaces=()
                ),
                **fields,
            )
        except pydantic.errors.PydanticSchemaGenerationError as error:
            raise Invalid(
                f"job {job} has a parameter that cannot be stored as JSON: {error.message.splitlines()[0]}",
                code="job.parameter.not_json",
                field="parameters",
                remedy="use plain types, dataclasses or pydantic models",
            ) from error

    def name_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args:
            if len(args) > len(self._positional):
                raise Invalid(
                    f"the job takes {len(self._positional)} positional arguments, but {len(args)} were given",
                    code="job.input.too_many_arguments",
                    field="input",
                )
            positional = dict(zip(self._positional, args, strict=False))
            if duplicates := positional.keys() & kwargs.keys():
                raise Invalid(
                    f"argument {min(duplicates)!r} is given by position and by name",
                    code="job.input.duplicate_argument",
                    field=min(duplicates),
                )
            return {**positional, **kwargs}
        return kwargs

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        kwargs = self.name_arguments(args, kwargs)
        if not kwargs and not self._names:
            return "{}"
        # Measured: the wrapper methods of pydantic around the core cost as much again, here and in `load`.
        return _dump_model(self._validate(self.model.__pydantic_validator__.validate_python, kwargs))

    def normalize(self, text: str) -> str:
        return _dump_model(self._validate(self.model.model_validate_json, text))

    def validate_partial(self, values: Mapping[str, Any]) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in self.annotations:
                known = ", ".join(self._names) or "none"
                raise Invalid(
                    f"the job has no parameter {name!r}",
                    code="job.parameter.unknown",
                    field=name,
                    remedy=f"its parameters: {known}",
                )
            adapter = TypeAdapter(self.annotations[name])
            try:
                checked[name] = adapter.dump_python(adapter.validate_python(value), mode="json")
            except pydantic.ValidationError as error:
                raise _to_invalid(error, name) from error
        return checked

    def load(self, text: str) -> dict[str, Any]:
        if not self._names:
            return {}
        try:
            values = self.model.__pydantic_validator__.validate_json(text).__dict__
        except pydantic.ValidationError as error:
            raise _to_invalid(error) from error
        return {name: values[attribute] for name, attribute in self._attributes}

    def load_arguments(self, text: str) -> dict[str, Any]:
        return self.load(text)

    def json_schema(self) -> dict[str, Any]:
        return self.model.model_json_schema()

    def _validate(self, validate: Callable[[Any], BaseModel], value: Any) -> BaseModel:
        try:
            return validate(value)
        except pydantic.ValidationError as error:
            raise _to_invalid(error) from error


class _TypedInput(_InputModel):
    """One dataclass or pydantic model that is the whole input of a function."""

    def __init__(self, function: Callable[..., Any], job: str, arguments: type[Any]) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        names = list(inspect.signature(function).parameters)
        self.context_parameter = next((name for name in names if hints.get(name) is Context), None)
        own = [name for name in names if name != self.context_parameter]
        if len(own) != 1 or not (dataclasses.is_dataclass(arguments) or issubclass(arguments, BaseModel)):
            raise Invalid(
                f"{job} does not take one dataclass or pydantic model",
                code="job.parameter.unsupported",
                field="arguments",
                remedy="give its function one parameter for the arguments, and one annotated Context",
            )
        self._parameter = own[0]
        self._adapter: TypeAdapter[Any] = TypeAdapter(arguments)
        if issubclass(arguments, BaseModel):
            fields = {field.alias or name: field for name, field in arguments.model_fields.items()}
            self.annotations = {name: field.annotation for name, field in fields.items()}
            self.required = {name for name, field in fields.items() if field.is_required()}
        else:
            hints = typing.get_type_hints(arguments, include_extras=True)
            own_fields = dataclasses.fields(arguments)
            missing = dataclasses.MISSING
            self.annotations = {field.name: hints[field.name] for field in own_fields}
            self.required = {
                field.name for field in own_fields if field.default is missing and field.default_factory is missing
            }
        self._names = list(self.annotations)
        self._positional = self._names

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.normalize(
            validation.dump_json({**dict(zip(self._names, args, strict=False)), **kwargs}, field="input")
        )

    def normalize(self, text: str) -> str:
        return self._adapter.dump_json(self.load_arguments(text), by_alias=True).decode()

    def load(self, text: str) -> dict[str, Any]:
        return {self._parameter: self.load_arguments(text)}

    def load_arguments(self, text: str) -> Any:
        try:
            given = json.loads(text)
            unknown = sorted(given.keys() - self.annotations.keys()) if isinstance(given, dict) else []
            if unknown:
                raise Invalid(
                    f"there is no argument {unknown[0]!r}",
                    code="job.input.invalid",
                    field=unknown[0],
                    remedy=f"the arguments are {', '.join(self._names) or 'none'}",
                )
            return self._adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise _to_invalid(error) from error

    def json_schema(self) -> dict[str, Any]:
        return self._adapter.json_schema()


def _dump_model(model: BaseModel) -> str:
    try:
        return model.__pydantic_serializer__.to_json(model, by_alias=True).decode()
    except PydanticSerializationError as error:  # the type is `Any` and the value is not JSON
        raise Invalid(
            f"the input cannot be stored as JSON: {error}", code="job.input.not_json", field="input"
        ) from error


def _to_invalid(error: pydantic.ValidationError, parameter: str | None = None) -> Invalid:
    first = error.errors(include_url=False, include_context=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    path = [str(part) for part in first["loc"]]
    where = ".".join(path if parameter is None else [parameter, *path]) or "input"
    problem = {
        "missing": f"the argument {where} is missing",
        "extra_forbidden": f"there is no argument {where}",
    }.get(first["type"], f"{where}: {first['msg']}")
    return Invalid(problem + more, code="job.input.invalid", field=where)


def refuse_lost_numbers(adapter: TypeAdapter[Any], value: Any, dumped: bytes) -> None:
    """Raise `Invalid` if pydantic wrote ``null`` for a number that JSON cannot express."""
    if b"null" in dumped or b'"None"' in dumped:
        validation.refuse_non_finite_numbers(adapter.dump_python(value), field="output")


def _output_type(function: Callable[..., Any]) -> TypeAdapter[Any]:
    annotation = typing.get_type_hints(function).get("return", Any)
    try:
        return TypeAdapter(annotation)
    except pydantic.errors.PydanticSchemaGenerationError:
        return TypeAdapter(Any)


class HandlersByKind(MutableMapping[str, Job[..., Any]]):
    """The handler of each step kind; lazy ones are created at first use."""

    def __init__(self) -> None:
        self._handlers: dict[str, Job[..., Any] | None] = {}
        self._factories: dict[str, Callable[[], Job[..., Any]]] = {}

    def add_lazy(self, kind: str, create: Callable[[], Job[..., Any]]) -> None:
        self._handlers[kind], self._factories[kind] = None, create

    def __getitem__(self, kind: str) -> Job[..., Any]:
        handler = self._handlers[kind]
        if handler is None:
            handler = self._handlers[kind] = self._factories[kind]()
        return handler

    def __setitem__(self, kind: str, handler: Job[..., Any]) -> None:
        self._handlers[kind] = handler

    def __delitem__(self, kind: str) -> None:
        del self._handlers[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._handlers  # without creating it

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


@dataclass
class JobRegistry:
    """The jobs and step handlers of this process."""

    jobs_by_name: dict[str, Job[..., Any]] = field(default_factory=dict)
    handlers_by_kind: HandlersByKind = field(default_factory=lambda: HandlersByKind())
    """Handlers of all step kinds except Python jobs."""
    kinds: dict[str, StepKind] = field(default_factory=dict)
    """The registered step kinds."""
    load_more_kinds: Callable[[], None] = lambda: None
    """Registers the step kinds of extensions; called when a kind is not known."""
    explain_missing_kind: Callable[[str], str | None] = lambda _kind: None
    """Returns why the extension of a kind cannot be used, if that is why the kind is not known."""
    _known: tuple[tuple[int, int], KnownHandlers] | None = field(default=None, repr=False)

    def known_handlers(self) -> KnownHandlers:
        """Return what this process can run, the same object until another job or step kind is registered."""
        size = (len(self.jobs_by_name), len(self.handlers_by_kind))
        if self._known is None or self._known[0] != size:
            jobs = {name: job.shown_version for name, job in sorted(self.jobs_by_name.items())}
            kinds = {name: kind.version if (kind := self.kinds.get(name)) else None for name in self.handlers_by_kind}
            self._known = (size, KnownHandlers(jobs, kinds))
        return self._known[1]

    def get_handler(self, kind: str, name: str) -> Job[..., Any]:
        """Return the job or step handler that runs a task of this kind and name."""
        if kind == "job":
            return self.get_job(name)
        handler = self.handlers_by_kind.get(kind)
        if handler is None:
            self.load_more_kinds()
            handler = self.handlers_by_kind.get(kind)
        if handler is None and (problem := self.explain_missing_kind(kind)) is not None:
            raise Invalid(
                f"the kind {kind!r} is not available: {problem}",
                code="step.kind.not_available",
                field="kind",
                remedy="see `tenuto doctor`",
            )
        if handler is None:
            known = ", ".join(["job", *sorted(self.handlers_by_kind)])
            raise UnknownJob(
                f"this process has no handler for tasks of kind {kind!r}; known kinds: {known}",
                code="step.kind.unknown",
            )
        return handler

    def add_kind(self, kind: StepKind) -> None:
        """Register a step kind. Its handler is created at first use: most programs need only some of them."""
        self.handlers_by_kind.add_lazy(self._check_kind_is_free(kind.name), kind.create_job)
        self.kinds[kind.name] = kind

    def _check_kind_is_free(self, kind: str) -> str:
        if kind == "job" or kind in self.handlers_by_kind:
            raise Invalid(f"kind {kind!r} already has a handler", code="step.kind.duplicate", field="kind")
        return validation.check_name(kind, field="kind", limit=64)

    def add_job(self, job: Job[..., Any]) -> None:
        if getattr(job.function, WORKFLOW, False):
            self._add_version(job)
            return
        if job.name in self.jobs_by_name:
            raise Invalid(
                f"a job named {job.name!r} is already registered",
                code="job.name.duplicate",
                field="name",
                remedy="give one of them another name",
            )
        self.jobs_by_name[job.name] = job

    def _add_version(self, job: Job[..., Any]) -> None:
        """Register a version of a workflow. The one with the highest version is the current one."""
        current = self.jobs_by_name.get(job.name)
        versions = [] if current is None else list((current.versions or {}).values())
        if current is not None and (not versions or any(each.version == job.version for each in versions)):
            raise Invalid(
                f"a job named {job.name!r} is already registered with the same version",
                code="job.name.duplicate",
                field="name",
                remedy="give one of them another name, or workflows different versions",
            )
        versions = sorted([*versions, job], key=lambda each: _version_order(each.version), reverse=True)
        for each in versions:
            each.versions = {other.version: other for other in versions}
        self.jobs_by_name[job.name] = versions[0]
        self._known = None

    def get_job(self, name: str) -> Job[..., Any]:
        job = self.jobs_by_name.get(name)
        if job is None:
            known = ", ".join(sorted(self.jobs_by_name)[:20]) or "none"
            similar = get_close_matches(name, self.jobs_by_name, 1)
            raise UnknownJob(
                f"no job named {name!r} is registered in this process; known jobs: {known}",
                code="job.unknown",
                remedy=f"did you mean {similar[0]!r}?" if similar else None,
            )
        return job
