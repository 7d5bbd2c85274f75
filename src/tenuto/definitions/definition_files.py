"""Schedules, manifests, groups and queues declared in definition files: strict conversion of parsed documents.

Errors name the file, the line and the path (``schedules[2].steps[0].retry.max_atempts``), and suggest the nearest field
name. A declared definition keeps its location, so that problems found later, such as an invalid job input, are reported
the same way. The module reads no files and does not know the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeVar

from tenuto.definitions.document_parser import Document, child_path
from tenuto.errors import Invalid, quoted
from tenuto.extension.contract import CORE_LISTS
from tenuto.model import validation
from tenuto.model.definitions.manifests import MAX_ACTIVE
from tenuto.model.definitions.policies import RetryPolicy, resolve_max_retries
from tenuto.model.definitions.queues import MAX_QUEUE_LIMIT
from tenuto.model.definitions.schedules import (
    MAX_GROUPS,
    MAX_STEPS,
    Misfire,
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    misfire_from_fields,
)
from tenuto.model.definitions.steps import JOB, SCHEDULE, Step
from tenuto.model.triggers import ManualTrigger, Trigger, trigger_from_fields
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import MAX_PRIORITY

T = TypeVar("T")
Entry = TypeVar("Entry", "DeclaredSchedule", "DeclaredManifest", "DeclaredGroup", "DeclaredQueue")

ALL_MANIFESTS = "*"
"""The name of the group of all manifests."""
NO_LIMIT = "none"

_TRIGGER_KIND_BY_FIELD = {"cron": "cron", "times": "times", "every": "interval"}
_TRIGGER_FIELDS = (
    *_TRIGGER_KIND_BY_FIELD, "zone", "days", "between", "anchor", "start", "end", "excluded", "jitter",
)  # fmt: skip
_FIELD_SYNONYMS = {"on": "days", "at": "times", "exclude": "excluded", "tz": "zone", "timezone": "zone"}
"""Names of the command line and of other tools for trigger fields."""
_RETRY_FIELDS = tuple(each.name for each in fields(RetryPolicy))
_MISFIRE_FIELDS = tuple(each.name for each in fields(Misfire))
_TEXT_FIELDS = {
    "name", "queue", "on_lost", "description", "overlap", "job", "schedule", "kind", "target", "external_id", "group",
    "after", "on_dead_letter", "when", "reason",
}  # fmt: skip
_POLICY_FIELDS = ("timeout", "retry", "max_attempts", "on_lost")
_SCHEDULE_FIELDS = ("name", "description", "trigger", *_TRIGGER_FIELDS, "overlap", "misfire", "steps")
_TARGET_FIELDS = (JOB, SCHEDULE, "kind")
_STEP_OPTIONS = ("name", "continue_on_failure", *_POLICY_FIELDS, "queue", "priority", "needs", "when")
_STEP_FIELDS = (*_TARGET_FIELDS, "input", "arguments", "target", "index", *_STEP_OPTIONS)
_QUEUE_FIELDS = ("queue", "priority", "group", "max_active")
_MANIFEST_FIELDS = (
    "external_id", "name", "description", "job", "properties", "trigger", *_TRIGGER_FIELDS, "after", "on_demand",
    *_POLICY_FIELDS, "max_retries", *_QUEUE_FIELDS, "on_dead_letter", "expires_in",
)  # fmt: skip
_GROUP_FIELDS = ("name", "max_active", "priority", "enabled", "rate_limit")
_DECLARED_QUEUE_FIELDS = ("name", "max_running", "rate_limit", "paused", "reason")
_MAX_STEP_INDEX = 1_000_000


class LocatedError(Invalid):
    """A problem at a path of a document. The message begins with file, line and path."""

    def __init__(self, document: Document, path: str, problem: str, *, code: str, remedy: str | None = None) -> None:
        location = document.location(path)
        field = f"{location}: {path}" if path else location
        super().__init__(f"{field}: {problem}", code=code, field=field, remedy=remedy)
        self.path = path
        self.problem = problem


def _locate(document: Document, path: str, error: Invalid) -> Invalid:
    if isinstance(error, LocatedError):
        return error
    return LocatedError(document, path, error.message, code=error.code, remedy=error.remedy)


# --- declared definitions -------------------------------------------------------------------------------------------


class _LocatedStep(NamedTuple):
    path: str
    step: Step
    input_field: str
    """The name of its input in the file: ``input`` or ``arguments``."""


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule of a file, with its location."""

    definition: ScheduleDefinition
    document: Document
    path: str
    has_trigger_field: bool = False
    """Whether its trigger is nested in the field ``trigger``."""
    steps: Mapping[str, _LocatedStep] = field(default_factory=dict)
    """The steps by name."""

    @property
    def name(self) -> str:
        return self.definition.name

    def locate_error(self, error: Invalid) -> Invalid:
        """Return an error of the definition with its location in the file."""
        return _locate(self.document, self._path_of(error.field or ""), error)

    def _path_of(self, field: str) -> str:
        # A step name may contain dots and be a prefix of another: the longest match counts.
        for name in sorted(self.steps, key=len, reverse=True):
            located = self.steps[name]
            if field == f"steps.{name}":
                return located.path
            if field.startswith(f"steps.{name}."):
                rest = field.removeprefix(f"steps.{name}.")
                if rest.partition(".")[0] in _STEP_OPTIONS:
                    return f"{located.path}.{rest}"
                rest = rest.removeprefix("input").removeprefix("arguments").lstrip(".")
                return f"{located.path}.{located.input_field}" + (f".{rest}" if rest else "")
        if not field:
            return self.path
        is_nested = self.has_trigger_field and field.partition(".")[0] in _TRIGGER_FIELDS
        return f"{self.path}.trigger.{field}" if is_nested else f"{self.path}.{field}"


