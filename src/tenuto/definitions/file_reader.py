"""Reading definitions out of files: strictly, and whatever is refused is refused with the file, the line and the path.

What all kinds of definitions have in common. What each of them is made of is said where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from tenuto.definitions.strict_yaml import Document, below
from tenuto.errors import Invalid
from tenuto.model.policies import RetryPolicy
from tenuto.model.triggers import Manual, Trigger, trigger_from_fields

T = TypeVar("T")

SECTIONS = ("schedules", "manifests", "groups")
CLOCKS = {"cron": "cron", "times": "times", "every": "interval"}
"""Of each kind of trigger, the field that says when."""
TRIGGER = (*CLOCKS, "zone", "days", "between", "anchor", "start", "end", "excluded", "jitter")
_MEANT = {"on": "days", "at": "times", "exclude": "excluded", "tz": "zone", "timezone": "zone"}
"""What the command line, or somebody else, calls a field of a trigger."""
RETRY = tuple(each.name for each in fields(RetryPolicy))
_TEXTS = {
    "name", "queue", "on_lost", "description", "overlap", "job", "schedule", "kind", "target", "external_id", "group",
    "after",
}  # fmt: skip


class Reader:
    """One document."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """What to say of a field that is not for files."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def _section(self, name: str) -> list[Any]:
        """One of the lists a file is made of; it may be left out, but not all of them."""
        whole = self._document.value
        if not isinstance(whole, Mapping):
            raise self._no("", "declares nothing", "begin it with schedules: and a list of them")
        self._only(whole, "", SECTIONS, "a file")
        if not whole:
            raise self._no("schedules", "is missing", "begin the file with schedules: and a list of them")
        return self._list(whole[name], name) if name in whole else []

    # --- when it runs -----------------------------------------------------------------------------------------------

    def _trigger(self, given: Mapping[str, Any], path: str) -> Trigger:
        """Said beside the name, or in a field of its own; nothing said means by hand."""
        beside = {name: given[name] for name in TRIGGER if name in given}
        if "trigger" not in given:
            return self._clock(beside, path, None) if beside else Manual()
        at = below(path, "trigger")
        if beside:
            raise self._no(below(path, next(iter(beside))), "is given beside trigger", "say it within trigger")
        if given["trigger"] == Manual.kind:
            return Manual()
        within = dict(self._fields(given["trigger"], at, ("kind", *TRIGGER), "a trigger"))
        kind = within.pop("kind", None)
        if kind == Manual.kind and not within:
            return Manual()
        return self._clock(within, at, kind)

    def _clock(self, given: Mapping[str, Any], path: str, kind: object) -> Trigger:
        clocks = [name for name in CLOCKS if name in given]
        if len(clocks) > 1:
            raise self._no(below(path, clocks[1]), f"is given beside {clocks[0]}", "it runs by one of them")
        if not clocks and kind is None:
            raise self._no(path, "does not say when to run", f"give one of {', '.join(CLOCKS)}, or leave all of it out")
        found = kind if kind is not None else CLOCKS[clocks[0]]
        return self._made(path, lambda: trigger_from_fields({"kind": found, **given}))

    def _input(self, stored: object, path: str) -> Mapping[str, Any]:
        if not isinstance(stored, Mapping):
            raise self._no(path, "is not a set of named values", "write {name: value, …}")
        return {str(name): value for name, value in stored.items()}

    # --- reading ----------------------------------------------------------------------------------------------------

    def _fields(self, stored: object, path: str, known: Iterable[str], whose: str) -> Mapping[str, Any]:
        """Named fields, each known and said."""
        if not isinstance(stored, Mapping):
            raise self._no(path, "is not a set of named fields", f"{whose} has {', '.join(known)}")
        self._only(stored, path, known, whose)
        for name, value in stored.items():
            if value is None:
                raise self._no(below(path, name), "is empty", "give it a value, or leave it out")
            if name in _TEXTS and not isinstance(value, str):
                raise self._no(below(path, name), f"{value!r:.80} is not a text", "put it in quotes")
        return stored

    def _only(self, given: Mapping[str, Any], path: str, known: Iterable[str], whose: str) -> None:
        for name in given:
            if name not in known:
                known = list(known)
                meant = [_MEANT[name]] if _MEANT.get(name) in known else get_close_matches(name, known, 1)
                remedy = f"did you mean {meant[0]}?" if meant else f"{whose} has {', '.join(known)}"
                why = f"{whose} has no such field"
                raise self._no(below(path, name), why, self.elsewhere.get(name, remedy))

    def _list(self, stored: object, path: str) -> list[Any]:
        if not isinstance(stored, list):
            raise self._no(path, "is not a list", "begin each entry with a dash, or use [ … ]")
        return stored

    def _made(self, path: str, make: Callable[[], T], renamed: Mapping[str, str] | None = None) -> T:
        """A value; if it refuses itself, by the path of the field it blames."""
        try:
            return make()
        except Located:
            raise
        except Invalid as error:
            blamed = (renamed or {}).get(error.field or "", error.field)
            raise self._no(f"{path}.{blamed}" if blamed else path, error.message, error.remedy) from None

    def _no(self, path: str, why: str, remedy: str | None = None) -> Invalid:
        place = self._document.place(path)
        return Located(why, field=f"{place}: {path}" if path else place, remedy=remedy)


class Located(Invalid):
    """A refusal that knows its place already."""
