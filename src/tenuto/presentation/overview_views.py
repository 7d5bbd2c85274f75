"""Views of the overview: queues with their load, next runs, and sentences for what needs attention."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from tenuto.operations.overview import Overview
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.text_formats import format_duration, format_relative, one_line


def _empty_in(queue: Any, _: datetime) -> str | None:
    if queue.paused_at is not None:
        return "paused"
    return None if queue.empty_in_seconds is None else format_duration(queue.empty_in_seconds)


def _read_total(value: str | Callable[[Any], Any], series: Any) -> Any:
    """Return a figure of all attempts of a series."""
    return value(series.total) if callable(value) else getattr(series.total, value)


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

_OUTCOMES = (
    Column("completed", "completed_count", "count"),
    Column("warning", "warning_count", "count", drop=2),
    Column("failed", lambda figures: figures.failed_count + figures.error_count, "count"),
    Column("cancelled", "cancelled_count", "count", drop=2),
    Column("wait p50", "wait_p50_seconds", "duration", drop=3),
    Column("wait p95", "wait_p95_seconds", "duration", drop=1),
    Column("run p50", "run_p50_seconds", "duration", drop=3),
    Column("run p95", "run_p95_seconds", "duration", drop=1),
)
SERIES_POINTS = ResourceView("ended attempts", (Column("from", "at", "instant"), *_OUTCOMES), next_page={})
SERIES = ResourceView(
    "ended attempts",
    (
        Column("attempts of", lambda series: series.label or "all", flexible=True),
        *(Column(each.name, partial(_read_total, each.value), each.format, drop=each.drop) for each in _OUTCOMES),
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
