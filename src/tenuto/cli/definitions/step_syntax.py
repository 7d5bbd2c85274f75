"""Parser of ``--step``: ``ad_export:{"full": true} name=export continue_on_failure, ldap_export``.

A comma separates the steps of one group. A step has a target, then its arguments as JSON after a colon, then options
under the names they have in code. Only the syntax is checked here; the app checks that the job exists.
"""

from __future__ import annotations

import re
from typing import Any

from tenuto.cli.option_parsing import invalid_value, parse_json_or_text, translate_error_fields
from tenuto.errors import Invalid
from tenuto.model import validation
from tenuto.model.definitions.steps import Step

OPTION = "--step"
REMEDY = 'write it as job:{"argument": 1} name=other continue_on_failure timeout=5m; separate parallel steps by a comma'

_BLANKS = re.compile(r"\s*")
_TARGET = re.compile(r"[^\s,\"{=]+?(?=:\s*\{|[\s,]|$)")
_OPTION = re.compile(r"([a-z_]+)(=?)")
_VALUE = re.compile(r"[^\s,\"]+")
_WHOLE_NUMBERS = ("max_attempts", "priority")
_FLAG = "continue_on_failure"
_NAMES = "needs"
_OPTIONS = ("name", "kind", _FLAG, "timeout", *_WHOLE_NUMBERS, "queue", "on_lost", "when", _NAMES)


def parse_step_group(text: str) -> list[Step]:
    reader = _StepReader(text)
    steps = [reader.read_step()]
    while not reader.at_end:
        reader.read_comma()
        steps.append(reader.read_step())
    return steps


class _StepReader:
    """Reader of one step group, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._skip_blanks()

    @property
    def at_end(self) -> bool:
        return self._position == len(self._text)

    def read_step(self) -> Step:
        target = self._read_quoted() if self._next_character == '"' else self._read(_TARGET, "the target of the step")
        arguments = self._read_arguments()
        options = self._read_options()
        kind = str(options.pop("kind", "job"))
        with translate_error_fields({}, otherwise=f"{OPTION}, {{}}"):
            return Step.of(kind, arguments, target=target, **options)

    def read_comma(self) -> None:
        if self._next_character != ",":
            raise self._error("expected a comma or the end of the text")
        self._position += 1
        self._skip_blanks()

    @property
    def _next_character(self) -> str:
        return self._text[self._position : self._position + 1]

    def _skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._position)
        self._position = found.end() if found else self._position

    def _read(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise self._error(f"expected {what}")
        self._position = found.end()
        return found.group()

    def _read_quoted(self) -> str:
        return str(self._read_json("a text in double quotes"))

    def _read_json(self, what: str) -> Any:
        try:
            value, self._position = validation.strict_json_decoder().raw_decode(self._text, self._position)
        except (ValueError, RecursionError) as error:
            raise self._error(f"expected {what}: {error}") from None
        return value

    def _read_arguments(self) -> dict[str, Any]:
        if self._next_character != ":":
            self._skip_blanks()
            return {}
        self._position += 1
        self._skip_blanks()
        value = self._read_json("arguments as a JSON object")
        if not isinstance(value, dict):
            raise self._error("the arguments are not a JSON object")
        self._skip_blanks()
        return value

    def _read_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while self._next_character not in ("", ","):
            name = self._read(_OPTION, "an option").removesuffix("=")
            if name not in _OPTIONS:
                problem, remedy = f"unknown option {name!r:.40} of a step", f"use one of {', '.join(_OPTIONS)}"
                raise Invalid(problem, code="step.option.unknown", field=OPTION, remedy=remedy)
            options[name] = self._read_value(name)
            self._skip_blanks()
        return options

    def _read_value(self, name: str) -> str | int | bool | list[str]:
        if self._text[self._position - 1] != "=":
            if name != _FLAG:
                raise self._error(f"{name} needs a value, as in {name}=…")
            return True
        if name == _NAMES and self._next_character == "[":
            names = self._read_json("a list of step names")
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise self._error(f"{name} must be a list of step names")
            return names
        value = self._read_quoted() if self._next_character == '"' else self._read(_VALUE, f"a value for {name}")
        if name == _FLAG:
            if value not in ("true", "false"):
                raise self._error(f"{name} must be true or false")
            return value == "true"
        if name == _NAMES:
            return [value]
        if name in _WHOLE_NUMBERS:
            try:
                return int(value)
            except ValueError:
                raise self._error(f"{name} must be a whole number") from None
        return value

    def _error(self, what: str) -> Invalid:
        rest = self._text[self._position : self._position + 30]
        place = f"at {rest!r}" if rest else "at the end"
        return Invalid(f"invalid {OPTION}: {what}, {place}", code="step.syntax.invalid", field=OPTION, remedy=REMEDY)


def parse_overrides(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """Parse ``step.argument=value`` texts into arguments by step name; a value is JSON or else text."""
    overrides: dict[str, dict[str, Any]] = {}
    for text in texts or []:
        place, equals, value = text.partition("=")
        step, dot, argument = place.rpartition(".")
        if not (equals and dot and step and argument):
            problem, remedy = "does not name a step and an argument", "write it as --set step.argument=value"
            raise invalid_value("--set", text, problem, code="cli.set.invalid", remedy=remedy)
        overrides.setdefault(step, {})[argument] = parse_json_or_text(value, f"--set {place}")
    return overrides
