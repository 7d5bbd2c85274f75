"""Live views: poll an object until it ends, redraw it on a terminal or print its changes into a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from rich.console import RenderableType
from rich.live import Live

from tenuto.cli.command import Session
from tenuto.cli.output import print_json, print_text
from tenuto.cli.tables import live_console
from tenuto.errors import Conflict

_IDLE_POLLS_BEFORE_EXPLANATION = 5


class LiveView(Protocol):
    """The state of an object at one moment."""

    @property
    def record(self) -> Any: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def is_idle(self) -> bool:
        """Whether work is left and nothing of it runs."""

    def render(self, width: int, height: int) -> RenderableType: ...

    def changed_lines(self, before: Any) -> list[str]:
        """Return the lines to print, given the last view of which lines were printed."""


async def watch(
    session: Session,
    noun: str,
    id: UUID,
    *,
    make_view: Callable[[Any, Sequence[str]], LiveView],
    operations: Any,
    explain: Callable[[], Awaitable[Sequence[str]]],
    poll_seconds: Callable[[Any], float],
    timeout: float | None,
    waited_seconds: float = 0.0,
) -> Any:
    """Follow an object until it ends and return its final record; with JSON output, print only that record.

    ``operations`` loads the record and waits for its end. ``make_view`` makes the view of a record and of the reasons
    from ``explain`` why nothing runs. ``poll_seconds`` grows with the record, which bounds the cost of watching.
    """

    async def poll() -> AsyncIterator[LiveView]:
        idle_polls = 0
        while True:
            record = await operations.get(id)
            view = make_view(record, ())
            idle_polls = idle_polls + 1 if view.is_idle else 0
            if idle_polls >= _IDLE_POLLS_BEFORE_EXPLANATION:
                view = make_view(record, await explain())
            yield view
            if view.is_over:
                return
            await asyncio.sleep(poll_seconds(record))

    try:
        async with asyncio.timeout(None if timeout is None else timeout - waited_seconds):
            ended = await (operations.wait(id) if session.as_json else _show_until_over(poll()))
    except TimeoutError:
        problem, remedy = f"{noun} {id} has not ended after {timeout:g} s", f"continue: tenuto {noun} watch {id}"
        raise Conflict(problem, code=f"{noun}.wait.timeout", remedy=remedy) from None
    if session.as_json:
        print_json(ended)
    return ended


async def _show_until_over(polled: AsyncIterator[LiveView]) -> Any:
    console = live_console()
    if console is None:
        printed: LiveView | None = None
        async for view in polled:
            if lines := view.changed_lines(printed):
                print_text("\n".join(lines))
                printed = view
        return view.record
    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for view in polled:
            # The last drawing stays on the screen at full height; the ones before must fit.
            live.vertical_overflow = "visible" if view.is_over else "ellipsis"
            live.update(view.render(console.width, console.height), refresh=True)
    return view.record
