"""``tenuto status``: print what is running and waiting, and what needs attention."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from tenuto.cli.command import Session, command
from tenuto.cli.output import print_json
from tenuto.cli.tables import name_value_table, print_rich, render_table, section_title, styled_state
from tenuto.operations.overview import Overview
from tenuto.presentation.columns import json_value
from tenuto.presentation.overview_views import NEXT_RUNS, QUEUE_LOAD, describe_attention
from tenuto.presentation.text_formats import format_duration, safe_text


@command(None, "status", "", "-o json | jq .waiting_count")
async def show_status(session: Session) -> None:
    """Show what is running and waiting, and what needs attention.

    These need attention: dead letters, failed executions without a later success, paused objects, what stops enabled
    schedules and manifests, dead processes, queues and jobs without a worker, and repairs of the last day. `tenuto
    doctor --problems` shows the same, and checks the stored data besides.
    """
    overview = await session.app.reports.overview()
    if session.as_json:
        print_json(json_value(overview))
        return
    print_rich(*_attention(overview), "", name_value_table(*_figures(overview)), *_tables(overview))


def _attention(overview: Overview) -> list[RenderableType]:
    if not overview.attention:
        return [styled_state("ok", "nothing needs attention")]
    lines: list[RenderableType] = [Text(f"Needs attention ({len(overview.attention)})", style="bold")]
    for each, text in zip(overview.attention, describe_attention(overview), strict=True):
        lines.append(Text.assemble("  ", styled_state(each.severity, ""), safe_text(text)))
        if each.command is not None:
            lines.append(Text(f"      {safe_text(each.command)}", style="dim"))
    return lines


def _figures(overview: Overview) -> list[tuple[str, str]]:
    oldest = "" if overview.oldest_due_at is None else format_duration(overview.read_at - overview.oldest_due_at)
    return [
        ("running", f"{overview.running_count:,}"),
        ("waiting", f"{overview.waiting_count:,}"),
        ("oldest wait", oldest),
        ("finished per minute", f"{overview.finished_per_minute:,.0f}"),
        ("failed in the last hour", f"{overview.failed_last_hour_count:,}"),
        ("open dead letters", f"{overview.open_dead_letter_count:,}"),
    ]


def _tables(overview: Overview) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if overview.queues:
        parts += [*section_title("Queues"), render_table(QUEUE_LOAD, overview.queues, overview.read_at)]
    if overview.next_runs:
        parts += [*section_title("Next runs"), render_table(NEXT_RUNS, overview.next_runs, overview.read_at)]
    return parts
