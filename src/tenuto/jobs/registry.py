"""Jobs: registered Python callables with typed input.

A job's signature is its contract: arguments are checked when work is created, and again, from the stored JSON, when
it runs. A parameter annotated `Context` is filled in by the worker and is not part of the input.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError

from tenuto.errors import Invalid, UnknownJob
from tenuto.jobs.context import LONGEST_WAIT, Context
from tenuto.model import stored_values
from tenuto.model.policies import Policy
from tenuto.model.tasks import check_options, instant, seconds

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Using:
    """How one task is to be run, where it differs from its job."""

    queue: str = "default"
    priority: int = 0
    run_at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    limit_key: str | None = None
    limit: int | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None

    def __post_init__(self) -> None:
        check_options(self.queue, self.priority, self.run_at, self.key, self.limit_key, self.limit, self.correlation_id)
        object.__setattr__(self, "tags", tuple(stored_values.tags(self.tags)))


class Job(Generic[P, R]):
    """A callable that can be put into the queue. Calling it runs it here and now, as if it were not decorated."""

    def __init__(self, function: Callable[P, R], name: str, policy: Policy, using: Using, *, isolated: bool) -> None:
        self.function = function
        self.name = stored_values.name(name, field="job name")
        self.policy = policy
        self.policy_json = policy.to_json()
        self.using_ = using
        self.isolated = isolated
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Invalid(
                f"job {name} is a generator: to call it runs nothing of it",
                field="job",
                remedy="take the yield out of it, and return a list if it has something to give",
            )
        if isolated and "<locals>" in function.__qualname__:
            raise Invalid(
                f"job {name} is isolated but defined inside a function",
                field="isolated",
                remedy="define it at the top of a module, so that a child process can import it",
            )
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self._input = _InputType(function, name)
        self._output = _output_type(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def using(self, **options: Any) -> Job[P, R]:
        """The same job with other options for the tasks made from it: queue, priority, run_at, delay, key, tags …"""
        unknown = options.keys() - Using.__dataclass_fields__.keys()
        if unknown:
            raise Invalid(
                f"there is no option {min(unknown)!r}",
                field="using",
                remedy=f"use one of {', '.join(Using.__dataclass_fields__)}",
            )
        if options.get("delay") is not None:
            options["delay"] = _delay(options["delay"])
        if isinstance(options.get("run_at"), str):
            options["run_at"] = instant(options["run_at"], field="run_at")
        other: Job[P, R] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.using_ = replace(self.using_, **options)
        return other

    def dump_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Arguments as JSON, checked against the signature."""
        return stored_values.storable_json(self._input.dump(args, kwargs), field="input")

    def check_input(self, text: str) -> str:
        """JSON from outside, checked against the signature and brought into its form."""
        return stored_values.storable_json(self._input.normalise(text), field="input")

    def load_input(self, text: str) -> dict[str, Any]:
        """Arguments from stored JSON, as the types the signature asks for."""
        return self._input.load(text)

    def check_some(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the arguments, checked each by itself, as plain data."""
        return self._input.check_some(values)

    @property
    def parameters(self) -> dict[str, Any]:
        """The names of its parameters with what they are annotated as."""
        return self._input.annotations

    @property
    def required(self) -> set[str]:
        """The parameters that have no default."""
        return self._input.required

    @property
    def context_parameter(self) -> str | None:
        return self._input.context_parameter

    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the input."""
        return self._input.model.model_json_schema()

    def dump_output(self, value: Any) -> str | None:
        """A result as JSON; None stays nothing."""
        if value is None:
            return None
        return stored_values.storable_json(
            self._output.dump_json(value).decode("utf-8"), field="output", limit=stored_values.MAX_OUTPUT
        )


def _delay(given: float | str | timedelta) -> timedelta:
    wait = seconds(given, field="delay")
    if wait is None or not 0 <= wait <= LONGEST_WAIT.total_seconds():
        raise Invalid(f"must be from 0 s to {LONGEST_WAIT.days} days", field="delay")
    return timedelta(seconds=wait)


class _InputType:
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
                    f"job {job} cannot take {parameter}",
                    field=name,
                    remedy="give every parameter a name of its own that can be passed by keyword",
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
                field="parameters",
                remedy="use plain types, dataclasses or pydantic models",
            ) from error

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if args:
            if len(args) > len(self._positional):
                raise Invalid(f"takes {len(self._positional)} arguments by place, not {len(args)}", field="input")
            placed = dict(zip(self._positional, args, strict=False))
            if twice := placed.keys() & kwargs.keys():
                raise Invalid("is given twice", field=min(twice))
            kwargs = {**placed, **kwargs}
        if not kwargs and not self._names:
            return "{}"
        # The core's own method, here and below: per job the wrapper around it costs as much again.
        return _written(self._validated(self.model.__pydantic_validator__.validate_python, kwargs))

    def normalise(self, text: str) -> str:
        return _written(self._validated(self.model.model_validate_json, text))

    def check_some(self, values: Mapping[str, Any]) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in self.annotations:
                known = ", ".join(self._names) or "none"
                raise Invalid("there is no such parameter", field=name, remedy=f"it has {known}")
            adapter = TypeAdapter(self.annotations[name])
            try:
                checked[name] = adapter.dump_python(adapter.validate_python(value), mode="json")
            except pydantic.ValidationError as error:
                refusal = _invalid(error)
                where = name if refusal.field == "input" else f"{name}.{refusal.field}"
                raise Invalid(refusal.message, field=where) from error
        return checked

    def load(self, text: str) -> dict[str, Any]:
        if not self._names:
            return {}
        try:
            values = self.model.__pydantic_validator__.validate_json(text).__dict__
        except pydantic.ValidationError as error:
            raise _invalid(error) from error
        return {name: values[attribute] for name, attribute in self._attributes}

    def _validated(self, validate: Callable[[Any], BaseModel], value: Any) -> BaseModel:
        try:
            return validate(value)
        except pydantic.ValidationError as error:
            raise _invalid(error) from error


