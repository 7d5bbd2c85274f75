"""Prometheus exposition: name, meaning and value of every metric.

Metrics of this process come from `observability.process_metrics`, metrics of the installation from the database
(`store.reports.metrics`); every process reports the latter alike. The reference page is generated from the tables here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from tenuto.clock import monotonic_seconds
from tenuto.extension import LabelledValue, Metric
from tenuto.observability.cached_query import QueryResult
from tenuto.observability.process_metrics import BUCKET_BOUNDS_SECONDS, OTHER, Histogram, ProcessMetrics
from tenuto.store.reports.metrics import RECENT_WINDOW, UNKNOWN_JOB_SAMPLE, DatabaseMetrics
from tenuto.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_DURATION, _START_DELAY = "tenuto_attempt_seconds", "tenuto_start_delay_seconds"
_RECENTLY = f"in the last {RECENT_WINDOW.total_seconds():.0f} s"

PROCESS_METRICS = (
    Metric("tenuto_build_info", "gauge", "Always 1; the label holds the version.", ("version",)),
    Metric("tenuto_claims_total", "counter", "Claims of the worker of this process."),
    Metric("tenuto_claimed_tasks_total", "counter", "Tasks that the worker of this process claimed."),
    Metric(
        "tenuto_outcome_batches_total", "counter", "Batches of outcomes written by this process; each is one commit."
    ),
    Metric(
        "tenuto_attempts_ended_total",
        "counter",
        "Attempts that ended in this process, by job or kind of step.",
        ("name", "queue", "status", "reason"),
    ),
    Metric("tenuto_outcomes_stale_total", "counter", "Outcomes rejected because the lease was lost."),
    Metric(_DURATION, "histogram", "Duration of attempts in this process.", ("name", "queue")),
    Metric(
        _START_DELAY,
        "histogram",
        "Delay between due time and start of attempts in this process.",
        ("name", "queue"),
    ),
    Metric(
        "tenuto_schedules_fired_total", "counter", "Schedules fired by the scheduler of this process.", ("schedule",)
    ),
    Metric(
        "tenuto_metrics_folded",
        "gauge",
        f"Names that this process counts as `{OTHER}`, because more than `metrics_max_names` came before.",
        ("label",),
    ),
)
DATABASE_METRICS = (
    Metric("tenuto_database_up", "gauge", "1 if the database answered; with 0, the following metrics are missing."),
    Metric("tenuto_metrics_query_seconds", "gauge", "Duration of the last metrics query."),
    Metric("tenuto_metrics_query_age_seconds", "gauge", "Age of the last metrics query."),
    Metric("tenuto_queue_waiting", "gauge", "Due tasks of a queue that no worker has claimed.", ("queue",)),
    Metric("tenuto_queue_oldest_seconds", "gauge", "Time since the oldest of them was due.", ("queue",)),
    Metric("tenuto_queue_workers", "gauge", "Live workers that serve a queue with waiting tasks.", ("queue",)),
    Metric("tenuto_tasks", "gauge", "Open tasks by state.", ("state",)),
    Metric(
        "tenuto_leases",
        "gauge",
        "Claimed tasks of a queue, by whether the lease is live or overdue.",
        ("queue", "lease"),
    ),
    Metric("tenuto_executions_in_progress", "gauge", "Executions in progress."),
    Metric("tenuto_executions_paused", "gauge", "Executions that are paused."),
    Metric("tenuto_dead_letters_open", "gauge", "Dead letters awaiting intervention."),
    Metric("tenuto_due", "gauge", "Due schedules and manifests that have not been fired.", ("kind",)),
    Metric("tenuto_due_delay_seconds", "gauge", "Delay of the most overdue one.", ("kind",)),
    Metric(
        "tenuto_definitions_stopped",
        "gauge",
        "Enabled schedules and manifests that do not run on their own, or whose code is gone, by obstacle.",
        ("kind", "obstacle"),
    ),
    Metric(
        "tenuto_services",
        "gauge",
        "Registered service processes, by whether they are alive or dead (several heartbeats missed).",
        ("service", "state"),
    ),
    Metric("tenuto_slots", "gauge", "Slots of all live workers that accept work."),
    Metric(
        "tenuto_unknown_job_tasks",
        "gauge",
        f"Due tasks of a job or step kind that no live worker of the queue knows, counted up to {UNKNOWN_JOB_SAMPLE}.",
        ("queue", "kind", "name"),
    ),
    Metric(
        "tenuto_repairs_total", "counter", "Repairs made by recovery sweeps; zero in normal operation.", ("repair",)
    ),
    Metric("tenuto_recent_attempts", "gauge", f"Attempts that ended {_RECENTLY}.", ("status", "reason")),
    Metric("tenuto_recent_run_seconds", "gauge", f"Total duration of attempts that ended {_RECENTLY}."),
    Metric("tenuto_recent_max_run_seconds", "gauge", f"Longest duration of an attempt that ended {_RECENTLY}."),
    Metric(
        "tenuto_recent_max_start_delay_seconds", "gauge", f"Longest start delay of an attempt that ended {_RECENTLY}."
    ),
)


def render_metrics(
    counters: ProcessMetrics, result: QueryResult[DatabaseMetrics], further: Mapping[Metric, Sequence[LabelledValue]]
) -> str:
    """Render all metrics in the Prometheus text format; ``further`` are those of extensions."""
    attempts = sorted(counters.attempts.copy().items())
    histograms = {
        _DURATION: [(labels, series.durations) for labels, series in attempts],
        _START_DELAY: [(labels, series.start_delays) for labels, series in attempts],
    }
    values: dict[str, Sequence[LabelledValue]] = {metric.name: found for metric, found in further.items()}
    values.update(_process_values(counters))
    values.update(_database_values(result))
    lines: list[str] = []
    for metric in (*PROCESS_METRICS, *DATABASE_METRICS, *further):
        if metric.kind != "histogram" and metric.name not in values:
            continue
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        if metric.kind == "histogram":
            for labels, histogram in histograms[metric.name]:
                lines += _histogram_samples(metric, labels, histogram)
        else:
            lines += [_sample(metric.name, metric.labels, *each) for each in values[metric.name]]
    return "".join(f"{line}\n" for line in lines)


def _histogram_samples(metric: Metric, labels: tuple[str, ...], histogram: Histogram) -> Iterator[str]:
    name, names = metric.name, metric.labels
    bounds = [*(f"{bound:g}" for bound in BUCKET_BOUNDS_SECONDS), "+Inf"]
    cumulative = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, cumulative, strict=True):
        yield _sample(f"{name}_bucket", (*names, "le"), (*labels, bound), count)
    yield _sample(f"{name}_count", names, labels, cumulative[-1])
    yield _sample(f"{name}_sum", names, labels, histogram.sum.total_seconds())


def _sample(name: str, label_names: tuple[str, ...], labels: tuple[str, ...], value: float) -> str:
    pairs = sorted(f'{key}="{_escape(label)}"' for key, label in zip(label_names, labels, strict=True))
    return f"{name}{{{','.join(pairs)}}} {float(value)!r}" if pairs else f"{name} {float(value)!r}"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _process_values(counters: ProcessMetrics) -> Iterator[tuple[str, list[LabelledValue]]]:
    yield "tenuto_build_info", [((__version__,), 1)]
    yield "tenuto_claims_total", [((), counters.claim_count)]
    yield "tenuto_claimed_tasks_total", [((), counters.claimed_task_count)]
    yield "tenuto_outcome_batches_total", [((), counters.batch_count)]
    yield (
        "tenuto_attempts_ended_total",
        [
            ((*labels, *outcome), count)
            for labels, series in sorted(counters.attempts.copy().items())
            for outcome, count in sorted(series.ended_counts.copy().items())
        ],
    )
    yield "tenuto_outcomes_stale_total", [((), counters.stale_count)]
    yield (
        "tenuto_schedules_fired_total",
        [((schedule,), count) for schedule, count in sorted(counters.fired_counts.copy().items())],
    )
    yield (
        "tenuto_metrics_folded",
        [
            (("name",), counters.names.folded_count),
            (("queue",), counters.queues.folded_count),
            (("schedule",), counters.schedules.folded_count),
        ],
    )


def _database_values(result: QueryResult[DatabaseMetrics]) -> Iterator[tuple[str, list[LabelledValue]]]:
    found = result.value
    yield "tenuto_database_up", [((), 0 if found is None else 1)]
    if found is None:
        return
    yield "tenuto_metrics_query_seconds", [((), result.seconds)]
    yield "tenuto_metrics_query_age_seconds", [((), monotonic_seconds() - result.finished_at)]
    yield "tenuto_queue_waiting", [((each.queue,), each.count) for each in found.queued]
    yield "tenuto_queue_oldest_seconds", [((each.queue,), each.oldest_seconds) for each in found.queued]
    yield "tenuto_queue_workers", [((each.queue,), each.worker_count) for each in found.queued]
    states = {
        "waiting": found.waiting_count,
        "scheduled": found.scheduled_count,
        "queued": sum(each.count for each in found.queued),
        "running": sum(each.live_count + each.overdue_count for each in found.running),
    }
    yield "tenuto_tasks", [((state,), number) for state, number in states.items()]
    yield (
        "tenuto_leases",
        [
            ((each.queue, state), count)
            for each in found.running
            for state, count in (("live", each.live_count), ("overdue", each.overdue_count))
        ],
    )
    yield "tenuto_executions_in_progress", [((), found.executions.in_progress_count)]
    yield "tenuto_executions_paused", [((), found.executions.paused_count)]
    yield "tenuto_dead_letters_open", [((), found.open_dead_letter_count)]
    yield "tenuto_due", [((each.kind,), each.due_count) for each in found.due]
    yield "tenuto_due_delay_seconds", [((each.kind,), each.late_seconds) for each in found.due]
    yield (
        "tenuto_definitions_stopped",
        [((each.definition, str(each.kind)), each.total) for each in found.stopped],
    )
    yield (
        "tenuto_services",
        [
            ((each.service, state), count)
            for each in found.services
            for state, count in (("alive", each.alive_count), ("dead", each.dead_count))
        ],
    )
    yield "tenuto_slots", [((), sum(each.slots for each in found.services))]
    yield (
        "tenuto_unknown_job_tasks",
        [((each.queue, each.kind, each.name), each.task_count) for each in found.unknown_jobs],
    )
    yield "tenuto_repairs_total", [((each.repair,), each.count) for each in found.repairs]
    yield "tenuto_recent_attempts", [((each.state, each.reason), each.attempt_count) for each in found.recent]
    yield "tenuto_recent_run_seconds", [((), sum(each.run_seconds for each in found.recent))]
    yield "tenuto_recent_max_run_seconds", [((), max((each.max_run_seconds for each in found.recent), default=0))]
    yield (
        "tenuto_recent_max_start_delay_seconds",
        [((), max((each.max_start_delay_seconds for each in found.recent), default=0))],
    )
