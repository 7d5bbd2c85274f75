"""Metrics of the installation by job, schedule and manifest.

The number of series is bounded: names beyond the setting ``metrics_max_names`` share the label ``other``, or have no
figures of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from tenuto.extension import LabelledValue, Metric
from tenuto.observability.process_metrics import OTHER
from tenuto.store.reports.metrics_by_name import (
    MAX_RECENT_EXECUTIONS,
    QUEUED_SAMPLE,
    RECENT_EXECUTIONS_WINDOW,
    FiguresByName,
)

_RECENTLY = f"in the last {RECENT_EXECUTIONS_WINDOW.total_seconds() / 60:.0f} minutes"
_TASKS = Metric(
    "tenuto_job_tasks",
    "gauge",
    f"Running tasks, and due ones among the first {QUEUED_SAMPLE} of each queue, by job or kind of step.",
    ("name", "queue", "state"),
)
_SUCCESS_AGE = Metric(
    "tenuto_schedule_last_success_age_seconds",
    "gauge",
    "Time since the last execution of an enabled schedule completed, among its latest 50.",
    ("schedule",),
)
_LAST_FAILED = Metric(
    "tenuto_schedule_last_run_failed",
    "gauge",
    "1 if the last execution of an enabled schedule that ended has failed.",
    ("schedule",),
)
_LAST_SECONDS = Metric(
    "tenuto_schedule_last_run_seconds", "gauge", "Duration of the last execution that ended.", ("schedule",)
)
_OPEN = Metric(
    "tenuto_schedule_executions_in_progress", "gauge", "Executions in progress of a schedule.", ("schedule",)
)
_ENDED = Metric(
    "tenuto_schedule_recent_executions",
    "gauge",
    f"Executions that ended {_RECENTLY}, among the latest {MAX_RECENT_EXECUTIONS}.",
    ("schedule", "state"),
)
_MANIFEST_AGE = Metric(
    "tenuto_manifest_last_success_age_seconds",
    "gauge",
    "Time since the last success of an enabled manifest.",
    ("manifest",),
)
_LEFT_OUT = Metric(
    "tenuto_definitions_without_metrics",
    "gauge",
    "Enabled schedules and manifests without figures of their own, because more than `metrics_max_names` exist.",
    ("kind",),
)
METRICS_BY_NAME = (_TASKS, _SUCCESS_AGE, _LAST_FAILED, _LAST_SECONDS, _OPEN, _ENDED, _MANIFEST_AGE, _LEFT_OUT)


def metrics_by_name(found: FiguresByName, max_names: int) -> Mapping[Metric, Sequence[LabelledValue]]:
    """Return the values of all metrics by name."""
    schedules = [each.name for each in found.schedules]
    busiest = set(islice(dict.fromkeys((each.name, each.queue) for each in found.tasks), max_names))
    queues = set(islice(dict.fromkeys(each.queue for each in found.tasks), max_names))
    others = [each.name for each in found.open] + [each.name for each in found.ended]
    named = _with_others(schedules, others, max_names)
    return {
        _TASKS: _add_up(
            (
                (each.name if (each.name, each.queue) in busiest else OTHER, _fold(each.queue, queues), each.state),
                each.task_count,
            )
            for each in found.tasks
        ),
        _SUCCESS_AGE: _known(((each.name,), each.last_success_age_seconds) for each in found.schedules),
        _LAST_FAILED: _known(
            ((each.name,), None if each.last_state is None else float(each.last_state == "failed"))
            for each in found.schedules
        ),
        _LAST_SECONDS: _known(((each.name,), each.last_seconds) for each in found.schedules),
        _OPEN: _add_up(((_fold(each.name, named),), each.execution_count) for each in found.open),
        _ENDED: _add_up(((_fold(each.name, named), each.state), each.execution_count) for each in found.ended),
        _MANIFEST_AGE: _known(((each.name,), each.last_success_age_seconds) for each in found.manifests),
        _LEFT_OUT: [
            (("schedule",), found.enabled.schedule_count - len(found.schedules)),
            (("manifest",), found.enabled.manifest_count - len(found.manifests)),
        ],
    }


def _with_others(first: Iterable[str], further: Iterable[str], max_names: int) -> set[str]:
    """Return the first names, completed by others, such as those of disabled schedules, up to the limit."""
    return set(islice(dict.fromkeys((*first, *further)), max_names))


def _fold(name: str, known: set[str]) -> str:
    return name if name in known else OTHER


def _add_up(values: Iterable[tuple[tuple[str, ...], int]]) -> list[LabelledValue]:
    """Return the sum for each combination of labels."""
    sums: Counter[tuple[str, ...]] = Counter()
    for labels, count in values:
        sums[labels] += count
    return sorted(sums.items())


def _known(values: Iterable[tuple[tuple[str, ...], float | None]]) -> list[LabelledValue]:
    """Return the values that exist."""
    return [(labels, value) for labels, value in values if value is not None]