@dataclass(frozen=True, slots=True)
class DeclaredManifest:
    """A manifest of a file, with its location. Fields that the file leaves out are taken from the job later."""

    external_id: str
    job: str
    options: Mapping[str, Any]
    """The other fields of the file, by the parameter names of `build_manifest`."""
    document: Document
    path: str
    has_trigger_field: bool = False
    """Whether its trigger is nested in the field ``trigger``."""

    @property
    def name(self) -> str:
        return self.external_id

    def locate_error(self, error: Invalid) -> Invalid:
        """Return an error of the definition with its location in the file."""
        return _locate(self.document, self._path_of(error.field or ""), error)

    def _path_of(self, field: str) -> str:
        if not field:
            return self.path
        first = field.partition(".")[0]
        if first == "depends_on":
            field = "after"
        elif first == "max_attempts" and "max_attempts" not in self.options:
            field = "retry.max_attempts"
        elif self.has_trigger_field and first in _TRIGGER_FIELDS:
            field = f"trigger.{field}"
        return f"{self.path}.{field}"


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A group of a file, with its location. It sets only the fields that the file contains."""

    name: str
    options: Mapping[str, Any]
    document: Document
    path: str

    def locate_error(self, error: Invalid) -> Invalid:
        """Return an error of the group with its location in the file."""
        return _locate(self.document, f"{self.path}.{error.field}" if error.field else self.path, error)


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue of a file, with its location. It sets only the options that the file contains."""

    name: str
    options: Mapping[str, Any]
    """By the fields of `QueueSettings`: ``paused`` is the reason if the file gives one."""
    document: Document
    path: str

    def locate_error(self, error: Invalid) -> Invalid:
        """Return an error of the queue with its location in the file."""
        return _locate(self.document, f"{self.path}.{error.field}" if error.field else self.path, error)


def parse_schedules(documents: Iterable[Document]) -> list[DeclaredSchedule]:
    """Return the schedules of the documents in order; names are unique."""
    return _check_unique((each for document in documents for each in _ScheduleReader(document).schedules()), "name")


def parse_manifests(documents: Iterable[Document]) -> list[DeclaredManifest]:
    """Return the manifests of the documents in order; external ids are unique."""
    entries = (each for document in documents for each in _ManifestReader(document).manifests())
    return _check_unique(entries, "external_id")


