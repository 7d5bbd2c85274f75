"""Manifests and their groups as files declare them: what was said, and where it stands.

What a file leaves out is as the job has it, so a manifest is made whole only where the jobs are known; what is found
wrong there is told by its place in the file. Nothing here reads files or knows what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tenuto.definitions.file_reader import RETRY, TRIGGER, Reader
from tenuto.definitions.strict_yaml import Document, below
from tenuto.errors import Invalid
from tenuto.model import stored_values
from tenuto.model.manifests import MAX_ACTIVE
from tenuto.model.tasks import MAX_PRIORITY

Entry = TypeVar("Entry", "DeclaredManifest", "DeclaredGroup")

ALL_TOGETHER = "*"
NO_LIMIT = "none"

_RULES = ("timeout", "retry", "max_retries", "on_lost")
_PLACE = ("queue", "priority", "group", "max_active")
_MANIFEST = (
    "external_id", "name", "description", "job", "properties", "trigger", *TRIGGER, "after", "on_demand", *_RULES,
    *_PLACE,
)  # fmt: skip
_GROUP = ("name", "max_active", "priority", "enabled")


@dataclass(frozen=True, slots=True)
class DeclaredManifest:
    """A manifest of a file, and where in the file it stands."""

    external_id: str
    job: str
    said: Mapping[str, Any]
    """What the file says beside that, by the names `manifest_of` takes."""
    document: Document
    path: str
    nested: bool = False
    """Whether its trigger is a field of its own."""

    @property
    def name(self) -> str:
        return self.external_id

    def refused(self, error: Invalid) -> Invalid:
        """What is found wrong with it, told by its place in the file."""
        return _placed(self.document, self._path_of(error.field or ""), error)

    def _path_of(self, part: str) -> str:
        if not part:
            return self.path
        whole = part.partition(".")[0]
        if whole == "depends_on":
            part = "after"
        elif whole == "max_retries" and "max_retries" not in self.said:
            part = "retry.max_retries"
        elif self.nested and whole in TRIGGER:
            part = f"trigger.{part}"
        return f"{self.path}.{part}"


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A group of a file: what the file says of it, and nothing else."""

    name: str
    said: Mapping[str, Any]
    document: Document
    path: str

    def refused(self, error: Invalid) -> Invalid:
        """What is found wrong with it, told by its place in the file."""
        return _placed(self.document, f"{self.path}.{error.field}" if error.field else self.path, error)


def _placed(document: Document, path: str, error: Invalid) -> Invalid:
    return Invalid(error.message, field=f"{document.place(path)}: {path}", remedy=error.remedy)


def manifests_of(documents: Iterable[Document]) -> list[DeclaredManifest]:
    """Every manifest of these files, in their order; no external id twice."""
    return _each_once((each for document in documents for each in _Manifests(document).manifests()), "external_id")


def groups_of(documents: Iterable[Document]) -> list[DeclaredGroup]:
    """Every group of these files, in their order; no name twice."""
    return _each_once((each for document in documents for each in _Manifests(document).groups()), "name")


def _each_once(entries: Iterable[Entry], field: str) -> list[Entry]:
    found: dict[str, Entry] = {}
    for each in entries:
        if (other := found.get(each.name)) is not None:
            why = f"{each.name!r} is declared already, at {other.document.place(other.path)}"
            raise each.refused(Invalid(why, field=field, remedy="give one another name, or take it out"))
        found[each.name] = each
    return list(found.values())


class _Manifests(Reader):
    """The manifests and groups of one document."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "enabled": "whether a manifest is enabled is the operator's to say: `tenuto manifest disable EXTERNAL_ID`",
        "input": "write properties: …",
        "depends_on": "write after: EXTERNAL_ID",
    }

    def manifests(self) -> Iterator[DeclaredManifest]:
        for place, stored in enumerate(self._section("manifests")):
            yield self._manifest(stored, f"manifests[{place}]")

    def groups(self) -> Iterator[DeclaredGroup]:
        for place, stored in enumerate(self._section("groups")):
            yield self._group(stored, f"groups[{place}]")

    def _manifest(self, stored: object, path: str) -> DeclaredManifest:
        given = self._fields(stored, path, _MANIFEST, "a manifest")
        for needed in ("external_id", "job"):
            if needed not in given:
                raise self._no(below(path, needed), "is missing", f"every manifest has {needed}: say it")
        self._made(path, lambda: stored_values.name(given["external_id"], field="external_id"))
        said = {name: given[name] for name in ("name", "description", "after", *_RULES, *_PLACE) if name in given}
        if any(name in given for name in ("trigger", *TRIGGER)):
            said["trigger"] = self._trigger(given, path)
        if "properties" in given:
            said["properties"] = self._input(given["properties"], below(path, "properties"))
        if "on_demand" in given:
            said["on_demand"] = self._switch(given["on_demand"], below(path, "on_demand"))
        if isinstance(given.get("retry"), Mapping):
            self._only(given["retry"], below(path, "retry"), RETRY, "a retry")
        return DeclaredManifest(given["external_id"], given["job"], said, self._document, path, "trigger" in given)

    def _group(self, stored: object, path: str) -> DeclaredGroup:
        given = self._fields(stored, path, _GROUP, "a group")
        if "name" not in given:
            raise self._no(below(path, "name"), "is missing", "every group has a name: say it")
        name = given["name"]
        if name != ALL_TOGETHER:
            self._made(path, lambda: stored_values.name(name, field="name", limit=64))
        said: dict[str, Any] = {}
        if "max_active" in given:
            most = given["max_active"]
            said["max_active"] = (
                None if most == NO_LIMIT else self._whole(most, below(path, "max_active"), 1, MAX_ACTIVE)
            )
        if "priority" in given:
            if name == ALL_TOGETHER:
                raise self._no(below(path, "priority"), "all manifests together have none", "leave it out")
            said["priority"] = self._whole(given["priority"], below(path, "priority"), -MAX_PRIORITY, MAX_PRIORITY)
        if "enabled" in given:
            said["enabled"] = self._switch(given["enabled"], below(path, "enabled"))
        return DeclaredGroup(name, said, self._document, path)

    def _switch(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            raise self._no(path, f"{value!r:.80} is neither true nor false")
        return value

    def _whole(self, value: object, path: str, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._no(path, f"must be a whole number from {low:,} to {high:,}")
        return value
