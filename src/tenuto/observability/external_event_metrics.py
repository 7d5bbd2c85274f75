"""Metrics of events from outside and of approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenuto.extension import LabelledValue, Metric, MetricSource
from tenuto.postgres.database import Connection
from tenuto.store.events import external_events

_MAX_COUNT = 10_000
_WAITS = Metric("tenuto_event_waits", "gauge", "Open waits for events and approvals, at most 10,000.")
_KEPT = Metric("tenuto_events_kept", "gauge", "Events that no task has received, at most 10,000.")
_APPROVALS = Metric("tenuto_approvals_pending", "gauge", "Approvals that wait for a decision, at most 10,000.")
_AGE = Metric("tenuto_approval_age_seconds", "gauge", "Age of the oldest approval that waits for a decision.")
EVENT_METRICS = (_WAITS, _KEPT, _APPROVALS, _AGE)


def event_metrics() -> list[MetricSource]:
    """Return the metrics of the installation."""
    return [MetricSource(EVENT_METRICS, _load)]


async def _load(connection: Connection) -> Mapping[str, Sequence[LabelledValue]]:
    found = await external_events.count_events(connection, _MAX_COUNT)
    return {
        _WAITS.name: [((), found.wait_count)],
        _KEPT.name: [((), found.kept_count)],
        _APPROVALS.name: [((), found.approval_count)],
        _AGE.name: [((), found.approval_age_seconds)],
    }