def _written(model: BaseModel) -> str:
    try:
        return model.__pydantic_serializer__.to_json(model, by_alias=True).decode()
    except PydanticSerializationError as error:  # where the type is `Any` and the value is not JSON
        raise Invalid(f"cannot be stored as JSON: {error}", field="input") from error


def _invalid(error: pydantic.ValidationError) -> Invalid:
    first = error.errors(include_url=False, include_context=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    where = ".".join(str(part) for part in first["loc"]) or "input"
    return Invalid(f"{first['msg']}{more}", field=where)


def _output_type(function: Callable[..., Any]) -> TypeAdapter[Any]:
    annotation = typing.get_type_hints(function).get("return", Any)
    try:
        return TypeAdapter(annotation)
    except pydantic.errors.PydanticSchemaGenerationError:
        return TypeAdapter(Any)


class Kinds(MutableMapping[str, Job[..., Any]]):
    """The handlers of kinds, by name. One that is still to be made is there like the others."""

    def __init__(self) -> None:
        self._known: dict[str, Job[..., Any] | None] = {}
        self._later: dict[str, Callable[[], Job[..., Any]]] = {}

    def later(self, kind: str, make: Callable[[], Job[..., Any]]) -> None:
        self._known[kind], self._later[kind] = None, make

    def __getitem__(self, kind: str) -> Job[..., Any]:
        handler = self._known[kind]
        if handler is None:
            handler = self._known[kind] = self._later[kind]()
        return handler

    def __setitem__(self, kind: str, handler: Job[..., Any]) -> None:
        self._known[kind] = handler

    def __delitem__(self, kind: str) -> None:
        del self._known[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._known  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass
class Jobs:
    """The registry: which jobs this process knows."""

    by_name: dict[str, Job[..., Any]] = field(default_factory=dict)
    by_kind: Kinds = field(default_factory=lambda: Kinds())
    """What runs the tasks of every other kind than Python jobs."""

    def of(self, kind: str, name: str) -> Job[..., Any]:
        """What runs a task of this kind and name."""
        if kind == "job":
            return self.get(name)
        handler = self.by_kind.get(kind)
        if handler is None:
            known = ", ".join(["job", *sorted(self.by_kind)])
            raise UnknownJob(f"there is no handler for tasks of kind {kind!r} here; known: {known}")
        return handler

    def add_kind(self, kind: str, handler: Job[..., Any]) -> None:
        self.by_kind[self._free_kind(kind)] = handler

    def add_kind_later(self, kind: str, make: Callable[[], Job[..., Any]]) -> None:
        """A kind whose handler is made when it is first asked for: most programs need only some of them."""
        self.by_kind.later(self._free_kind(kind), make)

    def _free_kind(self, kind: str) -> str:
        if kind == "job" or kind in self.by_kind:
            raise Invalid(f"the kind {kind} has a handler already", field="kind")
        return stored_values.name(kind, field="kind", limit=64)

    def add(self, job: Job[..., Any]) -> None:
        if job.name in self.by_name:
            raise Invalid(f"a job named {job.name} is registered already", field="name", remedy="give one another name")
        self.by_name[job.name] = job

    def get(self, name: str) -> Job[..., Any]:
        job = self.by_name.get(name)
        if job is None:
            known = ", ".join(sorted(self.by_name)[:20]) or "none at all"
            raise UnknownJob(f"no job named {name!r} is registered here; known: {known}")
        return job
