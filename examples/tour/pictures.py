"""What changes while one watches: each picture can be drawn over the last one, or told in lines where nothing can be.

A picture is given everything it shows. It asks nobody and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tenuto.cli.formatting import one_line
from tenuto.cli.work import batch_progress, execution_view

Record = dict[str, Any]

_TOLD_EVERY = 0.25
"""In lines: so much more must have ended before it is told again."""
_BAR = 40
_SIGNS = {"up": ("●", "green"), "stopped": ("✗", "red")}


class Picture(Protocol):
    """Something that changes."""

    def drawn(self, width: int, height: int) -> RenderableType: ...
    def news(self, before: Any) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Rail:
    """An execution: its groups one after the other, steps side by side under their number."""

    execution: Record

    def drawn(self, width: int, height: int) -> RenderableType:
        return execution_view.render_execution(self.execution, width=width, height=height)

    def news(self, before: Rail | None) -> list[str]:
        return execution_view.describe_changes(None if before is None else before.execution, self.execution)


@dataclass(frozen=True, slots=True)
class Attempts:
    """One task: every attempt a line."""

    attempts: Sequence[Record]

    def drawn(self, width: int, height: int) -> RenderableType:
        return Group(*(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in self._lines()))

    def news(self, before: Attempts | None) -> list[str]:
        told = set() if before is None else {line for line, _ in before._lines()}
        return [line for line, _ in self._lines() if line not in told]

    def _lines(self) -> list[tuple[str, str]]:
        return [_attempt(one) for one in self.attempts]


def _attempt(one: Record) -> tuple[str, str]:
    head = f"attempt {one['attempt']}"
    match one["status"]:
        case "completed":
            return f"● {head}  done: {one_line(one['output'], 50)}", "green"
        case "failed":
            return f"✗ {head}  failed: {one_line(one['error']['message'], 50)}", "red"
        case "in_progress":
            return f"◐ {head}  running", "yellow"
        case _:
            return f"○ {head}  waits its turn", "dim"


@dataclass(frozen=True, slots=True)
class Batch:
    """Thousands of items as one thing: a bar, counts, the rate."""

    found: Record

    def drawn(self, width: int, height: int) -> RenderableType:
        return batch_progress.render_batch(self.found, width)

    def news(self, before: Batch | None) -> list[str]:
        share = batch_progress.finished_share(self.found)
        if before is not None and share < min(batch_progress.finished_share(before.found) + _TOLD_EVERY, 1.0):
            return []
        return [
            f"{share * 100:3.0f} %  {batch_progress.count_summary(self.found).plain}  {batch_progress.rate_summary(self.found)}".rstrip()
        ]


@dataclass(frozen=True, slots=True)
class Hand:
    """One worker as it is just now."""

    name: str
    pid: int
    is_dead: bool
    holds: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Workshop:
    """Who works on what, how much of it has ended, and whether the database is there."""

    what: str
    ended: int
    total: int
    hands: Sequence[Hand]
    database: str = "up"

    def drawn(self, width: int, height: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", style="dim", max_width=max(width - 45, 10))
        for hand in self.hands:
            grid.add_row(hand.name, f"pid {hand.pid}", _state(hand), _held(hand))
        sign, style = _SIGNS[self.database]
        grid.add_row("database", "", Text(f"{sign} {self.database}", style=style), "")
        return Group(self._bar(), grid)

    def _bar(self) -> Text:
        full = int(_BAR * self.ended / max(self.total, 1))
        bar = Text("━" * full, style="green")
        bar.append("╌" * (_BAR - full), style="dim")
        bar.append(f"  {self.ended:,} of {self.total:,} {self.what} done", style="default")
        return bar

    def news(self, before: Workshop | None) -> list[str]:
        step = self.total * _TOLD_EVERY
        quiet = before is not None and before.database == self.database
        if quiet and before is not None and self.ended < min(before.ended + step, self.total):
            return []
        held = ", ".join(f"{hand.name} {'dead' if hand.is_dead else f'runs {len(hand.holds)}'}" for hand in self.hands)
        gone = "" if self.database == "up" else f"; database {self.database}"
        return [f"{self.ended:,} of {self.total:,} {self.what} done; {held}{gone}"]


def _state(hand: Hand) -> Text:
    if hand.is_dead:
        return Text("✗ killed", style="red")
    if hand.holds:
        return Text(f"◐ {len(hand.holds)} running", style="yellow")
    return Text("○ idle", style="dim")


def _held(hand: Hand) -> str:
    if hand.is_dead:
        return f"holds {len(hand.holds)} until its leases run out" if hand.holds else ""
    shown = [task["progress"] for task in hand.holds if task["progress"]]
    return ", ".join(f"{one['message']} {one['done'] * 100 // one['total']} %" for one in shown)