def parse_groups(documents: Iterable[Document]) -> list[DeclaredGroup]:
    """Return the groups of the documents in order; names are unique."""
    return _check_unique((each for document in documents for each in _ManifestReader(document).groups()), "name")


def parse_queues(documents: Iterable[Document]) -> list[DeclaredQueue]:
    """Return the queues of the documents in order; names are unique."""
    return _check_unique((each for document in documents for each in _ManifestReader(document).queues()), "name")


@dataclass(frozen=True, slots=True)
class DeclaredListEntry:
    """An entry of a list that an extension reads, with its location."""

    list_name: str
    value: Any
    document: Document
    path: str

    @property
    def name(self) -> str:
        return self.path

    def locate_error(self, error: Invalid) -> Invalid:
        """Return an error of the entry with its location in the file."""
        return _locate(self.document, f"{self.path}.{error.field}" if error.field else self.path, error)


def find_further_entries(documents: Iterable[Document]) -> list[DeclaredListEntry]:
    """Return the entries of all lists that do not belong to Tenuto itself, in order."""
    return [
        DeclaredListEntry(name, value, document, f"{name}[{index}]")
        for document in documents
        if isinstance(document.value, Mapping)
        for name in _further_lists(document.value)
        for index, value in enumerate(document.value[name])
    ]


def _further_lists(whole: Mapping[str, Any]) -> list[str]:
    """Return the names of lists that may belong to extensions; `check_list_names` checks them."""
    return [name for name, value in whole.items() if name not in CORE_LISTS and isinstance(value, list) and value]


def check_list_names(entries: Iterable[DeclaredListEntry], known: Iterable[str]) -> None:
    """Raise an error for a list that neither the core nor an extension reads."""
    names = (*CORE_LISTS, *known)
    for each in entries:
        _DefinitionReader(each.document)._check_known_fields({each.list_name: each.value}, "", names, "a file")


def _check_unique(entries: Iterable[Entry], key_field: str) -> list[Entry]:
    found: dict[str, Entry] = {}
    for each in entries:
        if (other := found.get(each.name)) is not None:
            raise each.locate_error(
                Invalid(
                    f"{each.name!r} is declared already, at {other.document.location(other.path)}",
                    code="definition.duplicate",
                    field=key_field,
                    remedy="rename or remove one of them",
                )
            )
        found[each.name] = each
    return list(found.values())


# --- reading --------------------------------------------------------------------------------------------------------


