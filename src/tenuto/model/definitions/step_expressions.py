"""Expressions about earlier steps: references to their outputs, and conditions.

A reference is written ``${steps.extract.output.rows}`` in a text argument of a step, in Python
``extract.output["rows"]``. A text that is one reference becomes the value itself; a reference within a longer text
becomes text. ``$${steps.…}`` stands for the text ``${steps.…}``. A condition is written
``steps.extract.output.count > 0 and not steps.check.failed``, in Python
``(extract.output["count"] > 0) & ~check.failed``. Both forms are stored as text. Names that are not identifiers are
quoted: ``steps["load rows"].output["first name"][0]``.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from tenuto.errors import Invalid, quoted
from tenuto.model import validation
from tenuto.model.access.secrets import may_refer_to_secret

MAX_CONDITION_LENGTH = 2000
MAX_CONDITION_DEPTH = 20
_SHOWN_VALUE_LENGTH = 80
_JOB = "job"
_POLICY_KEY = "references"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PATH = r"(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[(?:\"(?:[^\"\\]|\\.)*\"|\d{1,9})\])"
_PATH_PART = re.compile(_PATH)
_REFERENCE = re.compile(rf"\$\{{\s*(steps{_PATH}+)\s*\}}")
_MARK = re.compile(r"\$?\$\{\s*steps\b")
"""The beginning of a reference, or of an escaped one."""
_TOKEN = re.compile(
    rf"\s*(?:(?P<steps>steps{_PATH}+)|(?P<word>and|or|not)\b|(?P<literal>true\b|false\b|null\b"
    r"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\"(?:[^\"\\]|\\.)*\")|(?P<operator>==|!=|<=|>=|<|>)|(?P<bracket>[()]))"
)

Path = tuple[str | int, ...]

REFUSED_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "executable": frozenset({"program", "folder", "sha256"}),
    "powershell": frozenset({"program", "script", "text", "folder", "sha256"}),
    "sql": frozenset({"connection", "script", "script_file"}),
    "log.append": frozenset({"log"}),
    "manifest": frozenset({"manifest"}),
}
"""Arguments that decide which code runs, or where. An output, which is data, must not choose them."""
TEXT_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "executable": frozenset({"args", "env", "stdin"}),
    "powershell": frozenset({"args", "env", "stdin"}),
    "http.call": frozenset({"url", "headers"}),
    "log.append": frozenset({"message"}),
}
"""Arguments that take only texts: another value is converted to text."""


class StepStatus(StrEnum):
    """How an earlier step ended, as a condition names it."""

    SUCCEEDED = "succeeded"
    """It completed, with or without a warning."""
    FAILED = "failed"
    """Its last attempt failed, completed with an error or was cancelled."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step that has ended."""

    status: StepStatus
    output: Any = None


class _Absent:
    """Stands for a value that there is not; None is a value."""


_ABSENT = _Absent()


