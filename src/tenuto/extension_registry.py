"""The extensions of an app: discovery, compatibility, and isolation of their errors.

An extension that cannot be used is named, logged once and reported by the doctor; everything else goes on without it.
Extensions are imported at first use, so a program that needs none of them does not import them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tenuto.errors import Invalid, TenutoError
from tenuto.extension import Extension
from tenuto.logs import Log
from tenuto.version import __version__

ENTRY_POINT_GROUP = "tenuto.extensions"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED_NAMES = ("tenuto", "worker", "extensions")
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*")

T = TypeVar("T")

log = Log("tenuto.extensions")


@dataclass(frozen=True, slots=True)
class ExtensionFailure:
    """Why an extension, or one of its contributions, is not used."""

    extension: str
    part: str
    """``loading``, or the contribution that failed, such as ``routers``."""
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Contribution(Generic[T]):
    """A value that an extension contributes."""

    extension: Extension
    value: T


class ExtensionRegistry:
    """The extensions of one app."""

    def __init__(self, given: Iterable[Extension] = (), *, disabled: Callable[[], Sequence[str]] = lambda: ()) -> None:
        """``given`` have priority over installed ones; ``disabled`` returns the names of those that are not loaded."""
        self._given = tuple(given)
        self._disabled = disabled
        self._lock = threading.RLock()
        self._extensions: tuple[Extension, ...] | None = None
        self._failures: dict[tuple[str, str], ExtensionFailure] = {}

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The usable extensions; the first access imports them."""
        with self._lock:
            if self._extensions is None:
                self._extensions = tuple(self._load())
            return self._extensions

    @property
    def failures(self) -> list[ExtensionFailure]:
        """What could not be used so far."""
        return list(self._failures.values())

    def names(self) -> set[str]:
        """Return the names of all extensions, without importing installed ones."""
        return {getattr(each, "name", "") for each in self._given} | {each.name for each in find_entry_points()}

    def find(self, name: str) -> Extension | None:
        """Return the extension with this name, if it is usable."""
        return next((each for each in self.extensions if each.name == name), None)

    def collect(self, part: str, contribute: Callable[[Extension], Iterable[T]]) -> list[Contribution[T]]:
        """Return what the extensions contribute; an extension whose code fails contributes nothing to this part."""
        found: list[Contribution[T]] = []
        for extension in self.extensions:
            try:
                found += [Contribution(extension, value) for value in contribute(extension)]
            except Exception as error:  # noqa: BLE001 — code of an extension: the others and the core go on
                self.report_failure(extension.name, part, error)
        return found

    def report_failure(self, extension: str, part: str, error: Exception, remedy: str | None = None) -> None:
        """Log a failure once and keep it for the doctor."""
        problem = error.message if isinstance(error, TenutoError) else f"{type(error).__name__}: {error}"
        known_remedy = error.remedy if isinstance(error, TenutoError) else None
        failure = ExtensionFailure(
            extension, part, problem, remedy or known_remedy or f"upgrade or uninstall the extension {extension}"
        )
        if self._failures.get((extension, part)) != failure:
            self._failures[extension, part] = failure
            log.error("extension failed", extension=extension, part=part, error=problem, remedy=failure.remedy)

    def clear_failure(self, extension: str, part: str) -> None:
        """Forget a failure whose cause has been removed."""
        self._failures.pop((extension, part), None)

    # --- loading ----------------------------------------------------------------------------------------------------

    def _load(self) -> Iterator[Extension]:
        names: set[str] = set()
        disabled = set(self._disabled())
        for label, create in self._candidates(disabled):
            try:
                extension = create()
                _check_extension(extension)
                if extension.name in names:
                    raise Invalid(
                        f"two extensions are named {extension.name!r}",
                        code="extension.name.duplicate",
                        remedy="uninstall one of them",
                    )
            except Exception as error:  # noqa: BLE001 — importing the code of an extension may raise anything
                self.report_failure(label, "loading", error)
                continue
            if extension.name not in disabled:
                names.add(extension.name)
                yield extension

    def _candidates(self, disabled: set[str]) -> Iterator[tuple[str, Callable[[], Extension]]]:
        for extension in self._given:
            yield getattr(extension, "name", "") or type(extension).__name__, partial(_given_extension, extension)
        for entry_point in find_entry_points():
            if entry_point.name not in disabled:
                yield entry_point.name, partial(load_extension, entry_point)


def find_entry_points() -> list[EntryPoint]:
    """Return the entry points of all installed extensions, by name."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name)


def load_extension(entry_point: EntryPoint) -> Extension:
    """Import the extension of an entry point: an `Extension` object or class."""
    found: Any = entry_point.load()
    extension = found() if isinstance(found, type) else found
    if not isinstance(extension, Extension):
        raise Invalid(
            f"{entry_point.value} is of type {type(extension).__name__}, not an extension",
            code="extension.invalid",
            remedy="let the entry point name a subclass of tenuto.extension.Extension",
        )
    if extension.name != entry_point.name:
        raise Invalid(
            f"the extension is named {extension.name!r}, but its entry point {entry_point.name!r}",
            code="extension.name.conflict",
            remedy="give both the same name",
        )
    return extension


def _given_extension(extension: object) -> Extension:
    if not isinstance(extension, Extension):
        raise Invalid(
            f"{extension!r} is not an extension",
            code="extension.invalid",
            remedy="pass objects of subclasses of tenuto.extension.Extension",
        )
    return extension


def _check_extension(extension: Extension) -> None:
    if not _NAME.fullmatch(extension.name) or extension.name in _RESERVED_NAMES:
        raise Invalid(
            f"{extension.name!r} cannot be the name of an extension",
            code="extension.name.invalid",
            field="name",
            remedy="use up to 40 lower-case letters, digits and underscores",
        )
    if not is_compatible(extension.requires_tenuto, __version__):
        raise Invalid(
            f"it requires Tenuto {extension.requires_tenuto}, and this is {__version__}",
            code="extension.version.incompatible",
            field="requires_tenuto",
            remedy=f"install a version of the extension {extension.name} for Tenuto {__version__}",
        )


def is_compatible(required: str, version: str) -> bool:
    """Return whether a version meets conditions such as ``>=0.1,<0.2``; pre-releases count as their release."""
    actual = _release(version)
    for condition in filter(str.strip, required.split(",")):
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise Invalid(
                f"{condition.strip()!r} is not a version condition",
                code="extension.version.invalid",
                field="requires_tenuto",
                remedy="write it like >=0.1,<0.2",
            )
        wanted = _release(match[2])
        comparison = (actual > wanted) - (actual < wanted)
        allowed = {">=": (0, 1), "<=": (0, -1), "==": (0,), "!=": (1, -1), "<": (-1,), ">": (1,)}[match[1]]
        if comparison not in allowed:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    return tuple((numbers + [0] * 4)[:4])


def resolve_target(target: str) -> Any:
    """Import ``module:attribute``."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
