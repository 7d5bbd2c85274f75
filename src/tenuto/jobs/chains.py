"""Chains: several functions as one job, values flowing from one to the next by type.

Each step takes what it needs by the types of its parameters, from the chain's input and from what earlier steps have
returned; the newest value of a type counts. Whether every step finds what it needs is checked when the chain is made
(see `jobs.chain_wiring`). What a step returns is stored as it ends, so that a retry, or another worker after a crash,
goes on after the last one that is stored; a step that was under way is run again. `stop(value)` ends the chain early
with that value, which is stored as well.

What must not be seen is stored as ``***``. The steps after it in the same attempt take the value as it is; a resumed
chain does not have it, and fails rather than go on with something else.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from tenuto.errors import EngineError, Invalid
from tenuto.jobs import chain_wiring
from tenuto.jobs.chain_wiring import Offer, Source
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.registry import Job
from tenuto.model import stored_values

_MAX_STEPS = 100
_CONTEXT = "tenuto_context"
_anything: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class Ended:
    """The chain ends here, with this value."""

    value: Any


def stop(value: Any = None) -> Any:
    """Returned by a step: the chain has come to its end, with this value."""
    return Ended(value)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value a resumed chain does not have: only what may be seen of it is stored."""

    step: str
    shown: Any


class ChainStep:
    """One function of a chain: what it takes, what it gives."""

    def __init__(self, function: Callable[..., Any], place: int, label: str) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.label = label
        self.key = f"{place} {label}"
        """What its result is stored under: a step that is renamed or moved is another one."""
        hints = _hints(function, label)
        self.gives = hints.pop("return")
        self.context_parameter: str | None = None
        self.parameters: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.takes: dict[str, Source] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise Invalid(f"step {label} cannot take {parameter}", field=name, remedy="take values by name")
            if name not in hints:
                raise Invalid(f"step {label}: the parameter has no type", field=name, remedy="annotate it")
            if hints[name] is Context:
                self.context_parameter = name
                continue
            self.parameters[name] = hints[name]
            if parameter.default is not parameter.empty:
                self.defaults[name] = parameter.default
        try:
            self.output: TypeAdapter[Any] = TypeAdapter(self.gives)
        except pydantic.errors.PydanticSchemaGenerationError as error:
            raise Invalid(
                f"step {label} returns {chain_wiring.named(self.gives)}, which cannot be stored as JSON",
                field="return",
                remedy="return plain types, dataclasses or pydantic models",
            ) from error

    def wire(self, groups: Sequence[Sequence[Offer]]) -> None:
        """Decide where each of its parameters comes from, or refuse."""
        for name, kind in self.parameters.items():
            try:
                source = chain_wiring.find(kind, name, groups)
            except Invalid as refusal:
                raise Invalid(
                    f"step {self.label}: {refusal.message}", field=refusal.field, remedy=refusal.remedy
                ) from None
            if source is not None:
                self.takes[name] = source
            elif name not in self.defaults:
                raise Invalid(
                    f"step {self.label} needs a value of type {chain_wiring.named(kind)}, and none is there",
                    field=name,
                    remedy=f"by then there is: {chain_wiring.listed(groups)}",
                )

    def write(self, outcome: Any, ctx: Context | None, before: tuple[int, int]) -> str:
        """What it came to, as it is stored; and what it found worth a warning, so that a resumed chain knows it too."""
        kept: dict[str, Any] = {}
        if ctx is not None:
            kept = {"warnings": ctx.warnings[before[0] :], "errors": ctx.errors[before[1] :]}
        said = "".join(f', "{name}": {_words(words)}' for name, words in kept.items() if words)
        try:
            if isinstance(outcome, Ended):
                text = f'{{"stop": {_anything.dump_json(outcome.value).decode()}{said}}}'
            else:
                checked = self.output.validate_python(outcome)
                dumped = self.output.dump_json(checked, by_alias=True, round_trip=True, warnings="error")
                self.output.validate_json(dumped)  # what could be written but never read back must not get in
                text = f'{{"value": {dumped.decode()}{said}}}'
            return stored_values.storable_json(text, field="output", limit=stored_values.MAX_OUTPUT)
        except pydantic.ValidationError as error:
            why = f"does not fit {chain_wiring.named(self.gives)}: {error.errors(include_url=False)[0]['msg']}"
        except (PydanticSerializationError, RecursionError) as error:
            why = f"cannot be stored as JSON: {error}"
        except Invalid as error:
            why = f"cannot be stored: it {error.message}" + (f"; {error.remedy}" if error.remedy else "")
        # What it did is done. To do it again, and come to the same result, would help nobody.
        raise PermanentFailure(f"what step {self.label} returned ({type(outcome).__name__}) {why}")

    def read(self, text: str, ctx: Context | None, *, resumed: bool) -> Any:
        """From what is stored, not from what was returned: a resumed chain sees just what an undisturbed one does."""
        kept = from_json(text)
        if resumed and ctx is not None:
            ctx.warnings += kept.get("warnings", [])
            ctx.errors += kept.get("errors", [])
        if "stop" in kept:
            return Ended(kept["stop"])
        if "hidden" in kept:
            return Unknown(self.label, kept["value"])
        try:
            return self.output.validate_json(to_json(kept["value"]))
        except (KeyError, pydantic.ValidationError) as error:
            raise EngineError(
                f"what is stored of step {self.label} does not fit what it returns now ({chain_wiring.named(self.gives)})",
                remedy="the code has changed since: cancel the task and start it anew",
            ) from error


