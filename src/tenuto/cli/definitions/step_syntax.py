"""Steps as somebody types them: ``ad_export:{"full": true} name=export continue_on_failure, ldap_export``.

A comma puts steps side by side. What a step runs comes first, then its arguments as JSON after a colon, then its
options, by the names they have in code. Only reads text; whether the job exists is for the app to say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tenuto.cli.option_parsing import by_option, value_of
from tenuto.errors import Invalid
from tenuto.model import stored_values

if TYPE_CHECKING:
    from tenuto.model.steps import Step

FIELD = "--step"
REMEDY = 'write it as job:{"argument": 1} name=other continue_on_failure timeout=5m; a comma parts steps side by side'

_BLANKS = re.compile(r"\s*")
_TARGET = re.compile(r"[^\s,\"{=]+?(?=:\s*\{|[\s,]|$)")
_OPTION = re.compile(r"([a-z_]+)(=?)")
_VALUE = re.compile(r"[^\s,\"]+")
_WHOLE_NUMBERS = ("max_retries", "priority")
_FLAG = "continue_on_failure"
_OPTIONS = ("name", "kind", _FLAG, "timeout", *_WHOLE_NUMBERS, "queue", "on_lost")


def group_of(text: str) -> list[Step]:
    """The steps of one group."""
    reader = _Reader(text)
    steps = [reader.step()]
    while not reader.at_end:
        reader.comma()
        steps.append(reader.step())
    return steps


class _Reader:
    """Goes through the text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._blanks()

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def step(self) -> Step:
        from tenuto.model.steps import Step

        target = self._quoted() if self._next == '"' else self._match(_TARGET, "what to run")
        arguments = self._arguments()
        options = self._options()
        kind = str(options.pop("kind", "job"))
        with by_option({}, otherwise=f"{FIELD}, {{}}"):
            return Step.of_kind(kind, arguments, target=target, **options)

    def comma(self) -> None:
        if self._next != ",":
            raise self._refusal("a comma or the end was expected")
        self._at += 1
        self._blanks()

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._refusal(f"{what} was expected")
        self._at = found.end()
        return found.group()

    def _quoted(self) -> str:
        return str(self._json("a text in double quotes"))

    def _json(self, what: str) -> Any:
        try:
            value, self._at = stored_values.decoder().raw_decode(self._text, self._at)
        except (ValueError, RecursionError) as error:
            raise self._refusal(f"{what} was expected: {error}") from None
        return value

    def _arguments(self) -> dict[str, Any]:
        if self._next != ":":
            self._blanks()
            return {}
        self._at += 1
        self._blanks()
        value = self._json("arguments as a JSON object")
        if not isinstance(value, dict):
            raise self._refusal("arguments are a JSON object")
        self._blanks()
        return value

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while self._next not in ("", ","):
            name = self._match(_OPTION, "an option").removesuffix("=")
            if name not in _OPTIONS:
                raise Invalid(
                    f"a step has no option {name!r:.40}", field=FIELD, remedy=f"use one of {', '.join(_OPTIONS)}"
                )
            options[name] = self._value(name)
            self._blanks()
        return options

    def _value(self, name: str) -> str | int | bool:
        if self._text[self._at - 1] != "=":
            if name != _FLAG:
                raise self._refusal(f"{name} needs a value, as in {name}=…")
            return True
        value = self._quoted() if self._next == '"' else self._match(_VALUE, f"a value for {name}")
        if name == _FLAG:
            if value not in ("true", "false"):
                raise self._refusal(f"{name} is true or false")
            return value == "true"
        if name in _WHOLE_NUMBERS:
            try:
                return int(value)
            except ValueError:
                raise self._refusal(f"{name} is a whole number") from None
        return value

    def _refusal(self, what: str) -> Invalid:
        rest = self._text[self._at : self._at + 30]
        where = f"at {rest!r}" if rest else "at the end"
        return Invalid(f"{what}, {where}", field=FIELD, remedy=REMEDY)


def overrides_of(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """``step.argument=value`` as arguments for steps by name; a value is JSON or, if it is none, text."""
    found: dict[str, dict[str, Any]] = {}
    for each in given or []:
        place, equals, value = each.partition("=")
        step, dot, argument = place.rpartition(".")
        if not (equals and dot and step and argument):
            raise Invalid(
                f"{each!r:.60} does not say which argument of which step",
                field="--set",
                remedy="write it as --set step.argument=value",
            )
        found.setdefault(step, {})[argument] = value_of(value, f"--set {place}")
    return found
