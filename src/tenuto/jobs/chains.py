"""Chains: several functions as one job; values are passed from step to step by type.

A step takes its parameters from the input of the chain and the results of earlier steps; the newest value of a type is
used. The constructor of a chain checks that every step gets its values. The result of a step is stored when it ends,
so that a retry, also by another worker after a crash, continues after the last stored step; an interrupted step runs
again. `stop(value)` ends the chain early with that value, which is stored as well.

Redacted values are stored as ``***``. Later steps of the same attempt get the real value; a resumed chain does not have
it and fails.
"""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from tenuto.errors import EngineError, Invalid
from tenuto.jobs.context import Context
from tenuto.jobs.workflows.step_results import (
    ChainEnd,
    RedactedResult,
    StepResults,
    call_function,
    redacted_result_error,
    save_result,
    unwrap_function,
)
from tenuto.jobs.workflows.value_types import is_assignable, type_name, unwrap_type
from tenuto.model import validation

_MAX_STEPS = 100
_CONTEXT_PARAMETER = "tenuto_context"
CHAIN_STEPS = "tenuto_chain_steps"
"""Attribute of the function of a chain: the functions of its steps."""


def stop(value: Any = None) -> Any:
    """Return this from a step to end the chain with the given value."""
    return ChainEnd(value)


class ChainStep:
    """One function of a chain with its parameter and return types."""

    def __init__(self, function: Callable[..., Any], position: int, label: str) -> None:
        self.function = function
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
        self.results = StepResults(label, self.return_type)

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
            fitting = [each for each in fitting if unwrap_type(each.type) == unwrap_type(wanted)] or fitting
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
        unwrapped = [unwrap_function(function) for function in functions]
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
            value = await self._run_step(step) if stored is None else step.results.load(stored, ctx, resumed=True)
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
            text = step.results.dump(await call_function(step.function, arguments, None))
            return step.results.load(text, None, resumed=False)
        # guard: chains.no_step_after_stop
        ctx.raise_if_cancelled()  # the previous step may have ended normally in spite of a stop request
        if step.context_parameter is not None:
            arguments[step.context_parameter] = ctx
        ctx.current_step_key = step.key
        warning_count, error_count = len(ctx.warnings), len(ctx.errors)
        result = await call_function(step.function, arguments, ctx)
        text = step.results.dump(result, ctx.warnings[warning_count:], ctx.errors[error_count:])
        return step.results.load(await save_result(ctx, step.key, text), ctx, resumed=False)

    def _resolve(self, source: Source) -> Any:
        value = self._values[source.position]
        if isinstance(value, RedactedResult):
            raise redacted_result_error(value.step)
        return value if source.part is None else value[source.part]

    def _report_end(self, done: int, message: str) -> None:
        if self._ctx is not None:
            self._ctx.current_step = self._ctx.current_step_key = ""
            self._ctx.progress(done, len(self._steps), message)


def _label(function: Callable[..., Any], position: int, name_count: int) -> str:
    """Return the name of a step; with its position, if the chain has the function more than once."""
    label = validation.check_label(function.__name__, field="step")
    return label if name_count == 1 else f"{label} ({position})"


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
    if unwrap_type(kind) is type(None):
        return []
    candidates = [Candidate(kind, label, Source(position))]
    members = get_args(unwrap_type(kind)) if get_origin(unwrap_type(kind)) is tuple else ()
    if members and members[-1] is not Ellipsis:
        candidates += [Candidate(member, label, Source(position, number)) for number, member in enumerate(members)]
    return candidates


def _describe_candidates(groups: Sequence[Sequence[Candidate]]) -> str:
    candidates = [candidate for group in groups for candidate in group]
    return ", ".join(f"{type_name(each.type)} ({each.origin})" for each in candidates) or "none"
