"""Progress of a batch: bar, counts, rate and time left; drawn live on a terminal, printed line by line into a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from rich.console import Group
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session
from tenuto.cli.formatting import format_duration, one_line, safe_text
from tenuto.cli.output import Record, record_heading, state_colour, state_symbol
from tenuto.cli.work.live_view import LiveView, watch
from tenuto.clock import SystemClock
from tenuto.errors import Conflict, NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

_POLL_SECONDS = 0.3
_ITEMS_PER_POLL_SECOND = 100_000
_MIN_PRINTED_SHARE = 0.05
"""In a pipe: the share of the items that must finish before the next line."""


def progress_bar(batch: Record, width: int) -> Text:
    """Draw a bar of the given width; every state that occurs has at least one cell."""
    parts = [
        (batch["done"], "━", "green"),
        (batch["failed"], "━", "red"),
        (batch["cancelled"], "━", "magenta"),
        (batch["running"], "━", "yellow"),
        (batch["left"] - batch["running"], "╌", "dim"),
    ]
    total = sum(count for count, _, _ in parts)
    if not total:
        return Text("╌" * width, style="dim")
    cells = [max(round(count / total * width), 1) if count else 0 for count, _, _ in parts]
    while sum(cells) != width:
        largest = max(range(len(cells)), key=lambda place: cells[place])
        cells[largest] += 1 if sum(cells) < width else -1
    bar = Text()
    for size, (_, character, style) in zip(cells, parts, strict=True):
        bar.append(character * size, style=style)
    return bar


def finished_share(batch: Record) -> float:
    """Return the finished share of the items, from 0 to 1."""
    finished = batch["done"] + batch["failed"] + batch["cancelled"]
    total = finished + batch["left"]
    return finished / total if total else float(batch["complete_at"] is not None)


def count_summary(batch: Record) -> Text:
    """Return the number of items by state."""
    waiting = batch["left"] - batch["running"]
    retrying = batch["open"].get("scheduled", 0)
    counts = [
        ("completed", batch["done"], "done"),
        ("failed", batch["failed"], "failed"),
        ("cancelled", batch["cancelled"], "cancelled"),
        ("running", batch["running"], "running"),
        ("queued", waiting, "waiting" + (f" ({retrying:,} to be retried)" if retrying else "")),
    ]
    summary = Text()
    for state, count, label in counts:
        if count or state == "completed":
            text = f"{state_symbol(state)} {count:,} {label}"
            summary.append(("  " if summary else "") + text, style=state_colour(state))
    return summary


def rate_summary(batch: Record) -> str:
    """Return the rate and the time left, or the total duration."""
    if batch["state"] == "paused":
        return f"paused by {batch['paused_by']}"
    if batch["state"] == "filling":
        return f"{batch['total']:,} items so far; submission not complete"
    if not batch["left"]:
        if batch["ended_at"] is None:
            return ""
        duration = batch["ended_at"] - batch["created_at"]
        return f"took {format_duration(duration)}, {_rate(batch['total'] / max(duration.total_seconds(), 0.001))}"
    if batch["seconds_left"] is None:
        return "no item finished in the last seconds"
    time_left = format_duration(float(max(round(batch["seconds_left"]), 1))).replace(".0 s", " s")
    return f"{_rate(batch['rate'])}, about {time_left} left"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def render_batch(batch: Record, width: int) -> RenderableType:
    """Draw a batch in four lines, and below them the reasons if nothing runs."""
    state = batch["state"]
    if state == "ended":
        state = "some_failed" if batch["failed"] else "completed"
    name = f"  {one_line(batch['name'], 40)}" if batch["name"] else ""
    percent = f" {finished_share(batch) * 100:3.0f} %"
    return Group(
        record_heading(state, batch["external_id"], batch["id"], name),
        Text.assemble(progress_bar(batch, max(min(width, 100) - len(percent), 10)), percent),
        count_summary(batch),
        Text(safe_text(rate_summary(batch)), style="dim"),
        *(Text(f"  {safe_text(reason)}", style="yellow") for reason in batch.get("why", [])),
    )


# --- watch ----------------------------------------------------------------------------------------------------------


class BatchView(LiveView):
    """A batch while it is watched."""

    async def load(self) -> Record:
        return await self.app.batches.get(self.id)

    async def wait(self) -> Record:
        return await self.app.batches.wait(self.id)

    async def explain(self) -> list[str]:
        """Return the reasons of one queued item."""
        async for item in self.app.batches.items(self.id, status="queued"):
            try:
                return [reason.text for reason in (await self.app.why(item["task_id"])).reasons]
            except NotFound:  # it ended between the two queries
                break
        return []

    def is_over(self, snapshot: Record) -> bool:
        return snapshot["complete_at"] is not None and not snapshot["left"]

    def is_idle(self, snapshot: Record) -> bool:
        return not (snapshot["running"] or snapshot["rate"]) and snapshot["state"] == "in_progress"

    def poll_delay_seconds(self, snapshot: Record) -> float:
        return float(max(_POLL_SECONDS, snapshot["total"] / _ITEMS_PER_POLL_SECOND))

    def draw(self, snapshot: Record, width: int, height: int) -> RenderableType:
        return render_batch(snapshot, width)

    def changes(self, printed: Record | None, current: Record) -> list[str]:
        share = finished_share(current)
        if (
            printed is not None
            and printed["state"] == current["state"]
            and (printed.get("why") or not current.get("why"))
            and share < finished_share(printed) + _MIN_PRINTED_SHARE
            and not self.is_over(current)
        ):
            return []
        time = SystemClock().now().astimezone().strftime("%H:%M:%S")
        state = f"{current['state'].replace('_', ' ')} {share * 100:.0f} %"
        line = f"{time} {state}  {count_summary(current).plain}  {rate_summary(current)}".rstrip()
        return [line, *(f"  {reason}" for reason in current.get("why", []))]

    def timeout_error(self, timeout: float) -> Conflict:
        return Conflict(
            f"batch {self.id} has not ended after {timeout:g} s",
            code="batch.wait.timeout",
            remedy=f"continue to watch it: tenuto batch watch {self.id}",
        )


async def watch_batch(session: Session, id: UUID, timeout: float | None = None) -> int:
    """Watch a batch until all its items have ended and return the exit code."""
    ended = await watch(session, BatchView(session.app, id), timeout)
    if ended["failed"]:
        session.print_message(f"show the failures: tenuto dead-letter list --group --batch {id}")
        session.print_message(f"retry them:        tenuto batch retry-failed {id}")
    return exit_codes.FAILED if ended["failed"] or ended["cancelled"] else exit_codes.OK
