"""Schedules as files declare them: plain data becomes definitions, strictly, by one rule for every format.

A field nobody knows is refused by its path (``schedules[2].steps[0].retry.max_retires``) with what was probably meant,
and so is whatever the values themselves refuse. Where a thing stands in its file is kept beside it, so that what is
found wrong later, such as a job's input, is told by the same path. Nothing here reads files or knows what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import ClassVar, NamedTuple

from tenuto.definitions.file_reader import RETRY, TRIGGER, Reader
from tenuto.definitions.strict_yaml import Document, below
from tenuto.errors import Invalid
from tenuto.model.schedules import MAX_GROUPS, MAX_STEPS, Definition, Misfire, Overlap, Plan, misfire_from_fields
from tenuto.model.steps import JOB, SCHEDULE, Step

_SCHEDULE = ("name", "description", "trigger", *TRIGGER, "overlap", "misfire", "steps")
_WORK = (JOB, SCHEDULE, "kind")
_OPTIONS = ("name", "continue_on_failure", "timeout", "retry", "max_retries", "on_lost", "queue", "priority")
_STEP = (*_WORK, "input", "arguments", "target", "index", *_OPTIONS)
_MISFIRE = tuple(each.name for each in fields(Misfire))
_MAX_INDEX = 1_000_000


class _Placed(NamedTuple):
    """A step, and where it stands."""

    path: str
    step: Step
    input_field: str
    """What its input is called in the file."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule of a file, and where in the file it stands."""

    definition: Definition
    document: Document
    path: str
    nested: bool = False
    """Whether its trigger is a field of its own."""
    steps: Mapping[str, _Placed] = field(default_factory=dict)
    """The steps by their names."""

    @property
    def name(self) -> str:
        return self.definition.name

    def refused(self, error: Invalid) -> Invalid:
        """What is found wrong with the definition, told by its place in the file."""
        path = self._path_of(error.field or "")
        return Invalid(error.message, field=f"{self.document.place(path)}: {path}", remedy=error.remedy)

    def _path_of(self, part: str) -> str:
        # A name may hold dots, and be the beginning of another: the longest that fits is meant.
        for name in sorted(self.steps, key=len, reverse=True):
            placed = self.steps[name]
            if part == f"steps.{name}":
                return placed.path
            if part.startswith(f"steps.{name}."):
                rest = part.removeprefix(f"steps.{name}.")
                if rest.partition(".")[0] in _OPTIONS:
                    return f"{placed.path}.{rest}"
                rest = rest.removeprefix("input").removeprefix("arguments").lstrip(".")
                return f"{placed.path}.{placed.input_field}" + (f".{rest}" if rest else "")
        if not part:
            return self.path
        of_trigger = self.nested and part.partition(".")[0] in TRIGGER
        return f"{self.path}.trigger.{part}" if of_trigger else f"{self.path}.{part}"


def schedules_of(documents: Iterable[Document]) -> list[Declared]:
    """Every schedule of these files, in their order; no name twice."""
    found: dict[str, Declared] = {}
    for document in documents:
        for each in _Schedules(document).schedules():
            if (other := found.get(each.name)) is not None:
                raise each.refused(
                    Invalid(
                        f"{each.name!r} is declared already, at {other.document.place(other.path)}",
                        field="name",
                        remedy="give one another name, or take it out",
                    )
                )
            found[each.name] = each
    return list(found.values())


