"""Live views: poll an execution or a batch until it ends, draw it on a terminal or print its changes into a pipe."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from rich.live import Live

from tenuto.cli.output import Record, live_console, print_json, print_text
from tenuto.errors import Conflict

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import RenderableType

    from tenuto.app import Tenuto
    from tenuto.cli.command import Session

_IDLE_POLLS_BEFORE_EXPLANATION = 5


class LiveView(ABC):
    """An object to watch. A snapshot is its record, with reasons under ``why`` if it is idle."""

    noun: str
    poll_seconds: float
    size_field: str
    polled_per_second: int
    """The time between polls grows with the size, which bounds the cost of watching."""

    def __init__(self, app: Tenuto, operations: Any, id: UUID) -> None:
        self.app, self.operations, self.id = app, operations, id

    @abstractmethod
    async def explain(self) -> list[str]:
        """Return the reasons why nothing runs."""

    @abstractmethod
    def is_over(self, snapshot: Record) -> bool: ...

    @abstractmethod
    def is_idle(self, snapshot: Record) -> bool:
        """Whether work is left and nothing of it runs."""

    @abstractmethod
    def draw(self, snapshot: Record, width: int, height: int) -> RenderableType: ...

    @abstractmethod
    def changes(self, printed: Record | None, current: Record) -> list[str]:
        """Return the lines to print, given the last snapshot of which lines were printed."""


async def watch(session: Session, view: LiveView, timeout: float | None, *, waited_seconds: float = 0.0) -> Record:
    """Follow the object until it ends and return its final record; with JSON output, print only that record."""
    try:
        async with asyncio.timeout(None if timeout is None else timeout - waited_seconds):
            ended = await (view.operations.wait(view.id) if session.as_json else _draw_until_over(view))
    except TimeoutError:
        raise Conflict(
            f"{view.noun} {view.id} has not ended after {timeout:g} s",
            code=f"{view.noun}.wait.timeout",
            remedy=f"continue to watch it: tenuto {view.noun} watch {view.id}",
        ) from None
    if session.as_json:
        print_json(ended)
    return ended


async def _draw_until_over(view: LiveView) -> Record:
    console = live_console()
    if console is None:
        printed: Record | None = None
        async for snapshot in _poll(view):
            if lines := view.changes(printed, snapshot):
                for line in lines:
                    print_text(line)
                printed = snapshot
        return snapshot
    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for snapshot in _poll(view):
            # The last drawing stays on the screen at full height; the ones before must fit.
            live.vertical_overflow = "visible" if view.is_over(snapshot) else "ellipsis"
            live.update(view.draw(snapshot, console.width, console.height), refresh=True)
    return snapshot


async def _poll(view: LiveView) -> AsyncIterator[Record]:
    idle_polls = 0
    while True:
        snapshot = await view.operations.get(view.id)
        idle_polls = idle_polls + 1 if view.is_idle(snapshot) else 0
        if idle_polls >= _IDLE_POLLS_BEFORE_EXPLANATION:
            snapshot = {**snapshot, "why": await view.explain()}
        yield snapshot
        if view.is_over(snapshot):
            return
        await asyncio.sleep(max(view.poll_seconds, snapshot[view.size_field] / view.polled_per_second))
