"""Views of the overview: queues with their load, next runs, and sentences for what needs attention."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto.operations.overview import Overview
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.text_formats import format_duration, format_relative, one_line


def _empty_in(queue: Any, _: datetime) -> str | None:
    if queue.paused_at is not None:
        return "paused"
    return None if queue.empty_in_seconds is None else format_duration(queue.empty_in_seconds)


QUEUE_LOAD = ResourceView(
    "queues with tasks or settings",
    (
        Column("queue", "name", flexible=True),
        Column("waiting", "waiting_count", "count"),
        Column(
            "running",
            "running_count",
            "count",
            text=lambda queue, _: f"{queue.running_count:,}" + (f"/{queue.max_running:,}" if queue.max_running else ""),
        ),
        Column("oldest", "oldest_due_at", "age", drop=3),
        Column("in/min", "in_per_minute", "number", text=lambda queue, _: f"{queue.in_per_minute:,.0f}", drop=2),
        Column("out/min", "out_per_minute", "number", text=lambda queue, _: f"{queue.out_per_minute:,.0f}", drop=2),
        Column("empty in", "empty_in_seconds", "duration", text=_empty_in),
        Column("workers", "worker_count", "count", drop=1),
    ),
    next_page={},
)

NEXT_RUNS = ResourceView(
    "runs",
    (
        Column("due", "due_at", "instant"),
        Column("in", "due_at", "age", drop=1),
        Column("kind", "kind", drop=2),
        Column("name", "name", flexible=True),
    ),
    next_page={},
)


def describe_attention(overview: Overview) -> list[str]:
    """Return what needs attention, in sentences with ages."""
    return [
        one_line(each.text, 240) + ("" if each.since is None else f" · {format_relative(each.since, overview.read_at)}")
        for each in overview.attention
    ]
