"""Live views of the tour: each can be drawn in place in a terminal or described in lines.

A view contains all data that it shows and runs no queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tenuto.presentation.text_formats import one_line
from tenuto.store.work.activities import ActivityDetails, TaskRecord

Record = dict[str, Any]

_REPORTED_SHARE = 0.25
"""In lines, progress is reported after each additional share of the total."""
_BAR_WIDTH = 40
_SIGNS = {"up": ("●", "green"), "stopped": ("✗", "red")}


class LiveView(Protocol):
    """A view that is updated in place."""

    def render(self, width: int, height: int) -> RenderableType: ...
    def changed_lines(self, before: Any) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class TaskAttempts:
    """A task with one line per attempt."""

    attempts: Sequence[ActivityDetails]

    def render(self, width: int, height: int) -> RenderableType:
        return Group(*(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in self._lines()))

    def changed_lines(self, before: TaskAttempts | None) -> list[str]:
        shown = set() if before is None else {line for line, _ in before._lines()}
        return [line for line, _ in self._lines() if line not in shown]

    def _lines(self) -> list[tuple[str, str]]:
        return [_describe_attempt(one) for one in self.attempts]


def _describe_attempt(one: ActivityDetails) -> tuple[str, str]:
    head = f"attempt {one.attempt}"
    match one.state:
        case "completed":
            return f"● {head}  done: {one_line(one.output, 50)}", "green"
        case "failed":
            return f"✗ {head}  failed: {one_line(one.error['message'], 50)}", "red"
        case "running":
            return f"◐ {head}  running", "yellow"
        case _:
            return f"○ {head}  queued", "dim"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Present state of one worker."""

    name: str
    pid: int
    is_dead: bool
    tasks: Sequence[TaskRecord]


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """Workers with their tasks, the progress of the work, and the state of the database."""

    noun: str
    ended_count: int
    total: int
    workers: Sequence[WorkerState]
    database: str = "up"

    def render(self, width: int, height: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", style="dim", max_width=max(width - 45, 10))
        for worker in self.workers:
            grid.add_row(worker.name, f"pid {worker.pid}", _describe_state(worker), _describe_tasks(worker))
        sign, style = _SIGNS[self.database]
        grid.add_row("database", "", Text(f"{sign} {self.database}", style=style), "")
        return Group(self._bar(), grid)

    def _bar(self) -> Text:
        full = int(_BAR_WIDTH * self.ended_count / max(self.total, 1))
        bar = Text("━" * full, style="green")
        bar.append("╌" * (_BAR_WIDTH - full), style="dim")
        bar.append(f"  {self.ended_count:,} of {self.total:,} {self.noun} done", style="default")
        return bar

    def changed_lines(self, before: WorkerOverview | None) -> list[str]:
        step = self.total * _REPORTED_SHARE
        same_database = before is not None and before.database == self.database
        if same_database and before is not None and self.ended_count < min(before.ended_count + step, self.total):
            return []
        states = ", ".join(
            f"{worker.name} {'dead' if worker.is_dead else f'runs {len(worker.tasks)}'}" for worker in self.workers
        )
        stopped = "" if self.database == "up" else f"; database {self.database}"
        return [f"{self.ended_count:,} of {self.total:,} {self.noun} done; {states}{stopped}"]


def _describe_state(worker: WorkerState) -> Text:
    if worker.is_dead:
        return Text("✗ killed", style="red")
    if worker.tasks:
        return Text(f"◐ {len(worker.tasks)} running", style="yellow")
    return Text("○ idle", style="dim")


def _describe_tasks(worker: WorkerState) -> str:
    if worker.is_dead:
        return f"holds {len(worker.tasks)} until its leases expire" if worker.tasks else ""
    shown = [task.progress for task in worker.tasks if task.progress]
    return ", ".join(f"{one['message']} {one['done'] * 100 // one['total']} %" for one in shown)
