"""Chains: several functions as one job; values are passed from step to step by type.

A step takes its parameters from the input of the chain and the results of earlier steps; the newest value of a type is
used. The constructor of a chain checks that every step gets its values. The result of a step is stored when it ends,
so that a retry, also by another worker after a crash, continues after the last stored step; an interrupted step runs
again. `stop(value)` ends the chain early with that value, which is stored as well.

Redacted values are stored as ``***``. Later steps of the same attempt get the real value; a resumed chain does not have
it and fails.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NewType, Union, get_args, get_origin

import pydantic
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from tenuto.errors import EngineError, Invalid, quoted
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.registry import Job, refuse_lost_numbers
from tenuto.model import validation

_MAX_STEPS = 100
_MAX_MESSAGE_CHARACTERS = 8192
_CONTEXT_PARAMETER = "tenuto_context"
CHAIN_STEPS = "tenuto_chain_steps"
"""Attribute of the function of a chain: the functions of its steps."""
_any_type: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Result of a step that ends the chain."""

    value: Any


def stop(value: Any = None) -> Any:
    """Return this from a step to end the chain with the given value."""
    return ChainEnd(value)


@dataclass(frozen=True, slots=True)
class RedactedResult:
    """A step result of which a resumed chain has only the redacted form."""

    step: str
    redacted: Any


class ChainStep:
    """One function of a chain with its parameter and return types."""

    def __init__(self, function: Callable[..., Any], position: int, label: str) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.label = label
        self.key = f"{position} {label}"
        """Key of its checkpoint: a step that is renamed or moved is another one."""
        hints = _type_hints(function, label)
        self.return_type = hints.pop("return")
        self.context_parameter: str | None = None
        self.parameters: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise Invalid(
                    f"parameter {parameter} of step {label} cannot be passed by keyword",
                    code="chain.step.parameter.unsupported",
                    field=name,
                    remedy="replace it by parameters that can be passed by keyword",
                )
            if name not in hints:
                raise Invalid(
                    f"parameter {name!r} of step {label} has no type", code="chain.step.parameter.untyped", field=name
                )
            if hints[name] is Context:
                self.context_parameter = name
                continue
            self.parameters[name] = hints[name]
            if parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
        try:
            self.output: TypeAdapter[Any] = TypeAdapter(self.return_type)
        except pydantic.errors.PydanticSchemaGenerationError as error:
            raise Invalid(
                f"step {label} returns {type_name(self.return_type)}, which cannot be stored as JSON",
                code="chain.step.return.not_json",
                field="return",
                remedy="return plain types, dataclasses or pydantic models",
            ) from error

    def wire(self, groups: Sequence[Sequence[Candidate]]) -> None:
        """Choose the source of each parameter."""
        for name, wanted in self.parameters.items():
            source = self._find_source(wanted, name, groups)
            if source is not None:
                self.sources[name] = source
            elif name not in self.defaults:
                raise Invalid(
                    f"no earlier value fits parameter {name!r} of step {self.label}, type {type_name(wanted)}",
                    code="chain.step.parameter.no_source",
                    field=name,
                    remedy=f"available values: {_describe_candidates(groups)}",
                )

    def _find_source(self, wanted: Any, parameter: str, groups: Sequence[Sequence[Candidate]]) -> Source | None:
        """Return the newest value of a type or of a subtype.

        Within one group (several inputs, members of a tuple) the exact type wins over a subtype, and the name decides
        between inputs of one type. A remaining ambiguity is an error.
        """
        for group in reversed(groups):
            fitting = [each for each in group if is_assignable(each.type, wanted)]
            fitting = [each for each in fitting if _unwrap_type(each.type) == _unwrap_type(wanted)] or fitting
            best = [each for each in fitting if each.source.part in (None, parameter)] or fitting
            if len(best) > 1:
                origins = " and ".join(dict.fromkeys(each.origin for each in best))
                raise Invalid(
                    f"{len(best)} values fit parameter {parameter!r} of step {self.label}, type {type_name(wanted)}: "
                    f"{origins}",
                    code="chain.step.parameter.ambiguous",
                    field=parameter,
                    remedy="give the values different types (NewType), or name the parameter like the input",
                )
            if best:
                return best[0].source
        return None

    def dump_result(self, result: Any, ctx: Context | None, message_counts: tuple[int, int]) -> str:
        """Return the checkpoint of a result, with the warnings and errors that the step reported."""
        messages: dict[str, Any] = {}
        if ctx is not None:
            messages = {"warnings": ctx.warnings[message_counts[0] :], "errors": ctx.errors[message_counts[1] :]}
        suffix = "".join(f', "{name}": {_dump_messages(texts)}' for name, texts in messages.items() if texts)
        try:
            if isinstance(result, ChainEnd):
                dumped = _any_type.dump_json(result.value)
                refuse_lost_numbers(_any_type, result.value, dumped)
                text = f'{{"stop": {dumped.decode()}{suffix}}}'
            else:
                checked = self.output.validate_python(result)
                dumped = self.output.dump_json(checked, by_alias=True, round_trip=True, warnings="error")
                refuse_lost_numbers(self.output, checked, dumped)
                # guard: chains.readable_result
                self.output.validate_json(dumped)  # a checkpoint that cannot be read back must not be stored
                text = f'{{"value": {dumped.decode()}{suffix}}}'
            return validation.check_json_text(text, field="output", limit=validation.MAX_OUTPUT_BYTES)
        except pydantic.ValidationError as error:
            problem = f"does not fit {type_name(self.return_type)}: {error.errors(include_url=False)[0]['msg']}"
        except (PydanticSerializationError, RecursionError) as error:
            problem = f"cannot be stored as JSON: {error}"
        except Invalid as error:
            problem = f"cannot be stored: {error}"
        # The step has done its work. A retry would do it again and return the same value.
        raise PermanentFailure(
            f"the result of step {self.label} ({type(result).__name__}) {problem}", code="chain.step.result.invalid"
        )

    def load_result(self, text: str, ctx: Context | None, *, resumed: bool) -> Any:
        """Read a result from its checkpoint, also right after it ran: a resumed chain sees the same values."""
        stored = from_json(text)
        if resumed and ctx is not None:
            ctx.warnings += stored.get("warnings", [])
            ctx.errors += stored.get("errors", [])
        if "stop" in stored:
            return ChainEnd(stored["stop"])
        if "hidden" in stored:
            return RedactedResult(self.label, stored["value"])
        try:
            return self.output.validate_json(to_json(stored["value"]))
        except (KeyError, pydantic.ValidationError) as error:
            raise EngineError(
                f"the stored result of step {self.label} does not fit its return type {type_name(self.return_type)}",
                code="chain.step.checkpoint.mismatch",
                remedy="the code has changed since: cancel the task and enqueue it again",
            ) from error


