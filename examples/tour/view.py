"""How the tour is shown: pictures drawn in place in a terminal, plain lines elsewhere, nothing at all for machines.

No line is longer than 80 columns, every state is a sign and a word besides its colour, and what has been shown stays
to be read: a scene leaves its last picture where it was.
"""

from __future__ import annotations

import textwrap
from types import TracebackType
from typing import IO, Any, Protocol

from examples.tour.ledger import Ledger
from examples.tour.pictures import Picture
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

WIDTH = 80
_MARGIN = 2

_WORDS = {
    "submitted": "asked for: steps, jobs, batch items, retries",
    "done": "done",
    "failed": "failed for good (the bill without an address)",
    "open": "still open",
    "lost": "lost",
    "doubled": "recorded twice",
    "retries": "attempts that failed or were lost, and were made again",
    "killed_workers": "worker killed with kill -9",
    "taken_back": "tasks taken back and done by others",
    "database_restarts": "restart of the database under load",
    "seconds": "seconds for all of it",
}


class Story(Protocol):
    """Somebody who is told what happens."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def has_readers(self) -> bool: ...
    def scene(self, title: str, words: str) -> None: ...
    def tell(self, line: str, *, loud: bool = False) -> None: ...
    def show(self, picture: Picture) -> None: ...
    def let_stand(self) -> None: ...
    def outcome(self, line: str) -> None: ...
    def ledger(self, ledger: Ledger) -> None: ...


class Silent:
    """Says nothing: the ledger alone speaks."""

    has_readers = False

    def __enter__(self) -> object:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def scene(self, title: str, words: str) -> None:
        pass

    def tell(self, line: str, *, loud: bool = False) -> None:
        pass

    def show(self, picture: Picture) -> None:
        pass

    def let_stand(self) -> None:
        pass

    def outcome(self, line: str) -> None:
        pass

    def ledger(self, ledger: Ledger) -> None:
        pass


class Plain(Silent):
    """A line for whatever happens: for pipes, files and terminals that cannot draw."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._last: Any = None

    def scene(self, title: str, words: str) -> None:
        self._last = None
        self._write("")
        self._write(title)
        self._write(words, indent=_MARGIN)

    def tell(self, line: str, *, loud: bool = False) -> None:
        self._write(("! " if loud else "  ") + line, hang=4 if loud else 2)

    def show(self, picture: Picture) -> None:
        news = picture.news(self._last)
        for line in news:
            self._write(line, indent=4, hang=6)
        # Pictures that tell of a step forward are compared with the one that was told last.
        if news or self._last is None:
            self._last = picture

    def let_stand(self) -> None:
        self._last = None

    def outcome(self, line: str) -> None:
        self._write(f"= {line}", hang=2)

    def ledger(self, ledger: Ledger) -> None:
        self._write("")
        for line in ledger_lines(ledger):
            self._write(line, indent=_MARGIN)
        self._write("")
        self._write(verdict(ledger))

    def _write(self, line: str, *, indent: int = 0, hang: int | None = None) -> None:
        after = " " * (indent if hang is None else hang)
        wrapped = textwrap.wrap(line, WIDTH, initial_indent=" " * indent, subsequent_indent=after) or [""]
        self._out.write("\n".join(wrapped) + "\n")
        self._out.flush()


class Terminal(Silent):
    """Scenes one below the other; within a scene one picture, drawn over itself when something has changed."""

    has_readers = True

    def __init__(self, console: Console) -> None:
        console.width = min(console.width, WIDTH)
        self._console = console
        self._live: Live | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_stand()

    def scene(self, title: str, words: str) -> None:
        self.let_stand()
        self._console.print()
        self._console.print(Text(title, style="bold cyan"))
        for line in textwrap.wrap(words, self._console.width - _MARGIN):
            self._console.print(Text("  " + line))

    def tell(self, line: str, *, loud: bool = False) -> None:
        sign, style = ("▶ ", "bold red") if loud else ("· ", "")
        for number, part in enumerate(textwrap.wrap(line, self._console.width - _MARGIN)):
            self._console.print(Text((sign if number == 0 else "  ") + part, style=style))

    def show(self, picture: Picture) -> None:
        if self._live is None:
            # Drawn by hand, once a look, and never higher than the screen: nothing flickers.
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(picture.drawn(self._console.width, self._console.height - 4), refresh=True)

    def outcome(self, line: str) -> None:
        self.let_stand()
        for number, part in enumerate(textwrap.wrap(line, self._console.width - _MARGIN)):
            self._console.print(Text(("✓ " if number == 0 else "  ") + part, style="bold green"))

    def ledger(self, ledger: Ledger) -> None:
        self.let_stand()
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="bold")
        table.add_column()
        for key, meaning in _WORDS.items():
            table.add_row(_figure(ledger, key), meaning)
        style = "bold green" if ledger.balances else "bold red"
        self._console.print(table)
        self._console.print()
        self._console.print(Text(verdict(ledger), style=style))
        self._console.print(f"[dim]Next: {escape('docs/tutorial.md, and .venv/bin/tenuto --help')}[/]")

    def let_stand(self) -> None:
        """Leave the picture as it is: the next one is drawn below it."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def ledger_lines(ledger: Ledger) -> list[str]:
    return [f"{_figure(ledger, key):>7}  {meaning}" for key, meaning in _WORDS.items()]


def verdict(ledger: Ledger) -> str:
    if ledger.balances:
        return f"The ledger balances: {ledger.done:,} + {ledger.failed} = {ledger.submitted:,}. Lost 0, doubled 0."
    return "The ledger does NOT balance. That is a defect of Tenuto: please report it."


def _figure(ledger: Ledger, key: str) -> str:
    value = getattr(ledger, key)
    return f"{value:,}" if isinstance(value, int) else str(value)
