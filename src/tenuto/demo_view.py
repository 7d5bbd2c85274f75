"""How the tour is shown: a live picture in a terminal, plain lines elsewhere, nothing at all for machines."""

from __future__ import annotations

import sys
from collections import deque
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Counts = dict[str, Any]
Rows = list[dict[str, Any]]


class Story(Protocol):
    """Somebody who is told what happens."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, line: str, *, loud: bool = False) -> None: ...
    def worker_died(self, name: str) -> None: ...
    def show(self, counts: Counts, submitted: int, workers: Rows, running: Rows, seconds: float) -> None: ...
    def ledger(self, ledger: dict[str, Any], *, balances: bool) -> None: ...


class Silent:
    """Says nothing: the ledger alone speaks."""

    def __enter__(self) -> object:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, line: str, *, loud: bool = False) -> None:
        pass

    def worker_died(self, name: str) -> None:
        pass

    def show(self, counts: Counts, submitted: int, workers: Rows, running: Rows, seconds: float) -> None:
        pass

    def ledger(self, ledger: dict[str, Any], *, balances: bool) -> None:
        pass


class Plain(Silent):
    """One line per event on stderr, and one on how far it is every few seconds."""

    def __init__(self) -> None:
        self._said_at = 0.0

    def say(self, line: str, *, loud: bool = False) -> None:
        sys.stderr.write(f"{line}\n")

    def show(self, counts: Counts, submitted: int, workers: Rows, running: Rows, seconds: float) -> None:
        if submitted and seconds - self._said_at >= 2:
            self._said_at = seconds
            ended = counts["done"] + counts["failed"]
            self.say(f"{seconds:5.1f} s  {ended:,} of {submitted:,} ended, {len(running)} running")

    def ledger(self, ledger: dict[str, Any], *, balances: bool) -> None:
        Console().print(_ledger_table(ledger, balances))


class Terminal(Silent):
    """A live picture: how far the work is, what the workers do, what has happened."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=12)
        self._events: deque[Text] = deque(maxlen=8)
        self._dead: set[str] = set()

    def __enter__(self) -> object:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, line: str, *, loud: bool = False) -> None:
        self._events.append(Text(f"{'▶' if loud else '·'} {line}", style="bold red" if loud else ""))

    def worker_died(self, name: str) -> None:
        self._dead.add(name)

    def show(self, counts: Counts, submitted: int, workers: Rows, running: Rows, seconds: float) -> None:
        self._live.update(
            Panel(
                Group(self._progress(counts, submitted, seconds), self._workers(workers, running), *self._events),
                title="Tenuto: nothing lost, nothing doubled",
                border_style="cyan",
            )
        )

    def ledger(self, ledger: dict[str, Any], *, balances: bool) -> None:
        self._console.print(_ledger_table(ledger, balances))
        self._console.print("Next: [bold]docs/tutorial.md[/] · [bold].venv/bin/tenuto --help[/]")

    def _progress(self, counts: Counts, submitted: int, seconds: float) -> Table:
        ended = counts["done"] + counts["failed"]
        table = Table.grid(padding=(0, 2))
        table.add_row(
            ProgressBar(total=max(submitted, 1), completed=ended, width=40),
            f"{ended:,} / {submitted:,}",
            f"[cyan]✓ {counts['done']:,} done[/]",
            f"[red]✕ {counts['failed']} failed[/]",
            f"[yellow]↻ {counts['attempts'] - ended} tried again[/]",
            f"{seconds:.0f} s",
        )
        return table

    def _workers(self, workers: Rows, running: Rows) -> Table:
        table = Table.grid(padding=(0, 2))
        for worker in sorted(workers, key=lambda row: str(row["name"])):
            mine = [task for task in running if task["worker_id"] == worker["id"]]
            if worker["name"] in self._dead:
                state = Text("✕ killed; its leases run out, then others take over", style="red")
            else:
                state = Text(f"◐ {len(mine)} running" if mine else "○ idle", style="green" if mine else "dim")
            shown = [task["progress"]["message"] for task in mine if task["progress"]][:2]
            table.add_row(str(worker["name"]), f"pid {worker['pid']}", state, Text("  ".join(shown), style="dim"))
        return table


def _ledger_table(ledger: dict[str, Any], balances: bool) -> Table:
    verdict = "[bold green]balances[/]" if balances else "[bold red]does NOT balance[/]"
    table = Table(title=f"The ledger {verdict}", title_justify="left", show_header=False)
    table.add_column(justify="right")
    table.add_column()
    words = {
        "submitted": "tasks submitted",
        "done": "done",
        "failed": "failed for good, as they were meant to",
        "open": "left open",
        "lost": "lost",
        "doubled": "done twice",
        "retries": "attempts that were tried again",
        "killed_workers": "worker killed with kill -9",
        "taken_back": "of its tasks taken back and done by others",
        "seconds": "seconds",
    }
    for key, meaning in words.items():
        value = ledger[key]
        table.add_row(f"{value:,}" if isinstance(value, int) else str(value), meaning)
    return table