class Chain:
    """Steps in order, with the sources of their parameters."""

    def __init__(self, name: str, functions: Sequence[Callable[..., Any]]) -> None:
        if not 1 <= len(functions) <= _MAX_STEPS:
            raise Invalid(
                f"chain {name!r} has {len(functions)} steps, not 1 to {_MAX_STEPS}",
                code="chain.steps.count",
                field="chain",
            )
        self.name = name
        unwrapped = [_unwrap_function(function) for function in functions]
        name_counts = Counter(function.__name__ for function in unwrapped)
        self.steps = [
            ChainStep(function, position, _label(function, position, name_counts[function.__name__]))
            for position, function in enumerate(unwrapped, start=1)
        ]
        self._wire()

    def _wire(self) -> None:
        """Wire all steps. The parameters of the first step are the input of the chain."""
        first, *others = self.steps
        groups = [[Candidate(kind, f"the input {name}", Source(0, name)) for name, kind in first.parameters.items()]]
        first.sources = {name: Source(0, name) for name in first.parameters}
        for position, step in enumerate(others, start=1):
            previous = self.steps[position - 1]
            groups.append(_result_candidates(previous.return_type, previous.label, position))
            step.wire(groups)

    def as_function(self) -> Callable[..., Awaitable[Any]]:
        """Return the chain as a function with the signature of its first step, for a `Job`."""
        first = self.steps[0]
        by_name = inspect.signature(first.function).parameters
        own = [by_name[name].replace(annotation=kind) for name, kind in first.parameters.items()]
        context = inspect.Parameter(
            _CONTEXT_PARAMETER, inspect.Parameter.KEYWORD_ONLY, annotation=Context, default=None
        )
        signature = inspect.Signature([*own, context])

        async def run(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return await _ChainRun(self, bound.arguments.pop(_CONTEXT_PARAMETER), dict(bound.arguments)).run()

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*own, context)} | {"return": Any}
        run.__name__ = run.__qualname__ = self.name
        run.__module__ = first.function.__module__
        run.__doc__ = " → ".join(step.label for step in self.steps)
        setattr(run, CHAIN_STEPS, [step.function for step in self.steps])
        return run


