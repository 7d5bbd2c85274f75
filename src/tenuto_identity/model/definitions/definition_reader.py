"""Reading of definitions: known fields, types of values and suggestions, with the path of the field at fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from tenuto.errors import Invalid, quoted
from tenuto.model.work.tasks import parse_duration_seconds

E = TypeVar("E", bound=StrEnum)


def suggestion(name: object, known: Iterable[str]) -> str | None:
    """Return "did you mean …?" for a name that is close to a known one, else the list of known names."""
    names = sorted(known)
    by_folded = {each.casefold(): each for each in reversed(names)}
    near = get_close_matches(str(name), names, 1) or get_close_matches(str(name).casefold(), by_folded, 1)
    if near:
        return f"did you mean {by_folded.get(near[0], near[0])}?"
    return f"known are {', '.join(names[:20])}{' …' if len(names) > 20 else ''}" if names else None


def child(path: str, name: str | int) -> str:
    """Return the path of a field or of an entry of a list."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


class Reader:
    """Reads the fields of one mapping of a definition. Every error names the path of its field."""

    def __init__(self, value: object, owner: str, path: str = "", *, known: Iterable[str] | None = None) -> None:
        if not isinstance(value, Mapping):
            raise error(f"{owner} {quoted(value, 60)} is not a mapping of fields", path, "write {field: value}")
        self.path = path
        self.owner = owner
        self._value = {str(name): each for name, each in value.items()}
        if known is not None:
            names = tuple(known)
            for name in self._value:
                if name not in names:
                    raise Invalid(
                        f"{owner} has no field {quoted(name)}",
                        code="identity.definition.field_unknown",
                        field=child(path, name),
                        remedy=suggestion(name, names),
                    )

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all fields."""
        return list(self._value)

    def raw(self, name: str) -> Any:
        """Return a value as it is; None if it is missing."""
        return self._value.get(name)

    def at(self, name: str | int) -> str:
        """Return the path of a field."""
        return child(self.path, name)

    def required(self, name: str) -> Any:
        """Return a value that must be present."""
        value = self._value.get(name)
        if value is None:
            raise Invalid(f"{self.owner} has no {name}", code="identity.definition.field_missing", field=self.at(name))
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it must be present."""
        value = self.required(name) if default is None else self._value.get(name, default)
        if not isinstance(value, str) or not value.strip():
            raise error(f"{name} {quoted(value, 60)} is not a text", self.at(name), "put it in quotes")
        return value.strip()

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None if it is missing."""
        return self.text(name) if name in self else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._value.get(name, default)
        if not isinstance(value, bool):
            raise error(f"{name} {quoted(value, 60)} is not true or false", self.at(name))
        return value

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within limits."""
        value = self._value.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise error(f"{name} {quoted(value, 60)} is not a whole number from {least} to {most}", self.at(name))
        return value

    def choice(self, name: str, kind: type[E], default: E) -> E:
        """Return one of the values of an enumeration."""
        return self.as_choice(self._value.get(name, default.value), kind, name)

    def as_choice(self, value: object, kind: type[E], name: str) -> E:
        """Return a value as a member of an enumeration."""
        for member in kind:
            if value == member.value:
                return member
        raise error(
            f"{name} {quoted(value, 60)} is not known", self.at(name), suggestion(value, [each.value for each in kind])
        )

    def duration(self, name: str) -> timedelta | None:
        """Return a duration such as ``30d``, or None if it is missing."""
        value = self._value.get(name)
        if value is None:
            return None
        try:
            seconds = parse_duration_seconds(value, field=name)
        except Invalid as problem:
            raise error(problem.message, self.at(name), problem.remedy) from None
        assert seconds is not None
        if not 0 <= seconds <= 10_000 * 86_400:
            raise error(f"{name} {quoted(value, 60)} is not from 0 to 10000 days", self.at(name))
        return timedelta(seconds=seconds) or None

    def items(self, name: str) -> list[Any]:
        """Return a list; a missing one is empty."""
        value = self._value.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise error(f"{name} {quoted(value, 60)} is not a list", self.at(name), "write [first, second]")
        return list(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        for index, value in enumerate(self.items(name)):
            if not isinstance(value, str) or not value.strip():
                raise error(f"{name} contains {quoted(value, 60)}, which is not a text", child(self.at(name), index))
        return [value.strip() for value in self.items(name)]


def error(message: str, field: str, remedy: str | None = None) -> Invalid:
    """Return the error of a value in a definition."""
    return Invalid(message, code="identity.definition.invalid", field=field, remedy=remedy)