class Chain:
    """Steps in order, checked to fit."""

    def __init__(self, name: str, functions: Sequence[Callable[..., Any]]) -> None:
        if not 1 <= len(functions) <= _MAX_STEPS:
            raise Invalid(f"must have 1 to {_MAX_STEPS} steps", field="chain")
        self.name = name
        bare = [_function_of(function) for function in functions]
        often = Counter(function.__name__ for function in bare)
        self.steps = [
            ChainStep(function, place, _label(function, place, often[function.__name__]))
            for place, function in enumerate(bare, start=1)
        ]
        self._wire()

    def _wire(self) -> None:
        """What the chain takes is what its first step takes; every other finds what it needs in what came before."""
        first, *others = self.steps
        groups = [chain_wiring.of_inputs(first.parameters)]
        first.takes = {name: Source(0, name) for name in first.parameters}
        for place, step in enumerate(others, start=1):
            groups.append(chain_wiring.of_step(self.steps[place - 1].gives, self.steps[place - 1].label, place))
            step.wire(groups)

    def as_function(self) -> Callable[..., Awaitable[Any]]:
        """The chain as a function with the signature of its first step, ready to be a job."""
        first = self.steps[0]
        by_name = inspect.signature(first.function).parameters
        own = [by_name[name].replace(annotation=kind) for name, kind in first.parameters.items()]
        context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context, default=None)
        signature = inspect.Signature([*own, context])

        async def run(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            return await _Run(self, given.arguments.pop(_CONTEXT), dict(given.arguments)).to_the_end()

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*own, context)} | {"return": Any}
        run.__name__ = run.__qualname__ = self.name
        run.__module__ = first.function.__module__
        run.__doc__ = " → ".join(step.label for step in self.steps)
        return run


