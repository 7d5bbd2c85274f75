"""Presenters of the tour: live views in a terminal, plain lines elsewhere, nothing with JSON output.

Lines have at most 80 columns. Every state has a symbol and a text besides its colour. The last view of a scene stays
visible.
"""

from __future__ import annotations

import textwrap
from types import TracebackType
from typing import IO, Any, Protocol

from examples.tour.ledger import Ledger
from examples.tour.live_views import LiveView
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

WIDTH = 80
_INDENT = 2

_LEDGER_LABELS = {
    "submitted": "submitted: steps, jobs, batch items, retries",
    "done": "done",
    "failed": "failed permanently (the bill without an address)",
    "open": "still open",
    "lost": "lost",
    "doubled": "recorded twice",
    "retries": "attempts that failed or were lost, and were retried",
    "killed_workers": "worker killed with kill -9",
    "taken_back": "tasks recovered and done by other workers",
    "database_restarts": "restart of the database under load",
    "seconds": "seconds in total",
}


class Presenter(Protocol):
    """Shows the events of the tour."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def has_readers(self) -> bool: ...
    def scene(self, title: str, text: str) -> None: ...
    def message(self, line: str, *, is_alert: bool = False) -> None: ...
    def link(self, label: str, address: str) -> None: ...
    def show(self, view: LiveView) -> None: ...
    def finish_view(self) -> None: ...
    def outcome(self, line: str) -> None: ...
    def ledger(self, ledger: Ledger) -> None: ...


class SilentPresenter:
    """Shows nothing; the caller prints the ledger."""

    has_readers = False

    def __enter__(self) -> object:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def scene(self, title: str, text: str) -> None:
        pass

    def message(self, line: str, *, is_alert: bool = False) -> None:
        pass

    def link(self, label: str, address: str) -> None:
        pass

    def show(self, view: LiveView) -> None:
        pass

    def finish_view(self) -> None:
        pass

    def outcome(self, line: str) -> None:
        pass

    def ledger(self, ledger: Ledger) -> None:
        pass


class PlainPresenter(SilentPresenter):
    """Prints a line per event, for pipes, files and simple terminals."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._last: Any = None

    def scene(self, title: str, text: str) -> None:
        self._last = None
        self._write("")
        self._write(title)
        self._write(text, indent=_INDENT)

    def message(self, line: str, *, is_alert: bool = False) -> None:
        self._write(("! " if is_alert else "  ") + line, hang=4 if is_alert else 2)

    def link(self, label: str, address: str) -> None:
        self._write(f"  {label}:")
        self._out.write(f"    {address}\n")  # in one line, however long: it is copied
        self._out.flush()

    def show(self, view: LiveView) -> None:
        lines = view.changed_lines(self._last)
        for line in lines:
            self._write(line, indent=4, hang=6)
        # The next view is compared with the last one that produced lines.
        if lines or self._last is None:
            self._last = view

    def finish_view(self) -> None:
        self._last = None

    def outcome(self, line: str) -> None:
        self._write(f"= {line}", hang=2)

    def ledger(self, ledger: Ledger) -> None:
        self._write("")
        for line in ledger_lines(ledger):
            self._write(line, indent=_INDENT)
        self._write("")
        self._write(verdict(ledger))

    def _write(self, line: str, *, indent: int = 0, hang: int | None = None) -> None:
        after = " " * (indent if hang is None else hang)
        wrapped = textwrap.wrap(line, WIDTH, initial_indent=" " * indent, subsequent_indent=after) or [""]
        self._out.write("\n".join(wrapped) + "\n")
        self._out.flush()


class TerminalPresenter(SilentPresenter):
    """Prints scenes one below the other, each with a live view that is updated in place."""

    has_readers = True

    def __init__(self, console: Console) -> None:
        console.width = min(console.width, WIDTH)
        self._console = console
        self._live: Live | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish_view()

    def scene(self, title: str, text: str) -> None:
        self.finish_view()
        self._console.print()
        self._console.print(Text(title, style="bold cyan"))
        for line in textwrap.wrap(text, self._console.width - _INDENT):
            self._console.print(Text("  " + line))

    def message(self, line: str, *, is_alert: bool = False) -> None:
        symbol, style = ("▶ ", "bold red") if is_alert else ("· ", "")
        for number, part in enumerate(textwrap.wrap(line, self._console.width - _INDENT)):
            self._console.print(Text((symbol if number == 0 else "  ") + part, style=style))

    def link(self, label: str, address: str) -> None:
        self._console.print(Text(f"· {label}:"))
        self._console.print(Text(f"  {address}", style="underline"), soft_wrap=True)

    def show(self, view: LiveView) -> None:
        if self._live is None:
            # Refreshed explicitly and never higher than the screen, so that it does not flicker.
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(view.render(self._console.width, self._console.height - 4), refresh=True)

    def outcome(self, line: str) -> None:
        self.finish_view()
        for number, part in enumerate(textwrap.wrap(line, self._console.width - _INDENT)):
            self._console.print(Text(("✓ " if number == 0 else "  ") + part, style="bold green"))

    def ledger(self, ledger: Ledger) -> None:
        self.finish_view()
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="bold")
        table.add_column()
        for key, meaning in _LEDGER_LABELS.items():
            table.add_row(_figure(ledger, key), meaning)
        style = "bold green" if ledger.balances else "bold red"
        self._console.print(table)
        self._console.print()
        self._console.print(Text(verdict(ledger), style=style))
        self._console.print(f"[dim]Next: {escape('docs/tutorial.md, and .venv/bin/tenuto --help')}[/]")

    def finish_view(self) -> None:
        """Leave the view on the screen; the next one is drawn below it."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def ledger_lines(ledger: Ledger) -> list[str]:
    return [f"{_figure(ledger, key):>7}  {meaning}" for key, meaning in _LEDGER_LABELS.items()]


def verdict(ledger: Ledger) -> str:
    if ledger.balances:
        return f"The ledger balances: {ledger.done:,} + {ledger.failed} = {ledger.submitted:,}. Lost 0, doubled 0."
    return "The ledger does NOT balance. This is a defect of Tenuto; please report it."


def _figure(ledger: Ledger, key: str) -> str:
    value = getattr(ledger, key)
    return f"{value:,}" if isinstance(value, int) else str(value)