class _Schedules(Reader):
    """The schedules of one document."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "enabled": "whether a schedule is enabled is the operator's to say: `tenuto schedule disable NAME`",
    }

    def schedules(self) -> Iterator[Declared]:
        for place, stored in enumerate(self._section("schedules")):
            yield self._schedule(stored, f"schedules[{place}]")

    def _schedule(self, stored: object, path: str) -> Declared:
        given = self._fields(stored, path, _SCHEDULE, "a schedule")
        for needed in ("name", "steps"):
            if needed not in given:
                raise self._no(below(path, needed), "is missing", f"every schedule has a {needed}: say it")
        steps = self._steps(given["steps"], below(path, "steps"))
        self._refuse_names_twice(steps)
        definition = self._made(
            path,
            lambda: Definition(
                given["name"],
                self._trigger(given, path),
                Plan(tuple(tuple(placed.step for placed in group) for group in steps)),
                given.get("description", ""),
                given.get("overlap", Overlap.SKIP),
                self._misfire(given.get("misfire", {}), below(path, "misfire")),
            ),
        )
        placed = {each.step.name: each for each in _each(steps)}
        return Declared(definition, self._document, path, "trigger" in given, placed)

    def _misfire(self, stored: object, path: str) -> Misfire:
        if isinstance(stored, Mapping):
            self._only(stored, path, _MISFIRE, "a misfire rule")
        try:
            return misfire_from_fields(stored)
        except Invalid as error:
            rest = (error.field or "").removeprefix("misfire").lstrip(".")
            raise self._no(f"{path}.{rest}" if rest else path, error.message, error.remedy) from None

    # --- what it runs -----------------------------------------------------------------------------------------------

    def _steps(self, stored: object, path: str) -> list[list[_Placed]]:
        """Groups of (path, step, what its input is called): by lists in the list, or by index."""
        listed = self._list(stored, path)
        indexed = [place for place, each in enumerate(listed) if isinstance(each, Mapping) and "index" in each]
        most = MAX_STEPS if indexed else MAX_GROUPS
        if len(listed) > most:  # before each of them is looked at
            raise self._no(path, f"are {len(listed):,}", f"keep to {most:,}")
        if not indexed:
            return [self._group(each, f"{path}[{place}]") for place, each in enumerate(listed)]
        groups: dict[int, list[_Placed]] = {}
        for place, each in enumerate(listed):
            at = f"{path}[{place}]"
            if isinstance(each, list):
                raise self._no(at, "is a list beside steps with an index", "say it one way: lists, or an index for all")
            given = self._fields(each, at, _STEP, "a step")
            if "index" not in given:
                raise self._no(at, "has no index, though others have", "say it one way: give all of them an index")
            index = given["index"]
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= _MAX_INDEX:
                raise self._no(below(at, "index"), f"must be a whole number from 0 to {_MAX_INDEX:,}")
            groups.setdefault(index, []).append(self._step(given, at))
        return [groups[index] for index in sorted(groups)]

    def _group(self, stored: object, path: str) -> list[_Placed]:
        if not isinstance(stored, list):
            return [self._step(stored, path)]
        if not stored:
            raise self._no(path, "is a group without steps", "take it out")
        for place, each in enumerate(stored):
            if isinstance(each, list):
                raise self._no(f"{path}[{place}]", "is a list within a group", "groups hold steps, not groups")
            if isinstance(each, Mapping) and "index" in each:
                raise self._no(f"{path}[{place}].index", "is given within a list", "say it one way: lists, or indices")
        return [self._step(each, f"{path}[{place}]") for place, each in enumerate(stored)]

    def _step(self, stored: object, path: str) -> _Placed:
        given = self._fields(stored, path, _STEP, "a step")
        work = [name for name in _WORK if name in given]
        if len(work) != 1:
            why = f"{work[1]} is given beside {work[0]}" if work else "does not say what to run"
            raise self._no(path, why, "give one of job, schedule or kind")
        kind = given["kind"] if work[0] == "kind" else work[0]
        if work[0] == "kind" and kind in (JOB, SCHEDULE):
            raise self._no(below(path, "kind"), f"a {kind} is named, not told by kind", f"write {kind}: NAME")
        called = "arguments" if work[0] == "kind" else "input"
        for other in {"input", "arguments"} - {called} | ({"target"} if work[0] != "kind" else set()):
            if other in given:
                remedy = f"write {called}: …" if other != "target" else "leave it out"
                raise self._no(below(path, other), f"a step with {work[0]} has none", remedy)
        if work[0] == SCHEDULE and called in given:
            raise self._no(below(path, called), "a schedule takes no input", "leave it out")
        target = given.get("target") if work[0] == "kind" else given[work[0]]
        arguments = self._input(given.get(called, {}), below(path, called))
        options = {name: given[name] for name in _OPTIONS if name in given}
        if isinstance(options.get("retry"), Mapping):
            self._only(options["retry"], below(path, "retry"), RETRY, "a retry")
        within_retry = isinstance(options.get("retry"), Mapping) and "max_retries" not in options
        renamed = {"target": work[0], "max_retries": "retry.max_retries" if within_retry else "max_retries"}
        step = self._made(path, lambda: Step.of_kind(kind, arguments, target=target, **options), renamed)
        return _Placed(path, step, called)

    def _refuse_names_twice(self, steps: list[list[_Placed]]) -> None:
        seen: set[str] = set()
        for path, step, _ in _each(steps):
            if step.name in seen:
                raise self._no(path, f"two steps are named {step.name!r}", "give it another name")
            seen.add(step.name)


def _each(steps: Iterable[Iterable[_Placed]]) -> Iterator[_Placed]:
    return chain.from_iterable(steps)
