"""Entries of the sidebar and their live counts. An entry is shown if its page exists; extensions add groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenuto.app import Tenuto


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: the path is also the name by which a page marks it as current."""

    title: str
    path: str
    count: str = ""
    """Field of `Counts` that is shown beside it."""
    shortcut: str = ""
    """Key that leads to it, after ``g``."""


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    entries: Sequence[Entry]


NAVIGATION = (
    Group(
        "Operate",
        (
            Entry("Overview", "/", shortcut="o"),
            Entry("Timeline", "/timeline", shortcut="t"),
            Entry("Executions", "/executions", "executions", "e"),
            Entry("Tasks", "/tasks", "tasks", "k"),
            Entry("Dead letters", "/dead-letters", "dead_letters", "d"),
            Entry("Batches", "/batches", "batches", "b"),
            Entry("Bulk operations", "/operations"),
        ),
    ),
    Group(
        "Define",
        (
            Entry("Schedules", "/schedules", shortcut="s"),
            Entry("Manifests", "/manifests", shortcut="m"),
            Entry("Jobs", "/jobs"),
            Entry("One-shots", "/one-shots", "one_shots", "n"),
        ),
    ),
    Group("Fleet", (Entry("Workers", "/workers", "workers", "w"), Entry("Queues", "/queues", shortcut="q"))),
    Group(
        "Records",
        (
            Entry("Activities", "/activities", shortcut="a"),
            Entry("Ledger", "/ledger", shortcut="l"),
            Entry("Logs", "/logs"),
            Entry("Audit", "/audit"),
        ),
    ),
    Group(
        "Admin",
        (
            Entry("Keys", "/keys"),
            Entry("Secrets", "/secrets"),
            Entry("Settings", "/settings"),
            Entry("API", "/docs"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Live counts beside entries; None is not shown."""

    executions: int | None = None
    tasks: int | None = None
    dead_letters: int | None = None
    batches: int | None = None
    one_shots: int | None = None
    workers: int | None = None


def visible_groups(paths: set[str], more: Sequence[Group] = ()) -> tuple[Group, ...]:
    """Return the groups with the entries whose pages exist."""
    groups = [
        Group(group.title, tuple(entry for entry in group.entries if entry.path in paths))
        for group in (*NAVIGATION, *more)
    ]
    return tuple(group for group in groups if group.entries)


async def load_counts(app: Tenuto) -> Counts:
    """Return the counts of open work. Every page shows them, so they must cost less than the page itself."""
    found = await app.reports.count_open_work()
    return Counts(
        executions=found.execution_count,
        tasks=found.task_count,
        dead_letters=found.dead_letter_count,
        batches=found.batch_count,
        one_shots=found.one_shot_count,
        workers=found.worker_count,
    )
