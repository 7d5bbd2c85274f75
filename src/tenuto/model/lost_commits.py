"""Decide whether a database still contains the commits that a process saw acknowledged.

PostgreSQL replays commits in their order. A process that finds its newest acknowledged mark therefore finds every
commit before it, and one that does not find it knows that commits are lost. Each promotion increases the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class SeenHistory:
    """What a process remembers of the database."""

    system: str
    """Identifier of the database cluster and of the database in it; the same on all its standbys."""
    timeline: int
    number: int
    """Its newest mark whose commit was acknowledged."""
    at: datetime
    """When that was, on the clock of the database."""


@dataclass(frozen=True, slots=True)
class FoundHistory:
    """What a process finds in a database."""

    system: str
    timeline: int
    number: int
    """Its newest mark; 0 if there is none."""
    now: datetime


class HistoryVerdict(StrEnum):
    """Relation between the history that a process remembers and the one that it finds."""

    SAME = "same"
    PROMOTED = "promoted"
    """Another server continues the history; nothing that this process saw acknowledged is lost."""
    LOST_COMMITS = "lost_commits"
    FORMER_PRIMARY = "former_primary"
    """The server was replaced by a promoted one and must not be used."""


def judge_history(seen: SeenHistory, found: FoundHistory) -> HistoryVerdict:
    """Compare both histories. Another system, after an upgrade or a restore, starts its timelines again."""
    if found.system == seen.system and found.timeline < seen.timeline:
        return HistoryVerdict.FORMER_PRIMARY
    if found.number < seen.number:
        return HistoryVerdict.LOST_COMMITS
    is_same = found.system == seen.system and found.timeline == seen.timeline
    return HistoryVerdict.SAME if is_same else HistoryVerdict.PROMOTED