class _ChainRun:
    """One attempt of a chain. Without a context (a direct call, for example in a test) nothing is stored."""

    def __init__(self, chain: Chain, ctx: Context | None, arguments: dict[str, Any]) -> None:
        self._steps = chain.steps
        self._ctx = ctx
        self._values: list[Any] = [arguments]

    async def run(self) -> Any:
        ctx, total = self._ctx, len(self._steps)
        checkpoints = {} if ctx is None else await ctx.steps.load()
        for done, step in enumerate(self._steps):
            if ctx is not None:
                ctx.current_step = step.label
                ctx.progress(done, total, step.label)
            stored = checkpoints.get(step.key)
            value = await self._run_step(step) if stored is None else step.load_result(stored, ctx, resumed=True)
            if isinstance(value, ChainEnd):
                self._report_end(done + 1, f"stopped by {step.label}")
                return value.value
            self._values.append(value)
        self._report_end(total, "done")
        last = self._values[-1]
        return last.redacted if isinstance(last, RedactedResult) else last

    async def _run_step(self, step: ChainStep) -> Any:
        """Run a step, store its result, and return it."""
        ctx = self._ctx
        arguments = {name: self._resolve(source) for name, source in step.sources.items()}
        if ctx is None:
            if step.context_parameter is not None:
                raise EngineError(
                    f"step {step.label} takes a Context, which only a worker provides",
                    code="chain.step.context_missing",
                )
            text = step.dump_result(await _call(step, arguments, None), None, (0, 0))
            return step.load_result(text, None, resumed=False)
        # guard: chains.no_step_after_stop
        ctx.raise_if_cancelled()  # the previous step may have ended normally in spite of a stop request
        if step.context_parameter is not None:
            arguments[step.context_parameter] = ctx
        ctx.current_step_key = step.key
        message_counts = len(ctx.warnings), len(ctx.errors)
        text = step.dump_result(await _call(step, arguments, ctx), ctx, message_counts)
        redacted = _redact_result(text, ctx)
        stored = await ctx.steps.save(step.key, redacted)
        if redacted is not text and from_json(stored) == from_json(redacted):
            stored = text
        return step.load_result(stored, ctx, resumed=False)

    def _resolve(self, source: Source) -> Any:
        value = self._values[source.position]
        if isinstance(value, RedactedResult):
            raise PermanentFailure(
                f"the result of step {value.step} contained a secret, which is not stored; the chain cannot continue",
                code="chain.step.result.redacted",
                remedy="read the secret in the step that needs it, return no secrets, and enqueue the task again",
            )
        return value if source.part is None else value[source.part]

    def _report_end(self, done: int, message: str) -> None:
        if self._ctx is not None:
            self._ctx.current_step = self._ctx.current_step_key = ""
            self._ctx.progress(done, len(self._steps), message)


async def _call(step: ChainStep, arguments: dict[str, Any], ctx: Context | None) -> Any:
    if step.is_async:
        return await step.function(**arguments)
    if ctx is None or ctx.run_in_thread is None:
        return await asyncio.to_thread(step.function, **arguments)
    return await ctx.run_in_thread(step.function, arguments)


def _unwrap_function(step: Any) -> Callable[..., Any]:
    """Return the function of a step; of a job only the function is used, because the policy of the chain applies."""
    if isinstance(step, Job):
        if step.isolated:
            raise Invalid(
                f"job {step.name} is isolated and cannot be a step of a chain",
                code="chain.step.isolated",
                field="chain",
                remedy="remove the isolation of the job, or enqueue it separately",
            )
        step = step.function
    if not (inspect.isfunction(step) or inspect.ismethod(step)):
        raise Invalid(
            f"chain step {quoted(step)} is not a function",
            code="chain.step.not_a_function",
            field="chain",
            remedy="write a def or async def for it",
        )
    if inspect.isgeneratorfunction(step) or inspect.isasyncgenfunction(step):
        raise Invalid(
            f"chain step {step.__name__} is a generator function",
            code="chain.step.generator",
            field="chain",
            remedy="return a list",
        )
    return step


