"""Checks of what the steps of a plan take from earlier steps, when a schedule is saved.

A step may name steps of earlier groups only. Types are compared where both are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto.model.definitions.json_schemas import NoSuchPart, Schema, find_mismatch, find_part, json_types
from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.step_expressions import (
    REFUSED_ARGUMENTS,
    Comparison,
    ReferencePlace,
    StatusTest,
    StepOutput,
    StepStatus,
    find_references,
    has_references,
)
from tenuto.model.definitions.steps import JOB, Step

SchemaOfStep = Callable[[Step], Schema]

_TYPE_OF_LITERAL: Mapping[type, set[str]] = {
    str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"integer", "number"}, type(None): {"null"},
}  # fmt: skip


def check_step_dependencies(plan: Plan, output_schema: SchemaOfStep, input_schema: SchemaOfStep) -> None:
    """Raise `Invalid` for a reference, condition or edge that cannot work; the error names step and field."""
    if plan.step_dependencies is None:
        return
    steps = {step.name: step for _, _, step in plan.enumerate_steps()}
    earlier: set[str] = set()
    for group in plan.groups:
        for step in group:
            if step.depends_on_steps:
                _StepCheck(step, steps, earlier, output_schema, input_schema).check()
        earlier |= {step.name for step in group}


class _StepCheck:
    """Checks one step."""

    def __init__(
        self,
        step: Step,
        steps: Mapping[str, Step],
        earlier: set[str],
        output_schema: SchemaOfStep,
        input_schema: SchemaOfStep,
    ) -> None:
        self._step = step
        self._steps = steps
        self._earlier = earlier
        self._output_schema = output_schema
        self._input_schema = input_schema

    def check(self) -> None:
        for name in self._step.needs:
            self._check_is_earlier(name, "needs")
        self._check_condition()
        self._check_arguments()

    def _check_is_earlier(self, name: str, field: str) -> None:
        if name not in self._steps:
            similar = get_close_matches(name, self._steps, 1)
            raise self._error(
                f"the schedule has no step {quoted(name, 60)}",
                "step.reference.step_not_found",
                field,
                f"did you mean {similar[0]!r}?" if similar else f"its steps: {', '.join(sorted(self._steps)[:20])}",
            )
        if name not in self._earlier:
            raise self._error(
                f"step {name!r} is not in an earlier group",
                "step.reference.not_earlier",
                field,
                "move it into an earlier group: a step can only use steps that have ended",
            )

    def _check_condition(self) -> None:
        condition = self._step.condition
        if condition is None:
            return
        for test in condition.tests():
            self._check_is_earlier(test.step, "when")
            if isinstance(test, StatusTest):
                self._check_status(test)
            else:
                schema = self._part_schema(test.output, "when")
                if isinstance(test, Comparison):
                    self._check_comparison(test, schema)

    def _check_status(self, test: StatusTest) -> None:
        named = self._steps[test.step]
        if test.status is StepStatus.FAILED and not named.continue_on_failure:
            raise self._error(
                f"{test} is never true here: when step {test.step!r} fails, the execution fails",
                "step.when.never_true",
                "when",
                f"set continue_on_failure for step {test.step!r}",
            )
        if test.status is StepStatus.SKIPPED and named.when is None and not named.sources:
            raise self._error(
                f"{test} is never true: step {test.step!r} has no condition",
                "step.when.never_true",
                "when",
                f"give step {test.step!r} a condition, or leave this one out",
            )

    def _check_comparison(self, test: Comparison, schema: Schema) -> None:
        types = json_types(schema)
        if types is not None and not types & _TYPE_OF_LITERAL[type(test.literal)]:
            raise self._error(
                f"{test}: the value is {' or '.join(sorted(types))}, and is never equal to or ordered with that",
                "step.when.type_mismatch",
                "when",
                "compare it with a value of its type",
            )

    def _check_arguments(self) -> None:
        step = self._step
        for path in _secret_names(step.arguments) if step.kind != JOB else ():
            raise self._error(
                f"{'.'.join(map(str, path))}: an output cannot name a secret",
                "step.reference.secret",
                f"arguments.{'.'.join(map(str, path))}",
                "write the name of the secret itself",
            )
        for place in self._references():
            field = f"arguments.{place.argument}"
            self._check_is_earlier(place.output.step, field)
            if place.path[0] in REFUSED_ARGUMENTS.get(step.kind, ()):
                raise self._error(
                    f"{place.path[0]} cannot come from an earlier step, because it decides what runs",
                    "step.reference.not_allowed",
                    field,
                    "pass the value in another argument, such as args, stdin, parameters or body",
                )
            given = self._part_schema(place.output, field)
            if place.is_whole and step.kind == JOB:
                self._check_type(place, given, field)

    def _references(self) -> Iterator[ReferencePlace]:
        try:
            yield from find_references(self._step.arguments)
        except Invalid as error:
            field = f"arguments.{error.field}"
            raise self._error(error.message, error.code, field, error.remedy) from None

    def _part_schema(self, output: StepOutput, field: str) -> Schema:
        try:
            return find_part(self._output_schema(self._steps[output.step]), output.path)
        except NoSuchPart as missing:
            owner = StepOutput(output.step, output.path[: missing.depth]).expression
            raise self._error(
                f"{owner} {missing.problem}", "step.reference.path_not_found", field, "correct the path"
            ) from None

    def _check_type(self, place: ReferencePlace, given: Schema, field: str) -> None:
        try:
            wanted = find_part(self._input_schema(self._step), place.path)
        except NoSuchPart:
            return  # the validation of the arguments reports it
        problem = find_mismatch(given, wanted)
        if problem is not None:
            raise self._error(
                f"{place.output.expression} does not fit the argument {place.argument}: {problem}",
                "step.reference.type_mismatch",
                field,
                "refer to another part, or change the type of the argument or of the output",
            )

    def _error(self, problem: str, code: str, field: str, remedy: str | None) -> Invalid:
        return Invalid(f"step {self._step.name!r}: {problem}", code=code, field=self._field(field), remedy=remedy)

    def _field(self, field: str) -> str:
        return f"steps.{self._step.name}.{field}"


def _secret_names(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the places where the name of a secret contains a reference."""
    if isinstance(value, Mapping):
        if "secret" in value and value.keys() <= {"secret", "prefix"} and has_references(value["secret"]):
            yield (*path, "secret")
        for name, part in value.items():
            yield from _secret_names(part, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _secret_names(part, (*path, index))
