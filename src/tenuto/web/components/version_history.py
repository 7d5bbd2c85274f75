"""Versions and history of a definition: who changed it, when, why, and the difference of any two versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tenuto.errors import TenutoError
from tenuto.presentation.descriptions import describe_changes
from tenuto.store.access.audit_log import HistoryEntry
from tenuto.store.definitions.definition_rows import Version

DefinitionTab = Literal["overview", "versions", "history"]
VERSION_COUNT = 100
HISTORY_COUNT = 100


@dataclass(frozen=True, slots=True)
class ChangedField:
    """A field that differs, as the lines of a diff."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version, and what it changed."""

    version: int
    change: str
    at: datetime
    actor: str
    actor_type: str
    reason: str | None
    changes: Sequence[ChangedField]

    @property
    def summary(self) -> str:
        """What it changed, in a few words."""
        titles = [each.title for each in self.changes]
        return ", ".join(titles) if self.change == "edited" else self.change


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """The difference of two versions, and the older one as a body that restores it."""

    older: int
    newer: int
    changes: Sequence[ChangedField]
    restores: Mapping[str, Any] | None
    """None if the older version is the present one or cannot be read any more."""


@dataclass(frozen=True, slots=True)
class VersionsTab:
    """All versions and a comparison of two of them."""

    rows: Sequence[VersionRow]
    comparison: VersionComparison | None


def find_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[ChangedField]:
    """Return the fields in which two definitions differ."""
    return [ChangedField(title, lines) for title, lines in describe_changes(before, after)]


def make_versions_tab(
    versions: Sequence[Version],
    present: int,
    a: int | None,
    b: int | None,
    to_body: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> VersionsTab:
    """Return the versions, and the comparison of a and b; by default of the last two.

    ``to_body`` converts stored fields to the body of a request. Versions of a deleted definition with the same key are
    left out.
    """
    same = [each for each in versions if versions and each.definition_id == versions[0].definition_id]
    rows = [
        VersionRow(
            each.version,
            each.change,
            each.at,
            each.actor.name,
            str(each.actor.type),
            each.reason,
            find_changes(each.before, each.after) if each.before and each.after else (),
        )
        for each in same
    ]
    known = {each.version: each.after for each in same if each.after is not None}
    numbers = sorted(known)
    newer = b if b in known else (numbers[-1] if numbers else None)
    older = a if a in known else next((each for each in reversed(numbers) if newer is not None and each < newer), None)
    if newer is None or older is None or older == newer:
        return VersionsTab(rows, None)
    older, newer = sorted((older, newer))
    restores = None
    if older != present and known[older] is not None:
        with suppress(TenutoError, KeyError, TypeError, ValueError):
            stored = {name: value for name, value in (known[older] or {}).items() if name != "enabled"}
            restores = to_body(stored)
    return VersionsTab(rows, VersionComparison(older, newer, find_changes(known[older], known[newer]), restores))


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One audited change or action of an object."""

    entry: HistoryEntry
    changes: Sequence[ChangedField]
    """What it changed, if a version was made by it."""


def make_history(entries: Sequence[HistoryEntry], versions: Sequence[Version]) -> list[HistoryRow]:
    """Return the entries, each with the changes of the version that its actor made within a second of it."""
    rows = []
    for entry in entries:
        made = next(
            (
                each
                for each in versions
                if abs((each.at - entry.at).total_seconds()) < 1 and each.actor.name == entry.actor_name
            ),
            None,
        )
        changes = find_changes(made.before, made.after) if made is not None and made.before and made.after else []
        rows.append(HistoryRow(entry, changes))
    return rows