def _label(function: Callable[..., Any], position: int, name_count: int) -> str:
    """Return the name of a step; with its position, if the chain has the function more than once."""
    label = validation.check_label(function.__name__, field="step")
    return label if name_count == 1 else f"{label} ({position})"


def _redact_result(text: str, ctx: Context) -> str:
    """Redact a checkpoint. The mark ``hidden`` says that its value is not complete."""
    if ctx.redact_json(text) is text:
        return text
    stored = from_json(text)
    # Part by part: the names of the parts are ours, and "value" itself may be a secret.
    redacted = {name: from_json(ctx.redact_json(to_json(part).decode())) for name, part in stored.items()}
    if redacted == stored:
        return text
    if redacted.get("value") != stored.get("value"):
        redacted["hidden"] = True
    return to_json(redacted).decode()


def _dump_messages(messages: Sequence[str]) -> str:
    return to_json([validation.truncate_text(each, _MAX_MESSAGE_CHARACTERS) for each in messages]).decode()


def _type_hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Invalid(
            f"the types of step {label} cannot be resolved: {error}",
            code="chain.step.types.unresolvable",
            field="chain",
            remedy="define them at the top level of a module",
        ) from error
    if "return" not in hints:
        raise Invalid(f"step {label} has no return type", code="chain.step.return.untyped", field="return")
    return hints


# --- types ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from: the input (position 0) or the result of the n-th step, whole or one part of it."""

    position: int
    part: str | int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that a parameter may be taken from."""

    type: Any
    origin: str
    source: Source


def _result_candidates(kind: Any, label: str, position: int) -> list[Candidate]:
    """Return the candidates of a step result: the result itself and the members of a tuple. None offers nothing."""
    if _unwrap_type(kind) is type(None):
        return []
    candidates = [Candidate(kind, label, Source(position))]
    members = get_args(_unwrap_type(kind)) if get_origin(_unwrap_type(kind)) is tuple else ()
    if members and members[-1] is not Ellipsis:
        candidates += [Candidate(member, label, Source(position, number)) for number, member in enumerate(members)]
    return candidates


def is_assignable(kind: Any, wanted: Any) -> bool:
    """Whether every value of a type may be passed where the other type is wanted."""
    kind, wanted = _unwrap_type(kind), _unwrap_type(wanted)
    if wanted is Any or wanted is object or kind == wanted:
        return True
    if _is_union(kind):
        return all(is_assignable(each, wanted) for each in get_args(kind))
    if _is_union(wanted):
        return any(is_assignable(kind, each) for each in get_args(wanted))
    if isinstance(kind, NewType):
        return is_assignable(kind.__supertype__, wanted)
    return _is_subclass(kind, wanted)


def _is_subclass(kind: Any, wanted: Any) -> bool:
    kind_class, wanted_class = get_origin(kind) or kind, get_origin(wanted) or wanted
    if kind_class is bool and wanted_class is int:  # a subclass in Python, but a flag is not meant to be a number
        return False
    try:
        related = issubclass(kind_class, wanted_class)
    except TypeError:  # one of the two is no class
        return False
    return related and get_args(wanted) in ((), get_args(kind))


def _unwrap_type(kind: Any) -> Any:
    """Return a type without `Annotated` and type aliases."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def type_name(kind: Any) -> str:
    """Return a type as it is written in code."""
    kind = _unwrap_type(kind)
    if kind is type(None):
        return "None"
    if _is_union(kind):
        return " | ".join(type_name(each) for each in get_args(kind))
    if get_args(kind) and get_origin(kind) is not None:
        members = ("..." if each is Ellipsis else type_name(each) for each in get_args(kind))
        return f"{type_name(get_origin(kind))}[{', '.join(members)}]"
    return getattr(kind, "__name__", str(kind))


def _describe_candidates(groups: Sequence[Sequence[Candidate]]) -> str:
    candidates = [candidate for group in groups for candidate in group]
    return ", ".join(f"{type_name(each.type)} ({each.origin})" for each in candidates) or "none"