class _Run:
    """One attempt at a chain. Without a context (called like any function, in a test) nothing is stored."""

    def __init__(self, chain: Chain, ctx: Context | None, given: dict[str, Any]) -> None:
        self._steps = chain.steps
        self._ctx = ctx
        self._values: list[Any] = [given]

    async def to_the_end(self) -> Any:
        ctx, total = self._ctx, len(self._steps)
        stored = {} if ctx is None else await ctx.steps.recorded()
        for done, step in enumerate(self._steps):
            if ctx is not None:
                ctx.at_step = step.label
                ctx.progress(done, total, step.label)
            kept = stored.get(step.key)
            value = await self._now(step) if kept is None else step.read(kept, ctx, resumed=True)
            if isinstance(value, Ended):
                self._say_done(done + 1, f"stopped by {step.label}")
                return value.value
            self._values.append(value)
        self._say_done(total, "done")
        last = self._values[-1]
        return last.shown if isinstance(last, Unknown) else last

    async def _now(self, step: ChainStep) -> Any:
        """Run a step, and store what it came to."""
        ctx = self._ctx
        arguments = {name: self._value(source) for name, source in step.takes.items()}
        if ctx is None:
            if step.context_parameter is not None:
                raise EngineError(
                    f"step {step.label} takes a Context, which only a worker has", remedy="test it through a worker"
                )
            return step.read(step.write(await _call(step, arguments, None), None, (0, 0)), None, resumed=False)
        ctx.check()  # the step before may have come to its end although it was told to stop
        if step.context_parameter is not None:
            arguments[step.context_parameter] = ctx
        ctx.step_key = step.key
        before = len(ctx.warnings), len(ctx.errors)
        text = step.write(await _call(step, arguments, ctx), ctx, before)
        shown = _shown(text, ctx)
        stands = await ctx.steps.record(step.key, shown)
        if shown is not text and from_json(stands) == from_json(shown):
            stands = text
        return step.read(stands, ctx, resumed=False)

    def _value(self, source: Source) -> Any:
        whole = self._values[source.place]
        if isinstance(whole, Unknown):
            raise PermanentFailure(
                f"what step {whole.step} returned held a secret: it is not stored, and the chain cannot go on with it",
                remedy="reveal a secret in the step that needs it, return what holds none, and start the task anew",
            )
        return whole if source.part is None else whole[source.part]

    def _say_done(self, done: int, words: str) -> None:
        if self._ctx is not None:
            self._ctx.at_step = self._ctx.step_key = ""
            self._ctx.progress(done, len(self._steps), words)


async def _call(step: ChainStep, arguments: dict[str, Any], ctx: Context | None) -> Any:
    if step.is_async:
        return await step.function(**arguments)
    if ctx is None or ctx.beside is None:
        return await asyncio.to_thread(step.function, **arguments)
    return await ctx.beside(step.function, arguments)


def _function_of(given: Any) -> Callable[..., Any]:
    """The function itself; a job's, if it is one: in a chain the chain's own rules count."""
    if isinstance(given, Job):
        if given.isolated:
            raise Invalid(f"{given.name} is isolated, which a step cannot be", field="chain")
        given = given.function
    if not (inspect.isfunction(given) or inspect.ismethod(given)):
        raise Invalid(f"{given!r:.80} is not a function", field="chain", remedy="write a def or async def for it")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise Invalid(f"{given.__name__} is a generator", field="chain", remedy="return a list")
    return given


def _label(function: Callable[..., Any], place: int, times: int) -> str:
    """The name of a step; with its place, if the function is there more than once."""
    label = stored_values.label(function.__name__, field="step")
    return label if times == 1 else f"{label} ({place})"


def _shown(text: str, ctx: Context) -> str:
    """What a step came to, without what must not be seen. If that is part of the value, it says so."""
    if ctx.hidden_json(text) is text:
        return text
    kept = from_json(text)
    # Part by part: the names of the parts are ours, and there may be a secret "value".
    shown = {name: from_json(ctx.hidden_json(to_json(part).decode())) for name, part in kept.items()}
    if shown == kept:
        return text
    if shown.get("value") != kept.get("value"):
        shown["hidden"] = True
    return to_json(shown).decode()


def _words(said: Sequence[str]) -> str:
    return to_json([stored_values.kept_text(words, 8192) for words in said]).decode()


def _hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Invalid(
            f"step {label}: its types cannot be read: {error}",
            field="chain",
            remedy="define them at the top of a module",
        ) from error
    if "return" not in hints:
        raise Invalid(
            f"step {label} does not say what it returns", field="return", remedy="annotate it; -> None if nothing"
        )
    return hints
