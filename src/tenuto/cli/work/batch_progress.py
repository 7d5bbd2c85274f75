"""A batch drawn: a bar of what is done, failed, running and waiting, with rate and time left; live, or line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tenuto.cli import exit_codes
from tenuto.cli.command import Session
from tenuto.cli.formatting import one_line, plain, span

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import Console, RenderableType
    from rich.text import Text

    from tenuto.app import Tenuto

Record = dict[str, Any]
_LOOK_EVERY = 0.3
_ITEMS_A_SECOND = 100_000
"""A batch of very many items is looked at less often, so that watching does not become work."""
_PATIENCE = 6
"""So many looks at which nothing runs, and the reason is asked for."""
_STEP = 0.05
"""Line by line: so much more must be done before it is told again."""


def bar(found: Record, width: int) -> Text:
    """One cell for each part of the whole; what there is any of has a cell at least."""
    from rich.text import Text

    parts = [
        (found["done"], "━", "green"),
        (found["failed"], "━", "red"),
        (found["cancelled"], "━", "magenta"),
        (found["running"], "━", "yellow"),
        (found["left"] - found["running"], "╌", "dim"),
    ]
    whole = sum(count for count, _, _ in parts)
    if not whole:
        return Text("╌" * width, style="dim")
    cells = [max(round(count / whole * width), 1) if count else 0 for count, _, _ in parts]
    while sum(cells) != width:
        most = max(range(len(cells)), key=lambda place: cells[place])
        cells[most] += 1 if sum(cells) < width else -1
    drawn = Text()
    for size, (_, sign, style) in zip(cells, parts, strict=True):
        drawn.append(sign * size, style=style)
    return drawn


def share(found: Record) -> float:
    """How much of it has come to its end, from 0 to 1."""
    over = found["done"] + found["failed"] + found["cancelled"]
    whole = over + found["left"]
    return over / whole if whole else float(found["complete_at"] is not None)


def counts(found: Record) -> Text:
    """What has become of its items."""
    from rich.text import Text

    from tenuto.cli.output import colour_of, glyph

    waiting = found["left"] - found["running"]
    later = found["open"].get("scheduled", 0)
    words = [
        ("completed", f"{found['done']:,} done"),
        ("failed", f"{found['failed']:,} failed"),
        ("cancelled", f"{found['cancelled']:,} cancelled"),
        ("running", f"{found['running']:,} running"),
        ("queued", f"{waiting:,} waiting" + (f" ({later:,} to be tried again)" if later else "")),
    ]
    numbers = (found["done"], found["failed"], found["cancelled"], found["running"], waiting)
    told = Text()
    for (state, text), number in zip(words, numbers, strict=True):
        if number or state == "completed":
            told.append(("  " if told else "") + f"{glyph(state)} {text}", style=colour_of(state))
    return told


def pace(found: Record) -> str:
    """How fast it goes, and how long it will take."""
    if found["state"] == "paused":
        return f"paused by {found['paused_by']}"
    if found["state"] == "filling":
        return f"{found['total']:,} items so far; more are being taken in"
    if not found["left"]:
        took = found["ended_at"] - found["created_at"] if found["ended_at"] else None
        return "" if took is None else f"took {span(took)}, {_speed(found['total'] / max(took.total_seconds(), 0.001))}"
    if found["seconds_left"] is None:
        return "nothing has ended in the last seconds"
    return (
        f"{_speed(found['rate'])}, about {span(float(max(round(found['seconds_left']), 1))).replace('.0 s', ' s')} left"
    )


def _speed(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def heading(found: Record) -> Text:
    """Its state, what it is of, its name and id."""
    from rich.text import Text

    from tenuto.cli.output import state

    word = "completed" if found["state"] == "ended" and not found["failed"] else found["state"]
    if found["state"] == "ended" and found["failed"]:
        word = "some_failed"
    named = f"  {one_line(found['name'], 40)}" if found["name"] else ""
    return Text.assemble(
        state(word), "  ", (plain(found["external_id"]), "bold"), named, "  ", (str(found["id"]), "dim")
    )


def drawn(found: Record, width: int) -> RenderableType:
    """A batch as a picture of four lines."""
    from rich.console import Group
    from rich.text import Text

    percent = f" {share(found) * 100:3.0f} %"
    lines: list[RenderableType] = [
        heading(found),
        Text.assemble(bar(found, max(min(width, 100) - len(percent), 10)), percent),
        counts(found),
        Text(plain(pace(found)), style="dim"),
    ]
    lines += [Text(f"  {plain(words)}", style="yellow") for words in found.get("why", [])]
    return Group(*lines)


# --- following ------------------------------------------------------------------------------------------------------


async def follow(session: Session, id: UUID, timeout: float | None = None) -> int:
    """Draw a batch until all its items have ended; its exit code."""
    import asyncio

    from tenuto.cli.output import console_for_live, show_json

    app = session.app
    try:
        async with asyncio.timeout(timeout):
            if session.as_json:
                ended = await app.batches.wait(id)
            elif (console := console_for_live()) is not None:
                ended = await _live(app, id, console)
            else:
                ended = await _line_by_line(app, id)
    except TimeoutError:
        from tenuto.errors import Conflict

        raise Conflict(
            f"batch {id} has not ended after {timeout:g} s", remedy=f"go on watching: tenuto batch watch {id}"
        ) from None
    if session.as_json:
        show_json(ended)
    if ended["failed"]:
        session.say(f"see why:      tenuto dead-letter list --group --batch {id}")
        session.say(f"run it again: tenuto batch retry-failed {id}")
    return exit_codes.FAILED if ended["failed"] or ended["cancelled"] else exit_codes.OK


async def _live(app: Tenuto, id: UUID, console: Console) -> Record:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for look in _looks(app, id):
            live.update(drawn(look, console.width), refresh=True)
    return look


async def _line_by_line(app: Tenuto, id: UUID) -> Record:
    from tenuto.cli.output import show_text

    told: tuple[str, float, int] | None = None
    async for look in _looks(app, id):
        now = (look["state"], share(look), look["failed"])
        if told is None or now[0] != told[0] or now[1] >= told[1] + _STEP or _is_over(look):
            state = f"{look['state'].replace('_', ' ')} {now[1] * 100:.0f} %"
            show_text(f"{clock()} {state}  {counts(look).plain}  {pace(look)}".rstrip())
            for words in look.get("why", []):
                show_text(f"  {words}")
            told = now
    return look


def clock() -> str:
    """The time on the wall."""
    from tenuto.clock import SystemClock

    return SystemClock().now().astimezone().strftime("%H:%M:%S")


async def _looks(app: Tenuto, id: UUID) -> AsyncIterator[Record]:
    """The batch again and again until it is over; with the reason, if for a while nothing of it has run."""
    import asyncio

    idle = 0
    while True:
        look = await app.batches.get(id)
        busy = look["running"] or look["rate"] or look["state"] != "in_progress"
        idle = 0 if busy else idle + 1
        if idle >= _PATIENCE:
            look["why"] = await _why(app, id)
        yield look
        if _is_over(look):
            return
        await asyncio.sleep(max(_LOOK_EVERY, look["total"] / _ITEMS_A_SECOND))


async def _why(app: Tenuto, id: UUID) -> list[str]:
    from tenuto.errors import NotFound

    async for item in app.batches.items(id, status="queued"):
        try:
            return [reason.words for reason in (await app.why(item["task_id"])).reasons]
        except NotFound:  # it has ended between the two looks
            break
    return []


def _is_over(look: Record) -> bool:
    return look["complete_at"] is not None and not look["left"]
