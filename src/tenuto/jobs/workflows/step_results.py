"""Results of durable steps of chains and workflows: how they are called, and how their results are stored and read."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from tenuto.errors import EngineError, Invalid, quoted
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.registry import Job, refuse_lost_numbers
from tenuto.jobs.workflows.value_types import type_name
from tenuto.model import validation

_MAX_MESSAGE_CHARACTERS = 8192
_any_type: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Result of a step that ends the chain."""

    value: Any


@dataclass(frozen=True, slots=True)
class RedactedResult:
    """A step result of which a resumed chain has only the redacted form."""

    step: str
    redacted: Any


def redacted_result_error(step: str) -> PermanentFailure:
    """The error for a value that a resumed attempt needs and that was stored redacted."""
    return PermanentFailure(
        f"the result of step {step} contained a secret, which is not stored; the chain cannot continue",
        code="chain.step.result.redacted",
        remedy="read the secret in the step that needs it, return no secrets, and enqueue the task again",
    )


class StepResults:
    """Stores and reads the results of a step by its return type."""

    def __init__(self, label: str, return_type: Any) -> None:
        self.label = label
        self.return_type = return_type
        try:
            self._output: TypeAdapter[Any] = TypeAdapter(return_type)
        except pydantic.errors.PydanticSchemaGenerationError as error:
            raise Invalid(
                f"step {label} returns {type_name(return_type)}, which cannot be stored as JSON",
                code="chain.step.return.not_json",
                field="return",
                remedy="return plain types, dataclasses or pydantic models",
            ) from error

    def dump(self, result: Any, warnings: Sequence[str] = (), errors: Sequence[str] = ()) -> str:
        """Return the checkpoint of a result, with the warnings and errors that the step reported."""
        messages = {"warnings": warnings, "errors": errors}
        suffix = "".join(f', "{name}": {_dump_messages(texts)}' for name, texts in messages.items() if texts)
        try:
            if isinstance(result, ChainEnd):
                dumped = _any_type.dump_json(result.value)
                refuse_lost_numbers(_any_type, result.value, dumped)
                text = f'{{"stop": {dumped.decode()}{suffix}}}'
            else:
                checked = self._output.validate_python(result)
                dumped = self._output.dump_json(checked, by_alias=True, round_trip=True, warnings="error")
                refuse_lost_numbers(self._output, checked, dumped)
                # guard: chains.readable_result
                self._output.validate_json(dumped)  # a checkpoint that cannot be read back must not be stored
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

    def load(self, text: str, ctx: Context | None, *, resumed: bool) -> Any:
        """Read a result from its checkpoint, also right after it ran: a resumed attempt sees the same values."""
        stored = from_json(text)
        if resumed and ctx is not None:
            ctx.warnings += stored.get("warnings", [])
            ctx.errors += stored.get("errors", [])
        if "stop" in stored:
            return ChainEnd(stored["stop"])
        if "hidden" in stored:
            return RedactedResult(self.label, stored["value"])
        try:
            return self._output.validate_json(to_json(stored["value"]))
        except (KeyError, pydantic.ValidationError) as error:
            raise EngineError(
                f"the stored result of step {self.label} does not fit its return type {type_name(self.return_type)}",
                code="chain.step.checkpoint.mismatch",
                remedy="the code has changed since: cancel the task and enqueue it again",
            ) from error


async def save_result(ctx: Context, key: str, text: str) -> str:
    """Store the checkpoint of a step, redacted; return what the attempt continues with, which has the real values."""
    redacted = _redact_result(text, ctx)
    stored = await ctx.steps.save(key, redacted)
    return text if redacted is not text and from_json(stored) == from_json(redacted) else stored


async def call_function(function: Callable[..., Any], arguments: dict[str, Any], ctx: Context | None) -> Any:
    """Call an async function, or a plain one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    if ctx is None or ctx.run_in_thread is None:
        return await asyncio.to_thread(function, **arguments)
    return await ctx.run_in_thread(function, arguments)


def unwrap_function(step: Any) -> Callable[..., Any]:
    """Return the function of a step; of a job only the function is used, because the policy of the whole applies."""
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