class _DefinitionReader:
    """Reads one document: the parts that schedules and manifests share."""

    field_hints: ClassVar[Mapping[str, str]] = {}
    """Remedies for fields that do not belong into a file."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def _section(self, name: str) -> list[Any]:
        """Return one of the lists of a document. Each may be left out, but not all of them."""
        whole = self._document.value
        remedy = "begin the file with schedules: and a list of schedules"
        if not isinstance(whole, Mapping):
            raise self._error("the file declares nothing", "", remedy, code="definition.empty")
        self._check_known_fields(whole, "", (*CORE_LISTS, *_further_lists(whole)), "a file")
        if not whole:
            raise self._error("the file declares nothing", "schedules", remedy, code="definition.empty")
        return self._list(whole[name], name) if name in whole else []

    def _trigger(self, given: Mapping[str, Any], path: str) -> Trigger:
        """Return the trigger from fields of the definition or from its field ``trigger``; manual if there is none."""
        inline = {name: given[name] for name in _TRIGGER_FIELDS if name in given}
        if "trigger" not in given:
            return self._clock_trigger(inline, path, None) if inline else ManualTrigger()
        trigger_path = child_path(path, "trigger")
        if inline:
            name = next(iter(inline))
            raise self._error(
                f"{name} is given beside trigger",
                child_path(path, name),
                "move it into trigger",
                code="definition.trigger.conflict",
            )
        if given["trigger"] == ManualTrigger.kind:
            return ManualTrigger()
        within = dict(self._mapping(given["trigger"], trigger_path, ("kind", *_TRIGGER_FIELDS), "a trigger"))
        kind = within.pop("kind", None)
        if kind == ManualTrigger.kind and not within:
            return ManualTrigger()
        return self._clock_trigger(within, trigger_path, kind)

    def _clock_trigger(self, given: Mapping[str, Any], path: str, kind: object) -> Trigger:
        time_fields = [name for name in _TRIGGER_KIND_BY_FIELD if name in given]
        if len(time_fields) > 1:
            raise self._error(
                f"{time_fields[1]} is given beside {time_fields[0]}",
                child_path(path, time_fields[1]),
                "keep one of them",
                code="definition.trigger.conflict",
            )
        if not time_fields and kind is None:
            raise self._error(
                "the trigger has no times",
                path,
                f"give one of {', '.join(_TRIGGER_KIND_BY_FIELD)}, or leave the whole trigger out",
                code="definition.trigger.incomplete",
            )
        found = kind if kind is not None else _TRIGGER_KIND_BY_FIELD[time_fields[0]]
        return self._make(path, lambda: trigger_from_fields({"kind": found, **given}))

    def _values(self, stored: object, path: str) -> Mapping[str, Any]:
        if not isinstance(stored, Mapping):
            raise self._error(
                f"{quoted(stored, 60)} is not a mapping",
                path,
                "write {name: value, …}",
                code="definition.not_a_mapping",
            )
        return {str(name): value for name, value in stored.items()}

    def _mapping(self, stored: object, path: str, known: Iterable[str], owner: str) -> Mapping[str, Any]:
        """Return a mapping of known fields with values."""
        if not isinstance(stored, Mapping):
            raise self._error(
                f"{quoted(stored, 60)} is not a mapping",
                path,
                f"{owner} has {', '.join(known)}",
                code="definition.not_a_mapping",
            )
        self._check_known_fields(stored, path, known, owner)
        for name, value in stored.items():
            if value is None:
                raise self._error(
                    f"{name} is empty",
                    child_path(path, name),
                    "give it a value, or leave it out",
                    code="definition.field.empty",
                )
            if name in _TEXT_FIELDS and not isinstance(value, str):
                raise self._error(
                    f"{name} {quoted(value)} is not a text",
                    child_path(path, name),
                    "put it in quotes",
                    code="definition.field.not_text",
                )
        return stored

    def _check_known_fields(self, given: Mapping[str, Any], path: str, known: Iterable[str], owner: str) -> None:
        for name in given:
            if name not in known:
                known = list(known)
                synonym = _FIELD_SYNONYMS.get(name)
                suggestions = [synonym] if synonym in known else get_close_matches(name, known, 1)
                remedy = f"did you mean {suggestions[0]}?" if suggestions else f"{owner} has {', '.join(known)}"
                raise self._error(
                    f"{owner} has no field {quoted(name)}",
                    child_path(path, name),
                    self.field_hints.get(name, remedy),
                    code="definition.field.unknown",
                )

    def _check_required(self, given: Mapping[str, Any], path: str, names: Iterable[str], owner: str) -> None:
        for name in names:
            if name not in given:
                raise self._error(
                    f"{name} is missing",
                    child_path(path, name),
                    f"every {owner} needs {name}",
                    code="definition.field.missing",
                )

    def _list(self, stored: object, path: str) -> list[Any]:
        if not isinstance(stored, list):
            raise self._error(
                f"{quoted(stored, 60)} is not a list",
                path,
                "begin each entry with a dash, or use [ … ]",
                code="definition.not_a_list",
            )
        return stored

    def _make(self, path: str, make: Callable[[], T], renamed: Mapping[str, str] | None = None) -> T:
        """Make a value and locate its error; ``renamed`` maps field names of the value to those of the file."""
        try:
            return make()
        except LocatedError:
            raise
        except Invalid as error:
            field = (renamed or {}).get(error.field or "", error.field)
            raise _locate(self._document, f"{path}.{field}" if field else path, error) from None

    def _error(self, problem: str, path: str, remedy: str | None = None, *, code: str) -> LocatedError:
        return LocatedError(self._document, path, problem, code=code, remedy=remedy)


class _ScheduleReader(_DefinitionReader):
    """Reads the schedules of one document."""

    field_hints: ClassVar[Mapping[str, str]] = {
        "enabled": "an operator enables and disables schedules: `tenuto schedule disable NAME`",
    }

    def schedules(self) -> Iterator[DeclaredSchedule]:
        for index, stored in enumerate(self._section("schedules")):
            yield self._schedule(stored, f"schedules[{index}]")

    def _schedule(self, stored: object, path: str) -> DeclaredSchedule:
        given = self._mapping(stored, path, _SCHEDULE_FIELDS, "a schedule")
        self._check_required(given, path, ("name", "steps"), "schedule")
        steps = self._steps(given["steps"], child_path(path, "steps"))
        self._check_unique_step_names(steps)
        definition = self._make(
            path,
            lambda: ScheduleDefinition(
                given["name"],
                self._trigger(given, path),
                Plan(tuple(tuple(located.step for located in group) for group in steps)),
                given.get("description", ""),
                given.get("overlap", OverlapPolicy.SKIP),
                self._misfire(given.get("misfire", {}), child_path(path, "misfire")),
            ),
        )
        by_name = {each.step.name: each for each in chain.from_iterable(steps)}
        return DeclaredSchedule(definition, self._document, path, "trigger" in given, by_name)

    def _misfire(self, stored: object, path: str) -> Misfire:
        if isinstance(stored, Mapping):
            self._check_known_fields(stored, path, _MISFIRE_FIELDS, "a misfire policy")
        try:
            return misfire_from_fields(stored)
        except Invalid as error:
            rest = (error.field or "").removeprefix("misfire").lstrip(".")
            raise _locate(self._document, f"{path}.{rest}" if rest else path, error) from None

    def _steps(self, stored: object, path: str) -> list[list[_LocatedStep]]:
        """Return the groups, given by lists in the list or by indices."""
        listed = self._list(stored, path)
        has_indices = any(isinstance(each, Mapping) and "index" in each for each in listed)
        max_count = MAX_STEPS if has_indices else MAX_GROUPS
        if len(listed) > max_count:  # checked before any entry is parsed
            raise self._error(
                f"steps has {len(listed):,} entries",
                path,
                f"use at most {max_count:,}",
                code="schedule.steps.too_many" if has_indices else "schedule.steps.too_many_groups",
            )
        if has_indices:
            return self._indexed_groups(listed, path)
        return [self._group(each, f"{path}[{position}]") for position, each in enumerate(listed)]

    def _indexed_groups(self, listed: list[Any], path: str) -> list[list[_LocatedStep]]:
        groups: dict[int, list[_LocatedStep]] = {}
        for position, each in enumerate(listed):
            step_path = f"{path}[{position}]"
            if isinstance(each, list):
                raise self._mixed_groups(step_path, "a list is mixed with indexed steps")
            given = self._mapping(each, step_path, _STEP_FIELDS, "a step")
            if "index" not in given:
                raise self._mixed_groups(step_path, "the step has no index, although others have one")
            index = given["index"]
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= _MAX_STEP_INDEX:
                raise self._error(
                    f"index {quoted(index, 60)} is not a whole number from 0 to {_MAX_STEP_INDEX:,}",
                    child_path(step_path, "index"),
                    code="definition.step.index.invalid",
                )
            groups.setdefault(index, []).append(self._step(given, step_path))
        return [groups[index] for index in sorted(groups)]

    def _group(self, stored: object, path: str) -> list[_LocatedStep]:
        if not isinstance(stored, list):
            return [self._step(stored, path)]
        if not stored:
            raise self._error("a group has no steps", path, "remove it", code="schedule.steps.empty")
        for position, each in enumerate(stored):
            if isinstance(each, list):
                raise self._error(
                    "a group contains a list",
                    f"{path}[{position}]",
                    "groups contain steps only",
                    code="definition.step.nested_group",
                )
            if isinstance(each, Mapping) and "index" in each:
                raise self._mixed_groups(f"{path}[{position}].index", "a step within a list has an index")
        return [self._step(each, f"{path}[{position}]") for position, each in enumerate(stored)]

    def _mixed_groups(self, path: str, problem: str) -> LocatedError:
        remedy = "use either lists, or an index for every step"
        return self._error(problem, path, remedy, code="definition.step.mixed_groups")

    def _step(self, stored: object, path: str) -> _LocatedStep:
        given = self._mapping(stored, path, _STEP_FIELDS, "a step")
        targets = [name for name in _TARGET_FIELDS if name in given]
        if len(targets) != 1:
            raise self._error(
                f"{targets[1]} is given beside {targets[0]}" if targets else "the step has nothing to run",
                path,
                "give one of job, schedule or kind",
                code="definition.step.target",
            )
        target_field = targets[0]
        kind = given["kind"] if target_field == "kind" else target_field
        if target_field == "kind" and kind in (JOB, SCHEDULE):
            raise self._error(
                f"kind cannot be {kind}",
                child_path(path, "kind"),
                f"write {kind}: NAME",
                code="definition.step.kind.reserved",
            )
        input_field = "arguments" if target_field == "kind" else "input"
        self._check_step_input(given, path, target_field, input_field)
        target = given.get("target") if target_field == "kind" else given[target_field]
        arguments = self._values(given.get(input_field, {}), child_path(path, input_field))
        options = {name: given[name] for name in _STEP_OPTIONS if name in given}
        if isinstance(options.get("retry"), Mapping):
            self._check_known_fields(options["retry"], child_path(path, "retry"), _RETRY_FIELDS, "a retry policy")
        within_retry = isinstance(options.get("retry"), Mapping) and "max_attempts" not in options
        renamed = {"target": target_field, "max_attempts": "retry.max_attempts" if within_retry else "max_attempts"}
        step = self._make(path, lambda: Step.of(kind, arguments, target=target, **options), renamed)
        return _LocatedStep(path, step, input_field)

    def _check_step_input(self, given: Mapping[str, Any], path: str, target_field: str, input_field: str) -> None:
        excluded = {"input", "arguments"} - {input_field} | ({"target"} if target_field != "kind" else set())
        if target_field == SCHEDULE:
            excluded.add("input")
        for name in ("input", "arguments", "target"):
            if name in excluded and name in given:
                use_other = name != "target" and target_field != SCHEDULE
                raise self._error(
                    f"a step with {target_field} has no {name}",
                    child_path(path, name),
                    f"write {input_field}: …" if use_other else "leave it out",
                    code="definition.step.input.not_applicable",
                )

    def _check_unique_step_names(self, steps: list[list[_LocatedStep]]) -> None:
        seen: set[str] = set()
        for path, step, _ in chain.from_iterable(steps):
            if step.name in seen:
                raise self._error(
                    f"two steps are named {step.name!r}", path, "rename one of them", code="step.name.duplicate"
                )
            seen.add(step.name)


class _ManifestReader(_DefinitionReader):
    """Reads the manifests, groups and queues of one document."""

    field_hints: ClassVar[Mapping[str, str]] = {
        "enabled": "an operator enables and disables manifests: `tenuto manifest disable EXTERNAL_ID`",
        "input": "write properties: …",
        "depends_on": "write after: EXTERNAL_ID",
    }

    def manifests(self) -> Iterator[DeclaredManifest]:
        for index, stored in enumerate(self._section("manifests")):
            yield self._manifest(stored, f"manifests[{index}]")

    def groups(self) -> Iterator[DeclaredGroup]:
        for index, stored in enumerate(self._section("groups")):
            yield self._group(stored, f"groups[{index}]")

    def queues(self) -> Iterator[DeclaredQueue]:
        for index, stored in enumerate(self._section("queues")):
            yield self._queue(stored, f"queues[{index}]")

    def _manifest(self, stored: object, path: str) -> DeclaredManifest:
        given = self._mapping(stored, path, _MANIFEST_FIELDS, "a manifest")
        self._check_required(given, path, ("external_id", "job"), "manifest")
        self._make(path, lambda: validation.check_name(given["external_id"], field="external_id"))
        copied = ("name", "description", "after", *_POLICY_FIELDS, *_QUEUE_FIELDS, "on_dead_letter", "expires_in")
        options = {name: given[name] for name in copied if name in given}
        max_attempts = self._make(
            path,
            lambda: resolve_max_retries(
                given.get("max_retries"), max_attempts=given.get("max_attempts"), retry=given.get("retry")
            ),
        )
        if max_attempts is not None:
            options["max_attempts"] = max_attempts
        if any(name in given for name in ("trigger", *_TRIGGER_FIELDS)):
            options["trigger"] = self._trigger(given, path)
        if "properties" in given:
            options["properties"] = self._values(given["properties"], child_path(path, "properties"))
        if "on_demand" in given:
            options["on_demand"] = self._boolean(given["on_demand"], path, "on_demand")
        if isinstance(given.get("retry"), Mapping):
            self._check_known_fields(given["retry"], child_path(path, "retry"), _RETRY_FIELDS, "a retry policy")
        return DeclaredManifest(given["external_id"], given["job"], options, self._document, path, "trigger" in given)

    def _group(self, stored: object, path: str) -> DeclaredGroup:
        given = self._mapping(stored, path, _GROUP_FIELDS, "a group")
        self._check_required(given, path, ("name",), "group")
        name = given["name"]
        if name != ALL_MANIFESTS:
            self._make(path, lambda: validation.check_name(name, field="name", limit=64))
        options: dict[str, Any] = {}
        if "max_active" in given:
            max_active = given["max_active"]
            options["max_active"] = (
                None if max_active == NO_LIMIT else self._whole(max_active, path, "max_active", 1, MAX_ACTIVE)
            )
        if "rate_limit" in given:
            options["rate_limit"] = self._rate_limit(given["rate_limit"], path)
        if "priority" in given:
            if name == ALL_MANIFESTS:
                raise self._error(
                    f"the group {ALL_MANIFESTS} of all manifests has no priority",
                    child_path(path, "priority"),
                    "leave it out",
                    code="manifest_group.priority.not_applicable",
                )
            options["priority"] = self._whole(given["priority"], path, "priority", -MAX_PRIORITY, MAX_PRIORITY)
        if "enabled" in given:
            options["enabled"] = self._boolean(given["enabled"], path, "enabled")
        return DeclaredGroup(name, options, self._document, path)

    def _queue(self, stored: object, path: str) -> DeclaredQueue:
        given = self._mapping(stored, path, _DECLARED_QUEUE_FIELDS, "a queue")
        self._check_required(given, path, ("name",), "queue")
        name = given["name"]
        self._make(path, lambda: validation.check_name(name, field="name", limit=64))
        options: dict[str, Any] = {}
        if "max_running" in given:
            limit = given["max_running"]
            remedy = f"give a number, {NO_LIMIT} for no limit, or pause the queue to stop it: paused: true"
            options["max_running"] = (
                None if limit == NO_LIMIT else self._whole(limit, path, "max_running", 1, MAX_QUEUE_LIMIT, remedy)
            )
        if "rate_limit" in given:
            options["rate_limit"] = self._rate_limit(given["rate_limit"], path)
        if "paused" in given:
            options["paused"] = self._boolean(given["paused"], path, "paused")
        if "reason" in given:
            if options.get("paused") is not True:
                raise self._error(
                    "reason is given for a queue that is not paused",
                    child_path(path, "reason"),
                    "write paused: true beside it, or leave it out",
                    code="queue.reason.not_applicable",
                )
            self._make(path, lambda: validation.check_text(given["reason"], field="reason", limit=1000))
            options["paused"] = given["reason"] or True
        return DeclaredQueue(name, options, self._document, path)

    def _rate_limit(self, value: Any, path: str) -> str | None:
        rate = self._make(path, lambda: parse_rate_limit(None if value == NO_LIMIT else value))
        return None if rate is None else str(rate)

    def _boolean(self, value: object, path: str, name: str) -> bool:
        if not isinstance(value, bool):
            raise self._error(
                f"{name} {quoted(value)} is neither true nor false",
                child_path(path, name),
                code="definition.field.not_boolean",
            )
        return value

    def _whole(self, value: object, path: str, name: str, low: int, high: int, remedy: str | None = None) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._error(
                f"{name} {quoted(value, 60)} is not a whole number from {low:,} to {high:,}",
                child_path(path, name),
                remedy,
                code="definition.field.out_of_range",
            )
        return value
