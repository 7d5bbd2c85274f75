"""References to the logical time of a run in the arguments of steps: ``${run.scheduled_for}``.

They have a value as soon as the run is created, so they do not make a step depend on others. ``$${run.…}`` stands for
the text ``${run.…}``. In a manual run the interval is null, and empty within a longer text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tenuto.errors import Invalid, quoted
from tenuto.model.definitions.step_expressions import REFUSED_ARGUMENTS, TEXT_ARGUMENTS
from tenuto.model.work.logical_time import Occurrence, format_logical_time

RUN_VALUES = ("scheduled_for", "interval_start", "interval_end")

_REFERENCE = re.compile(rf"(\$?)\$\{{\s*run\.({'|'.join(RUN_VALUES)})\s*\}}")
_MARK = re.compile(r"(\$?)\$\{\s*run\b[^}]{0,60}\}?")

Path = tuple[str | int, ...]


def check_run_references(kind: str, arguments: Mapping[str, Any]) -> None:
    """Raise `Invalid` for a reference that names no value of a run, or stands where values must not decide."""
    for path, text in _texts(arguments, ()):
        for mark in _MARK.finditer(text):
            if mark[1]:
                continue
            where = ".".join(map(str, path))
            if _REFERENCE.match(text, mark.start()) is None:
                raise Invalid(
                    f"{where}: the reference {quoted(mark.group(), 80)} cannot be read",
                    code="step.reference.syntax",
                    field=f"arguments.{where}",
                    remedy="write ${run.scheduled_for}, ${run.interval_start} or ${run.interval_end},"
                    " or $${run for the plain text",
                )
            if path[0] in REFUSED_ARGUMENTS.get(kind, ()):
                raise Invalid(
                    f"{path[0]} cannot contain {quoted(mark.group(), 80)}, because it decides what runs",
                    code="step.reference.not_allowed",
                    field=f"arguments.{where}",
                    remedy="pass the value in another argument, such as args, stdin, parameters or body",
                )


def may_refer_to_run(text: str) -> bool:
    """Return whether a text, such as a plan as JSON, may contain a reference. May err towards True."""
    return "${" in text and _MARK.search(text) is not None


def resolve_run_references(kind: str, arguments: Mapping[str, Any], occurrence: Occurrence) -> Mapping[str, Any]:
    """Return the arguments of a step with the logical time of its run in the place of references."""
    if not any(may_refer_to_run(text) for _, text in _texts(arguments, ())):
        return arguments
    values = _run_values(occurrence)
    return {
        name: value if name in REFUSED_ARGUMENTS.get(kind, ()) else _Resolver(kind, name, values).resolve(value)
        for name, value in arguments.items()
    }


def _run_values(occurrence: Occurrence) -> dict[str, str | None]:
    start = occurrence.interval_start
    due = format_logical_time(occurrence.due_at)
    return {
        "scheduled_for": due,
        "interval_start": None if start is None else format_logical_time(start),
        "interval_end": None if start is None else due,
    }


@dataclass(frozen=True, slots=True)
class _Resolver:
    kind: str
    argument: str
    values: Mapping[str, str | None]

    def resolve(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._resolve_text(value)
        if isinstance(value, Mapping):
            return {name: self.resolve(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.resolve(part) for part in value]
        return value

    def _resolve_text(self, text: str) -> str | None:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and not whole[1]:
            value = self.values[whole[2]]
            return value or "" if self.argument in TEXT_ARGUMENTS.get(self.kind, ()) else value
        return _REFERENCE.sub(self._replacement, text)

    def _replacement(self, found: re.Match[str]) -> str:
        if found[1]:
            return found.group()[1:]
        value = self.values[found[2]] or ""
        return quote(value, safe="") if (self.kind, self.argument) == ("http.call", "url") else value


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _texts(part, (*path, index))