# --- conditions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A condition on earlier steps. Combine conditions with ``&``, ``|`` and ``~``."""

    def __and__(self, other: Condition) -> Condition:
        return _Combination("and", (self, to_condition(other)))

    def __or__(self, other: Condition) -> Condition:
        return _Combination("or", (self, to_condition(other)))

    def __invert__(self) -> Condition:
        return self.condition if isinstance(self, _Negation) else _Negation(self)

    def __bool__(self) -> bool:
        raise _used_as_boolean(f"the condition {self}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.format() == other.format()

    def __hash__(self) -> int:
        return hash(self.format())

    def __str__(self) -> str:
        return self.format()

    def format(self) -> str:
        """Return the condition as text."""
        raise NotImplementedError

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        """Yield the tests of which the condition consists."""
        raise NotImplementedError

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        """Evaluate the condition; raise `Invalid` if it compares values of different types."""
        raise NotImplementedError

    @property
    def steps(self) -> set[str]:
        """Names of the steps that the condition names."""
        return {test.step for test in self.tests()}

    @property
    def steps_with_output(self) -> set[str]:
        """Names of the steps whose output the condition needs."""
        return {test.step for test in self.tests() if not isinstance(test, StatusTest)}


@dataclass(frozen=True, slots=True, eq=False)
class StatusTest(Condition):
    """Whether a step ended in a certain way."""

    step: str
    status: StepStatus

    def format(self) -> str:
        return f"steps{_format_part(self.step)}.{self.status}"

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        yield self

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        result = results.get(self.step)
        return result is not None and result.status is self.status


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Condition):
    """A comparison of an output, or a part of it, with a literal. It is not met if the step has no output."""

    output: StepOutput
    operator: str
    literal: str | float | bool | None

    @property
    def step(self) -> str:
        return self.output.step

    @property
    def is_ordering(self) -> bool:
        return self.operator not in ("==", "!=")

    def format(self) -> str:
        return f"{self.output.expression} {self.operator} {json.dumps(self.literal, ensure_ascii=False)}"

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        yield self

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        if not _has_output(results.get(self.step)):
            return False
        value = self.output.read(results)
        kind, expected = json_type(value), json_type(self.literal)
        if kind != expected and self.is_ordering:
            raise Invalid(
                f"the condition {self} compares {expected} with {_describe_value(value)}, which is {kind}",
                code="step.when.type_mismatch",
                field="when",
                remedy="compare values of the same type",
            )
        if kind != expected:
            return self.operator == "!="
        return _OPERATORS[self.operator](value, self.literal)


@dataclass(frozen=True, slots=True, eq=False)
class Presence(Condition):
    """Whether an output, or a part of it, is there and is not null, false, 0 or empty."""

    output: StepOutput

    @property
    def step(self) -> str:
        return self.output.step

    def format(self) -> str:
        return self.output.expression

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        yield self

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        value = self.output.find(results)
        return not isinstance(value, _Absent) and bool(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Negation(Condition):
    condition: Condition

    def format(self) -> str:
        inner = self.condition.format()
        return f"not ({inner})" if isinstance(self.condition, _Combination | Comparison) else f"not {inner}"

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        yield from self.condition.tests()

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        return not self.condition.is_met(results)


@dataclass(frozen=True, slots=True, eq=False)
class _Combination(Condition):
    word: str
    """``and`` or ``or``."""
    parts: tuple[Condition, ...]

    def format(self) -> str:
        texts = [
            f"({part.format()})" if isinstance(part, _Combination) and part.word != self.word else part.format()
            for part in self.parts
        ]
        return f" {self.word} ".join(texts)

    def tests(self) -> Iterator[StatusTest | Comparison | Presence]:
        for part in self.parts:
            yield from part.tests()

    def is_met(self, results: Mapping[str, StepResult]) -> bool:
        met = (part.is_met(results) for part in self.parts)
        return all(met) if self.word == "and" else any(met)


def to_condition(given: object) -> Condition:
    """Return a condition from a `Condition`, the output of a step or a text."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, StepOutput):
        return Presence(given)
    if isinstance(given, str):
        return parse_condition(given)
    raise Invalid(
        f"when {quoted(given, 60)} is not a condition",
        code="step.when.invalid",
        field="when",
        remedy="write steps.NAME.succeeded, steps.NAME.output.PART > 0, or extract.succeeded in Python",
    )


@lru_cache(maxsize=1024)
def parse_condition(text: str) -> Condition:
    """Return the condition that a text describes."""
    if len(text) > MAX_CONDITION_LENGTH:
        raise Invalid(
            f"when is longer than {MAX_CONDITION_LENGTH:,} characters",
            code="step.when.too_long",
            field="when",
            remedy="let a job return the answer, and test that",
        )
    return _ConditionReader(text).read()


class _ConditionReader:
    """Reads a condition from left to right: ``or`` binds weaker than ``and``, and ``and`` weaker than ``not``."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._position = 0
        self._depth = 0
        self._kind, self._token = "", ""
        self._advance()

    def read(self) -> Condition:
        condition = self._read_combination("or")
        if self._kind:
            raise self._error(f"{self._token!r} is not expected")
        return condition

    def _read_combination(self, word: str) -> Condition:
        self._depth += 1
        if self._depth > 3 * MAX_CONDITION_DEPTH:
            raise self._error("it is nested too deeply")
        parts = [self._read_part(word)]
        while (self._kind, self._token) == ("word", word):
            self._advance()
            parts.append(self._read_part(word))
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _Combination(word, tuple(parts))

    def _read_part(self, word: str) -> Condition:
        return self._read_combination("and") if word == "or" else self._read_negation()

    def _read_negation(self) -> Condition:
        count = 0
        while (self._kind, self._token) == ("word", "not"):
            self._advance()
            count += 1
        condition = self._read_test()
        return _Negation(condition) if count % 2 else condition

    def _read_test(self) -> Condition:
        if (self._kind, self._token) == ("bracket", "("):
            self._advance()
            condition = self._read_combination("or")
            if self._token != ")":
                raise self._error("a closing bracket is missing")
            self._advance()
            return condition
        if self._kind != "steps":
            raise self._error(f"{self._token!r} is not expected" if self._token else "it ends too early")
        path = _parse_path(self._token.removeprefix("steps"))
        self._advance()
        if len(path) == 2 and path[1] in tuple(StepStatus) and isinstance(path[0], str):
            return StatusTest(path[0], StepStatus(path[1]))
        output = _to_output(path, self._text)
        if self._kind != "operator":
            return Presence(output)
        comparator = self._token
        self._advance()
        if self._kind != "literal":
            raise self._error(f"{comparator} is not followed by a number, a text in quotes, true, false or null")
        comparison = _make_comparison(output, comparator, self._literal())
        self._advance()
        return comparison

    def _literal(self) -> Any:
        try:
            return json.loads(self._token, strict=False)
        except ValueError:
            raise self._error(f"{self._token!r} is not a JSON value") from None

    def _advance(self) -> None:
        if self._position == len(self._text):
            self._kind = self._token = ""
            return
        found = _TOKEN.match(self._text, self._position)
        if found is None or found.lastgroup is None:
            raise self._error(f"{quoted(self._text[self._position :].strip(), 40)} cannot be read")
        self._kind, self._token = found.lastgroup, found.group(found.lastgroup)
        self._position = found.end()

    def _error(self, problem: str) -> Invalid:
        return Invalid(
            f"the condition {quoted(self._text, 200)}: {problem}",
            code="step.when.syntax",
            field="when",
            remedy="write steps.NAME.succeeded, .failed or .skipped, or steps.NAME.output.PART > 0;"
            ' combine them with and, or, not and brackets; quote other names: steps["load rows"]',
        )


def _make_comparison(output: StepOutput, comparator: str, literal: Any) -> Comparison:
    is_scalar = literal is None or isinstance(literal, str | int | float | bool)
    if not is_scalar or (isinstance(literal, float) and validation.find_non_finite_number(literal, "when")):
        raise Invalid(
            f"{output.expression} is compared with {quoted(literal, 60)}",
            code="step.when.literal",
            field="when",
            remedy="compare it with a number, a text, true, false or null",
        )
    if comparator not in ("==", "!=") and (literal is None or isinstance(literal, bool)):
        raise Invalid(
            f"{output.expression} {comparator} {json.dumps(literal)} compares by size",
            code="step.when.type_mismatch",
            field="when",
            remedy="only numbers and texts have an order; use == or !=",
        )
    return Comparison(output, comparator, literal)


# --- references -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """The output of a step, or a part of it: ``extract.output["rows"][0]``. Comparing it makes a condition."""

    step: str
    path: Path = ()

    def __getitem__(self, part: str | int) -> StepOutput:
        if isinstance(part, bool) or not isinstance(part, str | int) or (isinstance(part, int) and part < 0):
            raise Invalid(
                f"{self.expression} has no part {quoted(part, 60)}",
                code="step.reference.syntax",
                field="output",
                remedy="give a field name, or the place in a list counted from 0",
            )
        return StepOutput(self.step, (*self.path, part))

    def __iter__(self) -> Iterator[Any]:
        raise _used_as_value(f"{self.expression} cannot be iterated")

    @property
    def expression(self) -> str:
        return f"steps{_format_part(self.step)}.output" + "".join(map(_format_part, self.path))

    def __str__(self) -> str:
        return f"${{{self.expression}}}"

    def __format__(self, _: str) -> str:
        return str(self)

    def __bool__(self) -> bool:
        raise _used_as_boolean(self.expression)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return _make_comparison(self, "==", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return _make_comparison(self, "!=", other)

    def __lt__(self, other: float | str) -> Condition:
        return _make_comparison(self, "<", other)

    def __le__(self, other: float | str) -> Condition:
        return _make_comparison(self, "<=", other)

    def __gt__(self, other: float | str) -> Condition:
        return _make_comparison(self, ">", other)

    def __ge__(self, other: float | str) -> Condition:
        return _make_comparison(self, ">=", other)

    def find(self, results: Mapping[str, StepResult]) -> Any:
        """Return the value of the reference; `_ABSENT` if the step has no output, or its output lacks this part."""
        result = results.get(self.step)
        if result is None or not _has_output(result):
            return _ABSENT
        value = result.output
        for part in self.path:
            value = _find_part(value, part)
            if isinstance(value, _Absent):
                break
        return value

    def read(self, results: Mapping[str, StepResult]) -> Any:
        """Return the value, or raise `Invalid` with the reason why there is none."""
        value = self.find(results)
        if not isinstance(value, _Absent):
            return value
        result = results.get(self.step)
        if result is None or not _has_output(result):
            how = "has no recorded result" if result is None else f"{result.status}, so it has no output"
            raise Invalid(
                f"{self.expression} has no value: step {self.step!r} {how}",
                code="step.reference.no_output",
                remedy=f"run this step only if it succeeded: when: steps{_format_part(self.step)}.succeeded",
            )
        depth = 0
        while not isinstance(StepOutput(self.step, self.path[:depth]).find(results), _Absent):
            depth += 1
        parent = StepOutput(self.step, self.path[: depth - 1])
        within = parent.find(results)
        raise Invalid(
            f"{self.expression} has no value: {parent.expression} is {_describe_value(within)} and has no part"
            f" {self.path[depth - 1]!r}",
            code="step.reference.path_not_found",
            remedy=_describe_parts(within),
        )


def _find_part(value: Any, part: str | int) -> Any:
    if isinstance(value, Mapping) and isinstance(part, str):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _has_output(result: StepResult | None) -> bool:
    if result is None:
        return False
    return result.status is StepStatus.SUCCEEDED or result.output is not None


def contains_mark(text: str) -> bool:
    """Return whether a text contains a reference or an escaped one. May err towards True."""
    return "${" in text and _MARK.search(text) is not None


def has_references(value: Any) -> bool:
    """Return whether plain data contains a reference or an escaped one."""
    if isinstance(value, str):
        return contains_mark(value)
    if isinstance(value, Mapping):
        return any(has_references(part) for part in value.values())
    return isinstance(value, list | tuple) and any(has_references(part) for part in value)


@dataclass(frozen=True, slots=True)
class ReferencePlace:
    """A reference in the arguments of a step."""

    path: Path
    """Where it stands: the argument, then the parts of its value."""
    output: StepOutput
    is_whole: bool
    """Whether the text is this reference and nothing else."""

    @property
    def argument(self) -> str:
        return ".".join(map(str, self.path))


def find_references(arguments: Any, path: Path = ()) -> Iterator[ReferencePlace]:
    """Yield the references in plain data; raise `Invalid` for one that cannot be read."""
    if isinstance(arguments, str):
        if contains_mark(arguments):
            parts = _split_text(arguments, ".".join(map(str, path)))
            for part in parts:
                if isinstance(part, StepOutput):
                    yield ReferencePlace(path, part, len(parts) == 1)
    elif isinstance(arguments, Mapping):
        for name, part in arguments.items():
            yield from find_references(part, (*path, str(name)))
    elif isinstance(arguments, list | tuple):
        for index, part in enumerate(arguments):
            yield from find_references(part, (*path, index))


def replace_outputs(value: Any) -> Any:
    """Return data in which outputs of steps are replaced by the text of their reference."""
    if isinstance(value, StepOutput):
        return str(value)
    if isinstance(value, Condition):
        raise _used_as_value(f"the condition {value} cannot be an argument")
    if isinstance(value, Mapping):
        return {name: replace_outputs(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        replaced = [replace_outputs(part) for part in value]
        return replaced if isinstance(value, list) else tuple(replaced)
    return value


def resolve_arguments(kind: str, arguments: Mapping[str, Any], results: Mapping[str, StepResult]) -> str:
    """Return the arguments of a step as JSON, with the values of the earlier steps in the place of references.

    Raise `Invalid`, which names reference and place, if there is no such value or it cannot be used.
    """
    resolved = {
        name: _resolve(value, (name,), _Resolver(kind, name, results)) for name, value in arguments.items()
    }  # fmt: skip
    try:
        return validation.dump_json(resolved, field="input")
    except Invalid as error:
        names = sorted({place.output.expression for place in find_references(arguments)})
        raise Invalid(
            f"the input with the values of {', '.join(names)}: {error.message}",
            code=error.code,
            field="input",
            remedy=error.remedy,
        ) from None


@dataclass(frozen=True, slots=True)
class _Resolver:
    kind: str
    argument: str
    results: Mapping[str, StepResult]

    @property
    def takes_text(self) -> bool:
        return self.argument in TEXT_ARGUMENTS.get(self.kind, ())

    @property
    def is_url(self) -> bool:
        return (self.kind, self.argument) == ("http.call", "url")

    def read(self, output: StepOutput, path: Path) -> Any:
        try:
            value = output.read(self.results)
        except Invalid as error:
            where = ".".join(map(str, path))
            raise Invalid(f"{where}: {error.message}", code=error.code, field=where, remedy=error.remedy) from None
        # guard: steps.output_names_no_secret
        if self.kind != _JOB and may_refer_to_secret(value):
            where = ".".join(map(str, path))
            raise Invalid(
                f"{where}: the value of {output.expression} has the form of a secret reference",
                code="step.reference.secret",
                field=where,
                remedy="write the secret reference into the step itself",
            )
        return value


def _resolve(value: Any, path: Path, resolver: _Resolver) -> Any:
    if isinstance(value, str):
        return _resolve_text(value, path, resolver) if contains_mark(value) else value
    if isinstance(value, Mapping):
        return {name: _resolve(part, (*path, str(name)), resolver) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(part, (*path, index), resolver) for index, part in enumerate(value)]
    return value


def _resolve_text(text: str, path: Path, resolver: _Resolver) -> Any:
    parts = _split_text(text, ".".join(map(str, path)))
    if len(parts) == 1 and isinstance(parts[0], StepOutput):
        value = resolver.read(parts[0], path)
        return _to_text(value, parts[0], path) if resolver.takes_text else value
    texts = []
    for part in parts:
        if isinstance(part, StepOutput):
            written = _to_text(resolver.read(part, path), part, path)
            texts.append(quote(written, safe="") if resolver.is_url else written)
        else:
            texts.append(part)
    return "".join(texts)


def _to_text(value: Any, output: StepOutput, path: Path) -> str:
    if value is None:
        where = ".".join(map(str, path))
        raise Invalid(
            f"{where}: {output.expression} is null, which is not a text",
            code="step.reference.not_text",
            field=where,
            remedy="refer to a part that has a value",
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _split_text(text: str, where: str) -> list[str | StepOutput]:
    """Return the references of a text and the texts between them."""
    parts: list[str | StepOutput] = []
    position = 0
    for mark in _MARK.finditer(text):
        if mark.start() < position:
            continue
        if mark.group().startswith("$$"):
            parts += [text[position : mark.start()], mark.group()[1:]]
            position = mark.end()
            continue
        found = _REFERENCE.match(text, mark.start())
        if found is None:
            raise _reference_syntax(quoted(text[mark.start() :], 60), where)
        parts.append(text[position : mark.start()])
        parts.append(_to_output(_parse_path(found[1].removeprefix("steps")), found[0], where))
        position = found.end()
    parts.append(text[position:])
    return [part for part in parts if isinstance(part, StepOutput) or part] if parts else [text]


def _to_output(path: Path, text: str, where: str | None = None) -> StepOutput:
    if len(path) < 2 or not isinstance(path[0], str) or path[1] != "output":
        if where is None:
            raise Invalid(
                f"the condition {quoted(text, 200)}: steps{''.join(map(_format_part, path))} is neither a status nor an"
                " output",
                code="step.when.syntax",
                field="when",
                remedy="write steps.NAME.succeeded, .failed, .skipped or steps.NAME.output",
            )
        raise _reference_syntax(quoted(text, 60), where)
    return StepOutput(path[0], path[2:])


def _reference_syntax(text: str, where: str) -> Invalid:
    return Invalid(
        f"{where}: the reference {text} cannot be read",
        code="step.reference.syntax",
        field=where,
        remedy='write ${steps.NAME.output.PART}, ${steps["load rows"].output[0]}, or $${steps for the plain text',
    )


def _parse_path(text: str) -> Path:
    parts: list[str | int] = []
    for found in _PATH_PART.finditer(text):
        part = found.group()
        parts.append(part[1:] if part.startswith(".") else json.loads(part[1:-1], strict=False))
    return tuple(parts)


def _format_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _IDENTIFIER.fullmatch(part) else f"[{json.dumps(part, ensure_ascii=False)}]"


# --- origin of values in tasks --------------------------------------------------------------------------------------


def add_references_to_policy(policy: str, arguments: Mapping[str, Any]) -> str:
    """Return a stored policy with the references of the arguments, so that the worker knows where values come from."""
    places = {place.argument: place.output.expression for place in find_references(arguments)}
    return json.dumps({**json.loads(policy), _POLICY_KEY: places}, ensure_ascii=False) if places else policy


def explain_rejected_value(policy: str, input: str, error: Invalid) -> Invalid:
    """Return the error of an input that does not fit, with reference and value if the value comes from a step."""
    if _POLICY_KEY not in policy or error.field is None:
        return error
    places = json.loads(policy).get(_POLICY_KEY)
    found = [
        (argument, expression)
        for argument, expression in (places if isinstance(places, dict) else {}).items()
        if f"{error.field}.".startswith(f"{argument}.") or f"{argument}.".startswith(f"{error.field}.")
    ]
    if not found:
        return error
    argument, expression = found[0]
    value = json.loads(input)
    for part in argument.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            break
    return Invalid(
        f"{error.message}; the value comes from {expression}: {_describe_value(value)}",
        code=error.code,
        field=error.field,
        remedy=error.remedy,
    )


# --- values ---------------------------------------------------------------------------------------------------------


def json_type(value: Any) -> str:
    """Return the type of plain data, as a word."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def _describe_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE_LENGTH else f"{text[:_SHOWN_VALUE_LENGTH]}…"


def _describe_parts(value: Any) -> str | None:
    if isinstance(value, Mapping):
        names: Sequence[str] = sorted(map(str, value))[:10]
        return f"it has {', '.join(names)}" if names else "it is empty"
    return f"it has {len(value)} entries" if isinstance(value, list) else None


def _used_as_boolean(what: str) -> Invalid:
    return Invalid(
        f"{what} is used as true or false, but is known only when the steps have run",
        code="step.expression.used_as_value",
        field="when",
        remedy="combine conditions with &, | and ~, in brackets: (a.output > 0) & b.succeeded",
    )


def _used_as_value(problem: str) -> Invalid:
    return Invalid(
        f"{problem}: it is known only when the steps have run",
        code="step.expression.used_as_value",
        field="input",
        remedy="pass the output of a step to an argument, and a condition to when",
    )
